//! Calibration from a trace: a rotational model from requests that a drive was given one at a time.
//!
//! ```text
//!   ends ─▶ period ─▶ zones ─▶ tracks, heads, skews ─▶ slips ─▶ angle map
//!   times to the first sector ─▶ seeks, jitter          short reads ─▶ cache
//!   what is left ─▶ residuals by class
//! ```
//!
//! Everything rests on one fact: a request ends when its last sector has passed under the head, so that its end, modulo
//! a turn, is an angle. Nothing is believed that chance would show too: a trace without a rotation is an error.
//!
//! The estimator is pure: the same samples give the same model. The calibration deliberately does no I/O and knows
//! no other mechanism than the rotational one.

mod ablation;
mod cache;
mod map;
mod media;
mod parts;
mod period;
mod seek;
mod simplex;
#[cfg(test)]
mod tests;
mod tracks;
mod zones;

pub use ablation::ablations;
pub use period::Rotation;

use crate::Sample;
use crate::numbers::{self, sorted_quantile};
use crate::score::{self, Predicted};
use crate::trace::{Record, Think, samples};
use lamina_block::Bytes;
use lamina_drive::{
    Mechanism, Model, Op, Quantiles, Request, Residuals, Rotational, SECTOR, Seek, WriteBuffer,
};
use map::Map;
use media::{Media, Point};
use seek::{Reach, Seeks};
use std::fmt;

/// Samples that a model is fitted to, at most, the first ones: more hardly make it better, and the angle map takes
/// memory in proportion to the square of their number.
const SAMPLES_MAX: usize = 20_000;
/// Points of the distributions of residuals, at most. Between points a distribution is linear: with few of them a rare
/// large residual becomes a frequent one.
const QUANTILES: usize = 250;
/// Requests at the begin that say nothing of residuals.
const FIRST: usize = 50;
/// Requests of the medium for each part of a turn with residuals of its own, and the most parts.
const PART_MIN: usize = 100;
const PARTS_MAX: usize = 8;

/// Why a trace gives no model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoModel(pub String);

impl fmt::Display for NoModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoModel {}

/// How to fit.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the drive is called.
    pub name: String,
    /// Its sectors, if known; otherwise it ends behind the last request.
    pub sectors: Option<u64>,
}

/// How sure the parameters of a model are.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// The rotation, with its uncertainty.
    pub rotation: Rotation,
    /// Reads from the medium that the angle map was made of, and the share that agrees with it.
    pub points: usize,
    /// The share of those within a fourteenth of a turn of the map.
    pub agreeing: f64,
    /// The median error of angles, in turns.
    pub angle_spread: f64,
    /// The share of points of a part that agree with its tracks and cylinders: below 0.2 those are not known.
    pub tracks: f64,
    /// The jitter of arrivals, in microseconds.
    pub jitter_us: f64,
    /// Reads of which the cache predicts wrongly whether they hit, as a share.
    pub cache_wrong: f64,
}

/// A model, and how sure it is.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The model.
    pub model: Model,
    /// How sure it is.
    pub quality: Quality,
}

/// The reading of the last column of a trace under which a rotation shows best.
pub fn think(records: &[Record]) -> Think {
    let significance = |think| {
        let samples = samples(records, think);
        period::rotation(&Media::of(&samples).points(&samples)).map_or(0.0, |rotation| rotation.significance)
    };
    if significance(Think::After) > significance(Think::Before) { Think::After } else { Think::Before }
}

