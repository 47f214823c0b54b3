//! The present as the page shows it, as JSON. Volumes that are opened have more ([`super::volume`]).

use super::notes::{self, Note};
use crate::api::{Cluster, Job, Snapshot};
use crate::show::{DeviceRates, OperationRates, Rates, below, figures, over};
use lamina_block::{Bytes, Kind};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a text is made of.
pub struct Moment<'a> {
    pub snapshot: &'a Snapshot,
    pub rates: &'a Rates,
    pub kinds: &'a [Kind],
    /// The page may steer jobs.
    pub may_steer: bool,
    pub is_draining: bool,
    /// The number of the newest event; 0 if there is none.
    pub last_event: u64,
}

#[derive(Serialize)]
struct State<'a> {
    version: &'a str,
    pid: u32,
    uptime_seconds: u64,
    resident: String,
    /// Busy cores: 1 is one core.
    cpu: f64,
    /// `ok`, `degraded` or `failed`.
    state: &'static str,
    sentence: String,
    notes: Vec<Note>,
    volumes: Vec<Volume<'a>>,
    tables: Vec<Table<'a>>,
    jobs: Vec<&'a Job>,
    may_steer: bool,
    cluster: Cluster,
    last_event: u64,
}

#[derive(Serialize)]
struct Volume<'a> {
    name: &'a str,
    device: &'a str,
    kind: &'a str,
    description: &'a str,
    file: &'a str,
    size: String,
    read_only: bool,
    /// The worst of the notes about the devices of its tree.
    state: &'static str,
    activity: Activity,
}

/// Requests of a device in the last interval.
#[derive(Debug, PartialEq, Serialize)]
pub struct Activity {
    pub read: Operations,
    pub write: Operations,
    /// Zeroing, discarding, flushing: a second.
    pub other_iops: f64,
    pub queue: u32,
    /// Since the device was opened.
    pub errors: u64,
    /// In the last interval.
    pub errors_new: u64,
}

/// Reads, or writes.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Operations {
    pub iops: f64,
    pub bytes_per_second: u64,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
}

/// A table of the figures of a kind.
#[derive(Serialize)]
struct Table<'a> {
    heading: String,
    kind: &'a str,
    summary: &'a str,
    file: &'a str,
    columns: Vec<Column<'a>>,
    rows: Vec<(&'a str, Vec<String>)>,
    /// Its devices have a heat map.
    has_map: bool,
}

#[derive(Serialize)]
struct Column<'a> {
    title: &'a str,
    help: &'a str,
    is_text: bool,
}

/// One digit after the point.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

impl From<&OperationRates> for Operations {
    fn from(rates: &OperationRates) -> Operations {
        let OperationRates { iops, bytes_per_second, p50_ns, p99_ns, .. } = *rates;
        Operations { iops: tenths(iops), bytes_per_second: bytes_per_second as u64, p50_ns, p99_ns }
    }
}

impl From<&DeviceRates> for Activity {
    fn from(rates: &DeviceRates) -> Activity {
        let of = |name: &str| rates.operations.get(name).map(Operations::from).unwrap_or_default();
        let others = rates.operations.iter().filter(|(name, _)| !matches!(&name[..], "read" | "write"));
        Activity {
            read: of("read"),
            write: of("write"),
            other_iops: tenths(others.map(|(_, operation)| operation.iops).sum()),
            queue: rates.in_flight,
            errors: rates.operations.values().map(|operation| operation.errors_total).sum(),
            errors_new: rates.operations.values().map(|operation| operation.errors).sum(),
        }
    }
}

