//! What the volume and its views share: the map, the space, and where an extent lies now.
//!
//! Invariant: the map never says more than what is durable on the child, and an extent that a durable map refers to is
//! given to nobody else.

use super::format::{Head, Kept};
use super::grace::Grace;
use super::overlay::{Age, Bounds, Overlay};
use lamina_block::{Env, Error, ErrorKind, Job, Level, Node, Result, Signal};
use lamina_kit::mutex::Mutex;
use lamina_kit::range_locks::RangeLocks;
use lamina_metadata::extents::{Entry, Found, Policy, Pxb, Root, Tree};
use lamina_metadata::{Change, Id, Store};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// What waits for the map gets there after this time, even if nobody flushes.
const INTERVAL: Duration = Duration::from_secs(5);

/// A snapshot.
pub(super) struct Snapshot {
    pub kept: Kept,
    /// Its entry in the table.
    pub index: usize,
    /// Views hold a clone.
    pub viewers: Rc<()>,
    /// It is being forgotten: nobody may begin to view it.
    pub leaves: Cell<bool>,
}

impl Snapshot {
    pub fn new(kept: Kept, index: usize) -> Snapshot {
        Snapshot { kept, index, viewers: Rc::new(()), leaves: Cell::new(false) }
    }

    pub fn is_viewed(&self) -> bool {
        Rc::strong_count(&self.viewers) > 1
    }
}

/// The answer that somebody waits for.
pub(super) type Answer = Rc<RefCell<Option<Result<()>>>>;

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
    pub head: Cell<Head>,
    /// Oldest first.
    pub snapshots: RefCell<Vec<Snapshot>>,
    /// What was born before this epoch may belong to a snapshot.
    pub shared: Cell<u32>,
    pub overlay: RefCell<Overlay>,
    /// Extents that are being moved or unmapped.
    pub locks: Rc<RangeLocks>,
    /// The store has been told something that it was not seen to commit.
    pub behind: Cell<bool>,
    /// The map, the head and the table are being changed.
    pub turn: Mutex,
    /// Who waits for the next commit, and whether a task makes commits.
    pub waiting: RefCell<Vec<Answer>>,
    pub working: Cell<bool>,
    /// A commit has ended, a reservation, or extents have become free.
    pub moved: Signal,
    /// Extents whose bits were cleared, not yet durably; and what is to be changed after the commit (at `lazy`).
    pub freed: RefCell<Vec<u64>>,
    pub afterwards: RefCell<Vec<(Change, Vec<u64>)>>,
    /// At `lazy`: new extents that the bitmap knows already, and the map does not.
    pub taken: RefCell<BTreeSet<u64>>,
    /// Extents that nobody refers to, but requests may be on their way to.
    pub limbo: RefCell<Vec<u64>>,
    pub releasing: Cell<bool>,
    pub timer: Cell<bool>,
    pub closed: Cell<bool>,
    pub reclaim: RefCell<Option<Rc<Job>>>,
    /// Something has become garbage since the job began.
    pub again: Cell<bool>,
    /// What may have been shared was replaced since the job began last: some of it may have been nobody else's.
    pub stale: Cell<bool>,
    /// Pages of the tree were given back so many times.
    pub swept: Cell<u64>,
    /// Snapshots cannot be found. What belongs to them is not known, so nothing is changed; why.
    pub sealed: Option<String>,
}

/// Where an extent lies now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `None`: nowhere, it reads as zeroes.
    pub at: Option<Spot>,
    pub age: Age,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub extent: u64,
    pub born: u32,
}

impl Core {
    pub fn atomic(&self) -> bool {
        self.store.level() == Level::Atomic
    }

    pub fn shift(&self) -> u32 {
        self.head.get().shift.into()
    }

    pub fn extent(&self) -> u64 {
        self.head.get().extent()
    }

    /// Where on the child a physical extent begins.
    #[inline]
    pub fn address(&self, extent: u64) -> u64 {
        let head = self.head.get();
        head.data + (extent << head.shift)
    }

    /// What an entry of a map means.
    #[inline]
    pub fn meaning(&self, extent: u64, entry: Entry) -> Option<Spot> {
        match entry {
            Entry::At { place, born } => Some(Spot { extent: place, born }),
            Entry::Hole => None,
            Entry::Absent => (extent < self.head.get().adopted).then_some(Spot { extent, born: 0 }),
        }
    }

    /// How nothing is written into the map.
    pub fn nothing(&self, extent: u64) -> Entry {
        if extent < self.head.get().adopted { Entry::Hole } else { Entry::Absent }
    }