/// Fits a model to `samples`, which are in the order of their moments. `progress` is told what begins.
pub fn fit(samples: &[Sample], options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Fitted, NoModel> {
    let samples = &samples[..samples.len().min(SAMPLES_MAX)];
    progress("rotation");
    let media = Media::of(samples);
    let all = media.points(samples);
    let rotation = period::rotation(&all).ok_or_else(|| {
        let points = all.len();
        NoModel(format!(
            "no rotation shows in {points} requests that took a mechanical time: at least some hundreds at random \
             places are needed, each alone in the drive"
        ))
    })?;
    zones::check(&all)?;
    let rotation = zones::narrowed(&all, &rotation);
    progress("zones and tracks");
    let reads: Vec<Point> = all.iter().copied().filter(|p| !p.write).collect();
    let angles = angles(&reads, rotation.period_us)?;
    let rotation = Rotation { period_us: angles.period_us, ..rotation };
    let mut model = skeleton(samples, options, &media, &rotation, &angles);
    progress("seeks");
    let seeks = add_seeks(&mut model, samples, &media, &angles, rotation.period_us);
    progress("cache");
    let wrong = cache::add(&mut model, samples, &media);
    progress("residuals");
    add_residuals(&mut model, samples);
    let reads_asked = samples.iter().filter(|s| s.request.op == Op::Read).count();
    let quality = Quality {
        rotation,
        points: reads.len(),
        agreeing: angles.map.agreeing,
        angle_spread: angles.map.spread,
        tracks: angles.share,
        jitter_us: seeks.jitter_us,
        cache_wrong: wrong as f64 / reads_asked.max(1) as f64,
    };
    model.check().map_err(|e| NoModel(format!("the result is no valid model: {e}")))?;
    Ok(Fitted { model, quality })
}

/// What angles say.
struct Angles {
    map: Map,
    heads: usize,
    share: f64,
    /// What each sector of a read takes to the host, in microseconds.
    transfer_us: f64,
    /// One turn, in microseconds.
    period_us: f64,
}

fn angles(reads: &[Point], mut period_us: f64) -> Result<Angles, NoModel> {
    let last = reads.iter().map(|p| p.lbn).fold(f64::NAN, f64::max);
    if last.is_nan() {
        return Err(NoModel("no reads from the medium".into()));
    }
    let width = (last + 1.0) / zones::WINDOWS as f64;
    let mut transfer_us = zones::transfer_us(reads, period_us);
    let mut lay_out = |period_us: f64| {
        let seen = zones::seen(reads, period_us, transfer_us);
        let found = parts::parts(&seen, &zones::zones(&seen), width);
        let mut map = map::map(&seen, &found.parts, 1.2 * width);
        // The transfer is known better once angles are.
        for _ in 0..2 {
            transfer_us += map.per_sector * period_us;
            map = map::map(&zones::seen(reads, period_us, transfer_us), &found.parts, 1.2 * width);
        }
        Angles { map, heads: found.heads, share: found.share, transfer_us, period_us }
    };
    let first = lay_out(period_us);
    // And so is the period: angles that grow with time say by how much it is too short.
    period_us /= 1.0 - first.map.per_us * period_us;
    let second = lay_out(period_us);
    Ok(if second.map.agreeing >= first.map.agreeing { second } else { first })
}

/// The model with what times say without any search: all but seeks, cache and residuals.
fn skeleton(
    samples: &[Sample],
    options: &Options,
    media: &Media,
    rotation: &Rotation,
    angles: &Angles,
) -> Model {
    let end = samples.iter().map(|s| s.request.end()).max().unwrap_or(8);
    let sectors = options.sectors.unwrap_or(end).max(end).max(8);
    let longest = samples.iter().map(|s| u64::from(s.request.sectors)).max().unwrap_or(1);
    let buffer = WriteBuffer {
        size: Bytes((256 << 10).max(4 * longest * SECTOR)),
        hit_ms: Some(media.write_us() / 1000.0),
    };
    let disk = Rotational {
        rotation_ms: rotation.period_us / 1000.0,
        heads: angles.heads as u32,
        read_sector_ms: angles.transfer_us / 1000.0,
        hit_ms: media.hits.us / 1000.0,
        bus_rate: numbers::bus_rate(media.hits.sector_us),
        write_buffer: media.buffered.then_some(buffer),
        zones: angles.map.zones.clone(),
        corrections: angles.map.corrections.clone(),
        ..Rotational::default()
    };
    Model {
        name: options.name.clone(),
        size: Bytes(sectors * SECTOR),
        mechanism: Mechanism::Rotational(Box::new(disk)),
    }
}

/// The cylinder of an LBN.
fn cylinder(disk: &Rotational, lbn: u64) -> f64 {
    let (mut first, mut before) = (0.0, &disk.zones[0]);
    let per = |zone: &lamina_drive::Zone| zone.sectors_per_track * f64::from(disk.heads);
    for zone in disk.zones.iter().skip(1).take_while(|zone| zone.first_lbn <= lbn) {
        first += ((zone.first_lbn - before.first_lbn) as f64 / per(before)).ceil();
        before = zone;
    }
    first + ((lbn - before.first_lbn) as f64 / per(before)).floor()
}

fn add_seeks(model: &mut Model, samples: &[Sample], media: &Media, angles: &Angles, period_us: f64) -> Seeks {
    let Mechanism::Rotational(disk) = &mut model.mechanism else {
        return Seeks { overhead_us: 0.0, points: Vec::new(), jitter_us: 0.0 };
    };
    let (mut arm, mut reads, mut writes) = (0.0, Vec::new(), Vec::new());
    for sample in samples {
        let Request { op, lbn, sectors } = sample.request;
        let distance = (cylinder(disk, lbn) - arm).abs();
        let moves = match op {
            Op::Read if media.has(sample) => {
                let us = sample.service_us - f64::from(sectors) * angles.transfer_us;
                reads.push(Reach { distance, us: us.max(0.0) });
                true
            }
            Op::Write => {
                let us = sample.service_us - f64::from(sectors) * period_us / disk.zones[0].sectors_per_track;
                writes.push(Reach { distance, us: us.max(0.0) });
                true
            }
            Op::Read | Op::Flush | Op::Discard => false,
        };
        if moves {
            arm = cylinder(disk, sample.request.end().saturating_sub(1));
        }
    }
    let seeks = seek::seeks(&reads, period_us);
    if !media.buffered {
        let settle = seek::seeks(&writes, period_us);
        let at = |s: &Seeks| s.points.get(s.points.len() / 2).map_or(0.0, |p| p.1 + s.overhead_us);
        disk.write_settle_ms = ((at(&settle) - at(&seeks)) / 1000.0).clamp(0.0, 10.0);
    }
    disk.overhead_ms = seeks.overhead_us / 1000.0;
    let skew = disk.zones.iter().map(|z| z.cylinder_skew).fold(1.0, f64::min) * disk.rotation_ms;
    let point = |(n, (distance, us)): (usize, &(f64, f64))| {
        let ms = us.max(0.0) / 1000.0;
        // A cylinder's skew is made for the seek to the next one.
        [distance.round().max(1.0), if n == 0 && skew > 0.0 { ms.min(0.95 * skew) } else { ms }]
    };
    let mut points: Vec<[f64; 2]> = seeks.points.iter().enumerate().map(point).collect();
    points.dedup_by(|b, a| b[0] <= a[0]);
    disk.seek = Seek::Points(if points.is_empty() { vec![[1.0, 0.0]] } else { points });
    seeks
}

/// Adds what the model is wrong about, by class of request and by the wait that is expected. Turns that are lost or won
/// are in it, so that the model needs no jitter of its own.
fn add_residuals(model: &mut Model, samples: &[Sample]) {
    let predicted = score::replay(&score::certain(model), samples);
    let Mechanism::Rotational(disk) = &mut model.mechanism else { return };
    disk.arrival_spread_ms = 0.0;
    let of = |wanted: &dyn Fn(&Predicted) -> bool, op: Op| -> Vec<(f64, f64)> {
        // The first requests are predicted without knowing the angle.
        let each = predicted.iter().zip(samples).skip(FIRST);
        let each = each.filter(|(p, s)| s.request.op == op && wanted(p));
        each.map(|(p, s)| (p.wait.unwrap_or(0.0), (s.service_us - p.us) / 1000.0)).collect()
    };
    let (reads, writes) = (of(&|p| p.wait.is_some(), Op::Read), of(&|p| p.wait.is_some(), Op::Write));
    disk.residuals = Residuals {
        read_ms: quantiles(&of(&|p| !p.hit, Op::Read)),
        read_by_wait_ms: by_wait(&reads),
        hit_ms: quantiles(&of(&|p| p.hit, Op::Read)),
        write_ms: quantiles(&writes),
        write_by_wait_ms: by_wait(&writes),
        buffered_ms: quantiles(&of(&|p| p.wait.is_none(), Op::Write)),
    };
}

/// Distributions of errors, which come with their waits, by parts of the turn; none if they are too few.
fn by_wait(errors: &[(f64, f64)]) -> Vec<Quantiles> {
    let parts = (errors.len() / PART_MIN).min(PARTS_MAX);
    let part = |wait: f64| ((wait * parts as f64) as usize).min(parts.saturating_sub(1));
    let of = |n: usize| errors.iter().copied().filter(|(wait, _)| part(*wait) == n).collect::<Vec<_>>();
    (0..parts).map(|n| quantiles(&of(n))).collect()
}

/// The distribution of errors, which come with their waits; to a microsecond, as they were measured.
fn quantiles(errors: &[(f64, f64)]) -> Quantiles {
    let mut errors: Vec<f64> = errors.iter().map(|e| e.1).collect();
    errors.sort_by(f64::total_cmp);
    let steps = errors.len().saturating_sub(1).clamp(1, QUANTILES);
    let at = |n: usize| n as f64 / steps as f64;
    let value =
        |n: usize| (1000.0 * sorted_quantile(&errors, at(n)).clamp(-9_999.0, 9_999.0)).round() / 1000.0;
    let points = if errors.is_empty() { 0 } else { steps + 1 };
    Quantiles((0..points).map(|n| [at(n), value(n)]).collect())
}
