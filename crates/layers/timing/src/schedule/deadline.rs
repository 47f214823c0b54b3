//! `deadline`: requests sorted by address, and no later than their deadlines.
//!
//! Follows Linux's deadline scheduler (block/deadline-iosched.c of 2.6.30, `deadline_dispatch_requests`; its successor
//! is block/mq-deadline.c) without merging. Reads and writes have a queue each, sorted by address, and a FIFO:
//!
//! * A *batch* of up to `fifo-batch` requests goes in one direction, upwards from where its last request ended.
//! * A new batch is of reads if any wait, unless writes have waited for `writes-starved` batches of reads.
//! * It goes on from the last batch's end if that was of the same direction, something is above, and no request of the
//!   direction has passed its deadline; otherwise it begins at the oldest request of the direction.
//!
//! A deadline is no promise: it decides where a batch begins. A request with N others in its direction before it waits
//! for at most its expiry and the services of (writes-starved + 1) N batches.

use super::keys::Keys;
use super::policy::{Choice, Policy, Queued};
use super::waiting::{Place, Waiting, place};
use lamina_block::{Interval, Time};
use lamina_drive::Op;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::time::Duration;

/// The tunables, with the kernel's defaults.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Parameters {
    /// From its arrival to the deadline of a read.
    pub read_expire: Interval,
    /// From its arrival to the deadline of a write.
    pub write_expire: Interval,
    /// The most requests of a batch.
    pub fifo_batch: NonZeroU32,
    /// How many batches of reads may go before waiting writes.
    pub writes_starved: u32,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            read_expire: Interval(Duration::from_millis(500)),
            write_expire: Interval(Duration::from_secs(5)),
            fifo_batch: NonZeroU32::MIN.saturating_add(15),
            writes_starved: 2,
        }
    }
}

/// A direction of data: the index of its queue.
const READ: usize = 0;
const WRITE: usize = 1;

/// The policy.
#[derive(Debug)]
pub struct Deadline {
    parameters: Parameters,
    waiting: [Waiting; 2],
    /// The direction of the batch under way, and the place of its next request if there is one above.
    batch: Option<(usize, Place)>,
    /// Requests of the batch that have been sent.
    batched: u32,
    /// Batches of reads that went while writes waited.
    starved: u32,
}

impl Deadline {
    /// Nothing waits.
    pub fn new(keys: &Keys) -> Deadline {
        let (parameters, waiting) = (keys.deadline.clone(), Default::default());
        Deadline { parameters, waiting, batch: None, batched: 0, starved: 0 }
    }

    /// The direction of a new batch. Something waits.
    fn direction(&mut self) -> usize {
        let [reads, writes] = [READ, WRITE].map(|direction| !self.waiting[direction].is_empty());
        if reads && !(writes && self.starved >= self.parameters.writes_starved) {
            self.starved += writes as u32;
            return READ;
        }
        self.starved = 0;
        WRITE
    }

    /// True if the oldest request of a direction has passed its deadline.
    fn is_expired(&self, direction: usize, now: Time) -> bool {
        let expire = [self.parameters.read_expire, self.parameters.write_expire][direction].0;
        self.waiting[direction].oldest().is_some_and(|oldest| now.since(oldest.arrived) >= expire)
    }

    /// The direction and the first request of a new batch.
    fn begin(&mut self, now: Time) -> Option<(usize, Place)> {
        self.batched = 0;
        let direction = self.direction();
        let is_expired = self.is_expired(direction, now);
        let goes_on = self.batch.filter(|(of, _)| *of == direction && !is_expired);
        goes_on.or_else(|| Some((direction, place(self.waiting[direction].oldest()?))))
    }
}

impl Policy for Deadline {
    fn arrived(&mut self, request: Queued) {
        let direction = if request.request.op == Op::Read { READ } else { WRITE };
        self.waiting[direction].insert(request);
    }

    fn choose(&mut self, now: Time) -> Choice {
        let under_way = self.batch.filter(|_| self.batched < self.parameters.fifo_batch.get());
        let Some((direction, at)) = under_way.or_else(|| self.begin(now)) else { return Choice::Idle };
        self.batched += 1;
        let waiting = &mut self.waiting[direction];
        let Some(next) = waiting.remove(at) else { return Choice::Idle };
        self.batch = waiting.at_or_after(at).map(|above| (direction, place(above)));
        Choice::Send(next.id)
    }

