//! Legs: what `mirror` and `parity` share. Which of the devices below have every byte, which lack what, and
//! what is done about it.
//!
//! ```text
//!              write fails, or is gone                 answers again, or `rejoin`
//!   in sync ───────────────────────────▶ behind/failed ─────────────────────────▶ behind, takes writes
//!      ▲                                 (misses: finely in memory, coarsely in        │ what it misses is
//!      │                                  the intent)          spare ──────────────────┤ copied: `rebuild`
//!      └───────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! What a leg is asked for, and what becomes of it (its own changes are in `roles.rs`):
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
//! All that is decided is plain state, which waits for nothing: `state.rs` has what legs are (`roles.rs`) and
//! where they may differ (`regions.rs`), a rebuild and the turns of the background (`background.rs`), and
//! what was found and how far a scrub is (`findings.rs`). [`Legs`] holds it in one cell, asks it (`ask`) and
//! changes it (`change`) in closures, so that no borrow of it outlives a decision; wherever tests run it is
//! checked after each change. Requests, tasks, waiting and what is kept are here and in the files beside.
//!
//! Invariants:
//! * **A write that a leg missed is acknowledged when it is durable that the leg is behind**
//!   ([`Legs::ended`], [`Legs::record`]). So after a crash nobody takes an old leg for a good one.
//! * **What a leg lacks is known**: what was written since the last flush when it went away, since it may
//!   have lost that, and all that was written from then on. The intent keeps the regions of it on disk.
//! * **Bytes are changed by one at a time** ([`RangeLocks`]), so that legs cannot end up different.
//! * **The last leg that has a byte is never put out**: its errors are the device's.
//! * **The size that is kept is that of the intent which counts** (`grow`): before a larger size is kept, the
//!   intent of it is durable at the new ends, and the one of the old size is still there.
//!
//! Addresses here are those of the legs, the same on each. What the bytes of a leg mean is the layer's
//! ([`Content`]); it reads what [`Legs::is_good`] says is there, and writes as [`Legs::begin`] and
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
use lamina_kit::intent::{Area, Intent, Place};
use lamina_kit::range_locks::RangeLocks;
use lamina_kit::single_flight::SingleFlight;
use lamina_kit::tasks::Tasks;
use roles::Wanted;
use serde_json::Value;
use state::State;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

/// What a layer knows of the bytes of its legs. The range is locked.
pub trait Content {
    /// Makes all legs in sync agree about `at`, where a crash may have left them different.
    fn agree(self: Rc<Self>, at: Range<u64>) -> Pending;

    /// What leg `leg` should hold at `at`, from the others, without those in `not`.
    fn right(self: Rc<Self>, at: Range<u64>, leg: usize, not: Vec<usize>) -> Pending<Buf>;

    /// Compares what all legs in sync hold at `at`, and repairs what can be. `trust`: the leg that is right
    /// where nothing else says.
    fn compare(self: Rc<Self>, at: Range<u64>, trust: Option<usize>) -> Pending;

    /// The state is about to be kept. What has to be true on the legs before it is, is made so; nothing that
    /// waits for [`Legs::record`] may be waited for.
    fn settle(self: Rc<Self>) -> Pending {
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
    /// All that is decided by.
    state: RefCell<State>,
    /// Bytes of each leg that belong together.
    unit: u64,
    /// Bytes behind the intent that are the layer's own, and what it keeps.
    tail: u64,
    pub own: RefCell<Value>,
    content: RefCell<Weak<dyn Content>>,
    pub intent: Intent,
    pub locks: Rc<RangeLocks>,
    /// The longest logical block.
    block: u32,
    /// Nothing below may be changed.
    read_only: bool,
    /// The state is kept durably.
    recording: SingleFlight,
    /// Something has changed that somebody waits for.
    pub moved: Signal,
    /// When somebody asked for something last.
    last: Cell<Time>,
    /// What goes on in the background.
    pub tasks: Rc<Tasks>,
    rebuild: RefCell<Option<Rc<Job>>>,
    scrub: RefCell<Option<Rc<Job>>>,
}

// Requests.
impl Legs {
    /// Asks the state. No borrow of it is held longer.
    #[inline]
    fn ask<T>(&self, question: impl FnOnce(&State) -> T) -> T {
        question(&self.state.borrow())
    }

