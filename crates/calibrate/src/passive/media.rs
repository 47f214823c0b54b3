//! Which requests ended on the medium, as far as their times alone say.
//!
//! Requests that need no medium take a time that their size alone decides; requests of the medium take one that the
//! rotation spreads over a turn. So hits show as a crowd of times above a line over the size, and behind the crowd
//! there is a valley before the shortest time of the medium:
//!
//! ```text
//!            ▟▙
//!            ██              ▂▂▂▂▂▂▂▂▃▃▃▃▃▅▅▆▇▇▇▇▇▇▆▅▄
//!   ─────────██▁─────────────████████████████████████▇▅▃▂──▶ time above the line
//!           crowd   valley   near           far
//! ```
//!
//! A request far from the one before is rarely in the cache, so that the times of far reads bound the search for the
//! valley. Writes are of use only if far writes take as long as far reads: else a buffer takes them. The few
//! that are taken wrongly are outliers to everything that uses them.

use crate::Sample;
use crate::numbers::{line, median, quantile};
use crate::score::FAR;
use lamina_drive::Op;

/// The end of a request on the medium.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// The first sector.
    pub lbn: f64,
    /// How many sectors.
    pub sectors: f64,
    /// When it ended, in microseconds.
    pub at: f64,
    /// Whether it was a write.
    pub write: bool,
}

/// Far requests without which nothing is known of their times.
const FAR_MIN: usize = 30;
/// Widths of the window in which times are counted that fit below half of the middle far time.
const WINDOWS: usize = 20;
/// How much emptier than the crowd a valley is, and the inverse of the share of all times that a crowd has, at least.
const EMPTIER: usize = 4;

/// What tells requests of the medium from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Media {
    /// The times of reads that hit.
    pub hits: Short,
    /// Whether writes end when a buffer has them, not the medium.
    pub buffered: bool,
    /// The times of writes that are too short for the medium.
    writes: Short,
}

/// Times that are too short for the medium: near a line over the size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    /// What a request takes besides its sectors, in microseconds.
    pub us: f64,
    /// What each of its sectors takes, in microseconds.
    pub sector_us: f64,
    /// How far above the line a time still is too short, in microseconds; none is if negative.
    above_us: f64,
}

impl Short {
    /// Whether a request took so short that it cannot have come to the medium.
    pub(crate) fn has(&self, sample: &Sample) -> bool {
        self.excess(sample) < self.above_us
    }

    fn excess(&self, sample: &Sample) -> f64 {
        sample.service_us - self.us - self.sector_us * f64::from(sample.request.sectors)
    }

    /// The crowd of the shortest among the times of `samples`, all of one operation, below `limit_us`.
    fn found(samples: &[&Sample], limit_us: f64) -> Short {
        let none = Short { us: 0.0, sector_us: 0.0, above_us: -1.0 };
        let below: Vec<&Sample> = samples.iter().copied().filter(|s| s.service_us < limit_us).collect();
        let base = over_size(&below, none, |times| quantile(times, 0.25));
        let mut excess: Vec<f64> = below.iter().map(|s| base.excess(s)).collect();
        excess.sort_by(f64::total_cmp);
        let Some(above_us) = valley(&excess, limit_us / WINDOWS as f64) else { return none };
        let base = Short { above_us, ..base };
        let crowd: Vec<&Sample> = below.into_iter().filter(|s| base.has(s)).collect();
        let middle = over_size(&crowd, base, median);
        Short { above_us: above_us + base.us - middle.us, ..middle }
    }
}

/// The line of least squares over the size through one time of each size, by how many requests have the size.
fn over_size(samples: &[&Sample], short: Short, of: impl Fn(&[f64]) -> f64) -> Short {
    let mut sizes: Vec<u32> = samples.iter().map(|s| s.request.sectors).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let point = |size: &u32| {
        let like = samples.iter().filter(|s| s.request.sectors == *size);
        let times: Vec<f64> = like.map(|s| s.service_us).collect();
        (f64::from(*size), of(&times), times.len() as f64)
    };
    let points: Vec<(f64, f64, f64)> = sizes.iter().map(point).collect();
    let (us, sector_us) = line(&points);
    // Larger requests do not take less.
    match sector_us >= 0.0 && us >= 0.0 {
        true => Short { us, sector_us, ..short },
        false => {
            let all: Vec<f64> = samples.iter().map(|s| s.service_us).collect();
            Short { us: of(&all), sector_us: 0.0, ..short }
        }
    }
}

