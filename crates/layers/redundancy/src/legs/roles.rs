//! The role of each leg, and how roles change: plain state, which decides at once and waits for nothing.
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
//! *Away* and *rebuilding* are [`Role::Stale`] without and with `here`. `*`: every byte of the leg is stale
//! from then on. `†`: the same, if another leg has its column. `‡`: where each leg has a column, and the
//! spare has taken that of this leg, this leg has none. A leg in sync is lost only if the other legs have all
//! bytes without it ([`Roles::is_last`]).
//!
//! Invariants ([`Roles::check`]):
//! * Only a stale leg is `here`.
//! * The stale bytes of a stale or failed leg are known; a leg in sync, or a spare, has none. Where each leg
//!   has a column, those of a leg without one are not known, and none of its bytes are used.
//! * Stale bytes are counted in the size that the legs have.

use super::regions::nothing_of;
use lamina_block::{Error, ErrorKind, Time};
use lamina_kit::intent::Bits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// The role of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The leg has every byte.
    Sync,
    /// Some bytes of the leg are stale; they are copied as soon as the leg answers.
    #[serde(rename = "behind")]
    Stale,
    /// Some bytes of the leg are stale, and the leg gets no requests until `rejoin`.
    Failed,
    /// The leg has no bytes, and replaces another leg when that is needed.
    Spare,
}

/// The state of a leg.
#[derive(Clone, Debug)]
pub struct LegState {
    pub role: Role,
    /// The leg takes writes, though some of its bytes may be stale.
    pub here: bool,
    /// The stale bytes of the leg, while it is stale or failed.
    pub stale: Option<Bits>,
    /// All bytes of the leg from this one on are stale; recorded.
    pub copied: Option<u64>,
    /// Where the intent of the leg lies, if there is room for one.
    pub area: Option<u64>,
    /// The column of the leg, where each leg has one: see [`Needs`](super::Needs).
    pub column: Option<usize>,
    /// The leg is to be detached.
    pub detaching: bool,
    /// When the leg went away, and why.
    pub since: Time,
    pub why: Option<Error>,
}

impl LegState {
    /// True if the leg gets changes.
    #[inline]
    pub fn takes_writes(&self) -> bool {
        match self.role {
            Role::Sync => true,
            Role::Stale => self.here,
            Role::Failed | Role::Spare => false,
        }
    }

    /// True if the leg has the right bytes at `at`.
    #[inline]
    pub fn is_good(&self, at: &Range<u64>) -> bool {
        match self.role {
            Role::Sync => true,
            Role::Stale if self.here => self.stale.as_ref().is_none_or(|stale| !stale.touches(at)),
            Role::Stale | Role::Failed | Role::Spare => false,
        }
    }

    /// True if the leg does not answer, and is asked again.
    pub fn is_away(&self) -> bool {
        self.role == Role::Stale && !self.here
    }

    /// True if the leg gets all writes, and its stale bytes are being copied.
    pub fn is_rebuilding(&self) -> bool {
        self.role == Role::Stale && self.here
    }

    /// The leg misses a change of `at`.
    #[inline]
    pub fn mark_stale(&mut self, at: &Range<u64>) {
        if let Some(stale) = &mut self.stale {
            stale.add(at);
        }
    }

    /// True if any byte of the leg is stale.
    pub fn has_stale_bytes(&self) -> bool {
        self.stale.as_ref().is_some_and(|stale| !stale.is_empty())
    }

    /// How many bytes of the leg are stale.
    pub fn stale_bytes(&self) -> u64 {
        self.stale.as_ref().map_or(0, Bits::bytes)
    }
}

/// The settings of all legs together.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// With fewer legs in sync bytes are lost.
    pub needs: usize,
    /// The number of legs, without spares.
    pub legs: usize,
    /// The number of columns, where each leg has a column because its bytes differ from those of the others;
    /// otherwise 0.
    pub columns: usize,
    /// How long a leg may be away before a spare takes its place.
    pub timeout: Duration,
}

/// The failure of a leg: its new role, when, and why.
pub struct Loss<'a> {
    pub to: Role,
    pub at: Time,
    pub why: Option<&'a Error>,
    /// Writes that the leg may have had, and may have lost.
    pub unflushed: &'a Bits,
}

