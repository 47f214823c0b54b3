//! The state that decides: the role of each leg ([`Roles`]), and where legs may differ ([`Regions`]). Plain
//! state: nothing here waits, and [`Legs::change`](super::Legs::change) is the only way to change it.
//!
//! ```text
//!                  legs                                  regions          is_out_of_sync
//!  begin (write)   those that take no writes miss it     written          as before
//!  put_out, fail   `roles.rs`; what the leg may lose,    -                yes
//!                  and where legs differ, is stale
//!  unknown         those stale or failed miss it         needs a resync   yes
//!  agree           -                                     needs none       looked for
//!  of_roles        `roles.rs`                            -                looked for
//!  of_regions      -                                     `regions.rs`     looked for
//!  become_larger   new bytes are stale, if any are       needs a resync   yes
//! ```
//!
//! Invariant ([`State::check`]), beside those of the two: **while `is_out_of_sync` is false**, every leg is
//! in sync or a spare, and no region needs a resync. Reads and writes look no further then.

use super::background::{Rebuild, Ticks};
use super::findings::Findings;
use super::is_away;
use super::regions::Regions;
use super::roles::{LegState, Loss, Role, Roles, Wanted, is_truncated};
use lamina_block::{Error, ErrorKind, Time};
use lamina_kit::intent::Bits;
use std::ops::Range;

/// The state of all legs.
#[derive(Clone, Debug)]
pub struct State {
    roles: Roles,
    regions: Regions,
    /// False while every leg has every byte: nothing needs to be looked up.
    is_out_of_sync: bool,
    block: u32,
    /// The new bytes since the legs have grown begin here, and are not zeroed yet.
    to_zero: Option<u64>,
    pub findings: Findings,
    pub rebuild: Rebuild,
    pub ticks: Ticks,
}

impl State {
    /// The state of `legs`, of which `size` bytes each are used, in blocks of at most `block`.
    pub fn new(legs: Vec<LegState>, wanted: Wanted, size: u64, block: u32) -> State {
        let roles = Roles::new(legs, wanted, size, block);
        let mut state = State {
            roles,
            regions: Regions::new(size, block),
            is_out_of_sync: true,
            block,
            to_zero: None,
            findings: Findings::default(),
            rebuild: Rebuild::default(),
            ticks: Ticks::default(),
        };
        state.look();
        state
    }

    #[inline]
    pub fn roles(&self) -> &Roles {
        &self.roles
    }

    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Changes the roles of legs.
    pub fn of_roles<T>(&mut self, change: impl FnOnce(&mut Roles) -> T) -> T {
        let result = change(&mut self.roles);
        self.look();
        result
    }

    /// Changes where legs may differ, or which bytes are not flushed.
    pub fn of_regions<T>(&mut self, change: impl FnOnce(&mut Regions) -> T) -> T {
        let result = change(&mut self.regions);
        self.look();
        result
    }

    /// True if legs in sync may differ at `at`.
    #[inline]
    pub fn needs_resync(&self, at: &Range<u64>) -> bool {
        self.is_out_of_sync && self.regions.needs_resync().touches(at)
    }

    /// A change of `at` is submitted to all legs that take writes, at once. The other legs that `is_of` names
    /// miss it.
    #[inline]
    pub fn begin(&mut self, at: &Range<u64>, is_of: impl Fn(&LegState) -> bool) {
        self.regions.write(at);
        if self.is_out_of_sync {
            let others = self.roles.legs_mut().filter(|leg| !leg.takes_writes() && is_of(leg));
            others.for_each(|leg| leg.mark_stale(at));
        }
    }

    /// Bytes at `at` that other legs have are about to be written to a leg.
    #[inline]
    pub fn write(&mut self, at: &Range<u64>) {
        self.regions.write(at);
    }

    /// Leg `leg` misses a change of `at`: those bytes are stale.
    pub fn mark_stale(&mut self, leg: usize, at: &Range<u64>) {
        self.roles.leg_mut(leg).mark_stale(at);
    }

