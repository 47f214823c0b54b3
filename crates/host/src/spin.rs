//! Whether looking for work in memory, before sleeping in the kernel, pays.
//!
//! A sleep costs a way into the kernel, a switch, and a wake-up of an idle processor: some microseconds, tens of them
//! in a virtual machine. Where the next piece of work comes sooner than that, as when a client sends its next request
//! right after each answer, looking for work costs no more, and the request is answered sooner.
//!
//! Where waits are longer, spinning is a waste. Nor where there is more work than waiting: then it is worse, for each
//! request is taken alone, while a sleep would have let many gather. So the reactor looks for work while its waits are
//! short on average and make up most of its time. An idle reactor sleeps at once, and so does one that waits for a
//! disk: in a virtual machine the processor may be wanted for the disk's work, and spinning made requests slower there.
//! The end of an exact sleep ([`crate::timers`]) is looked for all the same, and teaches nothing about disks. A sleep
//! that a timer ends teaches something only if work was looked for before it.

use lamina_block::Time;
use std::cell::Cell;
use std::time::Duration;

/// How many waits the averages reach back, about.
const MEMORY: u64 = 8;
/// The longest wait, in limits, that the average sees, so that it is soon forgotten.
const LONGEST: u64 = 4;

/// Remembers how long waits were, and the work between them.
pub(crate) struct Spin {
    /// Nanoseconds, as all of these.
    limit: u64,
    wait: Cell<u64>,
    work: Cell<u64>,
    last: Cell<Time>,
}

impl Spin {
    /// Waits of up to `limit` are short. Zero: never spin.
    pub fn new(limit: Duration) -> Spin {
        let limit = limit.as_nanos() as u64;
        let wait = Cell::new(limit.saturating_mul(LONGEST));
        Spin { limit, wait, work: Cell::default(), last: Cell::default() }
    }

    /// How long to look for work. Zero: sleep at once.
    ///
    /// `known` is the time of the next known work, if there is some. A timer within the limit lets the processor rest
    /// until then.
    pub fn allowed(&self, known: Option<Duration>) -> Duration {
        let limit = Duration::from_nanos(self.limit);
        let pays = self.wait.get() < self.limit && self.work.get() < self.wait.get() / 2;
        if pays && known.is_none_or(|left| left > limit) { limit } else { Duration::ZERO }
    }

    /// Takes note of a wait for a disk.
    pub fn waited_for_disk(&self, to: Time) {
        self.last.set(to);
    }

    /// Takes note of any other wait that ended in the kernel. One that a timer ended is the program's own, as a pause
    /// is, and teaches nothing; unless work was looked for before `in_vain`.
    pub fn slept(&self, from: Time, to: Time, by_timer: bool, in_vain: bool) {
        if in_vain || !by_timer {
            self.waited(from, to);
        }
    }

    /// Takes note of a wait for work that came.
    pub fn waited(&self, from: Time, to: Time) {
        let most = self.limit.saturating_mul(LONGEST);
        for (average, sample) in [(&self.work, from.since(self.last.get())), (&self.wait, to.since(from))] {
            let sample = (sample.as_nanos() as u64).min(most);
            average.set(average.get() - average.get() / MEMORY + sample / MEMORY);
        }
        self.last.set(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;
    const LIMIT: Duration = Duration::from_micros(40);

    /// Works and waits, `times` times, and asks.
    fn after(spin: &Spin, times: u32, work: u64, wait: u64) -> Duration {
        for _ in 0..times {
            let from = Time(spin.last.get().0 + work);
            spin.waited(from, Time(from.0 + wait));
        }
        spin.allowed(None)
    }

    #[test]
    fn it_pays_while_waits_are_short() {
        let spin = Spin::new(LIMIT);
        assert_eq!(spin.allowed(None), Duration::ZERO, "nothing is known yet");
        assert_eq!(after(&spin, 30, 5 * US, 20 * US), LIMIT);
        assert_eq!(spin.allowed(Some(2 * LIMIT)), LIMIT);
        assert_eq!(spin.allowed(Some(LIMIT / 2)), Duration::ZERO, "a timer ends soon: rest");
        assert_eq!(after(&spin, 1, 5 * US, 900 * US), LIMIT, "one long wait is forgiven");
        assert_eq!(after(&spin, 3, 5 * US, 900 * US), Duration::ZERO, "an idle reactor sleeps");
        assert_eq!(after(&spin, 30, 5 * US, 20 * US), LIMIT);
    }

    #[test]
    fn a_busy_reactor_lets_requests_gather() {
        let spin = Spin::new(LIMIT);
        assert_eq!(after(&spin, 30, 5 * US, 20 * US), LIMIT);
        assert_eq!(after(&spin, 30, 15 * US, 20 * US), Duration::ZERO);
    }

    /// A client that answers at once, and a timer that ends half of the waits: what stands for a device that takes its
    /// time.
    #[test]
    fn timers_teach_that_nothing_was_found() {
        let spin = Spin::new(LIMIT);
        assert_eq!(after(&spin, 30, 5 * US, 20 * US), LIMIT);
        let slept = |in_vain| {
            let from = Time(spin.last.get().0 + 5 * US);
            spin.slept(from, Time(from.0 + 500 * US), true, in_vain);
        };
        (0..30).for_each(|_| slept(false));
        assert_eq!(spin.allowed(None), LIMIT, "these are the program's own pauses");
        for _ in 0..30 {
            slept(true);
            after(&spin, 1, 5 * US, 20 * US);
        }
        assert_eq!(spin.allowed(None), Duration::ZERO);
    }

    #[test]
    fn a_limit_of_zero_never_spins() {
        assert_eq!(after(&Spin::new(Duration::ZERO), 100, US, 0), Duration::ZERO);
    }
}
