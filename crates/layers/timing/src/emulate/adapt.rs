//! Finding k: as small as the device below allows, and no smaller.
//!
//! The paper on CATS (section 4) says when k changes, not by how much: a request that comes back from below after its
//! target makes k rise; when many are held for long, k falls. Here:
//!
//! * k rises to 1.1 times what that request would have needed, and to no more than twice itself. Requests that were
//!   sent before say nothing any more, so that a late batch makes k rise once.
//! * k falls when a thousand requests in a row were held for a third of their time or longer: to 1.5 times what the
//!   slowest of them needed, and to no less than four fifths of itself.
//! * k stays between its bounds.

use super::clock::Scale;
use lamina_block::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// So many requests decide whether k falls.
const WINDOW: u32 = 1000;

/// The bounds of k: the smallest is not above the largest.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "Given")]
pub struct Bounds {
    min: Scale,
    max: Scale,
}

/// Bounds as they are given.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Given {
    min: Scale,
    max: Scale,
}

impl Default for Given {
    /// Not faster than the model, and up to 1000 times as slow.
    fn default() -> Given {
        Given { min: Scale::ONE, max: Scale::ONE.percent(100_000) }
    }
}

impl TryFrom<Given> for Bounds {
    type Error = String;

    fn try_from(Given { min, max }: Given) -> Result<Bounds, String> {
        if min > max {
            return Err(format!("min {min} is more than max {max}"));
        }
        Ok(Bounds { min, max })
    }
}

impl Bounds {
    /// The k inside that is nearest to `k`.
    pub fn nearest(self, k: Scale) -> Scale {
        k.clamp(self.min, self.max)
    }
}

/// A request that has come back from below.
#[derive(Clone, Copy, Debug)]
pub struct Returned {
    /// When it was sent.
    pub sent: Time,
    /// How long it was below.
    pub below: Duration,
    /// How long it took in the model, in the model's time.
    pub model: Duration,
}

/// What the requests since the last change of k say.
pub struct Adapt {
    bounds: Bounds,
    since: Time,
    seen: u32,
    /// The k that the slowest request needed.
    needed: Scale,
}

impl Adapt {
    /// Nothing is known at `now`.
    pub fn new(now: Time, bounds: Bounds) -> Adapt {
        Adapt { bounds, since: now, seen: 0, needed: Scale::MIN }
    }

    /// The bounds.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Takes note of a request; another k, if it is to change.
    pub fn returned(&mut self, now: Time, k: Scale, request: Returned) -> Option<Scale> {
        if request.sent < self.since {
            return None;
        }
        let needed = Scale::between(request.below, request.model);
        self.seen += 1;
        self.needed = self.needed.max(needed);
        let other = if needed > k {
            needed.percent(110).min(k.percent(200))
        } else if self.seen < WINDOW {
            return None;
        } else if self.needed.percent(150) <= k {
            self.needed.percent(150).max(k.percent(80))
        } else {
            k
        };
        *self = Adapt::new(now, self.bounds);
        let other = self.bounds.nearest(other);
        (other != k).then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn k(k: f64) -> Scale {
        Scale::try_from(k).unwrap()
    }

    fn request(sent: u64, needs: f64) -> Returned {
        let below = Duration::from_secs_f64(needs / 1e3);
        Returned { sent: Time(sent), below, model: Duration::from_millis(1) }
    }

    fn bounds(min: f64, max: f64) -> Bounds {
        Bounds { min: k(min), max: k(max) }
    }

    #[test]
    fn a_late_request_makes_k_rise_and_those_sent_before_do_not() {
        let mut adapt = Adapt::new(Time(0), bounds(1.0, 16.0));
        assert_eq!(adapt.returned(Time(10), k(4.0), request(0, 4.0)), None);
        assert_eq!(adapt.returned(Time(20), k(4.0), request(0, 5.0)), Some(k(5.5)));
        assert_eq!(adapt.returned(Time(30), k(5.5), request(19, 50.0)), None, "sent before");
        assert_eq!(adapt.returned(Time(40), k(5.5), request(20, 50.0)), Some(k(11.0)), "twice at most");
        assert_eq!(adapt.returned(Time(50), k(11.0), request(40, 50.0)), Some(k(16.0)), "the bound");
        assert_eq!(adapt.returned(Time(60), k(16.0), request(50, 50.0)), None, "no more");
    }

    #[test]
    fn k_falls_when_all_are_held_for_long() {
        for (needs, slowest, then) in
            [(0.1, 0.1, Some(6.4)), (0.1, 5.0, Some(7.5)), (0.1, 5.4, None), (7.0, 7.0, None)]
        {
            let mut adapt = Adapt::new(Time(0), bounds(1.0, 16.0));
            for _ in 1..WINDOW {
                assert_eq!(adapt.returned(Time(1), k(8.0), request(0, needs)), None);
            }
            assert_eq!(
                adapt.returned(Time(1), k(8.0), request(0, slowest)),
                then.map(k),
                "{needs} {slowest}"
            );
        }
        let mut adapt = Adapt::new(Time(0), bounds(7.5, 16.0));
        let last = (0..WINDOW).map(|_| adapt.returned(Time(1), k(8.0), request(0, 0.1))).last();
        assert_eq!(last, Some(Some(k(7.5))), "the bound");
    }
}
