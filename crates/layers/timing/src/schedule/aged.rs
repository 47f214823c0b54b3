//! Policies that choose by address alone, and the age limit that they need.
//!
//! An order by address can starve a request while others come to better places. So, while the oldest request is older
//! than the limit, every eighth choice is the oldest request. A request that has N older ones before it waits for at
//! most the limit and 8 (N + 1) services. The limit does not make a first-come-first-served queue of a drive that is
//! overloaded: seven of eight choices stay as good as they were.

use super::keys::Keys;
use super::policy::{Choice, Policy, Queued};
use super::waiting::{Place, Waiting, place};
use lamina_block::Time;
use std::time::Duration;

/// Choices from one that goes by age to the next.
pub const PACE: u32 = 8;

/// The last request that was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Where it stood.
    pub place: Place,
    /// The sector behind it, where the drive's arm is.
    pub sector: u64,
}

/// The rule by which requests are chosen: a step of a few lines.
pub trait Order {
    /// The next of `waiting`, which is not empty, after the one at `head`. `None` only if nothing waits.
    fn next<'a>(&mut self, waiting: &'a Waiting, head: Head) -> Option<&'a Queued>;
}

/// A policy that chooses by an [`Order`], and at times by age.
#[derive(Debug)]
pub struct Aged<O> {
    order: O,
    waiting: Waiting,
    head: Head,
    limit: Duration,
    /// Choices since the last one by age.
    chosen: u32,
}

impl<O: Order> Aged<O> {
    /// Nothing waits, and the arm is at the first sector.
    pub fn new(order: O, keys: &Keys) -> Aged<O> {
        let (waiting, head, limit) = (Waiting::default(), Head::default(), keys.age_limit.0);
        Aged { order, waiting, head, limit, chosen: PACE }
    }

    /// The oldest request, if its age counts now.
    fn overdue(&self, now: Time) -> Option<&Queued> {
        let is_late = |oldest: &&Queued| self.chosen >= PACE && now.since(oldest.arrived) > self.limit;
        self.waiting.oldest().filter(is_late)
    }
}

impl<O: Order> Policy for Aged<O> {
    fn arrived(&mut self, request: Queued) {
        self.waiting.insert(request);
    }

    fn choose(&mut self, now: Time) -> Choice {
        let overdue = self.overdue(now).copied();
        self.chosen = if overdue.is_some() { 1 } else { self.chosen.saturating_add(1) };
        let Some(next) = overdue.or_else(|| self.order.next(&self.waiting, self.head).copied()) else {
            return Choice::Idle;
        };
        self.waiting.remove(place(&next));
        self.head = Head { place: place(&next), sector: next.request.end() };
        Choice::Send(next.id)
    }

    fn completed(&mut self, _now: Time, _sent: Time, _request: &Queued) {}

    fn drain(&mut self) -> Vec<Queued> {
        self.waiting.drain()
    }

    fn tune(&mut self, keys: &Keys) {
        self.limit = keys.age_limit.0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MS, read, sent};
    use super::super::{cscan::Cscan, scan::Scan, sstf::Sstf};
    use super::*;

    /// The number of choices before a request at a far place goes, while requests keep coming to the place that the
    /// policy likes best; a service takes 10 ms.
    fn choices_until_far(mut policy: impl Policy, near: u64) -> u64 {
        policy.arrived(read(1, 1_000_000));
        policy.arrived(read(2, near));
        (0..)
            .find(|round| {
                let now = Time(round * 10 * MS);
                policy.arrived(Queued { arrived: now, ..read(round + 3, near) });
                sent(policy.choose(now)) == 1
            })
            .unwrap()
    }

    #[test]
    fn no_request_waits_forever_while_others_come() {
        let keys = Keys::default();
        for near in [0, 999_990, 1_000_100] {
            assert!(choices_until_far(Aged::new(Sstf, &keys), near) <= 108, "sstf, {near}");
            assert!(choices_until_far(Aged::new(Scan::default(), &keys), near) <= 108, "scan, {near}");
            assert!(choices_until_far(Aged::new(Cscan, &keys), near) <= 108, "cscan, {near}");
        }
    }

    #[test]
    fn of_many_overdue_requests_one_in_eight_goes_by_age() {
        let mut policy = Aged::new(Sstf, &Keys::default());
        // Every second one is far away.
        (1..=40).for_each(|id| policy.arrived(read(id, id % 2 * 1_000_000 + 100 * id)));
        let order: Vec<u64> = (0..40).map(|_| sent(policy.choose(Time(5000 * MS)))).collect();
        assert_eq!(order[..8], [1, 3, 5, 7, 9, 11, 13, 15], "one by age, and then by distance");
        assert_eq!(order[8..16], [2, 4, 6, 8, 10, 12, 14, 16]);
        assert_eq!(order[16..18], [17, 19]);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=40).collect::<Vec<_>>());
    }

    #[test]
    fn the_limit_can_be_changed_at_any_time() {
        let mut policy = Aged::new(Sstf, &Keys::default());
        policy.arrived(read(1, 5000));
        policy.arrived(read(2, 10));
        policy.arrived(read(3, 20));
        assert_eq!(sent(policy.choose(Time(500 * MS))), 2);
        let mut keys = Keys::default();
        keys.age_limit.0 = Duration::from_millis(100);
        policy.tune(&keys);
        assert_eq!(sent(policy.choose(Time(500 * MS))), 1);
        assert_eq!(sent(policy.choose(Time(500 * MS))), 3);
    }
}
