//! What a policy says of a request, and what it learns.
//!
//! ```text
//!      Ask ──▶ Policy ──▶ Plan   fast · slow     who serves which blocks, now
//!                                fill            blocks that were read, copied to the fast device
//!                                fetch           blocks that are read besides, and copied
//!                                destage         blocks that are written home, in this order
//! ```

use super::trace::BLOCK;
use std::ops::Range;

/// A request of a client: whole bytes of the slow device's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whether the client writes.
    pub is_write: bool,
    /// The bytes; never none.
    pub bytes: Range<u64>,
}

impl Ask {
    /// The blocks that the request touches, some of them perhaps in part.
    pub fn blocks(&self) -> Range<u64> {
        self.bytes.start / BLOCK..self.bytes.end.div_ceil(BLOCK)
    }
}

/// What becomes of a request: ranges of blocks, none of them empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Blocks that the fast device serves.
    pub fast: Vec<Range<u64>>,
    /// Blocks that the slow device serves.
    pub slow: Vec<Range<u64>>,
    /// Blocks of `slow` that are copied to the fast device once they were read.
    pub fill: Vec<Range<u64>>,
    /// Further blocks that are read from the slow device and copied, in the background.
    pub fetch: Vec<Range<u64>>,
    /// Dirty blocks that are written home in the background, in this order.
    pub destage: Vec<Range<u64>>,
}

impl Plan {
    /// Empties the plan for the next request.
    pub fn clear(&mut self) {
        let Plan { fast, slow, fill, fetch, destage } = self;
        [fast, slow, fill, fetch, destage].into_iter().for_each(Vec::clear);
    }
}

/// Adds a block to ranges, the last of which grows if the block comes right behind it.
pub fn push(ranges: &mut Vec<Range<u64>>, block: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == block => last.end += 1,
        Some(_) | None => ranges.push(block..block + 1),
    }
}

/// How many blocks the ranges have together.
pub fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// What decides for a tier.
pub trait Policy {
    /// Decides about a request. `plan` is empty, and says afterwards what becomes of the request.
    fn ask(&mut self, ask: &Ask, plan: &mut Plan);

    /// All dirty blocks, ascending, as they would be written home now.
    fn dirty(&self) -> Vec<Range<u64>>;

    /// How many blocks the fast device has.
    fn resident(&self) -> usize;
}
