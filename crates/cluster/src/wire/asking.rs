//! What hosts say to each other of a volume that moves; from version 2 of the protocol on.

use crate::wire::{BLOCK, DATA_MAX};
use lamina_block::{Error, Result};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A host that wants something of another one, and the volume that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    /// The versions of the protocol that it speaks.
    pub versions: (u16, u16),
    /// The volume.
    pub volume: Uuid,
    /// The generation in which the other one has it, or had it, as far as it knows.
    pub generation: u64,
    /// Its flash.
    pub flash: Uuid,
    /// Its name.
    pub host: String,
}

/// Blocks are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Read {
    number: U64,
    block: U64,
    count: U32,
    zero: U32,
}

/// The answer to a `Read`. The data follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Found {
    number: U64,
    count: U32,
    checksum: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AskingBytes {
    versions: [U16; 2],
    zero: [u8; 4],
    volume: [u8; 16],
    generation: U64,
    flash: [u8; 16],
}

/// Blocks of one answer, at most.
pub const READ_MAX: u32 = (DATA_MAX / BLOCK) as u32;

impl Read {
    /// `count` blocks from `block` on, 1 to [`READ_MAX`]; the answer has the same number.
    pub fn new(number: u64, block: u64, count: u32) -> Read {
        Read { number: number.into(), block: block.into(), count: count.into(), zero: 0.into() }
    }

    /// The number of the question.
    pub fn number(&self) -> u64 {
        self.number.get()
    }

    /// The blocks.
    pub fn blocks(&self) -> std::ops::Range<u64> {
        self.block.get()..self.block.get() + u64::from(self.count.get())
    }

    pub(super) fn check(self, wrong: impl Fn(&str) -> Error) -> Result<Read> {
        let is_possible = (1..=READ_MAX).contains(&self.count.get());
        match is_possible && self.block.get().checked_add(self.count.get().into()).is_some() {
            true => Ok(self),
            false => Err(wrong("a read is impossible")),
        }
    }
}

impl Found {
    /// The answer to question `number`: all of its blocks, or no data.
    pub fn new(number: u64, data: &[u8]) -> Found {
        let (count, checksum) = ((data.len() / BLOCK) as u32, crc32c::crc32c(data));
        Found { number: number.into(), count: count.into(), checksum: checksum.into() }
    }

    /// The number of the question.
    pub fn number(&self) -> u64 {
        self.number.get()
    }

    /// Bytes of data.
    pub fn len(&self) -> usize {
        self.count.get() as usize * BLOCK
    }

    /// True if the blocks are not there.
    pub fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// True if these are the data that were sent.
    pub fn is_of(&self, data: &[u8]) -> bool {
        data.len() == self.len() && crc32c::crc32c(data) == self.checksum.get()
    }

    pub(super) fn check(self, wrong: impl Fn(&str) -> Error) -> Result<Found> {
        match self.count.get() <= READ_MAX {
            true => Ok(self),
            false => Err(wrong("an answer has too many blocks")),
        }
    }
}

impl Asking {
    pub(super) fn body(&self) -> Vec<u8> {
        let head = AskingBytes {
            versions: [self.versions.0.into(), self.versions.1.into()],
            zero: [0; 4],
            volume: self.volume.into_bytes(),
            generation: self.generation.into(),
            flash: self.flash.into_bytes(),
        };
        [head.as_bytes(), self.host.as_bytes()].concat()
    }

    pub(super) fn decode(body: &[u8], wrong: impl Fn(&str) -> Error) -> Result<Asking> {
        let (head, host) =
            AskingBytes::read_from_prefix(body).map_err(|_| wrong("a host that asks is cut off"))?;
        let host = std::str::from_utf8(host).ok().filter(|host| crate::vault::is_name(host));
        Ok(Asking {
            versions: (head.versions[0].get(), head.versions[1].get()),
            volume: Uuid::from_bytes(head.volume),
            generation: head.generation.get(),
            flash: Uuid::from_bytes(head.flash),
            host: host.ok_or_else(|| wrong("the name of a host is none"))?.to_owned(),
        })
    }
}
