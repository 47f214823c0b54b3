//! What a redo log has on disk, version 1 (`docs/formats/redo.md`).
//!
//! ```text
//!      superblock │ record A │ record B │ … │ head, data │ head, data │ … │ table │ …
//! ```
//!
//! All numbers are little-endian. The *head* before the data of a write says where the data goes, so that a
//! write is found again before its epoch counts. The *table* says that of all writes of an epoch; the
//! *record* says whether there is an epoch that counts, and where its table is. Records are written to A and
//! B in turn; the one with the higher sequence number counts.
//!
//! Invariant: what is decoded here is possible in itself: every entry lies on the store and on the log.

use lamina_block::{Bytes, Error, ErrorKind, Result};
use lamina_kit::sealed_page;
use std::ops::Range;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The superblock, each record and each head have so many bytes; tables are a multiple of it.
pub const PAGE: u64 = 4096;
/// Where the records are.
pub const RECORDS: [u64; 2] = [PAGE, 2 * PAGE];
/// Where data and tables begin.
pub const AREA: u64 = 8 * PAGE;
/// The smallest log.
pub const LOG_MIN: u64 = 64 * PAGE;
/// Bytes of an entry of a table.
pub const ENTRY: u64 = size_of::<EntryBytes>() as u64;

/// Entries of a table, at most: it is read into memory.
pub const ENTRIES_MAX: u64 = (64 << 20) / ENTRY;

/// Sequence numbers are below this one: they can always be counted on from.
const NUMBERS: u64 = 1 << 62;
/// The bytes that the superblock begins with.
pub const SUPER_MAGIC: [u8; 8] = *b"LAMREDOS";
const RECORD_MAGIC: [u8; 8] = *b"LAMREDOR";
const HEAD_MAGIC: [u8; 8] = *b"LAMREDOH";
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SuperBytes {
    magic: [u8; 8],
    checksum: U64,
    version: U32,
    zero: U32,
    size: U64,
    key: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RecordBytes {
    magic: [u8; 8],
    checksum: U64,
    key: U64,
    sequence: U64,
    epoch: U64,
    time: U64,
    table: U64,
    entries: U32,
    zero: U32,
    sum: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeadBytes {
    magic: [u8; 8],
    checksum: U64,
    key: U64,
    epoch: U64,
    life: U64,
    time: U64,
    entry: EntryBytes,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EntryBytes {
    offset: U64,
    len: U64,
    place: U64,
    sum: U64,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// The checksum of data, as entries have it.
pub fn checksum(data: &[u8]) -> u64 {
    xxh3_64(data)
}

/// A page that begins with `bytes`.
fn page(bytes: &[u8], key: u64) -> Vec<u8> {
    sealed_page::page(bytes, PAGE as usize, key)
}

/// What a log is, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Super {
    /// Bytes of the log.
    pub size: u64,
    /// In everything but data, so that what lay there before is never taken for it.
    pub key: u64,
}

/// What the superblock says, as far as it can be read.
pub fn details(bytes: &[u8]) -> Vec<(&'static str, String)> {
    let Ok((head, _)) = SuperBytes::ref_from_prefix(bytes) else { return Vec::new() };
    vec![("version", head.version.to_string()), ("size", Bytes(head.size.get()).to_string())]
}

impl Super {
    /// A page.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = SuperBytes {
            magic: SUPER_MAGIC,
            checksum: 0.into(),
            version: VERSION.into(),
            zero: 0.into(),
            size: self.size.into(),
            key: self.key.into(),
        };
        page(bytes.as_bytes(), 0)
    }

    /// Reads the page at the beginning of a log of `size` bytes. Fails with `Corrupt` if there is none, or
    /// one of a larger log, and with `Unsupported` if it is of a later version.
    pub fn decode(bytes: &[u8], size: u64) -> Result<Super> {
        let (head, _) =
            SuperBytes::ref_from_prefix(bytes).map_err(|_| wrong("there is no redo log on it"))?;
        match (head.magic, head.version.get()) {
            (SUPER_MAGIC, VERSION) => {}
            (SUPER_MAGIC, later) if later > VERSION => {
                return Err(Error::unsupported(format!("a redo log of format {later}; known is {VERSION}")));
            }
            _ => return Err(wrong("there is no redo log on it")),
        }
        if !sealed_page::is_sealed(bytes, 0) {
            return Err(wrong("the superblock of the redo log is damaged"));
        }
        let of = Super { size: head.size.get(), key: head.key.get() };
        match of.size {
            LOG_MIN.. if of.size <= size => Ok(of),
            _ => Err(wrong(format!("the redo log had {} bytes, and has {size}", of.size))),
        }
    }
}

/// An epoch that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Where its table begins.
    pub table: u64,
    /// Entries of it, not none.
    pub entries: u32,
    /// Its checksum.
    pub sum: u64,
}

