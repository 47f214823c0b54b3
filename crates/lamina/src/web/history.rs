//! The last hour, in samples of ten seconds: for the charts of the page.
//!
//! Memory is bounded: a sample of a device has 44 bytes, so 1,000 devices need 15 MiB. Exported devices come first, and
//! those beyond have no charts. A device that was not there at the time of a sample has a gap.

use crate::api::{Bucket, Device, Snapshot};
use crate::show::rates::{difference, quantile};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The time between samples.
pub const STEP: Duration = Duration::from_secs(10);
/// Samples of an hour.
const SAMPLES: usize = 360;
/// Samples of a minute.
const MINUTE: usize = 6;
/// Devices with charts, and one series for all volumes.
const SERIES_MAX: usize = 1000;
/// The series of all exported devices together. It is no name of a device.
pub const ALL: &str = "*";

/// Latencies of a sample: up to 1 µs (2¹⁰ ns), up to twice as much, and so on; the last takes the rest, above 4 s.
const BANDS: usize = 24;
/// The logarithm of the first one's upper bound in nanoseconds.
const FIRST_BAND: u32 = 10;

/// A device in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    /// Requests a second.
    iops: f32,
    read_bytes_per_second: f32,
    write_bytes_per_second: f32,
    /// Microseconds; not a number if there was no request.
    p99_us: f32,
    /// For each band the logarithm of its requests, from 0 (none): 8 for each factor of two.
    bands: [u8; BANDS],
}

/// The samples of an hour.
#[derive(Default)]
pub struct History {
    times_ms: VecDeque<u64>,
    /// By device. Each has as many samples as there are times.
    series: BTreeMap<String, VecDeque<Option<Sample>>>,
}

impl History {
    /// Adds what was done between two snapshots.
    pub fn add(&mut self, time_ms: u64, before: &Snapshot, now: &Snapshot) {
        let seconds = now.uptime_ns.saturating_sub(before.uptime_ns).max(1) as f64 / 1e9;
        let earlier: BTreeMap<&str, &Device> = before.devices().map(|d| (&d.name[..], d)).collect();
        let mut of: BTreeMap<&str, Work> = BTreeMap::new();
        let mut all = Work::default();
        let exported: std::collections::BTreeSet<&str> = now.exports().map(|e| &e.device[..]).collect();
        let (first, others): (Vec<_>, Vec<_>) = now.devices().partition(|d| exported.contains(&d.name[..]));
        for device in first.iter().chain(&others) {
            let work = Work::between(earlier.get(&device.name[..]).copied(), device);
            if exported.contains(&device.name[..]) {
                all.add(&work);
            }
            if of.len() < SERIES_MAX {
                of.insert(&device.name, work);
            }
        }
        of.insert(ALL, all);
        self.push(time_ms, of.into_iter().map(|(name, work)| (name, work.sample(seconds))));
    }

