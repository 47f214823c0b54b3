//! How much later than their targets requests were complete, and whether that is little enough.

use lamina_block::Histogram;
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::Duration;

/// The most that the 99th percentile of the lateness may be. A run with more measures this machine, and not the model.
pub const LIMIT: Duration = Duration::from_micros(100);

/// So many requests are looked at before a run can be called invalid.
const ENOUGH: u64 = 100;

/// The lateness of requests.
#[derive(Default)]
pub struct Lateness {
    counts: Histogram,
    requests: Cell<u64>,
    max: Cell<Duration>,
}

impl Lateness {
    /// Counts a request.
    pub fn record(&self, lateness: Duration) {
        self.counts.record(lateness);
        self.requests.set(self.requests.get() + 1);
        self.max.set(self.max.get().max(lateness));
    }

    /// Requests counted.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// The lateness that so many hundredths of the requests do not exceed, to one eighth.
    fn percentile(&self, percent: u64) -> Duration {
        let wanted = (self.requests.get() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.counts.buckets().into_iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        let upper = bucket.map_or(Duration::ZERO, |(nanos, _)| Duration::from_nanos(nanos));
        upper.min(self.max.get())
    }

    /// Whether the 99th percentile is within the limit; `None` while there are too few requests.
    pub fn is_valid(&self) -> Option<bool> {
        (self.requests.get() >= ENOUGH).then(|| self.percentile(99) <= LIMIT)
    }

    /// The figures, in seconds.
    pub fn shown(&self) -> Value {
        let seconds = |percent| self.percentile(percent).as_secs_f64();
        json!({ "p50": seconds(50), "p99": seconds(99), "max": self.max.get().as_secs_f64() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_late_request_in_a_hundred_is_allowed() {
        let lateness = Lateness::default();
        (0..99).for_each(|_| lateness.record(Duration::from_micros(20)));
        assert_eq!(lateness.is_valid(), None);
        lateness.record(Duration::from_secs(1));
        assert_eq!(lateness.is_valid(), Some(true));
        let shown = lateness.shown();
        assert_eq!(shown["max"], 1.0);
        assert!((20e-6..23e-6).contains(&shown["p99"].as_f64().unwrap()), "{shown}");
        lateness.record(Duration::from_micros(101));
        assert_eq!(lateness.is_valid(), Some(false));
    }
}
