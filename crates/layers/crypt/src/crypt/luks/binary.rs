//! The first 4096 bytes of each copy of a LUKS2 header.
//!
//! ```text
//!      0      6         8        16      24         72          104      168       208
//!      ┌──────┬─────────┬────────┬───────┬──────────┬───────────┬────────┬─────────┬───────────────┐
//!      │magic │version 2│ length │ seqid │ label    │ checksum's│ salt   │ uuid    │ subsystem 48  │
//!      │ 6    │ u16     │ u64    │ u64   │ 48       │ name 32   │ 64     │ 40      │               │
//!      ├──────┴─────────┼────────┴───────┴──────────┴─────┬─────┴────────┴────┬────┴───────────────┤
//!      │ offset u64     │ zeroes                          │ checksum 64       │ zeroes to 4096     │
//!      └────────────────┴─────────────────────────────────┴───────────────────┴────────────────────┘
//!      256              264                               448                 512
//! ```
//!
//! Numbers are big-endian; JSON follows from 4096 to `length`. The checksum is over `length` bytes, its own being
//! zeroes. Source: LUKS2 On-Disk Format Specification 1.1.3, section 2.

use super::hash::Hash;
use lamina_block::{Error, ErrorKind, Result};
use std::ops::Range;
use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes before the JSON.
pub(super) const LEN: usize = 4096;
/// The lengths of a copy, in bytes: the second copy may begin at each of these.
pub(super) const LENGTHS: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Where the checksum is.
const CHECKSUM: Range<usize> = 448..512;
const VERSION: u16 = 2;

/// One of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Copy {
    First,
    Second,
}

impl Copy {
    fn magic(self) -> [u8; 6] {
        match self {
            Copy::First => *b"LUKS\xba\xbe",
            Copy::Second => *b"SKUL\xba\xbe",
        }
    }

    /// The beginning of the copy if copies are `length` bytes long.
    pub fn offset(self, length: u64) -> u64 {
        match self {
            Copy::First => 0,
            Copy::Second => length,
        }
    }

    /// The name of the copy.
    pub fn name(self) -> &'static str {
        match self {
            Copy::First => "first",
            Copy::Second => "second",
        }
    }

    /// The other copy.
    pub fn other(self) -> Copy {
        match self {
            Copy::First => Copy::Second,
            Copy::Second => Copy::First,
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 6],
    version: U16,
    length: U64,
    seqid: U64,
    label: [u8; 48],
    checksum_name: [u8; 32],
    salt: [u8; 64],
    uuid: [u8; 40],
    subsystem: [u8; 48],
    offset: U64,
    padding: [u8; 184],
    checksum: [u8; 64],
    rest: [u8; LEN - 512],
}

/// The fields of the binary part. Texts are as they are on disk, with their zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    /// Bytes of the copy.
    pub length: u64,
    /// The number of the change that wrote the copy.
    pub seqid: u64,
    pub label: [u8; 48],
    pub uuid: [u8; 40],
    pub subsystem: [u8; 48],
    checksum_name: [u8; 32],
}

fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect()
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

impl Binary {
    /// The fields of a new volume.
    pub fn new(length: u64, uuid: &str) -> Binary {
        let mut binary = Binary {
            length,
            seqid: 0,
            label: [0; 48],
            uuid: [0; 40],
            subsystem: [0; 48],
            checksum_name: [0; 32],
        };
        binary.uuid[..uuid.len()].copy_from_slice(uuid.as_bytes());
        binary.checksum_name[..6].copy_from_slice(b"sha256");
        binary
    }

    /// The UUID in its usual form.
    pub fn uuid_text(&self) -> String {
        text(&self.uuid)
    }

    /// The label; empty if there is none.
    pub fn label_text(&self) -> String {
        text(&self.label)
    }

    /// The length of the copy that begins with `bytes`, if that may be one at all. `None` says that there is no magic.
    pub fn length_of(bytes: &[u8], copy: Copy) -> Result<Option<u64>> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| corrupt("it is cut off"))?;
        if raw.magic != copy.magic() {
            return Ok(None);
        }
        match raw.version.get() {
            VERSION => {}
            1 => {
                return Err(Error::unsupported(
                    "it is LUKS version 1: `cryptsetup convert --type luks2` makes it 2",
                ));
            }
            version => {
                return Err(Error::unsupported(format!(
                    "it is LUKS version {version}, which is not known here"
                )));
            }
        }
        let length = raw.length.get();
        match LENGTHS.contains(&length) && raw.offset.get() == copy.offset(length) {
            true => Ok(Some(length)),
            false => Err(corrupt(format!("a copy of {length} bytes at {} cannot be", raw.offset))),
        }
    }

    /// Reads a whole copy; returns its JSON as well.
    pub fn decode(bytes: &[u8], copy: Copy) -> Result<(Binary, &[u8])> {
        let length = Binary::length_of(bytes, copy)?.ok_or_else(|| corrupt("its magic is missing"))?;
        if bytes.len() as u64 != length {
            return Err(corrupt("it is cut off"));
        }
        let (raw, json) = Raw::ref_from_prefix(bytes).map_err(|_| corrupt("it is cut off"))?;
        let hash = Hash::of(&text(&raw.checksum_name))?;
        if checksum(hash, bytes) != raw.checksum {
            return Err(corrupt("its checksum is wrong"));
        }
        let binary = Binary {
            length,
            seqid: raw.seqid.get(),
            label: raw.label,
            uuid: raw.uuid,
            subsystem: raw.subsystem,
            checksum_name: raw.checksum_name,
        };
        Ok((binary, json))
    }

    /// Encodes a whole copy with this JSON. `salt` makes all copies different. Fails with `NoSpace` if the
    /// JSON does not fit.
    pub fn encode(&self, copy: Copy, salt: [u8; 64], json: &[u8]) -> Result<Vec<u8>> {
        let mut raw = Raw::new_zeroed();
        raw.magic = copy.magic();
        raw.version = VERSION.into();
        raw.length = self.length.into();
        raw.seqid = self.seqid.into();
        raw.label = self.label;
        raw.checksum_name = self.checksum_name;
        raw.salt = salt;
        raw.uuid = self.uuid;
        raw.subsystem = self.subsystem;
        raw.offset = copy.offset(self.length).into();
        let mut bytes = raw.as_bytes().to_vec();
        bytes.extend(json);
        // JSON ends with at least one zero.
        if bytes.len() as u64 >= self.length {
            return Err(Error::new(ErrorKind::NoSpace, "there is no room in the header"));
        }
        bytes.resize(self.length as usize, 0);
        let sum = checksum(Hash::of(&text(&self.checksum_name))?, &bytes);
        bytes[CHECKSUM].copy_from_slice(&sum);
        Ok(bytes)
    }
}

/// The checksum of a copy, padded with zeroes.
fn checksum(hash: Hash, bytes: &[u8]) -> [u8; 64] {
    let digest =
        hash.digest(&[&bytes[..CHECKSUM.start], &[0; CHECKSUM.end - CHECKSUM.start], &bytes[CHECKSUM.end..]]);
    let mut sum = [0; 64];
    sum[..digest.as_ref().len()].copy_from_slice(digest.as_ref());
    sum
}
