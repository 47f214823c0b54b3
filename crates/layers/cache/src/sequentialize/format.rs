//! What `sequentialize` has on disk: version 1, and version 2 beside homes (`docs/formats/sequentialize.md`).
//!
//! ```text
//!      superblock │ checkpoint A │ checkpoint B │ … │ segment 0 │ segment 1 │ …
//!
//!      segment:  head │ data … │ head │ data … │ …
//!                └── a batch: one write ┘
//! ```
//!
//! All of this is the device, or, beside homes, the region at its end: slots are counted from where the superblock is.
//! Everything is in slots of 4 KiB, and little-endian. A *head* says what the slots after it hold, an entry for each
//! run of blocks. A *checkpoint* says where the pages of the map are, and what is known of each segment; it is
//! written to A and B in turn (`checkpoint.rs`).
//!
//! Assumptions about the device: a logical block is written whole or not at all; a completed flush makes all writes
//! before it durable.
//!
//! Invariant: what is decoded here is possible in itself. Guests write the data, so a block of theirs may look like a
//! head: only one that has the key of the device, which guests never see, is one.

mod checkpoint;
mod fuzz;

pub use checkpoint::{Checkpoint, Page, Row, RowState};
pub use fuzz::fuzz;
use lamina_block::{Bytes, Error, ErrorKind, Result};
use lamina_kit::sealed_page;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a slot: the unit of the map, and of everything on the device.
pub const SLOT: usize = 4096;
/// Blocks in a page of the map: a slot of places of 4 bytes.
pub const PAGE_BLOCKS: u32 = 1024;
/// Slots of a segment without a stripe to fit.
pub const SEGMENT_SLOTS: std::ops::RangeInclusive<u32> = 8..=2048;
/// Slots of a segment, at most, with a stripe, or of a zone.
pub const SEGMENT_SLOTS_MAX: u32 = 1 << 16;
/// The fewest segments that the log can work with.
pub const SEGMENTS_MIN: u32 = 14;
/// With fewer segments than this there are two classes of data, and not six: each class has an open segment.
const SEGMENTS_FOR_CLASSES: u32 = 96;
/// Serial numbers, and those of segments and checkpoints, are below this one: they can always be counted on from.
pub const NUMBERS: u64 = 1 << 62;
/// Entries of one head, at most.
pub const ENTRIES_MAX: usize = (SLOT - size_of::<HeadBytes>()) / size_of::<EntryBytes>();

