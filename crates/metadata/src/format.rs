//! The bytes of a store, version 1 (`docs/formats/metadata.md`): roots, records of the log, trailers of pages.
//!
//! Invariant: decoded data has a right checksum and sizes that fit the region; other data is not believed.

use crate::Level;
use lamina_block::{Error, ErrorKind, Result};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The unit of everything in the region, in bytes.
pub(crate) const BLOCK: usize = 4096;
/// Bytes of an object in a page: the rest is its trailer.
pub(crate) const PAYLOAD: usize = BLOCK - size_of::<Trailer>();
/// The longest record, in blocks.
const RECORD_BLOCKS_MAX: u32 = 256;
/// The shortest log, in blocks.
pub(crate) const LOG_BLOCKS_MIN: u32 = 16;
/// The longest directory, in pages: it stays in memory.
pub(crate) const DIRECTORY_PAGES_MAX: u32 = 1024;

const VERSION: u32 = 1;
const ROOT: [u8; 8] = *b"LAMINAMD";
const RECORD: [u8; 8] = *b"LAMINALG";

/// Where the parts of a store lie: everything a root says but the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Drawn when the region was formatted.
    pub uuid: [u8; 16],
    pub level: Level,
    pub log_blocks: u32,
    pub pages: u32,
    pub directory_pages: u32,
}

impl Shape {
    /// Where block `block` of the log lies, in bytes of the region.
    pub fn log_at(&self, block: u32) -> u64 {
        (2 + u64::from(block)) * BLOCK as u64
    }

    /// Where a slot of a page lies, in bytes of the region.
    pub fn slot_at(&self, page: u32, slot: u8) -> u64 {
        (2 + u64::from(self.log_blocks) + 2 * u64::from(page) + u64::from(slot)) * BLOCK as u64
    }

    /// The bytes of the region that are used.
    pub fn len(&self) -> u64 {
        self.slot_at(self.pages, 0)
    }

    /// The longest record, in bytes.
    pub fn record_max(&self) -> usize {
        (self.log_blocks / 4).min(RECORD_BLOCKS_MAX) as usize * BLOCK
    }

    fn fits(&self, region: u64) -> bool {
        self.log_blocks >= LOG_BLOCKS_MIN
            && (1..=DIRECTORY_PAGES_MAX).contains(&self.directory_pages)
            && self.directory_pages < self.pages
            && self.len() <= region
    }
}

/// The place from which the log is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The number of the first record.
    pub seq: u64,
    /// The block of the log where it begins.
    pub block: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Root {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    uuid: [u8; 16],
    generation: U64,
    tail_seq: U64,
    tail_block: U32,
    level: U32,
    log_blocks: U32,
    pages: U32,
    directory_pages: U32,
    reserved: U32,
}

/// The checksum of `bytes` as if the four bytes at `at` were zero.
fn crc_without(bytes: &[u8], at: usize) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..at]), &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[at + 4..])
}

const ROOT_CRC: usize = std::mem::offset_of!(Root, crc);

/// The code of `level` on disk.
fn number_of(level: Level) -> u32 {
    match level {
        Level::Lazy => 0,
        Level::Shadow => 1,
        Level::Atomic => 2,
    }
}

