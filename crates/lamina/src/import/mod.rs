//! `lamina import`: the data of an image of a virtual machine, such as a qcow2, with its internal snapshots, into a
//! served device.
//!
//! QEMU's own tools read the image, and this program's NBD client copies it into the export of the daemon. Only blocks
//! that differ are written: a snapshot and the states after it share the others.

mod copy;
mod image;

use crate::api::{Control, Device, Export, Snapshot};
use crate::cli;
use crate::confirm::confirm;
use crate::control::Client;
use crate::exit::Failure;
use crate::files;
use crate::uri::encoded;
use image::Image;
use lamina_block::Bytes;
use serde_json::{Value, json};
use std::io::Write;

/// Runs `lamina import`.
pub fn run(args: &cli::Import) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let mut image = Image::look(&args.image, &args.format, args.backing)?;
    if args.no_snapshots {
        image.states.retain(|state| state.name.is_none());
    }
    let served: Snapshot = client.get("/v1/hierarchy")?;
    let (export, uri) = exported(&served, &args.device)?;
    let device: Device = client.get(&format!("/v1/devices/{}", encoded(&export.device, "")))?;
    let snapshot = fits(&image, &device)?;
    if !args.force && copy::has_data(&uri, image.size)? {
        confirm(&format!("{}: the import overwrites the first {}", device.name, Bytes(image.size)))?;
    }
    let mut out = std::io::stdout();
    for state in &image.states {
        let source = image.serve(state)?;
        let written = copy::copy(&source.uri(), &uri, image.size)?;
        let name = state.name.as_deref().unwrap_or("the present state");
        writeln!(out, "{name}: {} of {} written", Bytes(written).rounded(), Bytes(image.size).rounded())?;
        if let (Some(name), Some(snapshot)) = (&state.name, snapshot) {
            let command = Control { name: snapshot.into(), args: json!({ "name": name }) };
            let path = format!("/v1/devices/{}/control", encoded(&device.name, ""));
            let _: Value = client.post(&path, &command)?;
        }
    }
    Ok(())
}

/// The export with this name, or else one of the device with this name, and its NBD URI.
fn exported<'a>(served: &'a Snapshot, name: &str) -> Result<(&'a Export, String), Failure> {
    let named = |export: &&Export| export.name == name;
    let of_device = |export: &&Export| export.device == name;
    let export = served.exports().find(named).or_else(|| served.exports().find(of_device));
    let export = export.ok_or_else(|| {
        Failure::failed(format!(
            "there is no export {name:?}, and no export of such a device: `lamina show` lists them"
        ))
    })?;
    let endpoint = export.endpoints.iter().find(|endpoint| endpoint.protocol == "nbd").ok_or_else(|| {
        Failure::failed(format!(
            "export {:?} has no NBD address: add nbd = \"unix:PATH\" to it in the hierarchy file, then `lamina apply`",
            export.name
        ))
    })?;
    Ok((export, endpoint.address.clone()))
}

/// The command that keeps a state of the device, if the image needs one. Fails if the device cannot have all of the
/// image.
fn fits(image: &Image, device: &Device) -> Result<Option<&'static str>, Failure> {
    let (name, size) = (&device.name, device.geometry.size);
    if size < image.size {
        let size = Bytes(size);
        return Err(Failure::failed(format!(
            "{name} has {size}, the image {0}: `lamina resize {name} {0}` makes it larger",
            Bytes(image.size)
        )));
    }
    let kind = files::kinds().into_iter().find(|kind| kind.name == device.kind);
    let snapshot = kind.and_then(|kind| kind.traits.snapshot);
    match image.states.iter().any(|state| state.name.is_some()) && snapshot.is_none() {
        false => Ok(snapshot),
        true => Err(Failure::failed(format!(
            "the image has snapshots, and {name}, of kind {}, keeps none: --no-snapshots leaves them out",
            device.kind
        ))),
    }
}
