//! Zones: runs of LBNs with the same number of sectors around a track.
//!
//! The drive is cut into windows. In each, the angle of an LBN grows by ρ turns a sector but for skews, and the
//! spectrum over LBNs has its peak there. Peaks of one window alone are often chance; so zones are the path through the
//! windows that explains the most points, where each change of ρ costs as much as chance would easily win. The
//! boundaries are then known to a window; what is behind them is left to the angle maps of the zones.

use super::NoModel;
use super::media::Point;
use super::period::{Rotation, TRACKS};
use crate::numbers::{direction, sum};
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};
use std::sync::Arc;

/// Windows of a drive.
pub(crate) const WINDOWS: usize = 64;
/// Bins of a window's spectrum.
const BINS: usize = 1 << 14;
/// Periods on either side of the first that are tried, at most.
const STEPS_MAX: f64 = 2000.0;
/// How many parts a step is cut into to find the top of the peak.
const FINER: i32 = 8;
/// The windows with the most points that narrow the period down.
const PERIOD_WINDOWS: usize = 12;
/// Steps in which the transfer of a sector is sought, in turns, and how many of them.
const TRANSFER_STEP: f64 = 0.001;
const TRANSFER_STEPS: usize = 60;
/// What a change of ρ costs, as a logarithm of a likelihood.
const CHANGE: f64 = 8.0;

/// An end on the medium, with the angle that it showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The first sector.
    pub lbn: f64,
    /// The angle of its begin, in turns: that of the platters at the end of the request, less what was transferred.
    pub turns: f64,
    /// The request.
    pub point: Point,
}

/// A run of LBNs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    /// The first LBN, to a window.
    pub from: f64,
    /// The first LBN behind.
    pub to: f64,
    /// ρ, turns a sector.
    pub rho: f64,
}

/// The angles that `points` showed at a rotation of `period_us`, by LBN.
/// `transfer_us` is what each sector takes from the begin of the first one on.
pub(crate) fn seen(points: &[Point], period_us: f64, transfer_us: f64) -> Vec<Seen> {
    let turns = |p: &Point| ((p.at - p.sectors * transfer_us) / period_us).rem_euclid(1.0);
    let mut seen: Vec<Seen> =
        points.iter().map(|p| Seen { lbn: p.lbn, turns: turns(p), point: *p }).collect();
    seen.sort_by(|a, b| a.lbn.total_cmp(&b.lbn).then(a.point.at.total_cmp(&b.point.at)));
    seen
}

/// Spectra over LBNs of points within a window.
struct Spectra {
    fft: Arc<dyn Fft<f64>>,
    width: f64,
}

impl Spectra {
    fn new(width: f64) -> Spectra {
        Spectra { fft: FftPlanner::new().plan_fft_forward(BINS), width }
    }

    /// The likelihood ratio, |Σ|² / n, of each ρ = k / width of [`Spectra::searched`].
    fn of(&self, from: f64, points: impl Iterator<Item = (f64, f64)>) -> Vec<f64> {
        let (mut bins, mut count) = (vec![Complex::new(0.0, 0.0); BINS], 0.0);
        for (lbn, turns) in points {
            let bin = ((lbn - from) / self.width * BINS as f64) as usize;
            bins[bin.min(BINS - 1)] += direction(turns);
            count += 1.0;
        }
        self.fft.process(&mut bins);
        bins[self.searched()].iter().map(|c| c.norm_sqr() / f64::max(count, 1.0)).collect()
    }

    fn searched(&self) -> std::ops::Range<usize> {
        let bin = |sectors: f64| (self.width / sectors) as usize;
        bin(TRACKS.1).max(1)..bin(TRACKS.0).clamp(2, BINS / 2)
    }

    fn rho(&self, index: usize) -> f64 {
        (self.searched().start + index) as f64 / self.width
    }
}

/// A window and its points.
struct Window<'a> {
    from: f64,
    points: &'a [Seen],
}

