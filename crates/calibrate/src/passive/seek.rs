//! Seek times, from services on the medium.
//!
//! A read reaches its first sector when that passes next after the arm is there. The time y until then lies between
//! what the command and the seek take, S(d), and a turn more: each read says S(d) ≤ y < S(d) + R, up to a jitter. The
//! curve is the one under which that is the most likely for all reads: a line over √d between knots that never
//! descends. No angle is used, so that errors of the angle map do not enter.

use crate::numbers::{quantile, sorted_quantile};

/// Knots over the root of the distance, at most.
const KNOTS: usize = 14;
/// Reads that a knot is worth.
const READS: usize = 25;
/// The share of reads that have nothing to do with the curve.
const OUTLIERS: f64 = 0.03;
/// Rounds over all knots.
const ROUNDS: usize = 12;

/// How long a read took to its first sector, and how far it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Cylinders.
    pub distance: f64,
    /// Microseconds.
    pub us: f64,
}

/// Seek times that were found.
#[derive(Clone, Debug)]
pub(crate) struct Seeks {
    /// The command, before any seek, in microseconds.
    pub overhead_us: f64,
    /// Cylinders, and microseconds of the seek.
    pub points: Vec<(f64, f64)>,
    /// The scale of the logistic jitter, in microseconds.
    pub jitter_us: f64,
}

/// The curve that `reaches` show at a rotation of `period_us`.
pub(crate) fn seeks(reaches: &[Reach], period_us: f64) -> Seeks {
    let away: Vec<Reach> = reaches.iter().copied().filter(|r| r.distance >= 1.0).collect();
    let here: Vec<Reach> = reaches.iter().copied().filter(|r| r.distance < 1.0).collect();
    let knots = knots(&away);
    let mut jitter_us = period_us / 40.0;
    let mut times: Vec<f64> = knots.iter().map(|k| first_guess(&away, *k)).collect();
    climb(&mut times);
    for _ in 0..ROUNDS {
        for k in 0..knots.len() {
            improve(&away, &knots, &mut times, k, jitter_us, period_us);
        }
        let scales = (1..40).map(|n| period_us * f64::from(n) / 400.0);
        let likely = |scale: f64| likelihood(&away, &knots, &times, scale, period_us);
        jitter_us = scales.max_by(|a, b| likely(*a).total_cmp(&likely(*b))).unwrap_or(jitter_us);
    }
    let shortest = times.first().copied().unwrap_or(0.0);
    let overhead_us = if here.len() >= READS {
        quantile(&here.iter().map(|r| r.us).collect::<Vec<f64>>(), 0.03).clamp(0.0, shortest)
    } else {
        shortest / 2.0
    };
    let points = knots.iter().zip(&times).map(|(k, t)| (k * k, t - overhead_us)).collect();
    Seeks { overhead_us, points, jitter_us }
}

/// Roots of distances, so that there are reads between all of them.
fn knots(reaches: &[Reach]) -> Vec<f64> {
    let mut roots: Vec<f64> = reaches.iter().map(|r| r.distance.sqrt()).collect();
    roots.sort_by(f64::total_cmp);
    let count = (roots.len() / READS).clamp(1, KNOTS);
    let longest = roots.last().copied().unwrap_or(1.0);
    let even = |n: usize| 1.0 + (longest - 1.0) * n as f64 / count as f64;
    let often = |n: usize| sorted_quantile(&roots, n as f64 / count as f64);
    // Half where reads are, half everywhere; the first is one cylinder.
    let mut knots: Vec<f64> = (0..=count).map(|n| (even(n) + often(n).max(1.0)) / 2.0).collect();
    knots[0] = 1.0;
    knots.dedup_by(|b, a| *b - *a < 0.5);
    knots
}

/// A low quantile of what reads about as far took.
fn first_guess(reaches: &[Reach], root: f64) -> f64 {
    let mut near: Vec<(f64, f64)> =
        reaches.iter().map(|r| ((r.distance.sqrt() - root).abs(), r.us)).collect();
    near.sort_by(|a, b| a.0.total_cmp(&b.0));
    near.truncate(2 * READS);
    quantile(&near.iter().map(|n| n.1).collect::<Vec<f64>>(), 0.06)
}

fn climb(times: &mut [f64]) {
    for k in 1..times.len() {
        times[k] = times[k].max(times[k - 1]);
    }
}

/// The curve at a root of a distance.
fn at(knots: &[f64], times: &[f64], root: f64) -> f64 {
    let above = knots.partition_point(|k| *k <= root).clamp(1, knots.len().max(2) - 1);
    match (knots.get(above - 1), knots.get(above)) {
        (Some(a), Some(b)) => {
            times[above - 1] + (times[above] - times[above - 1]) * ((root - a) / (b - a)).clamp(0.0, 1.0)
        }
        _ => times.first().copied().unwrap_or(0.0),
    }
}

/// The logarithm of the likelihood of all reads.
fn likelihood(reaches: &[Reach], knots: &[f64], times: &[f64], scale: f64, period: f64) -> f64 {
    let below = |x: f64| 1.0 / (1.0 + (-x / scale).exp());
    let of = |r: &Reach| {
        let slack = r.us - at(knots, times, r.distance.sqrt());
        (OUTLIERS + (1.0 - OUTLIERS) * (below(slack) - below(slack - period))).ln()
    };
    reaches.iter().map(of).sum()
}

/// Moves one knot, between its neighbours, to where the reads around it are the most likely.
fn improve(reaches: &[Reach], knots: &[f64], times: &mut [f64], k: usize, scale: f64, period: f64) {
    let from = k.checked_sub(1).map_or(f64::NEG_INFINITY, |k| knots[k]);
    let to = knots.get(k + 1).copied().unwrap_or(f64::INFINITY);
    let around: Vec<Reach> =
        reaches.iter().copied().filter(|r| (from..=to).contains(&r.distance.sqrt())).collect();
    let least = k.checked_sub(1).map_or(0.0, |k| times[k]);
    let most = times.get(k + 1).copied().unwrap_or(f64::INFINITY);
    let centre = times[k];
    let step = period / 200.0;
    let mut best = (f64::NEG_INFINITY, centre);
    for n in -12..=12 {
        times[k] = (centre + f64::from(n) * step).clamp(least, most);
        let likely = likelihood(&around, knots, times, scale, period);
        if likely > best.0 {
            best = (likely, times[k]);
        }
    }
    times[k] = best.1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_found_under_rotation() {
        let mut random = 12_345u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as f64 / (1u64 << 31) as f64
        };
        let curve = |d: f64| 800.0 + 500.0 + 90.0 * d.sqrt();
        let reach = |_| {
            let distance = 1.0 + (next() * 5000.0).floor();
            Reach { distance, us: curve(distance) + next() * 6000.0 }
        };
        let reaches: Vec<Reach> = (0..2000).map(reach).collect();
        let found = seeks(&reaches, 6000.0);
        for (distance, us) in found.points.iter().skip(1) {
            let error = us + found.overhead_us - curve(*distance);
            assert!(error.abs() < 250.0, "{distance}: {error}");
        }
    }
}
