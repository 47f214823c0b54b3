//! `lamina design`: from what is wanted to a hierarchy file.
//!
//! The file is printed with its reasons: for each layer its purpose, the failures that it survives, its costs in space
//! and speed; and at the end the properties that were given up. Nothing is opened for writing, nothing is made: `lamina
//! create` does that.

mod choose;
mod text;

use crate::cli;
use crate::exit::Failure;
use crate::look::Device;
use choose::{Design, Leg, Wish};
use lamina_block::Bytes;
use std::io::Write;
use std::path::Path;

/// Runs `lamina design`.
pub fn run(args: &cli::Design) -> Result<(), Failure> {
    if let Some(message) = lamina_graph::bad_name(&args.name) {
        return Err(Failure::usage(format!("--name: {message}")));
    }
    let wish = Wish {
        name: args.name.clone(),
        size: args.size.0,
        survive: args.survive,
        prefer: args.prefer,
        encrypt: args.encrypt,
        snapshots: args.snapshots,
        checksums: args.checksums,
        legs: args.devices.iter().map(|path| leg(path)).collect::<Result<_, _>>()?,
    };
    let design = Design::of(wish).map_err(Failure::usage)?;
    Ok(std::io::stdout().lock().write_all(text::of(&design).as_bytes())?)
}

/// The present state of `path`. A missing device will be a file.
fn leg(path: &Path) -> Result<Leg, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::usage(format!("--devices: {}: {e}", path.display()));
    let found = match Device::open(path) {
        Ok(Some(device)) => Some((device.size, device.is_block_device())),
        Ok(None) => return Err(failed(&"is neither a file nor a block device")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(failed(&e)),
    };
    let text = path.to_str().ok_or_else(|| failed(&"is no text that a hierarchy file can hold"))?;
    Ok(Leg {
        path: text.into(),
        size: found.map(|(size, _)| Bytes(size)),
        is_block_device: found.is_some_and(|(_, is_block_device)| is_block_device),
    })
}
