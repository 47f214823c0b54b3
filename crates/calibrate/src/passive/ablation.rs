//! What parts of a model are worth: the demerit of the same predictions without one of them.

use super::{add_residuals, media::Media};
use crate::Sample;
use crate::score::{certain, demerit, replay, replay_blind, score};
use lamina_drive::{Mechanism, Model, Op};

/// The demerits, in milliseconds, that `model`, fitted to `fitted`, has on `samples` without one of its parts.
pub fn ablations(
    model: &Model,
    fitted: &[Sample],
    samples: &[Sample],
    seed: u64,
) -> Vec<(&'static str, f64)> {
    let without = |change: &dyn Fn(&mut lamina_drive::Rotational)| {
        let mut changed = certain(model);
        if let Mechanism::Rotational(disk) = &mut changed.mechanism {
            change(disk);
        }
        add_residuals(&mut changed, fitted);
        score(&changed, samples, seed).demerit_ms
    };
    let one_zone = |disk: &mut lamina_drive::Rotational| {
        disk.zones.truncate(1);
        disk.corrections.clear();
    };
    vec![
        ("whole", score(model, samples, seed).demerit_ms),
        ("no phase", blind(model, samples, seed)),
        ("no zones", without(&one_zone)),
        ("no cache", without(&|disk| disk.cache = None)),
        ("resampling by class", resampled(model, fitted, samples, seed)),
    ]
}

/// Rotation of which nothing is known: evenly distributed.
fn blind(model: &Model, samples: &[Sample], seed: u64) -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let rotation = match &model.mechanism {
        Mechanism::Rotational(disk) => disk.rotation_ms,
        Mechanism::Linear(_) | Mechanism::Ssd(_) | Mechanism::Remote(_) => 0.0,
    };
    let buffered = Media::of(samples).buffered;
    let is_media = |s: &Sample, hit: bool| match s.request.op {
        Op::Read => !hit,
        Op::Write => !buffered,
        Op::Flush | Op::Discard => false,
    };
    let predicted = replay_blind(&certain(model), samples);
    let mut spread = |(p, s): (&crate::score::Predicted, &Sample)| {
        let turn = if is_media(s, p.hit) { (random.f64() - 0.5) * rotation } else { 0.0 };
        p.us / 1000.0 + turn
    };
    let drawn: Vec<f64> = predicted.iter().zip(samples).map(&mut spread).collect();
    demerit(&drawn, &measured(samples))
}

/// No model of a disk: a measured time of the same operation, and hit or not as the cache predicts.
fn resampled(model: &Model, fitted: &[Sample], samples: &[Sample], seed: u64) -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let class = |s: &Sample, hit: bool| (s.request.op, hit, s.request.sectors.ilog2());
    let known: Vec<_> = replay(&certain(model), fitted)
        .iter()
        .zip(fitted)
        .map(|(p, s)| (class(s, p.hit), s.service_us / 1000.0))
        .collect();
    let mut draw = |(p, s): (&crate::score::Predicted, &Sample)| {
        let wanted = class(s, p.hit);
        let like: Vec<f64> = known.iter().filter(|k| k.0 == wanted).map(|k| k.1).collect();
        if like.is_empty() { p.us / 1000.0 } else { like[random.usize(0..like.len())] }
    };
    let drawn: Vec<f64> = replay(&certain(model), samples).iter().zip(samples).map(&mut draw).collect();
    demerit(&drawn, &measured(samples))
}

fn measured(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|s| s.service_us / 1000.0).collect()
}
