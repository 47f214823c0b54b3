//! The counters of a node: operations, bytes, errors, latencies.

use crate::{ErrorKind, OpKind, Time};
use std::cell::{Cell, OnceCell};
use std::time::Duration;

/// Latencies are counted in units of 64 ns, eight buckets for every doubling, up to 2^40 ns (18 minutes): a
/// quantile is off by at most one eighth.
const UNIT_SHIFT: u32 = 6;
const SUB_BITS: u32 = 3;
const BUCKETS: usize = ((40 - UNIT_SHIFT - SUB_BITS + 1) << SUB_BITS) as usize;
const _: () = assert!(BUCKETS == 1 << u8::BITS, "the number of a bucket is any byte");

/// A latency histogram with a relative error of at most one eighth. Costs no memory until its first entry.
#[derive(Default)]
pub struct Histogram {
    counts: OnceCell<Box<[Cell<u64>; BUCKETS]>>,
}

/// The bucket of a latency in nanoseconds.
#[inline]
fn bucket(ns: u64) -> u8 {
    let units = ns >> UNIT_SHIFT;
    if units < 1 << SUB_BITS {
        return units as u8;
    }
    let exponent = units.ilog2() - SUB_BITS;
    let index =
        ((exponent + 1) << SUB_BITS) as usize + ((units >> exponent) as usize & ((1 << SUB_BITS) - 1));
    index.min(BUCKETS - 1) as u8
}

/// The largest latency in nanoseconds of a bucket.
fn upper(bucket: usize) -> u64 {
    let (octave, sub) = ((bucket >> SUB_BITS) as u32, (bucket & ((1 << SUB_BITS) - 1)) as u64);
    let first = |octave: u32, sub: u64| match octave {
        0 => sub,
        _ => ((1 << SUB_BITS) + sub) << (octave - 1),
    };
    (first(octave, sub + 1) << UNIT_SHIFT) - 1
}

impl Histogram {
    /// Counts one latency.
    pub fn record(&self, latency: Duration) {
        self.record_in(bucket(latency.as_nanos() as u64));
    }

    #[inline]
    fn record_in(&self, bucket: u8) {
        let counts: &[Cell<u64>; BUCKETS] = match self.counts.get() {
            Some(counts) => counts,
            None => self.begin(),
        };
        let count = &counts[bucket as usize];
        count.set(count.get() + 1);
    }

    #[cold]
    fn begin(&self) -> &[Cell<u64>; BUCKETS] {
        self.counts.get_or_init(|| Box::new([const { Cell::new(0) }; BUCKETS]))
    }

    /// The buckets that are not empty: the largest latency of each in nanoseconds, and its count. Rising.
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        let counts = self.counts.get().into_iter().flat_map(|c| c.iter().map(Cell::get));
        counts.enumerate().filter(|(_, n)| *n > 0).map(|(i, n)| (upper(i), n)).collect()
    }
}

/// The counters of one operation.
#[derive(Default)]
pub struct OpStats {
    /// Completed, well or not.
    pub completed: Cell<u64>,
    /// Bytes of operations that completed well.
    pub bytes: Cell<u64>,
    /// Completed with an error.
    pub errors: Cell<u64>,
    /// Time from the node to completion.
    pub latency: Histogram,
}

/// The counters of a node.
#[derive(Default)]
pub struct Stats {
    ops: [OpStats; OpKind::ALL.len()],
    in_flight: Cell<u32>,
    unreached: Cell<Option<Unreached>>,
}

/// A request has failed because a device below could not be reached.
#[derive(Clone, Copy)]
struct Unreached {
    at: Time,
    /// Requests have gone well since.
    passed: bool,
}

/// How long such a failure is remembered when others go well: a device can be gone in part.
const REMEMBERED: Duration = Duration::from_secs(10);

impl Stats {
    /// The counters of one operation.
    pub fn of(&self, op: OpKind) -> &OpStats {
        &self.ops[op as usize]
    }

    /// Requests that have passed the node and are not complete.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Requests fail because something could not be reached: the last one, or some of the last seconds before `now`.
    pub fn is_unreached(&self, now: Time) -> bool {
        let recent = |at: Time| now.0.saturating_sub(at.0) < REMEMBERED.as_nanos() as u64;
        self.unreached.get().is_some_and(|failure| !failure.passed || recent(failure.at))
    }

    #[cold]
    pub(crate) fn failed(&self, kind: ErrorKind, at: Time) {
        if matches!(kind, ErrorKind::Offline | ErrorKind::TimedOut | ErrorKind::Truncated) {
            self.unreached.set(Some(Unreached { at, passed: false }));
        }
    }

    pub(crate) fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Ends a request without a waiting caller; returns the number still in flight.
    pub(crate) fn abandon(&self) -> u32 {
        self.in_flight.set(self.in_flight.get() - 1);
        self.in_flight.get()
    }

    #[inline]
    pub(crate) fn count(&self, outcome: &Outcome) {
        let op = &self.ops[outcome.op as usize];
        op.completed.set(op.completed.get() + 1);
        op.errors.set(op.errors.get() + outcome.errors);
        op.bytes.set(op.bytes.get() + outcome.bytes);
        op.latency.record_in(outcome.bucket);
        if let Some(failure) = self.unreached.get()
            && outcome.errors == 0
        {
            self.unreached.set(Some(Unreached { passed: true, ..failure }));
        }
    }
}

/// The end of a request; the same for every node that it only passed.
pub(crate) struct Outcome {
    op: OpKind,
    /// 0 if it failed.
    bytes: u64,
    /// 1 if it failed.
    errors: u64,
    bucket: u8,
}

impl Outcome {
    #[inline]
    pub(crate) fn new(op: OpKind, bytes: u64, latency_ns: u64, failed: bool) -> Outcome {
        let bytes = if failed { 0 } else { bytes };
        Outcome { op, bytes, errors: failed as u64, bucket: bucket(latency_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_in_a_bucket_within_an_eighth() {
        for ns in (0..4096).chain((12..45).flat_map(|e| [(1 << e) - 1, 1 << e, (1 << e) + (1 << (e - 1))])) {
            let b = bucket(ns) as usize;
            if b < BUCKETS - 1 {
                assert!(upper(b) >= ns, "{ns}");
                assert!(upper(b) - ns <= ns / 8 + 63, "{ns} {}", upper(b));
                assert!(b == 0 || upper(b - 1) < ns, "{ns}");
            }
        }
    }

    #[test]
    fn buckets_come_out_as_they_went_in() {
        let h = Histogram::default();
        assert!(h.buckets().is_empty());
        h.record(Duration::from_micros(10));
        h.record(Duration::from_micros(10));
        h.record(Duration::from_secs(1));
        let got = h.buckets();
        assert_eq!(got.iter().map(|b| b.1).collect::<Vec<_>>(), [2, 1]);
        assert!(got[0].0 >= 10_000 && got[0].0 < 11_400);
    }
}
