//! What a flash has on disk, versions 1 and 2 (`docs/formats/flash.md`).
//!
//! ```text
//!      superblock │ state A │ state B │ … │ segment 0 │ segment 1 │ …
//!
//!      segment:  head │ data … │ head │ data … │ … │ summary
//!                └── a batch: one write ┘
//! ```
//!
//! Everything is in slots of 4 KiB, and little-endian. A *head* says what the slots after it hold, an entry
//! for each run of blocks; the *summary* at the end of a segment says the same of all of its batches, and
//! that they are durable. The *state* says which segments count and how far each volume is on its store; it
//! is written to A and B in turn. Heads, summaries and entries are in `segment.rs`.
//!
//! Invariant: what is decoded here is possible in itself. Guests write the data, so a block of theirs may
//! look like a head: only one that has the key of the flash, which guests never see, is one.

mod segment;

use lamina_block::{Bytes, Error, ErrorKind, Result};
use lamina_kit::sealed_page;
pub use segment::{ENTRIES_MAX, Entry, Head, Summary, What, checksum};
use segment::{ENTRY_LEN, SUMMARY_LEN};
use std::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a slot: the unit of the cache, and of everything on the flash.
pub const SLOT: usize = 4096;
/// Blocks have numbers below this.
const BLOCKS: u64 = 1 << 40;
/// Bytes of a volume, at most: 4 PiB but for a block.
pub const LARGEST: u64 = (BLOCKS - 1) * SLOT as u64;
/// Volumes of a flash, at most.
pub const VOLUMES_MAX: usize = 120;
/// A segment has so many slots.
pub const SEGMENT_SLOTS: std::ops::RangeInclusive<u32> = 16..=2048;
/// The fewest segments a flash can work with.
pub const SEGMENTS_MIN: u32 = 16;
/// Serial numbers, and those of segments and states, are below this one: they can always be counted on from.
const NUMBERS: u64 = 1 << 62;
/// Likewise generations.
const GENERATIONS: u32 = 1 << 31;

/// Slots of a copy of the state.
pub const STATE_SLOTS: u32 = 2;
/// Where the two copies of the state begin, in slots.
pub const STATES: [u32; 2] = [1, 1 + STATE_SLOTS];
/// Where the segments begin, in slots.
pub const SEGMENTS_AT: u32 = 8;

