//! The busdriver delay: when it pays to let the arm stand although requests wait.
//!
//! The client of the last request may soon ask for something near, and the arm would have to come back for it (Geist,
//! Steele, Westall, *Enhancing Webserver Performance Through the Use of a Drop-in, Statically Optimal, Disk Scheduler*,
//! CMG 2005). The paper has the delay and leaves open when it pays; the rule here is that of Iyer and Druschel
//! (*Anticipatory Scheduling*, SOSP 2001, section 4.2), counted in the drive's time. The last [`REMEMBERED`] requests
//! of a client say how long it thinks, and what its next request would cost with the arm where the last one ended:
//!
//! * `gain` = share of its requests that the drive's cache did not have · (cost of the next in the queue - mean cost of
//!   the client's requests that the cache did not have). A hit costs the same whenever it comes.
//! * `price` = median think time - time since the last request ended; at least 0.
//! * Only if gain > price, the arm stands: until the 95th percentile of the think time after that end, and no longer
//!   than the busdriver delay after it.
//!
//! No client is waited for that has other requests in the queue, that layers made (number 0), or of which fewer than
//! [`KNOWN`] pauses are known.

use super::line::Line;
use lamina_block::Time;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Requests of a client by which it is known.
pub const REMEMBERED: usize = 32;

/// Requests from which on a client is known well enough to be waited for.
pub const KNOWN: usize = 8;

/// Clients that are remembered. Beyond them all are forgotten, which costs only some waits that would have paid.
const CLIENTS_MAX: usize = 4096;

/// A request that followed a pause.
#[derive(Clone, Copy, Debug)]
struct Habit {
    think: Duration,
    /// Its cost if the arm had stood where the client's last request ended; `None` for a hit.
    near: Option<Duration>,
}

/// A client, by its requests.
#[derive(Debug, Default)]
struct Client {
    /// Requests that have come and not ended.
    outstanding: u32,
    /// When the last one ended, and the sector behind it.
    ended: Option<(Time, u64)>,
    habits: VecDeque<Habit>,
    /// Their think times, ascending.
    thinks: Vec<Duration>,
}

impl Client {
    fn learn(&mut self, habit: Habit) {
        if self.habits.len() == REMEMBERED
            && let Some(oldest) = self.habits.pop_front()
        {
            self.thinks.remove(self.thinks.partition_point(|think| *think < oldest.think));
        }
        self.habits.push_back(habit);
        self.thinks.insert(self.thinks.partition_point(|think| *think < habit.think), habit.think);
    }

    /// The think time that `percent` of a hundred do not exceed. Some are known.
    fn think(&self, percent: usize) -> Duration {
        self.thinks[(self.thinks.len() * percent / 100).min(self.thinks.len() - 1)]
    }

    /// The drive's gain, on average, if this client's next request comes before one that costs `next`.
    fn gain(&self, next: Duration) -> Duration {
        let misses = || self.habits.iter().filter_map(|habit| habit.near);
        let (count, near) = (misses().count() as u32, misses().sum::<Duration>());
        (next * count).saturating_sub(near) / self.habits.len().max(1) as u32
    }
}

/// The clients that may ride along.
#[derive(Debug, Default)]
pub struct Riders {
    clients: HashMap<u32, Client>,
    /// Whose request was sent last.
    last: u32,
}

