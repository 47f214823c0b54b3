//! Legs: what `mirror` and `parity` share. The state of each device below: whether it has every byte, which
//! of its bytes are stale, and how they are copied.
//!
//! ```text
//!              write fails, or is gone                 answers again, or `rejoin`
//!   in sync ───────────────────────────▶ stale/failed ──────────────────────────▶ stale, takes writes
//!      ▲                                 (noted: finely in memory, coarsely in        │ its stale bytes are
//!      │                                  the intent)          spare ──────────────────┤ copied: `rebuild`
//!      └───────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The requests that a leg gets, and what its errors do (its own changes are in `roles.rs`):
//!
//! ```text
//!              read              write, zero        flush   an error of these            once a second
//!  in sync     yes               yes                yes     away or failed; of the last  -
//!                                                           leg: the device's error
//!  rebuilding  where not stale   yes                yes     away or failed               gets stale bytes
//!  away        -                 noted as stale     -       -                            asked if it answers
//!  failed      -                 noted as stale     -       -                            -
//!  spare       -                 -                  -       -                            takes a free place
//! ```
//!
//! All decisions are made by plain state, which waits for nothing: `state.rs` has what legs are (`roles.rs`)
//! and where they may differ (`regions.rs`), a rebuild and the ticks of the background (`background.rs`), and
//! findings and the position of a scrub (`findings.rs`). [`Legs`] keeps the state in one cell, asks it
//! (`ask`) and changes it (`change`) in closures, so that no borrow of it outlives a decision; wherever tests
//! run the state is checked after each change. Requests, tasks, waiting and the state record are here and in
//! the files beside.
//!
//! Invariants:
//! * **A write that a leg missed is acknowledged when it is durable that the leg is stale** ([`Legs::ended`],
//!   [`Legs::record`]). So after a crash no stale leg is taken for a good one.
//! * **The stale bytes of a leg are known**: all writes since the last flush before the leg went away, since
//!   it may have lost them, and all writes from then on. The intent keeps their regions on disk.
//! * **One request at a time changes a byte** ([`RangeLocks`]), so that legs cannot end up different.
//! * **The last leg that has a byte is never put out**: its errors are the device's.
//! * **The recorded size is that of the intent which counts** (`grow`): before a larger size is recorded, its
//!   intent is durable at the new ends, and the intent of the old size is still there.
//!
//! Addresses here are those of the legs, the same on each. The layer knows what the bytes of a leg mean
//! ([`Content`]); the layer reads where [`Legs::is_good`] allows it, and writes as [`Legs::begin`] and
//! [`Legs::ended`] say.

mod away;
mod background;
mod build;
mod findings;
mod grow;
mod heal;
mod parts;
mod rebuild;
mod regions;
mod roles;
mod scrub;
mod state;
mod state_record;
mod tick;
mod verbs;

pub use build::{Needs, enough, not_all_spares};
pub use findings::Found;
pub use heal::{cut, is_corrupt};
pub use parts::{Part, Parts};
pub use roles::{LegState, Role, is_away};
pub use verbs::{FIGURES, VERBS, needs_quiesce, refusal};

use lamina_block::{Buf, Env, Error, Io, Job, Keep, Node, Pending, Result, Signal, Time};
use lamina_kit::intent::{Area, Intent, IntentStore};
use lamina_kit::range_locks::RangeLocks;
use lamina_kit::single_flight::SingleFlight;
use lamina_kit::tasks::Tasks;
use roles::Wanted;
use serde_json::Value;
use state::State;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

/// The knowledge of a layer about the bytes of its legs. The range is locked by the caller.
pub trait Content {
    /// Makes all legs in sync agree about `at`, where a crash may have left them different.
    fn agree(self: Rc<Self>, at: Range<u64>) -> Pending;

    /// The right bytes of leg `leg` at `at`, from the others, without those in `not`.
    fn right(self: Rc<Self>, at: Range<u64>, leg: usize, not: Vec<usize>) -> Pending<Buf>;

    /// Compares the bytes of all legs in sync at `at`, and repairs what can be repaired. `trust`: the leg
    /// that is right where nothing else says.
    fn compare(self: Rc<Self>, at: Range<u64>, trust: Option<usize>) -> Pending;

