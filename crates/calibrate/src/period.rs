//! The period of rotation, from the moments at which requests for nearly the same place ended.
//!
//! A drive ends a request when the last sector has passed under the head, wherever the arm came from. The times between
//! two such ends of one place are therefore whole turns, up to the jitter of the electronics. The spectrum of those
//! times has its peak at the frequency of rotation.
//!
//! Hosts that send requests at ticks of a clock give ends of cache hits a period too. Those ends have it wherever the
//! request is; so the spectrum of pairs of *different* places is subtracted.
//!
//! Source of the idea: Yu, Gum, Chen, Wang, Krishnamurthy, Anderson: "Trading Capacity for Performance in a Disk
//! Array", OSDI 2000, who re-read one sector; here any two requests do that ended near each other.

use crate::Sample;
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;
use std::f64::consts::TAU;

/// A turn takes between these, in microseconds: 24,000 and 2,400 turns a minute.
const PERIODS_US: (f64, f64) = (2_500.0, 25_000.0);
/// Width of a bin of the histogram of times between ends, in microseconds: a tenth of the shortest turn.
const BIN_US: f64 = 250.0;
/// Bins, at most: pairs further apart than 262 s are left out of the coarse search.
const BINS_MAX: usize = 1 << 20;
/// Ends within so many sectors are taken for one place.
const NEAR_SECTORS: u64 = 24;
/// Pairs of near ends without which no period is believed.
const PAIRS_MIN: usize = 30;
/// The first moments of the fine search, in microseconds.
const FINE_FIRST_US: f64 = 2e6;

/// A rotation that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation {
    /// Microseconds of a turn.
    pub period_us: f64,
    /// What the period may be off by, in microseconds.
    pub uncertainty_us: f64,
    /// How well the ends of near requests agree: from 0 for not at all to 1.
    pub coherence: f64,
    /// The pairs of requests that it was found from.
    pub pairs: usize,
}

/// The rotation that the ends of `samples` show; `None` if they show none.
pub fn rotation(samples: &[Sample]) -> Option<Rotation> {
    let gaps = Gaps::of(samples);
    if gaps.near.len() < PAIRS_MIN {
        return None;
    }
    let coarse = coarse(&gaps)?;
    Some(refined(&gaps, coarse))
}

/// Microseconds between the ends of two requests.
struct Gaps {
    /// Of pairs at one place.
    near: Vec<f64>,
    /// Of pairs at places that have nothing to do with each other.
    far: Vec<f64>,
}

impl Gaps {
    fn of(samples: &[Sample]) -> Gaps {
        let mut ends: Vec<(u64, f64)> =
            samples.iter().map(|s| (s.request.end(), s.started_us + s.service_us)).collect();
        ends.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let gap = |(i, j): (usize, usize)| (ends[i].1 - ends[j].1).abs();
        let is_near = |i: usize, j: usize| ends[j].0 - ends[i].0 <= NEAR_SECTORS;
        let successors = |i: usize| (i + 1..ends.len().min(i + 6)).take_while(move |j| is_near(i, *j));
        let near: Vec<f64> =
            (0..ends.len()).flat_map(|i| successors(i).map(move |j| (i, j))).map(gap).collect();
        let stride = ends.len() / 2;
        let far = (0..stride).map(|i| gap((i, i + stride))).collect();
        Gaps { near, far }
    }
}

/// The mean of cos(2π·gap/period).
fn coherence(gaps: &[f64], period_us: f64) -> f64 {
    gaps.iter().map(|gap| (TAU * gap / period_us).cos()).sum::<f64>() / gaps.len().max(1) as f64
}

/// The longest period whose coherence is nearly the highest: half a turn is a period too.
fn coarse(gaps: &Gaps) -> Option<f64> {
    let longest = gaps.near.iter().copied().fold(0.0, f64::max);
    let bins = ((longest / BIN_US) as usize + 2).next_power_of_two().clamp(1 << 12, BINS_MAX);
    let (near, far) = (spectrum(&gaps.near, bins), spectrum(&gaps.far, bins));
    let period = |k: usize| bins as f64 * BIN_US / k as f64;
    let first = (period(1) / PERIODS_US.1).ceil() as usize;
    let last = ((period(1) / PERIODS_US.0) as usize).min(bins / 2);
    let height = |k: usize| near[k] - far[k].abs();
    let highest = (first..=last).map(height).fold(0.0, f64::max);
    // Chance makes peaks of about 5 standard deviations among so many frequencies.
    let chance = 5.5 * (0.5 / gaps.near.len() as f64).sqrt();
    let k = (first..=last).find(|k| height(*k) >= 0.8 * highest)?;
    (highest > chance).then(|| period(k))
}

/// The mean of cos(2π·gap·k / (bins·width)) for each k.
fn spectrum(gaps: &[f64], bins: usize) -> Vec<f64> {
    let mut histogram = vec![Complex::new(0.0, 0.0); bins];
    let mut counted = 0.0;
    for bin in gaps.iter().map(|gap| (gap / BIN_US).round() as usize).filter(|bin| *bin < bins) {
        histogram[bin].re += 1.0;
        counted += 1.0;
    }
    FftPlanner::new().plan_fft_forward(bins).process(&mut histogram);
    histogram.iter().map(|c| c.re / f64::max(counted, 1.0)).collect()
}

/// Narrows `period_us` down with pairs that are further and further apart.
fn refined(gaps: &Gaps, mut period_us: f64) -> Rotation {
    let longest = gaps.near.iter().copied().fold(0.0, f64::max);
    let mut horizon = FINE_FIRST_US.min(longest);
    // The coarse search knows a period to one bin of its spectrum.
    let mut span = 2.0 * period_us * period_us / horizon;
    loop {
        let used: Vec<f64> = gaps.near.iter().copied().filter(|gap| *gap <= horizon).collect();
        let step = period_us * period_us / (20.0 * horizon);
        let steps = (span / step).ceil() as i64;
        let candidates = (-steps..=steps).map(|n| period_us + n as f64 * step);
        let best = candidates.map(|p| (coherence(&used, p), p)).max_by(|a, b| a.0.total_cmp(&b.0));
        let (coherence, found) = best.unwrap_or((0.0, period_us));
        period_us = found;
        span = 3.0 * step;
        if horizon >= longest {
            return Rotation { period_us, uncertainty_us: step, coherence, pairs: used.len() };
        }
        horizon = (horizon * 3.0).min(longest);
    }
}