    fn push<'a>(&mut self, time_ms: u64, samples: impl Iterator<Item = (&'a str, Sample)>) {
        let earlier = self.times_ms.len();
        for (name, sample) in samples {
            if !self.series.contains_key(name) {
                self.series.insert(name.to_owned(), std::iter::repeat_n(None, earlier).collect());
            }
            if let Some(series) = self.series.get_mut(name) {
                series.push_back(Some(sample));
            }
        }
        self.times_ms.push_back(time_ms);
        let (length, over) = (self.times_ms.len(), self.times_ms.len().saturating_sub(SAMPLES));
        self.times_ms.drain(..over);
        self.series.retain(|_, series| {
            series.resize(length, None);
            series.drain(..over);
            series.iter().any(Option::is_some)
        });
        // Devices that are gone keep no room from those that are there.
        while self.series.len() > SERIES_MAX + 1 {
            let gone = self.series.iter().find(|(_, series)| series.back().is_some_and(Option::is_none));
            let Some(name) = gone.map(|(name, _)| name.clone()) else { break };
            self.series.remove(&name);
        }
    }

    /// The requests a second of a device in the last hour, a number for each minute, the newest last; `null` for a gap.
    pub fn minutes(&self, device: &str) -> Vec<Option<u64>> {
        let Some(series) = self.series.get(device) else { return Vec::new() };
        let samples: Vec<Option<Sample>> = series.iter().copied().collect();
        let mean = |minute: &[Option<Sample>]| {
            let known: Vec<f32> = minute.iter().flatten().map(|sample| sample.iops).collect();
            (!known.is_empty()).then(|| (known.iter().sum::<f32>() / known.len() as f32).round() as u64)
        };
        samples.rchunks(MINUTE).rev().map(mean).collect()
    }

    /// All about a device, as columns; they are empty if there is no sample of it.
    pub fn of(&self, device: &str) -> Value {
        let none = VecDeque::new();
        let series = self.series.get(device).unwrap_or(&none);
        let whole = |value: f32| if value.is_finite() { json!(value.round() as u64) } else { Value::Null };
        let column = |of: fn(&Sample) -> f32| -> Vec<Value> {
            series
                .iter()
                .map(|sample| sample.as_ref().map_or(Value::Null, |sample| whole(of(sample))))
                .collect()
        };
        let bands = |sample: &Option<Sample>| {
            let bands = sample.as_ref().map_or(&[][..], |sample| &sample.bands);
            bands.iter().map(|shade| format!("{shade:02x}")).collect::<String>()
        };
        json!({
            "times_ms": self.times_ms,
            "iops": column(|sample| sample.iops),
            "read": column(|sample| sample.read_bytes_per_second),
            "write": column(|sample| sample.write_bytes_per_second),
            "p99_us": column(|sample| sample.p99_us),
            "bands": series.iter().map(bands).collect::<Vec<_>>(),
            "first_band_ns": 1u64 << FIRST_BAND,
        })
    }
}

/// What a device has done in an interval.
#[derive(Default)]
struct Work {
    completed: u64,
    read: u64,
    written: u64,
    latency: BTreeMap<u64, u64>,
}

impl Work {
    fn between(before: Option<&Device>, now: &Device) -> Work {
        let mut work = Work::default();
        let none = crate::api::Operation::default();
        // A device that was not there before has done nothing that is known of this interval.
        let Some(before) = before else { return work };
        for (name, operation) in &now.operations {
            let earlier = before.operations.get(name).unwrap_or(&none);
            let bytes = operation.bytes.saturating_sub(earlier.bytes);
            work.completed += operation.completed.saturating_sub(earlier.completed);
            match &name[..] {
                "read" => work.read += bytes,
                "write" => work.written += bytes,
                _ => {}
            }
            for Bucket { up_to_ns, count } in difference(&earlier.latency, &operation.latency) {
                *work.latency.entry(up_to_ns).or_default() += count;
            }
        }
        work
    }

    fn add(&mut self, other: &Work) {
        self.completed += other.completed;
        self.read += other.read;
        self.written += other.written;
        for (up_to_ns, count) in &other.latency {
            *self.latency.entry(*up_to_ns).or_default() += count;
        }
    }

    fn sample(&self, seconds: f64) -> Sample {
        let buckets: Vec<Bucket> =
            self.latency.iter().map(|(&up_to_ns, &count)| Bucket { up_to_ns, count }).collect();
        let mut counts = [0u64; BANDS];
        buckets.iter().for_each(|bucket| counts[band(bucket.up_to_ns)] += bucket.count);
        Sample {
            iops: (self.completed as f64 / seconds) as f32,
            read_bytes_per_second: (self.read as f64 / seconds) as f32,
            write_bytes_per_second: (self.written as f64 / seconds) as f32,
            p99_us: quantile(&buckets, 0.99).map_or(f32::NAN, |ns| ns as f32 / 1e3),
            bands: counts.map(shade),
        }
    }
}

/// The band of a latency.
fn band(ns: u64) -> usize {
    ((u64::BITS - (ns >> FIRST_BAND).leading_zeros()) as usize).min(BANDS - 1)
}

