//! `lamina resize`: a device becomes larger, from the top down: first the devices below, as far as it needs them, then
//! itself.
//!
//! The kinds declare how their devices grow ([`Growth`]). The bytes that a layer keeps for itself are not known here:
//! the devices below get as many bytes more as are missing above, and again what is still missing then.

use crate::api::{Control, Device, Snapshot};
use crate::cli;
use crate::control::Client;
use crate::exit::Failure;
use crate::files;
use crate::uri::encoded;
use lamina_block::{Bytes, Growth};
use serde_json::{Value, json};
use std::io::Write;

/// How often the devices below grow, at most, until a device is as large as wanted.
const ROUNDS: usize = 4;
/// The largest size in bytes: with it, no sum of sizes below overflows.
const SIZE_MAX: u64 = 1 << 62;

/// Runs `lamina resize`.
pub fn run(args: &cli::Resize) -> Result<(), Failure> {
    if args.size.0 > SIZE_MAX {
        return Err(Failure::usage(format!("{} is too large: at most {}", args.size, Bytes(SIZE_MAX))));
    }
    let mut daemon = Running { client: Client::find(args.daemon.control.as_deref())? };
    let name = daemon.device(&args.device)?;
    let (now, to) = (daemon.look(&name)?.geometry.size, args.size.0);
    if to < now {
        return Err(Failure::failed(format!(
            "{name} has {}: `lamina ctl {name} help` says whether and how it becomes smaller, and what is lost then",
            Bytes(now)
        )));
    }
    grows(&daemon, &name, to)?;
    grow(&mut daemon, &name, to).map_err(|e| match e {
        Failure::Failed(why) => Failure::failed(format!(
            "{why}; devices that have become larger stay so, and the same command goes on from there"
        )),
        other => other,
    })
}

/// Devices that are looked at, and that take commands.
trait Devices {
    /// The present state of a device.
    fn look(&self, name: &str) -> Result<Device, Failure>;
    /// Sends a command.
    fn tell(&mut self, name: &str, command: &str, args: Value) -> Result<(), Failure>;
}

/// Those of a daemon.
struct Running {
    client: Client,
}

impl Running {
    /// The device with this name, or that of the export with this name.
    fn device(&self, name: &str) -> Result<String, Failure> {
        let served: Snapshot = self.client.get("/v1/hierarchy")?;
        let export =
            || served.exports().find(|export| export.name == name).map(|export| export.device.clone());
        let device = served.devices().find(|device| device.name == name).map(|device| device.name.clone());
        device.or_else(export).ok_or_else(|| {
            Failure::failed(format!("there is no device or export {name}: `lamina show` lists them"))
        })
    }
}

impl Devices for Running {
    fn look(&self, name: &str) -> Result<Device, Failure> {
        self.client.get(&format!("/v1/devices/{}", encoded(name, "")))
    }

    fn tell(&mut self, name: &str, command: &str, args: Value) -> Result<(), Failure> {
        let shown = args["size"].as_u64().map(|size| format!(" {}", Bytes(size))).unwrap_or_default();
        writeln!(std::io::stdout(), "{name}: {command}{shown}")?;
        let command = Control { name: command.into(), args };
        let _: Value = self.client.post(&format!("/v1/devices/{}/control", encoded(name, "")), &command)?;
        Ok(())
    }
}

/// How the devices of a kind grow.
fn growth(kind: &str) -> Growth {
    let known = files::kinds().into_iter().find(|known| known.name == kind);
    known.map_or(Growth::Never("devices of its kind are not known here"), |kind| kind.traits.growth)
}

/// The devices below that grow first.
fn below(device: &Device, growth: Growth) -> &[String] {
    let over = device.over.as_slice();
    match growth {
        Growth::First | Growth::Thin(_) => &over[..over.len().min(1)],
        Growth::Last => &over[over.len().saturating_sub(1)..],
        Growth::Each | Growth::EachThen(_) => over,
        Growth::Sized | Growth::Outside(_) | Growth::Never(_) => &[],
    }
}

/// Fails if a device cannot have `to` bytes because it, or one below that has to grow for it, never grows. Nothing is
/// changed.
fn grows(devices: &impl Devices, name: &str, to: u64) -> Result<(), Failure> {
    let device = devices.look(name)?;
    let growth = growth(&device.kind);
    if let Growth::Never(instead) = growth {
        return Err(Failure::failed(format!("{name}, of kind {}, does not grow: {instead}", device.kind)));
    }
    let has = match growth {
        Growth::Thin(_) => room(&device),
        _ => device.geometry.size,
    };
    match below(&device, growth) {
        _ if has >= to => Ok(()),
        [] if !matches!(growth, Growth::Sized | Growth::Outside(_)) => {
            Err(Failure::failed(format!("{name}, of kind {}, has the size that its file says", device.kind)))
        }
        below => below.iter().try_for_each(|name| grows(devices, name, u64::MAX)),
    }
}