    /// Called before the state is recorded: makes true on the legs what has to be true first. It must not
    /// wait for anything that waits for [`Legs::record`].
    fn before_record(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }
}

/// The legs of a device.
pub struct Legs {
    me: Weak<Legs>,
    name: String,
    kind: &'static str,
    pub env: Rc<dyn Env>,
    keep: Rc<dyn Keep>,
    /// The devices, leg by leg.
    pub nodes: Vec<Rc<Node>>,
    /// The state that decides.
    state: RefCell<State>,
    /// Bytes of each leg that belong together.
    unit: u64,
    /// Bytes after the intent that are the layer's own, and what the layer keeps.
    tail: u64,
    pub own: RefCell<Value>,
    content: RefCell<Weak<dyn Content>>,
    pub intent: Intent,
    pub locks: Rc<RangeLocks>,
    /// The longest logical block.
    block: u32,
    /// Nothing below may be changed.
    read_only: bool,
    /// Recording of the state.
    recording: SingleFlight,
    /// Notified when the state changes.
    pub moved: Signal,
    /// The time of the last request.
    last: Cell<Time>,
    /// The background tasks.
    pub tasks: Rc<Tasks>,
    rebuild: RefCell<Option<Rc<Job>>>,
    scrub: RefCell<Option<Rc<Job>>>,
}

// Requests.
impl Legs {
    /// Asks the state. No borrow of the state outlives the call.
    #[inline]
    fn ask<T>(&self, question: impl FnOnce(&State) -> T) -> T {
        question(&self.state.borrow())
    }

