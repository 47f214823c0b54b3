//! The target of a load: devices of a hierarchy file, or an export of an NBD server.

use crate::exit::Failure;
use crate::files;
use lamina_block::Kind;
use lamina_graph::Plan;
use std::path::Path;

/// A hierarchy and the devices of it that get the load: at least one, and only a workload may have several.
pub struct Target {
    pub plan: Plan,
    pub devices: Vec<String>,
}

impl Target {
    /// Reads `text`: a URI of an NBD server (reached over so many `connections`, of one device or, `apart`, each of its
    /// own), or else the name of a hierarchy file, of which `names` are devices or exports.
    pub fn read(text: &str, names: &[String], connections: u32, apart: bool) -> Result<Target, Failure> {
        if !text.contains("://") {
            return Target::of_file(Path::new(text), names, &files::kinds());
        }
        match names {
            [_, ..] => Err(Failure::usage("--device is for hierarchy files; a URI names its export")),
            [] if apart => server(text, connections, 1),
            [] => server(text, 1, connections),
        }
    }

    /// Reads a hierarchy file with these kinds of layers; `names` are devices or exports of it.
    pub fn of_file(path: &Path, names: &[String], kinds: &[Kind]) -> Result<Target, Failure> {
        let mut plans = files::load_with(&[path.to_owned()], kinds)?;
        let plan = plans.remove(0);
        let devices = match names {
            [] => vec![device(&plan, None)?],
            names => names.iter().map(|name| device(&plan, Some(name))).collect::<Result<_, _>>()?,
        };
        // The other hierarchies of the file stay closed.
        Ok(Target { plan: plan.around(&devices), devices })
    }
}

/// Our NBD client, a device for each server.
pub fn servers(uris: &[&str]) -> Result<Target, Failure> {
    clients(uris.iter().copied(), 1)
}

/// Our NBD client, so many devices alike.
fn server(uri: &str, devices: u32, connections: u32) -> Result<Target, Failure> {
    clients((0..devices).map(|_| uri), connections)
}

/// A device for each URI. The client does not reconnect: that would falsify a measurement.
fn clients<'a>(uris: impl Iterator<Item = &'a str> + Clone, connections: u32) -> Result<Target, Failure> {
    let kind = lamina_nbd::client::KIND.name;
    let device = |(number, uri): (usize, &str)| {
        // A JSON string is a TOML string.
        let address = serde_json::json!(uri);
        format!(
            "[device.server{number}]\ntype = {kind:?}\naddress = {address}\nconnections = {connections}\n\
             reconnect = \"0s\"\n"
        )
    };
    let text: String = uris.clone().enumerate().map(device).collect();
    let base = std::env::current_dir().map_err(Failure::failed)?;
    let plan = Plan::parse(&text, uris.clone().next().unwrap_or_default(), Path::new(&base), &files::kinds());
    let plan = plan.map_err(|report| Failure::File(report.to_string()))?;
    Ok(Target { plan, devices: (0..uris.count()).map(|number| format!("server{number}")).collect() })
}

/// The device called `name`, or the device of the export of that name; without a name, the device of the only export.
fn device(plan: &Plan, name: Option<&str>) -> Result<String, Failure> {
    let wrong = |what: String| Failure::usage(format!("{}: {what}", plan.file()));
    match (name, plan.exports()) {
        (Some(name), exports) => {
            let device = plan.devices().iter().find(|d| d.name == name).map(|d| &d.name);
            let export = || exports.iter().find(|e| e.name == name).map(|e| &e.device);
            let found = device.or_else(export).cloned();
            found.ok_or_else(|| wrong(format!("there is neither a device nor an export {name:?}")))
        }
        (None, [export]) => Ok(export.device.clone()),
        (None, exports) => {
            Err(wrong(format!("the file has {} exports: choose a device with --device NAME", exports.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[device.a]\ntype = \"null\"\nsize = \"1MiB\"\n\
        [device.b]\ntype = \"null\"\nsize = \"1MiB\"\n\
        [export.x]\ndevice = \"b\"\nnbd = \"unix:x\"\n";

    fn read(text: &str, names: &[&str]) -> Result<Target, String> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.toml");
        std::fs::write(&path, text).expect("a file");
        Target::read(path.to_str().expect("a path in UTF-8"), &names, 1, false).map_err(|e| format!("{e:?}"))
    }

    #[test]
    fn devices_and_exports_are_found_by_name() {
        for (names, device) in [(&[][..], "b"), (&["x"], "b"), (&["a"], "a")] {
            let target = read(FILE, names).expect("a target");
            assert_eq!(target.devices, [device]);
            assert_eq!(target.plan.devices().len(), 1);
        }
        assert!(read(FILE, &["z"]).err().expect("no such").contains("neither a device nor an export"));
        let two = format!("{FILE}[export.y]\ndevice = \"a\"\nnbd = \"unix:x\"\n");
        assert!(read(&two, &[]).err().expect("two exports").contains("--device NAME"));
    }

    #[test]
    fn several_devices_are_opened_and_no_other() {
        let file = format!("{FILE}[device.c]\ntype = \"null\"\nsize = \"1MiB\"\n");
        let target = read(&file, &["c", "x"]).expect("a target");
        assert_eq!(target.devices, ["c", "b"]);
        assert_eq!(target.plan.devices().len(), 2);
    }

    #[test]
    fn servers_are_uris() {
        let target = Target::read("nbd+unix:///e?socket=/tmp/a\"b", &[], 2, false).expect("a target");
        assert_eq!(target.plan.devices()[0].kind.name, "nbd");
        assert!(Target::read("http://x", &[], 1, false).is_err());
        assert!(Target::read("nbd://host/e", &["e".to_owned()], 1, false).is_err());
        let apart = Target::read("nbd://host/e", &[], 3, true).expect("a target");
        assert_eq!(apart.plan.devices().len(), 3);
        assert_eq!(apart.devices, ["server0", "server1", "server2"]);
    }
}
