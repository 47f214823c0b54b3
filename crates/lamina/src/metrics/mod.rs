//! The daemon's counters in Prometheus' text format, version 0.0.4.
//!
//! Written by hand from a [`Snapshot`]: the counters live in the nodes, and a registry of a metrics library would be
//! a second copy of them to keep true. The format is that of the Prometheus documentation, "Exposition formats".
//!
//! Latency sums are not counted per request (that would cost every request in every layer); they are derived from
//! the histogram's buckets and are true to within a sixteenth.

pub(crate) mod figures;

use crate::api::{Device, Job, Operation, Snapshot};
use crate::files;
use std::fmt::Write;

/// Content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the published latency buckets: 64 ns times these powers of two, from 4 us to 17 s by factors of
/// four. The nodes' own buckets end exactly there.
const BOUND_SHIFTS: std::ops::RangeInclusive<u32> = 6..=28;

/// The whole exposition.
pub fn text(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    process(&mut out, snapshot);
    family(&mut out, "lamina_device_size_bytes", "gauge", "Size of the device.");
    for device in snapshot.devices() {
        let labels = labels(&[("device", &device.name), ("kind", &device.kind)]);
        sample(&mut out, "lamina_device_size_bytes", &labels, device.geometry.size);
    }
    family(&mut out, "lamina_device_in_flight", "gauge", "Requests under way in the device.");
    for device in snapshot.devices() {
        sample(
            &mut out,
            "lamina_device_in_flight",
            &labels(&[("device", &device.name)]),
            device.in_flight as u64,
        );
    }
    jobs(&mut out, snapshot);
    figures::draw(&mut out, snapshot, &files::kinds());
    counter(&mut out, snapshot, "lamina_device_requests_total", "Completed requests.", |o| o.completed);
    counter(&mut out, snapshot, "lamina_device_bytes_total", "Bytes of requests that completed well.", |o| {
        o.bytes
    });
    counter(&mut out, snapshot, "lamina_device_errors_total", "Requests that failed.", |o| o.errors);
    family(&mut out, "lamina_device_latency_seconds", "histogram", "Time that completed requests took.");
    each_operation(snapshot, |device, name, operation| {
        if operation.completed > 0 {
            histogram(&mut out, device, name, operation);
        }
    });
    out
}

fn jobs(out: &mut String, snapshot: &Snapshot) {
    let mut gauge = |name: &str, help: &str, of: fn(&Job) -> u64| {
        family(out, name, "gauge", help);
        for job in snapshot.devices().flat_map(|device| &device.jobs) {
            sample(out, name, &labels(&[("device", &job.device), ("job", &job.name)]), of(job));
        }
    };
    gauge("lamina_job_done_bytes", "Finished part of a device's background work.", |job| job.done);
    gauge("lamina_job_total_bytes", "Size of a device's background work.", |job| job.total);
    gauge("lamina_job_paused", "1 while the work is paused.", |job| u64::from(job.state == "paused"));
}

fn process(out: &mut String, snapshot: &Snapshot) {
    family(out, "lamina_build_info", "gauge", "Version of the daemon.");
    sample(out, "lamina_build_info", &labels(&[("version", &snapshot.version)]), 1);
    let seconds = |ns: u64| ns as f64 / 1e9;
    family(out, "lamina_uptime_seconds", "gauge", "Time since the daemon started.");
    sample(out, "lamina_uptime_seconds", "", seconds(snapshot.uptime_ns));
    family(out, "process_cpu_seconds_total", "counter", "CPU time used by the process.");
    sample(out, "process_cpu_seconds_total", "", seconds(snapshot.cpu_ns));
    family(out, "process_resident_memory_bytes", "gauge", "Resident memory of the process.");
    sample(out, "process_resident_memory_bytes", "", snapshot.resident_bytes);
}

/// The two lines that open a family of samples.
fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(out: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "{name}{labels} {value}");
}

