//! Does the map mean something? What only this layer can tell of its metadata: whether every version can be read, whether
//! each extent is somebody's and only that one's, and whether the bitmaps agree with the versions.
//!
//! ```text
//!   versions ─▶ pages of the tree ─▶ entries ─▶ who owns each extent ──compare──▶ bitmaps, counts
//!               cannot be read:        impossible, or one extent                  follow from the versions: repaired
//!               bytes are lost         twice: bytes are lost
//! ```
//!
//! Invariant: repairing takes no byte from anybody. A bitmap follows from the versions, so it can be made anew; while a
//! part of a version is lost, nobody knows what it referred to, so nothing at all is given back.
//!
//! Memory: eight bytes for each extent of a window of eight million, as all versions are walked once for each window, and
//! eight for each page of the tree.

mod list;
mod space;
mod walk;

use self::list::List;
use self::space::Sweep;
use self::walk::{Fix, Known, Walk};
use super::core::Core;
use super::format::{HEAD_LEN, Head, Kept, kept_at};
use super::state::Snapshot;
use lamina_block::{Finding, Result};
use lamina_metadata::Change;
use lamina_metadata::extents::Entry;
use std::rc::Rc;

impl Core {
    /// True if something was found damaged since the volume was opened that keeps space from being used.
    pub fn is_damaged(&self) -> bool {
        self.sealed.is_some() || self.pages.lost() + self.space.borrow().lost() > 0
    }

    /// See [`lamina_block::Manage::check`]. The device is held.
    pub async fn check(self: &Rc<Self>, repair: bool) -> Result<Vec<Finding>> {
        self.offline()?;
        let untouched = self.is_read_only();
        if !untouched {
            self.stop_reclaim().await;
            self.flush().await?;
            self.all_released().await;
        }
        let held = self.map_lock.lock().await;
        let found = self.look_at_all(repair && !untouched).await;
        drop(held);
        if self.head().garbage && !untouched {
            self.start_reclaim();
        }
        found
    }

    async fn look_at_all(self: &Rc<Self>, repair: bool) -> Result<Vec<Finding>> {
        let mut list = List::default();
        if let Some(why) = &self.sealed {
            list.lost(format!(
                "{why}; the volume is read-only, as nobody knows what is theirs: copy it, and the snapshots that are \
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

    /// Oldest first, so that what several share is looked at as that of the first of them.
    fn known(&self) -> Vec<Known> {
        let state = self.state();
        let head = state.versions.head();
        let mut known = Vec::new();
        for (i, snapshot) in state.versions.snapshots().iter().enumerate() {
            let Kept { name, epoch, size, root } = snapshot.kept.clone();
            known.push(Known { words: format!("snapshot {name:?}"), root, epoch, size, snapshot: Some(i) });
        }
        let words = "the volume".to_owned();
        known.push(Known { words, root: head.root, epoch: head.epoch, size: head.size, snapshot: None });
        known
    }

    /// The epoch in the head is later than that of all snapshots, or what they have would be overwritten.
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

    /// Puts entries right of which it is known what is wrong.
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
            let (Fix::Entry { words, .. } | Fix::Root { words, .. }) = fix;
            list.repairable(repair, words.clone(), "from now on, it counts as shared");
        }
        Ok(())
    }

    fn correct_root(&self, version: &Known, page: Entry) -> Change {
        self.change(|state| state.versions.correct_root(version.snapshot, page));
        let state = self.state();
        match version.snapshot.map(|at| &state.versions.snapshots()[at]) {
            Some(Snapshot { kept, index, .. }) => {
                Change::new().write(self.table_id, kept_at(*index), kept.encode())
            }
            None => self.with_head(Change::new(), *state.versions.head()),
        }
    }
}
