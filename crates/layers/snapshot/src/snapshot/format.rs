//! The contents of a `snapshot` layer's metadata store, version 1 (`docs/formats/snapshot.md`): a head, a
//! table of snapshots; and how much room they take.

use lamina_block::{Error, ErrorKind, Result};
use lamina_metadata::extents::{EPOCH_MAX, PLACES_MAX, Root, pages_for, pxb_len};
use lamina_metadata::pages;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Tags of the objects in the store. A bitmap of extents that replaces a smaller one has the next two.
pub(super) const HEAD: u64 = 1;
pub(super) const TABLE: u64 = 2;
pub(super) const PAGES: u64 = 3;
pub(super) const PAGES_IN_USE: [u64; 2] = [4, 5];
const SPACE: u64 = 16;

/// Bytes of an object in a page of the store.
const PAGE: u64 = 4064;
const MAGIC: [u8; 8] = *b"LAMSNAPS";
const VERSION: u32 = 1;
const GARBAGE: u8 = 1;
const OPEN: u8 = 2;

/// Extents may have so many bytes.
pub(super) const EXTENTS: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 20;
/// The longest name of a snapshot, in bytes.
pub(super) const NAME_MAX: usize = 64;
/// Objects of a store, for which its directory has room.
pub(super) const OBJECTS: u32 = 62;

/// The tags of the bitmap of extents of a generation.
pub(super) fn space_tags(generation: u32) -> [u64; 2] {
    let first = SPACE + 2 * u64::from(generation);
    [first, first + 1]
}

/// The head of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// log2 of an extent's bytes.
    pub shift: u8,
    /// There may be extents that no version refers to.
    pub garbage: bool,
    /// The volume is open; if this is set when it is opened, it was not closed.
    pub open: bool,
    /// Bytes of the volume.
    pub size: u64,
    /// Where on the child extents begin.
    pub data: u64,
    /// Physical extents.
    pub physical: u64,
    /// Extents whose physical extent has their own number, unless the map says otherwise.
    pub adopted: u64,
    /// The epoch of new extents.
    pub epoch: u32,
    /// The generation of the bitmap of extents that counts.
    pub space: u32,
    /// The volume's map.
    pub root: Root,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeadBytes {
    magic: [u8; 8],
    version: U32,
    shift: u8,
    flags: u8,
    zero: [u8; 2],
    size: U64,
    data: U64,
    physical: U64,
    adopted: U64,
    epoch: U32,
    space: U32,
    root: [u8; Root::LEN],
}

pub(super) const HEAD_LEN: usize = size_of::<HeadBytes>();

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the metadata of the volume is damaged: {what}"))
}

impl Head {
    /// Bytes of an extent.
    pub fn extent(&self) -> u64 {
        1 << self.shift
    }

    pub fn encode(&self) -> Vec<u8> {
        let flags = (u8::from(self.garbage) * GARBAGE) | (u8::from(self.open) * OPEN);
        let bytes = HeadBytes {
            magic: MAGIC,
            version: VERSION.into(),
            shift: self.shift,
            flags,
            zero: [0; 2],
            size: self.size.into(),
            data: self.data.into(),
            physical: self.physical.into(),
            adopted: self.adopted.into(),
            epoch: self.epoch.into(),
            space: self.space.into(),
            root: self.root.encode(),
        };
        bytes.as_bytes().to_vec()
    }

    pub fn decode(bytes: &[u8]) -> Result<Head> {
        let head = HeadBytes::ref_from_bytes(bytes).map_err(|_| wrong("its head is cut off"))?;
        if head.magic != MAGIC {
            return Err(wrong("its head has another magic number"));
        }
        if head.version.get() != VERSION {
            let message = format!("the volume has format {}; this program knows {VERSION}", head.version);
            return Err(Error::unsupported(message));
        }
        let right = head.shift < 64
            && EXTENTS.contains(&(1 << head.shift))
            && head.flags & !(GARBAGE | OPEN) == 0
            && head.zero == [0; 2]
            && head.size.get() > 0
            && head.data.get().is_multiple_of(1 << head.shift);
        if !right {
            return Err(wrong("its head is impossible"));
        }
        let head = Head {
            shift: head.shift,
            garbage: head.flags & GARBAGE != 0,
            open: head.flags & OPEN != 0,
            size: head.size.get(),
            data: head.data.get(),
            physical: head.physical.get(),
            adopted: head.adopted.get(),
            epoch: head.epoch.get(),
            space: head.space.get(),
            root: Root::decode(&head.root)?,
        };
        if head.has_room() { Ok(head) } else { Err(wrong("its head has numbers that are too large")) }
    }

    /// True if every number fits where it is stored: in entries of the map, and in tags.
    pub fn has_room(&self) -> bool {
        // An adopted device began at byte 0, and its last extent may have been short.
        let taken_over = self.adopted == 0 || (self.data == 0 && self.adopted <= self.physical + 1);
        self.size.div_ceil(self.extent()) <= PLACES_MAX
            && self.physical < PLACES_MAX
            && taken_over
            && (1..=EPOCH_MAX).contains(&self.epoch)
            && self.space < u32::MAX
    }
}

