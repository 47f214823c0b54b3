//! The bytes of a table of digests on disk, version 1 (`docs/formats/sums.md`): its head, and how much room
//! all of it takes.
//!
//! Invariant: a decoded head is possible in itself; whether it fits the device is checked where it is opened.

use super::digest::Digest;
use lamina_block::{Error, ErrorKind, Result};
use lamina_metadata::pages;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Tags of the objects in the store.
pub const HEAD: u64 = 1;
pub const TABLE: u64 = 2;

/// Bytes of an object in a page of the store: a multiple of the length of every digest.
pub const PAGE: u64 = 4064;
/// Objects of a store, for which its directory has room.
pub const OBJECTS: u32 = 62;
/// Blocks may have so many bytes.
pub const BLOCKS: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 20;

const MAGIC: [u8; 8] = *b"LAMSUMS\0";
const VERSION: u32 = 1;

/// The head of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The digest of blocks.
    pub digest: Digest,
    /// log2 of a block's bytes.
    pub shift: u8,
    /// log2 of the bytes of a region of the intent.
    pub region: u8,
    /// Bytes of the device, a multiple of the block.
    pub size: u64,
    /// Where on the child the device begins.
    pub data: u64,
    /// Where the intent lies on the device that has the store, and its number.
    pub intent: u64,
    /// The id of the owner of the intent.
    pub id: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeadBytes {
    magic: [u8; 8],
    version: U32,
    digest: u8,
    shift: u8,
    region: u8,
    zero: u8,
    size: U64,
    data: U64,
    intent: U64,
    id: U64,
}

pub const HEAD_LEN: usize = size_of::<HeadBytes>();

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the head of the digests {what}"))
}

impl Head {
    /// Bytes of a block.
    pub fn block(&self) -> u64 {
        1 << self.shift
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.size >> self.shift
    }

    pub fn encode(&self) -> Vec<u8> {
        let number = Digest::ALL.iter().position(|digest| *digest == self.digest);
        let bytes = HeadBytes {
            magic: MAGIC,
            version: VERSION.into(),
            digest: number.unwrap_or_default() as u8,
            shift: self.shift,
            region: self.region,
            zero: 0,
            size: self.size.into(),
            data: self.data.into(),
            intent: self.intent.into(),
            id: self.id.into(),
        };
        bytes.as_bytes().to_vec()
    }

    pub fn decode(bytes: &[u8]) -> Result<Head> {
        let head = HeadBytes::ref_from_bytes(bytes).map_err(|_| wrong("is cut off"))?;
        if head.magic != MAGIC {
            return Err(wrong("has another magic number"));
        }
        if head.version.get() != VERSION {
            let message = format!("the digests have format {}; this program knows {VERSION}", head.version);
            return Err(Error::unsupported(message));
        }
        let Some(digest) = Digest::ALL.get(usize::from(head.digest)) else {
            return Err(wrong("names a digest that is not known"));
        };
        let (size, block) = (head.size.get(), 1u64.checked_shl(head.shift.into()).unwrap_or(0));
        let places = [head.data.get(), head.intent.get()];
        let right = BLOCKS.contains(&block)
            && head.region < 64
            && head.zero == 0
            && size > 0
            && size.is_multiple_of(block)
            && places.iter().all(|at| at.is_multiple_of(4096) && at.checked_add(size).is_some());
        match right {
            true => Ok(Head {
                digest: *digest,
                shift: head.shift,
                region: head.region,
                size,
                data: places[0],
                intent: places[1],
                id: head.id.get(),
            }),
            false => Err(wrong("is impossible")),
        }
    }
}

/// The layout of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of the log.
    pub log: u64,
    /// Bytes of the store, from the head of its device on. The intent follows.
    pub store: u64,
}

impl Plan {
    /// For `blocks` blocks with digests of `len` bytes, and `bitmaps` bitmaps with a bit for each block.
    pub fn new(blocks: u64, len: u64, bitmaps: u64) -> Plan {
        let table = blocks.saturating_mul(len);
        let log = (table / 16).clamp(64 << 10, 4 << 20) / 4096 * 4096;
        // The directory, the head, the table, the bitmaps.
        let all = 2 + pages(table) + bitmaps * pages(blocks.div_ceil(8));
        Plan { log, store: 8192 + log + 8192 * all }
    }
}
