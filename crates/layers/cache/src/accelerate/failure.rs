//! The failure of the flash.
//!
//! ```text
//!      the flash fails ─┬─ no unprotected data ──▶ record: the flash does not count ──▶ uncached
//!                       ├─ peers have it as well ──▶ from there to the store ──▶ as without such data
//!                       └─ unprotected data ──▶ stopped ── accept-loss ──▶ the same
//!                                                  └────── the flash works again ──▶ as before
//! ```
//!
//! Acknowledged data that the store does not have is *unprotected dirty data*. Without such data the device goes
//! on uncached, and no request fails: writes under way are still in memory, and go to the store. Otherwise the device
//! stops. Reads of blocks that the store has in their latest version are served, as the index is in memory. Every other
//! request fails, and the error names the data: the store alone would be an older state that nobody notices, and a
//! write to it would be covered by a flash that comes back.
//!
//! What the flashes of peers have as well is read there, and brought to the store; requests wait meanwhile. The device
//! stops if no peer can be read, or the store takes nothing for too long.
//!
//! Invariants:
//! * Before a write goes to the store past the flash, the state record says that the flash does not count.
//! * Data that was read stays: a write under way that a reader may have seen is on the store before the flash is
//!   left.
//!
//! Under `write-back`, a request that fails on a flash that otherwise works fails alone. So does a write for
//! which the flash has no space: the cached data can still be read, and gets to the store. A clean block that
//! cannot be read is read from the store.

use super::condition::{Condition, Failed, Response};
use super::destage::PAUSE;
use super::state_record::VolumeRecord;
use super::{Accelerate, Policy, progress::Progress};
use crate::flash::{Record, Side};
use lamina_block::{Buf, Durability, Error, ErrorKind, Io, Op, Result};
use lamina_kit::flaw::flawed;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// The destager fails so often on the flash, one time after the other, until it is taken for broken.
const STRIKES: u32 = 3;
/// Ranges of what is unprotected that are shown, and that are said in an error.
const SHOWN: usize = 64;
const SAID: usize = 4;

/// How something ended that stands on both.
pub type SideResult<T> = std::result::Result<T, SideError>;

/// What has failed.
#[derive(Debug)]
pub enum SideError {
    Flash(Error),
    /// Or anything else.
    Store(Error),
}

impl From<Error> for SideError {
    fn from(e: Error) -> SideError {
        SideError::Store(e)
    }
}

impl From<SideError> for Error {
    fn from(fault: SideError) -> Error {
        match fault {
            SideError::Flash(e) | SideError::Store(e) => e,
        }
    }
}

/// What is known of the flash's failures.
#[derive(Default)]
pub struct Failure {
    condition: RefCell<Condition>,
    /// Why the flash is not used any more.
    pub trouble: RefCell<Option<Error>>,
    /// Failures of the destager on the flash since it succeeded.
    strikes: Cell<u32>,
    /// A batch is on its way.
    pub batching: Cell<bool>,
    /// So many want none to begin.
    pub no_batches: Cell<u32>,
    /// Flushes that the store has failed.
    pub flushes: Cell<u64>,
    /// Writes under way, in the order in which they can be seen.
    pending: RefCell<VecDeque<(u64, Rc<Pending>)>>,
    pendings: Cell<u64>,
}

/// A write under way.
pub struct Pending {
    at: Range<u64>,
    from: Buf,
    durability: Durability,
    /// When the flash has it.
    pub serial: Cell<Option<u64>>,
    /// How it has ended on the store, if it went there past the flash.
    outcome: RefCell<Option<Result<()>>>,
}

/// While a write is under way.
pub struct UnderWay<'a> {
    of: &'a Failure,
    number: u64,
    pub write: Rc<Pending>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut pending = self.of.pending.borrow_mut();
        if let Ok(at) = pending.binary_search_by_key(&self.number, |(number, _)| *number) {
            pending.remove(at);
        }
    }
}

impl UnderWay<'_> {
    /// How it has ended when the flash was left; `otherwise` if that did not have to bring it to the store.
    pub fn outcome(&self, otherwise: Result<()>) -> Result<()> {
        self.write.outcome.take().unwrap_or(otherwise)
    }
}