/// A root, as one block.
pub(crate) fn root(shape: &Shape, generation: u64, tail: Tail) -> Vec<u8> {
    let head = Root {
        magic: ROOT,
        version: VERSION.into(),
        crc: 0.into(),
        uuid: shape.uuid,
        generation: generation.into(),
        tail_seq: tail.seq.into(),
        tail_block: tail.block.into(),
        level: number_of(shape.level).into(),
        log_blocks: shape.log_blocks.into(),
        pages: shape.pages.into(),
        directory_pages: shape.directory_pages.into(),
        reserved: 0.into(),
    };
    let mut bytes = head.as_bytes().to_vec();
    bytes.resize(BLOCK, 0);
    let crc = crc_without(&bytes, ROOT_CRC);
    bytes[ROOT_CRC..ROOT_CRC + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The shape, generation and tail that a root says, in a region of `region` bytes.
pub(crate) fn read_root(bytes: &[u8], region: u64) -> Result<(Shape, u64, Tail)> {
    let wrong = |message: String| Err(Error::new(ErrorKind::Corrupt, message));
    let Ok((head, _)) = Root::ref_from_prefix(bytes) else { return wrong("a root is cut off".into()) };
    if head.magic != ROOT {
        return wrong("there is no metadata store here".into());
    }
    if crc_without(bytes, ROOT_CRC) != head.crc.get() {
        return wrong("the root of the metadata store is damaged".into());
    }
    if head.version.get() != VERSION {
        let message =
            format!("the metadata store has format version {}; this program knows {VERSION}", head.version);
        return Err(Error::unsupported(message));
    }
    let Some(level) = Level::ALL.into_iter().find(|level| number_of(*level) == head.level.get()) else {
        return wrong(format!("the root of the metadata store names an unknown level, {}", head.level));
    };
    let shape = Shape {
        uuid: head.uuid,
        level,
        log_blocks: head.log_blocks.get(),
        pages: head.pages.get(),
        directory_pages: head.directory_pages.get(),
    };
    let tail = Tail { seq: head.tail_seq.get(), block: head.tail_block.get() };
    // Numbers only grow; half of their range is more than any store lives to see.
    let counts = |n: u64| n < u64::MAX / 2;
    if !shape.fits(region)
        || tail.block >= shape.log_blocks
        || tail.seq == 0
        || !counts(tail.seq)
        || !counts(head.generation.get())
    {
        return wrong(format!("the root of the metadata store does not fit its region of {region} bytes"));
    }
    Ok((shape, head.generation.get(), tail))
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RecordHead {
    magic: [u8; 8],
    uuid: [u8; 16],
    seq: U64,
    len: U32,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ChangeHead {
    owner: U64,
    page: U32,
    offset: U16,
    len: U16,
}

/// Bytes that a record has before its changes.
pub(crate) const RECORD_HEAD: usize = size_of::<RecordHead>();
/// Bytes that a change has before its own.
pub(crate) const CHANGE_HEAD: usize = size_of::<ChangeHead>();
const RECORD_CRC: usize = std::mem::offset_of!(RecordHead, crc);

/// A record under construction.
pub(crate) struct Writing(Vec<u8>);

impl Writing {
    pub fn new() -> Writing {
        Writing(vec![0; RECORD_HEAD])
    }

    /// Adds the change of some bytes of a page.
    pub fn add(&mut self, owner: u64, page: u32, offset: u16, bytes: &[u8]) {
        let len = bytes.len() as u16;
        let head =
            ChangeHead { owner: owner.into(), page: page.into(), offset: offset.into(), len: len.into() };
        self.0.extend(head.as_bytes());
        self.0.extend(bytes);
    }

    /// The record, in whole blocks.
    pub fn end(mut self, shape: &Shape, seq: u64) -> Vec<u8> {
        let len = self.0.len();
        let head = RecordHead {
            magic: RECORD,
            uuid: shape.uuid,
            seq: seq.into(),
            len: (len as u32).into(),
            crc: 0.into(),
        };
        self.0[..RECORD_HEAD].copy_from_slice(head.as_bytes());
        let crc = crc_without(&self.0, RECORD_CRC);
        self.0[RECORD_CRC..RECORD_CRC + 4].copy_from_slice(&crc.to_le_bytes());
        self.0.resize(len.next_multiple_of(BLOCK), 0);
        self.0
    }
}

/// The length in bytes of the record that begins with `block`, if it claims to be record `seq`.
pub(crate) fn record_len(block: &[u8], shape: &Shape, seq: u64) -> Option<usize> {
    let (head, _) = RecordHead::ref_from_prefix(block).ok()?;
    let len = head.len.get() as usize;
    let ours = head.magic == RECORD && head.uuid == shape.uuid && head.seq.get() == seq;
    (ours && (RECORD_HEAD..=shape.record_max()).contains(&len)).then_some(len)
}

/// The number of the record that begins with `block`, if one seems to.
pub(crate) fn record_seq(block: &[u8], shape: &Shape) -> Option<u64> {
    let (head, _) = RecordHead::ref_from_prefix(block).ok()?;
    (head.magic == RECORD && head.uuid == shape.uuid).then_some(head.seq.get())
}

/// One change of a record.
pub(crate) struct Change<'a> {
    pub owner: u64,
    pub page: u32,
    pub offset: usize,
    pub bytes: &'a [u8],
}

/// The changes of a whole record; `None` if its checksum is wrong.
pub(crate) fn changes<'a>(record: &'a [u8], shape: &Shape) -> Option<Vec<Change<'a>>> {
    let (head, mut rest) = RecordHead::ref_from_prefix(record).ok()?;
    if crc_without(record, RECORD_CRC) != head.crc.get() {
        return None;
    }
    let mut changes = Vec::new();
    while !rest.is_empty() {
        let (head, after) = ChangeHead::ref_from_prefix(rest).ok()?;
        let (offset, len) = (usize::from(head.offset.get()), usize::from(head.len.get()));
        if len > after.len() || len == 0 || offset + len > PAYLOAD || head.page.get() >= shape.pages {
            return None;
        }
        let (bytes, after) = after.split_at(len);
        changes.push(Change { owner: head.owner.get(), page: head.page.get(), offset, bytes });
        rest = after;
    }
    Some(changes)
}

/// The trailer after the bytes of a page.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Trailer {
    owner: U64,
    seq: U64,
    version: U64,
    page: U32,
    crc: U32,
}

/// The contents of a slot of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Only zeroes: the slot was never written.
    Blank,
    /// Half a write, or damage.
    Broken,
    /// A whole page.
    Whole {
        /// The object it belongs to.
        owner: u64,
        /// The last record that its bytes include.
        seq: u64,
        /// Which of the two slots is newer.
        version: u64,
    },
}

/// A page as one block.
pub(crate) fn page(page: u32, owner: u64, seq: u64, version: u64, data: &[u8; PAYLOAD], into: &mut Vec<u8>) {
    let start = into.len();
    into.extend(data);
    let trailer = Trailer {
        owner: owner.into(),
        seq: seq.into(),
        version: version.into(),
        page: page.into(),
        crc: 0.into(),
    };
    into.extend(trailer.as_bytes());
    let at = into.len() - 4;
    let crc = crc32c::crc32c(&into[start..at]);
    into[at..].copy_from_slice(&crc.to_le_bytes());
}

/// The contents of `block`, a slot of page `page`.
pub(crate) fn slot(block: &[u8], page: u32) -> Slot {
    let Ok((_, trailer)) = Trailer::ref_from_suffix(block) else { return Slot::Broken };
    let right = crc32c::crc32c(&block[..block.len() - 4]) == trailer.crc.get();
    let counts = trailer.version.get().max(trailer.seq.get()) < u64::MAX / 2;
    match right && counts && trailer.page.get() == page {
        true => {
            Slot::Whole { owner: trailer.owner.get(), seq: trailer.seq.get(), version: trailer.version.get() }
        }
        false if block.iter().all(|b| *b == 0) => Slot::Blank,
        false => Slot::Broken,
    }
}