/// The bytes of a thin volume for which there is space.
fn room(device: &Device) -> u64 {
    let of = |name: &str| device.info[name].as_u64().unwrap_or(0);
    of("extents") * of("extent")
}

/// Makes a device at least `to` bytes large.
fn grow(devices: &mut impl Devices, name: &str, to: u64) -> Result<(), Failure> {
    let device = devices.look(name)?;
    let growth = growth(&device.kind);
    let size = |devices: &dyn Devices| devices.look(name).map(|device| device.geometry.size);
    match growth {
        _ if device.geometry.size >= to => return Ok(()),
        Growth::Sized => sized(devices, &device, to)?,
        Growth::Outside(command) => devices.tell(name, command, json!({}))?,
        Growth::Thin(command) => {
            with_those_below(devices, name, to, Some(command), |devices| {
                devices.look(name).map(|d| room(&d))
            })?;
            devices.tell(name, "resize", json!({ "size": to }))?;
        }
        Growth::EachThen(command) => with_those_below(devices, name, to, Some(command), size)?,
        Growth::First | Growth::Each | Growth::Last => with_those_below(devices, name, to, None, size)?,
        Growth::Never(_) => {}
    }
    let has = size(&*devices)?;
    match has >= to {
        true => Ok(()),
        false => Err(short(&device, growth, has, to)),
    }
}

/// Gives a place a size such that the device on it has `to` bytes: superblocks of a member are on its place, too.
fn sized(devices: &mut impl Devices, device: &Device, to: u64) -> Result<(), Failure> {
    let (mut asked, mut before) = (to, device.geometry.size);
    for _ in 0..ROUNDS {
        devices.tell(&device.name, "resize", json!({ "size": asked }))?;
        let has = devices.look(&device.name)?.geometry.size;
        if has >= to || has <= before {
            break;
        }
        (asked, before) = (asked + (to - has), has);
    }
    Ok(())
}

/// Makes the devices below larger, and lets a device take that over by `command`, until it `has` what is wanted, or
/// gets no larger.
fn with_those_below(
    devices: &mut impl Devices,
    name: &str,
    to: u64,
    command: Option<&str>,
    has: impl Fn(&dyn Devices) -> Result<u64, Failure>,
) -> Result<(), Failure> {
    for _ in 0..ROUNDS {
        let device = devices.look(name)?;
        let (before, growing) = (has(&*devices)?, growth(&device.kind));
        if before >= to {
            return Ok(());
        }
        let sizes =
            below(&device, growing).iter().map(|child| devices.look(child).map(|child| child.geometry.size));
        let smallest = sizes.collect::<Result<Vec<u64>, _>>()?.into_iter().min().unwrap_or(0);
        // Of a stripe, or a parity, each device has a part.
        let parts = match growing {
            Growth::Each | Growth::EachThen(_) => (device.geometry.size + smallest / 2) / smallest.max(1),
            _ => 1,
        };
        let wanted = smallest + (to - before).div_ceil(parts.max(1)).next_multiple_of(UNIT);
        below(&device, growing).iter().try_for_each(|child| grow(devices, child, wanted))?;
        if let Some(command) = command {
            devices.tell(name, command, json!({}))?;
        }
        if has(&*devices)? <= before {
            return Ok(());
        }
    }
    Ok(())
}

/// Devices below grow by multiples of this, in bytes.
const UNIT: u64 = 1 << 20;

