//! When to let requests gather before they are received.
//!
//! A server that is faster than its client receives every request alone, as soon as it has been sent: the server is
//! awake all the time, and each request costs a receive, a send and a wake-up of the client. If the client keeps many
//! requests under way, a short rest costs it nothing: its requests gather, and are received, answered and sent
//! together.
//!
//! A rest helps only if the client goes on meanwhile, so the client must prove that it can. A request that arrives
//! before the last replies have left was sent without waiting for them: the client has more than one under way. If that
//! happens often, a rest is tried; rests go on while [`CROWD`] requests gather in each. A client that had fewer to send
//! may have been kept waiting: the next trial comes later, and each that fails makes it later still.

use std::time::Duration;

/// A rest. Long against a receive and a send (5 us), short against what a client needs to deal with
/// [`CROWD`] replies (40 us for fio's engine).
const REST: Duration = Duration::from_micros(20);
/// Requests that must gather in a rest.
const CROWD: u32 = 8;
/// Requests that are as many as are good to have: nothing is won by resting for more.
const PLENTY: u32 = 32;
/// The score that leads to a trial, and the highest.
const TRY: u32 = 32;
/// The score of a request that did not wait for the last replies; one that did takes one away.
const EARLY: u32 = 2;
/// Receives between trials that fail, first and at most.
const PATIENCE: (u32, u32) = (64, 1 << 16);

/// Watches one connection.
pub struct Pace {
    /// Requests since the last receive.
    batch: u32,
    /// The last receive came after a rest.
    rested: bool,
    score: u32,
    /// Receives before the next trial.
    wait: u32,
    patience: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { batch: 0, rested: false, score: 0, wait: 0, patience: PATIENCE.0 }
    }
}

impl Pace {
    /// A request was received whole.
    pub fn request(&mut self) {
        self.batch += 1;
    }

    /// Something was received: `early`, before the last replies had left.
    pub fn received(&mut self, early: bool) {
        self.batch = 0;
        if !self.rested {
            self.score = if early { (self.score + EARLY).min(TRY) } else { self.score.saturating_sub(1) };
            self.wait = self.wait.saturating_sub(1);
        }
    }

    /// How long to rest before the next receive. Not at all unless `idle`: all that was received has been answered.
    pub fn rest(&mut self, idle: bool) -> Option<Duration> {
        let few = self.rested && self.batch < CROWD;
        if few {
            self.score = 0;
            self.wait = self.patience;
            self.patience = (self.patience * 2).min(PATIENCE.1);
        } else if self.rested {
            self.patience = PATIENCE.0;
        }
        let promising = if self.rested { !few } else { self.score >= TRY && self.wait == 0 };
        self.rested = idle && promising && self.batch < PLENTY;
        self.rested.then_some(REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `turns` times `alone` requests, or `gathered` after a rest; how many rests there were.
    fn rests(pace: &mut Pace, turns: u32, early: bool, alone: u32, gathered: u32) -> u32 {
        let (mut rests, mut next) = (0, alone);
        for _ in 0..turns {
            pace.received(early);
            (0..next).for_each(|_| pace.request());
            next = if pace.rest(true).is_some() {
                rests += 1;
                gathered
            } else {
                alone
            };
        }
        rests
    }

    #[test]
    fn a_client_that_waits_for_replies_is_never_kept_waiting() {
        assert_eq!(rests(&mut Pace::default(), 100_000, false, 1, 1), 0);
    }

    #[test]
    fn a_crowd_gathers() {
        assert!(rests(&mut Pace::default(), 1000, true, 1, 12) > 950);
    }

    #[test]
    fn a_client_with_few_requests_is_tried_ever_less_often() {
        let mut pace = Pace::default();
        let first = rests(&mut pace, 10_000, true, 1, 4);
        let later = rests(&mut pace, 100_000, true, 1, 4);
        assert!((5..10).contains(&first) && later < 5, "{first} {later}");
        // When it has more, it is found out.
        assert!(rests(&mut pace, 200_000, true, 1, 12) > 100_000);
    }

    #[test]
    fn nobody_rests_while_the_node_is_at_work() {
        let mut pace = Pace::default();
        for _ in 0..1000 {
            pace.received(true);
            pace.request();
            assert_eq!(pace.rest(false), None);
        }
    }

    #[test]
    fn whoever_sends_much_at_once_needs_no_rest() {
        assert_eq!(rests(&mut Pace::default(), 1000, true, PLENTY, PLENTY), 0);
    }
}
