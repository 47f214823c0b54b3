//! Where the platters are, from the moments when transfers ended.
//!
//! Each end gives an angle, true but for noise, some outliers (a hit that was not predicted ends at any angle), and
//! whole turns, which are no angle. The estimate is the mean direction of all ends, where each end counts less by a
//! constant factor than the one after it, and less the farther it is off. What the direction slips over a longer while
//! is the error of the rotation's period, and is corrected as well.

use crate::machine::Nanos;
use std::f64::consts::TAU;

/// Turns by which an end may be off and still count half, and how much others count at least: an estimate that has
/// become wrong has to be given up some time.
const NEAR: f64 = 0.05;
const COUNTS_MIN: f64 = 0.05;

/// How much the direction so far counts when the next one is added: about twenty ends are remembered.
const MEMORY: f64 = 0.95;

/// The first while after which the slip corrects the period, and the longest: half a second, a minute.
const WHILE: (Nanos, Nanos) = (0.5e9, 60e9);

/// The largest error of a period that is believed, as a share of it.
const DRIFT_MAX: f64 = 1e-3;

/// The rotation of platters: at the moment `at` they are `turns` around, and go on by `per_ns` turns a nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spin {
    pub at: Nanos,
    pub turns: f64,
    pub per_ns: f64,
}

impl Spin {
    /// The turns at a moment. Whole turns are without meaning.
    pub(crate) fn at(&self, moment: Nanos) -> f64 {
        self.turns + (moment - self.at) * self.per_ns
    }
}

/// The part of `turns` behind the last whole turn, 0 to below 1.
pub(crate) fn fraction(turns: f64) -> f64 {
    // Without SSE 4.1, which not every processor has, this is much faster than `floor`.
    let part = turns - turns as i64 as f64;
    if part < 0.0 { part + 1.0 } else { part }
}

/// An estimate of a [`Spin`].
#[derive(Default)]
pub(crate) struct Phase {
    known: Option<Known>,
}

struct Known {
    /// The moment and the turns of the last estimate.
    at: Nanos,
    turns: f64,
    /// The share by which the platters are faster than the model.
    drift: f64,
    /// How long the sum of directions is: the weight of the estimate against one more end.
    weight: f64,
    /// Since when the slip is summed, and until when at least.
    since: Nanos,
    during: Nanos,
    slip: f64,
}

impl Phase {
    /// At `at` the platters were seen at the angle of `turns`.
    pub(crate) fn observe(&mut self, at: Nanos, turns: f64, rotation: Nanos) {
        let Some(known) = &mut self.known else {
            let turns = fraction(turns);
            let during = WHILE.0;
            self.known = Some(Known { at, turns, drift: 0.0, weight: 1.0, since: at, during, slip: 0.0 });
            return;
        };
        known.observe(at, turns, rotation);
    }

    /// The rotation, once an angle was seen.
    pub(crate) fn spin(&self, rotation: Nanos) -> Option<Spin> {
        let known = self.known.as_ref()?;
        Some(Spin { at: known.at, turns: known.turns, per_ns: (1.0 + known.drift) / rotation })
    }
}

impl Known {
    fn observe(&mut self, at: Nanos, turns: f64, rotation: Nanos) {
        let expected = self.turns + (at - self.at) * (1.0 + self.drift) / rotation;
        let off = fraction(turns - expected + 0.5) - 0.5;
        let counts = (1.0 / (1.0 + (off / NEAR).powi(2))).max(COUNTS_MIN);
        let (sin, cos) = (TAU * off).sin_cos();
        let (x, y) = (self.weight * MEMORY + counts * cos, counts * sin);
        self.weight = x.hypot(y);
        let error = y.atan2(x) / TAU;
        self.turns = fraction(expected + error);
        self.at = at;
        self.slip += error;
        let elapsed = at - self.since;
        if elapsed >= self.during {
            self.drift = (self.drift + self.slip * rotation / elapsed).clamp(-DRIFT_MAX, DRIFT_MAX);
            (self.since, self.slip) = (at, 0.0);
            self.during = (2.0 * self.during).min(WHILE.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions() {
        for (turns, part) in [(0.0, 0.0), (2.25, 0.25), (-0.25, 0.75), (-3.0, 0.0), (1e15 + 0.5, 0.5)] {
            assert_eq!(fraction(turns), part, "{turns}");
        }
    }

    #[test]
    fn the_period_is_corrected_in_spite_of_noise_and_outliers() {
        let (nominal, real) = (4e6, 4e6 * (1.0 + 2e-5));
        let mut random = fastrand::Rng::with_seed(3);
        let (mut phase, mut at) = (Phase::default(), 0.0);
        for n in 0..20_000 {
            at += random.f64() * 20e6;
            let noise = (random.f64() - 0.5) * 0.1;
            let outlier = if n % 3 == 0 { random.f64() } else { 0.0 };
            phase.observe(at, 0.3 + at / real + noise + outlier, nominal);
        }
        let spin = phase.spin(nominal).expect("known");
        // Ten seconds later, without one end between, the angle is still known; the model alone is 5% of a turn off.
        let later = at + 10e9;
        let error = fraction(spin.at(later) - 0.3 - later / real + 0.5) - 0.5;
        assert!(error.abs() < 0.02, "{error}");
    }

    #[test]
    fn a_wrong_estimate_is_given_up() {
        let (mut phase, mut at) = (Phase::default(), 0.0);
        let mut random = fastrand::Rng::with_seed(3);
        for n in 0..500 {
            at += random.f64() * 20e6;
            // After 300 ends the drive was switched off and on.
            let turns = if n < 300 { 0.3 } else { 0.8 };
            phase.observe(at, turns + at / 4e6 + (random.f64() - 0.5) * 0.1, 4e6);
        }
        let error = fraction(phase.spin(4e6).expect("known").at(at) - 0.8 - at / 4e6 + 0.5) - 0.5;
        assert!(error.abs() < 0.02, "{error}");
    }
}
