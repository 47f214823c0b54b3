//! Dirty blocks near the tails of the logs, for volumes that destage late: these blocks get to the store just before
//! their space is needed, together with what is dirty beside them.
//!
//! ```text
//!      tail  ▣▢◆▢ ▣◆▣ ▢▣▣ … ◆▣▣  end       ◆ dirty
//!            └───────┘ ripe, with the neighbours of what is dirty there, wherever those are
//! ```
//!
//! What is written again before its old version comes near the tail goes to the store once.

use super::Cache;
use super::access::Dirty;
use super::segments::{MAIN, SMALL};
use super::volume::Volume;
use lamina_kit::flaw::flawed;
use std::collections::HashSet;

/// Blocks become ripe in the oldest part of a log, as a divisor, and all in a larger part go with them, so that the
/// store gets many at once.
const RIPE: usize = 8;
const TOGETHER: usize = 4;
/// Dirty neighbours on each side that go with a block, at most.
const NEIGHBOURS: u64 = 256;

impl Cache {
    /// Segments in the oldest part of each log that have something dirty.
    fn near_tails(&self, part: usize) -> Vec<u32> {
        let segments = self.segments.borrow();
        let logs = [SMALL, MAIN].map(|log| &segments.logs[log as usize]);
        let oldest = logs.into_iter().flat_map(|log| log.iter().take(log.len().div_ceil(part)));
        oldest.copied().filter(|number| segments.list[*number as usize].dirty > 0).collect()
    }

    /// True if reclaim will want segments soon.
    fn is_filling(&self) -> bool {
        self.free_segments() <= 2 * self.low_water()
    }

    /// Dirty blocks of a volume in these segments.
    fn dirty_in(&self, volume: &Volume, numbers: &[u32]) -> impl Iterator<Item = Dirty> {
        let index = self.index.borrow();
        numbers.iter().flat_map(|number| self.shape.segment(*number)).filter_map(move |slot| {
            let word = index.word(slot);
            let is_meant = word.is_used() && word.is_dirty() && word.volume() == volume.number;
            is_meant.then(|| Dirty { block: word.block(), slot, absent: word.absent() })
        })
    }

    /// True if the volume has dirty blocks whose space is needed soon, or that reclaim waits for.
    pub fn is_ripe(&self, volume: &Volume) -> bool {
        let is_wanted = self.wants_clean.get() && volume.dirty.get() > 0;
        is_wanted || self.is_filling() && self.dirty_in(volume, &self.near_tails(RIPE)).next().is_some()
    }

    /// Volumes that destage late look whether anything is ripe.
    pub(super) fn ripen(&self) {
        if self.is_filling() && !self.near_tails(RIPE).is_empty() {
            let volumes = self.volumes.borrow();
            let late = volumes.iter().flatten().filter(|volume| volume.destages_late.get());
            late.for_each(|volume| volume.hurry.notify());
        }
    }

    /// What is ripe, as [`Cache::batch`] gives the oldest writes.
    pub fn ripe(&self, volume: &Volume) -> Option<(Vec<Dirty>, u64)> {
        let mut dirty: Vec<Dirty> = self.dirty_in(volume, &self.near_tails(TOGETHER)).collect();
        if dirty.is_empty() && self.wants_clean.get() {
            dirty.extend(self.dirty_in(volume, &self.near_tails(1)));
        }
        dirty.sort_unstable();
        let mut all = Vec::with_capacity(dirty.len());
        let mut end = 0;
        for Dirty { block, .. } in dirty {
            if block < end {
                continue;
            }
            let first = (end.max(block.saturating_sub(NEIGHBOURS))..block).rev();
            let first = first.take_while(|block| self.is_dirty_at(volume, *block..block + 1)).last();
            let after = (block + 1..).take_while(|block| self.is_dirty_at(volume, *block..block + 1));
            end = after.take(NEIGHBOURS as usize).last().unwrap_or(block) + 1;
            all.extend(first.unwrap_or(block)..end);
        }
        let mut all: Vec<Dirty> = self.dirty_of(volume, all.into_iter()).collect();
        all.retain(|dirty| !volume.quarantine.rests(dirty.block, dirty.slot));
        (!all.is_empty()).then(|| {
            let upto = self.done_with(volume, &all);
            (self.batched(all), upto)
        })
    }

    /// The serial number that the store is up to date with when it has `dirty`, too.
    fn done_with(&self, volume: &Volume, dirty: &[Dirty]) -> u64 {
        let brought: HashSet<u64> = dirty.iter().map(|dirty| dirty.block).collect();
        let is_left = |block: u64| !brought.contains(&block) && self.is_dirty_at(volume, block..block + 1);
        let queue = volume.queue.borrow();
        if flawed("a checkpoint of what stays dirty") {
            return queue.back().map_or(0, |record| record.serial);
        }
        let done = queue.iter().take_while(|record| record.ended && !record.blocks().any(is_left));
        done.last().map_or(volume.checkpoint.get(), |record| record.serial)
    }
}
