//! Measured latencies by operation, length and depth, instead of what a mechanism is thought to take.
//!
//! Between depths, and between lengths, quantiles lie on lines. Below the smallest of either they are constant, and so
//! are those above the largest depth; a longer request takes longer in proportion. One chance decides all quantiles of
//! a request, so that a request at a measured length and depth has the measured distribution exactly.
//!
//! The table deliberately knows nothing of the requests before: that times of neighbours are alike, which a real
//! drive's stalls make them, is not in it.

use super::ResidualOp;
use crate::chance::Chance;
use crate::check::{Checked, US_MAX, entries, within, wrong};
use crate::machine::{Nanos, US};
use crate::quantiles::Distribution;
use crate::{Op, Quantiles};
use lamina_block::Bytes;
use serde::{Deserialize, Serialize};

/// The latency of requests of one operation and length, so many under way.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DepthLatency {
    /// Of which requests.
    pub op: ResidualOp,
    /// Their length, 512B..=1GiB.
    pub length: Bytes,
    /// How many requests are under way, such a one included, 1..=65536.
    pub depth: u32,
    /// What they take from begin to end, in microseconds, 0..=1e7; at least one point.
    pub quantiles_us: Quantiles,
}

/// The entries of a model are inside their ranges, and ascend: by length, and in a length by depth.
pub(super) fn check(latencies: &[DepthLatency]) -> Checked {
    entries("ssd.latencies", latencies.len(), 0..=1000)?;
    for (i, entry) in latencies.iter().enumerate() {
        let key = |name: &str| format!("ssd.latencies[{i}].{name}");
        within(key("length"), entry.length, Bytes(512)..=Bytes(1 << 30))?;
        within(key("depth"), entry.depth, 1..=65_536)?;
        entries(key("quantiles-us"), entry.quantiles_us.0.len(), 1..=1000)?;
        entry.quantiles_us.check(&key("quantiles-us"), 0.0..=US_MAX)?;
        let before = latencies[..i].iter().rev().find(|before| before.op == entry.op);
        if before.is_some_and(|before| (before.length, before.depth) >= (entry.length, entry.depth)) {
            return Err(wrong(key("length"), "entries of an operation ascend: by length, and then by depth"));
        }
    }
    Ok(())
}

/// The latencies of one operation, ready for use: by length in bytes, by depth.
type ByLength = Vec<(f64, Vec<(f64, Distribution)>)>;

/// The table of a drive at work.
pub(super) struct Table {
    read: ByLength,
    write: ByLength,
    flush: ByLength,
}

impl Table {
    /// The table of entries that [`check`] has passed, if there are any.
    pub(super) fn new(latencies: &[DepthLatency]) -> Option<Table> {
        let of = |op: ResidualOp| {
            let mut lengths: ByLength = Vec::new();
            for entry in latencies.iter().filter(|entry| entry.op == op) {
                let length = entry.length.0 as f64;
                let depth = (f64::from(entry.depth), Distribution::new(&entry.quantiles_us, US));
                match lengths.last_mut().filter(|last| last.0 == length) {
                    Some((_, depths)) => depths.push(depth),
                    None => lengths.push((length, vec![depth])),
                }
            }
            lengths
        };
        let [read, write, flush] = [ResidualOp::Read, ResidualOp::Write, ResidualOp::Flush].map(of);
        (!latencies.is_empty()).then_some(Table { read, write, flush })
    }

    /// What a request of `bytes` takes when `depth` are under way; `None` if nothing of its operation was measured.
    pub(super) fn latency(&self, op: Op, bytes: u64, depth: usize, chance: &mut Chance) -> Option<Nanos> {
        let lengths = match op {
            Op::Read => &self.read,
            Op::Write => &self.write,
            Op::Flush => &self.flush,
            Op::Discard => return None,
        };
        let longest = lengths.last()?.0;
        let probability = chance.probability();
        let value = |of: &Distribution| probability.map_or(of.mean, |p| of.points.at(p));
        let at_depth = |depths: &Vec<(f64, Distribution)>| between(depths, depth as f64, value);
        let bytes = bytes as f64;
        Some(between(lengths, bytes, at_depth) * (bytes / longest).max(1.0))
    }
}

/// The value at `x` on lines through the values of points that ascend; constant outside.
fn between<T>(points: &[(f64, T)], x: f64, value: impl Fn(&T) -> f64) -> f64 {
    let above = points.partition_point(|(at, _)| *at <= x);
    match (above.checked_sub(1).and_then(|below| points.get(below)), points.get(above)) {
        (Some((from, low)), Some((to, high))) => {
            let low = value(low);
            low + (value(high) - low) * (x - from) / (to - from)
        }
        (Some((_, end)), None) | (None, Some((_, end))) => value(end),
        (None, None) => 0.0,
    }
}