    /// Changes the state, and checks it wherever tests run.
    #[inline]
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let result = change(&mut state);
        debug_assert_eq!(state.check(), Ok(()), "{}: the state of its legs", self.name);
        result
    }

    /// The settings of all legs together.
    fn wanted(&self) -> Wanted {
        self.ask(|state| state.roles().wanted)
    }

    /// The numbers of all legs that `are`. Each leg is tested only when the iterator reaches it.
    #[inline]
    fn those(&self, are: impl Fn(&LegState) -> bool) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |leg| self.ask(|state| are(state.roles().leg(*leg))))
    }

    /// The legs that take writes.
    pub fn targets(&self) -> impl Iterator<Item = usize> {
        self.those(LegState::takes_writes)
    }

    /// The legs that have everything.
    pub fn in_sync(&self) -> impl Iterator<Item = usize> {
        self.those(|leg| leg.role == Role::Sync)
    }

    /// The role of leg `leg`.
    #[inline]
    pub fn role(&self, leg: usize) -> Role {
        self.ask(|state| state.roles().leg(leg).role)
    }

    /// The column of leg `leg`, where each leg has one.
    #[inline]
    pub fn column(&self, leg: usize) -> Option<usize> {
        self.ask(|state| state.roles().leg(leg).column)
    }

    /// True if changes are submitted to leg `leg`.
    #[inline]
    pub fn takes_writes(&self, leg: usize) -> bool {
        self.ask(|state| state.roles().leg(leg).takes_writes())
    }

    /// Bytes of each leg that are used; the intent lies after them.
    #[inline]
    pub fn size(&self) -> u64 {
        self.ask(|state| state.roles().size())
    }

    /// True if leg `leg` has the right bytes at `at`.
    #[inline]
    pub fn is_good(&self, leg: usize, at: &Range<u64>) -> bool {
        self.ask(|state| state.roles().leg(leg).is_good(at))
    }

    /// True if legs in sync may differ at `at`.
    #[inline]
    pub fn needs_resync(&self, at: &Range<u64>) -> bool {
        self.ask(|state| state.needs_resync(at))
    }

    /// Leg `leg` misses a change of `at`: those bytes are stale.
    pub fn mark_stale(&self, leg: usize, at: &Range<u64>) {
        self.change(|state| state.mark_stale(leg, at));
    }

    /// Bytes at `at` that other legs have are about to be written to a leg.
    fn writes(&self, at: &Range<u64>) {
        self.change(|state| state.write(at));
    }

    /// Notes a request: background work gives way.
    #[inline]
    pub fn asked(&self) {
        self.last.set(self.env.now());
    }

    /// Marks `at`, which is locked, in the intent on disk, so that it may be written. True until the next
    /// await of the caller.
    pub async fn mark(&self, at: &Range<u64>) -> Result<()> {
        let next = self.intent.ahead(at);
        if !self.intent.covers(at) {
            // The page that is written now has the next range as well.
            self.intent.mark(at, self).await?;
        } else if let Some(next) = next {
            self.prepare(next);
        }
        self.wake();
        Ok(())
    }

    /// Marks the range that a stream of writes will reach next, so that the stream does not wait there.
    fn prepare(&self, next: Range<u64>) {
        let Some(me) = self.me.upgrade().filter(|_| !self.is_closing()) else { return };
        self.tasks.spawn(&*self.env, async move {
            // If this fails, the write to that range will see why.
            let _ = me.intent.mark(&next, &*me).await;
        });
        self.wake();
    }

    /// A change of `at` is submitted to all [`Legs::targets`] at once: the other legs miss it.
    #[inline]
    pub fn begin(&self, at: &Range<u64>) {
        self.begin_on(at, |_| true);
    }

    /// As [`Legs::begin`], for a change of only those legs that `is_of` names.
    #[inline]
    pub fn begin_on(&self, at: &Range<u64>, is_of: impl Fn(&LegState) -> bool) {
        self.asked();
        if let Some(next) = self.intent.ahead(at) {
            self.prepare(next);
        }
        self.change(|state| state.begin(at, is_of));
    }

    /// The result of a change of `at`, from its result on each leg.
    pub async fn ended(&self, at: &Range<u64>, parts: Vec<Part>) -> Result<()> {
        let failed = || parts.iter().filter_map(|part| Some((part.leg, part.result.as_ref().err()?)));
        let all = failed().count() == parts.len();
        let nothing = all && failed().all(|(_, e)| state::did_nothing(e));
        // A block that no leg can complete says nothing about the rest of a leg. Where legs are the same and
        // another leg has taken the write, this leg is stale there. Memory that cannot be read says nothing
        // about a leg at all.
        let is_out = |e: &Error| {
            !nothing && !e.is_of_memory() && !(is_corrupt(e) && (self.wanted().columns > 0 || all))
        };
        failed().filter(|(_, e)| is_out(e)).for_each(|(leg, e)| self.put_out(leg, e));
        let is_error = |leg: usize, e: &Error| e.is_of_memory() || self.role(leg) == Role::Sync;
        let result = match failed().find(|(leg, e)| is_error(*leg, e)) {
            Some((_, e)) => Err(e.clone()),
            None => self.record().await,
        };
        // Where each leg has other bytes, a resync would lose the bytes of an absent leg.
        if result.is_err() && !(nothing && self.wanted().columns > 0) {
            self.change(|state| state.unknown(at));
            self.wake();
        }
        result
    }

    /// Makes all earlier writes durable.
    pub async fn flush(&self) -> Result<()> {
        let is_only = self.change(|state| state.begin_flush(&self.locks.in_use()));
        let flush = |leg: usize| (leg, self.nodes[leg].submit(Io::flush()));
        let parts = Parts::new(self.targets().map(flush)).all().await;
        let failed = || parts.iter().filter_map(|part| Some((part.leg, part.result.as_ref().err()?)));
        failed().for_each(|(leg, e)| self.put_out(leg, e));
        let bad = failed().find(|(leg, _)| self.takes_writes(*leg)).map(|(_, e)| e.clone());
        if is_only {
            self.change(|state| state.end_flush(bad.is_some()));
        }
        match bad {
            Some(e) => Err(e),
            None => self.record().await,
        }
    }
}

// State.
impl Legs {
    /// True if the state is durable.
    #[inline]
    pub fn is_recorded(&self) -> bool {
        self.recording.is_saved()
    }

    /// Makes the state durable, if it is not.
    pub async fn record(&self) -> Result<()> {
        let save = async || {
            if let Some(content) = self.content() {
                content.before_record().await?;
            }
            self.keep.set(self.state_record()).await
        };
        self.recording.save(save).await.map_err(|e| e.on(&self.name))
    }

    /// The state has changed.
    pub fn changed(&self) {
        self.recording.change();
        self.moved.notify();
        self.wake();
    }

    /// True if no leg has stale bytes in `region` that only the intent knows of.
    fn is_clean(&self, region: &Range<u64>) -> bool {
        !self.locks.is_in_use(region) && self.ask(|state| state.is_clean(region))
    }

