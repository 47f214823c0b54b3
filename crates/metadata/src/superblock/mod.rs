//! The superblock: the description of a member of a hierarchy, and of the whole hierarchy.
//!
//! ```text
//! 0        64 KiB               1 MiB                                    end - 64 KiB      end
//! │ copy A   │ metadata area      │ data                                   │ copy B          │
//! ```
//!
//! Both copies say the same. They are written one after the other, with a flush after each, the first copies of *all*
//! members before the second copy of any ([`write_all`]). So whatever a power loss leaves, there is one state of which
//! every member has a whole copy: the old one in the second copies, or the new one in the first. Assembly needs no more
//! ([`crate::member::judge`]); no log, no vote.
//!
//! Invariant: a copy is believed only if its checksums are right, whole, and of a version that is known. Bytes that
//! are drawn in `docs/formats/superblock.md` never change their meaning within a version.
//!
//! This module deliberately does not interpret a description: only the graph does.

mod copies;
mod format;

pub use copies::{Found, read, write, write_all, write_new};
pub use format::{MAGIC, decode, encode};

use lamina_block::{Bytes, Geometry};
use std::fmt;
use std::ops::Range;
pub use uuid::Uuid;

/// The bytes of a copy; its place and those of the data are multiples of this. No logical block is larger.
pub const COPY_LEN: u64 = 64 << 10;
/// Bytes of the fixed header at the beginning of a copy.
pub const HEADER_LEN: usize = 4096;
/// The most bytes of a description: the rest of a copy.
pub const DESCRIPTION_MAX: usize = COPY_LEN as usize - HEADER_LEN;
/// The most bytes of the names of a member and of a hierarchy.
pub const NAME_MAX: usize = 64;
/// Where the data of a new member begins.
pub const DATA_START: u64 = 1 << 20;
/// The smallest device that can be a member: with space for data.
pub const DEVICE_MIN: u64 = DATA_START + 2 * COPY_LEN;
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// The most members of a hierarchy.
pub const MEMBERS_MAX: u32 = 4096;

/// The contents of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The hierarchy: drawn when it was created, never the same twice.
    pub hierarchy: Uuid,
    /// The hierarchy's name, for people.
    pub hierarchy_name: String,
    /// This member: drawn when it was made. Two devices with the same one are copies of each other.
    pub member: Uuid,
    /// The device of the hierarchy that this member is.
    pub name: String,
    /// Its number among the members, from 0.
    pub index: u32,
    /// How many members there are.
    pub members: u32,
    /// Raised on all members by every change of the hierarchy. From 1.
    pub generation: u64,
    /// When the hierarchy was created, in seconds since 1970; 0 if the time was unknown.
    pub created: u64,
    /// The member was shut down cleanly, and not written to since.
    pub clean: bool,
    /// Where things are on it.
    pub layout: Layout,
    /// The whole hierarchy: its description, and the trailer.
    pub description: String,
}

/// Where things are on a member, in bytes from its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The part that the layers above see.
    pub data: Range<u64>,
    /// The part for the layers' metadata.
    pub metadata: Range<u64>,
}

impl Layout {
    /// The layout of a new member of `size` bytes, or why it cannot be one.
    pub fn of_size(size: u64) -> Result<Layout, String> {
        if size < DEVICE_MIN {
            let (size, least) = (Bytes(size), Bytes(DEVICE_MIN));
            return Err(format!("has {size}, and a member has at least {least}: enlarge it"));
        }
        Ok(Layout { data: DATA_START..last_copy(size), metadata: COPY_LEN..DATA_START })
    }

    /// The bytes that a member needs to have: up to the end of its second copy.
    pub fn end(&self) -> u64 {
        self.data.end + COPY_LEN
    }

    /// The shape of the data on a device of the shape `below`.
    pub fn shape(&self, below: Geometry) -> Geometry {
        below.with_size(self.data.end - self.data.start)
    }
}

/// Where the second copy begins on a device of `size` bytes that was made a member with this size.
fn last_copy(size: u64) -> u64 {
    (size / COPY_LEN).saturating_sub(1) * COPY_LEN
}

/// Which of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the beginning of the device.
    First,
    /// After the data.
    Second,
}

impl Place {
    /// Both, in the order in which they are written.
    pub const ALL: [Place; 2] = [Place::First, Place::Second];

    /// Its start on a member with `layout`.
    pub fn offset(self, layout: &Layout) -> u64 {
        match self {
            Place::First => 0,
            Place::Second => layout.data.end,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::First => "the first copy",
            Place::Second => "the second copy",
        })
    }
}

/// Why a copy cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// There is something else, or nothing.
    Absent,
    /// The copy is from a later Lamina, and whole.
    Newer(u32),
    /// The header is not what was written.
    Header,
    /// The description is not what was written.
    Description,
    /// The checksums are right, and the contents are impossible. The text says which part.
    Nonsense(&'static str),
    /// A whole copy of a member with another layout: it was moved or left over.
    Misplaced,
    /// The copy would lie beyond the end of the device.
    Beyond,
    /// The device could not read it.
    Unreadable(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Absent => f.write_str("is not there"),
            Damage::Newer(version) => {
                write!(f, "has format version {version}, and this Lamina knows {VERSION}: use a newer Lamina")
            }
            Damage::Header => f.write_str("is damaged: the checksum of its header is wrong"),
            Damage::Description => f.write_str("is damaged: the checksum of its description is wrong"),
            Damage::Nonsense(what) => write!(f, "is damaged: {what}"),
            Damage::Misplaced => f.write_str("belongs elsewhere: it was moved or left over"),
            Damage::Beyond => f.write_str("lies beyond the end of the device"),
            Damage::Unreadable(e) => write!(f, "cannot be read: {e}"),
        }
    }
}