/// The bytes that the superblock begins with.
pub const SUPER_MAGIC: [u8; 8] = *b"LAMSEQUE";
const HEAD_MAGIC: [u8; 8] = *b"LAMSQHEA";
/// The log is the whole device.
const LOG: u32 = 1;
/// The log is a region behind the blocks of the volume, which have their homes before it.
const HOME: u32 = 2;
/// Blocks of a volume, and slots of a log, are fewer than this: 8 TiB.
pub const SLOTS_MAX: u32 = u32::MAX / 2;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SuperBytes {
    magic: [u8; 8],
    checksum: U64,
    version: U32,
    segment_slots: U32,
    segments: U32,
    segments_at: U32,
    blocks: U32,
    checkpoint_slots: U32,
    uuid: [u8; 16],
    key: U64,
    stride: U32,
    class_limit: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeadBytes {
    magic: [u8; 8],
    checksum: U64,
    key: U64,
    segment: U64,
    serial: U64,
    checkpoint: U64,
    at: U32,
    slots: U32,
    durable: U32,
    entries: U16,
    class: u8,
    zero: [u8; 9],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
struct EntryBytes {
    checksum: U64,
    block: U32,
    count: U32,
    slot: U32,
    from: U32,
    what: u8,
    zero: [u8; 7],
}

pub(super) fn corrupt(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// The checksum of data, as entries have it, and of a page of the map.
pub fn checksum(data: &[u8]) -> u64 {
    xxh3_64(data)
}

/// What a device is, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Super {
    /// Slots of a segment.
    pub segment_slots: u32,
    /// How many segments there are.
    pub segments: u32,
    /// Where the segments begin, in slots: a multiple of the stripe.
    pub segments_at: u32,
    /// Blocks of the volume.
    pub blocks: u32,
    /// Slots of a copy of the checkpoint.
    pub checkpoint_slots: u32,
    /// Which device it is.
    pub uuid: u128,
    /// In everything but data, so that no guest can write what looks like it.
    pub key: u64,
    /// The blocks of the volume have homes: their own addresses, before the region that is the log.
    pub is_home: bool,
    /// Slots from the beginning of a segment to that of the next one: more than a segment has where that is a zone
    /// whose capacity is less than its size.
    pub stride: u32,
    /// Classes of data, at most, because each has an open zone; 0: any number.
    pub class_limit: u32,
}

/// What the superblock says, as far as it can be read.
pub fn details(bytes: &[u8]) -> Vec<(&'static str, String)> {
    let Ok((head, _)) = SuperBytes::ref_from_prefix(bytes) else { return Vec::new() };
    vec![
        ("version", head.version.to_string()),
        ("uuid", format!("{:032x}", u128::from_le_bytes(head.uuid))),
        ("size", Bytes(u64::from(head.blocks.get()) * SLOT as u64).to_string()),
    ]
}

/// So many whole slots, if they are not too many.
fn slots_in(size: u64) -> Option<u32> {
    u32::try_from(size / SLOT as u64).ok().filter(|slots| *slots < SLOTS_MAX)
}

impl Super {
    /// The layout of a device of `size` bytes whose full stripe has `stripe` slots (1: there is none), with as many
    /// blocks as fit; `None` if it is too small, or larger than places of 32 bits.
    pub fn new(size: u64, stripe: u32, uuid: u128, key: u64) -> Option<Super> {
        let slots = slots_in(size)?;
        let mut of = Super { uuid, key, ..Super::lay_out(slots, stripe, slots.div_ceil(PAGE_BLOCKS))? };
        of.blocks = of.blocks_max();
        (of.blocks > 0).then_some(of)
    }

    /// The layout of a region of `size` bytes behind the homes of so many blocks: a multiple of the full stripe, which
    /// has `stripe` slots. `None` if the region is too small, or if either is larger than places of 32 bits.
    pub fn beside(blocks: u32, size: u64, stripe: u32, uuid: u128, key: u64) -> Option<Super> {
        let laid_out = Super::lay_out(slots_in(size)?, stripe, blocks.div_ceil(PAGE_BLOCKS))?;
        let of = Super { blocks, is_home: true, uuid, key, ..laid_out };
        of.has_possible_blocks().then_some(of)
    }

    /// Segments in so many slots, with a map of `pages` pages.
    fn lay_out(slots: u32, stripe: u32, pages: u32) -> Option<Super> {
        // A thousand segments, so that what is open, and what is kept free, are small parts of the whole; but half as
        // many where they would have less than 1 MiB, as each has a head and a minimum of garbage.
        let wanted = (slots / 512).min(256).max(slots / 1024);
        let wanted = wanted.next_power_of_two().clamp(*SEGMENT_SLOTS.start(), *SEGMENT_SLOTS.end());
        let segment_slots = wanted.checked_next_multiple_of(stripe)?;
        let most = slots / segment_slots;
        let checkpoint_slots = Checkpoint::slots(pages, most);
        let segments_at = (1 + 2 * checkpoint_slots).checked_next_multiple_of(stripe)?;
        let segments = slots.checked_sub(segments_at)? / segment_slots;
        let of = Super {
            segment_slots,
            segments,
            segments_at,
            blocks: 0,
            checkpoint_slots,
            uuid: 0,
            key: 0,
            is_home: false,
            stride: segment_slots,
            class_limit: 0,
        };
        (segments >= SEGMENTS_MIN && segment_slots <= SEGMENT_SLOTS_MAX).then_some(of)
    }

    /// The most blocks with which collection always gains space: in every segment but the reserve and the open ones
    /// there are heads (one for 64 slots, and one more), and garbage of one slot in 20, or three.
    pub fn blocks_max(&self) -> u32 {
        let all = Super { blocks: self.segments.saturating_mul(self.segment_slots), ..*self };
        let full = self.segments.saturating_sub(all.reserve().user + self.classes() + 1);
        (full * self.copied_max()).saturating_sub(all.pages())
    }

    /// Blocks of a segment that can be copied with a gain, at most: the rest are heads and garbage.
    pub fn copied_max(&self) -> u32 {
        self.segment_slots - self.segment_slots.div_ceil(64) - 1 - (self.segment_slots / 20).max(3)
    }

    /// True if collection always gains space. Beside homes there is no block that could not leave the log, so that it
    /// suffices that the reserve and the open segments are half of all at most.
    fn has_possible_blocks(&self) -> bool {
        match self.is_home {
            false => self.blocks > 0 && self.blocks <= self.blocks_max(),
            true => {
                let is_small = self.blocks > 0 && self.blocks < SLOTS_MAX;
                is_small && 2 * (self.reserve().user + self.classes() + 1) <= self.segments
            }
        }
    }

    /// Where a slot is on the device, in bytes.
    pub fn place(&self, slot: u32) -> u64 {
        let before = if self.is_home { self.blocks } else { 0 };
        (u64::from(before) + u64::from(slot)) * SLOT as u64
    }

    /// Pages of the map.
    pub fn pages(&self) -> u32 {
        self.blocks.div_ceil(PAGE_BLOCKS)
    }

    /// Classes of data: those of users and of copies, without that of the map.
    pub fn classes(&self) -> u32 {
        let is_limited = (1..6).contains(&self.class_limit);
        if self.segments < SEGMENTS_FOR_CLASSES || is_limited { 2 } else { 6 }
    }

    /// The free segments that are not for everybody.
    pub fn reserve(&self) -> Reserve {
        // All pages of the map, in batches with a head each, and one batch more than fits into whole segments.
        let a_segment = self.segment_slots - self.segment_slots.div_ceil(16);
        let copy = self.pages().div_ceil(a_segment) + 1;
        Reserve { copy, user: copy + 2 }
    }

    /// Where the copies of the checkpoint begin, in slots.
    pub fn checkpoint_at(&self, copy: usize) -> u32 {
        1 + copy as u32 * self.checkpoint_slots
    }

    /// The first slot of a segment.
    pub fn start(&self, segment: u32) -> u32 {
        self.segments_at + segment * self.stride
    }

    /// The segment that has a slot.
    pub fn segment_of(&self, slot: u32) -> u32 {
        (slot - self.segments_at) / self.stride
    }

    /// All slots of segments.
    pub fn slots(&self) -> Range<u32> {
        self.segments_at..self.start(self.segments)
    }

    /// Slot 0.
    pub fn encode(&self) -> Vec<u8> {
        let head = SuperBytes {
            magic: SUPER_MAGIC,
            checksum: 0.into(),
            version: if self.is_home { HOME } else { LOG }.into(),
            segment_slots: self.segment_slots.into(),
            segments: self.segments.into(),
            segments_at: self.segments_at.into(),
            blocks: self.blocks.into(),
            checkpoint_slots: self.checkpoint_slots.into(),
            uuid: self.uuid.to_le_bytes(),
            key: self.key.into(),
            stride: if self.stride == self.segment_slots { 0 } else { self.stride }.into(),
            class_limit: self.class_limit.into(),
        };
        sealed_page::page(head.as_bytes(), SLOT, 0)
    }

    /// Reads slot 0 of a log on a device of `size` bytes.
    pub fn decode(bytes: &[u8], size: u64) -> Result<Super> {
        let (head, _) = SuperBytes::ref_from_prefix(bytes).map_err(|_| corrupt("it is cut off"))?;
        if head.magic != SUPER_MAGIC {
            return Err(corrupt("there is no log of sequentialize on it: make it with `lamina create`"));
        }
        let is_home = match head.version.get() {
            LOG => false,
            HOME => true,
            other => {
                let message = format!("the log has format {other}; this program knows {LOG} and {HOME}");
                return Err(Error::unsupported(message));
            }
        };
        if !sealed_page::is_sealed(bytes, 0) {
            return Err(corrupt("its superblock has another checksum"));
        }
        let read = Super {
            segment_slots: head.segment_slots.get(),
            segments: head.segments.get(),
            segments_at: head.segments_at.get(),
            blocks: head.blocks.get(),
            checkpoint_slots: head.checkpoint_slots.get(),
            uuid: u128::from_le_bytes(head.uuid),
            key: head.key.get(),
            is_home,
            stride: if head.stride.get() == 0 { head.segment_slots.get() } else { head.stride.get() },
            class_limit: head.class_limit.get(),
        };
        if !read.is_possible() {
            return Err(corrupt("its superblock is impossible"));
        }
        let needed = read.place(read.slots().end);
        if needed > size {
            return Err(corrupt(format!(
                "it has become smaller than the log on it: {needed} of {size} bytes"
            )));
        }
        Ok(read)
    }

    fn is_possible(&self) -> bool {
        let end = u64::from(self.segments) * u64::from(self.stride) + u64::from(self.segments_at);
        let is_small = end < u64::from(SLOTS_MAX)
            && (*SEGMENT_SLOTS.start()..=SEGMENT_SLOTS_MAX).contains(&self.segment_slots)
            && self.stride >= self.segment_slots
            && self.segments >= SEGMENTS_MIN;
        is_small
            && self.has_possible_blocks()
            && self.checkpoint_slots >= Checkpoint::slots(self.pages(), self.segments)
            // Whoever opens the log reads a checkpoint at once: it is no larger than a device of this size may need.
            && self.checkpoint_slots / 2 <= Checkpoint::slots(self.pages().max(end as u32 / PAGE_BLOCKS), self.segments)
            // A slot of the superblock lies before both.
            && 2 * u64::from(self.checkpoint_slots) < u64::from(self.segments_at)
    }
}

/// Free segments that are left: at `copy` or fewer only the map may take one, at `user` or fewer only copies as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// For the map alone.
    pub copy: u32,
    /// For the map and for copies.
    pub user: u32,
}

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Blocks that were written.
    Written = 1,
    /// Blocks that read as zeroes from now on; beside homes, as what is there.
    Dropped = 2,
    /// Blocks that collection has moved: they are here only if they still were there.
    Copied = 3,
    /// Blocks that collection has written home, durably: they are there from now on, if they still were here.
    Homed = 4,
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What has become of them.
    pub what: What,
    /// The first block; from the number of blocks of the volume on, these are pages of the map.
    pub block: u32,
    /// How many blocks, not zero.
    pub count: u32,
    /// Where their data begin, in slots of the segment; 0 for what was dropped, or is at home.
    pub slot: u32,
    /// Of what was copied or written home: where the first block was, in slots of the log; otherwise 0.
    pub from: u32,
    /// Of the data.
    pub checksum: u64,
}