/// So many requests, as a logarithm.
fn shade(count: u64) -> u8 {
    ((count as f64 + 1.0).log2() * 8.0).round().min(255.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::{later, snapshot};

    #[test]
    fn a_sample_is_the_activity_of_its_interval() {
        let mut history = History::default();
        history.add(5_000, &snapshot(), &later());
        let told = history.of("vm1");
        assert_eq!((&told["times_ms"], &told["iops"]), (&json!([5_000]), &json!([100])));
        assert_eq!(
            (&told["read"], &told["write"], &told["p99_us"]),
            (&json!([409_600]), &json!([0]), &json!([80]))
        );
        // 198 reads within 80 µs and 2 within 1 ms.
        let bands = told["bands"][0].as_str().expect("shades");
        let at = |band: usize| u8::from_str_radix(&bands[2 * band..2 * band + 2], 16).expect("a shade");
        assert_eq!(
            (bands.len(), at(band(79_999)), at(band(999_999)), at(0)),
            (2 * BANDS, shade(198), shade(2), 0)
        );
        // Only `vm1` is exported.
        assert_eq!(history.of(ALL)["iops"], json!([100]));
        assert_eq!(history.minutes("vm1"), [Some(100)]);
        assert!(history.of("none")["iops"] == json!([]) && history.minutes("none").is_empty());
    }

    #[test]
    fn bands_double() {
        let bands = [0, 1_023, 1_024, 2_047, 2_048, u64::MAX].map(band);
        assert_eq!(bands, [0, 0, 1, 1, 2, BANDS - 1]);
        assert_eq!([0, 1, 3, u64::MAX].map(shade), [0, 8, 16, 255]);
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut history = History::default();
        for n in 0..(SAMPLES + 50) {
            let name = if n < 20 { "early" } else { "late" };
            history.push(n as u64, [(name, Sample::default())].into_iter());
        }
        assert_eq!((history.times_ms.len(), history.times_ms[0]), (SAMPLES, 50));
        assert!(!history.series.contains_key("early"), "a device that has been gone for an hour is kept");
        assert_eq!(history.of("late")["iops"].as_array().map(Vec::len), Some(SAMPLES));
        assert_eq!(history.minutes("late").len(), SAMPLES / MINUTE);
    }

    #[test]
    fn names_that_come_and_go_take_bounded_memory() {
        let mut history = History::default();
        for n in 0..100 {
            let names: Vec<String> = (0..SERIES_MAX / 20).map(|device| format!("{n}-{device}")).collect();
            history.push(n, names.iter().map(|name| (&name[..], Sample::default())));
        }
        assert!(history.series.len() <= SERIES_MAX + 1, "{} series", history.series.len());
        assert!(history.series.contains_key("99-0"), "a device that is there has no samples");
        assert!(history.series.values().all(|series| series.len() == 100));
    }

    #[test]
    fn many_devices_have_a_limit() {
        let mut many = later();
        let device = many.hierarchies[0].devices[0].clone();
        let numbered = |n| Device { name: format!("d{n}"), ..device.clone() };
        many.hierarchies[0].devices = (0..2 * SERIES_MAX).map(numbered).collect();
        many.hierarchies[0].exports[0].device = format!("d{}", 2 * SERIES_MAX - 1);
        let mut history = History::default();
        history.add(1, &many, &many);
        assert_eq!(history.series.len(), SERIES_MAX + 1);
        assert!(
            history.series.contains_key(&many.hierarchies[0].exports[0].device),
            "exported devices come first"
        );
    }

    #[test]
    fn what_was_not_there_is_a_gap() {
        let mut history = History::default();
        history.push(1, [("a", Sample::default())].into_iter());
        history.push(2, [("b", Sample { iops: 3.0, ..Sample::default() })].into_iter());
        assert_eq!(history.of("a")["iops"], json!([0, null]));
        assert_eq!(history.of("b")["iops"], json!([null, 3]));
        assert_eq!(std::mem::size_of::<Option<Sample>>(), 44);
    }
}
