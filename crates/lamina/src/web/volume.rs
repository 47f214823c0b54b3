//! A volume that is opened on the page: the tree below it, and everything that its devices declare.

use super::state::Activity;
use crate::api::{Client, Endpoint, Snapshot, Why};
use crate::show::{Rates, below, figures, over};
use crate::verbs;
use crate::why::{self, self_time::self_times};
use lamina_block::{Bytes, Kind};
use serde::Serialize;

#[derive(Serialize)]
struct Volume<'a> {
    name: &'a str,
    device: &'a str,
    description: &'a str,
    file: &'a str,
    core: usize,
    endpoints: &'a [Endpoint],
    clients: &'a [Client],
    /// The tree from the top down; a device that stands in it twice has its devices below it only once.
    rows: Vec<Row<'a>>,
    devices: Vec<Device<'a>>,
    /// The sentences of `lamina why`.
    why: String,
    /// What the volume survives now, if several hosts reach it.
    promise: Option<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    branches: String,
    name: String,
    kind: &'a str,
    again: bool,
    size: String,
    unreachable: bool,
    activity: Option<Activity>,
    /// Microseconds of a request of the volume that it spends in this device, on average; nothing if that is not known.
    self_us: Option<f64>,
}

#[derive(Serialize)]
struct Device<'a> {
    name: &'a str,
    kind: &'a str,
    /// The kind in one line.
    summary: &'a str,
    figures: Vec<Figure<'a>>,
    /// The text of `lamina ctl DEVICE help`.
    commands: Option<String>,
    has_map: bool,
}

#[derive(Serialize)]
struct Figure<'a> {
    label: String,
    value: String,
    help: &'a str,
}

/// The text about an export; `None` if there is no such export.
pub fn text(
    snapshot: &Snapshot,
    rates: &Rates,
    kinds: &[Kind],
    export: &str,
    why: Option<&Why>,
) -> Option<Vec<u8>> {
    let mut all = snapshot.hierarchies.iter().flat_map(|h| h.exports.iter().map(move |export| (h, export)));
    let (hierarchy, export) = all.find(|(_, known)| known.name == export)?;
    let names = below(&over(hierarchy), &export.device);
    let devices: Vec<_> =
        hierarchy.devices.iter().filter(|device| names.contains(&&device.name[..])).collect();
    let named = |name: &str| devices.iter().find(|device| device.name == name);
    let whys = why.map(|why| (export.name.clone(), why.clone())).into_iter().collect();
    let selves = self_times(snapshot, &whys);
    let row = |row: lamina_graph::Row| {
        let device = named(&row.device);
        let rates = rates.devices.iter().find(|rates| rates.name == row.device);
        Row {
            self_us: selves.get(&row.device).map(|time| time.us),
            branches: row.branches,
            kind: device.map_or("", |device| &device.kind),
            again: row.again,
            size: Bytes(device.map_or(0, |device| device.geometry.size)).rounded(),
            unreachable: device.is_some_and(|device| device.unreachable),
            activity: rates.filter(|_| !row.again).map(Activity::from),
            name: row.device,
        }
    };
    // The top of this tree is the volume, also if that is a view.
    let graph = devices.iter().map(|device| (&device.name[..], &device.over[..], false));
    let promise = named(&export.device).and_then(|top| top.info["cluster"]["promise"]["sentence"].as_str());
    let volume = Volume {
        name: &export.name,
        device: &export.device,
        description: &export.description,
        file: &hierarchy.file,
        core: hierarchy.core,
        endpoints: &export.endpoints,
        clients: &export.clients,
        rows: lamina_graph::rows(graph).into_iter().map(row).collect(),
        devices: names.iter().filter_map(|name| named(name)).map(|device| declared(device, kinds)).collect(),
        why: why.map(why::text).unwrap_or_default(),
        promise: promise.map(str::to_owned),
    };
    Some(serde_json::to_vec(&volume).expect("names, texts and numbers are JSON"))
}