impl Riders {
    /// A client asks for what begins at sector `lbn`. `is_hit`: the cache is believed to have it.
    pub fn arrived(&mut self, now: Time, client: u32, lbn: u64, is_hit: bool, line: &Line) {
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&client) {
            self.clients.clear();
        }
        let client = self.clients.entry(client).or_default();
        if client.outstanding == 0
            && let Some((ended, sector)) = client.ended
        {
            let near = (!is_hit).then(|| line.cost(sector.abs_diff(lbn)));
            client.learn(Habit { think: now.since(ended), near });
        }
        client.outstanding += 1;
    }

    /// A request of a client goes to the drive.
    pub fn sent(&mut self, client: u32) {
        self.last = client;
    }

    /// A request of a client, of which `sector` is the first sector behind, has ended or is not waited for any more.
    pub fn ended(&mut self, now: Time, client: u32, sector: u64) {
        let Some(client) = self.clients.get_mut(&client) else { return };
        client.outstanding = client.outstanding.saturating_sub(1);
        client.ended = Some((now, sector));
    }

    /// Until when the arm stands rather than serve a request that costs `next`, if that pays, and for at most `delay`
    /// after the end of the last request.
    pub fn wait(&self, now: Time, next: Duration, delay: Duration) -> Option<Time> {
        let client = self.clients.get(&self.last).filter(|_| self.last != 0)?;
        if client.outstanding > 0 || client.habits.len() < KNOWN {
            return None;
        }
        let (ended, _) = client.ended?;
        let until = ended.after(client.think(95).min(delay));
        let price = client.think(50).saturating_sub(now.since(ended));
        (client.gain(next) > price && until > now).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::MS;
    use super::*;
    use lamina_drive::Model;

    fn ms(of: u64) -> Duration {
        Duration::from_millis(of)
    }

    /// Client 1 asks `count` times, `think_ms` after its last answer each, and is answered after 5 ms: a sequence of
    /// requests of 8 sectors. When its last answer came.
    fn known(riders: &mut Riders, count: usize, think_ms: u64, hit: impl Fn(usize) -> bool) -> Time {
        let line = Line::of(&Model::named("cheetah-15k4").expect("a model"));
        (0..count).fold(Time(0), |ended, n| {
            let (arrived, lbn) = (ended.after(ms(think_ms)), 8 * n as u64);
            riders.arrived(arrived, 1, lbn, hit(n), &line);
            riders.sent(1);
            riders.ended(arrived.after(ms(5)), 1, lbn + 8);
            arrived.after(ms(5))
        })
    }

    /// For how many ms after the last answer the arm stands rather than serve a request of `next_ms`.
    fn stands(think_ms: u64, next_ms: u64, hit: impl Fn(usize) -> bool) -> Option<u64> {
        let mut riders = Riders::default();
        let ended = known(&mut riders, 20, think_ms, hit);
        riders.wait(ended, ms(next_ms), ms(7)).map(|until| until.since(ended).as_millis() as u64)
    }

    #[test]
    fn the_arm_stands_if_the_gain_is_more_than_the_think_time() {
        for (think_ms, next_ms, expected) in [
            // A request of the client takes 4.25 ms.
            (1, 9, Some(1)),
            (4, 9, Some(4)),
            (5, 9, None),
            (1, 5, None),
            (1, 6, Some(1)),
            // Not nearer than where it stands.
            (1, 4, None),
            (1, 0, None),
            // No longer than the busdriver delay.
            (9, 20, Some(7)),
        ] {
            assert_eq!(stands(think_ms, next_ms, |_| false), expected, "think {think_ms}, next {next_ms}");
        }
    }

    #[test]
    fn clients_that_the_cache_serves_are_not_waited_for() {
        assert_eq!(stands(1, 9, |_| true), None);
        // 4 of 19 are not in the cache, and gain 5.75 ms.
        assert_eq!(stands(1, 10, |n| n % 4 != 0), Some(1));
        assert_eq!(stands(2, 10, |n| n % 4 != 0), None);
    }

    #[test]
    fn the_wait_ends_and_only_an_idle_known_client_is_waited_for() {
        let mut riders = Riders::default();
        let ended = known(&mut riders, 20, 3, |_| false);
        let wait = |riders: &Riders, after| riders.wait(ended.after(ms(after)), ms(9), ms(7));
        assert_eq!([0, 2, 3, 4].map(|after| wait(&riders, after).is_some()), [true, true, false, false]);
        riders.sent(2);
        assert_eq!(wait(&riders, 0), None, "the last request was not its");
        riders.sent(1);
        let line = Line::of(&Model::named("cheetah-15k4").expect("a model"));
        riders.arrived(ended, 1, 0, false, &line);
        assert_eq!(wait(&riders, 0), None, "it has asked");
        let mut strange = Riders::default();
        let ended = known(&mut strange, KNOWN, 3, |_| false);
        assert_eq!(strange.wait(ended, ms(9), ms(7)), None, "one pause less than requests");
        let ended = known(&mut strange, 1, ended.0 / MS + 3, |_| false);
        assert!(strange.wait(ended, ms(9), ms(7)).is_some());
    }

    #[test]
    fn how_many_clients_are_remembered_is_bounded() {
        let (mut riders, line) = (Riders::default(), Line::of(&Model::named("nvme").expect("a model")));
        (1..20_000).for_each(|client| riders.arrived(Time(0), client, 0, false, &line));
        assert!(riders.clients.len() <= CLIENTS_MAX);
        riders.ended(Time(1), 1, 0);
    }
}
