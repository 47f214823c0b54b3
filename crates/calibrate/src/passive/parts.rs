//! Layouts of all parts of a drive: what the parts have in common is found from the best of them.
//!
//! Zones differ in sectors, not in heads, and the times of changes of head and cylinder, so that skews are nearly the
//! same part of a turn everywhere. The parts with the most points tell heads and skews; with both known, S of each
//! other part is sought in a narrow range, where few points are enough. A part whose points agree with no layout has
//! the mean line.

use super::map::Part;
use super::tracks::{self, HEADS_MAX, Layout};
use super::zones::{Seen, Span, sharpened};
use crate::numbers::median;

/// Points of a part, at most: more of them, and what slips between them blurs the layout.
const POINTS_MAX: usize = 130;
/// Points without which a part is not asked for heads and skews.
const POINTS_MIN: usize = 60;
/// The parts that are asked.
const ASKED: usize = 8;
/// How many numbers of heads are looked at closely.
const HEADS_KEPT: usize = 4;
/// By how much of a turn mean skews of parts differ, at most.
const SKEW_RANGE: f64 = 0.03;
/// The share of points that agree by chance is about a tenth; at twice that a layout is not believed.
const SHARE_MIN: f64 = 0.2;

/// Points of a run of LBNs, with their mean line.
struct Run<'a> {
    span: Span,
    points: &'a [Seen],
    rho: f64,
}

/// The parts of a drive whose zones are `spans`, and how many heads it has.
pub(crate) struct Parts {
    pub parts: Vec<Part>,
    /// Tracks of a cylinder; 1 if they cannot be told apart.
    pub heads: usize,
    /// The mean share of points that agree with the layout of their part.
    pub share: f64,
}

/// Lays out all parts; windows of the spans are `width` wide.
pub(crate) fn parts(seen: &[Seen], spans: &[Span], width: f64) -> Parts {
    let runs: Vec<Run> = spans.iter().flat_map(|span| runs(seen, span, width)).collect();
    let mut asked: Vec<&Run> = runs.iter().filter(|run| run.points.len() >= POINTS_MIN).collect();
    asked.sort_by_key(|run| std::cmp::Reverse(run.points.len()));
    asked.truncate(ASKED);
    let (heads, found) = heads(&asked);
    let good: Vec<&(f64, Layout)> = found.iter().filter(|(share, _)| *share >= SHARE_MIN).collect();
    let of = |value: fn(&Layout) -> f64| median(&good.iter().map(|(_, l)| value(l)).collect::<Vec<f64>>());
    let is_known = !good.is_empty();
    let mean_skew = of(|l| ((l.heads - 1.0) * l.track_skew + l.cylinder_skew()) / l.heads);
    let mut shares = Vec::new();
    let lay_out = |run: &Run| {
        let found = is_known.then(|| known(run, heads, mean_skew)).flatten();
        let (share, layout) =
            found.filter(|(share, _)| *share >= SHARE_MIN).unwrap_or((0.0, line(run, heads)));
        shares.push(share);
        Part { from: run.span.from, to: run.span.to, layout }
    };
    let parts = runs.iter().map(lay_out).collect();
    Parts { parts, heads, share: shares.iter().sum::<f64>() / shares.len().max(1) as f64 }
}

/// A span cut into runs of about the same number of points.
fn runs<'a>(seen: &'a [Seen], span: &Span, width: f64) -> Vec<Run<'a>> {
    let at = |lbn: f64| seen.partition_point(|s| s.lbn < lbn);
    let points = &seen[at(span.from)..at(span.to)];
    let count = points.len().div_ceil(POINTS_MAX).max(1);
    let cut = |n: usize| n * points.len() / count;
    let edge = |n: usize| match n {
        0 => span.from,
        n if n == count => span.to,
        n => points[cut(n)].lbn,
    };
    let run = |n: usize| {
        let points = &points[cut(n)..cut(n + 1)];
        // The zone's ρ is known to a part of the inverse of a window.
        let rho = sharpened(points, span.rho, 0.5 / width);
        Run { span: Span { from: edge(n), to: edge(n + 1), rho }, points, rho }
    };
    (0..count).map(run).collect()
}

/// The number of heads with which the runs agree best, and their layouts.
fn heads(runs: &[&Run]) -> (usize, Vec<(f64, Layout)>) {
    let sectors: Vec<Vec<f64>> = runs
        .iter()
        .map(|run| {
            let (least, most) = tracks::range(run.rho);
            tracks::sectors(run.points, run.rho, least, most)
        })
        .collect();
    let layouts = |heads: usize| -> Vec<(f64, Layout)> {
        let each = runs.iter().zip(&sectors);
        each.filter_map(|(run, sectors)| tracks::layout(run.points, run.rho, sectors, heads)).collect()
    };
    let score = |heads: usize| layouts(heads).iter().map(|(length, _)| length).sum::<f64>();
    let mut scores: Vec<(f64, usize)> = (1..=HEADS_MAX).map(|heads| (score(heads), heads)).collect();
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    let refine = |heads: usize| -> Vec<(f64, Layout)> {
        let each = runs.iter().zip(layouts(heads));
        each.map(|(run, (_, layout))| tracks::refined(run.points, &layout)).collect()
    };
    let total = |found: &[(f64, Layout)]| found.iter().map(|(share, _)| share).sum::<f64>();
    let kept = scores.iter().take(HEADS_KEPT).map(|(_, heads)| (*heads, refine(*heads)));
    kept.max_by(|a, b| total(&a.1).total_cmp(&total(&b.1))).unwrap_or((1, Vec::new()))
}

/// The layout of a run of a drive whose heads and mean skew are known.
fn known(run: &Run, heads: usize, mean_skew: f64) -> Option<(f64, Layout)> {
    let sectors = |skew: f64| (1.0 + skew) / run.rho;
    let candidates = tracks::sectors(
        run.points,
        run.rho,
        sectors(mean_skew - SKEW_RANGE),
        sectors(mean_skew + SKEW_RANGE),
    );
    let each = candidates.iter().filter_map(|s| tracks::layout(run.points, run.rho, &[*s], heads));
    let refined = each.map(|(_, layout)| tracks::refined(run.points, &layout));
    refined.max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The mean line as a layout: a turn has 1/ρ sectors, and changes are free.
fn line(run: &Run, heads: usize) -> Layout {
    let from = run.points.first().map_or(run.span.from, |s| s.lbn);
    let flat = run.points.iter().map(|s| crate::numbers::direction(s.turns - run.rho * (s.lbn - from)));
    let angle = crate::numbers::angle(flat.sum());
    Layout {
        origin: from,
        angle,
        sectors: 1.0 / run.rho,
        heads: heads as f64,
        track_skew: 0.0,
        cylinder_turns: 0.0,
    }
}
