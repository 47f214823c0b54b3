//! The tree as text: a line for each device under those that stand on it, with its activity beside it.

use super::table::table;
use super::{DeviceRates, OperationRates, Rates, caches};
use crate::api::{Hierarchy, Job, Snapshot};
use crate::jobs;
use lamina_block::{Absent, Bytes};
use lamina_graph::{Row, rows};
use std::collections::BTreeMap;
use std::fmt::Write;

const TITLES: [&str; 13] = [
    "DEVICE", "KIND", "SIZE", "QUEUE", "READ/S", "MiB/S", "P50", "P99", "WRITE/S", "MiB/S", "P50", "P99",
    "ERRORS",
];
/// Columns that hold text, from the left; the others are numbers and stand to the right.
const TEXT_COLUMNS: usize = 2;

/// Draws all hierarchies of a snapshot.
pub fn draw(now: &Snapshot, rates: &Rates) -> String {
    let by_name: BTreeMap<&str, &DeviceRates> = rates.devices.iter().map(|d| (d.name.as_str(), d)).collect();
    let mut out = format!(
        "lamina {}, pid {}, up {}, {} resident, {:.1}% of a core\n",
        now.version,
        now.pid,
        duration(now.uptime_ns / 1_000_000_000),
        mebibytes(rates.resident_bytes),
        rates.cpu * 100.0
    );
    for hierarchy in &now.hierarchies {
        let _ = writeln!(out, "\n{} on core {}", hierarchy.file, hierarchy.core);
        out.push_str(&table(&TITLES, TEXT_COLUMNS, &lines(hierarchy, &by_name)));
        caches::draw(&mut out, hierarchy);
        outside(&mut out, hierarchy);
        exports(&mut out, hierarchy);
        let jobs: Vec<Job> = hierarchy.devices.iter().flat_map(|device| device.jobs.clone()).collect();
        if !jobs.is_empty() {
            out.push_str(&jobs::table(&jobs));
        }
    }
    out
}

