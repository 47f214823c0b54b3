//! Caches: what volumes have on a flash, how far their stores are behind, and what keeps them from catching up.

use super::table::table;
use super::tree::duration;
use crate::api::{Device, Hierarchy};
use lamina_block::Bytes;
use serde_json::Value;
use std::fmt::Write;

const VOLUMES: [&str; 11] = [
    "CACHE",
    "POLICY",
    "CACHED",
    "SHARE",
    "HITS",
    "OVERALL",
    "DIRTY",
    "OLDEST",
    "CLEAN IN",
    "PRESSURE",
    "RECOVERY POINT",
];
const FLASHES: [&str; 10] =
    ["FLASH", "SIZE", "FREE", "SMALL", "MAIN", "OPEN", "CACHED", "DIRTY", "WRITTEN", "STALLS"];

/// A line for each volume and each flash, and below them what is wrong.
pub fn draw(out: &mut String, hierarchy: &Hierarchy) {
    let of = |kind: &'static str| hierarchy.devices.iter().filter(move |device| device.kind == kind);
    let rows =
        |kind: &'static str, cells: fn(&Device) -> Vec<String>| of(kind).map(cells).collect::<Vec<_>>();
    let (volumes, flashes) = (rows("accelerate", volume), rows("flash", flash));
    if !volumes.is_empty() {
        out.push_str(&table(&VOLUMES, 2, &volumes));
    }
    if !flashes.is_empty() {
        out.push_str(&table(&FLASHES, 1, &flashes));
    }
    of("accelerate").for_each(|device| volume_trouble(out, device));
    of("flash").for_each(|device| flash_trouble(out, device));
}

fn volume(device: &Device) -> Vec<String> {
    let info = &device.info;
    let is_dirty = info["dirty_bytes"] != 0;
    let if_dirty = |text: String| if is_dirty { text } else { "-".into() };
    vec![
        device.name.clone(),
        info["policy"].as_str().unwrap_or("?").into(),
        bytes(&info["cached_bytes"]),
        bytes(&info["share_bytes"]),
        info["recent_hit_rate"].as_f64().map_or("-".into(), percent),
        match info["hit_bytes"].as_u64().zip(info["missed_bytes"].as_u64()) {
            Some((0, 0)) | None => "-".into(),
            Some(_) => info["hit_rate"].as_f64().map_or("?".into(), percent),
        },
        bytes(&info["dirty_bytes"]),
        if_dirty(seconds(&info["oldest_dirty_seconds"])),
        if_dirty(seconds(&info["seconds_to_clean"])),
        info["flow"]["pressure"].as_f64().map_or("?".into(), percent),
        match &info["recovery_point"] {
            Value::Null => "-".into(),
            point => seconds(&point["age_seconds"]),
        },
    ]
}

