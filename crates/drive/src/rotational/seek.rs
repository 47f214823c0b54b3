//! Seek times by distance: a curve, or a monotone spline over the root of the distance.
//!
//! Short seeks grow with the root of their distance, so that over it few points say much. The spline is Fritsch and
//! Butland's ("A method for constructing local monotone piecewise cubic interpolants", 1984): no overshoot between
//! points, whatever they are.

use super::{Curve, Seek};
use crate::machine::{MS, Nanos};

/// Seek times, ready for use.
#[derive(Clone)]
pub(crate) enum SeekTimes {
    Curve(Curve),
    Spline(Vec<Knot>),
}

/// A point of the spline.
#[derive(Clone)]
pub(crate) struct Knot {
    /// Its distance in cylinders, and the root of it.
    distance: f64,
    x: f64,
    time: Nanos,
    slope: f64,
}

impl SeekTimes {
    pub(crate) fn new(seek: &Seek) -> SeekTimes {
        match seek {
            Seek::Curve(curve) => SeekTimes::Curve(curve.clone()),
            Seek::Points(points) => SeekTimes::Spline(spline(points)),
        }
    }

    /// The time of a seek over `distance` cylinders.
    pub(crate) fn at(&self, distance: f64) -> Nanos {
        if distance <= 0.0 {
            return 0.0;
        }
        match self {
            SeekTimes::Curve(curve) => (curve.at(distance) * MS).max(0.0),
            SeekTimes::Spline(knots) => between(knots, distance),
        }
    }
}

fn between(knots: &[Knot], distance: f64) -> Nanos {
    let above = knots.partition_point(|knot| knot.distance <= distance);
    match (above.checked_sub(1).and_then(|below| knots.get(below)), knots.get(above)) {
        (Some(a), Some(b)) => {
            let width = b.x - a.x;
            let t = (distance.sqrt() - a.x) / width;
            let s = 1.0 - t;
            // Hermite's cubic.
            (a.time * (1.0 + 2.0 * t) + a.slope * width * t) * s * s
                + (b.time * (1.0 + 2.0 * s) - b.slope * width * s) * t * t
        }
        (Some(last), None) => last.time + last.slope * (distance.sqrt() - last.x),
        (None, Some(first)) => first.time,
        (None, None) => 0.0,
    }
}

fn spline(points: &[[f64; 2]]) -> Vec<Knot> {
    let knot = |[distance, ms]: &[f64; 2]| Knot {
        distance: *distance,
        x: distance.sqrt(),
        time: ms * MS,
        slope: 0.0,
    };
    let mut knots: Vec<Knot> = points.iter().map(knot).collect();
    let rise =
        |pair: &[Knot]| ((pair[1].time - pair[0].time) / (pair[1].x - pair[0].x), pair[1].x - pair[0].x);
    let rises: Vec<(f64, f64)> = knots.windows(2).map(rise).collect();
    for (i, knot) in knots.iter_mut().enumerate() {
        let before = i.checked_sub(1).and_then(|i| rises.get(i));
        knot.slope = match (before, rises.get(i)) {
            (Some(&(a, wide_a)), Some(&(b, wide_b))) if a > 0.0 && b > 0.0 => {
                let (wa, wb) = (2.0 * wide_b + wide_a, wide_b + 2.0 * wide_a);
                (wa + wb) / (wa / a + wb / b)
            }
            (Some(_), Some(_)) | (None, None) => 0.0,
            (Some((only, _)), None) | (None, Some((only, _))) => *only,
        };
    }
    knots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spline_goes_through_its_points_and_never_descends() {
        let points = [[1.0, 0.5], [10.0, 0.8], [100.0, 0.8], [1000.0, 1.6], [50_000.0, 7.0]];
        let seek = SeekTimes::new(&Seek::Points(points.to_vec()));
        for [distance, ms] in points {
            assert!((seek.at(distance) - ms * MS).abs() < 1e-3, "{distance}");
        }
        assert_eq!(seek.at(0.0), 0.0);
        assert_eq!(seek.at(0.5), 0.5 * MS);
        let times: Vec<f64> = (1..60_000).map(|d| seek.at(d as f64)).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1] + 1e-6));
        // Beyond the last point the slope stays: 5.4 ms over the roots of 1000 and 50000.
        let slope = 5.4 / (50_000f64.sqrt() - 1000f64.sqrt());
        let expected = 7.0 + slope * (60_000f64.sqrt() - 50_000f64.sqrt());
        assert!((seek.at(60_000.0) / MS - expected).abs() < 1e-9);
    }

    #[test]
    fn a_curve() {
        let curve = Curve { alpha_ms: 1.0, beta_ms: 0.1, gamma_ms: 0.01 };
        let seek = SeekTimes::new(&Seek::Curve(curve));
        for (distance, ms) in [(0.0, 0.0), (1.0, 1.11), (100.0, 3.0)] {
            assert!((seek.at(distance) - ms * MS).abs() < 1e-6, "{distance}");
        }
    }
}