/// A device as its kind declares it.
fn declared<'a>(device: &'a crate::api::Device, kinds: &'a [Kind]) -> Device<'a> {
    let kind = kinds.iter().find(|kind| kind.name == device.kind);
    let figures = kind.into_iter().flat_map(|kind| figures::of(device, kind)).map(|(figure, value)| Figure {
        label: figure.at.trim_start_matches('/').replace(['/', '_'], " "),
        value,
        help: figure.help,
    });
    let commands = kind.filter(|kind| !kind.traits.verbs.is_empty()).map(|kind| {
        let known: Vec<_> = kind.traits.verbs.iter().map(crate::api::Verb::from).collect();
        verbs::help(&device.name, &device.kind, &known)
    });
    Device {
        name: &device.name,
        kind: &device.kind,
        summary: kind.map_or("", |kind| kind.summary),
        figures: figures.collect(),
        commands,
        has_map: kind.is_some_and(super::has_map),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{OperationTimes, Share};
    use crate::files;
    use crate::show::tests::{cached, clustered, later, snapshot};
    use serde_json::{Value, json};

    fn told(now: &Snapshot, why: Option<&Why>) -> Value {
        let rates = Rates::between(&snapshot(), now);
        let text = text(now, &rates, &files::kinds(), "vm1", why).expect("an export");
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn the_tree_has_rates_and_the_time_of_each_device() {
        let share = |device: &str, us| Share {
            device: device.into(),
            kind: "file".into(),
            cause: "itself".into(),
            us,
        };
        let times = |requests, us| {
            let mean = vec![share("a", us), share("b", 1.0)];
            OperationTimes { requests, mean, ..Default::default() }
        };
        let why = Why {
            export: "vm1".into(),
            device: "vm1".into(),
            samples: 100,
            operations: [("read".to_owned(), times(30, 10.0)), ("write".to_owned(), times(10, 50.0))].into(),
            ..Why::default()
        };
        let told = told(&later(), Some(&why));
        let rows = told["rows"].as_array().expect("rows");
        let tree: Vec<_> = rows.iter().map(|row| (row["branches"].as_str(), row["name"].as_str())).collect();
        assert_eq!(tree, [(Some(""), Some("vm1")), (Some("├─ "), Some("a")), (Some("└─ "), Some("b"))]);
        let selves: Vec<&Value> = rows.iter().map(|row| &row["self_us"]).collect();
        assert_eq!(selves, [&json!(0.0), &json!(20.0), &json!(1.0)]);
        assert_eq!(rows[1]["activity"]["read"]["iops"], 50.0);
        assert!(
            told["why"].as_str().is_some_and(|text| text.starts_with("write: half take at most")),
            "{told}"
        );
    }

    #[test]
    fn devices_show_what_their_kinds_declare() {
        let mut cached = cached();
        cached.hierarchies[0].devices[0].over.clear();
        cached.hierarchies[0].devices[1].over = vec!["cache".into()];
        let told = told(&cached, None);
        let vm1 = &told["devices"][0];
        assert_eq!((&vm1["name"], &vm1["kind"]), (&json!("vm1"), &json!("accelerate")));
        let figures = vm1["figures"].as_array().expect("figures");
        let of = |label: &str| {
            figures.iter().find(|figure| figure["label"] == label).map(|figure| &figure["value"])
        };
        assert_eq!(of("flow pressure"), Some(&json!("12.0%")));
        assert_eq!(of("dirty bytes"), Some(&json!("120MiB")));
        assert!(vm1["commands"].as_str().is_some_and(|text| text.contains("drain")), "{vm1}");
        assert!(figures.iter().all(|figure| figure["help"].as_str().is_some_and(|help| !help.is_empty())));
    }

    #[test]
    fn a_volume_of_several_hosts_says_what_it_survives() {
        let told = told(&clustered(), None);
        assert_eq!(told["promise"], "every acknowledged write survives the loss of 1 flash or 1 host");
    }
}