/// The middle of the emptiest window behind the fullest one, for ascending values; none without a crowd.
fn valley(values: &[f64], width: f64) -> Option<f64> {
    let last = *values.last()?;
    let within = |from: f64| {
        let place = |value: f64| values.partition_point(|v| *v < value);
        place(from + width) - place(from)
    };
    let crowd = *values.iter().max_by_key(|from| within(**from))?;
    // A tenth of a window is fine enough to find the emptiest, and the end of the values is one.
    let steps = (10.0 * (last - crowd) / width).ceil().clamp(0.0, 1e6) as usize;
    let starts: Vec<f64> = (10..=steps.max(10)).map(|n| crowd + n as f64 * width / 10.0).collect();
    let least = starts.iter().map(|from| within(*from)).min()?;
    let is_least = |from: &&f64| within(**from) == least;
    let first = starts.iter().position(|from| within(*from) == least)?;
    let run = starts[first..].iter().take_while(is_least).count();
    let empty = starts[first + run / 2] + width / 2.0;
    let is_crowd = within(crowd) >= EMPTIER * least && EMPTIER * within(crowd) >= values.len();
    is_crowd.then_some(empty)
}

/// The times of requests of one kind that are far from the request before, in microseconds.
fn far_times(samples: &[Sample], op: Op) -> Vec<f64> {
    let span = samples.iter().map(|s| s.request.end()).max().unwrap_or(0) as f64;
    let is_far = |pair: &&[Sample]| pair[0].request.end().abs_diff(pair[1].request.lbn) as f64 > FAR * span;
    let far = samples.windows(2).filter(is_far).map(|pair| pair[1]);
    far.filter(|s| s.request.op == op).map(|s| s.service_us).collect()
}

impl Media {
    /// What the times of `samples` say.
    pub(crate) fn of(samples: &[Sample]) -> Media {
        let (reads, writes) = (far_times(samples, Op::Read), far_times(samples, Op::Write));
        let buffered = writes.len() < FAR_MIN || quantile(&writes, 0.5) < 0.5 * quantile(&reads, 0.5);
        let short = |op: Op, limit_us: f64| {
            let all: Vec<&Sample> = samples.iter().filter(|s| s.request.op == op).collect();
            Short::found(&all, limit_us)
        };
        let limit = |times: &[f64]| if times.len() < FAR_MIN { 0.0 } else { 0.5 * quantile(times, 0.5) };
        let writes = if buffered { f64::INFINITY } else { limit(&writes) };
        Media { hits: short(Op::Read, limit(&reads)), buffered, writes: short(Op::Write, writes) }
    }

    /// Whether a request ended on the medium.
    pub(crate) fn has(&self, sample: &Sample) -> bool {
        match sample.request.op {
            Op::Read => !self.hits.has(sample),
            Op::Write => !self.buffered && !self.writes.has(sample),
            Op::Flush | Op::Discard => false,
        }
    }

    /// What a write takes that the buffer takes: besides its sectors, in microseconds.
    pub(crate) fn write_us(&self) -> f64 {
        self.writes.us
    }

    /// The requests that ended on the medium, in the order of their moments.
    pub(crate) fn points(&self, samples: &[Sample]) -> Vec<Point> {
        let point = |s: &Sample| Point {
            lbn: s.request.lbn as f64,
            sectors: s.request.sectors.into(),
            at: s.started_us + s.service_us,
            write: s.request.op == Op::Write,
        };
        samples.iter().filter(|s| self.has(s)).map(point).collect()
    }
}