    /// How many columns have a leg in sync other than `but`. Where legs are all the same, each is a column.
    pub fn covered(&self, but: Option<usize>) -> usize {
        self.ask(|state| state.roles().covered(but))
    }

    /// True if a column has no leg in sync.
    pub fn is_degraded(&self) -> bool {
        self.ask(|state| state.roles().is_degraded())
    }

    /// True if bytes are lost without leg `leg`.
    fn is_last(&self, leg: usize) -> bool {
        self.ask(|state| state.roles().is_last(leg))
    }

    /// Where the layer's own bytes begin on each leg.
    pub fn tail(&self) -> u64 {
        self.intent_start(self.size()) + self.intent.area()
    }

    /// Marks that legs may differ at `at`.
    pub fn mark_for_resync(&self, at: &Range<u64>) {
        self.change(|state| state.diverge(at));
    }

    /// Legs agree in those units that lie wholly in `at`. [`Legs::record`] makes that durable.
    pub fn resynced(&self, at: &Range<u64>) {
        if self.change(|state| state.of_regions(|regions| regions.agree_within(at))) {
            self.changed();
        }
    }

    /// Where legs may differ, in whole units.
    pub fn resync_runs(&self) -> Vec<Range<u64>> {
        self.ask(|state| state.regions().needs_resync().runs().collect())
    }

    /// Bytes of a resync unit.
    pub fn resync_unit(&self) -> u64 {
        self.ask(|state| state.regions().unit())
    }

    /// Lets a stopped rebuild try again.
    pub fn unstick(&self) {
        if self.change(|state| state.rebuild.resume()) {
            self.rebuild.borrow().iter().for_each(|job| job.resume());
        }
    }

    /// The longest logical block of the legs, in bytes.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// True if nothing below may be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Notes damage on a leg.
    pub fn note(&self, leg: usize, at: &Range<u64>, what: &str) {
        let name = self.nodes[leg].name();
        tracing::warn!(device = %self.name, leg = %name, start = at.start, end = at.end, "{what}");
        self.change(|state| state.findings.note(name, at, what));
    }

    /// Where the intent of leg `leg` lies, if there is room for one.
    fn area(&self, leg: usize) -> Option<Area> {
        let start = self.ask(|state| state.roles().leg(leg).area)?;
        Some(Area(Rc::clone(&self.nodes[leg]), start))
    }

    /// Counts damage on a leg.
    pub fn found(&self, found: Found) {
        self.change(|state| state.findings.count(found));
    }

    /// True if no background work begins any more.
    fn is_closing(&self) -> bool {
        self.ask(|state| state.ticks.are_over())
    }

    fn content(&self) -> Option<Rc<dyn Content>> {
        self.content.borrow().upgrade()
    }

    /// The background work.
    pub fn jobs(&self) -> Vec<Rc<Job>> {
        [&self.rebuild, &self.scrub].into_iter().filter_map(|job| job.borrow().clone()).collect()
    }

    /// Ends the background work. Regions that are in sync everywhere need no check at the next open.
    pub async fn close(&self) -> Result<()> {
        self.change(|state| state.ticks.close());
        self.jobs().iter().for_each(|job| job.cancel());
        self.moved.notify();
        self.tasks.ended().await;
        if self.read_only {
            return Ok(());
        }
        self.flush().await?;
        let all = self.intent.regions().units().collect();
        self.intent.forget();
        self.intent.clear(all, self, |region| self.is_clean(region)).await
    }
}

impl IntentStore for Legs {
    /// Writes a page of the intent to all legs that take writes.
    fn put(&self, at: u64, page: Buf) -> Pending {
        let Some(me) = self.me.upgrade() else { return Box::pin(async { Ok(()) }) };
        Box::pin(async move {
            let put = |leg: usize| Some((leg, me.area(leg)?.write(at, page.clone())));
            let parts = Parts::new(me.targets().filter_map(put)).all().await;
            let failed = || parts.iter().filter_map(|part| Some((part.leg, part.result.as_ref().err()?)));
            failed().for_each(|(leg, e)| me.put_out(leg, e));
            match failed().find(|(leg, _)| me.takes_writes(*leg)) {
                Some((_, e)) => Err(e.clone()),
                None => Ok(()),
            }
        })
    }
}