impl Failure {
    /// At the beginning; `trouble` is why the flash is not used, if it is not.
    pub fn new(trouble: Option<Error>) -> Failure {
        Failure { trouble: RefCell::new(trouble), ..Failure::default() }
    }

    /// A write begins. Nobody else writes there.
    pub fn begin(&self, at: &Range<u64>, from: &Buf, durability: Durability) -> UnderWay<'_> {
        let number = self.pendings.replace(self.pendings.get() + 1);
        let write = Rc::new(Pending {
            at: at.clone(),
            from: from.clone(),
            durability,
            serial: Cell::new(None),
            outcome: RefCell::default(),
        });
        self.pending.borrow_mut().push_back((number, Rc::clone(&write)));
        UnderWay { of: self, number, write }
    }

    /// True if a write of a part of `at` is under way.
    pub fn is_being_written(&self, at: &Range<u64>) -> bool {
        let overlaps = |of: &Range<u64>| of.start < at.end && at.start < of.end;
        self.pending.borrow().iter().any(|(_, write)| overlaps(&write.at))
    }

    /// The first write under way from `number` on.
    fn pending_from(&self, number: u64) -> Option<(u64, Rc<Pending>)> {
        let pending = self.pending.borrow();
        pending.get(pending.partition_point(|(before, _)| *before < number)).cloned()
    }

    /// Why requests fail, if they do: all but reads of what the store has.
    pub fn stopped(&self) -> Option<Error> {
        self.condition.borrow().stopped().cloned()
    }

    /// Another host has the volume: requests fail from now on.
    pub fn fence(&self, why: Error) {
        self.condition.borrow_mut().stop(why);
    }

    /// Why it does not help to wait for the store, if it does not.
    pub fn hopeless(&self) -> Option<Error> {
        self.condition.borrow().hopeless().cloned()
    }

    fn is_leaving(&self) -> bool {
        self.condition.borrow().is_leaving()
    }
}

/// No batch begins while this lives.
pub(super) struct NoBatches<'a>(&'a Accelerate);

impl Drop for NoBatches<'_> {
    fn drop(&mut self) {
        self.0.failure.no_batches.set(self.0.failure.no_batches.get() - 1);
        self.0.volume.moved.notify();
    }
}

/// What is lost, or would be.
pub(super) struct Loss {
    writes: usize,
    serials: Option<(u64, u64)>,
    /// In bytes.
    ranges: Vec<Range<u64>>,
}

impl Loss {
    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|at| at.end - at.start).sum()
    }

    pub(super) fn json(&self) -> Value {
        let range = |at: &Range<u64>| json!({ "start": at.start, "len": at.end - at.start });
        json!({
            "writes": self.writes,
            "bytes": self.bytes(),
            "serials": self.serials.map(|(first, last)| [first, last]),
            "ranges": self.ranges.iter().take(SHOWN).map(range).collect::<Vec<_>>(),
            "more_ranges": self.ranges.len().saturating_sub(SHOWN),
        })
    }

    fn words(&self) -> String {
        let serials = self.serials.map(|(first, last)| format!(", serial numbers {first} to {last}"));
        let said: Vec<_> =
            self.ranges.iter().take(SAID).map(|at| format!("{}..{}", at.start, at.end)).collect();
        let more = match self.ranges.len().saturating_sub(SAID) {
            0 => String::new(),
            more => format!(" and {more} more ranges"),
        };
        let (writes, bytes) = (self.writes, self.bytes());
        let serials = serials.unwrap_or_default();
        format!("{writes} writes{serials}, {bytes} bytes at {}{more}", said.join(", "))
    }
}

impl Accelerate {
    /// The flash is not used any more, since it has failed.
    pub(super) fn is_detached(&self) -> bool {
        !self.kept.is_attached()
    }

    /// Something was acknowledged that the store does not have.
    pub(super) fn is_unprotected(&self) -> bool {
        let is_kept = self.volume.bad.owed().is_some() || !self.volume.quarantine.is_empty();
        self.progress.get().is_unprotected() || is_kept
    }