    /// Looks whether any leg is out of sync.
    fn look(&mut self) {
        self.is_out_of_sync = !self.roles.are_whole() || !self.regions.needs_resync().is_empty();
    }

    /// A leg has failed with `e`: true if the leg is stale from now on. Not if it is the last one in sync;
    /// then its errors are the device's.
    pub fn put_out(&mut self, leg: usize, e: &Error, at: Time) -> bool {
        let is_out = self.roles.leg(leg).takes_writes() && !self.roles.is_last(leg);
        if is_out {
            let to = if is_away(e) || is_truncated(e) { Role::Stale } else { Role::Failed };
            let unflushed = &self.unflushed();
            self.of_roles(|roles| roles.lose(leg, Loss { to, at, why: Some(e), unflushed }));
        }
        is_out
    }

    /// See [`Roles::fail`].
    pub fn fail(&mut self, leg: usize, at: Time) -> bool {
        let unflushed = self.unflushed();
        self.of_roles(|roles| roles.fail(leg, at, &unflushed))
    }

    /// See [`Roles::detached`].
    pub fn detached(&mut self, at: Time) -> bool {
        let unflushed = self.unflushed();
        self.of_roles(|roles| roles.detached(at, &unflushed))
    }

    fn unflushed(&self) -> Bits {
        self.regions.unflushed(self.roles.wanted.columns == 0)
    }

    /// See [`Regions::begin_flush`].
    pub fn begin_flush(&mut self, under_way: &[Range<u64>]) -> bool {
        self.regions.begin_flush(under_way)
    }

    /// See [`Regions::end_flush`].
    pub fn end_flush(&mut self, failed: bool) {
        self.regions.end_flush(failed);
    }

    /// Each leg may have a change of `at`, or not.
    pub fn unknown(&mut self, at: &Range<u64>) {
        self.diverge(at);
        if self.roles.wanted.columns == 0 {
            self.roles.legs_mut().for_each(|leg| leg.mark_stale(at));
        }
    }

    /// Legs may differ at `at`.
    pub fn diverge(&mut self, at: &Range<u64>) {
        self.of_regions(|regions| regions.diverge(at));
    }

    /// Leg `leg` was given its bytes at `at`, under the lock.
    pub fn copied(&mut self, leg: usize, at: &Range<u64>) {
        if self.roles.copied(leg, at) {
            self.rebuild.count(at.end - at.start);
        }
    }

    /// Legs agree at `at`, which was compared when they had `size` bytes.
    pub fn agree(&mut self, at: &Range<u64>, size: u64) {
        // The last unit may be longer by now.
        if self.roles.size() == size {
            self.of_regions(|regions| regions.agree(at));
        }
    }

    /// True if no leg has stale bytes in `region` that only the intent knows of.
    pub fn is_clean(&self, region: &Range<u64>) -> bool {
        let is_stale = |leg: &LegState| {
            let known = leg.copied.unwrap_or(u64::MAX);
            let at = region.start.min(known)..region.end.min(known);
            leg.stale.as_ref().is_some_and(|stale| stale.touches(&at))
        };
        !self.regions.needs_resync().touches(region) && !self.roles.legs().iter().any(is_stale)
    }

