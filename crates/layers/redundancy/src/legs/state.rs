//! What a leg is, and how it becomes something else.

use super::{Legs, is_corrupt};
use lamina_block::{Error, ErrorKind, Node, Result, Time};
use lamina_kit::flaw::flawed;
use lamina_kit::intent::{Area, Bits};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// What a leg is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It has every byte.
    Sync,
    /// It lacks some, and gets them as soon as it answers.
    Behind,
    /// It lacks some, and nobody asks it for anything until somebody says `rejoin`.
    Failed,
    /// It has nothing, and takes the place of another when that is needed.
    Spare,
}

/// A leg.
pub struct Leg {
    pub node: Rc<Node>,
    /// Where its intent lies, if there is room for one.
    pub area: Cell<Option<u64>>,
    pub role: Cell<Role>,
    /// It lacks everything from this byte on; kept.
    pub copied: Cell<Option<u64>>,
    /// It takes writes, though it may lack some.
    pub here: Cell<bool>,
    /// What it lacks, while it is behind or failed.
    pub missing: RefCell<Option<Bits>>,
    /// Its place among the legs, where each has one: see [`Needs`](super::Needs).
    pub place: Cell<Option<usize>>,
    /// It is to be taken away.
    pub leaving: Cell<bool>,
    /// When it went away, and why.
    pub since: Cell<Time>,
    pub why: RefCell<Option<Error>>,
}

impl Leg {
    /// True if changes are submitted to it.
    #[inline]
    pub fn takes_writes(&self) -> bool {
        match self.role.get() {
            Role::Sync => true,
            Role::Behind => self.here.get(),
            Role::Failed | Role::Spare => false,
        }
    }

    /// It misses a change of `at`.
    pub fn misses(&self, at: &Range<u64>) {
        if let Some(missing) = &mut *self.missing.borrow_mut() {
            missing.add(at);
        }
    }

    /// True if there is anything that it lacks.
    pub fn lacks(&self) -> bool {
        self.missing.borrow().as_ref().is_some_and(|missing| !missing.is_empty())
    }
}

/// True for errors after which nothing has changed.
pub fn did_nothing(e: &Error) -> bool {
    match e.kind() {
        ErrorKind::NoSpace
        | ErrorKind::ReadOnly
        | ErrorKind::Fenced
        | ErrorKind::Invalid
        | ErrorKind::Unsupported => true,
        ErrorKind::Media
        | ErrorKind::Offline
        | ErrorKind::TimedOut
        | ErrorKind::Busy
        | ErrorKind::Cancelled
        | ErrorKind::Corrupt
        | ErrorKind::BadMemory
        | ErrorKind::Truncated => false,
    }
}

/// True if who does not answer now may answer again.
pub fn is_away(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Offline | ErrorKind::TimedOut)
}

/// Why what a leg holds is not trusted any more.
pub(super) fn end_is_gone() -> Error {
    let message =
        "its end is gone: it was cut short, or is another device. It gets everything from the others";
    Error::new(ErrorKind::Truncated, message)
}

/// True if a leg has lost its end: it can come back, and has nothing then.
pub(super) fn is_truncated(e: &Error) -> bool {
    e.kind() == ErrorKind::Truncated
}

impl Legs {
    /// A leg has failed: from now on it misses what is written. Not if it is the last one that has all; then its errors
    /// are the device's.
    pub fn put_out(&self, leg: usize, e: &Error) {
        let role = if is_away(e) || is_truncated(e) { Role::Behind } else { Role::Failed };
        if self.legs[leg].takes_writes() && !self.is_last(leg) {
            tracing::warn!(device = %self.name, leg = %self.legs[leg].node.name(), error = %e, "a leg has failed");
            self.lose(leg, role, Some(e));
        }
    }

    /// Leg `leg` misses what is written from now on, and may have lost what was not flushed. Where the legs are the same and
    /// it may differ from the others after a crash, it lacks that, too: they are made the same without it.
    pub(super) fn lose(&self, leg: usize, role: Role, e: Option<&Error>) {
        let it = &self.legs[leg];
        if it.takes_writes() {
            let mut missing = it.missing.take().unwrap_or_else(|| self.nothing());
            if !flawed("what was not flushed is forgotten") {
                missing.join(&self.written.borrow());
                self.flushing.borrow().iter().for_each(|bits| missing.join(bits));
            }
            if self.places == 0 && !flawed("what was in doubt is not missed") {
                missing.join(&self.unsure.borrow());
            }
            it.missing.replace(Some(missing));
        }
        it.role.set(role);
        it.here.set(false);
        it.since.set(self.env.now());
        it.why.replace(e.cloned());
        // Nobody else keeps an intent that would say what it misses; or nothing that it holds is to be trusted.
        if e.is_some_and(is_truncated) || !self.targets().any(|other| self.legs[other].area.get().is_some()) {
            self.lacks_all(leg);
        }
        self.changed();
    }

    /// Leg `leg` has nothing.
    pub(super) fn lacks_all(&self, leg: usize) {
        let mut all = self.nothing();
        all.add(&(0..self.size.get()));
        self.legs[leg].missing.replace(Some(all));
        self.legs[leg].copied.set(Some(0));
    }

