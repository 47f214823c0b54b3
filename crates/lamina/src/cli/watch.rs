//! Arguments of the commands that look at a running daemon.

use super::Daemon;
use crate::complete;
use clap::Args;
use clap_complete::ArgValueCandidates;
use lamina_block::{Bytes, Interval};
use std::path::PathBuf;

/// Arguments of `show`.
#[derive(Args, Debug)]
pub struct Show {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON, one object for each interval.
    #[arg(long)]
    pub json: bool,
    /// Go on until interrupted.
    #[arg(long)]
    pub watch: bool,
    /// Time over which rates and latencies are taken.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Interval,
}

/// Arguments of `top`.
#[derive(Args, Debug)]
pub struct Top {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Time between two looks at the daemon, 100ms or more.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Interval,
}

/// Arguments of `events`.
#[derive(Args, Debug)]
pub struct Events {
    /// Only events of this device, or of this volume that several hosts reach.
    #[arg(add = ArgValueCandidates::new(complete::devices))]
    pub device: Option<String>,
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON, one object for each event.
    #[arg(long)]
    pub json: bool,
    /// Go on with events as they come, until interrupted.
    #[arg(long)]
    pub follow: bool,
}

/// Arguments of `why`.
#[derive(Args, Debug)]
pub struct Why {
    /// The export.
    #[arg(add = ArgValueCandidates::new(complete::exports))]
    pub export: String,
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the slowest requests, with their parts, into a file that Perfetto (ui.perfetto.dev) opens.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub trace: Option<PathBuf>,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct Status {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `map`.
#[derive(Args, Debug)]
pub struct Map {
    /// The name of a device or an export in its hierarchy file.
    #[arg(add = ArgValueCandidates::new(complete::devices))]
    pub device: String,
    /// The address there.
    pub offset: Bytes,
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