    /// Changes how far the store is.
    pub(super) fn proceed(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.get();
        change(&mut progress);
        debug_assert_eq!(progress.check(), Ok(()), "{}: how far the store is", self.name);
        self.progress.set(progress);
    }

    /// Waits while the flash is being given up.
    pub(super) async fn while_leaving(&self) {
        self.moved.until(|| !self.failure.is_leaving()).await;
    }

    /// The flash has failed a request with `e`. If it returns, the device goes on without the flash, and the store has
    /// everything.
    pub(super) async fn without_flash(&self, e: Error) -> Result<()> {
        self.without(e, false).await
    }

    async fn without(&self, e: Error, is_lasting: bool) -> Result<()> {
        let is_detached = self.is_detached();
        let is_broken = is_lasting || e.kind() == ErrorKind::Offline || self.cache.check_reads().is_err();
        if is_broken && !is_detached {
            // No write is to wait for space on it.
            self.cache.break_down(&e);
        }
        let (is_unprotected, policy) = (self.is_unprotected(), self.policy.get());
        let is_at_peer = self.peers.as_ref().is_some_and(|peers| peers.are_there());
        match (Failed { is_detached, is_unprotected, is_at_peer, is_broken, policy }).response() {
            Response::Wait => {
                // What is under way may be on its way to the store just now.
                self.while_leaving().await;
                self.failure.stopped().map_or(Ok(()), Err)
            }
            Response::Stop => Err(self.stop(&e)),
            Response::Fail => Err(self.failure.stopped().unwrap_or(e)),
            Response::Leave => self.fail_over(e).await,
        }
    }

    /// The destager has failed on the flash. It tries again.
    pub(super) async fn strike(&self, e: Error) {
        self.failure.strikes.set(self.failure.strikes.get() + 1);
        let is_lasting = self.failure.strikes.get() >= STRIKES && e.kind() != ErrorKind::NoSpace;
        tracing::debug!(device = %self.name, error = %e, "the flash cannot be read or written");
        if self.volume.bad.count(Side::Flash) > 0 && self.cache.check_reads().is_ok() {
            // Blocks of this volume cannot be read: that is nothing to the others.
            match self.is_unprotected() {
                true if is_lasting => drop(self.stop(&e)),
                true => {}
                false => drop(self.fail_over(e).await),
            }
            return;
        }
        if is_lasting || e.kind() == ErrorKind::Offline || self.cache.check_reads().is_err() {
            // Whoever asks is told.
            let _ = self.without(e, is_lasting).await;
        }
    }

    /// The destager has succeeded on the flash.
    pub(super) async fn no_strike(&self) {
        self.failure.strikes.set(0);
        let works = self.failure.stopped().is_some() && self.cache.check().is_ok() && !self.is_fenced();
        if works && self.kept.own().await.is_ok() {
            self.goes_on();
        }
    }

    fn goes_on(&self) {
        if self.is_fenced() {
            return;
        }
        self.failure.condition.borrow_mut().go_on();
        tracing::info!(device = %self.name, "the flash works again: the device goes on");
        self.moved.notify();
    }

    /// It is stopped, and there is nothing for the destager to do: perhaps it can go on.
    pub(super) async fn look_again(&self) {
        self.env.sleep(PAUSE).await;
        if self.is_unprotected() {
            return;
        }
        let kept = self.kept.change(|_| {}).await;
        match (kept, self.cache.check()) {
            (Err(_), _) => {}
            (Ok(()), Err(e)) => drop(self.fail_over(e).await),
            (Ok(()), Ok(())) => self.goes_on(),
        }
    }

    /// Stops: requests fail until the flash works again, or the loss is accepted.
    pub(super) fn stop(&self, e: &Error) -> Error {
        if let Some(why) = self.failure.stopped() {
            return why;
        }
        let what = match self.is_unknown() {
            true => "what was written, and is not on the store, is not known".to_owned(),
            false if flawed("a loss without its place") => "writes are not on the store".to_owned(),
            false => format!("not on the store are {}", self.unprotected().words()),
        };
        let message = format!(
            "the flash has failed ({e}); {what}. The device goes on when the flash works again; or {}",
            self.way_on()
        );
        let why = Error::offline(message).on(&self.name);
        tracing::error!(device = %self.name, error = %e, "stopped: the flash has failed, and {what}");
        self.failure.condition.borrow_mut().stop(why.clone());
        self.moved.notify();
        self.volume.moved.notify();
        why
    }