    /// Changes the state, which is checked then wherever tests run.
    #[inline]
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let result = change(&mut state);
        debug_assert_eq!(state.check(), Ok(()), "{}: the state of its legs", self.name);
        result
    }

    /// What is asked of all legs together.
    fn wanted(&self) -> Wanted {
        self.ask(|state| state.roles().wanted)
    }

    /// The numbers of all legs that `are`, each looked at when it is its turn.
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

    /// What leg `leg` is for.
    #[inline]
    pub fn role(&self, leg: usize) -> Role {
        self.ask(|state| state.roles().leg(leg).role)
    }

    /// The place of leg `leg`, where each has one.
    #[inline]
    pub fn place(&self, leg: usize) -> Option<usize> {
        self.ask(|state| state.roles().leg(leg).place)
    }

    /// True if changes are submitted to leg `leg`.
    #[inline]
    pub fn takes_writes(&self, leg: usize) -> bool {
        self.ask(|state| state.roles().leg(leg).takes_writes())
    }

    /// Bytes of each leg that are used; the intent lies behind them.
    #[inline]
    pub fn size(&self) -> u64 {
        self.ask(|state| state.roles().size())
    }

    /// True if what leg `leg` holds at `at` is what it should.
    #[inline]
    pub fn is_good(&self, leg: usize, at: &Range<u64>) -> bool {
        self.ask(|state| state.roles().leg(leg).is_good(at))
    }

    /// True if legs in sync may differ at `at`.
    #[inline]
    pub fn needs_resync(&self, at: &Range<u64>) -> bool {
        self.ask(|state| state.needs_resync(at))
    }

    /// Leg `leg` misses a change of `at`.
    pub fn misses(&self, leg: usize, at: &Range<u64>) {
        self.change(|state| state.misses(leg, at));
    }

    /// Bytes at `at` are about to be written to a leg, which others have.
    fn writes(&self, at: &Range<u64>) {
        self.change(|state| state.write(at));
    }

    /// Notes that somebody asks for something: what goes on in the background gives way.
    #[inline]
    pub fn asked(&self) {
        self.last.set(self.env.now());
    }

    /// Lets `at`, which is locked, be written: says so on disk first. True until the next await of the
    /// caller.
    pub async fn mark(&self, at: &Range<u64>) -> Result<()> {
        let next = self.intent.ahead(at);
        if !self.intent.covers(at) {
            // The page that is written now has what comes next as well.
            self.intent.mark(at, self).await?;
        } else if let Some(next) = next {
            self.prepare(next);
        }
        self.wake();
        Ok(())
    }

    /// Marks what a stream of writes will come to, so that it does not have to wait there.
    fn prepare(&self, next: Range<u64>) {
        let Some(me) = self.me.upgrade().filter(|_| !self.is_closing()) else { return };
        self.tasks.spawn(&*self.env, async move {
            // If it fails, whoever writes there will see why.
            let _ = me.intent.mark(&next, &*me).await;
        });
        self.wake();
    }

    /// A change of `at` is submitted to all [`Legs::targets`] at once: the others miss it.
    #[inline]
    pub fn begin(&self, at: &Range<u64>) {
        self.begin_on(at, |_| true);
    }

    /// As [`Legs::begin`], for a change that is only of what lies on the legs that `is_of` says.
    #[inline]
    pub fn begin_on(&self, at: &Range<u64>, is_of: impl Fn(&LegState) -> bool) {
        self.asked();
        if let Some(next) = self.intent.ahead(at) {
            self.prepare(next);
        }
        self.change(|state| state.begin(at, is_of));
    }

