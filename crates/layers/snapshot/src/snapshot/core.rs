//! The parts that the volume and its views share: the map, the space, and the locations of extents.
//!
//! Invariant: the map never says more than what is durable on the child, and an extent that a durable map
//! refers to has no other owner.

use super::format::{Head, space_pages};
use super::grace::Grace;
use super::state::{Age, Bounds, Location, State};
use lamina_block::{Env, Error, ErrorKind, Job, Level, Node, Result, Signal};
use lamina_kit::mutex::Mutex;
use lamina_kit::range_locks::RangeLocks;
use lamina_metadata::extents::{Found, Policy, Pxb, Root, Tree};
use lamina_metadata::{Id, Store};
use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Waiting entries are put into the map after this time, even without a flush.
const INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Core {
    /// Itself, for tasks.
    pub me: Weak<Core>,
    pub name: String,
    pub env: Rc<dyn Env>,
    pub child: Rc<Node>,
    pub grace: Rc<Grace>,
    pub store: Store,
    pub tree: Tree,
    /// Pages of the tree that are in use.
    pub pages: Pxb,
    /// Extents of the child that are in use.
    pub space: RefCell<Rc<Pxb>>,
    pub policy: Policy,
    pub head_id: Id,
    pub table_id: Id,
    /// The state that decides; all of it changes in [`Core::change`].
    pub(super) state: RefCell<State>,
    /// Extents that are being moved or unmapped.
    pub locks: Rc<RangeLocks>,
    /// The map, the head and the table are being changed.
    pub map_lock: Mutex,
    /// A round has ended, a reservation, or extents have become free.
    pub moved: Signal,
    /// The job that looks for garbage, while [`State::garbage`] says that it runs.
    pub job: RefCell<Option<Rc<Job>>>,
    /// The percentage of free space that was told last, when there was hardly any left.
    pub told: Cell<Option<u64>>,
    /// Why snapshots cannot be found. Their extents are not known, so nothing is changed.
    pub sealed: Option<String>,
}

impl Core {
    /// The state. Not borrowed across a wait.
    #[inline]
    pub fn state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    /// A transition of the state, after which its invariants hold.
    #[inline]
    pub fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.borrow_mut();
        let answer = change(&mut state);
        state.debug_check();
        answer
    }

    pub fn head(&self) -> Head {
        *self.state().versions.head()
    }

    pub fn atomic(&self) -> bool {
        self.store.level() == Level::Atomic
    }

    #[inline]
    pub fn shift(&self) -> u32 {
        self.state().versions.head().shift.into()
    }

    pub fn extent(&self) -> u64 {
        self.state().versions.head().extent()
    }

    /// Where on the child a physical extent begins.
    pub fn address(&self, extent: u64) -> u64 {
        self.state().versions.address(extent)
    }

    /// The location of an extent of the volume, if that is known without waiting.
    #[inline]
    pub fn look(&self, state: &State, extent: u64) -> Option<Result<Location>> {
        if let Some(location) = state.waiting(extent) {
            return Some(Ok(location));
        }
        let versions = &state.versions;
        let found = self.tree.peek(versions.head().root, extent)?;
        Some(found.map(|found| Location { at: versions.resolve(extent, found.entry), age: Age::Mapped }))
    }

    /// The entry of an extent in a version; afterwards, until the caller waits, [`Core::look`] has an answer.
    pub async fn get(&self, root: impl Fn() -> Root, extent: u64) -> Result<Found> {
        loop {
            let sweeps = self.state().garbage.sweeps();
            match self.tree.get(root(), extent).await {
                // The walk went through pages that were freed and reused meanwhile.
                Err(e) if e.kind() == ErrorKind::Corrupt && sweeps != self.state().garbage.sweeps() => {}
                found => return found,
            }
        }
    }

    /// As [`Core::get`], of the volume.
    pub async fn load(&self, extent: u64) -> Result<Found> {
        self.get(|| self.head().root, extent).await
    }

    /// The locations of a few extents of one leaf. They are right until the caller waits.
    pub async fn locations(&self, extents: std::ops::RangeInclusive<u64>) -> Result<Vec<Location>> {
        loop {
            self.load(*extents.start()).await?;
            let locations: Option<Vec<_>> = {
                let state = self.state();
                extents.clone().map(|extent| self.look(&state, extent)).collect()
            };
            if let Some(locations) = locations {
                return locations.into_iter().collect();
            }
            self.load(*extents.end()).await?;
        }
    }

    /// The bounds of a reservation now.
    pub fn bounds(&self) -> Bounds {
        let together = self.atomic().then(|| (self.store.change_max(), self.store.pages_max()));
        let bitmap = space_pages(self.head().physical) as usize;
        Bounds { pages: self.pages.free_extents(), together, bitmap }
    }

    /// True if the locations of these bytes survive the end of this process. A client that lives on after its
    /// write was acknowledged relies on that. At `atomic` the volume goes back to its last flush all the
    /// same.
    #[inline]
    pub fn lasts(&self, state: &State, at: &Range<u64>) -> bool {
        self.atomic() || state.is_committed() || {
            let shift = state.versions.head().shift;
            let first = state.overlay.next(at.start >> shift);
            !state.rounds.is_uncommitted() && first.is_none_or(|extent| extent << shift >= at.end)
        }
    }

    /// Entries wait for the map: they are put there after a while, even without a flush.
    pub fn set_timer(&self) {
        if !self.change(|state| state.rounds.set_timer()) {
            return;
        }
        let (me, sleep) = (self.me.clone(), self.env.sleep(INTERVAL));
        self.env.spawn(Box::pin(async move {
            sleep.await;
            let Some(core) = me.upgrade() else { return };
            core.change(|state| state.rounds.timer_ended());
            let nothing_waits = {
                let state = core.state();
                state.closed || state.is_committed()
            };
            if nothing_waits {
                return;
            }
            if let Err(e) = core.flush().await {
                tracing::warn!(device = %core.name, "the map could not be written, and will be later: {e}");
                core.set_timer();
            }
        }));
    }

    /// Frees physical extents that are not referred to any more, once no request can be on its way to them.
    pub fn let_go(&self) {
        if !self.change(|state| state.frees.ask_release()) {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        self.env.spawn(Box::pin(async move {
            while me.change(|state| state.frees.next_batch()) {
                me.grace.pass().await;
                let batch = me.change(|state| state.frees.released());
                me.space.borrow().release(&batch);
                me.moved.notify();
            }
            me.moved.notify();
        }));
    }

    /// Waits until no extent is in its grace period.
    pub async fn all_released(&self) {
        self.moved.until(|| !self.state().frees.is_releasing()).await;
    }

    /// The extents of the volume.
    pub fn extents_of(&self, size: u64) -> u64 {
        size.div_ceil(self.extent())
    }

    /// True if nothing may change on disk.
    pub fn is_read_only(&self) -> bool {
        self.child.geometry().read_only || self.sealed.is_some()
    }

    pub fn offline(&self) -> Result<()> {
        match self.state().closed {
            true => Err(Error::offline("the volume is closed")),
            false => Ok(()),
        }
    }
}
