//! The tree as text: a line for each device under those that stand on it, with its activity beside it.

use super::table::table;
use super::{DeviceRates, OperationRates, Rates, figures};
use crate::api::{Client, Hierarchy, Job, Snapshot};
use crate::files;
use crate::jobs;
use lamina_block::{Absent, Bytes};
use lamina_graph::{Row, rows};
use std::collections::BTreeMap;
use std::fmt::Write;

const TITLES: [&str; 14] = [
    "DEVICE", "KIND", "SIZE", "QUEUE", "READ/S", "MiB/S", "P50", "P99", "WRITE/S", "MiB/S", "P50", "P99",
    "ERRORS", "NEW",
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
        Bytes(rates.resident_bytes).rounded(),
        rates.cpu * 100.0
    );
    let kinds = files::kinds();
    for hierarchy in &now.hierarchies {
        let _ = writeln!(out, "\n{} on core {}", hierarchy.file, hierarchy.core);
        out.push_str(&table(&TITLES, TEXT_COLUMNS, &lines(hierarchy, &by_name)));
        figures::draw(&mut out, hierarchy, &kinds);
        outside(hierarchy).iter().for_each(|(_, sentence)| out.extend([sentence, "\n"]));
        exports(&mut out, hierarchy);
        let jobs: Vec<Job> = hierarchy.devices.iter().flat_map(|device| device.jobs.clone()).collect();
        if !jobs.is_empty() {
            out.push_str(&jobs::table(&jobs));
        }
    }
    out
}

/// The reasons for absent devices, the evicted members, and the out-of-sync bytes of legs: each sentence with the name
/// of its device.
pub fn outside(hierarchy: &Hierarchy) -> Vec<(&str, String)> {
    let mut said = Vec::new();
    for device in &hierarchy.devices {
        let name = &device.name[..];
        if let (Absent::KIND, Some(why)) = (device.kind.as_str(), device.info["absent"].as_str()) {
            said.push((name, format!("{name} is absent: {why}")));
        }
        if let Some(last) = device.info["member"]["evicted_after"].as_u64() {
            let sentence =
                format!("{name} was evicted after generation {last}: `lamina apply` takes it in again");
            said.push((name, sentence));
        }
        for leg in device.info["legs"].as_array().into_iter().flatten() {
            let (Some(of), Some(is)) = (leg["device"].as_str(), leg["is"].as_str()) else { continue };
            if is == "in sync" || is == "spare" {
                continue;
            }
            let state = match leg["out_of_sync_bytes"].as_u64() {
                Some(bytes) => format!("has {} out of sync", Bytes(bytes).rounded()),
                None => "replaced by another one".to_owned(),
            };
            let why = leg["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
            said.push((name, format!("{of}, a leg of {name}, is {is} and {state}{why}")));
        }
    }
    said
}

/// Clients of an export that are listed, at most: each of the connections of a TCP client has a name.
const CLIENTS: usize = 4;

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
        for Client { name, connections } in export.clients.iter().take(CLIENTS) {
            let times = if *connections > 1 { format!(", {connections} connections") } else { String::new() };
            let _ = writeln!(out, "  client: {name}{times}");
        }
        let more = export.clients.len().saturating_sub(CLIENTS);
        if more > 0 {
            let _ = writeln!(out, "  and {more} more");
        }
    }
}

/// A line for each device under those that stand on it. Errors are those since the device was opened, and how many of
/// them are new.
fn lines(hierarchy: &Hierarchy, rates: &BTreeMap<&str, &DeviceRates>) -> Vec<Vec<String>> {
    let kinds = files::kinds();
    let is_view = |kind: &str| kinds.iter().any(|k| k.name == kind && k.is_view());
    let devices = hierarchy.devices.iter().map(|d| (d.name.as_str(), d.over.as_slice(), is_view(&d.kind)));
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
    let all: u64 = device.operations.values().map(|o| o.errors_total).sum();
    let mut row =
        vec![label, device.kind.clone(), Bytes(device.size).rounded(), device.in_flight.to_string()];
    for operation in [of("read"), of("write")] {
        row.push(count(operation.iops));
        row.push(count(operation.bytes_per_second / 1048576.0));
        row.extend([operation.p50_ns, operation.p99_ns].map(|ns| ns.map_or("-".into(), latency)));
    }
    row.extend([all, errors].map(|errors| count(errors as f64)));
    row
}

