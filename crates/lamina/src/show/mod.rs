//! `lamina show`: the live tree. Two snapshots of a daemon, and the activity between them.
//!
//! The daemon keeps no rates and runs no timer for them: the observer pays.

mod below;
pub(crate) mod figures;
pub(crate) mod rates;
mod table;
mod tree;

pub use below::{below, over};
pub use rates::{DeviceRates, OperationRates, Rates};
pub(crate) use table::shortened;
pub use table::table;
pub(crate) use tree::outside;
pub use tree::{count, draw, duration, latency};

use crate::api::Snapshot;
use crate::cli::Show;
use crate::control::Client;
use crate::exit::Failure;
use std::io::{IsTerminal, Write};

/// Clears the screen and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs `lamina show`.
pub fn run(args: &Show) -> Result<(), Failure> {
    if args.interval.0.is_zero() {
        return Err(Failure::usage("--interval: the time cannot be zero"));
    }
    let client = Client::find(args.daemon.control.as_deref())?;
    let mut before: Snapshot = client.get("/v1/hierarchy")?;
    let clear = args.watch && !args.json && std::io::stdout().is_terminal();
    loop {
        std::thread::sleep(args.interval.0);
        let now: Snapshot = client.get("/v1/hierarchy")?;
        let rates = Rates::between(&before, &now);
        let mut out = std::io::stdout().lock();
        if args.json {
            serde_json::to_writer(&mut out, &rates).map_err(std::io::Error::from)?;
            writeln!(out)?;
        } else {
            write!(out, "{}{}", if clear { CLEAR } else { "" }, draw(&now, &rates))?;
        }
        out.flush()?;
        if !args.watch {
            return Ok(());
        }
        before = now;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::api::{Bucket, Device, Endpoint, Export, Geometry, Hierarchy, Operation};
    use std::collections::BTreeMap;

    fn device(name: &str, kind: &str, over: &[&str], reads: u64) -> Device {
        let idle = ["write", "zero", "discard", "flush"].map(|n| (n.to_string(), Operation::default()));
        let mut operations = BTreeMap::from(idle);
        let latency = if reads == 0 {
            vec![]
        } else {
            let slow = reads / 100;
            vec![Bucket { up_to_ns: 79_999, count: reads - slow }, Bucket { up_to_ns: 999_999, count: slow }]
        };
        let read = Operation { completed: reads, bytes: reads * 4096, errors: 0, latency };
        operations.insert("read".into(), read);
        Device {
            name: name.into(),
            kind: kind.into(),
            over: over.iter().map(|s| s.to_string()).collect(),
            geometry: Geometry::from(lamina_block::Geometry::new(1 << 30)),
            in_flight: 3,
            unreachable: false,
            operations,
            info: serde_json::json!({}),
            jobs: Vec::new(),
        }
    }

    /// A stripe `vm1` over `a` and `b`, with 100 reads done.
    pub(crate) fn snapshot() -> Snapshot {
        let endpoint = Endpoint { protocol: "nbd".into(), address: "nbd+unix:///vm1?socket=/run/vm1".into() };
        Snapshot {
            version: "0.1.0".into(),
            pid: 17,
            uptime_ns: 3_600_000_000_000,
            cpu_ns: 1_000_000,
            resident_bytes: 9 << 20,
            hierarchies: vec![Hierarchy {
                file: "vm.toml".into(),
                core: 0,
                devices: vec![
                    device("a", "file", &[], 50),
                    device("b", "file", &[], 50),
                    device("vm1", "stripe", &["a", "b"], 100),
                ],
                exports: vec![Export {
                    name: "vm1".into(),
                    device: "vm1".into(),
                    description: "the disk".into(),
                    read_only: false,
                    size: 1 << 30,
                    endpoints: vec![endpoint],
                    clients: Vec::new(),
                }],
            }],
        }
    }

    /// The same daemon two seconds and 200 reads later.
    pub(crate) fn later() -> Snapshot {
        let mut later = snapshot();
        later.uptime_ns += 2_000_000_000;
        later.hierarchies[0].devices = vec![
            device("a", "file", &[], 150),
            device("b", "file", &[], 150),
            device("vm1", "stripe", &["a", "b"], 300),
        ];
        later
    }

    /// A volume `vm1` of three hosts.
    pub(crate) fn clustered() -> Snapshot {
        let mut clustered = snapshot();
        let mut vm1 = device("vm1", "accelerate", &[], 0);
        let host = |name: &str, is_here: bool, address: Option<&str>, heard: Option<f64>, state: &str| {
            let why = (state == "unreachable").then_some("connection refused");
            serde_json::json!({
                "name": name, "is_here": is_here, "address": address, "heard_seconds": heard, "state": state,
                "why": why,
            })
        };
        let member = |host: &str, flash: u32, state: &str, lag: u64| {
            let flash = format!("00000000-0000-0000-0000-{flash:012}");
            serde_json::json!({ "host": host, "flash": flash, "state": state, "lag_writes": lag })
        };
        vm1.info = serde_json::json!({ "cluster": {
            "volume": "vm1", "device": "vm1", "vault": "/vault", "vault_seconds": 0.5, "vault_trouble": null,
            "host": "a", "generation": 3, "mode": "back", "role": "primary",
            "members": [member("a", 1, "primary", 0), member("b", 2, "following", 7)],
            "hosts": [
                host("a", true, Some("tcp:10.0.0.1:7001"), None, "alive"),
                host("b", false, Some("tcp:10.0.0.2:7001"), Some(2.5), "unreachable"),
                host("c", false, None, Some(3720.0), "silent"),
            ],
            "dirty_bytes": 1 << 20, "unprotected_bytes": 0, "waits": null,
            "promise": {
                "sentence": "every acknowledged write survives the loss of 1 flash or 1 host", "survives": 1,
                "takeover": "automatic", "command": null,
            },
        } });
        clustered.hierarchies[0].devices = vec![vm1];
        clustered
    }

    /// A volume `vm1` on the flash `cache`.
    pub(crate) fn cached() -> Snapshot {
        let mut cached = snapshot();
        let (mut flash, mut vm1) =
            (device("cache", "flash", &["a"], 0), device("vm1", "accelerate", &["b", "cache"], 0));
        flash.info = serde_json::json!({
            "segment_bytes": 4 << 20, "segments": 100, "free_segments": 10, "small_segments": 9, "main_segments": 81,
            "cached_bytes": 1234 << 20, "dirty_bytes": 120 << 20, "written_bytes": 10_000u64 << 20, "stalls": 3,
            "stalled_seconds": 1.5, "alerts": { "failed": false, "stalled": true }, "failed": null,
            "volumes": [{ "open": true }, { "open": false }],
        });
        vm1.info = serde_json::json!({
            "policy": "write-back", "cached_bytes": 1234 << 20, "share_bytes": 4u64 << 30, "dirty_bytes": 120 << 20,
            "oldest_dirty_seconds": 5.5, "seconds_to_clean": null, "replaying": null, "hit_rate": 0.5,
            "recent_hit_rate": 0.9615, "hit_bytes": 8192, "missed_bytes": 8192, "flow": { "pressure": 0.12 },
            "store_trouble": null, "alerts": { "store_trouble": false }, "recovery_point": { "age_seconds": 4.5 },
        });
        cached.hierarchies[0].devices = vec![flash, vm1];
        cached
    }
}
