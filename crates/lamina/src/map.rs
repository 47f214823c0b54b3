//! `lamina map`: the devices and disks that have a byte of a device.

use crate::api::{ByteMap, Device, Snapshot};
use crate::cli;
use crate::control::Client;
use crate::exit::Failure;
use crate::show::table;
use crate::uri::encoded;
use std::io::Write;

/// Runs `lamina map`.
pub fn run(args: &cli::Map) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let (name, at) = (encoded(&args.device, ""), args.offset.0);
    let map: ByteMap = client.get(&format!("/v1/devices/{name}/map?at={at}"))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&map).map_err(Failure::failed)?)?);
    }
    let served: Snapshot = client.get("/v1/hierarchy")?;
    Ok(write!(out, "{}", text(&map, &served))?)
}

/// The tree of the devices that have the byte, with its address on each.
fn text(map: &ByteMap, served: &Snapshot) -> String {
    let mut rows = Vec::new();
    branch(map, "", "", served, &mut rows);
    table(&["DEVICE", "KIND", "HAS", "PATH", "OFFSET"], 4, &rows)
}

/// A row for a device, after what `first` draws, and rows for those below, after what `rest` draws.
fn branch(map: &ByteMap, first: &str, rest: &str, served: &Snapshot, rows: &mut Vec<Vec<String>>) {
    let device = served.devices().find(|device| device.name == map.device);
    let path = device.and_then(|device| device.info["path"].as_str()).unwrap_or("-");
    rows.push(vec![
        format!("{first}{}", map.device),
        device.map_or("export", |device| &device.kind).to_owned(),
        has(map, device),
        path.to_owned(),
        map.at.to_string(),
    ]);
    for (number, below) in map.below.iter().enumerate() {
        let (corner, bar) =
            if number + 1 == map.below.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        branch(below, &format!("{rest}{corner}"), &format!("{rest}{bar}"), served, rows);
    }
}

/// What a device has of the byte.
fn has(map: &ByteMap, device: Option<&Device>) -> String {
    match (&map.error, device) {
        (Some(error), _) => format!("unknown: {error}"),
        (None, Some(device)) if map.below.is_empty() && !device.over.is_empty() => {
            "zero, not allocated".into()
        }
        _ => map.role.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn device(name: &str, kind: &str, over: &[&str], info: Value) -> Value {
        let geometry = json!({ "size": 0, "block": 512, "optimal": 512, "stripe": 0, "discard": true, "zero": true,
                               "fua": true, "read_only": false });
        json!({ "name": name, "kind": kind, "over": over, "geometry": geometry, "in_flight": 0, "operations": {},
                "info": info })
    }

    fn place(device: &str, at: u64, role: &str, below: Vec<ByteMap>) -> ByteMap {
        ByteMap { device: device.into(), at, role: role.into(), below, error: None }
    }

    #[test]
    fn a_tree_shows_each_device_with_the_byte() {
        let devices = [
            device("left", "file", &[], json!({ "path": "/dev/sdb" })),
            device("right", "file", &[], json!({ "path": "/dev/sdc" })),
            device("both", "mirror", &["left", "right"], json!({})),
            device("vm1", "snapshot", &["both"], json!({})),
        ];
        let hierarchy = json!({ "file": "vm1.toml", "core": 0, "devices": devices, "exports": [] });
        let served: Snapshot = serde_json::from_value(json!({
            "version": "1", "pid": 1, "uptime_ns": 0, "cpu_ns": 0, "resident_bytes": 0, "hierarchies": [hierarchy],
        }))
        .expect("a snapshot");
        let legs = vec![place("left", 4096, "data", vec![]), place("right", 8192, "data", vec![])];
        let map = place("vm1", 0, "data", vec![place("both", 512, "data", legs)]);
        assert_eq!(
            text(&map, &served),
            "DEVICE       KIND      HAS   PATH      OFFSET\n\
             vm1          snapshot  data  -              0\n\
             └─ both      mirror    data  -            512\n   \
             ├─ left   file      data  /dev/sdb    4096\n   \
             └─ right  file      data  /dev/sdc    8192\n"
        );
        let hole = place("vm1", 0, "data", vec![]);
        assert!(text(&hole, &served).contains("zero, not allocated"));
        let failed = ByteMap { error: Some("offline".into()), ..place("both", 0, "data", vec![]) };
        assert!(text(&failed, &served).contains("unknown: offline"));
    }
}