/// The text of the present.
pub fn text(moment: &Moment) -> Vec<u8> {
    let Moment { snapshot, rates, kinds, .. } = moment;
    let by_name: BTreeMap<&str, &DeviceRates> = rates.devices.iter().map(|d| (&d.name[..], d)).collect();
    let cluster = Cluster::of(snapshot);
    let notes = notes::of(snapshot, &cluster, kinds);
    let mut volumes = Vec::new();
    for hierarchy in &snapshot.hierarchies {
        let over = over(hierarchy);
        for export in &hierarchy.exports {
            let Some(rates) = by_name.get(&export.device[..]) else { continue };
            let tree = below(&over, &export.device);
            // The worst comes first.
            let note = notes.iter().find(|note| tree.contains(&&note.about[..]));
            let kind = hierarchy.devices.iter().find(|d| d.name == export.device).map_or("", |d| &d.kind[..]);
            volumes.push(Volume {
                name: &export.name,
                device: &export.device,
                kind,
                description: &export.description,
                file: &hierarchy.file,
                size: Bytes(export.size).rounded(),
                read_only: export.read_only,
                state: note.map_or("ok", |note| if note.severity == "info" { "ok" } else { note.severity }),
                activity: Activity::from(*rates),
            });
        }
    }
    let tables = snapshot.hierarchies.iter().flat_map(|hierarchy| {
        figures::tables(hierarchy, kinds).into_iter().map(|table| Table {
            kind: table.kind.name,
            summary: table.kind.summary,
            file: &hierarchy.file,
            columns: table.columns.iter().map(|figure| column(figure)).collect(),
            has_map: super::has_map(table.kind),
            heading: table.heading,
            rows: table.rows,
        })
    });
    let (state, sentence) = notes::summary(snapshot, moment.is_draining);
    let state = State {
        version: &snapshot.version,
        pid: snapshot.pid,
        uptime_seconds: snapshot.uptime_ns / 1_000_000_000,
        resident: Bytes(snapshot.resident_bytes).rounded(),
        cpu: (rates.cpu * 1e4).round() / 1e4,
        state,
        sentence,
        volumes,
        tables: tables.collect(),
        jobs: snapshot.devices().flat_map(|device| &device.jobs).collect(),
        may_steer: moment.may_steer,
        cluster,
        last_event: moment.last_event,
        notes,
    };
    serde_json::to_vec(&state).expect("names, texts and numbers are JSON")
}

fn column(figure: &lamina_block::Figure) -> Column<'_> {
    Column {
        title: figure.column.unwrap_or_default(),
        help: figure.help,
        is_text: matches!(figure.unit, lamina_block::Unit::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::show::tests::{cached, clustered, later, snapshot};
    use serde_json::{Value, json};

    fn told(before: &Snapshot, now: &Snapshot) -> Value {
        let (rates, kinds) = (Rates::between(before, now), files::kinds());
        let moment = Moment {
            snapshot: now,
            rates: &rates,
            kinds: &kinds,
            may_steer: false,
            is_draining: false,
            last_event: 7,
        };
        serde_json::from_slice(&text(&moment)).expect("JSON")
    }

    #[test]
    fn volumes_are_told_with_their_rates() {
        let told = told(&snapshot(), &later());
        let volume = &told["volumes"][0];
        assert_eq!(
            (&volume["name"], &volume["size"], &volume["state"]),
            (&json!("vm1"), &json!("1GiB"), &json!("ok"))
        );
        let read = &volume["activity"]["read"];
        assert_eq!((&read["iops"], &read["bytes_per_second"]), (&json!(100.0), &json!(409_600)));
        assert_eq!(
            (&told["sentence"], &told["last_event"]),
            (&json!("1 hierarchy with 1 volume: all is well"), &json!(7))
        );
    }

    #[test]
    fn the_state_of_a_volume_is_the_worst_below() {
        let mut wrong = snapshot();
        wrong.hierarchies[0].devices[0].info = json!({ "alerts": { "nearly_full": true } });
        assert_eq!(told(&wrong, &wrong)["volumes"][0]["state"], "degraded");
        wrong.hierarchies[0].devices[2].unreachable = true;
        assert_eq!(told(&wrong, &wrong)["volumes"][0]["state"], "failed");
    }

    #[test]
    fn caches_are_tables_as_their_kinds_declare_them() {
        let told = told(&cached(), &cached());
        let table = &told["tables"][0];
        assert_eq!((&table["heading"], &table["kind"]), (&json!("CACHE"), &json!("accelerate")));
        assert_eq!(table["rows"][0][0], "vm1");
        let titles: Vec<&str> = table["columns"]
            .as_array()
            .expect("columns")
            .iter()
            .filter_map(|c| c["title"].as_str())
            .collect();
        assert_eq!(titles[..3], ["POLICY", "CACHED", "SHARE"]);
        assert!(table["columns"][0]["help"].as_str().is_some_and(|help| help.ends_with('.')), "{table}");
    }

    #[test]
    fn promises_and_hosts_are_told() {
        let told = told(&clustered(), &clustered());
        assert_eq!(told["cluster"]["hosts"].as_array().map(Vec::len), Some(3));
        assert!(
            told["cluster"]["volumes"][0]["promise"].as_str().is_some_and(|p| p.contains("survives")),
            "{told}"
        );
    }
}
