//! Figures of layers: a table for each kind that declares columns, and below all tables what is to be said of the
//! devices.

use super::table::table;
use super::tree::{duration, latency};
use crate::api::{Device, Hierarchy};
use lamina_block::{Bytes, Figure, Kind, Unit};
use serde_json::Value;

/// The figures of the devices of one kind.
pub struct Figures<'a> {
    /// The kind.
    pub kind: &'a Kind,
    /// The title above the names of devices.
    pub heading: String,
    /// The figures, in the order of their columns.
    pub columns: Vec<&'a Figure>,
    /// A device and the texts of its figures each.
    pub rows: Vec<(&'a str, Vec<String>)>,
}

/// The tables of a hierarchy: one for each kind with columns of which there are devices.
pub fn tables<'a>(hierarchy: &'a Hierarchy, kinds: &'a [Kind]) -> Vec<Figures<'a>> {
    let of = |kind: &'a Kind| {
        let columns: Vec<&Figure> = kind.traits.figures.iter().filter(|f| f.column.is_some()).collect();
        let devices = hierarchy.devices.iter().filter(|device| device.kind == kind.name);
        let cells = |device: &Device| columns.iter().map(|figure| cell(figure, &device.info)).collect();
        let rows: Vec<_> = devices.map(|device| (&device.name[..], cells(device))).collect();
        let heading = kind.traits.heading.map_or_else(|| kind.name.to_uppercase(), str::to_owned);
        (!columns.is_empty() && !rows.is_empty()).then_some(Figures { kind, heading, columns, rows })
    };
    kinds.iter().filter_map(of).collect()
}

/// What is to be said of the devices, each sentence with the name of its device.
pub fn notices<'a>(hierarchy: &'a Hierarchy, kinds: &[Kind]) -> Vec<(&'a str, String)> {
    let mut all = Vec::new();
    for kind in kinds {
        for device in hierarchy.devices.iter().filter(|device| device.kind == kind.name) {
            all.extend(notices_of(kind, device).map(|sentence| (&device.name[..], sentence)));
        }
    }
    all
}

/// All figures of a device that its kind declares: each with its text.
pub fn of<'a>(device: &Device, kind: &'a Kind) -> impl Iterator<Item = (&'a Figure, String)> {
    kind.traits.figures.iter().map(|figure| (figure, cell(figure, &device.info)))
}

/// A line for each device of a kind with columns, and below them what is wrong.
pub fn draw(out: &mut String, hierarchy: &Hierarchy, kinds: &[Kind]) {
    for Figures { heading, columns, rows, .. } in tables(hierarchy, kinds) {
        let titles: Vec<&str> =
            std::iter::once(&*heading).chain(columns.iter().filter_map(|f| f.column)).collect();
        let words = columns.iter().take_while(|figure| matches!(figure.unit, Unit::Text)).count();
        let line = |(device, cells): (&str, Vec<String>)| {
            std::iter::once(device.to_owned()).chain(cells).collect::<Vec<_>>()
        };
        out.push_str(&table(&titles, 1 + words, &rows.into_iter().map(line).collect::<Vec<_>>()));
    }
    notices(hierarchy, kinds).iter().for_each(|(_, notice)| out.extend([notice, "\n"]));
}

/// What is to be said of a device.
pub fn notices_of(kind: &Kind, device: &Device) -> impl Iterator<Item = String> {
    let value = |at: &str| as_text(kind, at, &device.info);
    kind.traits.notices.iter().filter_map(move |notice| notice.of(&device.name, &device.info, value))
}

/// The value at a place, in the format of its figure; without a figure its text.
fn as_text(kind: &Kind, at: &str, info: &Value) -> String {
    let figure = kind.traits.figures.iter().find(|figure| figure.at == at);
    let unit = figure.map_or(Unit::Text, |figure| figure.unit);
    written(unit, at, info).unwrap_or_else(|| "?".into())
}

/// A figure in a table: `-` if there is none, `?` if it is unknown.
pub fn cell(figure: &Figure, info: &Value) -> String {
    let is_zero = |at: &&str| info.pointer(at).and_then(Value::as_f64) == Some(0.0);
    let (condition, is_null) = (figure.only_if, figure.nullable && lamina_block::is_null(info, figure.at));
    match written(figure.unit, figure.at, info) {
        _ if !condition.is_empty() && condition.iter().all(is_zero) => "-".into(),
        Some(text) => text,
        None if is_null && condition.is_empty() => "-".into(),
        None => "?".into(),
    }
}

fn written(unit: Unit, at: &str, info: &Value) -> Option<String> {
    let value = info.pointer(at)?;
    let size = |bytes: u64| Bytes(bytes).rounded();
    match unit {
        Unit::Count => value.as_number().map(ToString::to_string),
        Unit::Bytes => value.as_u64().map(size),
        Unit::BytesPerSecond => value.as_f64().map(|rate| size(rate as u64) + "/s"),
        Unit::Seconds => value.as_f64().map(span),
        // Never 100 before the end.
        Unit::Ratio => value.as_f64().map(|part| format!("{:.1}%", (part * 1000.0).floor() / 10.0)),
        Unit::Pieces(of) => Some(size(value.as_u64()?.saturating_mul(info.pointer(of)?.as_u64()?))),
        Unit::Text => value.as_str().map(str::to_owned),
        Unit::Made(of) => of(value),
    }
}

/// Seconds in full, or a part of one.
fn span(seconds: f64) -> String {
    if 0.0 < seconds && seconds < 1.0 {
        latency((seconds * 1e9) as u64)
    } else {
        duration(seconds.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::cached;
    use serde_json::json;

    fn drawn(hierarchy: &Hierarchy) -> Vec<String> {
        let mut out = String::new();
        draw(&mut out, hierarchy, &crate::files::kinds());
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
                "cache has no space: writes have waited for 2s",
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
        info["alerts"] = json!({ "lagging": true, "recovery_point_old": true });
        hierarchy.devices[0].info["failed"] = json!("nvme: gone");
        assert_eq!(
            drawn(&hierarchy)[4..],
            [
                "the store of vm1 takes nothing: san: gone",
                "the flash of vm1 is not used: nvme: gone",
                "vm1 is stopped: 4KiB would be lost without its flash",
                "the store of vm1 does not have writes that are 7m12s old",
                "without its flash vm1 would be as it was 5s ago",
                "cache takes nothing: nvme: gone",
                "cache has no space: writes have waited for 2s",
            ]
        );
        hierarchy.devices[1].info["lost"] = json!({ "unknown": true });
        assert!(
            drawn(&hierarchy).iter().any(|line| line.starts_with("vm1 is stopped: the amount that would"))
        );
    }

    #[test]
    fn parts_of_a_second_are_seen() {
        assert_eq!([0.0, 0.000_003_5, 0.25, 1.0, 61.5].map(span), ["0s", "3.5us", "250ms", "1s", "1m2s"]);
    }
}
