//! The checkpoint: where the pages of the map are, and what is known of each segment.

use super::{NUMBERS, SLOT, Super};
use lamina_kit::sealed_page;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(super) const MAGIC: [u8; 8] = *b"LAMSQCHK";

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CheckpointBytes {
    magic: [u8; 8],
    checksum: U64,
    key: U64,
    sequence: U64,
    serial: U64,
    next_segment: U64,
    clock: U64,
    pages: U32,
    segments: U32,
    free: U32,
    window: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PageBytes {
    checksum: U64,
    slot: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RowBytes {
    sequence: U64,
    time: U64,
    end: U32,
    class: u8,
    state: u8,
    zero: [u8; 2],
}

/// Where a page of the map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its slot; 0: none of its blocks is mapped.
    pub slot: u32,
    /// Of its 4096 bytes.
    pub checksum: u64,
}

/// The state of a segment at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// It holds nothing that is needed.
    Free = 0,
    /// It has batches, all from before the checkpoint.
    Closed = 1,
    /// It may have batches that the checkpoint does not know, and nothing is appended to it.
    Recent = 2,
    /// Batches are appended to it.
    Open = 3,
}

/// What is kept of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number of this use.
    pub sequence: u64,
    /// When its data were written, in blocks that users have written.
    pub time: u64,
    /// Slots that have been given to batches.
    pub end: u32,
    /// Its class.
    pub class: u8,
    /// What it is used for.
    pub state: RowState,
}

/// What is kept of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Of two copies that can be read, the one with the higher number counts.
    pub sequence: u64,
    /// All batches with serial numbers below this one are in the pages of the map.
    pub serial: u64,
    /// The number of the next use of a segment.
    pub next_segment: u64,
    /// Blocks that users have written.
    pub clock: u64,
    /// The pages of the map.
    pub pages: Vec<Page>,
    /// The segments.
    pub rows: Vec<Row>,
    /// The free segments, in the order in which they are used.
    pub free: Vec<u32>,
    /// So many of them may have batches before the next checkpoint is durable.
    pub window: u32,
}

impl Checkpoint {
    /// Slots of a checkpoint of so many pages and segments.
    pub fn slots(pages: u32, segments: u32) -> u32 {
        let of = |count: u32, len: usize| count as usize * len;
        let bytes = size_of::<CheckpointBytes>()
            + of(pages, size_of::<PageBytes>())
            + of(segments, size_of::<RowBytes>() + size_of::<U32>());
        bytes.div_ceil(SLOT) as u32
    }

    /// Whole slots.
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let head = CheckpointBytes {
            magic: MAGIC,
            checksum: 0.into(),
            key: key.into(),
            sequence: self.sequence.into(),
            serial: self.serial.into(),
            next_segment: self.next_segment.into(),
            clock: self.clock.into(),
            pages: (self.pages.len() as u32).into(),
            segments: (self.rows.len() as u32).into(),
            free: (self.free.len() as u32).into(),
            window: self.window.into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        for page in &self.pages {
            let page = PageBytes { checksum: page.checksum.into(), slot: page.slot.into() };
            bytes.extend_from_slice(page.as_bytes());
        }
        for row in &self.rows {
            let row = RowBytes {
                sequence: row.sequence.into(),
                time: row.time.into(),
                end: row.end.into(),
                class: row.class,
                state: row.state as u8,
                zero: [0; 2],
            };
            bytes.extend_from_slice(row.as_bytes());
        }
        self.free.iter().for_each(|segment| bytes.extend_from_slice(&segment.to_le_bytes()));
        let len = bytes.len().next_multiple_of(SLOT);
        sealed_page::page(&bytes, len, key)
    }

    /// Reads a copy; `None` if it is not whole.
    pub fn decode(bytes: &[u8], of: &Super) -> Option<Checkpoint> {
        let (head, _) = CheckpointBytes::ref_from_prefix(bytes).ok()?;
        let (pages, segments, free) = (head.pages.get(), head.segments.get(), head.free.get());
        let has_counts = pages == of.pages() && segments == of.segments && free <= segments;
        let numbers = [head.sequence, head.serial, head.next_segment, head.clock];
        (head.magic == MAGIC && has_counts && numbers.iter().all(|number| number.get() < NUMBERS))
            .then_some(())?;
        let len = Checkpoint::len(pages, segments, free).next_multiple_of(SLOT);
        let bytes = bytes.get(..len).filter(|bytes| sealed_page::is_whole(bytes, MAGIC, of.key))?;
        let rest = &bytes[size_of::<CheckpointBytes>()..];
        let (pages, rest) = <[PageBytes]>::ref_from_prefix_with_elems(rest, pages as usize).ok()?;
        let (rows, rest) = <[RowBytes]>::ref_from_prefix_with_elems(rest, segments as usize).ok()?;
        let (free, _) = <[U32]>::ref_from_prefix_with_elems(rest, free as usize).ok()?;
        let read = Checkpoint {
            sequence: head.sequence.get(),
            serial: head.serial.get(),
            next_segment: head.next_segment.get(),
            clock: head.clock.get(),
            pages: pages.iter().map(|page| read_page(page, of)).collect::<Option<_>>()?,
            rows: rows.iter().map(|row| read_row(row, of)).collect::<Option<_>>()?,
            free: free.iter().map(|segment| segment.get()).collect(),
            window: head.window.get(),
        };
        read.has_its_free_segments().then_some(read)
    }

    /// True for a whole copy of a log of the shape of `of`, whatever its key is.
    pub fn is_of_some_log(bytes: &[u8], of: &Super) -> bool {
        let head = CheckpointBytes::ref_from_prefix(bytes);
        head.is_ok_and(|(head, _)| Checkpoint::decode(bytes, &Super { key: head.key.get(), ..*of }).is_some())
    }

    fn len(pages: u32, segments: u32, free: u32) -> usize {
        size_of::<CheckpointBytes>()
            + pages as usize * size_of::<PageBytes>()
            + segments as usize * size_of::<RowBytes>()
            + free as usize * size_of::<U32>()
    }

    /// True if the list of free segments has each free segment once.
    fn has_its_free_segments(&self) -> bool {
        let mut is_listed = vec![false; self.rows.len()];
        let mut list = |segment: &u32| match is_listed.get_mut(*segment as usize) {
            Some(listed) => !std::mem::replace(listed, true),
            None => false,
        };
        self.free.iter().all(&mut list)
            && self.rows.iter().zip(&is_listed).all(|(row, listed)| (row.state == RowState::Free) == *listed)
    }
}

fn read_page(page: &PageBytes, of: &Super) -> Option<Page> {
    let slot = page.slot.get();
    let is_possible = slot == 0 || of.slots().contains(&slot);
    is_possible.then_some(Page { slot, checksum: page.checksum.get() })
}

fn read_row(row: &RowBytes, of: &Super) -> Option<Row> {
    let all = [RowState::Free, RowState::Closed, RowState::Recent, RowState::Open];
    let state = all.into_iter().find(|state| *state as u8 == row.state)?;
    let read = Row {
        sequence: row.sequence.get(),
        time: row.time.get(),
        end: row.end.get(),
        class: row.class,
        state,
    };
    let is_possible = read.sequence < NUMBERS
        && read.time < NUMBERS
        && read.end <= of.segment_slots
        && u32::from(read.class) <= of.classes();
    is_possible.then_some(read)
}
