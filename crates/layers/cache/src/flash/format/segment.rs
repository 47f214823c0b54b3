//! What a segment has on disk: heads, the summary, and the entries that both consist of.

use super::{BLOCKS, GENERATIONS, NUMBERS, SLOT, Super};
use lamina_kit::sealed_page;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries of one head, at most.
pub const ENTRIES_MAX: usize = (SLOT - size_of::<HeadBytes>()) / ENTRY_LEN;
/// Bytes of an entry.
pub(super) const ENTRY_LEN: usize = size_of::<EntryBytes>();
/// Bytes of a summary without its entries.
pub(super) const SUMMARY_LEN: usize = size_of::<SummaryBytes>();

const HEAD_MAGIC: [u8; 8] = *b"LAMFLHEA";
const SUMMARY_MAGIC: [u8; 8] = *b"LAMFLSUM";

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
    absent: u8,
    generation: U32,
    serial: U64,
    block: U64,
    count: U32,
    slot: U32,
    checksum: U64,
}

/// The checksum of data, as entries have it.
pub fn checksum(data: &[u8]) -> u64 {
    xxh3_64(data)
}

/// Puts `what` at the beginning of `bytes`, and gives the rest.
fn put<'a>(bytes: &'a mut [u8], what: &(impl IntoBytes + Immutable)) -> &'a mut [u8] {
    let (place, rest) = bytes.split_at_mut(size_of_val(what));
    place.copy_from_slice(what.as_bytes());
    rest
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
    /// Of a single block: sectors of 512 bytes that its slot does not have, a bit each. 0: all is there.
    pub absent: u8,
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
            absent: self.absent,
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
        // A block of which nothing is there is none.
        let has_data = match what {
            What::Written | What::Clean => bytes.absent == 0 || (count == 1 && bytes.absent != 0xFF),
            What::Dropped | What::Lost => bytes.absent == 0,
        };
        let has_blocks = count > 0 && block.checked_add(count.into()).is_some_and(|end| end < BLOCKS);
        let has_number = bytes.serial.get() < NUMBERS && bytes.generation.get() < GENERATIONS;
        (has_blocks && has_place && has_data && has_number).then_some(Entry {
            volume: bytes.volume.get(),
            what,
            generation: bytes.generation.get(),
            serial: bytes.serial.get(),
            block,
            count,
            slot,
            checksum: bytes.checksum.get(),
            absent: bytes.absent,
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
    /// Fills `slot`, all of it.
    pub fn encode_into(&self, slot: &mut [u8], key: u64) {
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
        let mut rest = put(slot, &head);
        for entry in &self.entries {
            rest = put(rest, &entry.bytes());
        }
        rest.fill(0);
        sealed_page::seal(slot, key);
    }

    /// Reads a slot; `None` if it is no head, or not whole.
    pub fn decode(bytes: &[u8], of: &Super) -> Option<Head> {
        let (head, rest) = HeadBytes::ref_from_prefix(bytes).ok()?;
        if !sealed_page::is_whole(bytes, HEAD_MAGIC, of.key) {
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
        sealed_page::page(&bytes, bytes.len().next_multiple_of(SLOT), key)
    }

    /// What the first slot of a summary says: the number of the segment, and the slots of the whole summary.
    pub fn peek(bytes: &[u8], of: &Super) -> Option<(u64, u32)> {
        let (head, _) = SummaryBytes::ref_from_prefix(bytes).ok()?;
        let entries = head.entries.get() as usize;
        let right =
            head.magic == SUMMARY_MAGIC && head.key.get() == of.key && entries <= of.summary_entries();
        let len = SUMMARY_LEN + entries * ENTRY_LEN;
        right.then_some((head.segment.get(), len.div_ceil(SLOT) as u32))
    }

    /// Reads all slots of a summary; `None` if it is not whole.
    pub fn decode(bytes: &[u8], of: &Super) -> Option<Summary> {
        let (segment, slots) = Summary::peek(bytes, of)?;
        let bytes =
            bytes.get(..slots as usize * SLOT).filter(|bytes| sealed_page::is_sealed(bytes, of.key))?;
        let (head, rest) = SummaryBytes::ref_from_prefix(bytes).ok()?;
        let entries = Entry::read_all(rest, head.entries.get() as usize, of.batch_slots())?;
        (head.log < 2 && segment < NUMBERS).then_some(Summary { segment, log: head.log, entries })
    }
}
