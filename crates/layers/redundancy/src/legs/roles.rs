//! What each leg is for, and what it becomes: plain state, which decides at once and waits for nothing.
//!
//! ```text
//!              lose          answers      complete   end_is_gone   take_spares    rejoin          fail
//!  in sync     away, failed  -            -          -             -              -               failed
//!  away        -             rebuilding   -          away *        failed ‡       away            failed
//!  rebuilding  away, failed  -            in sync    rebuilding *  -              rebuilding      failed
//!  failed      -             -            -          failed *      failed ‡       away †, spare   -
//!  spare       -             -            -          -             away *         -               failed *
//! ```
//!
//! *Away* and *rebuilding* are [`Role::Behind`] without and with `here`. `*`: every byte of the leg is stale
//! from then on. `†`: so it is if another leg has its place. `‡`: where each leg has a place of its own, and
//! the spare has taken this one, the leg is left without it. A leg in sync is lost only if the others have
//! all bytes without it ([`Roles::is_last`]).
//!
//! Invariants ([`Roles::check`]):
//! * Only a leg that is behind is `here`.
//! * A leg in sync, or a spare, has no stale bytes to be known; of a leg that is behind or failed they are
//!   known, unless it is without a place where each has one: then nothing that it holds is used.
//! * Stale bytes are counted in the size that the legs have.

use super::regions::nothing_of;
use lamina_block::{Error, ErrorKind, Time};
use lamina_kit::intent::Bits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

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

/// What is known of a leg.
#[derive(Clone, Debug)]
pub struct LegState {
    pub role: Role,
    /// It takes writes, though some of its bytes may be stale.
    pub here: bool,
    /// Its bytes that are not those of the device, while it is behind or failed.
    pub stale: Option<Bits>,
    /// All of its bytes from this one on are stale; kept.
    pub copied: Option<u64>,
    /// Where its intent lies, if there is room for one.
    pub area: Option<u64>,
    /// Its place among the legs, where each has one: see [`Needs`](super::Needs).
    pub place: Option<usize>,
    /// It is to be taken away.
    pub leaving: bool,
    /// When it went away, and why.
    pub since: Time,
    pub why: Option<Error>,
}

impl LegState {
    /// True if changes are submitted to it.
    #[inline]
    pub fn takes_writes(&self) -> bool {
        match self.role {
            Role::Sync => true,
            Role::Behind => self.here,
            Role::Failed | Role::Spare => false,
        }
    }

    /// True if what it holds at `at` is what it should.
    #[inline]
    pub fn is_good(&self, at: &Range<u64>) -> bool {
        match self.role {
            Role::Sync => true,
            Role::Behind if self.here => self.stale.as_ref().is_none_or(|stale| !stale.touches(at)),
            Role::Behind | Role::Failed | Role::Spare => false,
        }
    }

    /// It does not answer, and is asked again.
    pub fn is_away(&self) -> bool {
        self.role == Role::Behind && !self.here
    }

    /// It gets all writes, and its stale bytes.
    pub fn is_rebuilding(&self) -> bool {
        self.role == Role::Behind && self.here
    }

    /// It misses a change of `at`.
    #[inline]
    pub fn misses(&mut self, at: &Range<u64>) {
        if let Some(stale) = &mut self.stale {
            stale.add(at);
        }
    }

    /// True if any of its bytes is stale.
    pub fn is_stale(&self) -> bool {
        self.stale.as_ref().is_some_and(|stale| !stale.is_empty())
    }

    /// How many of its bytes are stale.
    pub fn stale_bytes(&self) -> u64 {
        self.stale.as_ref().map_or(0, Bits::bytes)
    }
}

/// What is asked of all legs together.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// With fewer legs in sync bytes are lost.
    pub needs: usize,
    /// So many legs there are to be, spares not counted.
    pub legs: usize,
    /// Where each leg has a place of its own, because it holds other bytes than the others: how many there
    /// are.
    pub places: usize,
    /// How long a leg may be away before a spare takes its place.
    pub timeout: Duration,
}

/// A leg that has failed: what it becomes, when, and why.
pub struct Loss<'a> {
    pub to: Role,
    pub at: Time,
    pub why: Option<&'a Error>,
    /// What it may have had, and may have lost.
    pub unflushed: &'a Bits,
}