    /// Where an extent of the volume lies, if that is known without waiting.
    #[inline]
    pub fn look(&self, extent: u64) -> Option<Result<Place>> {
        if let Some((entry, age)) = self.overlay.borrow().get(extent) {
            return Some(Ok(Place { at: self.meaning(extent, entry), age }));
        }
        let found = self.tree.peek(self.head.get().root, extent)?;
        Some(found.map(|found| Place { at: self.meaning(extent, found.entry), age: Age::Mapped }))
    }

    /// True if a write may go to where the extent lies.
    #[inline]
    pub fn in_place(&self, extent: u64, place: Place) -> Option<u64> {
        let spot = place.at?;
        let own = spot.born >= self.shared.get() && (place.age == Age::New || !self.atomic());
        (own && !self.locks.is_locked(&(extent..extent + 1))).then_some(spot.extent)
    }

    /// What a version says about an extent; afterwards, until the caller waits, [`Core::look`] has an answer.
    pub async fn get(&self, root: impl Fn() -> Root, extent: u64) -> Result<Found> {
        loop {
            let swept = self.swept.get();
            match self.tree.get(root(), extent).await {
                // It was on its way through pages that were given to somebody else meanwhile.
                Err(e) if e.kind() == ErrorKind::Corrupt && swept != self.swept.get() => {}
                found => return found,
            }
        }
    }

    /// As [`Core::get`], of the volume.
    pub async fn load(&self, extent: u64) -> Result<Found> {
        self.get(|| self.head.get().root, extent).await
    }

    /// Where each of a few extents of one leaf lies now. What is said is true until the caller waits.
    pub async fn places(&self, extents: std::ops::RangeInclusive<u64>) -> Result<Vec<Place>> {
        loop {
            self.load(*extents.start()).await?;
            let places: Option<Vec<_>> = extents.clone().map(|extent| self.look(extent)).collect();
            if let Some(places) = places {
                return places.into_iter().collect();
            }
            self.load(*extents.end()).await?;
        }
    }

    /// What the room for changes is measured with now.
    pub fn bounds(&self) -> Bounds {
        let together = self.atomic().then(|| (self.store.change_max(), self.store.pages_max()));
        let physical = self.head.get().physical;
        let bitmap = super::format::space_pages(physical) as usize;
        Bounds { pages: self.pages.free_extents(), together, bitmap }
    }

    /// Nothing was written that the map does not know durably.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.overlay.borrow().is_empty() && !self.behind.get()
    }

    /// True if the end of this process would take away nothing of where these bytes lie. Who had an answer to a write,
    /// and lives on, relies on it. At `atomic` the volume goes back to its last flush all the same.
    #[inline]
    pub fn lasts(&self, at: &Range<u64>) -> bool {
        self.atomic() || self.is_settled() || {
            let first = self.overlay.borrow().next(at.start >> self.shift());
            !self.behind.get() && first.is_none_or(|extent| extent << self.shift() >= at.end)
        }
    }

    /// Something waits for the map: it will get there, even if nobody flushes.
    pub fn set_timer(&self) {
        if self.timer.replace(true) {
            return;
        }
        let (me, sleep) = (self.me.clone(), self.env.sleep(INTERVAL));
        self.env.spawn(Box::pin(async move {
            sleep.await;
            let Some(core) = me.upgrade() else { return };
            core.timer.set(false);
            if core.closed.get() || core.is_settled() {
                return;
            }
            if let Err(e) = core.flush().await {
                tracing::warn!(device = %core.name, "the map could not be written, and will be later: {e}");
                core.set_timer();
            }
        }));
    }

    /// Gives extents to others that nobody refers to, once no request can be on its way to them.
    pub fn let_go(&self) {
        if self.limbo.borrow().is_empty() || self.releasing.replace(true) {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        self.env.spawn(Box::pin(async move {
            while !me.limbo.borrow().is_empty() {
                let batch = me.limbo.take();
                me.grace.pass().await;
                me.space.borrow().release(&batch);
                me.moved.notify();
            }
            me.releasing.set(false);
            me.moved.notify();
        }));
    }

    /// The extents of the volume.
    pub fn extents_of(&self, size: u64) -> u64 {
        size.div_ceil(self.extent())
    }

    /// The epoch before which everything may belong to a snapshot.
    pub fn shared_by_snapshots(&self) -> u32 {
        self.snapshots.borrow().iter().map(|snapshot| snapshot.kept.epoch + 1).max().unwrap_or(0)
    }

    /// Nothing may change on disk.
    pub fn is_read_only(&self) -> bool {
        self.child.geometry().read_only || self.sealed.is_some()
    }

    pub fn offline(&self) -> Result<()> {
        match self.closed.get() {
            true => Err(Error::offline("the volume is closed")),
            false => Ok(()),
        }
    }
}