/// A number in five characters or so: 0, 7.5, 812, 12.3k, 1.2M. Whole parts stay whole.
pub fn count(n: f64) -> String {
    match n {
        0.0 => "0".into(),
        n if n < 9.95 && n.fract() == 0.0 => format!("{n:.0}"),
        n if n < 9.95 => format!("{n:.1}"),
        n if n < 9_999.5 => format!("{n:.0}"),
        n if n < 999_950.0 => format!("{:.1}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::{later, snapshot};

    #[test]
    fn the_tree_stands_on_its_sinks() {
        let text = draw(&later(), &Rates::between(&snapshot(), &later()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "lamina 0.1.0, pid 17, up 1h0m, 9MiB resident, 0.0% of a core");
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

    #[test]
    fn clients_stand_below_their_export() {
        let mut now = later();
        let client = |name: &str, connections| Client { name: name.into(), connections };
        let exports = &mut now.hierarchies[0].exports;
        exports[0].clients =
            vec![client("unix:/run/vm1 (process 4242 (nbdcopy))", 4), client("tcp:[::1]:5", 1)];
        let told = |now: &Snapshot| {
            let text = draw(now, &Rates::between(&snapshot(), now));
            text.lines().skip(8).map(str::to_owned).collect::<Vec<_>>()
        };
        let lines =
            ["  client: unix:/run/vm1 (process 4242 (nbdcopy)), 4 connections", "  client: tcp:[::1]:5"];
        assert_eq!(told(&now)[..2], lines);
        let more = (0..6).map(|port| client(&format!("tcp:[::1]:{port}"), 1));
        now.hierarchies[0].exports[0].clients = more.collect();
        assert_eq!(told(&now)[4], "  and 2 more");
    }

    /// Long names, deep, with figures that are as wide as they get.
    #[test]
    fn a_hundred_columns_are_enough() {
        let mut wide = later();
        let mut below: Vec<String> = Vec::new();
        for (depth, kind) in ["file", "fingerprint", "accelerate", "integrity"].iter().enumerate() {
            let mut device = wide.hierarchies[0].devices[0].clone();
            device.name = format!("datacentre-7-rack-{depth}-volume-of-the-mail-server");
            (device.kind, device.over) = (kind.to_string(), below.clone());
            device.geometry.size = 1277 << 30;
            device.in_flight = 1024;
            for operation in device.operations.values_mut() {
                *operation = crate::api::Operation {
                    completed: 2_469_000,
                    bytes: 24_690 << 20,
                    errors: 123_456,
                    latency: vec![crate::api::Bucket { up_to_ns: 999_000, count: 2_469_000 }],
                };
            }
            below = vec![device.name.clone()];
            wide.hierarchies[0].devices.push(device);
        }
        let text = draw(&wide, &Rates::between(&snapshot(), &wide));
        for line in text.lines() {
            assert!(line.chars().count() <= super::super::table::WIDTH, "{}: {line}", line.chars().count());
        }
        assert!(text.contains("1.25TiB") && text.contains("…"), "{text}");
    }

    #[test]
    fn errors_are_told_since_the_start_and_those_that_are_new() {
        let (mut before, mut now) = (snapshot(), later());
        for (snapshot, errors) in [(&mut before, 5), (&mut now, 7)] {
            snapshot.hierarchies[0].devices[0].operations.get_mut("read").expect("reads").errors = errors;
        }
        let text = draw(&now, &Rates::between(&before, &now));
        let line = text.lines().find(|line| line.contains("├─ a")).expect("a line");
        assert_eq!(line.split_whitespace().rev().take(2).collect::<Vec<_>>(), ["2", "7"], "{text}");
        let quiet = draw(&now, &Rates::between(&now, &now));
        let line = quiet.lines().find(|line| line.contains("├─ a")).expect("a line");
        assert_eq!(line.split_whitespace().rev().take(2).collect::<Vec<_>>(), ["0", "7"], "{quiet}");
    }

    #[test]
    fn a_volume_stands_above_its_views() {
        let mut shared = snapshot();
        for view in ["then", "yesterday"] {
            second_over(&mut shared, view, &["vm1"]);
            shared.hierarchies[0].devices.last_mut().expect("a view").kind = "view".into();
        }
        let text = draw(&shared, &Rates::between(&snapshot(), &shared));
        let first = |name: &str| text.lines().position(|line| line.starts_with(name)).unwrap_or(99);
        assert!(first("vm1 ") < first("then ") && first("then ") < first("yesterday "), "{text}");
        assert_eq!(text.matches("└─ vm1  ").count(), 2, "{text}");
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
        assert!(
            again.lines().any(|line| line.split_whitespace().eq(["└─", "vm1", "see", "above"])),
            "{again}"
        );
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
        degraded.hierarchies[0].devices[1].info = serde_json::json!({ "member": { "evicted_after": 7 } });
        let text = draw(&degraded, &Rates::between(&snapshot(), &degraded));
        assert!(
            text.contains("\na is absent: there is no a.img\nb was evicted after generation 7: "),
            "{text}"
        );
        let legs = serde_json::json!([
            { "device": "a", "is": "in sync", "out_of_sync_bytes": null, "why": null },
            { "device": "b", "is": "failed", "out_of_sync_bytes": 4096, "why": "b: gone" },
            { "device": "c", "is": "failed", "out_of_sync_bytes": null, "why": null },
            { "device": "d", "is": "spare", "out_of_sync_bytes": null, "why": null },
        ]);
        degraded.hierarchies[0].devices[1].info = serde_json::json!({ "legs": legs });
        let text = draw(&degraded, &Rates::between(&snapshot(), &degraded));
        assert!(text.contains("\nb, a leg of b, is failed and has 4KiB out of sync: b: gone\n"), "{text}");
        assert!(text.contains("\nc, a leg of b, is failed and replaced by another one\n"), "{text}");
        assert!(!text.contains("a, a leg") && !text.contains("d, a leg"), "{text}");
    }

    #[test]
    fn numbers_stay_short() {
        let counts = [0.0, 0.04, 7.5, 812.0, 12_345.0, 999_949.0, 1_234_567.0].map(count);
        assert_eq!(counts, ["0", "0.0", "7.5", "812", "12.3k", "999.9k", "1.2M"]);
        let times = [640, 1_000, 81_499, 1_234_000, 15_000_000, 2_100_000_000].map(latency);
        assert_eq!(times, ["640ns", "1.0us", "81us", "1.2ms", "15ms", "2.1s"]);
        let up = [9, 432, 7_500, 273_600].map(duration);
        assert_eq!(up, ["9s", "7m12s", "2h5m", "3d4h"]);
    }
}
