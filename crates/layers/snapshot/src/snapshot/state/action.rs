//! What a write, a zeroing or a discard does with one extent.
//!
//! | the extent lies … | write, full | write, in part | zeroing, whole | zeroing, in part | discard, whole | discard, in part |
//! |---|---|---|---|---|---|---|
//! | nowhere | replace | copy of zeroes | leave | leave | leave | leave |
//! | where it may be written | in place | in place | unmap | in place | unmap | leave |
//! | where it is shared | replace | copy | unmap | copy | unmap | leave |
//!
//! "Full": all bytes of the extent. "Whole": all that the volume has of it. A write must fill an extent to replace it, or
//! the extent would keep bytes of an earlier owner behind the volume's end, which a larger volume would show.

use super::versions::Spot;
use lamina_block::Op;
use std::ops::Range;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Action {
    /// Nothing.
    Leave,
    /// The child does it in this extent.
    InPlace(u64),
    /// It lies nowhere from now on.
    Unmap,
    /// All of it is written to a new extent.
    Replace,
    /// It is copied to a new extent, with the change in it; zeroes, if it lies nowhere.
    Copy(Option<Spot>),
}

/// How much of an extent a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Covers {
    Part,
    /// All that the volume has of it.
    Whole,
    /// All of it.
    Full,
}

impl Covers {
    /// Of a request for bytes `at` of a volume of `size` bytes.
    pub fn new(at: &Range<u64>, extent: Range<u64>, size: u64) -> Covers {
        match at.start <= extent.start {
            true if at.end >= extent.end => Covers::Full,
            true if at.end >= size => Covers::Whole,
            _ => Covers::Part,
        }
    }
}

impl Action {
    /// Of an extent that lies `at`; `own`: where it may be written in its place, if so.
    pub fn new(op: &Op, covers: Covers, at: Option<Spot>, own: Option<Spot>) -> Action {
        debug_assert!(own.is_none() || own == at, "an extent is written where it lies");
        match (op, at, own) {
            (Op::Read(_) | Op::Flush, ..) => Action::Leave,
            (Op::Zero(_) | Op::Discard, None, _) => Action::Leave,
            (Op::Zero(_) | Op::Discard, Some(_), _) if covers != Covers::Part => Action::Unmap,
            (Op::Discard, Some(_), _) => Action::Leave,
            (Op::Write(..) | Op::Zero(_), Some(_), Some(own)) => Action::InPlace(own.extent),
            (Op::Write(..), ..) if covers == Covers::Full => Action::Replace,
            (Op::Write(..) | Op::Zero(_), at, None) => Action::Copy(at),
            (Op::Write(..), None, Some(_)) => unreachable!("what lies nowhere is not written in its place"),
        }
    }

    /// Whether it takes a new extent.
    pub fn is_new(self) -> bool {
        matches!(self, Action::Replace | Action::Copy(_))
    }
}

#[cfg(test)]
#[path = "tests/action.rs"]
mod tests;