    /// What a change of `at` comes to that ended like this on each of the legs it was submitted to.
    pub async fn ended(&self, at: &Range<u64>, parts: Vec<Part>) -> Result<()> {
        let failed = || parts.iter().filter_map(|part| Some((part.leg, part.result.as_ref().err()?)));
        let all = failed().count() == parts.len();
        let nothing = all && failed().all(|(_, e)| state::did_nothing(e));
        // A block that nobody can complete says nothing about the rest of a leg. Where legs are the same and
        // another one has taken it, this one lacks it. Memory that cannot be read says nothing about a leg at
        // all.
        let is_out = |e: &Error| {
            !nothing && !e.is_of_memory() && !(is_corrupt(e) && (self.wanted().places > 0 || all))
        };
        failed().filter(|(_, e)| is_out(e)).for_each(|(leg, e)| self.put_out(leg, e));
        let is_error = |leg: usize, e: &Error| e.is_of_memory() || self.role(leg) == Role::Sync;
        let result = match failed().find(|(leg, e)| is_error(*leg, e)) {
            Some((_, e)) => Err(e.clone()),
            None => self.record().await,
        };
        // Where each has other bytes, to doubt them means not to know those of a leg that is missing.
        if result.is_err() && !(nothing && self.wanted().places > 0) {
            self.change(|state| state.unknown(at));
            self.wake();
        }
        result
    }

    /// Makes durable what was written.
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
                content.settle().await?;
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

    /// True if no leg lacks anything of `region` that only the intent knows of.
    fn is_settled(&self, region: &Range<u64>) -> bool {
        !self.locks.is_in_use(region) && self.ask(|state| state.is_settled(region))
    }

    /// How many places are held by legs in sync other than `but`. Where legs are all the same, each has its
    /// own.
    pub fn covered(&self, but: Option<usize>) -> usize {
        self.ask(|state| state.roles().covered(but))
    }

    /// True if a place is not held by a leg in sync.
    pub fn is_degraded(&self) -> bool {
        self.ask(|state| state.roles().is_degraded())
    }

    /// True if bytes are lost without leg `leg`.
    fn is_last(&self, leg: usize) -> bool {
        self.ask(|state| state.roles().is_last(leg))
    }

    /// Where what is the layer's own begins on each leg.
    pub fn tail(&self) -> u64 {
        self.behind(self.size()) + self.intent.area()
    }

    /// Says that legs may differ at `at`.
    pub fn mark_for_resync(&self, at: &Range<u64>) {
        self.change(|state| state.diverge(at));
    }

    /// Legs agree in those units that lie wholly in `at`. [`Legs::record`] makes that lasting.
    pub fn resynced(&self, at: &Range<u64>) {
        if self.change(|state| state.of_regions(|regions| regions.agree_within(at))) {
            self.changed();
        }
    }

    /// Where legs may differ, in whole units.
    pub fn resync_runs(&self) -> Vec<Range<u64>> {
        self.ask(|state| state.regions().needs_resync().runs().collect())
    }

    /// Bytes of such a unit.
    pub fn resync_unit(&self) -> u64 {
        self.ask(|state| state.regions().unit())
    }

    /// Lets a rebuild that could not go on try again.
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

    /// Notes that something was wrong on a leg.
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

    /// Counts what was wrong on a leg.
    pub fn found(&self, found: Found) {
        self.change(|state| state.findings.count(found));
    }

    /// True if nothing goes on by itself any more.
    fn is_closing(&self) -> bool {
        self.ask(|state| state.turns.are_over())
    }

    fn content(&self) -> Option<Rc<dyn Content>> {
        self.content.borrow().upgrade()
    }

    /// The background work.
    pub fn jobs(&self) -> Vec<Rc<Job>> {
        [&self.rebuild, &self.scrub].into_iter().filter_map(|job| job.borrow().clone()).collect()
    }

    /// Ends what goes on in the background. What is everywhere need not be looked at when it is opened again.
    pub async fn close(&self) -> Result<()> {
        self.change(|state| state.turns.close());
        self.jobs().iter().for_each(|job| job.cancel());
        self.moved.notify();
        self.tasks.ended().await;
        if self.read_only {
            return Ok(());
        }
        self.flush().await?;
        let all = self.intent.regions().units().collect();
        self.intent.forget();
        self.intent.clear(all, self, |region| self.is_settled(region)).await
    }
}

impl Place for Legs {
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