impl Entry {
    /// The blocks.
    pub fn blocks(&self) -> Range<u32> {
        self.block..self.block + self.count
    }

    /// Slots of data.
    pub fn slots(&self) -> u32 {
        match self.what {
            What::Written | What::Copied => self.count,
            What::Dropped | What::Homed => 0,
        }
    }

    fn bytes(&self) -> EntryBytes {
        EntryBytes {
            checksum: self.checksum.into(),
            block: self.block.into(),
            count: self.count.into(),
            slot: self.slot.into(),
            from: self.from.into(),
            what: self.what as u8,
            zero: [0; 7],
        }
    }

    /// `None` if it cannot be an entry of the batch that has the slots of `at`.
    fn read(bytes: &EntryBytes, at: &Range<u32>, of: &Super) -> Option<Entry> {
        let all = [What::Written, What::Dropped, What::Copied, What::Homed];
        let what = all.into_iter().find(|what| *what as u8 == bytes.what)?;
        let entry = Entry {
            what,
            block: bytes.block.get(),
            count: bytes.count.get(),
            slot: bytes.slot.get(),
            from: bytes.from.get(),
            checksum: bytes.checksum.get(),
        };
        let end = entry.block.checked_add(entry.count)?;
        let is_here = || {
            let end = entry.slot.checked_add(entry.count);
            entry.slot > at.start && end.is_some_and(|end| end <= at.end)
        };
        let was_there = || {
            let end = entry.from.checked_add(entry.count);
            of.slots().contains(&entry.from) && end.is_some_and(|end| end <= of.slots().end)
        };
        let is_possible = match what {
            What::Written => is_here() && entry.from == 0 && end <= of.blocks + of.pages(),
            What::Copied => is_here() && was_there() && end <= of.blocks + of.pages(),
            What::Dropped => entry.slot == 0 && entry.from == 0 && end <= of.blocks,
            What::Homed => of.is_home && entry.slot == 0 && was_there() && end <= of.blocks,
        };
        (entry.count > 0 && is_possible).then_some(entry)
    }
}

