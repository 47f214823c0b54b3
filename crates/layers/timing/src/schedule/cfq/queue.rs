//! One queue of `cfq`: the requests of one client in one direction, and what is known of the client's habits.

use super::Parameters;
use crate::schedule::policy::Queued;
use crate::schedule::waiting::{Place, Waiting, place};
use lamina_block::Time;
use std::cmp::Reverse;
use std::time::Duration;

/// How far back the arm may go for the next request, in sectors (`cfq_back_max`, 16 MiB).
const BACK_MAX: u64 = (16 << 20) / lamina_drive::SECTOR;
/// How much dearer the way back is (`cfq_back_penalty`).
const BACK_PENALTY: u64 = 2;
/// A client whose mean distance between requests is longer, in sectors, seeks (`CIC_SEEK_THR`).
const SEEKY: u64 = 8 * 1024;

/// A mean that forgets: each sample counts for an eighth, as `cfq_update_io_thinktime` has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    samples: u64,
    total: u64,
    pub value: u64,
}

impl Mean {
    fn add(&mut self, sample: u64) {
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * sample) / 8;
        self.value = (self.total + self.samples / 2) / self.samples;
    }

    /// True if there were enough samples (`sample_valid`).
    pub fn is_known(&self) -> bool {
        self.samples > 80
    }
}

/// The slice of a queue that is active.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    /// When it ends. It begins with the end of its first request; `None` before that.
    pub end: Option<Time>,
    /// Requests sent in it.
    pub sent: u32,
    /// The oldest request has been looked at: its age counts once in a slice.
    pub age_seen: bool,
    /// The client has been waited for.
    pub has_idled: bool,
    /// The client was waited for and its request came: the request goes although the slice has ended.
    pub must_send: bool,
}

impl Slice {
    pub const NEW: Slice = Slice { end: None, sent: 0, age_seen: false, has_idled: false, must_send: false };

    pub fn is_used_up(&self, now: Time) -> bool {
        self.end.is_some_and(|end| now >= end)
    }
}

/// The requests of one client in one direction.
#[derive(Debug)]
pub(super) struct Queue {
    pub is_sync: bool,
    pub waiting: Waiting,
    /// The request that is nearest, as far as has been looked.
    next: Option<Place>,
    /// Requests that the drive has.
    pub in_drive: u32,
    /// Where the queue stands in the round: the lowest is next. Nanoseconds, about the time when it was put there.
    pub turn: i64,
    /// Nanoseconds of the last slice that were left (positive) or taken too much (`slice_resid`).
    pub left: i64,
    /// The client comes back soon enough to be waited for.
    pub is_waited_for: bool,
    /// Another client gave its turn to this one, which worked close by.
    pub is_favoured: bool,
    think: Mean,
    pub seek: Mean,
    last_end: Option<Time>,
    /// The sector behind the last request that came.
    last_sector: Option<u64>,
}

impl Queue {
    pub fn new(is_sync: bool) -> Queue {
        Queue {
            is_sync,
            waiting: Waiting::default(),
            next: None,
            in_drive: 0,
            turn: 0,
            left: 0,
            is_waited_for: is_sync,
            is_favoured: false,
            think: Mean::default(),
            seek: Mean::default(),
            last_end: None,
            last_sector: None,
        }
    }

    /// True if nothing is to be done for it.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_drive == 0
    }

    /// True for a client that seeks so much that its next request is worth no long wait.
    pub fn is_seeky(&self) -> bool {
        self.seek.is_known() && self.seek.value > SEEKY
    }

    /// How far a request is at most that counts as close to this client's, in sectors (`cfq_rq_close`).
    pub fn is_close_up_to(&self) -> u64 {
        if self.seek.is_known() { self.seek.value } else { SEEKY }
    }

    /// A request comes while the arm is at `head`.
    pub fn insert(&mut self, queued: Queued, head: u64, parameters: &Parameters) {
        self.learn(&queued, parameters.slice_idle.0);
        self.waiting.insert(queued);
        self.next = nearest(self.next.into_iter().chain([place(&queued)]), head);
    }

    /// What a request tells of its client's habits (`cfq_update_io_thinktime`, `cfq_update_io_seektime`,
    /// `cfq_update_idle_window`).
    fn learn(&mut self, queued: &Queued, idle: Duration) {
        let think = self.last_end.map_or(Duration::ZERO, |end| queued.arrived.since(end));
        self.think.add(think.min(2 * idle).as_nanos() as u64);
        let distance = self.last_sector.map_or(0, |last| last.abs_diff(queued.request.lbn));
        // One odd fragment far away does not make a client seek.
        let far = if self.seek.is_known() { 2 << 16 } else { 2 << 20 };
        self.seek.add(distance.min(4 * self.seek.value + far));
        self.last_sector = Some(queued.request.end());
        if self.is_sync {
            let comes_soon = !self.think.is_known() || self.think.value <= idle.as_nanos() as u64;
            self.is_waited_for = !idle.is_zero() && comes_soon;
        }
    }

    /// A request of the client has ended.
    pub fn ended(&mut self, now: Time) {
        self.in_drive = self.in_drive.saturating_sub(1);
        self.last_end = Some(now);
    }

    /// The first sector of its nearest request.
    pub fn next_sector(&self) -> Option<u64> {
        self.next.map(|(lbn, _)| lbn)
    }

    /// Takes the request out that goes next: the nearest, or once in a slice the oldest if it has waited for `expire`.
    /// The arm is still at `head`, and the request after this one is chosen from there (`cfq_find_next_rq`).
    pub fn take(&mut self, now: Time, slice: &mut Slice, expire: Duration, head: u64) -> Option<Queued> {
        let age_seen = std::mem::replace(&mut slice.age_seen, true);
        let is_late = |oldest: &&Queued| !age_seen && now.since(oldest.arrived) >= expire;
        let at = self.waiting.oldest().filter(is_late).map(place).or(self.next)?;
        let taken = self.waiting.remove(at)?;
        if self.next == Some(at) {
            let above = self.waiting.at_or_after(at).or_else(|| self.waiting.lowest());
            let sides = [above, self.waiting.before(at)];
            self.next = nearest(sides.into_iter().flatten().map(place), head);
        }
        self.in_drive += 1;
        Some(taken)
    }

    /// Gives up its requests.
    pub fn drain(&mut self) -> Vec<Queued> {
        self.next = None;
        self.waiting.drain()
    }
}