fn windows(seen: &[Seen]) -> (f64, Vec<Window<'_>>) {
    let end = seen.last().map_or(1.0, |s| s.lbn + 1.0);
    let width = end / WINDOWS as f64;
    let at = |from: f64| seen.partition_point(|s| s.lbn < from);
    let window = |n: usize| {
        let from = n as f64 * width;
        let to = if n + 1 == WINDOWS { f64::INFINITY } else { from + width };
        Window { from, points: &seen[at(from)..at(to)] }
    };
    (width, (0..WINDOWS).map(window).collect())
}

/// Refuses a drive that is so large that half of all lengths of tracks could not be told in a window.
pub(crate) fn check(points: &[Point]) -> Result<(), NoModel> {
    let end = points.iter().map(|p| p.lbn).fold(0.0, f64::max);
    let shortest = end / WINDOWS as f64 / (BINS / 2) as f64;
    if shortest <= TRACKS.1 / 2.0 {
        return Ok(());
    }
    Err(NoModel(format!(
        "a request for sector {end} is too far up: tracks of {shortest:.0} sectors cannot be told there"
    )))
}

/// The same rotation, known as well as the longest time between points allows.
pub(crate) fn narrowed(points: &[Point], rotation: &Rotation) -> Rotation {
    let (first, last) = (points.first().map_or(0.0, |p| p.at), points.last().map_or(0.0, |p| p.at));
    let (middle, duration) = ((first + last) / 2.0, (last - first).max(rotation.period_us));
    let sorted = seen(points, rotation.period_us, 0.0);
    let (width, mut windows) = windows(&sorted);
    windows.sort_by_key(|w| std::cmp::Reverse(w.points.len()));
    windows.truncate(PERIOD_WINDOWS);
    let spectra = Spectra::new(width);
    let height = |frequency: f64| {
        let highest = |w: &Window| {
            let turns = |s: &Seen| (s.lbn + s.point.sectors, (s.point.at - middle) * frequency);
            spectra.of(w.from, w.points.iter().map(turns)).into_iter().fold(0.0, f64::max)
        };
        windows.iter().map(highest).sum::<f64>()
    };
    let centre = 1.0 / rotation.period_us;
    // Pauses make a trace long, and take no part in it: the search has an end all the same.
    let least = 1.5 * rotation.uncertainty_us * centre * centre / STEPS_MAX;
    let step = (1.0 / (6.0 * duration)).max(least);
    let steps = (1.5 * rotation.uncertainty_us * centre * centre / step).ceil() as i64;
    let highest = |centre: f64, step: f64, steps: i64| {
        let tried = (-steps..=steps).map(|n| centre + n as f64 * step).map(|f| (height(f), f));
        tried.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(centre, |(_, best)| best)
    };
    // The peak is six steps wide: its top is sought between them, where the noise of few points may move it.
    let fine = step / f64::from(FINER);
    let period_us = 1.0 / highest(highest(centre, step, steps), fine, 2 * i64::from(FINER));
    Rotation { period_us, uncertainty_us: period_us.powi(2) * step, ..*rotation }
}

/// The microseconds that each further sector of a request delays its end: of the medium, or of a slower bus.
pub(crate) fn transfer_us(points: &[Point], period_us: f64) -> f64 {
    let sorted = seen(points, period_us, 0.0);
    let (width, mut windows) = windows(&sorted);
    windows.sort_by_key(|w| std::cmp::Reverse(w.points.len()));
    windows.truncate(PERIOD_WINDOWS);
    let spectra = Spectra::new(width);
    let height = |step: usize| {
        let slope = step as f64 * TRANSFER_STEP;
        let highest = |w: &Window| {
            let turns = |s: &Seen| (s.lbn, s.turns - slope * s.point.sectors);
            spectra.of(w.from, w.points.iter().map(turns)).into_iter().fold(0.0, f64::max)
        };
        windows.iter().map(highest).sum::<f64>()
    };
    let heights: Vec<f64> = (0..TRANSFER_STEPS).map(height).collect();
    let best = (0..TRANSFER_STEPS).max_by(|a, b| heights[*a].total_cmp(&heights[*b])).unwrap_or(0);
    best as f64 * TRANSFER_STEP * period_us
}

