//! The action of a write, a zeroing or a discard on one extent.
//!
//! | the extent lies … | full write | partial write | whole zeroing | part zeroing | whole discard | part discard |
//! |---|---|---|---|---|---|---|
//! | nowhere | replace | copy of zeroes | leave | leave | leave | leave |
//! | where it may be written | in place | in place | unmap | in place | unmap | leave |
//! | where it is shared | replace | copy | unmap | copy | unmap | leave |
//!
//! "Full": all bytes of the extent. "Whole": all bytes of the extent within the volume. A write must fill an
//! extent to replace it, or the extent would keep bytes of an earlier owner after the volume's end, which a
//! larger volume would show.

use super::versions::PhysicalExtent;
use lamina_block::Op;
use std::ops::Range;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Action {
    /// Nothing.
    Leave,
    /// The child writes in place, in this physical extent.
    InPlace(u64),
    /// The extent has no physical extent from now on.
    Unmap,
    /// All of the extent is written to a new physical extent.
    Replace,
    /// The extent is copied to a new physical extent, with the change in it; zeroes, if it has none.
    Copy(Option<PhysicalExtent>),
}

/// The part of an extent that a request covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Covers {
    Part,
    /// All bytes of the extent within the volume.
    Whole,
    /// All bytes of the extent.
    Full,
}

impl Covers {
    /// For a request for bytes `at` of a volume of `size` bytes.
    pub fn new(at: &Range<u64>, extent: Range<u64>, size: u64) -> Covers {
        match at.start <= extent.start {
            true if at.end >= extent.end => Covers::Full,
            true if at.end >= size => Covers::Whole,
            _ => Covers::Part,
        }
    }
}

impl Action {
    /// For an extent that lies `at`; `own`: the physical extent that may be written in place, if any.
    pub fn new(op: &Op, covers: Covers, at: Option<PhysicalExtent>, own: Option<PhysicalExtent>) -> Action {
        debug_assert!(own.is_none() || own == at, "an extent is written where it lies");
        match (op, at, own) {
            (Op::Read(_) | Op::Flush, ..) => Action::Leave,
            (Op::Zero(_) | Op::Discard, None, _) => Action::Leave,
            (Op::Zero(_) | Op::Discard, Some(_), _) if covers != Covers::Part => Action::Unmap,
            (Op::Discard, Some(_), _) => Action::Leave,
            (Op::Write(..) | Op::Zero(_), Some(_), Some(own)) => Action::InPlace(own.number),
            (Op::Write(..), ..) if covers == Covers::Full => Action::Replace,
            (Op::Write(..) | Op::Zero(_), at, None) => Action::Copy(at),
            (Op::Write(..), None, Some(_)) => unreachable!(
                "an extent without a physical extent is not \
                written in place"
            ),
        }
    }

    /// True if the action takes a new physical extent.
    pub fn is_new(self) -> bool {
        matches!(self, Action::Replace | Action::Copy(_))
    }
}

#[cfg(test)]
#[path = "tests/action.rs"]
mod tests;
