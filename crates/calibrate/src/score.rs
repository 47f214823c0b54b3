//! How well a model predicts requests that it has not seen.
//!
//! Predictions are those of an observer ([`Tracker`]) that is told of each request after it was predicted, as it would
//! be under a scheduler. The distribution is that of the same predictions with what the model leaves to chance:
//! residuals of the class of the request, drawn from a seed.

use crate::Sample;
use crate::numbers::{quantile, sorted_quantile};
use lamina_block::Time;
use lamina_drive::{Mechanism, Model, Op, Quantiles, Residuals, Tracker};

/// Requests further apart than this share of the drive are far.
pub(crate) const FAR: f64 = 0.01;
/// Points of the distributions that are compared (DiskSim's `rms`).
const POINTS: usize = 10_000;

/// How good predictions are, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// What was predicted of each sample, and what was measured.
    pub pairs: Vec<(f64, f64)>,
    /// The demerit figure: the root mean square of the horizontal distance between the distributions of predicted and
    /// measured times (Ruemmler and Wilkes; DiskSim's `rms`).
    pub demerit_ms: f64,
    /// Far reads from the medium: the median error.
    pub median_ms: f64,
    /// The share of them within half a millisecond.
    pub within_half_ms: f64,
    /// The share of them that is a whole turn off, within a quarter of one.
    pub whole_turn_off: f64,
    /// The root mean square error of all requests.
    pub rms_ms: f64,
    /// How many far reads there were.
    pub far: usize,
}

/// A prediction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predicted {
    /// How long the request takes, in microseconds.
    pub us: f64,
    /// Whether it is a hit.
    pub hit: bool,
    /// The part of a turn for which it waits for its first sector, if it does.
    pub wait: Option<f64>,
}

/// What an observer predicts of each sample, one after the other.
pub(crate) fn replay(model: &Model, samples: &[Sample]) -> Vec<Predicted> {
    observe(model, samples, true)
}

/// What an observer predicts that is told of no ends, and so knows nothing of angles.
pub(crate) fn replay_blind(model: &Model, samples: &[Sample]) -> Vec<Predicted> {
    observe(model, samples, false)
}

fn observe(model: &Model, samples: &[Sample], sees_ends: bool) -> Vec<Predicted> {
    let mut tracker = Tracker::new(model);
    let moment = |us: f64| Time((us * 1000.0) as u64);
    let predict = |s: &Sample| {
        let start = moment(s.started_us);
        tracker.catch_up(start);
        let us = tracker.cost(start, &s.request).as_nanos() as f64 / 1000.0;
        let (hit, wait) = (tracker.is_hit_at(start, &s.request), tracker.wait(start, &s.request));
        tracker.dispatched(start, &s.request);
        if sees_ends {
            tracker.completed(start, moment(s.started_us + s.service_us), &s.request);
        }
        Predicted { us, hit, wait }
    };
    samples.iter().map(predict).collect()
}

/// The same model without what it leaves to chance: it says what is the most likely.
pub(crate) fn certain(model: &Model) -> Model {
    let mut certain = model.clone();
    if let Mechanism::Rotational(disk) = &mut certain.mechanism {
        disk.residuals = Residuals::default();
        disk.arrival_spread_ms = 0.0;
    }
    certain
}

