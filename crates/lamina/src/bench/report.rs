//! The results of a load: rates, latencies, CPU time.

use std::collections::BTreeMap;
use crate::show::{count, latency};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Nanoseconds of a day; longer requests count as a day.
const LONGEST: u64 = 86_400_000_000_000;

/// The latencies of one direction, to three digits.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds that a histogram can have"))
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(latency.as_nanos().clamp(1, u64::MAX as u128) as u64);
    }
}

/// The latencies of a workload.
#[derive(Default)]
pub struct ByOperation {
    pub all: Latencies,
    pub read: Latencies,
    pub write: Latencies,
    pub flush: Latencies,
    pub discard: Latencies,
}

/// The result of a load.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Requests that were complete in the measured time.
    pub requests: u64,
    /// The measured time in seconds.
    pub seconds: f64,
    /// The time is that of a simulated world.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub virtual_time: bool,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Reads, if there were any.
    pub read: Option<Direction>,
    /// Writes, if there were any.
    pub write: Option<Direction>,
    /// Of a workload: the rest.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub workload: Option<OfWorkload>,
    /// CPU time of this process for each request, in microseconds.
    pub cpu_us_per_request: f64,
    /// CPU time of the server for each request, if its process was named.
    pub server_cpu_us_per_request: Option<f64>,
    /// Requests that failed. A worker ends with its first error.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// In virtual time: what the loaded devices show at the end, by their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, serde_json::Value>,
}

/// What only a workload has.
#[derive(Debug, Serialize)]
pub struct OfWorkload {
    /// Sectors of 512 bytes that were read or written in a millisecond.
    pub sectors_per_ms: f64,
    /// All requests together.
    pub all: Option<Direction>,
    /// Flushes, if there were any.
    pub flush: Option<Direction>,
    /// Discards, if there were any.
    pub discard: Option<Direction>,
    /// How late clients woke up after their sleeps: the 99th of 100.
    pub late_p99_ns: u64,
}

/// One direction's share. Times are nanoseconds.
#[derive(Debug, Serialize)]
pub struct Direction {
    pub requests: u64,
    pub mean_ns: f64,
    /// In squared milliseconds.
    pub variance_ms2: f64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    #[serde(rename = "p99.9_ns")]
    pub p999_ns: u64,
    pub max_ns: u64,
}

impl Direction {
    fn new(latencies: &Latencies) -> Option<Direction> {
        let h = &latencies.0;
        let at = |q: f64| h.value_at_quantile(q);
        (!h.is_empty()).then(|| Direction {
            requests: h.len(),
            mean_ns: h.mean(),
            variance_ms2: (h.stdev() / 1e6).powi(2),
            p50_ns: at(0.50),
            p90_ns: at(0.90),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: h.max(),
        })
    }
}

impl Direction {
    /// A line for people.
    fn line(&self, name: &str, out: &mut String) {
        let _ = writeln!(
            out,
            "{name:<5} {} requests, latency mean {}, p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
            self.requests,
            latency(self.mean_ns as u64),
            latency(self.p50_ns),
            latency(self.p90_ns),
            latency(self.p99_ns),
            latency(self.p999_ns),
            latency(self.max_ns)
        );
    }
}

impl Report {
    /// Rates over `seconds` of requests of `block` bytes.
    pub fn new(reads: &Latencies, writes: &Latencies, block: u64, seconds: f64) -> Report {
        let requests = reads.0.len() + writes.0.len();
        let iops = if seconds > 0.0 { requests as f64 / seconds } else { 0.0 };
        Report {
            requests,
            seconds,
            iops,
            bytes_per_second: iops * block as f64,
            read: Direction::new(reads),
            write: Direction::new(writes),
            ..Report::default()
        }
    }

