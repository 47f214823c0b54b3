//! The angle map of a drive: layouts of its parts, where each ends, and what slips in them.
//!
//! Defects and spares shift all LBNs behind them: the sector of LBN n is where that of n + d should be, and d changes
//! slowly. The map is the path through all points, by LBN, whose states are (part, d), and that explains the most
//! of them: a Viterbi search. A step of d costs by its size, up to a limit, and so does going on to the next part. The
//! ends of parts are then at the begins of cylinders, since zones begin there.

use super::tracks::Layout;
use super::zones::Seen;
use crate::numbers::{line, median, signed};
use lamina_drive::Zone;

/// The most sectors by which LBNs are shifted against a layout, either way.
const SLIP_MAX: i32 = 40;
/// The cost of a sector of slip between two points, and of any slip at most.
const SLIP_COST: (f64, f64) = (0.5, 6.0);
/// What going on to another part costs.
const PART_COST: f64 = 8.0;
/// The deviation of angles around the map, in turns, and the share of points that have nothing to do with it.
const NOISE: (f64, f64) = (0.012, 0.08);
/// Within so many sectors a slip is left to the corrections.
const SLIP_KEPT: i32 = 3;
/// Points that a correction is the median of.
const CORRECTED: usize = 7;
/// Errors of angles beyond this are outliers, in turns.
pub(crate) const OUTLIER: f64 = 0.06;

/// A run of LBNs with a layout; runs may overlap, since their ends are known to a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub from: f64,
    pub to: f64,
    pub layout: Layout,
}

/// Where a point is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct State {
    part: usize,
    slip: i32,
}

/// The zones of the model, and corrections of angles.
pub(crate) struct Map {
    pub zones: Vec<Zone>,
    pub corrections: Vec<(u64, f64)>,
    /// The share of points that agree with the map.
    pub agreeing: f64,
    /// The spread of their angles: half the distance between the quartiles, in turns.
    pub spread: f64,
    /// By how many turns each sector more of a request makes its angle later: what the transfer was taken for wrongly.
    pub per_sector: f64,
    /// By how many turns angles grow in a microsecond: what the period was taken for wrongly.
    pub per_us: f64,
}

const SLIPS: usize = 2 * SLIP_MAX as usize + 1;

/// The logarithm of the likelihood of an error of an angle, against chance.
fn likelihood(error: f64) -> f64 {
    let (deviation, outliers) = NOISE;
    let density = (-0.5 * (error / deviation).powi(2)).exp() / (deviation * std::f64::consts::TAU.sqrt());
    ((1.0 - outliers) * density + outliers).ln()
}

/// The best path through `points`, which are in the order of their LBNs; `margin` is by how much parts may overlap.
fn path(points: &[Seen], parts: &[Part], margin: f64) -> Vec<State> {
    let mut sums = vec![0.0; parts.len() * SLIPS];
    let mut origins: Vec<Vec<u32>> = Vec::with_capacity(points.len());
    for point in points {
        let is_active = |p: &Part| (p.from - margin..p.to + margin).contains(&point.lbn);
        let (best, highest) = highest(&sums);
        let mut row = vec![0u32; sums.len()];
        let mut next = vec![f64::NEG_INFINITY; sums.len()];
        for (n, part) in parts.iter().enumerate().filter(|(_, p)| is_active(p)) {
            let states = n * SLIPS..(n + 1) * SLIPS;
            let reached = reached(&sums[states.clone()]);
            for (i, (sum, from)) in reached.into_iter().enumerate() {
                let elsewhere = highest - PART_COST;
                let (sum, from) = if sum >= elsewhere { (sum, n * SLIPS + from) } else { (elsewhere, best) };
                let slip = i as f64 - f64::from(SLIP_MAX);
                let error = signed(point.turns - part.layout.turns(point.lbn + slip));
                next[states.start + i] = sum + likelihood(error);
                row[states.start + i] = from as u32;
            }
        }
        sums = next;
        origins.push(row);
    }
    let (mut at, _) = highest(&sums);
    let mut path = Vec::with_capacity(points.len());
    for row in origins.iter().rev() {
        path.push(State { part: at / SLIPS, slip: (at % SLIPS) as i32 - SLIP_MAX });
        at = row[at] as usize;
    }
    path.reverse();
    path
}

fn highest(sums: &[f64]) -> (usize, f64) {
    let best = sums.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or((0, 0.0), |(index, sum)| (index, *sum))
}

