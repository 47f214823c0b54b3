//! The differences of a version from a snapshot: the question of an incremental backup.
//!
//! An extent that both find in the same place has not changed: while a snapshot has an extent, nothing is written into
//! it, and no other extent gets its place. An extent that lies elsewhere, or nowhere, counts as changed, also when its
//! bytes are the same: after a write of the same bytes, or because it was moved. So do all bytes beyond the end of the
//! snapshot.
//!
//! Nothing is noted when a block is written: the maps of both versions say it all, and parts that they share are
//! stepped over.

use super::core::Core;
use super::format::SnapshotRecord;
use super::read::Version;
use lamina_block::{Difference, Error, Result};
use lamina_metadata::extents::{FANOUT, Root};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Leaves compared without a pause.
const AT_ONCE: u64 = 8;

impl Core {
    /// The names of the snapshots, oldest first.
    pub fn names(&self) -> Vec<String> {
        self.state().versions.snapshots().iter().map(|snapshot| snapshot.record.name.clone()).collect()
    }

    /// The differences of `at` in a version from the snapshot `since`.
    pub async fn differences(
        self: Rc<Self>,
        version: Version,
        since: String,
        at: Range<u64>,
    ) -> Result<Vec<Difference>> {
        let before = self.state().versions.known(&since)?.record.clone();
        let found = self.compare(version, &before, at).await;
        // Once the snapshot is deleted, its extents are written in place, and its pages are used again.
        if self.state().versions.known(&since)?.record.epoch != before.epoch {
            return Err(Error::invalid(format!(
                "the snapshot {since:?} was deleted, and its name is that of another one: copy everything again"
            )));
        }
        found
    }

    async fn compare(
        &self,
        version: Version,
        before: &SnapshotRecord,
        at: Range<u64>,
    ) -> Result<Vec<Difference>> {
        let shift = self.shift();
        let both = at.end.min(before.size).max(at.start);
        let (mut list, mut from, mut leaves) = (Vec::new(), at.start, 0);
        while from < both {
            let extent = from >> shift;
            let next = self.next_unshared(version, before.root, extent, ((both - 1) >> shift) + 1).await?;
            let end = (next << shift).min(both);
            if end > from {
                Difference::push(&mut list, end - from, false);
                from = end;
                continue;
            }
            self.get(|| before.root, extent).await?;
            self.get(|| self.root_of(version), extent).await?;
            let end = (((extent / FANOUT + 1) * FANOUT) << shift).min(both);
            from = self.compare_leaf(version, before.root, from..end, &mut list)?;
            leaves += 1;
            if leaves % AT_ONCE == 0 {
                self.env.sleep(Duration::ZERO).await;
            }
        }
        Difference::push(&mut list, at.end - both, true);
        Ok(list)
    }

    /// Compares from the start of `at` on, as far as both maps are in memory; returns how far that was.
    fn compare_leaf(
        &self,
        version: Version,
        before: Root,
        at: Range<u64>,
        list: &mut Vec<Difference>,
    ) -> Result<u64> {
        let state = self.state();
        let shift = state.versions.head().shift;
        let mut from = at.start;
        while from < at.end {
            let extent = from >> shift;
            let was = self.physical(&state, Version::Snapshot(before), extent);
            let (Some(was), Some(is)) = (was, self.physical(&state, version, extent)) else { break };
            let end = ((extent + 1) << shift).min(at.end);
            Difference::push(list, end - from, was? != is?);
            from = end;
        }
        Ok(from)
    }

    /// The first extent from `from` on that may lie elsewhere than in the map of a snapshot, or `to`.
    async fn next_unshared(&self, version: Version, before: Root, from: u64, to: u64) -> Result<u64> {
        let to = self.next_waiting(version, from).map_or(to, |new| to.min(new));
        self.unswept(async || self.tree.next_unshared([before, self.root_of(version)], from, to).await).await
    }
}
