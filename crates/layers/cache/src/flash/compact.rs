//! Compaction: what is left of a segment is copied to the end of its log, and the segment is free.
//!
//! ```text
//!      log    ▣▣▣▣  ▢▣▢▢  ▣▣▢▣  ▣▣…          ▣ counts   ▢ head, or another version has come
//!                    └───────────▶ ▣
//!             ▣▣▣▣  erased ▣▣▢▣  ▣▣▣…
//! ```
//!
//! Old versions and heads would otherwise take their slots until their segment is a tail, and blocks that
//! count would have to go in their place. A segment with the fewest blocks goes first (greedy, as in
//! Rosenblum and Ousterhout, *The Design and Implementation of a Log-Structured File System*, TOCS '92), and
//! only if a quarter of it is free then; half of it, when space is short: a slot that is won costs at most
//! three that are copied, or one.
//!
//! It need not be a tail, as nothing is forgotten: each block of it has a version in the same log that is as
//! new, and behind it. That one is durable before the segment is erased: first its first head, then its
//! summary, so that until both are gone it has either all that it had, or nothing. From then on whatever
//! becomes of the newer version, this one cannot come back.

use super::Cache;
use super::format::SLOT;
use super::reclaim::Leaves;
use super::segments::{MAIN, SMALL};
use super::space::TOGETHER;
use futures_util::future::try_join_all;
use lamina_block::{Durability, Io, Result};
use lamina_kit::flaw::flawed;
use std::rc::Rc;

/// A segment is compacted that has blocks in no more of its slots, in percent; the second, while space is short.
const SPARSE_PERCENT: u32 = 75;
const URGENT_PERCENT: u32 = 50;

impl Cache {
    /// Compacts a few segments, if there are any for which it is worth it; true if there is more space than before.
    pub(super) async fn compact_some(self: &Rc<Cache>) -> bool {
        self.try_compact().await.unwrap_or_else(|e| {
            tracing::debug!(flash = %self.name, error = %e, "no segment could be compacted");
            false
        })
    }

    async fn try_compact(self: &Rc<Cache>) -> Result<bool> {
        let before = self.segments.borrow().free.len();
        let mut compacted = Vec::new();
        // Each takes its time, in which others may need space.
        while compacted.len() < TOGETHER
            && (compacted.is_empty() || !self.is_urgent())
            && self.health.borrow().works()
            && self.segments.borrow().free.len() >= 3
            && let Some((log, number)) = self.sparse(&compacted)
        {
            match self.compact(number).await {
                Ok(true) => compacted.push((log, number)),
                // It is not tried again before it is a tail.
                Ok(false) | Err(_) => self.segments.borrow_mut().get(number).stays = true,
            }
        }
        if !compacted.is_empty() {
            // What made their blocks old, and the copies, are durable before they go.
            if !flawed("erased before its copies are durable") {
                self.flush().await?;
            }
            // Who reads beside the flash from a store that hangs keeps a segment, and nothing else waits for that.
            compacted.retain(|(_, number)| !self.is_read(*number));
            for (log, number) in &compacted {
                self.segments.borrow_mut().logs[*log as usize].retain(|other| other != number);
                // Nobody is going to write its summary after this.
                self.unpinned(*number).await;
            }
            try_join_all(compacted.iter().map(|(_, number)| self.erase(*number))).await?;
            // As for tails: between two states no more segments get a number than there are.
            while let Err(e) = self.save().await {
                if self.closed.get() {
                    return Err(e);
                }
                self.strike().await;
            }
            compacted.iter().for_each(|(_, number)| self.segments.borrow_mut().give_back(*number));
            self.freed();
        }
        Ok(self.segments.borrow().free.len() > before)
    }

    /// The segment with the fewest blocks, if they are few enough, beside those that are `compacted`.
    fn sparse(&self, compacted: &[(u8, u32)]) -> Option<(u8, u32)> {
        let segments = self.segments.borrow();
        let percent = if self.is_urgent() { URGENT_PERCENT } else { SPARSE_PERCENT };
        let most = self.shape.batch_slots() * percent / 100;
        let all = [SMALL, MAIN].into_iter().flat_map(|log| {
            let open = self.logs[log as usize].open.get();
            let of = segments.logs[log as usize].iter();
            of.filter(move |number| Some(**number) != open).map(move |number| (log, *number))
        });
        let is_sparse = |one: &(u8, u32)| {
            let segment = &segments.list[one.1 as usize];
            let is_pinned = self.is_read(one.1);
            // A batch on its way to it may be one that is not on its store.
            let is_whole = segment.under_way.is_empty();
            // Once a block of it is forgotten, it is a tail, and goes before all others.
            let is_emptied = segment.sequence <= self.first[one.0 as usize].get();
            let is_quiet = segment.dirty == 0 && is_whole && !is_emptied && !is_pinned && !segment.stays;
            segment.live <= most && is_quiet && !compacted.contains(one)
        };
        let live = |number: u32| segments.list[number as usize].live;
        let is_limited = self.is_limited();
        let can_go = |(_, number): &(u8, u32)| !is_limited || self.affords(*number, live(*number));
        all.filter(is_sparse).filter(can_go).min_by_key(|(_, number)| live(*number))
    }

    /// True if somebody reads from a segment. Who writes its summary ends soon; the store, which may need others,
    /// perhaps does not.
    fn is_read(&self, number: u32) -> bool {
        let segment = &self.segments.borrow().list[number as usize];
        segment.pins > u32::from(segment.entries.is_some())
    }

    /// Copies all that counts of a segment to the end of its log; true if nothing is left there.
    async fn compact(self: &Rc<Cache>, number: u32) -> Result<bool> {
        let entries = self.entries(number).await?;
        loop {
            let moved = self.moved.wait();
            let (runs, waits) = self.sort(number, &entries, Leaves::Sparse);
            match (runs.is_empty(), waits) {
                (false, _) => self.keep(runs, Leaves::Sparse).await?,
                (true, true) => moved.await,
                (true, false) => break,
            }
            if !waits {
                break;
            }
        }
        Ok(self.segments.borrow_mut().get(number).live == 0)
    }

    /// Nothing of a segment is found again.
    async fn erase(&self, number: u32) -> Result<()> {
        let start = self.shape.segment(number).start;
        // Its summary is without batches that failed: it goes last.
        for slot in [start, start + self.shape.batch_slots()] {
            while let Err(e) = self.zero(slot).await {
                if self.closed.get() {
                    return Err(e);
                }
                self.strike().await;
            }
        }
        Ok(())
    }

    /// Writes zeroes to a slot, durably.
    pub(super) async fn zero(&self, slot: u32) -> Result<()> {
        self.written.set(self.written.get() + SLOT as u64);
        let zeroes = self.env.pool().take(SLOT);
        zeroes.fill(0);
        self.child.submit(Io::write(u64::from(slot) * SLOT as u64, zeroes, Durability::Fua)).await
    }
}