    /// Why a request fails before it begins, if it does. A read is tried although the device is stopped: it finds what
    /// the store has, too, and fails for the rest.
    pub(super) fn stops(&self, io: &Io) -> Option<Error> {
        self.failure
            .stopped()
            .filter(|_| !matches!(io.op, Op::Read(_)) || self.is_unknown() || self.is_fenced())
    }

    /// It is stopped since it was opened, without its flash.
    fn is_unknown(&self) -> bool {
        !self.volume.is_somewhere()
    }

    /// Goes on without the flash, as nothing is unprotected, or a peer has it.
    async fn fail_over(&self, e: Error) -> Result<()> {
        if self.failure.is_leaving() {
            self.while_leaving().await;
            return match self.failure.stopped() {
                Some(why) => Err(why),
                None if self.is_detached() => Ok(()),
                None => Err(e),
            };
        }
        self.failure.condition.borrow_mut().leave(e.clone());
        self.moved.notify();
        let result = self.leave_flash(&e).await;
        if self.failure.is_leaving() {
            // Either may be found of what was to be kept: nothing may be acknowledged until it is certain.
            let mut condition = self.failure.condition.borrow_mut();
            match &result {
                Err(e) if self.kept.is_unsure() => condition.stop(e.clone()),
                Ok(()) | Err(_) => condition.go_on(),
            }
        }
        self.moved.notify();
        result
    }

    async fn leave_flash(&self, e: &Error) -> Result<()> {
        let _all = self.lock(&(0..u64::MAX)).await;
        let _none = self.no_batches().await;
        if self.is_unprotected()
            && let Err(why) = self.bring_from_peers().await
        {
            tracing::warn!(device = %self.name, error = %why, "what the flash had is not brought from a peer");
            return Err(self.stop(e));
        }
        self.detach(e).await.inspect(|()| self.store_has_all())
    }