/// For each slip the best sum with the cost of coming from another slip, and that slip.
fn reached(sums: &[f64]) -> Vec<(f64, usize)> {
    let (best, highest) = highest(sums);
    let mut reached: Vec<(f64, usize)> = sums.iter().enumerate().map(|(i, sum)| (*sum, i)).collect();
    for i in 1..reached.len() {
        let stepped = (reached[i - 1].0 - SLIP_COST.0, reached[i - 1].1);
        reached[i] = if stepped.0 > reached[i].0 { stepped } else { reached[i] };
    }
    for i in (0..reached.len() - 1).rev() {
        let stepped = (reached[i + 1].0 - SLIP_COST.0, reached[i + 1].1);
        reached[i] = if stepped.0 > reached[i].0 { stepped } else { reached[i] };
    }
    let jumped = (highest - SLIP_COST.1, best);
    reached.into_iter().map(|r| if jumped.0 > r.0 { jumped } else { r }).collect()
}

/// The map that the points and the parts make.
pub(crate) fn map(points: &[Seen], parts: &[Part], margin: f64) -> Map {
    let path = path(points, parts, margin);
    let mut zones: Vec<(State, Zone)> = Vec::new();
    for (i, state) in path.iter().enumerate() {
        let is_new = zones
            .last()
            .is_none_or(|(last, _)| last.part != state.part || (last.slip - state.slip).abs() > SLIP_KEPT);
        if is_new {
            let layout = &parts[state.part].layout;
            let after = match i.checked_sub(1) {
                Some(before) => points[before].lbn + f64::from(points[before].point.sectors as u32),
                None => 0.0,
            };
            let first = begin(layout, state.slip, after, points[i].lbn, zones.is_empty());
            let first = first.max(zones.last().map_or(0, |(_, zone)| zone.first_lbn + 1));
            zones.push((*state, zone(layout, state.slip, first)));
        }
    }
    corrected(points, parts, &path, zones)
}

/// Where a run with `layout` begins, if it begins behind `after` and has the sector `first`.
fn begin(layout: &Layout, slip: i32, after: f64, first: f64, is_drive: bool) -> u64 {
    if is_drive {
        return 0;
    }
    let cylinder = layout.heads * layout.sectors;
    let behind = first - (first + f64::from(slip) - layout.origin).rem_euclid(cylinder);
    // Of several begins of cylinders the one in the middle.
    let steps = ((behind - after) / cylinder).floor().max(0.0);
    let begin = behind - (steps / 2.0).floor() * cylinder;
    begin.round().max(0.0) as u64
}

fn zone(layout: &Layout, slip: i32, first_lbn: u64) -> Zone {
    let shifted = first_lbn as f64 + f64::from(slip);
    Zone {
        first_lbn,
        sectors_per_track: layout.sectors,
        // At the begin of a cylinder, to which rounding to a sector may have missed.
        angle: (layout.turns(shifted + 0.5) - 0.5 / layout.sectors).rem_euclid(1.0),
        track_skew: layout.track_skew,
        cylinder_skew: layout.cylinder_skew(),
        ..Zone::default()
    }
}

/// The map with what its points are still off.
fn corrected(points: &[Seen], parts: &[Part], path: &[State], zones: Vec<(State, Zone)>) -> Map {
    let mut errors: Vec<(f64, f64)> = Vec::new();
    let mut sizes: Vec<(f64, f64, f64)> = Vec::new();
    let mut times: Vec<(f64, f64, f64)> = Vec::new();
    for (point, state) in points.iter().zip(path) {
        let layout = &parts[state.part].layout;
        let error = signed(point.turns - layout.turns(point.lbn + f64::from(state.slip)));
        // What the zone's one slip leaves to the correction.
        let (zone, _) = &zones[zones.partition_point(|(_, z)| z.first_lbn as f64 <= point.lbn).max(1) - 1];
        let rest = f64::from(state.slip - zone.slip) / layout.sectors;
        if error.abs() < OUTLIER {
            errors.push((point.lbn, error + rest));
            sizes.push((point.point.sectors, error, 1.0));
            times.push((point.point.at, error, 1.0));
        }
    }
    let knot = |group: &[(f64, f64)]| {
        let lbns: Vec<f64> = group.iter().map(|e| e.0).collect();
        let turns: Vec<f64> = group.iter().map(|e| e.1).collect();
        (median(&lbns) as u64, median(&turns))
    };
    let mut corrections: Vec<(u64, f64)> = errors.chunks(CORRECTED).map(knot).collect();
    corrections.dedup_by_key(|c| c.0);
    let agreeing = errors.len() as f64 / points.len().max(1) as f64;
    let spread = median(&errors.iter().map(|e| e.1.abs()).collect::<Vec<f64>>());
    let ((_, per_sector), (_, per_us)) = (line(&sizes), line(&times));
    let zones = zones.into_iter().map(|(_, zone)| zone).collect();
    Map { zones, corrections, agreeing, spread, per_sector, per_us }
}