/// What has become of a leg that is to take part again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejoined {
    /// It does already, or is a spare.
    Already,
    /// There are enough without it: it is a spare.
    Spare,
    /// It is away, or rebuilding: it is to be asked.
    Behind,
}

/// All legs.
#[derive(Clone, Debug)]
pub struct Roles {
    legs: Vec<LegState>,
    pub wanted: Wanted,
    /// Bytes of each leg that are used.
    size: u64,
    /// The longest logical block.
    block: u32,
}

// Questions.
impl Roles {
    pub fn new(legs: Vec<LegState>, wanted: Wanted, size: u64, block: u32) -> Roles {
        Roles { legs, wanted, size, block }
    }

    pub fn legs(&self) -> &[LegState] {
        &self.legs
    }

    #[inline]
    pub fn leg(&self, leg: usize) -> &LegState {
        &self.legs[leg]
    }

    #[inline]
    pub fn leg_mut(&mut self, leg: usize) -> &mut LegState {
        &mut self.legs[leg]
    }

    #[inline]
    pub fn legs_mut(&mut self) -> impl Iterator<Item = &mut LegState> {
        self.legs.iter_mut()
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    fn those(&self, are: impl Fn(&LegState) -> bool) -> impl Iterator<Item = usize> {
        self.legs.iter().enumerate().filter_map(move |(leg, it)| are(it).then_some(leg))
    }

    /// The legs that have everything.
    pub fn in_sync(&self) -> impl Iterator<Item = usize> {
        self.those(|leg| leg.role == Role::Sync)
    }

    /// How many places are held by those legs in sync that `counts` says. Where legs are all the same, each
    /// has its own.
    pub fn covered_by(&self, counts: impl Fn(usize) -> bool) -> usize {
        let those = self.in_sync().filter(|leg| counts(*leg));
        match self.wanted.places {
            0 => those.count(),
            _ => those.filter_map(|leg| self.legs[leg].place).collect::<BTreeSet<_>>().len(),
        }
    }

    /// How many places are held by legs in sync other than `but`.
    pub fn covered(&self, but: Option<usize>) -> usize {
        self.covered_by(|leg| Some(leg) != but)
    }

    /// True if a place is not held by a leg in sync.
    pub fn is_degraded(&self) -> bool {
        self.wanted.places > 0 && self.covered(None) < self.wanted.places
    }

    /// True if bytes are lost without leg `leg`.
    pub fn is_last(&self, leg: usize) -> bool {
        self.legs[leg].role == Role::Sync && self.covered(Some(leg)) < self.wanted.needs
    }

    /// True if every leg has every byte, or nothing to do.
    pub fn are_whole(&self) -> bool {
        self.legs.iter().all(|leg| matches!(leg.role, Role::Sync | Role::Spare))
    }

    /// How many legs have everything or are getting it, as far as one may wait for that.
    fn active(&self, now: Time) -> usize {
        self.actives(now).count()
    }

    fn actives(&self, now: Time) -> impl Iterator<Item = &LegState> {
        let patient = move |leg: &&LegState| match leg.role {
            Role::Sync => true,
            Role::Behind => leg.here || now.since(leg.since) < self.wanted.timeout,
            Role::Failed | Role::Spare => false,
        };
        self.legs.iter().filter(|leg| !leg.leaving).filter(patient)
    }

    /// The first place that no active leg holds.
    fn free_place(&self, now: Time) -> Option<usize> {
        (0..self.wanted.places).find(|place| self.actives(now).all(|leg| leg.place != Some(*place)))
    }

    /// True if a leg that stays is behind, and may get what it lacks; `is_there` says which devices are.
    pub fn is_catching_up(&self, is_there: impl Fn(usize) -> bool) -> bool {
        let waits = |leg: &LegState| !leg.leaving && leg.role == Role::Behind;
        self.those(waits).any(|leg| self.legs[leg].here || is_there(leg))
    }

    /// True if nothing is lost with the legs that leave.
    pub fn can_leave(&self) -> bool {
        let stays = |leg: &usize| !self.legs[*leg].leaving;
        let left: Vec<usize> = self.in_sync().filter(stays).collect();
        let has = |place: usize| left.iter().any(|leg| self.legs[*leg].place == Some(place));
        match self.wanted.places {
            0 => left.len() >= self.wanted.needs.max(1),
            // No leg goes that would leave a place without one.
            _ => self.in_sync().filter_map(|leg| self.legs[leg].place).all(has),
        }
    }

    /// Says what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let wrong = |leg: usize, what: &str| Err(format!("leg {leg} ({:?}) {what}", self.legs[leg].role));
        for (number, leg) in self.legs.iter().enumerate() {
            let is_behind = matches!(leg.role, Role::Behind | Role::Failed);
            let is_used = self.wanted.places == 0 || leg.place.is_some();
            if leg.here && leg.role != Role::Behind {
                return wrong(number, "is here");
            }
            if !is_behind && (leg.stale.is_some() || leg.copied.is_some()) {
                return wrong(number, "has stale bytes");
            }
            if is_behind && is_used && leg.stale.is_none() {
                return wrong(number, "has stale bytes that are not known");
            }
            if leg.stale.as_ref().is_some_and(|stale| stale.size() != self.size)
                || leg.copied.is_some_and(|copied| copied > self.size)
            {
                return wrong(number, "has stale bytes of another size");
            }
            if leg.place.is_some_and(|place| place >= self.wanted.places) {
                return wrong(number, "has a place that does not exist");
            }
        }
        Ok(())
    }
}