    /// Takes in the `dirty` regions of the intent when the device is opened. `needed` are the recorded ranges
    /// where legs differ; `was` is the recorded role of each leg.
    pub fn open(&mut self, needed: Option<&[(u64, u64)]>, dirty: &Bits, was: impl Fn(usize) -> Option<Role>) {
        let (size, columns) = (self.roles.size(), self.roles.wanted.columns);
        match needed {
            Some(ranges) => {
                let inside = |(start, end): &(u64, u64)| (*start).min(size)..(*end).min(size);
                ranges.iter().map(inside).for_each(|at| self.regions.diverge(&at));
            }
            None if self.roles.in_sync().count() > 1 => self.regions.diverge_in(dirty),
            None => {}
        }
        for (number, leg) in self.roles.legs_mut().enumerate() {
            let Some(stale) = &mut leg.stale else { continue };
            // Where each leg has other bytes, those of a leg that has just gone are as good as the others.
            if columns == 0 || (leg.column.is_some() && was(number) != Some(Role::Sync)) {
                stale.join(dirty);
            }
            if let Some(copied) = leg.copied {
                stale.add(&(copied..size));
            }
        }
        self.look();
    }

    /// The bytes to be repaired on legs that are there.
    fn to_repair(&self) -> impl Iterator<Item = &Bits> {
        let rebuilding = self.roles.legs().iter().filter(|leg| leg.is_rebuilding());
        std::iter::once(self.regions.needs_resync()).chain(rebuilding.filter_map(|leg| leg.stale.as_ref()))
    }

    /// True if there is anything to repair, or the end of a repair to record.
    pub fn has_work(&self) -> bool {
        self.roles.legs().iter().any(LegState::is_rebuilding) || !self.regions.needs_resync().is_empty()
    }

    /// Bytes that are to be repaired.
    pub fn repair_bytes(&self) -> u64 {
        self.to_repair().map(Bits::bytes).sum()
    }

    /// The next bytes from `from` on that are to be repaired at once, about `most`.
    pub fn next_repair(&self, from: u64, most: u64) -> Option<Range<u64>> {
        let run_of = |bits: &Bits| {
            let mut run = bits.next(from)?;
            while let Some(more) =
                bits.next(run.end).filter(|m| m.start == run.end && m.end - run.start <= most)
            {
                run.end = more.end;
            }
            Some(run)
        };
        self.to_repair().filter_map(run_of).min_by_key(|run| run.start)
    }

    /// The legs that had no bytes, and up to where each of them has all, if repairs from byte `begun` on are
    /// under way.
    pub fn positions(&self, begun: u64) -> Vec<(usize, u64)> {
        let first = |leg: &LegState| {
            let next = leg.stale.as_ref().and_then(|stale| stale.next(0));
            next.map_or(self.roles.size(), |unit| unit.start).min(begun)
        };
        let legs = self.roles.legs().iter().enumerate();
        let had_nothing = legs.filter(|(_, leg)| leg.is_rebuilding() && leg.copied.is_some());
        had_nothing.map(|(number, leg)| (number, first(leg))).collect()
    }

    /// The new bytes that are not zeroed yet.
    pub fn to_zero(&self) -> Option<Range<u64>> {
        self.to_zero.map(|start| start..self.roles.size())
    }

    /// The new bytes from `start` on are not zeroed yet; or, with `None`, all are zeroed.
    pub fn set_to_zero(&mut self, start: Option<u64>) {
        self.to_zero = start.map(|start| start.min(self.roles.size()));
    }

    /// Each leg has `size` bytes from now on, and its intent begins at byte `start`. The new bytes are to be
    /// zeroed.
    pub fn become_larger(&mut self, size: u64, start: u64) {
        self.to_zero = Some(self.roles.size());
        self.roles.become_larger(size, start);
        self.regions.become_larger(size, self.block);
        self.look();
    }

    /// Says which invariant does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.roles.check()?;
        self.regions.check(self.roles.size())?;
        self.findings.check(self.roles.size())?;
        if self.to_zero.is_some_and(|start| start > self.roles.size()) {
            return Err("the bytes to zero end beyond the legs".into());
        }
        let is_whole = self.roles.are_whole() && self.regions.needs_resync().is_empty();
        match self.is_out_of_sync || is_whole {
            true => Ok(()),
            false => Err("the state claims to be in sync and is not".into()),
        }
    }
}

/// True for errors after which no byte has changed.
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

#[cfg(test)]
mod tests;