/// The bytes that the superblock begins with.
pub const SUPER_MAGIC: [u8; 8] = *b"LAMFLASH";
const STATE_MAGIC: [u8; 8] = *b"LAMFLSTA";
/// The version of a new cache, and those that are known. Version 2 has blocks of which sectors are absent.
pub const VERSION: u32 = 2;
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=VERSION;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SuperBytes {
    magic: [u8; 8],
    checksum: U64,
    version: U32,
    segment_slots: U32,
    segments: U32,
    zero: U32,
    uuid: [u8; 16],
    key: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StateBytes {
    magic: [u8; 8],
    checksum: U64,
    key: U64,
    sequence: U64,
    tails: [U64; 2],
    next_segment: U64,
    volumes: U32,
    zero: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct VolumeBytes {
    uuid: [u8; 16],
    checkpoint: U64,
    serial: U64,
    size: U64,
    generation: U32,
    valid: U32,
    zero: U64,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// What a flash is, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Super {
    /// Of the format.
    pub version: u32,
    /// Slots of a segment, a power of two.
    pub segment_slots: u32,
    /// How many segments there are.
    pub segments: u32,
    /// Which flash it is.
    pub uuid: u128,
    /// In everything but data, so that no guest can write what looks like it.
    pub key: u64,
}

/// What the superblock says, as far as it can be read.
pub fn details(bytes: &[u8]) -> Vec<(&'static str, String)> {
    let Ok((head, _)) = SuperBytes::ref_from_prefix(bytes) else { return Vec::new() };
    let slots = u64::from(head.segment_slots.get()) * u64::from(head.segments.get());
    vec![
        ("version", head.version.to_string()),
        ("uuid", format!("{:032x}", u128::from_le_bytes(head.uuid))),
        ("size", Bytes(slots.saturating_mul(SLOT as u64)).to_string()),
    ]
}

impl Super {
    /// A flash of `size` bytes; `None` if that is too small.
    pub fn new(size: u64, uuid: u128, key: u64) -> Option<Super> {
        let slots = (size / SLOT as u64).min(u64::from(u32::MAX)) as u32;
        let space = slots.checked_sub(SEGMENTS_AT)?;
        // Some hundred segments, so that what has to be moved and what is open are small parts of the whole.
        let wanted = (space / 512).max(1).next_power_of_two();
        let segment_slots = wanted.clamp(*SEGMENT_SLOTS.start(), *SEGMENT_SLOTS.end());
        let segments = space / segment_slots;
        (segments >= SEGMENTS_MIN).then_some(Super { version: VERSION, segment_slots, segments, uuid, key })
    }

    /// True if a block may be there of which sectors are absent.
    pub fn has_parts(&self) -> bool {
        self.version >= 2
    }

    /// Slots at the end of a segment that are kept for its summary.
    pub fn summary_slots(&self) -> u32 {
        let bytes = SUMMARY_LEN + self.segment_slots as usize * ENTRY_LEN;
        bytes.div_ceil(SLOT) as u32
    }

    /// Entries that a summary has space for.
    pub fn summary_entries(&self) -> usize {
        (self.summary_slots() as usize * SLOT - SUMMARY_LEN) / ENTRY_LEN
    }

    /// Slots of a segment for batches.
    pub fn batch_slots(&self) -> u32 {
        self.segment_slots - self.summary_slots()
    }

    /// All slots up to the end of the last segment.
    pub fn slots(&self) -> u32 {
        SEGMENTS_AT + self.segments * self.segment_slots
    }

    /// The slots of a segment.
    pub fn segment(&self, number: u32) -> Range<u32> {
        let start = SEGMENTS_AT + number * self.segment_slots;
        start..start + self.segment_slots
    }

    /// The segment that has a slot.
    pub fn segment_of(&self, slot: u32) -> u32 {
        (slot - SEGMENTS_AT) / self.segment_slots
    }

    pub fn encode(&self) -> Vec<u8> {
        let head = SuperBytes {
            magic: SUPER_MAGIC,
            checksum: 0.into(),
            version: self.version.into(),
            segment_slots: self.segment_slots.into(),
            segments: self.segments.into(),
            zero: 0.into(),
            uuid: self.uuid.to_le_bytes(),
            key: self.key.into(),
        };
        sealed_page::page(head.as_bytes(), SLOT, 0)
    }

    /// Reads slot 0 of a device of `size` bytes.
    pub fn decode(bytes: &[u8], size: u64) -> Result<Super> {
        let (head, _) = SuperBytes::ref_from_prefix(bytes).map_err(|_| wrong("it is cut off"))?;
        if head.magic != SUPER_MAGIC {
            return Err(wrong("there is no cache on it"));
        }
        if !VERSIONS.contains(&head.version.get()) {
            let message = format!("the cache has format {}; this program knows 1 to {VERSION}", head.version);
            return Err(Error::unsupported(message));
        }
        if !sealed_page::is_sealed(bytes, 0) {
            return Err(wrong("its superblock has another checksum"));
        }
        let read = Super {
            version: head.version.get(),
            segment_slots: head.segment_slots.get(),
            segments: head.segments.get(),
            uuid: u128::from_le_bytes(head.uuid),
            key: head.key.get(),
        };
        let slots = u64::from(read.segments) * u64::from(read.segment_slots) + u64::from(SEGMENTS_AT);
        let possible = read.segment_slots.is_power_of_two()
            && SEGMENT_SLOTS.contains(&read.segment_slots)
            && read.segments >= SEGMENTS_MIN
            && slots <= u64::from(u32::MAX);
        if !possible {
            return Err(wrong("its superblock is impossible"));
        }
        if slots * SLOT as u64 > size {
            let message = format!(
                "it has become smaller than the cache on it: {size} of {} bytes",
                slots * SLOT as u64
            );
            return Err(wrong(message));
        }
        Ok(read)
    }
}

/// What is kept of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeState {
    pub uuid: u128,
    /// What was written up to this serial number is durable on the store.
    pub checkpoint: u64,
    /// Serial numbers up to this one may have been given.
    pub serial: u64,
    /// Blocks of the volume.
    pub size: u64,
    /// Raised whenever all that was written is on the store and is not to be replayed.
    pub generation: u32,
    /// Records of generations before this one do not count at all.
    pub valid: u32,
}

/// What is kept of the flash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Of two copies that can be read, the one with the higher number counts.
    pub sequence: u64,
    /// The oldest segment of each log that counts.
    pub tails: [u64; 2],
    /// Segments have numbers below this one, or none.
    pub next_segment: u64,
    /// By the number that their entries have. A place without a UUID is free.
    pub volumes: Vec<VolumeState>,
}

impl State {
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let head = StateBytes {
            magic: STATE_MAGIC,
            checksum: 0.into(),
            key: key.into(),
            sequence: self.sequence.into(),
            tails: self.tails.map(U64::from),
            next_segment: self.next_segment.into(),
            volumes: (self.volumes.len() as u32).into(),
            zero: 0.into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        for volume in &self.volumes {
            let row = VolumeBytes {
                uuid: volume.uuid.to_le_bytes(),
                checkpoint: volume.checkpoint.into(),
                serial: volume.serial.into(),
                size: volume.size.into(),
                generation: volume.generation.into(),
                valid: volume.valid.into(),
                zero: 0.into(),
            };
            bytes.extend_from_slice(row.as_bytes());
        }
        sealed_page::page(&bytes, STATE_SLOTS as usize * SLOT, key)
    }

    /// Reads a copy; `None` if it is not whole.
    pub fn decode(bytes: &[u8], key: u64) -> Option<State> {
        let (head, rest) = StateBytes::ref_from_prefix(bytes).ok()?;
        let count = head.volumes.get() as usize;
        if !sealed_page::is_whole(bytes, STATE_MAGIC, key) || count > VOLUMES_MAX {
            return None;
        }
        let (next, tails) = (head.next_segment.get(), head.tails.map(U64::get));
        let is_possible =
            head.sequence.get() < NUMBERS && next < NUMBERS && tails.iter().all(|tail| *tail <= next);
        let (rows, _) = <[VolumeBytes]>::ref_from_prefix_with_elems(rest, count).ok()?;
        let can_be = |row: &VolumeBytes| {
            row.checkpoint.get().max(row.serial.get()) < NUMBERS
                && row.generation.get().max(row.valid.get()) < GENERATIONS
        };
        (is_possible && rows.iter().all(can_be)).then_some(())?;
        let volumes = rows.iter().map(|row| VolumeState {
            uuid: u128::from_le_bytes(row.uuid),
            checkpoint: row.checkpoint.get(),
            serial: row.serial.get(),
            size: row.size.get(),
            generation: row.generation.get(),
            valid: row.valid.get(),
        });
        Some(State { sequence: head.sequence.get(), tails, next_segment: next, volumes: volumes.collect() })
    }
}