    /// Rates over `seconds` of the requests of a workload, which read and wrote `bytes` bytes.
    pub fn of_workload(seen: &ByOperation, late: &Latencies, bytes: u64, seconds: f64) -> Report {
        let bytes_per_second = if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 };
        let workload = OfWorkload {
            sectors_per_ms: bytes_per_second / 512.0 / 1e3,
            all: Direction::new(&seen.all),
            flush: Direction::new(&seen.flush),
            discard: Direction::new(&seen.discard),
            late_p99_ns: late.0.value_at_quantile(0.99),
        };
        let requests = seen.all.0.len();
        Report {
            requests,
            iops: if seconds > 0.0 { requests as f64 / seconds } else { 0.0 },
            bytes_per_second,
            workload: Some(workload),
            ..Report::new(&seen.read, &seen.write, 0, seconds)
        }
    }

    /// Adds the CPU time used, in nanoseconds.
    pub fn cpu(&mut self, own_ns: u64, server_ns: Option<u64>) {
        let us_per_request = 1.0 / 1e3 / self.requests.max(1) as f64;
        self.cpu_us_per_request = own_ns as f64 * us_per_request;
        self.server_cpu_us_per_request = server_ns.map(|ns| ns as f64 * us_per_request);
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = format!(
            "{} requests in {:.2} s{}: {} IOPS, {:.1} MiB/s\n",
            self.requests,
            self.seconds,
            if self.virtual_time { " of virtual time" } else { "" },
            count(self.iops),
            self.bytes_per_second / 1048576.0
        );
        let rest = self.workload.as_ref();
        if let Some(OfWorkload { sectors_per_ms, all: Some(all), late_p99_ns, .. }) = rest {
            let _ = writeln!(
                out,
                "all   {sectors_per_ms:.2} sectors/ms, response mean {:.2} ms, variance {:.2} ms2, max {}; \
                 clients woke up late by {} (p99)",
                all.mean_ns / 1e6,
                all.variance_ms2,
                latency(all.max_ns),
                latency(*late_p99_ns)
            );
        }
        let (flush, discard) = rest.map_or((&None, &None), |rest| (&rest.flush, &rest.discard));
        let directions =
            [("read", &self.read), ("write", &self.write), ("flush", flush), ("discard", discard)];
        for (name, direction) in directions {
            direction.iter().for_each(|direction| direction.line(name, &mut out));
        }
        let _ = write!(out, "CPU   {:.2} us per request here", self.cpu_us_per_request);
        if let Some(us) = self.server_cpu_us_per_request {
            let _ = write!(out, ", {us:.2} us in the server");
        }
        out.push('\n');
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_hours_are_told_apart() {
        let mut reads = Latencies::default();
        [2, 5].iter().for_each(|hours| reads.record(Duration::from_secs(hours * 3600)));
        let report = Report::new(&reads, &Latencies::default(), 4096, 1.0);
        let longest = report.read.expect("reads").max_ns;
        assert!(longest.abs_diff(18_000_000_000_000) < 18_000_000_000, "{longest}");
    }

    #[test]
    fn rates_and_quantiles() {
        let mut reads = Latencies::default();
        for us in 1..=1000 {
            reads.record(Duration::from_micros(us));
        }
        let mut report = Report::new(&reads, &Latencies::default(), 4096, 2.0);
        report.cpu(5_000_000, Some(1_000_000));
        assert_eq!((report.iops, report.bytes_per_second), (500.0, 2_048_000.0));
        let read = report.read.as_ref().expect("reads");
        let close = |got: u64, us: u64| got.abs_diff(us * 1000) <= us;
        assert!(close(read.p50_ns, 500) && close(read.p99_ns, 990) && close(read.p999_ns, 999), "{read:?}");
        assert!(report.write.is_none());
        let text = report.text();
        assert!(
            text.starts_with("1000 requests in 2.00 s: 500 IOPS, 2.0 MiB/s\nread  1000 requests"),
            "{text}"
        );
        assert!(text.ends_with("CPU   5.00 us per request here, 1.00 us in the server\n"), "{text}");
    }
}