/// The record of a snapshot, an entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnapshotRecord {
    pub name: String,
    /// The epoch that the snapshot ended.
    pub epoch: u32,
    /// Bytes of the volume when the snapshot was taken.
    pub size: u64,
    pub root: Root,
    /// When it was taken, in seconds since 1970; 0: not known.
    pub taken: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RecordBytes {
    /// 0: a free entry.
    epoch: U32,
    name_len: U32,
    size: U64,
    root: [u8; Root::LEN],
    /// Bytes behind the name were zeroes before the last eight could have the time.
    name: [u8; NAME_MAX],
}

/// Bytes of a name that leaves room for the time.
const BEFORE_TIME: usize = NAME_MAX - size_of::<U64>();

/// Bytes of a record. No record crosses the end of a page.
pub(super) const RECORD_LEN: usize = size_of::<RecordBytes>();
const RECORDS_IN_PAGE: u64 = PAGE / RECORD_LEN as u64;

/// Where record `index` lies in the table.
pub(super) fn record_at(index: usize) -> u64 {
    index as u64 / RECORDS_IN_PAGE * PAGE + index as u64 % RECORDS_IN_PAGE * RECORD_LEN as u64
}

/// Records of a table of so many bytes.
pub(super) fn records_max(len: u64) -> usize {
    (len / PAGE * RECORDS_IN_PAGE) as usize
}

impl SnapshotRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut name = [0; NAME_MAX];
        let len = self.name.len().min(NAME_MAX);
        name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        if len <= BEFORE_TIME {
            name[BEFORE_TIME..].copy_from_slice(&self.taken.to_le_bytes());
        }
        let (epoch, name_len, size) = (self.epoch.into(), (len as u32).into(), self.size.into());
        RecordBytes { epoch, name_len, size, root: self.root.encode(), name }.as_bytes().to_vec()
    }

    /// The record of a snapshot of a volume with extents of so many bytes; `None` if the entry is free.
    pub fn decode(bytes: &[u8], extent: u64) -> Result<Option<SnapshotRecord>> {
        let record = RecordBytes::ref_from_bytes(bytes).map_err(|_| wrong("its table is cut off"))?;
        if record.epoch.get() == 0 {
            return Ok(None);
        }
        let name = record.name.get(..record.name_len.get() as usize);
        let name = name.and_then(|name| std::str::from_utf8(name).ok()).filter(|name| is_name(name));
        let name = name.ok_or_else(|| wrong("a snapshot has no name"))?.to_owned();
        let (epoch, size, root) = (record.epoch.get(), record.size.get(), Root::decode(&record.root)?);
        let taken = record.name.last_chunk().filter(|_| name.len() <= BEFORE_TIME);
        let taken = taken.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // There is an epoch after it.
        if size == 0 || size.div_ceil(extent) > PLACES_MAX || epoch >= EPOCH_MAX {
            return Err(wrong(&format!("snapshot {name:?} has numbers that are too large")));
        }
        Ok(Some(SnapshotRecord { name, epoch, size, root, taken }))
    }
}

/// True if a snapshot may have this name.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.chars().any(|c| c.is_control() || c == '/')
}

/// The sizes of the objects in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Bytes of the log.
    pub log: u64,
    /// Bytes of the table of snapshots.
    pub table: u64,
    /// Bytes at the head of the child, if the store lies there.
    pub region: u64,
}

impl Plan {
    /// For a volume of `size` bytes on `child` bytes; `device` is the size of the metadata device, if there
    /// is one.
    ///
    /// The region at the head of a child holds the log, 1/64 of the child but 256 KiB to 4 MiB; the bitmap of
    /// its extents five times (it may grow to four times its size); 32 pages of the map, and all that the
    /// volume takes twice, or 1/128 of the child if that is more, for the parts that snapshots do not share;
    /// but not more than 1/32 of the child; and a page of the table for each 256 of these, at most 24.
    pub fn new(child: u64, size: u64, extent: u64, device: Option<u64>) -> Plan {
        let log = (device.unwrap_or(child) / 64).clamp(256 << 10, 4 << 20) / 4096 * 4096;
        let extents = child / extent;
        let map = match device {
            Some(device) => device / 8192,
            None => {
                (2 * pages_for(size.div_ceil(extent))).max(child / 128 / 8192).min(child / 32 / 8192) + 32
            }
        };
        let table = (map / 256).clamp(1, 24);
        let all = 2 + table + 5 * (space_pages(extents) + 1) + map + space_pages(map);
        let region = (8192 + log + 8192 * all).next_multiple_of(extent.max(4096));
        Plan { log, table: table * PAGE, region: if device.is_some() { 0 } else { region } }
    }
}

/// Pages of the store for a bitmap of `extents` extents.
pub(super) fn space_pages(extents: u64) -> u64 {
    let (bits, counts) = pxb_len(extents);
    pages(bits) + pages(counts)
}

/// Pages of the map that a store with `free` pages has room for, beside a bitmap of four times `extents`
/// extents.
pub(super) fn map_pages(free: u64, extents: u64) -> u64 {
    let rest = free.saturating_sub(4 * (space_pages(extents) + 1));
    rest.saturating_sub(space_pages(rest))
}
