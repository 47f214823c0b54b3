//! Arguments of `lamina calibrate`.

use clap::{Args, ValueEnum};
use lamina_block::{Bytes, Interval};
use std::path::PathBuf;

/// Arguments of `calibrate`.
#[derive(Args, Debug)]
pub struct Calibrate {
    /// A disk, or a file on one.
    #[arg(required_unless_present_any = ["probe", "trace"], conflicts_with_all = ["probe", "trace"])]
    pub device: Option<PathBuf>,
    /// Requests that were measured one at a time, a line each, compressed or not: `R|W Hit|Miss lbn sectors service_us
    /// think_us` (DiskSim's validation traces). The model is fitted to the first half and judged by the second.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["probe", "mechanism", "samples", "budget", "time", "plots"])]
    pub trace: Option<PathBuf>,
    /// A command for the shell that answers for a drive.
    #[arg(long, value_name = "COMMAND")]
    pub probe: Option<String>,
    /// The size of the drive behind --probe or --trace [default: found by reading; the end of the last request].
    #[arg(long, value_name = "SIZE", conflicts_with = "device")]
    pub size: Option<Bytes>,
    /// The file of the model [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite the file of the model; with --writes, the data of a device that carries a known format.
    #[arg(long)]
    pub force: bool,
    /// Write to the drive, too, at random places: all of its data are lost. Without it nothing is written.
    #[arg(long, conflicts_with = "trace")]
    pub writes: bool,
    /// What to call the drive in its model [default: the device, the command or the trace].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The kind of model [default: the one that says most].
    #[arg(long, value_enum, value_name = "KIND")]
    pub mechanism: Option<Mechanism>,
    /// Random pages to read, at most.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub samples: usize,
    /// Time of the drive after which no more random pages are read.
    #[arg(long, value_name = "TIME", default_value = "590s")]
    pub budget: Interval,
    /// For a device in which nothing turns: how long each length and depth is read, in each of two runs.
    #[arg(long, value_name = "TIME", default_value = "2s", conflicts_with = "probe")]
    pub time: Interval,
    /// A folder for pictures (SVG): time over distance, angles, seeks, distributions.
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    /// Decides where is read.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// A kind of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mechanism {
    /// The paper's line of time over distance.
    Linear,
    /// A hard disk with all its parts.
    Rotational,
}
