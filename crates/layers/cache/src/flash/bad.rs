//! Bad blocks: what cannot get to the store for a reason of its own, while everything else does.
//!
//! The flash cannot read such a block, or the store does not take it. Batches go on without it; it is tried
//! again alone, or at once when it has been written again. Until then its record stays in the staging queue,
//! and no checkpoint passes it.

use lamina_block::{Error, Time};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// So long a bad block is left alone.
pub const RETRY: Duration = Duration::from_secs(1);

/// Who fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Flash,
    Store,
}

struct Bad {
    side: Side,
    error: Error,
    /// Where it was on the flash: elsewhere it is another version, or has been copied.
    slot: u32,
    /// The batch that tried it last, and when that was.
    batch: u64,
    tried: Time,
    /// It was acknowledged, and nobody has been told that it fails.
    is_owed: bool,
}

/// The bad blocks of a volume.
#[derive(Default)]
pub struct BadBlocks(RefCell<BTreeMap<u64, Bad>>);

impl BadBlocks {
    /// A batch has met `block`, which was in `slot`; `is_owed` if it may have been acknowledged.
    pub fn note(
        &self,
        (block, slot): (u64, u32),
        is_owed: bool,
        (side, error): (Side, Error),
        (batch, tried): (u64, Time),
    ) {
        let was_owed = self.0.borrow().get(&block).filter(|bad| bad.slot == slot).map(|bad| bad.is_owed);
        let is_owed = was_owed.unwrap_or(is_owed);
        self.0.borrow_mut().insert(block, Bad { side, error, slot, batch, tried, is_owed });
    }

    pub fn has(&self, block: u64) -> bool {
        !self.is_empty() && self.0.borrow().contains_key(&block)
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// True if it is to be left alone for now.
    pub fn rests(&self, block: u64, slot: u32, now: Time) -> bool {
        let blocks = self.0.borrow();
        blocks.get(&block).is_some_and(|bad| bad.slot == slot && now.since(bad.tried) < RETRY)
    }

    /// True if this batch, or a later one, has found it bad.
    pub fn was_met(&self, block: u64, batch: u64) -> bool {
        !self.is_empty() && self.0.borrow().get(&block).is_some_and(|bad| bad.batch >= batch)
    }

    /// True if there are some, and later batches than this one have tried all of them.
    pub fn were_met_since(&self, batch: u64) -> bool {
        !self.is_empty() && self.0.borrow().values().all(|bad| bad.batch > batch)
    }

    pub fn heal(&self, block: u64) {
        if !self.is_empty() {
            self.0.borrow_mut().remove(&block);
        }
    }

    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// So many of them fail on this side.
    pub fn count(&self, side: Side) -> usize {
        self.0.borrow().values().filter(|bad| bad.side == side).count()
    }

    /// Those that fail on this side.
    pub fn of(&self, side: Side) -> Vec<u64> {
        let blocks = self.0.borrow();
        blocks.iter().filter(|(_, bad)| bad.side == side).map(|(block, _)| *block).collect()
    }

    /// Why the first of them fails.
    pub fn first(&self, side: Option<Side>) -> Option<(Side, Error)> {
        let blocks = self.0.borrow();
        let bad = blocks.values().find(|bad| side.is_none_or(|side| bad.side == side))?;
        Some((bad.side, bad.error.clone()))
    }

    /// Why one of `blocks` fails, if one does: whoever wrote it is told that.
    pub fn tell(&self, blocks: &Range<u64>) -> Option<(Side, Error)> {
        let mut all = self.0.borrow_mut();
        let mut told = None;
        for bad in all.range_mut(blocks.clone()).map(|(_, bad)| bad) {
            bad.is_owed = false;
            told.get_or_insert_with(|| (bad.side, bad.error.clone()));
        }
        told
    }

    /// Why one fails of which nobody was told that: it was acknowledged.
    pub fn owed(&self) -> Option<(Side, Error)> {
        let blocks = self.0.borrow();
        blocks.values().find(|bad| bad.is_owed).map(|bad| (bad.side, bad.error.clone()))
    }

    /// True if one of `blocks` is bad, and was acknowledged.
    pub fn owes(&self, mut blocks: Range<u64>) -> bool {
        let all = self.0.borrow();
        !all.is_empty() && blocks.any(|block| all.get(&block).is_some_and(|bad| bad.is_owed))
    }
}