/// How well `model` predicts `samples`; `seed` decides what it leaves to chance.
pub fn score(model: &Model, samples: &[Sample], seed: u64) -> Score {
    let predicted = replay(&certain(model), samples);
    let pairs: Vec<(f64, f64)> =
        predicted.iter().zip(samples).map(|(p, s)| (p.us / 1000.0, s.service_us / 1000.0)).collect();
    let drawn = drawn(model, samples, &predicted, seed);
    let measured: Vec<f64> = pairs.iter().map(|p| p.1).collect();
    let size = model.sectors() as f64;
    let is_far = |i: &usize| {
        let (before, now) = (&samples[i - 1].request, &samples[*i].request);
        now.op == Op::Read && before.end().abs_diff(now.lbn) as f64 > FAR * size
    };
    let errors: Vec<f64> =
        (1..samples.len()).filter(is_far).map(|i| (pairs[i].0 - pairs[i].1).abs()).collect();
    let rotation = rotation_ms(model);
    let share = |is: &dyn Fn(f64) -> bool| {
        errors.iter().filter(|e| is(**e)).count() as f64 / errors.len().max(1) as f64
    };
    Score {
        demerit_ms: demerit(&drawn, &measured),
        median_ms: quantile(&errors, 0.5),
        within_half_ms: share(&|e| e <= 0.5),
        whole_turn_off: share(&|e| (e - rotation).abs() < rotation / 4.0),
        rms_ms: (pairs.iter().map(|p| (p.0 - p.1).powi(2)).sum::<f64>() / pairs.len().max(1) as f64).sqrt(),
        far: errors.len(),
        pairs,
    }
}

fn rotation_ms(model: &Model) -> f64 {
    match &model.mechanism {
        Mechanism::Rotational(disk) => disk.rotation_ms,
        Mechanism::Linear(line) => 2.0 * line.constant_ms,
        Mechanism::Ssd(_) | Mechanism::Remote(_) => 0.0,
    }
}

/// Predictions, each with a residual of its class and with turns lost or won by chance, in milliseconds.
fn drawn(model: &Model, samples: &[Sample], predicted: &[Predicted], seed: u64) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let Mechanism::Rotational(disk) = &model.mechanism else {
        return predicted.iter().map(|p| p.us / 1000.0).collect();
    };
    let buffered = disk.write_buffer.is_some();
    let mut draw = |(p, s): (&Predicted, &Sample)| {
        let late = disk.arrival_spread_ms * logistic(random.f64()) / disk.rotation_ms;
        // An arm that is later than the wait is long loses a turn.
        let turns = p.wait.map_or(0.0, |wait| -(wait - late).floor());
        let of = class(&disk.residuals, s.request.op, p, buffered);
        (p.us / 1000.0 + turns * disk.rotation_ms + of.at(random.f64())).max(0.0)
    };
    predicted.iter().zip(samples).map(&mut draw).collect()
}

/// The value of the logistic distribution at a probability.
fn logistic(probability: f64) -> f64 {
    let within = probability.clamp(1e-12, 1.0 - 1e-12);
    (within / (1.0 - within)).ln()
}

/// The residuals of a request.
fn class<'a>(residuals: &'a Residuals, op: Op, predicted: &Predicted, buffered: bool) -> &'a Quantiles {
    match (op, predicted.wait) {
        (Op::Read, _) if predicted.hit => &residuals.hit_ms,
        (Op::Read, Some(wait)) => residuals.read(wait),
        (Op::Read, None) => &residuals.read_ms,
        (Op::Write, Some(wait)) => residuals.write(wait),
        (Op::Write | Op::Flush | Op::Discard, _) if buffered => &residuals.buffered_ms,
        (Op::Write | Op::Flush | Op::Discard, _) => &residuals.write_ms,
    }
}

/// The root mean square of the horizontal distance between two distributions.
pub(crate) fn demerit(predicted: &[f64], measured: &[f64]) -> f64 {
    let sorted = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let (a, b) = (sorted(predicted), sorted(measured));
    let at = |n: usize| n as f64 / POINTS as f64;
    let apart = |n: usize| (sorted_quantile(&a, at(n)) - sorted_quantile(&b, at(n))).powi(2);
    ((1..=POINTS).map(apart).sum::<f64>() / POINTS as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demerit_is_a_horizontal_distance() {
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        let shifted: Vec<f64> = values.iter().rev().map(|v| v + 0.5).collect();
        assert!((demerit(&values, &shifted) - 0.5).abs() < 1e-9);
        assert_eq!(demerit(&values, &values), 0.0);
    }
}
