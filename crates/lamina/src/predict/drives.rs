//! The drives of a prediction: which model each sink has.

use super::world::{read_text, server_path};
use crate::exit::Failure;
use lamina_block::{Bytes, Error};
use lamina_drive::Model;
use lamina_graph::{Device, Plan};
use lamina_sim::{Contents, DiskOptions, Image, SimEnv};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A model with the name that it was given by, which layers find it by as well.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name of a model that comes with Lamina, or the absolute path of a file.
    pub name: String,
    /// The model.
    pub model: Model,
}

impl Named {
    /// The model called so, or in the file called so.
    pub fn read(name: &str) -> Result<Named, Failure> {
        if let Some(model) = Model::named(name) {
            return Ok(Named { name: name.into(), model });
        }
        let failed = |e: Error| {
            let message = "neither a model that comes with Lamina nor a model file";
            Failure::usage(format!("{name}: {message}: {}", e.message()))
        };
        let text = read_text(Path::new(name), Model::FILE_MAX).map_err(failed)?;
        let model = Model::parse(&text).map_err(|e| Failure::usage(format!("{name}: {e}")))?;
        let path = std::path::absolute(name).map_err(Failure::failed)?;
        Ok(Named { name: path.display().to_string(), model })
    }
}

/// A simulated drive.
#[derive(Clone, Debug)]
pub struct Drive {
    /// The device that it is for.
    pub device: String,
    /// Where layers open it.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// How long it takes; no time without one.
    pub model: Option<Named>,
}

/// Puts drives into a simulation. Each draws from a seed of its own, so that no two turn alike. They keep what is
/// written if layers look at `data`.
pub fn put(drives: &[Drive], env: &SimEnv, seed: u64, data: bool) {
    for (number, drive) in drives.iter().enumerate() {
        drive.put(env, seed ^ (number as u64) << 32, data);
    }
}

impl Drive {
    fn put(&self, env: &SimEnv, seed: u64, data: bool) {
        let contents = if data { Contents::Durable } else { Contents::Zeroes };
        let options = DiskOptions { latency_max: Duration::ZERO, contents, ..DiskOptions::new(self.size) };
        let disk = env.put_disk(&self.path, Image::blank(options));
        if let Some(named) = &self.model {
            disk.set_drive(named.model.drive(seed));
        }
    }
}

/// Models by what they are for, as options have them.
#[derive(Clone, Debug, Default)]
pub struct Models {
    /// For sinks that have none of their own.
    pub all: Option<Named>,
    /// By the names of sinks.
    pub of: BTreeMap<String, Named>,
}

impl Models {
    /// Gives the sink called `device` the drive called `model`. Only once: two for the same are a mistake.
    pub fn give(&mut self, device: &str, model: &str) -> Result<(), Failure> {
        match self.of.insert(device.into(), Named::read(model)?) {
            None => Ok(()),
            Some(_) => Err(twice(&format!("{device}={model}"))),
        }
    }

    /// What the drives are called in titles.
    pub fn title(&self) -> String {
        let all = self.all.iter().map(|named| named.model.name.clone());
        let of = self.of.iter().map(|(device, named)| format!("{device}={}", named.model.name));
        let names: Vec<String> = all.chain(of).collect();
        if names.is_empty() { "no model".into() } else { names.join(", ") }
    }

    /// The drives of the sinks of a hierarchy.
    pub fn drives(&self, plan: &Plan) -> Result<Vec<Drive>, Failure> {
        let sinks: Vec<(&Device, PathBuf)> =
            plan.devices().iter().filter_map(|d| Some((d, place(d)?))).collect();
        if let Some(unknown) = self.of.keys().find(|name| !sinks.iter().any(|(d, _)| d.name == **name)) {
            let names: Vec<&str> = sinks.iter().map(|(d, _)| d.name.as_str()).collect();
            return Err(Failure::usage(format!(
                "{}: no disk is called {unknown:?}: there is {}",
                plan.file(),
                names.join(", ")
            )));
        }
        sinks.into_iter().map(|(device, path)| self.drive(device, path)).collect()
    }

    fn drive(&self, device: &Device, path: PathBuf) -> Result<Drive, Failure> {
        let model = self.of.get(&device.name).or(self.all.as_ref()).cloned();
        let (given, name) = (size_of(device, &path), &device.name);
        let limit = model.as_ref().map(|named| named.model.size.0);
        match (given, limit) {
            (Some(size), Some(limit)) if size > limit => Err(Failure::usage(format!(
                "{name} has {}, and the drive {} only {}",
                Bytes(size),
                model.map(|named| named.model.name).unwrap_or_default(),
                Bytes(limit)
            ))),
            (Some(size), _) | (None, Some(size)) => Ok(Drive { device: name.clone(), path, size, model }),
            (None, None) => Err(Failure::usage(format!(
                "{name}: its size is not known: give it a drive, --model {name}=MODEL"
            ))),
        }
    }
}

/// The mistake of an option that names a model for what has one already.
pub fn twice(option: &str) -> Failure {
    Failure::usage(format!("{option}: another model is given for the same"))
}

/// Where a sink that has data outside of the hierarchy is opened; `None` for other devices.
fn place(device: &Device) -> Option<PathBuf> {
    if !device.over.is_empty() {
        return None;
    }
    let outside = device.kind.traits.outside.iter().find(|outside| outside.stored)?;
    if outside.is_file() { device.path(outside.key) } else { Some(server_path(&device.name)) }
}

/// The size that the file gives the device, or that its disk has.
fn size_of(device: &Device, path: &Path) -> Option<u64> {
    let key = device.keys.get("size").and_then(|size| serde_json::from_value::<Bytes>(size.clone()).ok());
    let real = || crate::look::Device::open(path).ok().flatten().map(|disk| disk.size);
    real().or(key.map(|size| size.0))
}
