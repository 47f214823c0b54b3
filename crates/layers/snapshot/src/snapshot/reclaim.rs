//! Space that no version refers to any more, after a snapshot was deleted or the volume rolled back.
//!
//! All versions are walked and all extents and pages they refer to are marked, in memory, a window of the
//! extents at a time; those in use and not marked are freed. Meanwhile requests go on: newly allocated
//! extents count as marked, and an extent that a version referred to when the walk began stays marked.
//!
//! The head notes that there may be such space, so that the job begins again after a restart. An extent born
//! before the newest snapshot counts as shared, also if that snapshot, after a roll back, never had it: so
//! the job also begins when space is short, before a write fails.

use super::core::Core;
use super::format::Head;
use lamina_block::{ErrorKind, Job, JobState, Result};
use lamina_metadata::Change;
use lamina_metadata::extents::{Entry, FANOUT, Pxb, Root};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The most extents whose marks are in memory: 8 MiB of them.
const WINDOW: u64 = 64 << 20;
/// The weight of a page of the map in the job's progress, in bytes.
const PAGE: u64 = 4096;
/// Pages walked without a pause.
const AT_ONCE: u64 = 8;
/// The most extents that are freed in one change.
pub(super) const BATCH: usize = 128;

/// Pages of the tree that were walked.
struct Seen(Vec<u64>);

impl Seen {
    /// True if a page is seen for the first time.
    fn first(&mut self, page: u64) -> bool {
        let Some(word) = self.0.get_mut((page / 64) as usize) else { return true };
        let bit = 1 << (page % 64);
        let first = *word & bit == 0;
        *word |= bit;
        first
    }
}

impl Core {
    /// Cancels the job that reclaims space, and waits until it has ended.
    pub async fn stop_reclaim(&self) {
        let job = self.job.borrow().clone();
        if let Some(job) = job {
            job.cancel();
        }
        self.moved.until(|| !self.state().garbage.is_running()).await;
    }

    /// True if the job may free space by itself.
    pub fn is_reclaiming(&self) -> bool {
        self.job.borrow().as_ref().is_some_and(|job| job.state() == JobState::Running)
    }

    /// True if space may come free: begins the job if shared extents were replaced since its last pass.
    pub fn may_reclaim(self: &Rc<Self>) -> bool {
        let is_worthwhile = self.state().garbage.is_worthwhile();
        if is_worthwhile {
            self.start_reclaim();
        }
        self.is_reclaiming()
    }

    /// Begins the job, or one more pass if it runs already.
    pub fn start_reclaim(self: &Rc<Self>) {
        if !self.change(|state| state.garbage.ask(state.closed)) {
            return;
        }
        let job = Job::new(&self.env, "reclaim", 0, None);
        *self.job.borrow_mut() = Some(Rc::clone(&job));
        let me = Rc::clone(self);
        self.env.spawn(Box::pin(async move {
            match me.reclaim_all(&job).await {
                Err(e) if e.kind() != ErrorKind::Cancelled => {
                    tracing::warn!(device = %me.name, "space could not be reclaimed, and will be later: {e}");
                }
                Ok(()) | Err(_) => {}
            }
            me.space.borrow().end_marking();
            me.pages.end_marking();
            *me.job.borrow_mut() = None;
            me.change(|state| state.garbage.end());
            me.moved.notify();
        }));
    }

    async fn reclaim_all(self: &Rc<Self>, job: &Job) -> Result<()> {
        while self.change(|state| state.garbage.begin_pass()) {
            let used = self.pages.physical() - self.pages.free_extents();
            let windows = self.head().physical.div_ceil(WINDOW).max(1);
            job.set_progress(0, used * windows * PAGE);
            for window in 0..windows {
                self.mark(job, window * WINDOW).await?;
                self.sweep(job, window).await?;
            }
        }
        let guard = self.map_lock.lock().await;
        let is_done = self.state().garbage.is_done();
        if is_done {
            self.stage_head(Change::new(), Head { garbage: false, ..self.head() }).await?;
            self.commit().await?;
        }
        drop(guard);
        Ok(())
    }

