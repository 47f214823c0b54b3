//! What a model leaves to chance: drawn from a seed by a drive, expected by an observer.

use crate::machine::Nanos;
use crate::quantiles::Distribution;

/// How values that a model gives a distribution of are chosen.
pub(crate) enum Chance {
    /// Each is drawn.
    Drawn(fastrand::Rng),
    /// Each is its expectation.
    Expected,
}

impl Chance {
    /// Chance by a seed.
    pub(crate) fn seeded(seed: u64) -> Chance {
        Chance::Drawn(fastrand::Rng::with_seed(seed))
    }

    /// A number from 0 to below 1, evenly; or one half.
    pub(crate) fn uniform(&mut self) -> f64 {
        match self {
            Chance::Drawn(random) => random.f64(),
            Chance::Expected => 0.5,
        }
    }

    /// The probability by which quantiles are chosen; `None` where means are.
    pub(crate) fn probability(&mut self) -> Option<f64> {
        match self {
            Chance::Drawn(random) => Some(random.f64()),
            Chance::Expected => None,
        }
    }

    /// A value of the distribution.
    pub(crate) fn of(&mut self, distribution: &Distribution) -> Nanos {
        match self {
            Chance::Drawn(random) if !distribution.points.is_empty() => distribution.points.at(random.f64()),
            Chance::Drawn(_) | Chance::Expected => distribution.mean,
        }
    }

    /// Of the logistic distribution of scale `scale` around 0.
    pub(crate) fn logistic(&mut self, scale: f64) -> f64 {
        match self {
            Chance::Drawn(random) if scale > 0.0 => {
                let u = random.f64().clamp(1e-12, 1.0 - 1e-12);
                scale * (u / (1.0 - u)).ln()
            }
            Chance::Drawn(_) | Chance::Expected => 0.0,
        }
    }

    /// Of the lognormal distribution with this median and this deviation of the logarithm (Box and Muller).
    pub(crate) fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        match self {
            Chance::Drawn(random) => {
                let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
                median * (sigma * radius * (std::f64::consts::TAU * random.f64()).cos()).exp()
            }
            Chance::Expected => median * (sigma * sigma / 2.0).exp(),
        }
    }
}
