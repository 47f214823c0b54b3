//! The period of rotation, from the moments at which ordinary requests ended.
//!
//! A drive ends a request when the last sector has passed under the head, wherever the arm came from. Between the ends
//! of two requests near each other the platters have turned by what separates their sectors, and by whole turns:
//!
//! ```text
//!   frac(Δt / R) = frac(ρ · ΔLBN)          R the period, ρ turns a sector, both unknown
//! ```
//!
//! For each ρ the spectrum over Δt of pairs of neighbours has a peak at 1/R. Pairs are taken apart by region of the
//! drive, since ρ differs between zones; R does not. Then R is narrowed down over the longest times.
//!
//! Hosts that send requests at ticks of a clock give ends a period too, but one without regard to LBNs: ρ = 0 is not
//! searched.

use super::media::Point;
use crate::numbers::direction;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};
use std::sync::Arc;

/// A turn takes between these, in microseconds: 24,000 and 2,400 turns a minute.
const PERIODS_US: (f64, f64) = (2_500.0, 25_000.0);
/// Width of a bin of the histogram of times between ends, in microseconds: less than half of the shortest period.
const BIN_US: f64 = 1000.0;
/// Bins: a spectrum of 131 s. Pairs are at most half of that apart.
const BINS: usize = 1 << 17;
/// Sectors around a track, at least and at most.
pub(crate) const TRACKS: (f64, f64) = (40.0, 2_500.0);
/// Regions that are searched, of as many as the drive is divided into.
const REGIONS: (usize, usize) = (4, 12);
/// Neighbours of each point.
const NEIGHBOURS: usize = 8;
/// Steps of ρ, at most.
const STEPS_MAX: f64 = 400.0;
/// Points without which no period is sought.
const POINTS_MIN: usize = 200;

/// A rotation that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation {
    /// Microseconds of a turn.
    pub period_us: f64,
    /// What the period may be off by, in microseconds.
    pub uncertainty_us: f64,
    /// By how many standard deviations of chance the peak stands out; below 8 nothing is believed.
    pub significance: f64,
}

/// Two points of one region: microseconds and sectors between them.
struct Pair {
    time: f64,
    sectors: f64,
}

/// The rotation that `points` show; `None` if they show none.
pub(crate) fn rotation(points: &[Point]) -> Option<Rotation> {
    if points.len() < POINTS_MIN {
        return None;
    }
    let fft = FftPlanner::new().plan_fft_inverse(BINS);
    let frequencies = frequencies();
    let mut heights = vec![0.0; frequencies.len()];
    for region in regions(points) {
        let highest = spectrum(&pairs(&region), &fft);
        heights.iter_mut().zip(&highest).for_each(|(sum, height)| *sum += height);
    }
    let count = heights.len() as f64;
    let mean = heights.iter().sum::<f64>() / count;
    let deviation = (heights.iter().map(|h| (h - mean).powi(2)).sum::<f64>() / count).sqrt();
    let (best, height) = heights.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
    let significance = (height - mean) / deviation.max(f64::MIN_POSITIVE);
    if significance < 8.0 {
        return None;
    }
    let period_us = BINS as f64 * BIN_US / (frequencies.start + best) as f64;
    // The spectrum of 131 s has lines that are that sharp.
    Some(Rotation { period_us, uncertainty_us: period_us.powi(2) / (BINS as f64 * BIN_US), significance })
}

/// The bins of the spectrum in which a period may be.
fn frequencies() -> std::ops::Range<usize> {
    let bin = |period: f64| BINS as f64 * BIN_US / period;
    bin(PERIODS_US.1).ceil() as usize..bin(PERIODS_US.0) as usize
}

/// The regions with the most points for their size, points by LBN.
fn regions(points: &[Point]) -> Vec<Vec<Point>> {
    let mut sorted = points.to_vec();
    // By their last sectors: on a fast bus, ends depend on nothing else.
    sorted.iter_mut().for_each(|p| p.lbn += p.sectors);
    sorted.sort_by(|a, b| a.lbn.total_cmp(&b.lbn).then(a.at.total_cmp(&b.at)));
    let mut regions: Vec<Vec<Point>> =
        sorted.chunks(points.len().div_ceil(REGIONS.1)).map(<[Point]>::to_vec).collect();
    let width = |region: &Vec<Point>| region[region.len() - 1].lbn - region[0].lbn;
    regions.sort_by(|a, b| width(a).total_cmp(&width(b)));
    regions.truncate(REGIONS.0);
    regions
}

/// Pairs of neighbours that are not too far apart, in sectors and in time.
fn pairs(region: &[Point]) -> Vec<Pair> {
    let time_max = BINS as f64 * BIN_US / 2.0;
    let near = |i: usize| (i + 1..region.len().min(i + 1 + NEIGHBOURS)).map(move |j| (i, j));
    let pair = |(i, j): (usize, usize)| Pair {
        time: region[j].at - region[i].at,
        sectors: region[j].lbn - region[i].lbn,
    };
    let all = (0..region.len()).flat_map(near).map(pair);
    // What is searched of ρ has so many steps at most.
    let sectors_max = STEPS_MAX / 4.0 / (1.0 / TRACKS.0 - 1.0 / TRACKS.1);
    all.filter(|p| p.time.abs() < time_max && p.sectors < 2.0 * sectors_max).collect()
}

/// For each frequency the height of the spectrum at the best ρ, as a share of what chance makes of so many pairs.
fn spectrum(pairs: &[Pair], fft: &Arc<dyn Fft<f64>>) -> Vec<f64> {
    let frequencies = frequencies();
    let mut highest = vec![0.0f64; frequencies.len()];
    let longest = pairs.iter().map(|p| p.sectors).fold(1.0, f64::max);
    let (least, most) = (1.0 / TRACKS.1, 1.0 / TRACKS.0);
    let steps = ((most - least) * longest * 2.0).ceil() as usize;
    let mut bins = vec![Complex::new(0.0, 0.0); BINS];
    let mut scratch = vec![Complex::new(0.0, 0.0); fft.get_inplace_scratch_len()];
    for step in 0..=steps {
        let rho = least + (most - least) * step as f64 / steps.max(1) as f64;
        bins.fill(Complex::new(0.0, 0.0));
        for pair in pairs {
            let bin = (pair.time / BIN_US).round().rem_euclid(BINS as f64) as usize;
            bins[bin % BINS] += direction(-rho * pair.sectors);
        }
        fft.process_with_scratch(&mut bins, &mut scratch);
        for (best, sum) in highest.iter_mut().zip(&bins[frequencies.clone()]) {
            *best = best.max(sum.norm_sqr());
        }
    }
    highest.iter().map(|height| height / pairs.len().max(1) as f64).collect()
}
