//! What a flash has on disk, version 1 (`docs/formats/flash.md`).
//!
//! ```text
//!      superblock │ state A │ state B │ … │ segment 0 │ segment 1 │ …
//!
//!      segment:  head │ data … │ head │ data … │ … │ summary
//!                └── a batch: one write ┘
//! ```
//!
//! Everything is in slots of 4 KiB, and little-endian. A *head* says what the slots after it hold, an entry for each run of
//! blocks; the *summary* at the end of a segment says the same of all of its batches, and that they are durable. The *state*
//! says which segments count and how far each volume is on its store; it is written to A and B in turn.
//!
//! Invariant: what is decoded here is possible in itself. Guests write the data, so a block of theirs may look like a head:
//! only one that has the key of the flash, which guests never see, is one.

use lamina_block::{Error, ErrorKind, Result};
use std::ops::Range;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::little_endian::{U16, U32, U64};
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
/// Entries of one head, at most.
pub const ENTRIES_MAX: usize = (SLOT - size_of::<HeadBytes>()) / size_of::<EntryBytes>();

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

const SUPER_MAGIC: [u8; 8] = *b"LAMFLASH";
const STATE_MAGIC: [u8; 8] = *b"LAMFLSTA";
const HEAD_MAGIC: [u8; 8] = *b"LAMFLHEA";
const SUMMARY_MAGIC: [u8; 8] = *b"LAMFLSUM";
const VERSION: u32 = 1;

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

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeadBytes {
    magic: [u8; 8],
    checksum: U64,
    key: U64,
    segment: U64,
    at: U32,
    slots: U32,
    durable: U32,
    entries: U16,
    log: u8,
    zero: [u8; 17],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SummaryBytes {
    magic: [u8; 8],
    checksum: U64,
    key: U64,
    segment: U64,
    entries: U32,
    log: u8,
    zero: [u8; 27],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
struct EntryBytes {
    volume: U16,
    what: u8,
    zero: u8,
    generation: U32,
    serial: U64,
    block: U64,
    count: U32,
    slot: U32,
    checksum: U64,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// The checksum of data, as entries have it.
pub fn checksum(data: &[u8]) -> u64 {
    xxh3_64(data)
}

/// Puts the checksum of all of `bytes` where it belongs: the eight bytes after the magic number, which count as zeroes.
fn seal(bytes: &mut [u8], key: u64) {
    bytes[8..16].fill(0);
    let sum = xxh3_64_with_seed(bytes, key);
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(bytes: &[u8], key: u64) -> bool {
    let mut rest = xxhash_rust::xxh3::Xxh3::with_seed(key);
    rest.update(&bytes[..8]);
    rest.update(&[0; 8]);
    rest.update(&bytes[16..]);
    bytes[8..16] == rest.digest().to_le_bytes()
}

/// What a flash is, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Super {
    /// Slots of a segment, a power of two.
    pub segment_slots: u32,
    /// How many segments there are.
    pub segments: u32,
    /// Which flash it is.
    pub uuid: u128,
    /// In everything but data, so that no guest can write what looks like it.
    pub key: u64,
}

impl Super {
    /// A flash of `size` bytes; `None` if that is too small.
    pub fn new(size: u64, uuid: u128, key: u64) -> Option<Super> {
        let slots = (size / SLOT as u64).min(u64::from(u32::MAX)) as u32;
        let room = slots.checked_sub(SEGMENTS_AT)?;
        // Some hundred segments, so that what has to be moved and what is open are small parts of the whole.
        let wanted = (room / 512).max(1).next_power_of_two();
        let segment_slots = wanted.clamp(*SEGMENT_SLOTS.start(), *SEGMENT_SLOTS.end());
        let segments = room / segment_slots;
        (segments >= SEGMENTS_MIN).then_some(Super { segment_slots, segments, uuid, key })
    }

    /// Slots at the end of a segment that are kept for its summary.
    pub fn summary_slots(&self) -> u32 {
        let bytes = size_of::<SummaryBytes>() + self.segment_slots as usize * size_of::<EntryBytes>();
        bytes.div_ceil(SLOT) as u32
    }

    /// Entries that a summary has room for.
    pub fn summary_entries(&self) -> usize {
        (self.summary_slots() as usize * SLOT - size_of::<SummaryBytes>()) / size_of::<EntryBytes>()
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
            version: VERSION.into(),
            segment_slots: self.segment_slots.into(),
            segments: self.segments.into(),
            zero: 0.into(),
            uuid: self.uuid.to_le_bytes(),
            key: self.key.into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        bytes.resize(SLOT, 0);
        seal(&mut bytes, 0);
        bytes
    }

    /// Reads slot 0 of a device of `size` bytes.
    pub fn decode(bytes: &[u8], size: u64) -> Result<Super> {
        let (head, _) = SuperBytes::ref_from_prefix(bytes).map_err(|_| wrong("it is cut off"))?;
        if head.magic != SUPER_MAGIC {
            return Err(wrong("there is no cache on it"));
        }
        if head.version.get() != VERSION {
            let message = format!("the cache has format {}; this program knows {VERSION}", head.version);
            return Err(Error::unsupported(message));
        }
        if !is_sealed(bytes, 0) {
            return Err(wrong("its superblock has another checksum"));
        }
        let read = Super {
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
        bytes.resize(STATE_SLOTS as usize * SLOT, 0);
        seal(&mut bytes, key);
        bytes
    }

    /// Reads a copy; `None` if it is not whole.
    pub fn decode(bytes: &[u8], key: u64) -> Option<State> {
        let (head, rest) = StateBytes::ref_from_prefix(bytes).ok()?;
        let count = head.volumes.get() as usize;
        if head.magic != STATE_MAGIC || head.key.get() != key || !is_sealed(bytes, key) || count > VOLUMES_MAX
        {
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

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Blocks that were written, and have to get to the store.
    Written,
    /// Blocks as the store has them.
    Clean,
    /// Blocks of which the flash has nothing any more.
    Dropped,
    /// Blocks that were written, and cannot be read any more; what their slots hold is nothing.
    Lost,
}

/// A run of blocks of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the volume.
    pub volume: u16,
    pub what: What,
    /// Of the volume, when it was written.
    pub generation: u32,
    /// Rises with each change of the volume.
    pub serial: u64,
    /// The first block.
    pub block: u64,
    /// How many blocks, not zero.
    pub count: u32,
    /// Where their data begin, in slots of the segment; 0 for what was dropped.
    pub slot: u32,
    /// Of the data.
    pub checksum: u64,
}

impl Entry {
    /// The blocks.
    pub fn blocks(&self) -> Range<u64> {
        self.block..self.block + u64::from(self.count)
    }

    fn bytes(&self) -> EntryBytes {
        EntryBytes {
            volume: self.volume.into(),
            what: self.what as u8,
            zero: 0,
            generation: self.generation.into(),
            serial: self.serial.into(),
            block: self.block.into(),
            count: self.count.into(),
            slot: self.slot.into(),
            checksum: self.checksum.into(),
        }
    }

    /// `None` if it cannot be an entry of a segment that has `slots` slots for batches.
    fn read(bytes: &EntryBytes, slots: u32) -> Option<Entry> {
        let what = [What::Written, What::Clean, What::Dropped, What::Lost]
            .into_iter()
            .find(|what| *what as u8 == bytes.what)?;
        let (block, count, slot) = (bytes.block.get(), bytes.count.get(), bytes.slot.get());
        let has_place = match what {
            What::Written | What::Clean | What::Lost => {
                slot > 0 && slot.checked_add(count).is_some_and(|end| end <= slots)
            }
            What::Dropped => slot == 0,
        };
        let has_blocks = count > 0 && block.checked_add(count.into()).is_some_and(|end| end < BLOCKS);
        let has_number = bytes.serial.get() < NUMBERS && bytes.generation.get() < GENERATIONS;
        (has_blocks && has_place && has_number).then_some(Entry {
            volume: bytes.volume.get(),
            what,
            generation: bytes.generation.get(),
            serial: bytes.serial.get(),
            block,
            count,
            slot,
            checksum: bytes.checksum.get(),
        })
    }

    fn read_all(bytes: &[u8], count: usize, slots: u32) -> Option<Vec<Entry>> {
        let (entries, _) = <[EntryBytes]>::ref_from_prefix_with_elems(bytes, count).ok()?;
        entries.iter().map(|entry| Entry::read(entry, slots)).collect()
    }
}

/// The head of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the segment.
    pub segment: u64,
    /// Which log the segment belongs to.
    pub log: u8,
    /// Where the head is, in slots of the segment.
    pub at: u32,
    /// Slots of the batch with its head.
    pub slots: u32,
    /// So many slots of the segment, from its start, were durable when the batch was written.
    pub durable: u32,
    pub entries: Vec<Entry>,
}

impl Head {
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let head = HeadBytes {
            magic: HEAD_MAGIC,
            checksum: 0.into(),
            key: key.into(),
            segment: self.segment.into(),
            at: self.at.into(),
            slots: self.slots.into(),
            durable: self.durable.into(),
            entries: (self.entries.len() as u16).into(),
            log: self.log,
            zero: [0; 17],
        };
        let mut bytes = Vec::with_capacity(SLOT);
        bytes.extend_from_slice(head.as_bytes());
        self.entries.iter().for_each(|entry| bytes.extend_from_slice(entry.bytes().as_bytes()));
        bytes.resize(SLOT, 0);
        seal(&mut bytes, key);
        bytes
    }

    /// Reads a slot; `None` if it is no head, or not whole.
    pub fn decode(bytes: &[u8], of: &Super) -> Option<Head> {
        let (head, rest) = HeadBytes::ref_from_prefix(bytes).ok()?;
        if head.magic != HEAD_MAGIC || head.key.get() != of.key || !is_sealed(bytes, of.key) {
            return None;
        }
        let (at, slots, count) = (head.at.get(), head.slots.get(), usize::from(head.entries.get()));
        let end = at.checked_add(slots).filter(|end| slots > 0 && *end <= of.batch_slots())?;
        (head.log < 2 && count <= ENTRIES_MAX && head.segment.get() < NUMBERS).then_some(())?;
        let entries = Entry::read_all(rest, count, end)?;
        let (segment, log, durable) = (head.segment.get(), head.log, head.durable.get());
        Some(Head { segment, log, at, slots, durable, entries })
    }
}

/// What a segment holds, all of it durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of the segment.
    pub segment: u64,
    /// Which log it belongs to.
    pub log: u8,
    pub entries: Vec<Entry>,
}

impl Summary {
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let head = SummaryBytes {
            magic: SUMMARY_MAGIC,
            checksum: 0.into(),
            key: key.into(),
            segment: self.segment.into(),
            entries: (self.entries.len() as u32).into(),
            log: self.log,
            zero: [0; 27],
        };
        let mut bytes = head.as_bytes().to_vec();
        self.entries.iter().for_each(|entry| bytes.extend_from_slice(entry.bytes().as_bytes()));
        bytes.resize(bytes.len().next_multiple_of(SLOT), 0);
        seal(&mut bytes, key);
        bytes
    }

    /// What the first slot of a summary says: the number of the segment, and the slots of the whole summary.
    pub fn peek(bytes: &[u8], of: &Super) -> Option<(u64, u32)> {
        let (head, _) = SummaryBytes::ref_from_prefix(bytes).ok()?;
        let entries = head.entries.get() as usize;
        let right =
            head.magic == SUMMARY_MAGIC && head.key.get() == of.key && entries <= of.summary_entries();
        let len = size_of::<SummaryBytes>() + entries * size_of::<EntryBytes>();
        right.then_some((head.segment.get(), len.div_ceil(SLOT) as u32))
    }

    /// Reads all slots of a summary; `None` if it is not whole.
    pub fn decode(bytes: &[u8], of: &Super) -> Option<Summary> {
        let (segment, slots) = Summary::peek(bytes, of)?;
        let bytes = bytes.get(..slots as usize * SLOT).filter(|bytes| is_sealed(bytes, of.key))?;
        let (head, rest) = SummaryBytes::ref_from_prefix(bytes).ok()?;
        let entries = Entry::read_all(rest, head.entries.get() as usize, of.batch_slots())?;
        (head.log < 2 && segment < NUMBERS).then_some(Summary { segment, log: head.log, entries })
    }
}