    pub(super) fn nothing(&self) -> Bits {
        Bits::none(self.size.get(), self.written.borrow().unit())
    }

    /// Lets a leg that is behind take writes again, if it answers.
    pub(super) async fn bring_back(&self, leg: usize) -> Result<()> {
        let it = &self.legs[leg];
        let answers = lamina_block::Io::read(0, self.env.pool().take(it.node.geometry().block as usize));
        if it.node.is_absent() {
            return Err(Error::offline("the device is not there").on(it.node.name()));
        }
        match it.node.submit(answers).await {
            // It does answer.
            Err(e) if is_corrupt(&e) => {}
            answered => answered?,
        }
        let (shape, ours) = (it.node.geometry(), self.block);
        if shape.size < self.size.get() || shape.block > ours || shape.read_only {
            return Err(Error::invalid(format!(
                "it is too small, read-only, or its blocks are larger than {ours} bytes"
            ))
            .on(it.node.name()));
        }
        let area = it.area.get().map(|start| Area(Rc::clone(&it.node), start));
        if let Some(area) = area.as_ref().filter(|_| it.copied.get() != Some(0))
            && self.is_cut(area).await?
        {
            let e = end_is_gone();
            tracing::warn!(device = %self.name, leg = %it.node.name(), error = %e, "a leg is back");
            self.lacks_all(leg);
            self.changed();
            self.record().await?;
        }
        if it.role.get() != Role::Behind || it.here.get() {
            return Ok(());
        }
        it.here.set(true);
        if let Some(area) = area {
            let written = self.intent.write_all(&area).await;
            if let Err(e) = &written {
                self.put_out(leg, e);
            }
            written?;
        }
        tracing::info!(device = %self.name, leg = %it.node.name(), "a leg takes writes again, and gets what it lacks");
        it.why.replace(None);
        self.unstick();
        Ok(())
    }

    /// True if a leg that was away has no intent any more.
    async fn is_cut(&self, area: &Area) -> Result<bool> {
        match self.intent.is_gone(area).await {
            Err(e) if is_corrupt(&e) => Ok(false),
            found => found.map(|gone| gone && !flawed("a leg without its end is trusted")),
        }
    }

    /// A leg that is behind has all.
    pub(super) async fn complete(&self, leg: usize) -> Result<()> {
        let it = &self.legs[leg];
        it.node.submit(lamina_block::Io::flush()).await.inspect_err(|e| self.put_out(leg, e))?;
        if it.role.get() == Role::Behind && it.here.get() && !it.lacks() {
            it.missing.replace(None);
            it.copied.set(None);
            it.role.set(Role::Sync);
            tracing::info!(device = %self.name, leg = %it.node.name(), "a leg has all again");
            self.changed();
        }
        self.record().await
    }

    /// Legs that have everything or are getting it, as far as one may wait for that.
    pub(super) fn active(&self) -> usize {
        self.actives().count()
    }

    fn actives(&self) -> impl Iterator<Item = &Leg> {
        let patient = |leg: &&Leg| match leg.role.get() {
            Role::Sync => true,
            Role::Behind => leg.here.get() || self.env.now().since(leg.since.get()) < self.timeout,
            Role::Failed | Role::Spare => false,
        };
        self.legs.iter().filter(|leg| !leg.leaving.get()).filter(patient)
    }

    /// The first place that no active leg holds.
    fn free_place(&self) -> Option<usize> {
        (0..self.places).find(|place| self.actives().all(|leg| leg.place.get() != Some(*place)))
    }

    /// Gives leg `leg` a place, if it has none, or another one has taken it meanwhile; then it has nothing.
    pub(super) fn seat(&self, leg: usize) {
        let mine = self.legs[leg].place.get();
        let is_free = mine.is_some() && self.actives().all(|other| other.place.get() != mine);
        if self.places > 0 && !is_free {
            self.legs[leg].place.set(self.free_place());
            self.lacks_all(leg);
        }
    }

    /// Spares take the place of legs that are failed, or away for too long.
    pub(super) fn take_spares(&self) {
        while self.active() < self.want {
            let is_free = |leg: &&Leg| leg.role.get() == Role::Spare && !leg.node.is_absent();
            let Some(spare) = self.legs.iter().position(|leg| is_free(&leg)) else { return };
            let place = self.free_place();
            let is_there = |leg: &&Leg| self.places == 0 || leg.place.get() == place;
            let gone = |leg: &&Leg| leg.role.get() == Role::Behind && !leg.here.get() && is_there(leg);
            if let Some(gone) = self.legs.iter().find(gone) {
                gone.role.set(Role::Failed);
            }
            // Whose place is taken has nothing any more, and no other one remembers what it misses.
            for gone in self.legs.iter().filter(|leg| self.places > 0 && leg.place.get() == place) {
                gone.place.set(None);
                gone.missing.replace(None);
            }
            self.legs[spare].place.set(place);
            tracing::warn!(device = %self.name, leg = %self.legs[spare].node.name(), "a spare takes the place of a leg");
            self.lacks_all(spare);
            self.legs[spare].role.set(Role::Behind);
            self.legs[spare].since.set(self.env.now());
            self.changed();
        }
    }
}
