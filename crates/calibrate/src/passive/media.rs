//! Which requests ended on the medium, as far as their times alone say.
//!
//! A request far from the one before cannot be in the cache, so that the shortest times of far reads say how short a
//! read from the medium can be. Shorter ones are hits. Writes are of use only if far writes take as long as far reads:
//! else a buffer takes them. The few that are taken wrongly are outliers to everything that uses them.

use crate::Sample;
use crate::numbers::quantile;
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

/// Requests further apart than this share of the drive are far.
const FAR: f64 = 0.01;
/// Far requests without which nothing is known of their times.
const FAR_MIN: usize = 30;

/// The times of requests of one kind that are far from the request before, in microseconds.
pub(crate) fn far_times(samples: &[Sample], op: Op) -> Vec<f64> {
    let span = samples.iter().map(|s| s.request.end()).max().unwrap_or(0) as f64;
    let is_far = |pair: &&[Sample]| pair[0].request.end().abs_diff(pair[1].request.lbn) as f64 > FAR * span;
    let far = samples.windows(2).filter(is_far).map(|pair| pair[1]);
    far.filter(|s| s.request.op == op).map(|s| s.service_us).collect()
}

/// Whether writes end when a buffer has them, not the medium.
pub(crate) fn writes_are_buffered(samples: &[Sample]) -> bool {
    let (reads, writes) = (far_times(samples, Op::Read), far_times(samples, Op::Write));
    writes.len() < FAR_MIN || quantile(&writes, 0.5) < 0.5 * quantile(&reads, 0.5)
}

/// The shortest time of a request on the medium, in microseconds; 0 if nothing tells.
pub(crate) fn shortest(samples: &[Sample], op: Op) -> f64 {
    match far_times(samples, op) {
        times if times.len() >= FAR_MIN => 0.7 * quantile(&times, 0.02),
        _ => 0.0,
    }
}

/// The requests that ended on the medium, in the order of their moments.
pub(crate) fn points(samples: &[Sample]) -> Vec<Point> {
    let reads = shortest(samples, Op::Read);
    let writes = if writes_are_buffered(samples) { f64::INFINITY } else { shortest(samples, Op::Write) };
    let is_media = |s: &&Sample| match s.request.op {
        Op::Read => s.service_us >= reads,
        Op::Write => s.service_us >= writes,
        Op::Flush | Op::Discard => false,
    };
    let point = |s: &Sample| Point {
        lbn: s.request.lbn as f64,
        sectors: s.request.sectors.into(),
        at: s.started_us + s.service_us,
        write: s.request.op == Op::Write,
    };
    samples.iter().filter(is_media).map(point).collect()
}