// Transitions.
impl Roles {
    /// Nothing, as bits of a leg.
    fn nothing(&self) -> Bits {
        nothing_of(self.size, self.block)
    }

    /// Leg `leg` misses what is written from now on, and what it may have lost.
    pub fn lose(&mut self, leg: usize, loss: Loss) {
        assert!(!self.is_last(leg), "the last leg that has a byte is never put out");
        let nothing = self.nothing();
        let it = &mut self.legs[leg];
        if it.takes_writes() {
            it.stale.get_or_insert(nothing).join(loss.unflushed);
        }
        it.role = loss.to;
        it.here = false;
        it.since = loss.at;
        it.why = loss.why.cloned();
        // No other leg keeps an intent that would say what it misses; or nothing that it holds is to be
        // trusted.
        if loss.why.is_some_and(is_truncated)
            || !self.legs.iter().any(|leg| leg.takes_writes() && leg.area.is_some())
        {
            self.lacks_all(leg);
        }
    }

    /// Leg `leg` has nothing.
    fn lacks_all(&mut self, leg: usize) {
        let mut all = self.nothing();
        all.add(&(0..self.size));
        let it = &mut self.legs[leg];
        it.stale = Some(all);
        it.copied = Some(0);
    }

    /// Nothing that leg `leg` holds is trusted any more: its end is gone, or it is to leave. Not if it has
    /// every byte.
    pub fn end_is_gone(&mut self, leg: usize) -> bool {
        let is_behind = matches!(self.legs[leg].role, Role::Behind | Role::Failed);
        if is_behind {
            self.lacks_all(leg);
        }
        is_behind
    }

    /// Leg `leg` answers. True if it takes writes from now on, and did not before.
    pub fn answers(&mut self, leg: usize) -> bool {
        let it = &mut self.legs[leg];
        let is_back = it.is_away();
        it.here |= is_back;
        is_back
    }

    /// Leg `leg` was flushed: true if it has all from now on.
    pub fn complete(&mut self, leg: usize) -> bool {
        let it = &mut self.legs[leg];
        let is_complete = it.is_rebuilding() && !it.is_stale();
        if is_complete {
            (it.role, it.here, it.stale, it.copied) = (Role::Sync, false, None, None);
        }
        is_complete
    }

    /// Leg `leg` is not asked for anything any more: true if that is new. It is not the last one.
    pub fn fail(&mut self, leg: usize, at: Time, unflushed: &Bits) -> bool {
        match self.legs[leg].role {
            Role::Failed => return false,
            Role::Spare => self.lacks_all(leg),
            Role::Sync | Role::Behind => {}
        }
        self.lose(leg, Loss { to: Role::Failed, at, why: None, unflushed });
        true
    }

    /// Leg `leg` is to take part again.
    pub fn rejoin(&mut self, leg: usize, now: Time) -> Rejoined {
        match self.legs[leg].role {
            Role::Sync | Role::Spare => return Rejoined::Already,
            Role::Failed if self.active(now) >= self.wanted.legs => {
                let it = &mut self.legs[leg];
                (it.role, it.stale, it.copied, it.place) = (Role::Spare, None, None, None);
                return Rejoined::Spare;
            }
            Role::Failed => self.seat(leg, now),
            Role::Behind => {}
        }
        let it = &mut self.legs[leg];
        (it.role, it.since) = (Role::Behind, now);
        Rejoined::Behind
    }