    /// Marks the extents in the window that versions refer to.
    async fn mark(self: &Rc<Self>, job: &Job, from: u64) -> Result<()> {
        // Entries that are replaced by now must not come back after a crash.
        self.flush().await?;
        // Not while the bitmaps have extents that the map does not refer to yet.
        let guard = self.map_lock.lock().await;
        let space = Rc::clone(&self.space.borrow());
        space.begin_marking(from..from.saturating_add(WINDOW));
        self.pages.begin_marking(0..self.tree.count());
        self.state().frees.ahead().for_each(|extent| space.mark(extent..extent + 1));
        let head = self.head();
        let mut roots = vec![head.root];
        roots.extend(self.state().versions.snapshots().iter().map(|snapshot| snapshot.record.root));
        let mut walk = Walk {
            adopted: head.adopted,
            space: &space,
            seen: Seen(vec![0; self.tree.count().div_ceil(64) as usize]),
            stack: Vec::new(),
        };
        drop(guard);
        let mut walked = 0;
        for root in roots {
            walk.begin(root);
            while let Some((page, level, first)) = walk.stack.pop() {
                self.pages.mark(page..page + 1);
                walk.entries(&self.tree.page(page).await?, level, first);
                job.step(PAGE).await?;
                walked += 1;
                if walked % AT_ONCE == 0 {
                    self.env.sleep(Duration::ZERO).await;
                }
            }
        }
        Ok(())
    }

    /// Frees the extents in use that were not marked.
    async fn sweep(self: &Rc<Self>, job: &Job, window: u64) -> Result<()> {
        let space = Rc::clone(&self.space.borrow());
        let (mut from, end) = (window * WINDOW, ((window + 1) * WINDOW).min(space.physical()));
        while from < end {
            from = self.sweep_some(job, &space, from, true).await?;
        }
        let mut from = 0;
        while from < self.tree.count() {
            from = self.sweep_some(job, &self.pages, from, false).await?;
        }
        Ok(())
    }

    /// The same for the extents whose bits lie in one page; returns where the next page begins.
    async fn sweep_some(self: &Rc<Self>, job: &Job, of: &Pxb, from: u64, extents: bool) -> Result<u64> {
        let (garbage, next) = of.unmarked(from).await?;
        for batch in garbage.chunks(BATCH) {
            job.turn(PAGE).await?;
            let guard = self.map_lock.lock().await;
            self.give_back(of, batch, extents).await?;
            drop(guard);
            self.env.sleep(Duration::ZERO).await;
        }
        Ok(next)
    }
}

impl Core {
    /// Frees pages of the tree, or physical extents, that no version refers to. The caller holds the lock of
    /// the map.
    pub async fn give_back(self: &Rc<Self>, of: &Pxb, batch: &[u64], extents: bool) -> Result<()> {
        let mut change = Change::new();
        let mut freed = Vec::new();
        for extent in batch {
            match of.free(change.clone(), *extent).await {
                Ok(more) => change = more,
                Err(e) => {
                    of.keep(&freed);
                    return Err(e);
                }
            }
            freed.push(*extent);
        }
        if let Err(e) = self.stage(change).await {
            of.keep(&freed);
            return Err(e);
        }
        if extents {
            self.change(|state| state.frees.cleared(freed));
            return self.commit().await;
        }
        self.commit().await?;
        self.change(|state| state.garbage.swept());
        of.release(&freed);
        Ok(())
    }
}

/// A walk through all versions.
struct Walk<'a> {
    adopted: u64,
    space: &'a Pxb,
    seen: Seen,
    /// Pages to be walked, their level, the first extent in them.
    stack: Vec<(u64, u8, u64)>,
}

impl Walk<'_> {
    fn begin(&mut self, root: Root) {
        // Adopted extents without an entry are where they were when the device was adopted.
        self.mark_adopted(root.capacity()..self.adopted);
        self.entry(root.page, root.levels, 0, root.capacity());
    }

    fn mark_adopted(&self, extents: Range<u64>) {
        self.space.mark(extents.start..extents.end.min(self.adopted));
    }

    /// An entry, the levels below it, and the extents it covers.
    fn entry(&mut self, entry: Entry, below: u8, first: u64, span: u64) {
        match entry {
            Entry::Absent => self.mark_adopted(first..first.saturating_add(span)),
            Entry::Hole => {}
            Entry::At { place, .. } if below == 0 => self.space.mark(place..place + 1),
            Entry::At { place, .. } => {
                if self.seen.first(place) {
                    self.stack.push((place, below - 1, first));
                }
            }
        }
    }

    fn entries(&mut self, entries: &[Entry], level: u8, first: u64) {
        let span = FANOUT.pow(level.into());
        for (i, entry) in (0..).zip(entries) {
            self.entry(*entry, level, first.saturating_add(i * span), span);
        }
    }
}