/// The result of a `rejoin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejoined {
    /// The leg takes part already, or is a spare.
    Already,
    /// There are enough legs without it: it is a spare.
    Spare,
    /// The leg is away, or rebuilding: it is to be asked.
    Stale,
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

    /// The legs that have every byte.
    pub fn in_sync(&self) -> impl Iterator<Item = usize> {
        self.those(|leg| leg.role == Role::Sync)
    }

    /// How many columns have a leg in sync of those that `counts` names. Where legs are all the same, each is
    /// a column.
    pub fn covered_by(&self, counts: impl Fn(usize) -> bool) -> usize {
        let those = self.in_sync().filter(|leg| counts(*leg));
        match self.wanted.columns {
            0 => those.count(),
            _ => those.filter_map(|leg| self.legs[leg].column).collect::<BTreeSet<_>>().len(),
        }
    }

    /// How many columns have a leg in sync other than `but`.
    pub fn covered(&self, but: Option<usize>) -> usize {
        self.covered_by(|leg| Some(leg) != but)
    }

    /// True if a column has no leg in sync.
    pub fn is_degraded(&self) -> bool {
        self.wanted.columns > 0 && self.covered(None) < self.wanted.columns
    }

    /// True if bytes are lost without leg `leg`.
    pub fn is_last(&self, leg: usize) -> bool {
        self.legs[leg].role == Role::Sync && self.covered(Some(leg)) < self.wanted.needs
    }

    /// True if every leg has every byte, or nothing to do.
    pub fn are_whole(&self) -> bool {
        self.legs.iter().all(|leg| matches!(leg.role, Role::Sync | Role::Spare))
    }

    /// How many legs have every byte or may still get it; a leg that is away counts until its timeout.
    fn active(&self, now: Time) -> usize {
        self.actives(now).count()
    }

    fn actives(&self, now: Time) -> impl Iterator<Item = &LegState> {
        let patient = move |leg: &&LegState| match leg.role {
            Role::Sync => true,
            Role::Stale => leg.here || now.since(leg.since) < self.wanted.timeout,
            Role::Failed | Role::Spare => false,
        };
        self.legs.iter().filter(|leg| !leg.detaching).filter(patient)
    }

    /// The first column without an active leg.
    fn free_column(&self, now: Time) -> Option<usize> {
        (0..self.wanted.columns).find(|column| self.actives(now).all(|leg| leg.column != Some(*column)))
    }

    /// True if a leg that stays is stale, and may be rebuilt; `is_there` says which devices are there.
    pub fn is_catching_up(&self, is_there: impl Fn(usize) -> bool) -> bool {
        let waits = |leg: &LegState| !leg.detaching && leg.role == Role::Stale;
        self.those(waits).any(|leg| self.legs[leg].here || is_there(leg))
    }

    /// True if no bytes are lost with the legs that are being detached.
    pub fn can_detach(&self) -> bool {
        let stays = |leg: &usize| !self.legs[*leg].detaching;
        let left: Vec<usize> = self.in_sync().filter(stays).collect();
        let has = |column: usize| left.iter().any(|leg| self.legs[*leg].column == Some(column));
        match self.wanted.columns {
            0 => left.len() >= self.wanted.needs.max(1),
            // Each column keeps a leg.
            _ => self.in_sync().filter_map(|leg| self.legs[leg].column).all(has),
        }
    }

    /// Says which invariant does not hold.
    pub fn check(&self) -> Result<(), String> {
        let wrong = |leg: usize, what: &str| Err(format!("leg {leg} ({:?}) {what}", self.legs[leg].role));
        for (number, leg) in self.legs.iter().enumerate() {
            let is_out_of_sync = matches!(leg.role, Role::Stale | Role::Failed);
            let is_used = self.wanted.columns == 0 || leg.column.is_some();
            if leg.here && leg.role != Role::Stale {
                return wrong(number, "is here");
            }
            if !is_out_of_sync && (leg.stale.is_some() || leg.copied.is_some()) {
                return wrong(number, "has stale bytes");
            }
            if is_out_of_sync && is_used && leg.stale.is_none() {
                return wrong(number, "has stale bytes that are not known");
            }
            if leg.stale.as_ref().is_some_and(|stale| stale.size() != self.size)
                || leg.copied.is_some_and(|copied| copied > self.size)
            {
                return wrong(number, "has stale bytes of another size");
            }
            if leg.column.is_some_and(|column| column >= self.wanted.columns) {
                return wrong(number, "has a column that does not exist");
            }
        }
        Ok(())
    }
}

// Transitions.
impl Roles {
    /// No stale bytes, as bits of a leg.
    fn nothing(&self) -> Bits {
        nothing_of(self.size, self.block)
    }