/// The head of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The number of this use of the segment.
    pub segment: u64,
    /// Batches take effect in the order of their serial numbers.
    pub serial: u64,
    /// The last checkpoint that was durable when the batch was made.
    pub checkpoint: u64,
    /// The class of the segment.
    pub class: u8,
    /// Where the head is, in slots of the segment.
    pub at: u32,
    /// Slots of the batch with its head.
    pub slots: u32,
    /// So many slots of the segment, from its start, were durable when the batch was made.
    pub durable: u32,
    /// What the batch holds.
    pub entries: Vec<Entry>,
}

impl Head {
    /// Fills `slot`, all of it.
    pub fn encode_into(&self, slot: &mut [u8], key: u64) {
        let head = HeadBytes {
            magic: HEAD_MAGIC,
            checksum: 0.into(),
            key: key.into(),
            segment: self.segment.into(),
            serial: self.serial.into(),
            checkpoint: self.checkpoint.into(),
            at: self.at.into(),
            slots: self.slots.into(),
            durable: self.durable.into(),
            entries: (self.entries.len() as u16).into(),
            class: self.class,
            zero: [0; 9],
        };
        let mut bytes = head.as_bytes().to_vec();
        self.entries.iter().for_each(|entry| bytes.extend_from_slice(entry.bytes().as_bytes()));
        slot.copy_from_slice(&sealed_page::page(&bytes, SLOT, key));
    }

