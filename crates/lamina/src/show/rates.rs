//! The activity between two snapshots.

use crate::api::{Bucket, Device, Operation, Snapshot};
use serde::Serialize;
use std::collections::BTreeMap;

/// A daemon's activity over an interval.
#[derive(Clone, Debug, Serialize)]
pub struct Rates {
    /// Length of the interval in seconds.
    pub interval_s: f64,
    /// Cores kept busy: 1.0 is one core.
    pub cpu: f64,
    /// Resident memory at the end, in bytes.
    pub resident_bytes: u64,
    /// By device, in the order of the snapshot.
    pub devices: Vec<DeviceRates>,
}

/// A device's activity.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceRates {
    /// Its name.
    pub name: String,
    /// Kind of its layer.
    pub kind: String,
    /// The devices below.
    pub over: Vec<String>,
    /// Size in bytes at the end.
    pub size: u64,
    /// Requests under way at the end.
    pub in_flight: u32,
    /// By operation.
    pub operations: BTreeMap<String, OperationRates>,
}

/// One operation's activity.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OperationRates {
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Requests that failed, in the interval.
    pub errors: u64,
    /// Requests that failed since the device was opened.
    pub errors_total: u64,
    /// Half of the requests took at most this long, in nanoseconds; nothing if there was none.
    pub p50_ns: Option<u64>,
    /// 99 of 100 took at most this long.
    pub p99_ns: Option<u64>,
}

impl Rates {
    /// The activity from `before` to `now`. A device that was not there before (or a daemon that was started in
    /// between) counts from zero.
    pub fn between(before: &Snapshot, now: &Snapshot) -> Rates {
        let same = is_same(before, now);
        let from = |counter: u64| if same { counter } else { 0 };
        let interval_s = (now.uptime_ns - from(before.uptime_ns)).max(1) as f64 / 1e9;
        let earlier: BTreeMap<&str, &Device> =
            before.devices().filter(|_| same).map(|d| (d.name.as_str(), d)).collect();
        let devices = now.devices().map(|d| device(earlier.get(d.name.as_str()).copied(), d, interval_s));
        Rates {
            interval_s,
            cpu: now.cpu_ns.saturating_sub(from(before.cpu_ns)) as f64 / 1e9 / interval_s,
            resident_bytes: now.resident_bytes,
            devices: devices.collect(),
        }
    }
}

/// Whether two snapshots are of the same daemon, in this order: its counters go on.
pub(crate) fn is_same(before: &Snapshot, now: &Snapshot) -> bool {
    before.pid == now.pid && before.uptime_ns <= now.uptime_ns
}

/// The latencies of all requests of a device in an interval, of whatever operation; the buckets rise.
pub(crate) fn latencies_between(before: Option<&Device>, now: &Device) -> Vec<Bucket> {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for (name, operation) in &now.operations {
        let earlier = before.and_then(|device| device.operations.get(name));
        for added in difference(earlier.map_or(&[], |operation| &operation.latency), &operation.latency) {
            *sums.entry(added.up_to_ns).or_default() += added.count;
        }
    }
    sums.into_iter().map(|(up_to_ns, count)| Bucket { up_to_ns, count }).collect()
}

fn device(before: Option<&Device>, now: &Device, interval_s: f64) -> DeviceRates {
    let none = Operation::default();
    let rates = now.operations.iter().map(|(name, operation)| {
        let earlier = before.and_then(|d| d.operations.get(name)).unwrap_or(&none);
        (name.clone(), operation_rates(earlier, operation, interval_s))
    });
    DeviceRates {
        name: now.name.clone(),
        kind: now.kind.clone(),
        over: now.over.clone(),
        size: now.geometry.size,
        in_flight: now.in_flight,
        operations: rates.collect(),
    }
}

fn operation_rates(before: &Operation, now: &Operation, interval_s: f64) -> OperationRates {
    let latency = difference(&before.latency, &now.latency);
    OperationRates {
        iops: now.completed.saturating_sub(before.completed) as f64 / interval_s,
        bytes_per_second: now.bytes.saturating_sub(before.bytes) as f64 / interval_s,
        errors: now.errors.saturating_sub(before.errors),
        errors_total: now.errors,
        p50_ns: quantile(&latency, 0.50),
        p99_ns: quantile(&latency, 0.99),
    }
}

/// The additions to a histogram.
pub(crate) fn difference(before: &[Bucket], now: &[Bucket]) -> Vec<Bucket> {
    let earlier: BTreeMap<u64, u64> = before.iter().map(|b| (b.up_to_ns, b.count)).collect();
    let added = |b: &Bucket| Bucket {
        up_to_ns: b.up_to_ns,
        count: b.count.saturating_sub(earlier.get(&b.up_to_ns).copied().unwrap_or(0)),
    };
    now.iter().map(added).filter(|b| b.count > 0).collect()
}

/// The upper bound of the bucket that the share `q` of requests is within.
pub(crate) fn quantile(buckets: &[Bucket], q: f64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|b| b.count).sum();
    let wanted = ((total as f64 * q).ceil() as u64).max(1);
    let mut seen = 0;
    buckets
        .iter()
        .find(|b| {
            seen += b.count;
            seen >= wanted
        })
        .map(|b| b.up_to_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::{later, snapshot};

    #[test]
    fn rates_are_of_the_interval_only() {
        let rates = Rates::between(&snapshot(), &later());
        assert_eq!(rates.interval_s, 2.0);
        let vm1 = &rates.devices[2];
        assert_eq!(vm1.name, "vm1");
        let read = &vm1.operations["read"];
        assert_eq!((read.iops, read.bytes_per_second), (100.0, 409_600.0));
        assert_eq!((read.p50_ns, read.p99_ns), (Some(79_999), Some(79_999)));
        assert_eq!(vm1.operations["write"], OperationRates::default());
    }

    #[test]
    fn a_daemon_started_anew_counts_from_zero() {
        let (before, mut now) = (later(), snapshot());
        now.pid += 1;
        let rates = Rates::between(&before, &now);
        assert_eq!(rates.interval_s, 3600.0);
        assert_eq!(rates.devices[2].operations["read"].iops, 100.0 / 3600.0);
    }

    #[test]
    fn quantiles_are_the_bucket_that_holds_them() {
        let bucket = |up_to_ns, count| Bucket { up_to_ns, count };
        assert_eq!(quantile(&[], 0.5), None);
        let buckets = [bucket(10, 1), bucket(20, 98), bucket(30, 1)];
        let got = [0.0, 0.01, 0.02, 0.5, 0.99, 0.999, 1.0].map(|q| quantile(&buckets, q).expect("not empty"));
        assert_eq!(got, [10, 10, 20, 20, 20, 30, 30]);
    }
}