/// The best of some places, seen from `head` (`cfq_choose_req`): the nearest, the way back up to 16 MiB counting
/// double, and of two alike the one ahead. Places farther back come last, the lowest first: one way back, and then
/// upwards.
fn nearest(places: impl Iterator<Item = Place>, head: u64) -> Option<Place> {
    places.min_by_key(|(lbn, id)| {
        let back = head.saturating_sub(*lbn);
        let distance = if back > 0 { back * BACK_PENALTY } else { lbn - head };
        let is_far_back = back > BACK_MAX;
        (is_far_back, if is_far_back { *lbn } else { distance }, Reverse(*lbn), *id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::testing::{MS, read};

    fn queue_of(requests: &[(u64, u64)], head: u64) -> Queue {
        let mut queue = Queue::new(true);
        requests.iter().for_each(|(id, lbn)| queue.insert(read(*id, *lbn), head, &Parameters::default()));
        queue
    }

    #[test]
    fn the_nearest_is_ahead_or_half_as_far_behind() {
        for (places, head, expected) in [
            (&[(1100, 1), (960, 2)][..], 1000, 2),
            (&[(1100, 1), (940, 2)], 1000, 1),
            (&[(950, 1), (1100, 2)], 1000, 2),
            (&[(900, 1), (800, 2)], 1000, 1),
            (&[(1000, 1), (1000, 2)], 1000, 1),
            (&[(BACK_MAX, 1), (4 * BACK_MAX, 2)], 2 * BACK_MAX + 1, 2),
            (&[(5, 1), (3, 2)], 2 * BACK_MAX, 2),
        ] {
            assert_eq!(nearest(places.iter().copied(), head).map(|(_, id)| id), Some(expected), "{places:?}");
        }
    }

    #[test]
    fn it_goes_upwards_and_then_begins_again() {
        let mut queue = queue_of(&[(1, 50), (2, 10), (3, 900), (4, 70)], 40);
        let mut slice = Slice::NEW;
        let mut take =
            |head| queue.take(Time(0), &mut slice, Duration::from_secs(1), head).map(|queued| queued.id);
        let order = [40, 58, 78, 18, 908].map(&mut take);
        assert_eq!(order, [Some(1), Some(4), Some(2), Some(3), None]);
    }

    #[test]
    fn an_old_request_goes_out_of_turn_once_in_a_slice() {
        let mut queue = queue_of(&[(1, 900), (2, 800), (3, 10), (4, 20), (5, 30)], 0);
        let (mut slice, expire) = (Slice::NEW, Duration::from_millis(125));
        let mut take =
            |ms: u64, slice: &mut Slice| queue.take(Time(ms * MS), slice, expire, 0).map(|queued| queued.id);
        assert_eq!(take(1, &mut slice), Some(3));
        assert_eq!(take(500, &mut slice), Some(4), "it was looked at when it was not old");
        let mut slice = Slice::NEW;
        assert_eq!([take(500, &mut slice), take(500, &mut slice)], [Some(1), Some(5)]);
    }

    #[test]
    fn a_client_that_thinks_for_long_is_not_waited_for() {
        for (think_ms, is_waited_for) in [(1, true), (7, true), (9, false), (1000, false)] {
            let mut queue = Queue::new(true);
            let mut now = Time(0);
            for id in 1..=10 {
                now = now.after(Duration::from_millis(think_ms));
                let request = Queued { arrived: now, ..read(id, id) };
                queue.insert(request, 0, &Parameters::default());
                now = now.after(Duration::from_millis(1));
                queue.ended(now);
            }
            assert_eq!(queue.is_waited_for, is_waited_for, "{think_ms} ms");
        }
    }

    #[test]
    fn a_client_seeks_if_its_requests_are_far_apart() {
        for (stride, is_seeky) in [(8, false), (4000, false), (100_000, true)] {
            let requests: Vec<_> = (1..=20).map(|id| (id, id * stride)).collect();
            assert_eq!(queue_of(&requests, 0).is_seeky(), is_seeky, "{stride}");
        }
    }
}
