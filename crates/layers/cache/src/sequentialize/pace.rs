//! How fast collection goes on, and users' writes: so that these are slowed down before there is no space, and none has
//! to stop.
//!
//! ```text
//!      debt    0            ½            1
//!      space   all there is wanted       none but the reserve
//!      collection           ◀── rests ──▶◀── as fast as it can ──▶
//!      users   as fast as they can ──▶ as fast as collection ──▶ they wait
//! ```
//!
//! *Debt* is the part that is missing of the space that there should be. Collection works for 2 · debt of the time, all
//! of it from one half on; users get (1 − debt) / debt of the space that it gains. Both meet at one half: there the log
//! stays under a load that is too much for it, and below it under any other one, without a step on the way.
//!
//! No clock is read here, and nothing waits.

use lamina_block::Time;
use std::time::Duration;

/// What a measurement counts that is one older than the newest.
const OLDER: f64 = 0.875;
/// The longest that a write is held back: it may have to wait for the device as well.
const DELAY_MAX: Duration = Duration::from_millis(50);
/// Writes that are held back begin again together, so often: alone each would cost a head of its own. As much goes at
/// once before any is held back.
const BURST: Duration = Duration::from_millis(10);
/// The longest that collection rests at once: meanwhile the load may change.
const REST_MAX: Duration = Duration::from_millis(100);

/// How fast collection gains space, and when users' next write may begin.
#[derive(Default)]
pub struct Pace {
    /// Slots that were gained, and seconds that it took; what is older counts less.
    gained: f64,
    seconds: f64,
    next: Time,
}

/// The part that is missing of `wanted` slots where there are `space`: 0 to 1.
pub fn debt(space: u64, wanted: u64) -> f64 {
    1.0 - space.min(wanted) as f64 / wanted.max(1) as f64
}

/// How long collection rests after it has worked for `worked`.
pub fn rest(debt: f64, worked: Duration) -> Duration {
    if debt <= 0.0 {
        return REST_MAX;
    }
    let seconds = worked.as_secs_f64() * (0.5 / debt - 1.0).max(0.0);
    Duration::from_secs_f64(seconds.min(REST_MAX.as_secs_f64()))
}

impl Pace {
    /// Collection has worked for `took`, rests left out, and gained so many slots.
    pub fn worked(&mut self, slots: u64, took: Duration) {
        self.gained = self.gained * OLDER + slots as f64;
        self.seconds = self.seconds * OLDER + took.as_secs_f64();
    }

    /// Slots that collection gains in a second; 0: nobody knows.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.gained / self.seconds } else { 0.0 }
    }

    /// How long a write of `slots` slots is held back that comes at `now`.
    pub fn delay(&mut self, now: Time, slots: u32, debt: f64) -> Duration {
        let rate = self.rate() * (1.0 - debt) / debt;
        if debt <= 0.0 || self.rate() == 0.0 {
            return Duration::ZERO;
        }
        let begin = self.next.max(now);
        let turn = f64::from(slots) / rate;
        let most = now.after(DELAY_MAX);
        self.next = begin.after(Duration::from_secs_f64(turn.min(DELAY_MAX.as_secs_f64()))).min(most);
        if begin.since(now) <= BURST {
            return Duration::ZERO;
        }
        let bursts = begin.0.div_ceil(BURST.as_nanos() as u64) - 1;
        Time(bursts * BURST.as_nanos() as u64).since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn debt_is_what_is_missing() {
        let debts = [(0, 8), (2, 8), (8, 8), (9, 8), (0, 0)].map(|(space, wanted)| debt(space, wanted));
        assert_eq!(debts, [1.0, 0.75, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn collection_rests_less_the_more_is_missing() {
        let rests = [0.0, 0.1, 0.25, 0.5, 1.0].map(|debt| rest(debt, Duration::from_millis(10)).as_millis());
        assert_eq!(rests, [100, 40, 10, 0, 0]);
        assert_eq!(rest(0.01, SECOND), REST_MAX);
    }

    /// The writes of a second that are let through if they come at once.
    fn let_through(debt: f64) -> usize {
        let mut pace = Pace::default();
        pace.worked(1000, SECOND);
        let (mut now, mut count) = (Time(0), 0);
        while now < Time(0).after(SECOND) {
            now = now.after(pace.delay(now, 1, debt));
            count += 1;
        }
        count
    }

    #[test]
    fn users_get_what_collection_gains_at_half() {
        for (debt, expected) in [(0.2, 4000), (0.5, 1000), (0.8, 250)] {
            assert!(let_through(debt).abs_diff(expected) <= expected / 50, "{debt}: {}", let_through(debt));
        }
        let mut pace = Pace::default();
        pace.worked(1000, SECOND);
        assert!((0..9).all(|_| pace.delay(Time(0), 99, 0.0) == Duration::ZERO), "nothing is missing");
    }

    #[test]
    fn nobody_waits_long_or_without_knowledge() {
        let mut pace = Pace::default();
        assert_eq!(pace.delay(Time(0), 1, 1.0), Duration::ZERO);
        pace.worked(1, SECOND);
        let longest = (0..100).map(|_| pace.delay(Time(0), 100, 0.9)).max();
        assert_eq!(longest, Some(DELAY_MAX - BURST));
        pace.worked(1 << 20, SECOND);
        assert_eq!(
            pace.delay(Time(0), 1, 1.0),
            DELAY_MAX - BURST,
            "the last slot of a debt is not for users"
        );
    }
}