    /// Gives leg `leg` a place, if it has none, or another one has taken it meanwhile; then it has nothing.
    fn seat(&mut self, leg: usize, now: Time) {
        let mine = self.legs[leg].place;
        let is_free = mine.is_some() && self.actives(now).all(|other| other.place != mine);
        if self.wanted.places > 0 && !is_free {
            self.legs[leg].place = self.free_place(now);
            self.lacks_all(leg);
        }
    }

    /// Spares whose device `is_there` take the place of legs that are failed, leave, or are away for too
    /// long. Returns them.
    pub fn take_spares(&mut self, now: Time, is_there: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut taken = Vec::new();
        while self.active(now) < self.wanted.legs {
            let is_spare = |leg: &LegState| leg.role == Role::Spare;
            let Some(spare) = self.those(is_spare).find(|leg| is_there(*leg)) else { break };
            let (places, place) = (self.wanted.places, self.free_place(now));
            let is_gone = |leg: &&mut LegState| leg.is_away() && (places == 0 || leg.place == place);
            if let Some(gone) = self.legs.iter_mut().find(is_gone) {
                gone.role = Role::Failed;
            }
            // A leg whose place is taken has nothing any more, and no other one remembers what it misses. One
            // that leaves and still gets all writes shares its place until then: its bytes may be needed.
            let is_out = |leg: &&mut LegState| places > 0 && leg.place == place && !leg.takes_writes();
            for gone in self.legs.iter_mut().filter(is_out) {
                gone.place = None;
                gone.stale = None;
            }
            self.lacks_all(spare);
            let it = &mut self.legs[spare];
            (it.place, it.role, it.since) = (place, Role::Behind, now);
            taken.push(spare);
        }
        taken
    }

    /// The legs that `are` leave, as soon as nothing is lost with them.
    pub fn leave(&mut self, are: impl Fn(usize) -> bool) {
        self.legs.iter_mut().enumerate().for_each(|(leg, it)| it.leaving = it.leaving || are(leg));
    }

    /// The legs that were to leave stay.
    pub fn stay(&mut self) {
        self.legs.iter_mut().for_each(|leg| leg.leaving = false);
    }

    /// The legs that leave are gone, and have nothing.
    pub fn left(&mut self, at: Time, unflushed: &Bits) -> bool {
        let leaving: Vec<usize> = self.those(|leg| leg.leaving).collect();
        let mut has_changed = false;
        for leg in leaving {
            has_changed |= self.legs[leg].role != Role::Failed;
            if self.legs[leg].role != Role::Failed {
                self.lose(leg, Loss { to: Role::Failed, at, why: None, unflushed });
            }
            self.lacks_all(leg);
        }
        has_changed
    }

    /// Leg `leg` was given its bytes at `at`, under the lock: true if it still takes them.
    pub fn copied(&mut self, leg: usize, at: &Range<u64>) -> bool {
        let it = &mut self.legs[leg];
        if it.here {
            it.stale.iter_mut().for_each(|stale| stale.remove(at));
        }
        it.here
    }

    /// Leg `leg`, which had nothing, is known to have what lies before `position`, durably: true if that is
    /// new.
    pub fn advance(&mut self, leg: usize, position: u64) -> bool {
        let it = &mut self.legs[leg];
        let is_further = it.here && it.copied.is_some_and(|before| before < position);
        if is_further {
            it.copied = Some(position);
        }
        is_further
    }

    /// Each leg has `size` bytes from now on, and its intent begins at byte `start`. What is new is stale
    /// where anything is known to be: that leg has just failed.
    pub fn become_larger(&mut self, size: u64, start: u64) {
        let new = std::mem::replace(&mut self.size, size)..size;
        let nothing = self.nothing();
        for leg in &mut self.legs {
            leg.area = Some(start);
            if let Some(stale) = &mut leg.stale {
                let before = std::mem::replace(stale, nothing.clone());
                stale.join(&before);
                stale.add(&new);
            }
        }
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

#[cfg(test)]
mod tests;