    fn completed(&mut self, _now: Time, _sent: Time, _request: &Queued) {}

    fn drain(&mut self) -> Vec<Queued> {
        self.batch = None;
        let mut all = self.waiting.each_mut().map(Waiting::drain).concat();
        all.sort_unstable_by_key(|queued| queued.id);
        all
    }

    fn tune(&mut self, keys: &Keys) {
        self.parameters = keys.deadline.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MS, order, read, sent, write};
    use super::*;

    fn deadline(change: impl FnOnce(&mut Parameters)) -> Deadline {
        let mut keys = Keys::default();
        change(&mut keys.deadline);
        Deadline::new(&keys)
    }

    #[test]
    fn upwards_from_the_oldest_and_again_from_the_oldest() {
        let mut policy = deadline(|_| {});
        let all = [read(1, 50), read(2, 10), read(3, 70), read(4, 60), read(5, 5)];
        assert_eq!(order(&mut policy, all), [1, 4, 3, 2, 5]);
    }

    #[test]
    fn reads_go_before_writes_but_not_for_more_than_two_batches() {
        let mut policy = deadline(|p| p.fifo_batch = NonZeroU32::MIN.saturating_add(1));
        let reads = (1..=8).map(|id| read(id, id));
        let writes = (9..=11).map(|id| write(id, id));
        assert_eq!(order(&mut policy, reads.chain(writes)), [1, 2, 3, 4, 9, 10, 5, 6, 7, 8, 11]);
    }

    #[test]
    fn a_batch_is_not_interrupted_and_the_next_begins_where_a_deadline_has_passed() {
        let mut policy = deadline(|p| p.fifo_batch = NonZeroU32::MIN.saturating_add(2));
        let late = |id, lbn, ms| Queued { arrived: Time(ms * MS), ..read(id, lbn) };
        (1..=6).for_each(|id| policy.arrived(late(id, 100 * id, 0)));
        assert_eq!(sent(policy.choose(Time(0))), 1);
        policy.arrived(late(7, 10, 10));
        policy.arrived(late(8, 950, 20));
        // In a batch deadlines do not count; the next one begins at the oldest request, which is the next one here.
        assert_eq!([500, 501, 502].map(|ms| sent(policy.choose(Time(ms * MS)))), [2, 3, 4]);
        assert_eq!([503, 504].map(|ms| sent(policy.choose(Time(ms * MS)))), [5, 6]);
        // All of the first have gone: the oldest is below, and has passed its deadline.
        assert_eq!([511, 512].map(|ms| sent(policy.choose(Time(ms * MS)))), [7, 8]);
        assert_eq!(policy.choose(Time(513 * MS)), Choice::Idle);
    }

    #[test]
    fn without_expiry_a_batch_goes_on_upwards() {
        for (expire_ms, expected) in [(500, [1, 2, 4, 3]), (0, [1, 2, 3, 4])] {
            let mut policy = deadline(|p| {
                p.fifo_batch = NonZeroU32::MIN.saturating_add(1);
                p.read_expire = Interval(Duration::from_millis(expire_ms));
            });
            let all = [read(1, 100), read(2, 200), read(3, 50), read(4, 300)];
            assert_eq!(order(&mut policy, all), expected, "{expire_ms} ms");
        }
    }

    #[test]
    fn no_request_waits_forever_while_others_come() {
        for lonely in [write(1, 1_000_000), read(1, 1_000_000), read(1, 0)] {
            let mut policy = deadline(|_| {});
            policy.arrived(read(2, 500));
            policy.arrived(lonely);
            let gone = (3..3000).find(|id| {
                let now = Time(id * 10 * MS);
                policy.arrived(Queued { arrived: now, ..read(*id, 500) });
                sent(policy.choose(now)) == 1
            });
            assert!(gone.is_some_and(|id| id < 150), "{lonely:?} {gone:?}");
        }
    }
}