/// Why devices are absent, which members the hierarchy goes on without, and what legs lack.
fn outside(out: &mut String, hierarchy: &Hierarchy) {
    for device in &hierarchy.devices {
        if let (Absent::KIND, Some(why)) = (device.kind.as_str(), device.info["absent"].as_str()) {
            let _ = writeln!(out, "{} is absent: {why}", device.name);
        }
        if let Some(last) = device.info["member"]["out_since"].as_u64() {
            let _ = writeln!(
                out,
                "{} is out since generation {last}: `lamina apply` takes it in again",
                device.name
            );
        }
        for leg in device.info["legs"].as_array().into_iter().flatten() {
            let (Some(name), Some(is)) = (leg["device"].as_str(), leg["is"].as_str()) else { continue };
            if is == "in sync" || is == "spare" {
                continue;
            }
            let lacks = match leg["lacks"].as_u64() {
                Some(lacks) => format!("lacks {}", Bytes(lacks)),
                None => "another one has its place".to_owned(),
            };
            let why = leg["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
            let _ = writeln!(out, "{name}, a leg of {}, is {is} and {lacks}{why}", device.name);
        }
    }
}

fn exports(out: &mut String, hierarchy: &Hierarchy) {
    for export in &hierarchy.exports {
        let mode = if export.read_only { ", read-only" } else { "" };
        for endpoint in &export.endpoints {
            let _ = writeln!(
                out,
                "export {} of {}{mode}: {} {}",
                export.name, export.device, endpoint.protocol, endpoint.address
            );
        }
    }
}

/// A line for each device under those that stand on it.
fn lines(hierarchy: &Hierarchy, rates: &BTreeMap<&str, &DeviceRates>) -> Vec<Vec<String>> {
    let devices = hierarchy.devices.iter().map(|d| (d.name.as_str(), d.over.as_slice()));
    let line = |row: Row| {
        let label = row.branches + &row.device;
        match rates.get(row.device.as_str()) {
            Some(device) if !row.again => cells(label, device),
            _ => vec![label, "see above".into()],
        }
    };
    rows(devices).into_iter().map(line).collect()
}

fn cells(label: String, device: &DeviceRates) -> Vec<String> {
    let none = OperationRates::default();
    let of = |name: &str| device.operations.get(name).unwrap_or(&none);
    let errors: u64 = device.operations.values().map(|o| o.errors).sum();
    let mut row =
        vec![label, device.kind.clone(), Bytes(device.size).to_string(), device.in_flight.to_string()];
    for operation in [of("read"), of("write")] {
        row.push(count(operation.iops));
        row.push(format!("{:.1}", operation.bytes_per_second / 1048576.0));
        row.extend([operation.p50_ns, operation.p99_ns].map(|ns| ns.map_or("-".into(), latency)));
    }
    row.push(errors.to_string());
    row
}

/// A number of requests in four characters or so: 0, 7.5, 812, 12.3k, 1.2M.
pub fn count(n: f64) -> String {
    match n {
        0.0 => "0".into(),
        n if n < 9.95 => format!("{n:.1}"),
        n if n < 9_999.5 => format!("{n:.0}"),
        n if n < 999_950.0 => format!("{:.1}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// Bytes in four characters and the unit, or so: 0B, 512B, 4.0KiB, 118MiB, 1.2TiB.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let digits = usize::from(unit > 0 && value < 9.95);
    format!("{value:.digits$}{}", UNITS[unit])
}

/// A latency with two to four digits: 640ns, 81us, 1.2ms, 15ms, 2.1s.
pub fn latency(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

/// The two largest units of a time: 3d4h, 2h5m, 7m12s, 9s.
pub fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1048576.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::{later, snapshot};

    #[test]
    fn the_tree_stands_on_its_sinks() {
        let text = draw(&later(), &Rates::between(&snapshot(), &later()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "lamina 0.1.0, pid 17, up 1h0m, 9.0 MiB resident, 0.0% of a core");
        assert_eq!(lines[2], "vm.toml on core 0");
        assert!(lines[3].starts_with("DEVICE  KIND"), "{text}");
        assert!(
            lines[4].starts_with("vm1     stripe  1GiB      3     100    0.4  80us  80us        0"),
            "{text}"
        );
        assert!(lines[5].starts_with("├─ a    file"), "{text}");
        assert!(lines[6].starts_with("└─ b    file"), "{text}");
        assert_eq!(lines[7], "export vm1 of vm1: nbd nbd+unix:///vm1?socket=/run/vm1");
    }

    fn second_over(snapshot: &mut Snapshot, name: &str, over: &[&str]) {
        let mut device = snapshot.hierarchies[0].devices[2].clone();
        device.name = name.into();
        device.over = over.iter().map(|s| s.to_string()).collect();
        snapshot.hierarchies[0].devices.push(device);
    }

    #[test]
    fn what_two_stand_on_is_drawn_once() {
        let mut shared = snapshot();
        second_over(&mut shared, "vm2", &["vm1", "a"]);
        let text = draw(&shared, &Rates::between(&snapshot(), &shared));
        assert!(text.contains("├─ vm1"), "{text}");
        assert!(text.contains("│  └─ b"), "{text}");
        assert!(!text.contains("see above"), "{text}");
        second_over(&mut shared, "vm3", &["vm2", "vm1"]);
        let again = draw(&shared, &Rates::between(&snapshot(), &shared));
        assert!(again.contains("└─ vm1      see above"), "{again}");
    }

    #[test]
    fn work_in_the_background_stands_below() {
        let mut busy = later();
        let job = Job {
            device: "a".into(),
            name: "move".into(),
            state: "running".into(),
            done: 1,
            total: 4,
            rate: 1 << 20,
            limit: None,
            seconds_left: Some(3),
            error: None,
        };
        busy.hierarchies[0].devices[0].jobs.push(job);
        let text = draw(&busy, &Rates::between(&snapshot(), &busy));
        assert!(text.ends_with("a       move  running  25.0%  4B  1.0 MiB/s    3s   none\n"), "{text}");
    }

    #[test]
    fn what_is_not_there_is_said() {
        let mut degraded = later();
        degraded.hierarchies[0].devices[0].kind = "absent".into();
        degraded.hierarchies[0].devices[0].info = serde_json::json!({ "absent": "there is no a.img" });
        degraded.hierarchies[0].devices[1].info = serde_json::json!({ "member": { "out_since": 7 } });
        let text = draw(&degraded, &Rates::between(&snapshot(), &degraded));
        assert!(text.contains("\na is absent: there is no a.img\nb is out since generation 7: "), "{text}");
        let legs = serde_json::json!([
            { "device": "a", "is": "in sync", "lacks": null, "why": null },
            { "device": "b", "is": "failed", "lacks": 4096, "why": "b: gone" },
            { "device": "c", "is": "failed", "lacks": null, "why": null },
            { "device": "d", "is": "spare", "lacks": null, "why": null },
        ]);
        degraded.hierarchies[0].devices[1].info = serde_json::json!({ "legs": legs });
        let text = draw(&degraded, &Rates::between(&snapshot(), &degraded));
        assert!(text.contains("\nb, a leg of b, is failed and lacks 4KiB: b: gone\n"), "{text}");
        assert!(text.contains("\nc, a leg of b, is failed and another one has its place\n"), "{text}");
        assert!(!text.contains("a, a leg") && !text.contains("d, a leg"), "{text}");
    }

    #[test]
    fn numbers_stay_short() {
        let counts = [0.0, 0.04, 7.5, 812.0, 12_345.0, 999_949.0, 1_234_567.0].map(count);
        assert_eq!(counts, ["0", "0.0", "7.5", "812", "12.3k", "999.9k", "1.2M"]);
        let sizes = [0, 512, 4096, 123_456_789, 1 << 30, (1 << 40) - 1, 5 << 50].map(size);
        assert_eq!(sizes, ["0B", "512B", "4.0KiB", "118MiB", "1.0GiB", "1.0TiB", "5120TiB"]);
        let times = [640, 1_000, 81_499, 1_234_000, 15_000_000, 2_100_000_000].map(latency);
        assert_eq!(times, ["640ns", "1.0us", "81us", "1.2ms", "15ms", "2.1s"]);
        let up = [9, 432, 7_500, 273_600].map(duration);
        assert_eq!(up, ["9s", "7m12s", "2h5m", "3d4h"]);
    }
}
