//! Time in a model: real time that passes k times as slowly.
//!
//! Invariant: the model's time never goes back, and at the real moment that [`Clock::real`] gives for a moment of the
//! model, [`Clock::model`] is not before that moment. So k is a whole number of thousandths here, and the arithmetic is
//! exact.

use lamina_block::Time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A factor between the model's time and real time, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Scale(u32);

impl Scale {
    /// As long as the model's time.
    pub const ONE: Scale = Scale(1000);
    /// The smallest factor.
    pub const MIN: Scale = Scale(1);
    /// The largest factor.
    pub const MAX: Scale = Scale(10_000_000);

    /// The factor that makes `model` last as long as `real`, or the largest.
    pub fn between(real: Duration, model: Duration) -> Scale {
        let thousandths = (real.as_nanos() * 1000).div_ceil(model.as_nanos().max(1));
        Scale(u32::try_from(thousandths).unwrap_or(u32::MAX)).clamp(Scale::MIN, Scale::MAX)
    }

    /// `percent` hundredths of it.
    pub fn percent(self, percent: u64) -> Scale {
        let thousandths = (u64::from(self.0) * percent).div_ceil(100);
        Scale(u32::try_from(thousandths).unwrap_or(u32::MAX)).clamp(Scale::MIN, Scale::MAX)
    }
}

impl TryFrom<f64> for Scale {
    type Error = String;

    fn try_from(k: f64) -> Result<Scale, String> {
        let thousandths = (k * 1000.0).round();
        if !(1.0..=f64::from(Scale::MAX.0)).contains(&thousandths) {
            return Err(format!("{k} is no factor: from 0.001 to 10000, in steps of 0.001"));
        }
        Ok(Scale(thousandths as u32))
    }
}

impl From<Scale> for f64 {
    fn from(k: Scale) -> f64 {
        f64::from(k.0) / 1000.0
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(*self))
    }
}

/// The model's time, as a function of real time: a line with the slope 1/k through one moment of both.
pub struct Clock {
    k: Scale,
    real: Time,
    model: Time,
}

impl Clock {
    /// The model's time begins at `now`.
    pub fn new(now: Time, k: Scale) -> Clock {
        Clock { k, real: now, model: Time(0) }
    }

    /// The factor.
    pub fn k(&self) -> Scale {
        self.k
    }

    /// Goes on from `now` with another factor.
    pub fn set_k(&mut self, now: Time, k: Scale) {
        *self = Clock { k, real: now, model: self.model(now) };
    }

    /// The moment of the model at the real moment `at`, not before the last change of k.
    pub fn model(&self, at: Time) -> Time {
        self.model.after(scaled(at.since(self.real), 1000, self.k.0))
    }

    /// The first real moment at which the model's time is `at` or later; moments of the model before the last change
    /// of k count as that change.
    pub fn real(&self, at: Time) -> Time {
        let nanos = (at.since(self.model).as_nanos() * u128::from(self.k.0)).div_ceil(1000);
        self.real.after(nanoseconds(nanos))
    }
}

fn scaled(d: Duration, by: u32, over: u32) -> Duration {
    nanoseconds(d.as_nanos() * u128::from(by) / u128::from(over.max(1)))
}

fn nanoseconds(n: u128) -> Duration {
    Duration::from_nanos(u64::try_from(n).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn k(k: f64) -> Scale {
        Scale::try_from(k).unwrap()
    }

    #[test]
    fn the_model_has_reached_a_moment_when_its_real_moment_comes() {
        for factor in [0.001, 0.3, 0.999, 1.0, 1.001, 3.0, 7.777, 10_000.0] {
            let clock = Clock::new(Time(12_345), k(factor));
            for at in [0, 1, 2, 999, 1000, 1001, 123_456_789, 1 << 40] {
                let real = clock.real(Time(at));
                assert!(clock.model(real) >= Time(at), "{factor}: {at}");
                let early = real.0 == 12_345 || clock.model(Time(real.0 - 1)) < Time(at);
                assert!(early, "{factor}: {at}");
            }
        }
    }

    #[test]
    fn the_slope_changes_and_time_goes_on() {
        let mut clock = Clock::new(Time(1000), k(8.0));
        assert_eq!((clock.model(Time(9000)), clock.real(Time(1000))), (Time(1000), Time(9000)));
        clock.set_k(Time(9000), k(2.0));
        assert_eq!((clock.model(Time(9000)), clock.model(Time(11_000))), (Time(1000), Time(2000)));
        assert_eq!((clock.real(Time(2000)), clock.real(Time(500))), (Time(11_000), Time(9000)));
    }

    #[test]
    fn factors_are_from_a_thousandth_to_ten_thousand() {
        for wrong in [0.0, -1.0, 0.0001, 10_001.0, f64::NAN, f64::INFINITY] {
            assert!(Scale::try_from(wrong).is_err(), "{wrong}");
        }
        assert_eq!(f64::from(k(8.0)), 8.0);
        assert_eq!(Scale::between(Duration::from_millis(7), Duration::from_millis(2)), k(3.5));
        assert_eq!(Scale::between(Duration::from_millis(7), Duration::ZERO), Scale::MAX);
        assert_eq!((k(2.0).percent(125), Scale::MAX.percent(200)), (k(2.5), Scale::MAX));
    }
}