fn flash(device: &Device) -> Vec<String> {
    let info = &device.info;
    let segments = |name: &str| {
        info[name]
            .as_u64()
            .map_or("?".into(), |segments| size(segments * info["segment_bytes"].as_u64().unwrap_or(0)))
    };
    let volumes = info["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let open = volumes.iter().filter(|volume| volume["open"] == true).count();
    vec![
        device.name.clone(),
        segments("segments"),
        segments("free_segments"),
        segments("small_segments"),
        segments("main_segments"),
        format!("{open}/{}", volumes.len()),
        bytes(&info["cached_bytes"]),
        bytes(&info["dirty_bytes"]),
        bytes(&info["written_bytes"]),
        info["stalls"].to_string(),
    ]
}

fn volume_trouble(out: &mut String, device: &Device) {
    let (name, info) = (&device.name, &device.info);
    if let Some(why) = info["store_trouble"].as_str() {
        let _ = writeln!(out, "the store of {name} takes nothing: {why}");
    }
    if let Some(why) = info["flash_trouble"].as_str() {
        let _ = writeln!(out, "the flash of {name} is not used: {why}");
    }
    match &info["lost"] {
        Value::Null => {}
        lost => {
            let how_much = lost["bytes"].as_u64().map_or("nobody knows how much".into(), size);
            let _ = writeln!(out, "{name} is stopped: {how_much} would be lost without its flash");
        }
    }
    if info["alerts"]["behind"] == true {
        let age = seconds(&info["oldest_dirty_seconds"]);
        let _ = writeln!(out, "the store of {name} lacks writes that are {age} old");
    }
    if info["alerts"]["recovery_point_old"] == true {
        let age = seconds(&info["recovery_point"]["age_seconds"]);
        let _ = writeln!(out, "without its flash {name} would be as it was {age} ago");
    }
}

fn flash_trouble(out: &mut String, device: &Device) {
    if let Some(why) = device.info["failed"].as_str() {
        let _ = writeln!(out, "{} takes nothing: {why}", device.name);
    }
    if device.info["alerts"]["stalled"] == true {
        let age = seconds(&device.info["stalled_seconds"]);
        let _ = writeln!(out, "{} has no room: writes have waited for {age}", device.name);
    }
}

fn size(bytes: u64) -> String {
    Bytes(bytes).rounded()
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or("?".into(), size)
}

fn seconds(value: &Value) -> String {
    value.as_f64().map_or("?".into(), |seconds| duration(seconds.ceil() as u64))
}

/// Never 100 before it is.
fn percent(part: f64) -> String {
    format!("{:.1}%", (part * 1000.0).floor() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::cached;
    use serde_json::json;

    fn drawn(hierarchy: &Hierarchy) -> Vec<String> {
        let mut out = String::new();
        draw(&mut out, hierarchy);
        out.lines().map(String::from).collect()
    }

    #[test]
    fn a_cache_is_a_line() {
        let mut hierarchy = cached().hierarchies.remove(0);
        let lines = drawn(&hierarchy);
        assert_eq!(
            lines[..5],
            [
                "CACHE POLICY      CACHED SHARE  HITS OVERALL  DIRTY OLDEST CLEAN IN PRESSURE RECOVERY POINT",
                "vm1   write-back 1.21GiB  4GiB 96.1%   50.0% 120MiB     6s        ?    12.0%             5s",
                "FLASH    SIZE   FREE  SMALL    MAIN  OPEN   CACHED   DIRTY  WRITTEN  STALLS",
                "cache  400MiB  40MiB  36MiB  324MiB   1/2  1.21GiB  120MiB  9.77GiB       3",
                "cache has no room: writes have waited for 2s",
            ],
            "{lines:#?}"
        );
        let info = &mut hierarchy.devices[1].info;
        for name in ["dirty_bytes", "hit_bytes", "missed_bytes"] {
            info[name] = json!(0);
        }
        (info["recent_hit_rate"], info["recovery_point"]) = (Value::Null, Value::Null);
        let words: Vec<String> = drawn(&hierarchy)[1].split_whitespace().map(String::from).collect();
        assert_eq!(words[4..], ["-", "-", "0B", "-", "-", "12.0%", "-"]);
    }

    #[test]
    fn what_is_wrong_stands_below() {
        let mut hierarchy = cached().hierarchies.remove(0);
        let info = &mut hierarchy.devices[1].info;
        info["store_trouble"] = json!("san: gone");
        info["flash_trouble"] = json!("nvme: gone");
        info["lost"] = json!({ "bytes": 4096 });
        info["oldest_dirty_seconds"] = json!(432.0);
        info["alerts"] = json!({ "behind": true, "recovery_point_old": true });
        hierarchy.devices[0].info["failed"] = json!("nvme: gone");
        assert_eq!(
            drawn(&hierarchy)[4..],
            [
                "the store of vm1 takes nothing: san: gone",
                "the flash of vm1 is not used: nvme: gone",
                "vm1 is stopped: 4KiB would be lost without its flash",
                "the store of vm1 lacks writes that are 7m12s old",
                "without its flash vm1 would be as it was 5s ago",
                "cache takes nothing: nvme: gone",
                "cache has no room: writes have waited for 2s",
            ]
        );
        hierarchy.devices[1].info["lost"] = json!({ "unknown": true });
        assert!(
            drawn(&hierarchy)
                .iter()
                .any(|line| line.starts_with("vm1 is stopped: nobody knows how much would"))
        );
    }
}