fn short(device: &Device, growth: Growth, has: u64, to: u64) -> Failure {
    let (name, has, to) = (&device.name, Bytes(has), Bytes(to));
    let why = match growth {
        Growth::Outside(_) => format!("make its place outside at least {to}, and then do this again"),
        Growth::EachThen(_) => "some of its devices, spares included, may be too small, or away".into(),
        _ => format!(
            "a key `size` of the device may keep it so, or a move of data: `lamina jobs` and `lamina ctl {name} info`"
        ),
    };
    Failure::failed(format!("{name} has {has} and not {to}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;

    /// Devices of these kinds, over others, with their sizes; a file, a mirror and a thin volume keep a MiB for
    /// themselves.
    #[derive(Default)]
    struct Model {
        devices: BTreeMap<&'static str, (&'static str, Vec<&'static str>)>,
        sizes: BTreeMap<&'static str, u64>,
        /// Sizes that are taken over by a command alone.
        taken: BTreeMap<&'static str, u64>,
        told: Vec<String>,
    }

    impl Model {
        fn with(mut self, name: &'static str, kind: &'static str, over: &[&'static str], mib: u64) -> Model {
            self.devices.insert(name, (kind, over.to_vec()));
            match over {
                [] => drop(self.sizes.insert(name, mib * MIB)),
                _ => drop(self.taken.insert(name, self.possible(name))),
            }
            if kind == "snapshot" {
                self.sizes.insert(name, mib * MIB);
            }
            self
        }

        /// The bytes for which there is space below.
        fn possible(&self, name: &str) -> u64 {
            let (kind, over) = &self.devices[name];
            let below = over.iter().map(|child| self.size(child));
            match *kind {
                "stripe" => below.min().unwrap_or(0) * over.len() as u64,
                "mirror" => below.min().unwrap_or(0) - MIB,
                "snapshot" => below.min().unwrap_or(0) - MIB,
                _ => below.min().unwrap_or(0),
            }
        }

        fn size(&self, name: &str) -> u64 {
            match self.devices[name].0 {
                "file" | "rbd" | "snapshot" => self.sizes[name],
                "mirror" => self.taken[name],
                _ => self.possible(name),
            }
        }
    }

    impl Devices for Model {
        fn look(&self, name: &str) -> Result<Device, Failure> {
            let (kind, over) = &self.devices[name];
            let space = self.taken.get(name).copied().unwrap_or(0) / MIB;
            let device = json!({
                "name": name, "kind": kind, "over": over, "in_flight": 0, "operations": {},
                "info": { "extents": space, "extent": MIB },
                "geometry": { "size": self.size(name), "block": 512, "optimal": 512, "stripe": 0, "discard": true,
                              "zero": true, "fua": true, "read_only": false },
            });
            Ok(serde_json::from_value(device).expect("a device"))
        }

        fn tell(&mut self, name: &str, command: &str, args: Value) -> Result<(), Failure> {
            let size = args["size"].as_u64();
            self.told.push(format!(
                "{name} {command}{}",
                size.map(|s| format!(" {}", s / MIB)).unwrap_or_default()
            ));
            let possible = self.possible(name);
            match (self.devices.get_key_value(name).map(|(key, (kind, _))| (*key, *kind)), size) {
                (Some((key, "file")), Some(size)) => drop(self.sizes.insert(key, size - MIB)),
                (Some((key, _)), Some(size)) => drop(self.sizes.insert(key, size)),
                (Some((key, "mirror" | "snapshot")), None) => drop(self.taken.insert(key, possible)),
                _ => {}
            }
            Ok(())
        }
    }

    fn resized(mut model: Model, name: &str, mib: u64) -> (Result<(), Failure>, Model) {
        let done = grows(&model, name, mib * MIB).and_then(|()| grow(&mut model, name, mib * MIB));
        (done, model)
    }

    #[test]
    fn devices_below_grow_as_far_as_they_have_to() {
        let files = || Model::default().with("a", "file", &[], 20).with("b", "file", &[], 24);
        let (done, model) = resized(
            files().with("both", "mirror", &["a", "b"], 0).with("vm", "snapshot", &["both"], 16),
            "vm",
            32,
        );
        done.expect("larger");
        assert_eq!(
            model.told,
            [
                "a resize 34",
                "a resize 35",
                "b resize 34",
                "b resize 35",
                "both grow",
                "vm grow",
                "vm resize 32",
            ]
        );
        // There is space already.
        let (done, model) = resized(files().with("vm", "snapshot", &["a"], 10), "vm", 19);
        done.expect("larger");
        assert_eq!(model.told, ["vm resize 19"]);
        // Each device has half of it.
        let (done, model) =
            resized(files().with("s", "stripe", &["a", "b"], 0).with("l", "linear", &["s"], 0), "l", 60);
        done.expect("larger");
        assert_eq!(model.told, ["a resize 30", "a resize 31", "b resize 30", "b resize 31"]);
        assert_eq!(model.sizes["b"], 30 * MIB);
        // The second one is large enough.
        let (done, model) = resized(files().with("both", "mirror", &["a", "b"], 0), "both", 22);
        done.expect("larger");
        assert_eq!(model.told, ["a resize 23", "a resize 24", "both grow"]);
    }

    #[test]
    fn a_device_that_never_grows_is_found_before_anything_is_done() {
        let model = Model::default().with("a", "file", &[], 20).with("sums", "integrity", &["a"], 0);
        let (done, model) = resized(model.with("vm", "linear", &["sums"], 0), "vm", 30);
        let why = done.expect_err("refused").into_message();
        assert!(why.starts_with("sums, of kind integrity, does not grow: its table"), "{why}");
        let (done, model) = resized(model, "vm", 20);
        done.expect("as large as wanted");
        assert_eq!(model.told, [""; 0]);
    }

    #[test]
    fn a_place_outside_is_to_be_larger_first() {
        let model = Model::default().with("image", "rbd", &[], 20).with("vm", "linear", &["image"], 0);
        let (done, model) = resized(model, "vm", 30);
        let why = done.expect_err("too small").into_message();
        assert_eq!(
            why,
            "image has 20MiB and not 30MiB: make its place outside at least 30MiB, and then do this again"
        );
        assert_eq!(model.told, ["image resize"]);
    }
}
