//! Space on a flash, as far as it is decided and not done: plain state. The table of states times operations stands in
//! `mod.rs`.
//!
//! A reservation has slots until its batches have ended. Slots on their way are counted twice, as reserved and as no
//! longer free, rather than not at all. A write that waits for space has no reservation.

use super::format::ENTRIES_MAX;
use lamina_block::Time;
use std::time::Duration;

/// Free segments of which no write is given anything: copies take them.
const FOR_COPIES: u64 = 4;
/// Tails that are freed together, at most: that costs a flush and a state.
pub const TOGETHER: usize = 8;

/// What can be reserved, and what the reclaim has found out. `free` is the number of free segments at the
/// time of a call.
#[derive(Clone, Debug)]
pub struct Space {
    /// All segments, and the slots of each that batches take.
    segments: usize,
    slots: u64,
    reservations: u64,
    /// Slots of all reservations.
    reserved: u64,
    /// Writes that wait for space, since when there has always been one, and all that ever had to.
    waiting: usize,
    since: Time,
    stalls: u64,
    /// Tails whose blocks were copied rather than forgotten, one after the other.
    in_vain: usize,
    /// Volumes do not keep their shares: there is no other way to get space.
    is_strict: bool,
    /// Late tails that were rotated since these numbers of dirty blocks, and of blocks, have changed.
    rotated: usize,
    rotated_of: [u64; 2],
}

impl Space {
    /// Of so many segments, with `slots` slots each.
    pub fn new(segments: u32, slots: u32) -> Space {
        Space {
            segments: segments as usize,
            slots: u64::from(slots),
            reservations: 0,
            reserved: 0,
            waiting: 0,
            since: Time(0),
            stalls: 0,
            in_vain: 0,
            is_strict: false,
            rotated: 0,
            rotated_of: [0; 2],
        }
    }

    /// Segments that should be free.
    pub fn low_water(&self) -> usize {
        6 + self.segments / 64
    }

    /// True if reclaim is to begin.
    pub fn is_short(&self, free: usize) -> bool {
        free < self.low_water()
    }

    /// True if space has been made lately for what came, or is about to be.
    pub fn is_full(&self, free: usize) -> bool {
        free <= (self.low_water() + TOGETHER).min(self.segments / 2)
    }

    /// True if reclaim is to be quick, rather than to copy little.
    pub fn is_urgent(&self, free: usize) -> bool {
        free <= self.low_water() * 3 / 4
    }

    /// Blocks put at once that share a head at least: less than what ends a batch, be it the segment, the
    /// length, or the number of entries.
    pub fn run(&self) -> u64 {
        (self.slots / 2).clamp(1, ENTRIES_MAX as u64 / 2)
    }

    /// Blocks for which a write gets a reservation without waiting.
    pub fn available(&self, free: usize) -> u64 {
        // What is left of open segments is not counted, nor what their ends waste.
        let slots = (free as u64).saturating_sub(FOR_COPIES) * self.slots;
        let slots = slots.saturating_sub(self.reserved);
        (slots / 2).max(slots.saturating_sub(4) / (self.run() + 1) * self.run())
    }

    /// The same for blocks that were read: none while a write waits.
    pub fn available_to_fill(&self, free: usize) -> u64 {
        if self.waiting > 0 { 0 } else { self.available(free) }
    }

    /// Slots that `blocks` blocks take with their heads, at most: each its own head, or one for each log and
    /// one wherever a batch has to end.
    fn slots_for(&self, blocks: u64) -> u64 {
        blocks + blocks.min(4 + blocks.div_ceil(self.run()))
    }

    /// Reserves slots for `blocks` blocks, one at least: so many. None if they do not fit now.
    pub fn reserve(&mut self, blocks: u64, free: usize) -> Option<u64> {
        debug_assert!(blocks > 0, "a reservation is of something");
        if blocks > self.available(free) {
            return None;
        }
        let slots = self.slots_for(blocks);
        self.reservations += 1;
        self.reserved += slots;
        Some(slots)
    }

    /// A reservation of `slots` slots ends.
    pub fn release(&mut self, slots: u64) {
        self.reservations -= 1;
        self.reserved -= slots;
    }

    /// A write begins to wait for space.
    pub fn wait(&mut self, now: Time) {
        self.since = if self.waiting == 0 { now } else { self.since };
        self.waiting += 1;
        self.stalls += 1;
    }

    /// A write does not wait any more.
    pub fn waited(&mut self) {
        self.waiting -= 1;
    }

    /// For so long there has always been a write that waits.
    pub fn stalled(&self, now: Time) -> Duration {
        if self.waiting > 0 { now.since(self.since) } else { Duration::ZERO }
    }

    /// Writes that had to wait.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    /// A tail was emptied, and `copied` blocks of it stay: in vain if they are more than half of it. What was written
    /// again elsewhere since has left space without any block being forgotten.
    pub fn emptied(&mut self, copied: u32) {
        self.in_vain = if u64::from(copied) > self.slots / 2 { self.in_vain + 1 } else { 0 };
    }

    /// True if all of main, of so many segments, has been looked through in vain.
    pub fn is_in_vain(&self, main: usize) -> bool {
        self.in_vain > main
    }

    /// Volumes keep their shares from now on, or do not.
    pub fn set_strict(&mut self, is_strict: bool) {
        self.is_strict = is_strict;
    }

