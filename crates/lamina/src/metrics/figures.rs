//! Metrics from what layers show: a line for each, with the place of its value in the layer's info.
//!
//! A value that is not there, or null because nobody knows it, has no sample.

use super::{family, labels, sample};
use crate::api::Snapshot;
use crate::status::{self, Status};

/// Metrics of a kind: what comes after `lamina_KIND_`, the place of the value as a JSON pointer, and help. What ends with
/// `_total` is a counter, anything else a gauge.
type Figures = (&'static str, &'static [(&'static str, &'static str, &'static str)]);

const ACCELERATE: Figures = (
    "accelerate",
    &[
        ("hit_bytes_total", "/hit_bytes", "Read from the flash, in whole blocks."),
        ("missed_bytes_total", "/missed_bytes", "Not on the flash when asked for."),
        ("bypassed_bytes_total", "/bypassed_bytes", "Missed, and kept from filling the flash."),
        ("filled_bytes_total", "/filled_bytes", "Put on the flash after a read."),
        ("written_bytes_total", "/written_bytes", "Written, in whole blocks."),
        ("destaged_bytes_total", "/destaged_bytes", "Brought to the store."),
        ("batches_total", "/batches", "Batches that were brought to the store."),
        ("unreadable_bytes_total", "/unreadable_bytes", "Read from the store because the flash could not."),
        ("recent_hit_ratio", "/recent_hit_rate", "Hits of reads in the last minute."),
        ("cached_bytes", "/cached_bytes", "What the volume has on the flash."),
        ("share_bytes", "/share_bytes", "What the volume may have if others want theirs."),
        ("dirty_bytes", "/dirty_bytes", "What the store does not have."),
        ("dirty_writes", "/dirty_writes", "Writes that the store does not have."),
        ("oldest_dirty_seconds", "/oldest_dirty_seconds", "Age of the oldest dirty write."),
        ("clean_seconds", "/seconds_to_clean", "Time until the store has everything."),
        ("replay_left_bytes", "/replaying/left_bytes", "Found when it was opened, and still dirty."),
        ("flow_writes_ratio", "/flow/writes", "Dirty writes, of what is too much."),
        ("flow_bytes_ratio", "/flow/bytes", "Dirty bytes, of what is too much."),
        ("flow_time_ratio", "/flow/time", "Time until clean, of what is too much."),
        ("flow_pressure_ratio", "/flow/pressure", "How much writes are held back."),
        ("delayed_writes_total", "/flow/delayed", "Writes that were held back."),
        ("store_bytes_per_second", "/flow/store_bytes_per_second", "How fast the store takes what it lacks."),
        ("recovery_point_age_seconds", "/recovery_point/age_seconds", "Age of what the store is."),
        ("recovery_point_behind_bytes", "/recovery_point/bytes_behind", "What it lacks."),
        ("lost_bytes", "/lost/bytes", "At stake on a flash that has failed."),
    ],
);

const FLASH: Figures = (
    "flash",
    &[
        ("segments", "/segments", "Segments of the flash."),
        ("free_segments", "/free_segments", "Segments that are free."),
        ("small_segments", "/small_segments", "Segments in the log of what is new."),
        ("main_segments", "/main_segments", "Segments in the log of what was asked for again."),
        ("segment_bytes", "/segment_bytes", "Size of a segment."),
        ("cached_bytes", "/cached_bytes", "What all volumes have on it."),
        ("dirty_bytes", "/dirty_bytes", "What it has that is not on the stores."),
        ("written_bytes_total", "/written_bytes", "Written to the device: its wear."),
        ("stalls_total", "/stalls", "Writes that had to wait for room."),
        ("stalled_seconds", "/stalled_seconds", "How long writes have waited for room now."),
        ("memory_bytes", "/memory", "Memory of its index."),
    ],
);

const SNAPSHOT: Figures = (
    "snapshot",
    &[
        ("size_bytes", "/size", "Size of the volume."),
        ("free_bytes", "/bytes_free", "Room for what is written for the first time, or after a snapshot."),
        ("map_bytes", "/map_bytes", "Size of its map."),
        ("map_free_bytes", "/map_bytes_free", "Room in the area of its map."),
    ],
);

const INTEGRITY: Figures = (
    "integrity",
    &[
        ("corrupt_total", "/corrupt", "Blocks that were found to be others than were written."),
        ("healed_total", "/healed", "Blocks that were right in another copy, and were written again."),
        ("unreadable_bytes_total", "/unreadable_bytes", "What could not be read to be compared."),
        ("doubted_bytes", "/doubted_bytes", "What was being written at a crash, and is summed anew."),
    ],
);

/// Of both kinds that have legs.
const LEGS: &[(&str, &str, &str)] = &[
    ("legs", "/legs_wanted", "Legs that it has when nothing is missing."),
    ("legs_in_sync", "/legs_in_sync", "Legs that have every byte."),
    ("lacking_bytes", "/lacking_bytes", "What is to be copied to legs that lack something."),
    ("healed_total", "/found/healed", "Places that were wrong on a leg, and were written again."),
    ("different_total", "/found/different", "Places where legs differed."),
    ("lost_total", "/found/lost", "Places that no leg has."),
];
const MIRROR: Figures = ("mirror", LEGS);
const PARITY: Figures = ("parity", LEGS);

/// Those of all kinds that have any.
const ALL: [Figures; 6] = [ACCELERATE, FLASH, INTEGRITY, MIRROR, PARITY, SNAPSHOT];

/// The figures of all layers, and their alerts.
pub fn draw(out: &mut String, snapshot: &Snapshot) {
    for (kind, figures) in ALL {
        if !snapshot.devices().any(|device| device.kind == kind) {
            continue;
        }
        for (figure, at, help) in figures {
            let name = format!("lamina_{kind}_{figure}");
            family(out, &name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
            for device in snapshot.devices().filter(|device| device.kind == kind) {
                if let Some(value) = device.info.pointer(at).filter(|value| value.is_number()) {
                    sample(out, &name, &labels(&[("device", &device.name)]), value);
                }
            }
        }
    }
    const ALERT: &str = "lamina_alert";
    family(out, ALERT, "gauge", "1 while somebody should look at it.");
    for hierarchy in &snapshot.hierarchies {
        for device in &hierarchy.devices {
            for (alert, is_on) in status::alerts(hierarchy, device) {
                sample(out, ALERT, &labels(&[("device", &device.name), ("alert", alert)]), u64::from(is_on));
            }
        }
    }
    const STATE: &str = "lamina_hierarchy_state";
    family(out, STATE, "gauge", "0 while everything is well, 1 degraded, 2 failed, as `lamina status` says.");
    for status in snapshot.hierarchies.iter().map(Status::of) {
        sample(out, STATE, &labels(&[("file", &status.file)]), status.state as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::cached;

    #[test]
    fn what_layers_show_is_there() {
        let mut text = String::new();
        draw(&mut text, &cached());
        for line in [
            "# TYPE lamina_accelerate_hit_bytes_total counter\nlamina_accelerate_hit_bytes_total{device=\"vm1\"} 8192\n",
            "# TYPE lamina_accelerate_dirty_bytes gauge\nlamina_accelerate_dirty_bytes{device=\"vm1\"} 125829120\n",
            "\nlamina_accelerate_flow_pressure_ratio{device=\"vm1\"} 0.12\n",
            "\nlamina_accelerate_recovery_point_age_seconds{device=\"vm1\"} 4.5\n",
            "\nlamina_flash_free_segments{device=\"cache\"} 10\n",
            "\nlamina_alert{device=\"vm1\",alert=\"store_trouble\"} 0\n",
            "\nlamina_alert{device=\"cache\",alert=\"stalled\"} 1\n",
            "\nlamina_alert{device=\"vm1\",alert=\"absent\"} 0\n",
            "\nlamina_hierarchy_state{file=\"vm.toml\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        // Nobody knows them.
        for name in ["clean_seconds", "replay_left_bytes", "lost_bytes"] {
            assert!(!text.contains(&format!("lamina_accelerate_{name}{{")), "{text}");
        }
    }

    #[test]
    fn the_manual_has_them_all() {
        let manual = include_str!("../../../../docs/control-api.md");
        let all = ALL.into_iter().flat_map(|(kind, figures)| figures.iter().map(move |f| (kind, f.0)));
        let names = all.map(|(kind, figure)| format!("`lamina_{kind}_{figure}`"));
        let missing: Vec<_> = names.filter(|name| !manual.contains(name)).collect();
        assert!(missing.is_empty(), "docs/control-api.md lacks {missing:?}");
    }
}
