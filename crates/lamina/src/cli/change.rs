//! Arguments of the commands that change what a running daemon serves.

use super::Daemon;
use crate::complete;
use clap::Args;
use clap_complete::ArgValueCandidates;
use lamina_block::Bytes;
use std::path::PathBuf;

/// Arguments of `apply`.
#[derive(Args, Debug)]
pub struct Apply {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// The new hierarchy file.
    pub file: PathBuf,
    /// Only print the steps, or the reasons against the change: also if data would not fit on the remaining devices.
    #[arg(long)]
    pub plan: bool,
    /// Overwrite new members: their data is lost.
    #[arg(long)]
    pub force: bool,
    /// Afterwards replace the file that the daemon was started with by this one; the old one is kept as NAME.orig.
    /// Without this option a person is asked.
    #[arg(long, conflicts_with = "plan")]
    pub write: bool,
}

/// Arguments of `replace`.
#[derive(Args, Debug)]
pub struct Replace {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// The old disk: the name of its device, or its path.
    #[arg(add = ArgValueCandidates::new(complete::devices))]
    pub old: String,
    /// The path of the new disk.
    pub new: PathBuf,
    /// Only print the steps, or the reasons against the change.
    #[arg(long)]
    pub plan: bool,
    /// Overwrite what the new disk has.
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `resize`.
#[derive(Args, Debug)]
pub struct Resize {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// The name of a device or an export in its hierarchy file.
    #[arg(add = ArgValueCandidates::new(complete::devices))]
    pub device: String,
    /// The new size, at least.
    pub size: Bytes,
}

/// Arguments of `import`.
#[derive(Args, Debug)]
pub struct Import {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// The image: a file.
    pub image: PathBuf,
    /// The name of an export with an NBD address, or of its device.
    #[arg(add = ArgValueCandidates::new(complete::exports))]
    pub device: String,
    /// The format of the image, as `qemu-img` calls it: qcow2, raw, vmdk, vdi, vhdx ... It is never guessed.
    #[arg(long, default_value = "qcow2")]
    pub format: String,
    /// The image may read from other files that it names, such as a backing file.
    #[arg(long)]
    pub backing: bool,
    /// Leave the snapshots in the image out.
    #[arg(long)]
    pub no_snapshots: bool,
    /// Overwrite data without asking.
    #[arg(long)]
    pub force: bool,
}
