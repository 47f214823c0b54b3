//! The last minutes of each device: a bounded number of samples, one for each tick.

use crate::api::{Bucket, Snapshot};
use crate::show::Rates;
use crate::show::rates::{is_same, latencies_between, quantile};
use std::collections::{BTreeMap, VecDeque};

/// Samples of a device that are kept: at a second each, three minutes.
pub const SAMPLES: usize = 180;
/// Powers of two of nanoseconds that latencies are counted in: up to a minute.
pub const LATENCIES: usize = 36;
/// From nothing to full.
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The activity of a device between two ticks.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Requests per second, of all operations.
    pub iops: f64,
    /// Bytes per second.
    pub bytes: f64,
    /// 99 of 100 requests took at most this long, in nanoseconds; nothing if there was none.
    pub p99_ns: Option<u64>,
    /// Requests by latency: number `n` is of those that took less than 2^n nanoseconds, and not less than half of it.
    pub latencies: [u32; LATENCIES],
}

/// The last samples of all devices.
#[derive(Default)]
pub struct History {
    devices: BTreeMap<String, VecDeque<Sample>>,
}

impl History {
    /// Adds what has happened between two snapshots. Devices that are gone are forgotten.
    pub fn add(&mut self, before: &Snapshot, now: &Snapshot, rates: &Rates) {
        self.devices.retain(|name, _| now.devices().any(|device| device.name == *name));
        let is_same = is_same(before, now);
        let earlier: BTreeMap<_, _> =
            before.devices().filter(|_| is_same).map(|device| (device.name.as_str(), device)).collect();
        // The rates are in the order of the snapshot.
        for (device, rates) in now.devices().zip(&rates.devices) {
            let buckets = latencies_between(earlier.get(device.name.as_str()).copied(), device);
            let sample = Sample {
                iops: rates.operations.values().map(|operation| operation.iops).sum(),
                bytes: rates.operations.values().map(|operation| operation.bytes_per_second).sum(),
                p99_ns: quantile(&buckets, 0.99),
                latencies: by_power(&buckets),
            };
            let samples = self.devices.entry(device.name.clone()).or_default();
            samples.truncate(SAMPLES - 1);
            samples.push_front(sample);
        }
    }

    /// The samples of a device, the newest first.
    pub fn of(&self, device: &str) -> impl Iterator<Item = &Sample> {
        self.devices.get(device).into_iter().flatten()
    }

    /// The newest sample of a device.
    pub fn last(&self, device: &str) -> Option<&Sample> {
        self.of(device).next()
    }

    /// The latencies of all samples of a device.
    pub fn latencies(&self, device: &str) -> [u64; LATENCIES] {
        let mut sums = [0; LATENCIES];
        for sample in self.of(device) {
            sums.iter_mut().zip(sample.latencies).for_each(|(sum, count)| *sum += u64::from(count));
        }
        sums
    }
}

fn by_power(buckets: &[Bucket]) -> [u32; LATENCIES] {
    let mut counts = [0u32; LATENCIES];
    for bucket in buckets {
        let power = (u64::BITS - bucket.up_to_ns.leading_zeros()) as usize;
        let count = &mut counts[power.min(LATENCIES - 1)];
        *count = count.saturating_add(u32::try_from(bucket.count).unwrap_or(u32::MAX));
    }
    counts
}

/// Values as bars of one line, the newest on the right, the largest one full; nothing is a space. Of several values in
/// a column the largest counts.
pub fn sparkline(newest_first: &[f64], width: usize, each: usize) -> String {
    let columns: Vec<f64> = newest_first
        .chunks(each.max(1))
        .take(width)
        .map(|values| values.iter().copied().fold(0.0, f64::max))
        .collect();
    let most = columns.iter().copied().fold(0.0, f64::max);
    let level = |value: &f64| match *value > 0.0 && most > 0.0 {
        // Little is more than nothing.
        true => LEVELS[((value / most * 8.0).round() as usize).clamp(1, 8)],
        false => LEVELS[0],
    };
    let bars: String = columns.iter().rev().map(level).collect();
    format!("{bars:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::{later, snapshot};

    #[test]
    fn a_sample_has_the_activity_of_all_operations() {
        let mut history = History::default();
        let rates = Rates::between(&snapshot(), &later());
        history.add(&snapshot(), &later(), &rates);
        let sample = history.last("vm1").expect("a sample");
        assert_eq!((sample.iops, sample.bytes, sample.p99_ns), (100.0, 409_600.0, Some(79_999)));
        // 198 between 64 and 128 us, 2 between half a millisecond and one.
        assert_eq!((sample.latencies[17], sample.latencies[20]), (198, 2));
        assert_eq!(sample.latencies.iter().sum::<u32>(), 200);
        let quiet = Rates::between(&later(), &later());
        history.add(&later(), &later(), &quiet);
        assert_eq!(history.last("vm1").map(|sample| (sample.iops, sample.p99_ns)), Some((0.0, None)));
        assert_eq!(history.latencies("vm1")[17], 198);
    }

    #[test]
    fn memory_is_bounded_and_what_is_gone_is_forgotten() {
        let mut history = History::default();
        let rates = Rates::between(&snapshot(), &later());
        (0..SAMPLES + 7).for_each(|_| history.add(&snapshot(), &later(), &rates));
        assert_eq!(history.of("vm1").count(), SAMPLES);
        let mut fewer = later();
        fewer.hierarchies[0].devices.remove(0);
        history.add(&later(), &fewer, &Rates::between(&later(), &fewer));
        assert_eq!((history.of("a").count(), history.of("b").count()), (0, SAMPLES));
    }

    #[test]
    fn a_daemon_started_anew_has_no_earlier_requests() {
        let mut now = snapshot();
        now.pid += 1;
        let mut history = History::default();
        history.add(&later(), &now, &Rates::between(&later(), &now));
        assert_eq!(history.latencies("vm1").iter().sum::<u64>(), 100);
    }

    #[test]
    fn bars_end_with_the_newest_value() {
        assert_eq!(sparkline(&[8.0, 4.0, 0.0, 1.0], 6, 1), "  ▁ ▄█");
        assert_eq!(sparkline(&[8.0, 4.0, 0.0, 1.0], 2, 1), "▄█");
        assert_eq!(sparkline(&[1.0, 8.0, 0.0, 0.001], 3, 2), " ▁█");
        assert_eq!(sparkline(&[0.0, 0.0], 3, 1), "   ");
        assert_eq!(sparkline(&[], 2, 1), "  ");
    }

    #[test]
    fn the_longest_latencies_have_a_place() {
        let bucket = |up_to_ns| Bucket { up_to_ns, count: u64::MAX };
        let counts = by_power(&[bucket(0), bucket(1), bucket(u64::MAX), bucket(u64::MAX)]);
        assert_eq!((counts[0], counts[1], counts[LATENCIES - 1]), (u32::MAX, u32::MAX, u32::MAX));
    }
}