/// How far a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Rises with each record.
    pub sequence: u64,
    /// The epoch that the store is at, or is being brought to.
    pub epoch: u64,
    /// When that was, in seconds since 1970; 0 if nobody knew.
    pub time: u64,
    /// What the store may not have yet.
    pub committed: Option<Committed>,
}

impl Record {
    /// A page.
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let none = Committed { table: 0, entries: 0, sum: 0 };
        let committed = self.committed.unwrap_or(none);
        let bytes = RecordBytes {
            magic: RECORD_MAGIC,
            checksum: 0.into(),
            key: key.into(),
            sequence: self.sequence.into(),
            epoch: self.epoch.into(),
            time: self.time.into(),
            table: committed.table.into(),
            entries: committed.entries.into(),
            zero: 0.into(),
            sum: committed.sum.into(),
        };
        page(bytes.as_bytes(), key)
    }

    /// Reads a page; `None` if it is no record of this log, or not whole.
    pub fn decode(bytes: &[u8], of: &Super) -> Option<Record> {
        let (record, _) = RecordBytes::ref_from_prefix(bytes).ok()?;
        if !sealed_page::is_whole(bytes, RECORD_MAGIC, of.key) {
            return None;
        }
        let (table, entries) = (record.table.get(), record.entries.get());
        let committed = (entries > 0).then_some(Committed { table, entries, sum: record.sum.get() });
        let fits = |at: &Committed| {
            at.table.is_multiple_of(PAGE)
                && at.table >= AREA
                && u64::from(at.entries) <= ENTRIES_MAX
                && at.table.checked_add(at.table_len()).is_some_and(|end| end <= of.size)
        };
        let (sequence, epoch) = (record.sequence.get(), record.epoch.get());
        let right = sequence < NUMBERS && epoch < NUMBERS && committed.as_ref().is_none_or(fits);
        right.then_some(Record { sequence, epoch, time: record.time.get(), committed })
    }
}

impl Committed {
    /// Bytes of the table, whole pages.
    pub fn table_len(&self) -> u64 {
        table_len(self.entries as usize)
    }
}

/// Bytes of a table of so many entries, whole pages.
pub fn table_len(entries: usize) -> u64 {
    (entries as u64 * ENTRY).next_multiple_of(PAGE)
}

/// What stands before the data of a write. The data begin where the head ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The epoch that the write joined: one more than that of the record which counts.
    pub epoch: u64,
    /// Drawn for each epoch that is begun: one that is begun again after a crash has the same number, and another life.
    pub life: u64,
    /// When the first write of the epoch came, in seconds since 1970; 0 if nobody knew.
    pub time: u64,
    /// Where the data goes; not empty. What a store can hold is not looked at here.
    pub at: Range<u64>,
    /// The checksum of the data.
    pub sum: u64,
}

impl Head {
    /// The page at `place`.
    pub fn encode(&self, place: u64, key: u64) -> Vec<u8> {
        let entry = Entry { at: self.at.clone(), data: Some((place + PAGE, self.sum)) };
        let bytes = HeadBytes {
            magic: HEAD_MAGIC,
            checksum: 0.into(),
            key: key.into(),
            epoch: self.epoch.into(),
            life: self.life.into(),
            time: self.time.into(),
            entry: EntryBytes::of(&entry),
        };
        page(bytes.as_bytes(), key)
    }

    /// Reads the page at `place`; `None` if there is no head of this log with data behind it, or not all of it.
    pub fn decode(bytes: &[u8], place: u64, of: &Super) -> Option<Head> {
        let (head, _) = HeadBytes::ref_from_prefix(bytes).ok()?;
        if !sealed_page::is_whole(bytes, HEAD_MAGIC, of.key) {
            return None;
        }
        let (offset, len) = (head.entry.offset.get(), head.entry.len.get());
        let data = place.checked_add(PAGE)?;
        let is_on_log = data.checked_add(len).is_some_and(|end| end <= of.size);
        let end = offset.checked_add(len).filter(|_| len > 0 && is_on_log)?;
        (head.entry.place.get() == data).then_some(Head {
            epoch: head.epoch.get(),
            life: head.life.get(),
            time: head.time.get(),
            at: offset..end,
            sum: head.entry.sum.get(),
        })
    }
}

/// What an epoch does to a part of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The part, in bytes; not empty.
    pub at: Range<u64>,
    /// Where the data is on the log, and its checksum; `None`: it is discarded.
    pub data: Option<(u64, u64)>,
}

