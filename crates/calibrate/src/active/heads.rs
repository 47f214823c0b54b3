//! Heads, by the times between tracks near each other.
//!
//! From track to track changes of head take one time, and changes of cylinder another. Where both take the same, as
//! where a change of head within the change of cylinder is the longer of the two, tracks that are as many apart as
//! there are heads are under one head, and nearer in time than all others.

use super::arrival::Arrival;
use super::layout::Track;
use super::rotation::Rotation;
use super::seek::{Pair, Seeking, early_sector};
use super::session::Session;
use crate::numbers::median;

/// Tracks that heads are looked for in, at most, where all distances between them are tried.
const NEAR: usize = 24;
/// Heads, at most.
const HEADS_MAX: usize = 16;
/// A difference between two kinds of changes is so many standard errors, at least.
pub(super) const SIGNIFICANT: f64 = 6.0;
/// Times are not believed to be more exact than this, in microseconds.
const EXACT_US: f64 = 1.0;

/// Heads of `tracks`, which follow each other from the begin of a zone. 1 if nothing tells.
pub(super) fn find(session: &mut Session, rotation: &Rotation, tracks: &[Track]) -> Result<u32, String> {
    session.say("heads: times from track to track");
    let next = times(session, rotation, &apart(tracks, 1))?;
    if let Some(heads) = by_changes(&next) {
        return Ok(heads);
    }
    session.say("heads: times between tracks near each other");
    let near = &tracks[..tracks.len().min(NEAR)];
    let mut by_distance = Vec::new();
    for distance in 1..=HEADS_MAX.min(near.len().saturating_sub(1)) {
        let known: Vec<f64> =
            times(session, rotation, &apart(near, distance))?.into_iter().flatten().collect();
        by_distance.push(Sample::of(&known));
    }
    Ok(by_nearest(&by_distance))
}

/// Tracks, each with the one that is `distance` above.
fn apart(tracks: &[Track], distance: usize) -> Vec<(Track, Track)> {
    tracks.iter().copied().zip(tracks.iter().copied().skip(distance)).collect()
}

/// Times to the first track of each pair from the second one.
pub(super) fn times(
    session: &mut Session,
    rotation: &Rotation,
    pairs: &[(Track, Track)],
) -> Result<Vec<Option<f64>>, String> {
    let mut all: Vec<Arrival> = pairs.iter().map(|_| Arrival::new(session.clock.period_us)).collect();
    let seeking = &mut Seeking::new(session, rotation);
    // All of them in turns, so that a cache has forgotten a pair before its next turn.
    while all.iter().any(|arrival| !arrival.is_over()) {
        for ((target, from), arrival) in pairs.iter().zip(&mut all).rev().filter(|(_, a)| !a.is_over()) {
            let source = early_sector(seeking.session, from.first, from.slots);
            seeking.step(arrival, &Pair { source, sectors: 1, target: *target })?;
        }
    }
    let slot_us = pairs.first().map_or(1.0, |(track, _)| track.slot_us(session));
    Ok(all.iter().map(|arrival| arrival.result(slot_us).map(|access| access.us())).collect())
}

/// Times that should be the same; without those far from the median.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub mean: f64,
    /// The sum of the squares by which they differ from the mean.
    squares: f64,
    count: f64,
}

impl Sample {
    pub(super) fn of(times: &[f64]) -> Sample {
        let middle = median(times);
        let off: Vec<f64> = times.iter().map(|time| (time - middle).abs()).collect();
        let spread = median(&off).max(EXACT_US);
        let near: Vec<f64> = times.iter().copied().filter(|t| (t - middle).abs() <= 6.0 * spread).collect();
        let count = near.len() as f64;
        let mean = near.iter().sum::<f64>() / count.max(1.0);
        Sample { mean, squares: near.iter().map(|time| (time - mean).powi(2)).sum(), count }
    }

    /// By how many standard errors the means differ. Both have the same variance, as all times are measured alike: few
    /// of one sample that happen to be near each other do not say that they are exact.
    pub(super) fn differs(&self, other: &Sample) -> f64 {
        if self.count < 2.0 || other.count < 2.0 {
            return 0.0;
        }
        let freedom = (self.count + other.count - 2.0).max(1.0);
        let variance = ((self.squares + other.squares) / freedom).max(EXACT_US * EXACT_US);
        (self.mean - other.mean).abs() / (variance * (1.0 / self.count + 1.0 / other.count)).sqrt()
    }
}

/// The number of heads that the times from each track to the next tell: the change of cylinder is the last of every so
/// many. Of all numbers the one counts from whose two times all are the least off; its multiples leave some changes of
/// cylinder among those of heads, and its parts the other way around.
fn by_changes(times: &[Option<f64>]) -> Option<u32> {
    let changes = |heads: usize| {
        let known = times.iter().enumerate().filter_map(|(n, time)| Some((n + 1, (*time)?)));
        let (cylinder, head): (Vec<_>, Vec<_>) = known.partition(|(n, _)| n.is_multiple_of(heads));
        [cylinder, head].map(|some| some.into_iter().map(|(_, time)| time).collect::<Vec<f64>>())
    };
    let known: Vec<f64> = times.iter().flatten().copied().collect();
    let usual = median(&known);
    // A time that is wrong counts no more than one of the other kind.
    let most =
        6.0 * median(&known.iter().map(|time| (time - usual).abs()).collect::<Vec<f64>>()).max(EXACT_US);
    let off = |some: &Vec<f64>| {
        let middle = median(some);
        some.iter().map(|time| (time - middle).abs().min(most)).sum::<f64>()
    };
    let all = (2..=HEADS_MAX.min(times.len() / 2)).map(|heads| (heads as u32, changes(heads)));
    let (heads, [cylinder, head]) =
        all.min_by(|a, b| a.1.iter().map(off).sum::<f64>().total_cmp(&b.1.iter().map(off).sum()))?;
    (Sample::of(&cylinder).differs(&Sample::of(&head)) > SIGNIFICANT).then_some(heads)
}

/// The least distance, from 1 on, that takes less than a single track.
fn by_nearest(by_distance: &[Sample]) -> u32 {
    let Some(single) = by_distance.first() else { return 1 };
    let nearer = |sample: &Sample| sample.mean < single.mean && sample.differs(single) > SIGNIFICANT;
    by_distance.iter().position(nearer).map_or(1, |at| at as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_told_by_small_differences() {
        let mut rng = fastrand::Rng::with_seed(3);
        for heads in 1..=8u32 {
            let time = |n: u32| if n.is_multiple_of(heads) { 512.0 } else { 500.0 };
            let times: Vec<Option<f64>> = (1..64).map(|n| Some(time(n) + 8.0 * rng.f64())).collect();
            assert_eq!(by_changes(&times), (heads > 1).then_some(heads), "{heads}");
            let exact: Vec<Option<f64>> = (1..64).map(|n| Some(10.0 * time(n) + rng.f64())).collect();
            assert_eq!(by_changes(&exact), (heads > 1).then_some(heads), "{heads}");
        }
    }

    #[test]
    fn tracks_under_one_head_are_nearer() {
        let sample = |mean: f64| Sample::of(&[mean - 4.0, mean, mean + 4.0, mean + 1.0]);
        let times = [600.0, 600.0, 600.0, 570.0, 600.0].map(sample);
        assert_eq!(by_nearest(&times), 4);
        assert_eq!(by_nearest(&[600.0, 640.0, 640.0].map(sample)), 1);
    }
}