    /// Leg `leg` misses all writes from now on, and those that it may have lost.
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
        // Either no other leg keeps an intent with the stale regions, or no byte of the leg can be
        // trusted.
        if loss.why.is_some_and(is_truncated)
            || !self.legs.iter().any(|leg| leg.takes_writes() && leg.area.is_some())
        {
            self.mark_all_stale(leg);
        }
    }

    /// Every byte of leg `leg` is stale.
    fn mark_all_stale(&mut self, leg: usize) {
        let mut all = self.nothing();
        all.add(&(0..self.size));
        let it = &mut self.legs[leg];
        it.stale = Some(all);
        it.copied = Some(0);
    }

    /// Every byte of leg `leg` is stale from now on: its end is gone, or it is to be detached. Not if it is
    /// in sync.
    pub fn end_is_gone(&mut self, leg: usize) -> bool {
        let is_out_of_sync = matches!(self.legs[leg].role, Role::Stale | Role::Failed);
        if is_out_of_sync {
            self.mark_all_stale(leg);
        }
        is_out_of_sync
    }

    /// Leg `leg` answers. True if it takes writes from now on, and did not before.
    pub fn answers(&mut self, leg: usize) -> bool {
        let it = &mut self.legs[leg];
        let is_back = it.is_away();
        it.here |= is_back;
        is_back
    }

    /// Leg `leg` was flushed: true if it is in sync from now on.
    pub fn complete(&mut self, leg: usize) -> bool {
        let it = &mut self.legs[leg];
        let is_complete = it.is_rebuilding() && !it.has_stale_bytes();
        if is_complete {
            (it.role, it.here, it.stale, it.copied) = (Role::Sync, false, None, None);
        }
        is_complete
    }

    /// Leg `leg` gets no requests any more: true if that is new. It is not the last leg.
    pub fn fail(&mut self, leg: usize, at: Time, unflushed: &Bits) -> bool {
        match self.legs[leg].role {
            Role::Failed => return false,
            Role::Spare => self.mark_all_stale(leg),
            Role::Sync | Role::Stale => {}
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
                (it.role, it.stale, it.copied, it.column) = (Role::Spare, None, None, None);
                return Rejoined::Spare;
            }
            Role::Failed => self.assign_column(leg, now),
            Role::Stale => {}
        }
        let it = &mut self.legs[leg];
        (it.role, it.since) = (Role::Stale, now);
        Rejoined::Stale
    }

    /// Gives leg `leg` a column, if it has none, or another leg has taken it meanwhile; then every byte is
    /// stale.
    fn assign_column(&mut self, leg: usize, now: Time) {
        let mine = self.legs[leg].column;
        let is_free = mine.is_some() && self.actives(now).all(|other| other.column != mine);
        if self.wanted.columns > 0 && !is_free {
            self.legs[leg].column = self.free_column(now);
            self.mark_all_stale(leg);
        }
    }

    /// Spares whose device `is_there` replace legs that are failed, are being detached, or are away for too
    /// long. Returns the spares.
    pub fn take_spares(&mut self, now: Time, is_there: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut taken = Vec::new();
        while self.active(now) < self.wanted.legs {
            let is_spare = |leg: &LegState| leg.role == Role::Spare;
            let Some(spare) = self.those(is_spare).find(|leg| is_there(*leg)) else { break };
            let (columns, column) = (self.wanted.columns, self.free_column(now));
            let is_gone = |leg: &&mut LegState| leg.is_away() && (columns == 0 || leg.column == column);
            if let Some(gone) = self.legs.iter_mut().find(is_gone) {
                gone.role = Role::Failed;
            }
            // Nothing records the stale bytes of a leg whose column is taken, so all are stale. A leg that
            // is being detached and still gets all writes shares its column until then: its bytes may be
            // needed.
            let is_out = |leg: &&mut LegState| columns > 0 && leg.column == column && !leg.takes_writes();
            for gone in self.legs.iter_mut().filter(is_out) {
                gone.column = None;
                gone.stale = None;
            }
            self.mark_all_stale(spare);
            let it = &mut self.legs[spare];
            (it.column, it.role, it.since) = (column, Role::Stale, now);
            taken.push(spare);
        }
        taken
    }

    /// Begins to detach the legs that `are` named; they stay until no bytes are lost with them.
    pub fn detach(&mut self, are: impl Fn(usize) -> bool) {
        self.legs.iter_mut().enumerate().for_each(|(leg, it)| it.detaching = it.detaching || are(leg));
    }

    /// The legs that were to be detached stay.
    pub fn cancel_detach(&mut self) {
        self.legs.iter_mut().for_each(|leg| leg.detaching = false);
    }

    /// The detached legs have failed, and all their bytes are stale.
    pub fn detached(&mut self, at: Time, unflushed: &Bits) -> bool {
        let leaving: Vec<usize> = self.those(|leg| leg.detaching).collect();
        let mut has_changed = false;
        for leg in leaving {
            has_changed |= self.legs[leg].role != Role::Failed;
            if self.legs[leg].role != Role::Failed {
                self.lose(leg, Loss { to: Role::Failed, at, why: None, unflushed });
            }
            self.mark_all_stale(leg);
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

    /// All bytes of leg `leg` before `position` are durable: true if that is new. All its bytes were stale.
    pub fn advance(&mut self, leg: usize, position: u64) -> bool {
        let it = &mut self.legs[leg];
        let is_further = it.here && it.copied.is_some_and(|before| before < position);
        if is_further {
            it.copied = Some(position);
        }
        is_further
    }

    /// Each leg has `size` bytes from now on, and its intent begins at byte `start`. The new bytes are stale
    /// on legs with known stale bytes: such a leg has just failed.
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

/// True if a leg with this error may answer again.
pub fn is_away(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Offline | ErrorKind::TimedOut)
}

/// The error of a leg whose bytes are not trusted any more.
pub(super) fn end_is_gone() -> Error {
    let message =
        "its end is gone: the leg was cut short, or is another device. Every byte is copied from the others";
    Error::new(ErrorKind::Truncated, message)
}

/// True if a leg has lost its end: it can come back, and then all its bytes are stale.
pub(super) fn is_truncated(e: &Error) -> bool {
    e.kind() == ErrorKind::Truncated
}

#[cfg(test)]
mod tests;
