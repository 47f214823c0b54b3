//! The results of a load: rates, latencies, CPU time.

use crate::show::{count, latency};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// The latencies of one direction, to three digits.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        // One minute at most; longer requests count as one minute.
        Latencies(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that a histogram can have"))
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(latency.as_nanos().clamp(1, u64::MAX as u128) as u64);
    }
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
    /// CPU time of this process for each request, in microseconds.
    pub cpu_us_per_request: f64,
    /// CPU time of the server for each request, if its process was named.
    pub server_cpu_us_per_request: Option<f64>,
    /// Requests that failed. A worker ends with its first error.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
}

/// One direction's share. Times are nanoseconds.
#[derive(Debug, Serialize)]
pub struct Direction {
    pub requests: u64,
    pub mean_ns: f64,
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
            p50_ns: at(0.50),
            p90_ns: at(0.90),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: h.max(),
        })
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
        for (name, direction) in [("read", &self.read), ("write", &self.write)] {
            let Some(d) = direction else { continue };
            let _ = writeln!(
                out,
                "{name:<5} {} requests, latency mean {}, p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
                d.requests,
                latency(d.mean_ns as u64),
                latency(d.p50_ns),
                latency(d.p90_ns),
                latency(d.p99_ns),
                latency(d.p999_ns),
                latency(d.max_ns)
            );
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
