//! Tracks and cylinders within a run of LBNs: sectors around a track, heads, skews.
//!
//! Along a track the angle grows by one turn in S sectors; from one track to the next it jumps by the skew. Against the
//! mean line ρ · LBN the angle is therefore a saw of period S, and where the skew of a change of cylinder differs from
//! that of a change of head, a pattern of H teeth of period H · S:
//!
//! ```text
//!   angle - ρ·LBN    ╲   ╲   ╲   ╲╲   ╲   ╲   ╲╲       S sectors a tooth,
//!                     ╲   ╲   ╲   ╲╲   ╲   ╲   ╲╲      H teeth a cylinder
//! ```
//!
//! Folding the points by the right period makes all of them agree. S is searched first, with H = 1; then every H near
//! the best S; then all parameters together are moved to where the most points agree closely. S comes out as a real
//! number: what slipped and spare sectors take from tracks on average is in it.

use super::simplex::minimize;
use super::zones::Seen;
use crate::numbers::{angle, direction, signed};
use rustfft::num_complex::Complex;

/// Skews are at most this part of a turn, on average.
const SKEW_MAX: f64 = 0.5;
/// Bins of a track when points are folded.
const TRACK_BINS: usize = 16;
/// Steps in which the skew between tracks is tried, of a turn.
const SKEW_STEPS: usize = 128;
/// How many values of S are looked at further.
const KEPT: usize = 4;
/// Heads, at most.
pub(crate) const HEADS_MAX: usize = 24;
/// Widths of the kernel that points are weighed with, one after the other, in turns.
const WIDTHS: [f64; 3] = [0.06, 0.035, 0.02];

/// The angle of an LBN, as tracks and cylinders have it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    /// An LBN at which a cylinder begins.
    pub origin: f64,
    /// The angle there, in turns.
    pub angle: f64,
    /// Sectors of a track, on average.
    pub sectors: f64,
    /// Tracks of a cylinder.
    pub heads: f64,
    /// Turns that a change of head adds, 0 to below 1.
    pub track_skew: f64,
    /// Turns from the begin of a cylinder to that of the next.
    pub cylinder_turns: f64,
}

impl Layout {
    /// The angle of the begin of a sector, in turns.
    pub(crate) fn turns(&self, lbn: f64) -> f64 {
        let offset = lbn - self.origin;
        let cylinder = (offset / (self.heads * self.sectors)).floor();
        let within = offset - cylinder * self.heads * self.sectors;
        let head = (within / self.sectors).floor().min(self.heads - 1.0);
        let sector = within - head * self.sectors;
        self.angle + cylinder * self.cylinder_turns + head * self.track_skew + sector / self.sectors
    }

    /// What a change of cylinder adds, in turns, 0 to below 1.
    pub(crate) fn cylinder_skew(&self) -> f64 {
        (self.cylinder_turns - (self.heads - 1.0) * self.track_skew).rem_euclid(1.0)
    }
}

/// Points folded by a period, against the mean line.
struct Fold {
    /// Directions of `angle - ρ·LBN`, with the LBN.
    points: Vec<(f64, Complex<f64>)>,
    rho: f64,
}

impl Fold {
    fn new(points: &[Seen], rho: f64) -> Fold {
        let flat = |s: &Seen| (s.lbn, direction(s.turns - rho * s.lbn));
        Fold { points: points.iter().map(flat).collect(), rho }
    }

    /// Sums of directions by their place in the period.
    fn bins(&self, period: f64, count: usize) -> Vec<Complex<f64>> {
        let mut bins = vec![Complex::new(0.0, 0.0); count];
        for (lbn, direction) in &self.points {
            let place = lbn / period;
            bins[((place - place.floor()) * count as f64) as usize % count] += direction;
        }
        bins
    }

    /// How many points agree, if tracks have `sectors` and all skews are equal: the length of their sum.
    fn tracks(&self, sectors: f64) -> f64 {
        const BINS: usize = 2 * TRACK_BINS;
        let bins = self.bins(sectors, BINS);
        let skew = self.rho * sectors - 1.0;
        let saw: Vec<Complex<f64>> =
            (0..BINS).map(|b| direction(skew * (b as f64 + 0.5) / BINS as f64)).collect();
        let sum = |origin: usize| {
            (0..BINS).map(|b| bins[(b + origin) % BINS] * saw[b]).sum::<Complex<f64>>().norm_sqr()
        };
        (0..BINS).map(sum).fold(0.0, f64::max).sqrt()
    }