/// The zones that `seen` shows, each with its ρ.
pub(crate) fn zones(seen: &[Seen]) -> Vec<Span> {
    let (width, windows) = windows(seen);
    let candidates = candidates(width, &windows);
    let score = |w: &Window, rho: f64| {
        let norm = sum(w.points.iter().map(|s| s.turns - rho * (s.lbn - w.from))).norm_sqr();
        norm / w.points.len().max(1) as f64
    };
    let scores: Vec<Vec<f64>> =
        windows.iter().map(|w| candidates.iter().map(|rho| score(w, *rho)).collect()).collect();
    let path = best_path(&scores, CHANGE);
    let mut spans: Vec<Span> = Vec::new();
    for (n, rho) in path.into_iter().map(|c| candidates[c]).enumerate() {
        let (from, to) = (n as f64 * width, (n + 1) as f64 * width);
        match spans.last_mut() {
            Some(last) if last.rho == rho => last.to = to,
            Some(_) | None => spans.push(Span { from, to, rho }),
        }
    }
    spans
}

/// The highest peaks of the windows, as values of ρ that are tried in all of them.
fn candidates(width: f64, windows: &[Window]) -> Vec<f64> {
    let spectra = Spectra::new(width);
    let peak = |w: &Window| {
        let heights = spectra.of(w.from, w.points.iter().map(|s| (s.lbn, s.turns)));
        let (index, height) = heights.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        Some((spectra.rho(index), *height))
    };
    let mut peaks: Vec<(f64, f64)> = windows.iter().filter_map(peak).collect();
    peaks.sort_by(|a, b| b.1.total_cmp(&a.1));
    // A peak is known to a fraction of its width: finer values beside it.
    let beside = |rho: f64| (-2..=2).map(move |n| rho + f64::from(n) * 0.2 / width);
    peaks.iter().flat_map(|(rho, _)| beside(*rho)).collect()
}

/// The column of each row whose sum is the highest, if each change of the column costs `change`.
fn best_path(scores: &[Vec<f64>], change: f64) -> Vec<usize> {
    let columns = scores.first().map_or(0, Vec::len);
    let mut sums = vec![0.0f64; columns];
    let mut from: Vec<Vec<usize>> = Vec::new();
    for row in scores {
        let best = (0..columns).max_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap_or(0);
        let before = |c: usize| if sums[c] >= sums[best] - change { c } else { best };
        let origin: Vec<usize> = (0..columns).map(before).collect();
        let cost = |c: usize| if origin[c] == c { 0.0 } else { change };
        sums = (0..columns).map(|c| sums[origin[c]] - cost(c) + row[c]).collect();
        from.push(origin);
    }
    let mut at = (0..columns).max_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap_or(0);
    let mut path = Vec::with_capacity(scores.len());
    for origin in from.iter().rev() {
        path.push(at);
        at = origin[at];
    }
    path.reverse();
    path
}

/// ρ of the points of a span, as sharp as the span is long, around `rho` known to `uncertainty`.
pub(crate) fn sharpened(points: &[Seen], rho: f64, uncertainty: f64) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return rho };
    let step = 0.1 / (last.lbn - first.lbn).max(1.0);
    let steps = (uncertainty / step).ceil() as i64;
    let height = |rho: f64| sum(points.iter().map(|s| s.turns - rho * (s.lbn - first.lbn))).norm_sqr();
    let tried = (-steps..=steps).map(|n| rho + n as f64 * step).map(|rho| (height(rho), rho));
    tried.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(rho, |best| best.1)
}
