//! Does the map make sense? The checks that only this layer can do: whether every version can be read,
//! whether each extent has exactly one owner, and whether the bitmaps agree with the versions.
//!
//! ```text
//!   versions ─▶ pages of the tree ─▶ entries ─▶ owner of each extent ──compare──▶ bitmaps, counts
//!               cannot be read:        impossible, or one extent                  follow from the versions: repaired
//!               bytes are lost         twice: bytes are lost
//! ```
//!
//! Invariant: a repair loses no byte. A bitmap follows from the versions, so it can be rebuilt; while a part
//! of a version is lost, its extents are not known, so nothing at all is freed.
//!
//! Memory: eight bytes for each extent of a window of eight million, as all versions are walked once for each
//! window, and eight for each page of the tree.

mod list;
mod space;
mod walk;

use self::list::List;
use self::space::Sweep;
use self::walk::{Fix, Known, Walk};
use super::core::Core;
use super::format::{HEAD_LEN, Head, SnapshotRecord, record_at};
use super::state::Snapshot;
use lamina_block::{Finding, Result};
use lamina_metadata::Change;
use lamina_metadata::extents::Entry;
use std::rc::Rc;

impl Core {
    /// True if damage was found since the volume was opened that keeps space from being used.
    pub fn is_damaged(&self) -> bool {
        self.sealed.is_some() || self.pages.lost() + self.space.borrow().lost() > 0
    }

    /// See [`lamina_block::Manage::check`]. The device is quiesced.
    pub async fn check(self: &Rc<Self>, repair: bool) -> Result<Vec<Finding>> {
        self.offline()?;
        let untouched = self.is_read_only();
        if !untouched {
            self.stop_reclaim().await;
            self.flush().await?;
            self.all_released().await;
        }
        let guard = self.map_lock.lock().await;
        let found = self.look_at_all(repair && !untouched).await;
        drop(guard);
        if self.head().garbage && !untouched {
            self.start_reclaim();
        }
        found
    }

    async fn look_at_all(self: &Rc<Self>, repair: bool) -> Result<Vec<Finding>> {
        let mut list = List::default();
        if let Some(why) = &self.sealed {
            list.lost(format!(
                "{why}; the volume is read-only, as the extents of the snapshots are unknown: copy it, and \
                 the snapshots that are \
                 left, to another device"
            ));
        }
        self.check_head(&mut list, repair).await?;
        let versions = self.known();
        let mut walk = Walk::new(self, &versions);
        let windows = walk.windows();
        for window in 0..windows {
            walk.window(window, &mut list).await?;
        }
        self.put_right(&walk.take_fixes(), &versions, &mut list, repair).await?;
        let mut sweep = Sweep { core: self, repair, whole: list.is_whole(), list: &mut list, leaked: [0; 2] };
        for window in 0..windows {
            if windows > 1 {
                walk.again(window).await?;
            }
            let space = Rc::clone(&self.space.borrow());
            sweep.compare(&space, walk.extents(), true, |extent| walk.owns(extent)).await?;
        }
        sweep.compare(&self.pages, 0..self.tree.count(), false, |page| walk.has_page(page)).await?;
        sweep.end();
        let (snapshots, pages) = (versions.len() - 1, walk.pages());
        Ok(list.end(format!("the map is good: {snapshots} snapshots, {pages} pages")))
    }

    /// Oldest first, so that shared pages are attributed to the first of the snapshots that share them.
    fn known(&self) -> Vec<Known> {
        let state = self.state();
        let head = state.versions.head();
        let mut known = Vec::new();
        for (i, snapshot) in state.versions.snapshots().iter().enumerate() {
            let SnapshotRecord { name, epoch, size, root, .. } = snapshot.record.clone();
            known.push(Known { name: format!("snapshot {name:?}"), root, epoch, size, snapshot: Some(i) });
        }
        let name = "the volume".to_owned();
        known.push(Known { name, root: head.root, epoch: head.epoch, size: head.size, snapshot: None });
        known
    }

    /// The epoch in the head must be later than that of all snapshots, or their extents would be overwritten.
    async fn check_head(self: &Rc<Self>, list: &mut List, repair: bool) -> Result<()> {
        let mut bytes = [0; HEAD_LEN];
        self.store.load(self.head_id)?.read(0, &mut bytes).await?;
        let (there, head) = (Head::decode(&bytes)?, self.head());
        if there.epoch >= head.epoch {
            return Ok(());
        }
        let wrong = format!("the volume is in epoch {}, and there is a snapshot of it", there.epoch);
        if repair {
            self.stage(self.with_head(Change::new(), head)).await?;
            self.commit().await?;
        }
        list.repairable(repair, wrong, &format!("it is in {} now", head.epoch));
        Ok(())
    }

    /// Corrects entries whose right value is known.
    async fn put_right(
        self: &Rc<Self>,
        fixes: &[Fix],
        versions: &[Known],
        list: &mut List,
        repair: bool,
    ) -> Result<()> {
        for fix in fixes {
            if repair {
                let change = match fix {
                    Fix::Entry { page, slot, to, .. } => self.tree.correct(Change::new(), *page, *slot, *to),
                    Fix::Root { version, to, .. } => self.correct_root(&versions[*version], *to),
                };
                self.stage(change).await?;
                self.commit().await?;
            }
            let (Fix::Entry { message, .. } | Fix::Root { message, .. }) = fix;
            list.repairable(repair, message.clone(), "from now on, it counts as shared");
        }
        Ok(())
    }

    fn correct_root(&self, version: &Known, page: Entry) -> Change {
        self.change(|state| state.versions.correct_root(version.snapshot, page));
        let state = self.state();
        match version.snapshot.map(|at| &state.versions.snapshots()[at]) {
            Some(Snapshot { record, index, .. }) => {
                Change::new().write(self.table_id, record_at(*index), record.encode())
            }
            None => self.with_head(Change::new(), *state.versions.head()),
        }
    }
}