    /// Reads a slot; `None` if it is no head, or not whole.
    pub fn decode(bytes: &[u8], of: &Super) -> Option<Head> {
        let (head, rest) = HeadBytes::ref_from_prefix(bytes).ok()?;
        if head.magic != HEAD_MAGIC || !sealed_page::is_whole(bytes, HEAD_MAGIC, of.key) {
            return None;
        }
        let (at, slots) = (head.at.get(), head.slots.get());
        let end = at.checked_add(slots).filter(|end| slots > 0 && *end <= of.segment_slots)?;
        let numbers = [head.segment, head.serial, head.checkpoint];
        let is_possible = u32::from(head.class) <= of.classes() && head.durable.get() <= at;
        (is_possible && numbers.iter().all(|number| number.get() < NUMBERS)).then_some(())?;
        let (entries, _) =
            <[EntryBytes]>::ref_from_prefix_with_elems(rest, usize::from(head.entries.get())).ok()?;
        let entries =
            entries.iter().map(|entry| Entry::read(entry, &(at..end), of)).collect::<Option<_>>()?;
        Some(Head {
            segment: head.segment.get(),
            serial: head.serial.get(),
            checkpoint: head.checkpoint.get(),
            class: head.class,
            at,
            slots,
            durable: head.durable.get(),
            entries,
        })
    }
}
