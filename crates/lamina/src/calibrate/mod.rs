//! `lamina calibrate`: from measurements of a drive to its model file.
//!
//! ```text
//!   DEVICE           real time, O_DIRECT     ─┐
//!   --probe COMMAND  a simulator's own time  ─┼─▶ probes, random pages ─▶ model, residuals, plots
//!   --trace FILE     what was measured       ─┘
//! ```
//!
//! Nothing is written to a drive. The model's file appears whole or not at all, so that an interrupted calibration
//! leaves nothing behind.

mod child;
mod device;
mod report;

use crate::cli;
use crate::exit::Failure;
use child::ChildProbe;
use device::Device;
use lamina_calibrate::Probe;
use lamina_calibrate::active::{Answers, Options, find, linear};
use lamina_drive::{Model, SECTOR};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Runs `lamina calibrate`.
pub fn run(args: &cli::Calibrate) -> Result<(), Failure> {
    let output = args.output.as_deref();
    if let Some(path) = output.filter(|path| path.exists() && !args.force) {
        return Err(Failure::usage(format!(
            "{}: there is such a file; --force overwrites it",
            path.display()
        )));
    }
    let model = match (&args.device, &args.probe) {
        (Some(path), None) => of_device(args, path)?,
        (None, Some(command)) => of_probe(args, command)?,
        (Some(_), Some(_)) | (None, None) => {
            return Err(Failure::usage("one of DEVICE and --probe is needed"));
        }
    };
    match output {
        Some(path) => save(path, &model.to_toml()),
        None => Ok(std::io::stdout().lock().write_all(model.to_toml().as_bytes())?),
    }
}

fn of_probe(args: &cli::Calibrate, command: &str) -> Result<Model, Failure> {
    let size = args.size.map(|size| size.0 / SECTOR);
    let mut probe = ChildProbe::start(command, size).map_err(Failure::failed)?;
    asked(args, &mut probe, args.name.as_deref().unwrap_or(command))
}

fn of_device(args: &cli::Calibrate, path: &Path) -> Result<Model, Failure> {
    let mut device = Device::open(path).map_err(Failure::failed)?;
    let name = path.display().to_string();
    asked(args, &mut device, args.name.as_deref().unwrap_or(&name))
}

/// Asks a drive, and makes the best model of what it answers.
fn asked(args: &cli::Calibrate, probe: &mut dyn Probe, name: &str) -> Result<Model, Failure> {
    let options = Options { seed: args.seed, budget_s: args.budget.0.as_secs_f64(), pages: args.samples };
    let answers = find(probe, &options, &mut |line| eprintln!("{line}")).map_err(Failure::failed)?;
    let sectors = probe.sectors();
    let line = linear::fit(&answers.readings, sectors);
    report::answers(&mut std::io::stderr().lock(), &answers, line.as_ref(), sectors)?;
    let Answers { disk, .. } = &answers;
    let hit_us = disk.as_ref().and_then(|disk| disk.cache.as_ref()).map(|cache| cache.hit_us);
    match (disk, line) {
        (Some(disk), _) if args.mechanism != Some(cli::Mechanism::Linear) => Ok(disk.model(name, sectors)),
        (_, Some(line)) => Ok(line.model(name, sectors, hit_us)),
        (_, None) => {
            Err(Failure::failed("too few random reads for a line: more --samples, or a longer --budget"))
        }
    }
}

/// Writes the file whole or not at all.
fn save(path: &Path, text: &str) -> Result<(), Failure> {
    let wrong = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    std::fs::write(&part, text).map_err(wrong)?;
    std::fs::rename(&part, path).map_err(wrong)?;
    eprintln!("{}: written", path.display());
    Ok(())
}