    pub(super) async fn no_batches(&self) -> NoBatches<'_> {
        self.failure.no_batches.set(self.failure.no_batches.get() + 1);
        let none = NoBatches(self);
        self.moved.until(|| !self.failure.batching.get()).await;
        none
    }

    /// From here on the store is all there is.
    async fn detach(&self, e: &Error) -> Result<()> {
        // What was acknowledged as durable is on it, perhaps only in its cache.
        self.store.submit(Io::flush()).await?;
        let detached = |words: &mut VolumeRecord| (words.attached, words.owes) = (false, false);
        match flawed("flash comes back") {
            true => self.kept.assume(detached),
            false => self.kept.change(detached).await?,
        }
        self.bring_pending().await;
        self.cache.let_go(&self.volume);
        self.volume.bad.clear();
        self.policy.set(Policy::Uncached);
        *self.failure.trouble.borrow_mut() = Some(e.clone());
        tracing::warn!(device = %self.name, error = %e, "the flash has failed: the device goes on without it");
        Ok(())
    }

    /// Brings writes to the store that are under way. None of them is answered before it is there: its memory
    /// is the guest's again then.
    async fn bring_pending(&self) {
        let mut number = 0;
        while let Some((n, write)) = self.failure.pending_from(number) {
            number = n + 1;
            let is_stored = write.serial.get().is_some_and(|serial| serial <= self.progress.get().stored());
            if is_stored && !Accelerate::blocks(&write.at).any(|block| self.volume.bad.has(block)) {
                continue;
            }
            let io = Io::write(write.at.start, write.from.clone(), write.durability);
            let outcome = self.store.submit(io).await;
            *write.outcome.borrow_mut() = Some(outcome);
        }
    }

    /// What was written and is not on the store: of blocks of which `is_lost` says so.
    pub(super) fn loss(&self, is_lost: impl Fn(u64) -> bool) -> Loss {
        let (mut writes, mut serials, mut blocks) = (BTreeSet::new(), None, BTreeSet::new());
        let stored = self.progress.get().stored();
        let is_owed = |record: &&Record| record.serial > stored || self.volume.bad.owes(record.blocks());
        for record in self.volume.queue.borrow().iter().filter(is_owed) {
            let lost: Vec<u64> = record.blocks().filter(|block| is_lost(*block)).collect();
            if !lost.is_empty() {
                blocks.extend(lost);
                writes.insert(record.serial);
                let (first, _) = serials.unwrap_or((record.serial, record.serial));
                serials = Some((first, record.serial));
            }
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for block in blocks {
            let at = self.bytes(&(block..block + 1));
            match ranges.last_mut() {
                Some(last) if last.end == at.start => last.end = at.end,
                _ => ranges.push(at),
            }
        }
        Loss { writes: writes.len(), serials, ranges }
    }

    fn unprotected(&self) -> Loss {
        self.loss(|block| self.cache.is_dirty_at(&self.volume, block..block + 1))
    }

    /// Goes on without the flash, and without what it alone has; what can be read of that is brought to the store.
    pub(super) async fn accept_loss(&self) -> Result<Value> {
        self.is_last_copy()?;
        let Some(why) = self.failure.stopped() else {
            if let Some(given_up) = self.give_up_unread().await? {
                return Ok(given_up);
            }
            let message = match self.is_detached() {
                true => "it goes on without its flash already, and nothing was lost",
                false => "the flash works: nothing is lost",
            };
            return Err(Error::invalid(message).on(&self.name));
        };
        self.failure.condition.borrow_mut().leave(why.clone());
        let result = self.give_up().await;
        match &result {
            Ok(_) => self.failure.condition.borrow_mut().go_on(),
            Err(_) => self.failure.condition.borrow_mut().stop(why),
        }
        self.moved.notify();
        result
    }

    async fn give_up(&self) -> Result<Value> {
        let _all = self.lock(&(0..u64::MAX)).await;
        let _none = self.no_batches().await;
        let unreadable = self.bring_readable().await?;
        let lost = self.loss(|block| unreadable.contains(&block));
        let lost = if self.is_unknown() { json!({ "unknown": true }) } else { lost.json() };
        let e = self.cache.check().err().unwrap_or_else(|| Error::media("it was given up"));
        self.detach(&e).await?;
        tracing::warn!(device = %self.name, %lost, "the loss was accepted");
        Ok(json!({ "lost": lost }))
    }

    /// Attaches the device to a new volume on the flash. Nothing else is under way.
    pub(super) async fn attach(&self, policy: Policy) -> Result<()> {
        self.cache.check()?;
        if self.is_unknown() {
            let message =
                "the flash could not be used when the device was opened: open both again to use the flash";
            return Err(Error::offline(message).on(&self.name));
        }
        let _all = self.lock(&(0..u64::MAX)).await;
        let uuid = u128::from(self.env.random()) << 64 | u128::from(self.env.random());
        // The old one goes in the same step. Until the words are kept, nobody looks for the new one.
        self.cache.renew(&self.volume, uuid).await?;
        let change = |words: &mut VolumeRecord| {
            words.set_uuid(uuid);
            (words.attached, words.owes, words.behind) = (true, policy == Policy::WriteBack, false);
        };
        self.kept.change(change).await?;
        self.failure.trouble.take();
        self.failure.strikes.set(0);
        Ok(())
    }

    /// Keeps that the flash has nothing that the store has not, when that is so.
    pub(super) async fn keep_owes(&self) -> Result<()> {
        let owes = || self.policy.get() == Policy::WriteBack || !self.is_drained();
        self.kept.change(|words| words.owes = words.attached && owes()).await
    }

    /// What is unprotected while it is stopped.
    pub(super) fn lost(&self) -> Value {
        match self.failure.stopped() {
            None => Value::Null,
            Some(_) if self.is_fenced() => Value::Null,
            Some(_) if self.is_unknown() => json!({ "unknown": true }),
            Some(_) => self.unprotected().json(),
        }
    }
}