    /// True if volumes do not keep their shares.
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// True if all of main has been looked through in vain as strictly as that is done: all of it is asked
    /// for again and again, and some of it has to go all the same.
    pub fn is_hopeless(&self, main: usize) -> bool {
        self.is_strict && self.in_vain > main + 2 * TOGETHER
    }

    /// A late tail was rotated.
    pub fn rotated(&mut self) {
        self.rotated += 1;
    }

    /// True if it may help to rotate a late tail, of so many segments in both logs, while `of` are the numbers of dirty
    /// blocks and of blocks: not if all have been, and nothing else has happened.
    pub fn may_rotate(&mut self, of: [u64; 2], segments: usize) -> bool {
        if self.rotated_of != of {
            (self.rotated, self.rotated_of) = (0, of);
        }
        self.rotated <= segments
    }

    /// The invariants.
    pub fn check(&self) -> Result<(), String> {
        let all = self.segments as u64 * self.slots;
        match self {
            _ if self.reserved > all => Err(format!("{} of {all} slots are reserved", self.reserved)),
            // Each has a block and its head.
            _ if self.reserved < 2 * self.reservations => {
                Err(format!("{} reservations have {} slots", self.reservations, self.reserved))
            }
            _ if self.reservations == 0 && self.reserved > 0 => {
                Err(format!("no reservation has {} slots", self.reserved))
            }
            _ if self.waiting as u64 > self.stalls => {
                Err(format!("{} writes wait, and {} ever had to", self.waiting, self.stalls))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest flash has a low-water mark of 6, and 15 slots for batches in a segment.
    fn space() -> Space {
        Space::new(12, 15)
    }

    #[test]
    fn the_table_of_free_segments() {
        // Free segments: reclaim begins, is quick, and blocks for a write.
        let table = [
            (7, false, false, 35),
            (6, false, false, 21),
            (5, true, false, 7),
            (4, true, true, 0),
            (0, true, true, 0),
        ];
        for (free, is_short, is_urgent, blocks) in table {
            let space = space();
            assert_eq!((space.is_short(free), space.is_urgent(free)), (is_short, is_urgent), "{free} free");
            assert_eq!(space.available(free), blocks, "{free} free");
            assert_eq!(space.available_to_fill(free), blocks, "{free} free");
        }
    }

    #[test]
    fn no_reservation_is_of_more_than_there_is_in_any_order() {
        let mut random = crate::testing::xorshift(11);
        let mut space = space();
        let mut live: Vec<u64> = Vec::new();
        for _ in 0..10_000 {
            let free = (random() % 13) as usize;
            match random() % 3 {
                0 if !live.is_empty() => space.release(live.swap_remove(random() as usize % live.len())),
                _ => {
                    let blocks = 1 + random() % 40;
                    let available = space.available(free);
                    let given = space.reserve(blocks, free);
                    assert_eq!(given.is_some(), blocks <= available);
                    live.extend(given);
                    let given = live.iter().sum::<u64>();
                    assert!(space.available(free) + given <= (12 - FOR_COPIES) * 15 + given);
                }
            }
            assert_eq!(space.check(), Ok(()));
            assert_eq!(space.reserved, live.iter().sum::<u64>());
        }
    }

    #[test]
    fn a_fill_gets_nothing_while_a_write_waits() {
        let mut space = space();
        space.wait(Time(5));
        space.wait(Time(9));
        assert_eq!((space.available_to_fill(12), space.stalled(Time(12))), (0, Duration::from_nanos(7)));
        space.waited();
        assert_eq!((space.available_to_fill(12), space.stalled(Time(12))), (0, Duration::from_nanos(7)));
        space.waited();
        assert!(space.available_to_fill(12) > 0);
        assert_eq!((space.stalled(Time(12)), space.stalls()), (Duration::ZERO, 2));
        space.wait(Time(20));
        assert_eq!(space.stalled(Time(21)), Duration::from_nanos(1));
        assert_eq!(space.check(), Ok(()));
    }

    #[test]
    fn reclaim_becomes_strict_and_then_hopeless() {
        let mut space = space();
        let main = 3;
        (0..=main).for_each(|_| space.emptied(8));
        assert!(space.is_in_vain(main) && !space.is_hopeless(main));
        space.set_strict(true);
        (0..2 * TOGETHER).for_each(|_| space.emptied(15));
        assert!(space.is_hopeless(main));
        // Half of a segment is won.
        space.emptied(7);
        assert!(!space.is_in_vain(main) && !space.is_hopeless(main));
    }

    #[test]
    fn late_tails_are_rotated_until_nothing_else_happens() {
        let mut space = space();
        for _ in 0..=4 {
            assert!(space.may_rotate([7, 9], 4));
            space.rotated();
        }
        assert!(!space.may_rotate([7, 9], 4));
        assert!(space.may_rotate([6, 9], 4), "a block has got to its store");
    }

    #[test]
    fn what_cannot_be_is_said() {
        let wrong = [
            Space { reserved: 1000, ..space() },
            Space { reserved: 1, reservations: 1, ..space() },
            Space { reserved: 4, ..space() },
            Space { waiting: 1, ..space() },
        ];
        wrong.iter().for_each(|space| drop(space.check().expect_err("wrong")));
    }
}
