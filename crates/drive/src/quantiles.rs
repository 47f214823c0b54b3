//! Distributions as files have them: some of their quantiles.

use crate::check::{Checked, ascends, entries, within};
use crate::machine::Nanos;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The most points of a distribution.
const POINTS_MAX: usize = 1000;

/// A distribution by points `[probability, value]` of its inverse; between them it is linear, and outside them
/// constant. Probabilities ascend in 0..=1, values do not descend. Without points the value is always 0.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Quantiles(pub Vec<[f64; 2]>);

impl Quantiles {
    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value below which the share `probability` of all values lies.
    pub fn at(&self, probability: f64) -> f64 {
        let above = self.0.partition_point(|point| point[0] <= probability);
        match (above.checked_sub(1).and_then(|below| self.0.get(below)), self.0.get(above)) {
            (Some([p, low]), Some([q, high])) => low + (high - low) * (probability - p) / (q - p),
            (Some([_, end]), None) | (None, Some([_, end])) => *end,
            (None, None) => 0.0,
        }
    }

    /// The expected value.
    pub fn mean(&self) -> f64 {
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else { return 0.0 };
        let between =
            self.0.windows(2).map(|pair| (pair[1][0] - pair[0][0]) * (pair[0][1] + pair[1][1]) / 2.0);
        first[0] * first[1] + between.sum::<f64>() + (1.0 - last[0]) * last[1]
    }

    pub(crate) fn check(&self, key: &str, values: RangeInclusive<f64>) -> Checked {
        entries(key, self.0.len(), 0..=POINTS_MAX)?;
        for (i, [probability, value]) in self.0.iter().enumerate() {
            within(format_args!("{key}[{i}][0]"), *probability, 0.0..=1.0)?;
            within(format_args!("{key}[{i}][1]"), *value, values.clone())?;
        }
        for (i, pair) in self.0.windows(2).enumerate() {
            ascends(format_args!("{key}[{}][0]", i + 1), pair[0][0], pair[1][0])?;
            within(format_args!("{key}[{}][1]", i + 1), pair[1][1], pair[0][1]..=*values.end())?;
        }
        Ok(())
    }
}

/// A distribution ready for use: in nanoseconds, and its mean at hand.
#[derive(Clone)]
pub(crate) struct Distribution {
    pub points: Quantiles,
    pub mean: Nanos,
}

impl Distribution {
    /// `of`, whose values have the unit `unit`.
    pub(crate) fn new(of: &Quantiles, unit: Nanos) -> Distribution {
        let points = Quantiles(of.0.iter().map(|[p, value]| [*p, value * unit]).collect());
        Distribution { mean: points.mean(), points }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_joined_by_lines() {
        let some = Quantiles(vec![[0.0, 1.0], [0.5, 2.0], [0.9, 10.0]]);
        for (p, value) in [(0.0, 1.0), (0.25, 1.5), (0.5, 2.0), (0.7, 6.0), (0.9, 10.0), (1.0, 10.0)] {
            assert!((some.at(p) - value).abs() < 1e-12, "{p}");
        }
        // 0.5 * 1.5 + 0.4 * 6 + 0.1 * 10.
        assert!((some.mean() - 4.15).abs() < 1e-12);
        assert_eq!(Quantiles::default().at(0.3), 0.0);
        assert_eq!(Quantiles::default().mean(), 0.0);
    }

    #[test]
    fn wrong_points_are_refused() {
        let says = |points: &[[f64; 2]]| {
            let error = Quantiles(points.to_vec()).check("q", -1.0..=10.0).unwrap_err();
            format!("{}: {}", error.key, error.message)
        };
        assert_eq!(says(&[[1.5, 0.0]]), "q[0][0]: 1.5 is outside 0..=1");
        assert_eq!(says(&[[0.5, f64::NAN]]), "q[0][1]: NaN is outside -1..=10");
        assert_eq!(
            says(&[[0.5, 1.0], [0.5, 2.0]]),
            "q[1][0]: 0.5 is not more than 0.5, the entry before: entries ascend"
        );
        assert_eq!(says(&[[0.1, 1.0], [0.5, 0.5]]), "q[1][1]: 0.5 is outside 1..=10");
    }
}