    /// The same for cylinders of `heads` tracks, and where they begin and how tracks are skewed at best.
    fn cylinders(&self, sectors: f64, heads: usize) -> (f64, Layout) {
        let count = heads * TRACK_BINS;
        let period = heads as f64 * sectors;
        let bins = self.bins(period, count);
        let skew = self.rho * sectors - 1.0;
        let saw: Vec<Complex<f64>> =
            (0..TRACK_BINS).map(|b| direction(skew * (b as f64 + 0.5) / TRACK_BINS as f64)).collect();
        // A track that begins at a bin: what its points sum up to.
        let track = |b: usize| (0..TRACK_BINS).map(|i| bins[(b + i) % count] * saw[i]).sum();
        let tracks: Vec<Complex<f64>> = (0..count).map(track).collect();
        let mut best = (0.0, 0, 0.0);
        for step in 0..=SKEW_STEPS / 4 {
            // By how much the skew of heads differs from the mean skew.
            let by = (step as f64 - SKEW_STEPS as f64 / 8.0) / SKEW_STEPS as f64;
            let heads_turn: Vec<Complex<f64>> = (0..heads).map(|h| direction(-by * h as f64)).collect();
            for origin in 0..count {
                let sum: Complex<f64> =
                    (0..heads).map(|h| tracks[(origin + h * TRACK_BINS) % count] * heads_turn[h]).sum();
                if sum.norm_sqr() > best.0 {
                    best = (sum.norm_sqr(), origin, by);
                }
            }
        }
        let layout = Layout {
            origin: best.1 as f64 * period / count as f64,
            angle: 0.0,
            sectors,
            heads: heads as f64,
            track_skew: skew + best.2,
            cylinder_turns: self.rho * period,
        };
        (best.0.sqrt(), layout)
    }
}

/// Values of S that explain the points of a run best, if all skews are equal.
pub(crate) fn sectors(points: &[Seen], rho: f64, least: f64, most: f64) -> Vec<f64> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let fold = Fold::new(points, rho);
    let (mut tried, mut s) = (Vec::new(), least);
    while s < most {
        tried.push((fold.tracks(s), s));
        // So that the ends of the run are an eighth of a track apart between two steps.
        s += s * s / (8.0 * (last.lbn - first.lbn).max(8.0 * s));
    }
    tried.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut kept: Vec<f64> = Vec::new();
    for (_, s) in tried {
        if kept.len() < KEPT && kept.iter().all(|k| (k - s).abs() > 0.3) {
            kept.push(s);
        }
    }
    kept
}

/// Range of S for a run whose mean line is ρ.
pub(crate) fn range(rho: f64) -> (f64, f64) {
    (1.0 / rho, (1.0 + SKEW_MAX) / rho)
}

/// The best layout with so many heads near one of the values of S.
pub(crate) fn layout(points: &[Seen], rho: f64, sectors: &[f64], heads: usize) -> Option<(f64, Layout)> {
    let fold = Fold::new(points, rho);
    let length = points.last()?.lbn - points.first()?.lbn;
    let near = |s: f64| (-6..=6).map(move |n| s + f64::from(n) * s * s / (16.0 * length.max(8.0 * s)));
    let tried = sectors.iter().flat_map(|s| near(*s)).map(|s| fold.cylinders(s, heads));
    tried.max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Moves the layout to where the most points agree; returns the share that does, by the narrowest kernel.
pub(crate) fn refined(points: &[Seen], layout: &Layout) -> (f64, Layout) {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return (0.0, *layout) };
    let middle = (first.lbn + last.lbn) / 2.0;
    let length = (last.lbn - first.lbn).max(1.0);
    // The cylinder in the middle is the origin, so that the parameters move independently.
    let period = layout.heads * layout.sectors;
    let start =
        Layout { origin: layout.origin + ((middle - layout.origin) / period).round() * period, ..*layout };
    let tracks = length / layout.sectors;
    let sizes = [0.1 * layout.sectors / tracks, 0.05 * layout.sectors, 0.05 * layout.heads / tracks, 0.01];
    let with = |x: &[f64]| Layout {
        sectors: start.sectors + x[0] * sizes[0],
        origin: start.origin + x[1] * sizes[1],
        cylinder_turns: start.cylinder_turns + x[2] * sizes[2],
        track_skew: start.track_skew + x[3] * sizes[3],
        ..start
    };
    let mut at = vec![0.0; 4];
    let mut height = 0.0;
    for width in WIDTHS {
        for _ in 0..2 {
            let steps = [0.7 * width / WIDTHS[0] + 0.1; 4];
            let (moved, value) = minimize(&at, &steps, 150, |x| -agreement(points, &with(x), width).0);
            (at, height) = (moved, -value);
        }
    }
    let best = with(&at);
    let (_, angle) = agreement(points, &best, WIDTHS[2]);
    (height, Layout { angle, track_skew: best.track_skew.rem_euclid(1.0), ..best })
}

/// The share of points that agree within about `width`, and the angle at which they do.
fn agreement(points: &[Seen], layout: &Layout, width: f64) -> (f64, f64) {
    let apart: Vec<f64> = points.iter().map(|s| s.turns - layout.turns(s.lbn)).collect();
    let mut centre = angle(apart.iter().map(|a| direction(*a)).sum());
    let mut share = 0.0;
    for _ in 0..4 {
        let (mut weights, mut moved) = (0.0, 0.0);
        for a in &apart {
            let error = signed(a - centre);
            let weight = (-0.5 * (error / width).powi(2)).exp();
            weights += weight;
            moved += weight * error;
        }
        share = weights / points.len().max(1) as f64;
        centre += if weights > 0.0 { moved / weights } else { 0.0 };
    }
    (share, layout.angle + centre)
}
