//! Where legs in sync may differ, and which bytes a leg that goes away now may lose: plain state.
//!
//! Three bits of each unit: it *needs a resync*, it was *written* since the last flush began, and it is being
//! *flushed*. A flush that begins while another one is under way changes nothing here: its units stay
//! written.
//!
//! ```text
//!                       write        begin_flush    flushed   flush failed   diverge     agree
//!  -                    written      -              -         -              resync      -
//!  needs a resync       + written    -              -         -              -           none
//!  written              -            flushed, *     -         -              + resync    -
//!  flushed              + written    -              none      written        + resync    -
//!  written and flushed  -            -              written   written        + resync    -
//! ```
//!
//! `-`: as before. `*`: written as well, if a write there is under way: the flush may miss that write. The
//! need of a resync and the other two bits do not change each other.
//!
//! Invariant ([`Regions::check`]): all sets have the size of the legs and the same units.

use lamina_kit::flaw::flawed;
use lamina_kit::intent::Bits;
use std::ops::Range;

/// The shortest unit of stale bytes; there are at most so many for each leg, unless they would be longer than
/// the other bound.
const GRAIN: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 20;
const GRAINS_MAX: u64 = 1 << 20;

/// No stale bytes, as bits of a leg of `size` bytes.
pub(super) fn nothing_of(size: u64, block: u32) -> Bits {
    let grain = size.div_ceil(GRAINS_MAX).next_power_of_two().clamp(*GRAIN.start(), *GRAIN.end());
    Bits::none(size, grain.max(u64::from(block)))
}

/// The regions of all legs.
#[derive(Clone, Debug)]
pub struct Regions {
    /// Where legs in sync may differ, after a crash or a write that failed.
    needs_resync: Bits,
    /// Written since the last flush began.
    written: Bits,
    /// Written before that, since the flush before; while a flush is under way.
    flushing: Option<Bits>,
}

impl Regions {
    /// Of legs of `size` bytes, with blocks of at most `block`.
    pub fn new(size: u64, block: u32) -> Regions {
        let none = nothing_of(size, block);
        Regions { needs_resync: none.clone(), written: none, flushing: None }
    }

    /// Where legs in sync may differ.
    pub fn needs_resync(&self) -> &Bits {
        &self.needs_resync
    }

    /// Bytes of a unit.
    pub fn unit(&self) -> u64 {
        self.written.unit()
    }

    /// A write to `at` is about to be submitted.
    #[inline]
    pub fn write(&mut self, at: &Range<u64>) {
        self.written.add(at);
    }

    /// A flush of all legs begins, while those in `under_way` are written: true if no other flush is under
    /// way.
    pub fn begin_flush(&mut self, under_way: &[Range<u64>]) -> bool {
        let is_only = self.flushing.is_none();
        if is_only {
            let mut next = Bits::none(self.written.size(), self.written.unit());
            under_way.iter().for_each(|at| next.add(at));
            self.flushing = Some(std::mem::replace(&mut self.written, next));
        }
        is_only
    }

    /// The flush that [`Regions::begin_flush`] accepted has ended. If it failed, its units are not durable.
    pub fn end_flush(&mut self, failed: bool) {
        debug_assert!(self.flushing.is_some(), "a flush ends once, and only one that has begun");
        if let Some(before) = self.flushing.take().filter(|_| failed) {
            self.written.join(&before);
        }
    }

    /// The bytes that a leg may have lost that goes away now. Where the legs are `same`, the legs that stay
    /// are made the same without it wherever they differ.
    pub fn unflushed(&self, same: bool) -> Bits {
        let mut all = Bits::none(self.written.size(), self.unit());
        if !flawed("what was not flushed is forgotten") {
            all.join(&self.written);
            self.flushing.iter().for_each(|bits| all.join(bits));
        }
        if same && !flawed("what needs a resync is not missed") {
            all.join(&self.needs_resync);
        }
        all
    }

    /// Legs may differ at `at`.
    pub fn diverge(&mut self, at: &Range<u64>) {
        self.needs_resync.add(at);
    }

    /// Legs may differ in `regions`.
    pub fn diverge_in(&mut self, regions: &Bits) {
        self.needs_resync.join(regions);
    }

    /// Legs agree in all units that `at` touches.
    pub fn agree(&mut self, at: &Range<u64>) {
        self.needs_resync.remove(at);
    }

    /// Legs agree in those units that lie wholly in `at`: true if that was not known.
    pub fn agree_within(&mut self, at: &Range<u64>) -> bool {
        let (unit, size) = (self.unit(), self.needs_resync.size());
        let end = if at.end >= size { at.end.next_multiple_of(unit) } else { at.end / unit * unit };
        let units = at.start.next_multiple_of(unit)..end.min(size);
        let is_new = self.needs_resync.touches(&units);
        if is_new {
            self.needs_resync.remove(&units);
        }
        is_new
    }

    /// Legs have `size` bytes from now on, and may differ in the new bytes.
    pub fn become_larger(&mut self, size: u64, block: u32) {
        let before = self.written.size();
        let longer = |bits: &Bits| {
            let mut longer = nothing_of(size, block);
            longer.join(bits);
            longer
        };
        self.needs_resync = longer(&self.needs_resync);
        self.written = longer(&self.written);
        self.flushing = self.flushing.as_ref().map(longer);
        self.diverge(&(before..size));
    }

    /// Says which invariant does not hold, if the legs have `size` bytes.
    pub fn check(&self, size: u64) -> Result<(), String> {
        let sets = [Some(&self.needs_resync), Some(&self.written), self.flushing.as_ref()];
        let unit = self.unit();
        match sets.into_iter().flatten().find(|bits| (bits.size(), bits.unit()) != (size, unit)) {
            None => Ok(()),
            Some(bits) => {
                Err(format!("a set of {} bytes in units of {} for {size}", bits.size(), bits.unit()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