impl Entry {
    /// True if it lies on the log, and on a store of `size` bytes in blocks of `block`.
    pub fn is_possible(&self, of: &Super, size: u64, block: u64) -> bool {
        let is_whole = |at: u64| at.is_multiple_of(block);
        let Range { start, end } = self.at;
        let on_log = |place: u64| {
            place >= AREA
                && place.checked_add(end - start).is_some_and(|end| end <= of.size)
                && is_whole(place)
        };
        start < end
            && end <= size
            && is_whole(start)
            && is_whole(end)
            && self.data.is_none_or(|(place, _)| on_log(place))
    }
}

/// What is said of an entry that is not [possible](Entry::is_possible).
pub fn not_there() -> Error {
    wrong("the redo log names what is not there: the store is smaller than it was")
}

impl EntryBytes {
    fn of(Entry { at, data }: &Entry) -> EntryBytes {
        let (place, sum) = data.unwrap_or_default();
        EntryBytes {
            offset: at.start.into(),
            len: (at.end - at.start).into(),
            place: place.into(),
            sum: sum.into(),
        }
    }
}

/// A table, and its checksum for the record.
pub fn encode_table(entries: &[Entry], key: u64) -> (Vec<u8>, u64) {
    let mut bytes = Vec::with_capacity(table_len(entries.len()) as usize);
    entries.iter().for_each(|entry| bytes.extend_from_slice(EntryBytes::of(entry).as_bytes()));
    bytes.resize(table_len(entries.len()) as usize, 0);
    let sum = xxh3_64_with_seed(&bytes, key);
    (bytes, sum)
}

/// Reads the table of `committed`, for a store of `size` bytes in blocks of `block`.
pub fn decode_table(
    bytes: &[u8],
    committed: &Committed,
    of: &Super,
    size: u64,
    block: u64,
) -> Result<Vec<Entry>> {
    let count = committed.entries as usize;
    let whole =
        bytes.len() as u64 == committed.table_len() && xxh3_64_with_seed(bytes, of.key) == committed.sum;
    let (entries, _) = <[EntryBytes]>::ref_from_prefix_with_elems(bytes, count)
        .ok()
        .filter(|_| whole)
        .ok_or_else(|| wrong("the table of the redo log is damaged"))?;
    let entry = |entry: &EntryBytes| {
        let (offset, place) = (entry.offset.get(), entry.place.get());
        let end = offset.checked_add(entry.len.get())?;
        let entry = Entry { at: offset..end, data: (place > 0).then_some((place, entry.sum.get())) };
        entry.is_possible(of, size, block).then_some(entry)
    };
    let entries: Option<Vec<Entry>> = entries.iter().map(entry).collect();
    entries.ok_or_else(not_there)
}

/// What a fuzz target calls: whatever `bytes` are, what is decoded is the same when it is written again. Panics if not.
pub fn fuzz(bytes: &[u8]) {
    let size = bytes.len() as u64 + LOG_MIN;
    if let Ok(of) = Super::decode(bytes, size) {
        assert_eq!(Super::decode(&of.encode(), size), Ok(of));
    }
    // With right checksums, what stands behind them is looked at too.
    let of = Super { size: LOG_MIN, key: 7 };
    let mut record = bytes.get(..PAGE as usize).unwrap_or(bytes).to_vec();
    record.resize(PAGE as usize, 0);
    record[..8].copy_from_slice(&RECORD_MAGIC);
    record[16..24].copy_from_slice(&7u64.to_le_bytes());
    sealed_page::seal(&mut record, 7);
    if let Some(record) = Record::decode(&record, &of) {
        assert_eq!(Record::decode(&record.encode(7), &of), Some(record));
    }
    record[..8].copy_from_slice(&HEAD_MAGIC);
    sealed_page::seal(&mut record, 7);
    if let Some(head) = Head::decode(&record, AREA, &of) {
        assert!(head.at.start < head.at.end && AREA + PAGE + (head.at.end - head.at.start) <= of.size);
        assert_eq!(Head::decode(&head.encode(AREA, 7), AREA, &of), Some(head));
    }
    let entries = bytes.len() / ENTRY as usize;
    let mut table = bytes[..entries * ENTRY as usize].to_vec();
    table.resize(table_len(entries) as usize, 0);
    let sum = xxh3_64_with_seed(&table, 7);
    let committed = Committed { table: AREA, entries: entries as u32, sum };
    if let Ok(entries) = decode_table(&table, &committed, &of, 1 << 30, 512) {
        assert!(entries.iter().all(|entry| entry.at.start < entry.at.end && entry.at.end <= 1 << 30));
        let (again, sum) = encode_table(&entries, 7);
        let committed = Committed { sum, ..committed };
        assert_eq!(decode_table(&again, &committed, &of, 1 << 30, 512), Ok(entries));
    }
}