fn counter(out: &mut String, snapshot: &Snapshot, name: &str, help: &str, of: fn(&Operation) -> u64) {
    family(out, name, "counter", help);
    each_operation(snapshot, |device, operation, counts| {
        sample(out, name, &labels(&[("device", &device.name), ("operation", operation)]), of(counts));
    });
}

fn each_operation<'a>(snapshot: &'a Snapshot, mut f: impl FnMut(&'a Device, &'a str, &'a Operation)) {
    for device in snapshot.devices() {
        for (name, operation) in &device.operations {
            f(device, name, operation);
        }
    }
}

fn histogram(out: &mut String, device: &Device, operation: &str, counts: &Operation) {
    const NAME: &str = "lamina_device_latency_seconds";
    let own = [("device", device.name.as_str()), ("operation", operation)];
    let mut cumulative = 0;
    let mut rest = counts.latency.iter().peekable();
    for shift in BOUND_SHIFTS.step_by(2) {
        let bound_ns = 64u64 << shift;
        while let Some(bucket) = rest.next_if(|b| b.up_to_ns < bound_ns) {
            cumulative += bucket.count;
        }
        let le = (bound_ns as f64 / 1e9).to_string();
        let labels = labels(&[own[0], own[1], ("le", &le)]);
        sample(out, &format!("{NAME}_bucket"), &labels, cumulative);
    }
    let total: u64 = counts.latency.iter().map(|b| b.count).sum();
    sample(out, &format!("{NAME}_bucket"), &labels(&[own[0], own[1], ("le", "+Inf")]), total);
    sample(out, &format!("{NAME}_sum"), &labels(&own), sum_seconds(counts));
    sample(out, &format!("{NAME}_count"), &labels(&own), total);
}

/// The sum of latencies, each taken as the middle of its bucket, which is an eighth wide.
fn sum_seconds(counts: &Operation) -> f64 {
    counts.latency.iter().map(|b| b.count as f64 * b.up_to_ns as f64 * (15.0 / 16.0)).sum::<f64>() / 1e9
}

/// `{name="value",...}` with values escaped.
fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let list: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Bucket;
    use crate::show::tests::snapshot;

    #[test]
    fn counts_add_up_and_bounds_rise() {
        let text = text(&snapshot());
        assert!(
            text.contains("lamina_device_requests_total{device=\"vm1\",operation=\"read\"} 100\n"),
            "{text}"
        );
        assert!(text.contains("lamina_device_bytes_total{device=\"a\",operation=\"write\"} 0\n"));
        let buckets: Vec<u64> = text
            .lines()
            .filter(|l| {
                l.starts_with("lamina_device_latency_seconds_bucket{device=\"vm1\",operation=\"read\"")
            })
            .map(|l| l.rsplit_once(' ').expect("a value").1.parse().expect("a number"))
            .collect();
        assert_eq!(buckets.len(), BOUND_SHIFTS.step_by(2).count() + 1);
        assert!(buckets.is_sorted());
        assert_eq!(buckets.last(), Some(&100));
        // Every sample belongs to a family that was announced.
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let name = line.split(['{', ' ']).next().expect("a name");
            let family = name.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count");
            assert!(text.contains(&format!("# TYPE {family} ")), "{line}");
        }
    }

    #[test]
    fn the_sum_lies_within_a_sixteenth() {
        let histogram = lamina_block::OpStats::default();
        let latencies = (1..2000u64).map(|i| i * 997);
        for ns in latencies.clone() {
            histogram.latency.record(std::time::Duration::from_nanos(ns));
        }
        let exact = latencies.sum::<u64>() as f64 / 1e9;
        let got = sum_seconds(&Operation::from(&histogram));
        assert!((got - exact).abs() < exact / 16.0, "{got} for {exact}");
        assert_eq!(
            sum_seconds(&Operation { latency: vec![Bucket { up_to_ns: 0, count: 3 }], ..Default::default() }),
            0.0
        );
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(labels(&[("a", "q\"b\\c\nd")]), "{a=\"q\\\"b\\\\c\\nd\"}");
    }
}
