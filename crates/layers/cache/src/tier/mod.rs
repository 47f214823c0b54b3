//! What a tier of a fast and a slow device decides: which device serves a request, and what moves between them.
//!
//! ```text
//!      Ask ──▶ Policy ──▶ Plan   fast · slow     who serves which blocks, now
//!                ▲               fill            blocks that were read, copied to the fast device
//!                │               fetch           blocks that are read besides, and copied
//!      measured ─┘               destage         blocks that are written home, in this order
//! ```
//!
//! The home of every block is the slow device, at the same address. The fast device has copies: *clean* ones, which the
//! slow device has as well, and *dirty* ones, which are newer than their home.
//!
//! Invariants: a policy never has more blocks on the fast device than its capacity; a block of a request is served by
//! exactly one device; a dirty block leaves the fast device only after a plan that destages it.
//!
//! Everything here is synchronous and deterministic in the calls: no clock is read, no device is known, nothing is
//! drawn. The module deliberately does no I/O and keeps nothing durable: a layer does what the plans say.

mod cells;
mod costs;
mod monitor;
mod placement;
mod reuse;
mod state;
mod streams;
#[cfg(test)]
mod tests;

pub use monitor::Extent;
pub use placement::Placement;
pub use state::{Standing, Tier};

use std::ops::Range;
use std::time::Duration;

/// Bytes of a block, the unit in which the fast device has copies.
pub const BLOCK: u64 = 4096;

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

/// How a request looks to a slow device that has an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The request begins where no recent one ended.
    #[default]
    Random,
    /// The request goes on where a recent one ended.
    Sequential,
}

/// Work whose duration was measured: of the slow device, but for the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A read that a client waited for.
    Read(Kind),
    /// A write that a client waited for.
    Write(Kind),
    /// A run of blocks that was written home.
    Destage,
    /// A read of the fast device that a client waited for.
    Fast,
}

/// What becomes of a request: ranges of blocks, none of them empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How the request looks to the slow device.
    pub kind: Kind,
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
        let Plan { kind, fast, slow, fill, fetch, destage } = self;
        *kind = Kind::Random;
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

    /// A device took that long for such a work on so many blocks, the wait for other work not counted. A policy
    /// that asks nothing of durations need not listen.
    fn measured(&mut self, work: Work, blocks: u64, took: Duration) {
        let _ = (work, blocks, took);
    }

    /// All dirty blocks, ascending, as they would be written home now.
    fn dirty(&self) -> Vec<Range<u64>>;

    /// How many blocks the fast device has.
    fn resident(&self) -> usize;
}
