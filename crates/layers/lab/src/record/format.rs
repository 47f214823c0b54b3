//! The bytes of the log: Linux' `dm-log-writes` writes and xfstests' `replay-log` reads this format, version
//! 1.
//!
//! ```text
//!      sector 0        1              2 .. 1+n       2+n
//!      ┌───────────────┬──────────────┬──────────────┬──────────────┬─────
//!      │ super         │ entry 0      │ its n sectors│ entry 1      │ …
//!      └───────────────┴──────────────┴──────────────┴──────────────┴─────
//!
//!      super: magic u64 │ version u64 │ entries u64 │ sector size u32 │ zeroes to the end of the sector
//!      entry: sector u64 │ sectors u64 │ flags u64 │ data length u64 │ name of a mark │ zeroes
//! ```
//!
//! All numbers are little-endian. Sectors are of the size that the super states, in the log and on the device. A
//! discard and a mark have no data sectors. The page `docs/formats/record.md` has the whole description.
//!
//! Source: the comments of `drivers/md/dm-log-writes.c` in Linux, and `src/log-writes` in xfstests.

use lamina_block::{Error, ErrorKind, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;

/// The kinds of entries. Several flags may be set.
pub(super) mod flag {
    /// A flush; it has no address.
    pub const FLUSH: u64 = 1;
    /// The write was durable when it completed.
    pub const FUA: u64 = 2;
    /// The range was discarded.
    pub const DISCARD: u64 = 4;
    /// A name for this point of the log.
    pub const MARK: u64 = 8;
    /// File system metadata. Never set here: only a kernel knows.
    pub const METADATA: u64 = 16;
    /// All flags of version 1.
    pub const ALL: u64 = FLUSH | FUA | DISCARD | MARK | METADATA;
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Super {
    magic: U64,
    version: U64,
    entries: U64,
    sector: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    sector: U64,
    sectors: U64,
    flags: U64,
    data: U64,
}

/// The longest name of a mark in bytes, for logs of this sector size: it ends with a zero.
pub(super) const fn name_max(sector: u32) -> usize {
    sector as usize - size_of::<Entry>() - 1
}

/// The head of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// First sector of the device.
    pub sector: u64,
    /// Length in sectors.
    pub sectors: u64,
    pub flags: u64,
}

impl Head {
    /// How many sectors of data follow the head in the log.
    pub(super) fn data_sectors(&self) -> u64 {
        if self.flags & flag::DISCARD == 0 { self.sectors } else { 0 }
    }

    /// The sector with the head, and the name of a mark.
    pub(super) fn encode(&self, name: &str, sector: u32) -> Vec<u8> {
        let entry = Entry {
            sector: self.sector.into(),
            sectors: self.sectors.into(),
            flags: self.flags.into(),
            data: (name.len() as u64).into(),
        };
        let mut bytes = entry.as_bytes().to_vec();
        bytes.extend_from_slice(name.as_bytes());
        bytes.resize(sector as usize, 0);
        bytes
    }

    /// Reads entry number `number`.
    pub(super) fn decode(bytes: &[u8], number: u64) -> Result<Head> {
        let corrupt =
            |what: &str| Error::new(ErrorKind::Corrupt, format!("entry {number} of the log {what}"));
        let (entry, _) = Entry::read_from_prefix(bytes).map_err(|_| corrupt("is cut off"))?;
        let head =
            Head { sector: entry.sector.get(), sectors: entry.sectors.get(), flags: entry.flags.get() };
        if head.flags & !flag::ALL != 0 {
            return Err(corrupt("has flags that version 1 does not know"));
        }
        if head.flags == 0 && head.sectors == 0 {
            return Err(corrupt("is empty"));
        }
        Ok(head)
    }
}

/// The first sector of a log with `entries` entries.
pub(super) fn encode_super(entries: u64, sector: u32) -> Vec<u8> {
    let head = Super {
        magic: MAGIC.into(),
        version: VERSION.into(),
        entries: entries.into(),
        sector: sector.into(),
    };
    let mut bytes = head.as_bytes().to_vec();
    bytes.resize(sector as usize, 0);
    bytes
}

/// Reads the first sector of a log: the number of entries, or `None` if there is nothing yet.
pub(super) fn decode_super(bytes: &[u8], sector: u32) -> Result<Option<u64>> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let other = |what: String| Error::new(ErrorKind::Corrupt, what);
    let (head, _) = Super::read_from_prefix(bytes).map_err(|_| other("the log is cut off".into()))?;
    if head.magic.get() != MAGIC {
        return Err(other("log: the file holds something else than a log; nothing was changed".into()));
    }
    if head.version.get() != VERSION {
        return Err(other(format!("log: it has version {}, and this program writes 1", head.version)));
    }
    if head.sector.get() != sector {
        return Err(other(format!("log: its sectors have {} bytes, the device's {sector}", head.sector)));
    }
    Ok(Some(head.entries.get()))
}
