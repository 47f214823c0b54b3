//! `lamina calibrate`: from measurements of a drive to its model file.
//!
//! ```text
//!   DEVICE           real time, O_DIRECT     ─┐
//!   --probe COMMAND  a simulator's own time  ─┼─▶ probes, random pages ─▶ model, residuals, plots
//!   --trace FILE     what was measured       ─┘
//! ```
//!
//! Nothing is written to a drive without `--writes`, and then not to one that is in use, nor, without `--force`, to one
//! that carries a known format. The model's file appears whole or not at all, so that an interrupted calibration
//! leaves nothing behind.

mod child;
mod device;
mod plot;
mod report;
mod trace;

use crate::cli;
use crate::exit::Failure;
use crate::inspect;
use child::ChildProbe;
use device::Device;
use lamina_calibrate::active::{Answers, Options, find, linear};
use lamina_calibrate::{Probe, Score, score, ssd};
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
    if let Some(folder) = &args.plots {
        // What cannot be written is said before anything is measured.
        std::fs::create_dir_all(folder).map_err(|e| Failure::failed(format!("{}: {e}", folder.display())))?;
    }
    let model = match (&args.device, &args.probe, &args.trace) {
        (Some(path), None, None) => of_device(args, path)?,
        (None, Some(command), None) => of_probe(args, command)?,
        (None, None, Some(path)) => trace::of_trace(args, path)?,
        _ => return Err(Failure::usage("one of DEVICE, --probe and --trace is needed")),
    };
    match output {
        Some(path) => save(path, &model.to_toml()),
        None => Ok(std::io::stdout().lock().write_all(model.to_toml().as_bytes())?),
    }
}

fn of_probe(args: &cli::Calibrate, command: &str) -> Result<Model, Failure> {
    let size = args.size.map(|size| size.0 / SECTOR);
    let mut probe = ChildProbe::start(command, size).map_err(Failure::failed)?;
    asked(args, &mut probe, &name(args, command))?.model.ok_or_else(too_few)
}

fn of_device(args: &cli::Calibrate, path: &Path) -> Result<Model, Failure> {
    let mut device = Device::open(path, args.writes).map_err(Failure::failed)?;
    // The device is ours by now: nobody begins to use it behind this look.
    if args.writes && !args.force {
        refuse_overwriting(path, device.bytes())?;
    }
    let name = name(args, &path.display().to_string());
    let asked = asked(args, &mut device, &name)?;
    if asked.turns || args.mechanism == Some(cli::Mechanism::Linear) {
        return asked.model.ok_or_else(too_few);
    }
    flash(args, &mut device, &name)
}

/// Refuses a device that carries something: its data would be lost.
fn refuse_overwriting(path: &Path, size: u64) -> Result<(), Failure> {
    let wrong = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
    // Signatures are read at places that are not aligned.
    let file = std::fs::File::open(path).map_err(wrong)?;
    match inspect::scan(&file, size).map_err(wrong)?.first() {
        None => Ok(()),
        Some(found) => Err(Failure::Unconfirmed(format!(
            "{} carries {}: nothing was written; --force writes to it, and the data there is lost",
            path.display(),
            found.as_text()
        ))),
    }
}

/// The name of the model, no longer than models allow.
fn name(args: &cli::Calibrate, drive: &str) -> String {
    let name = args.name.as_deref().unwrap_or(drive);
    name.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn too_few() -> Failure {
    Failure::failed("too few random reads for a line: more --samples, or a longer --budget")
}

/// What a drive's answers came to.
struct Asked {
    /// The model that says most, if there were enough answers.
    model: Option<Model>,
    /// Whether anything turns in the drive.
    turns: bool,
}

/// Asks a drive, and makes the best model of what it answers.
fn asked(args: &cli::Calibrate, probe: &mut dyn Probe, name: &str) -> Result<Asked, Failure> {
    let is_line = args.mechanism == Some(cli::Mechanism::Linear);
    let options = Options {
        seed: args.seed,
        budget_s: args.budget.0.as_secs_f64(),
        pages: args.samples,
        parts: !is_line,
        writes: args.writes,
    };
    let answers = find(probe, &options, &mut |line| eprintln!("{line}")).map_err(Failure::failed)?;
    let sectors = probe.sectors();
    let line = linear::fit(&answers.readings, sectors);
    let mut out = std::io::stderr().lock();
    report::answers(&mut out, &answers, line.as_ref(), sectors)?;
    let Answers { disk, readings, .. } = &answers;
    if args.writes && answers.writes == 0 {
        writeln!(out, "writes      no disk is found whose writes could be measured: nothing was written")?;
    }
    let hit_us = disk.as_ref().and_then(|disk| disk.cache.as_ref()).map(|cache| cache.hit_us);
    let disk = disk.as_ref();
    if disk.is_none() && args.mechanism == Some(cli::Mechanism::Rotational) {
        return Err(Failure::failed("no disk is found that a rotational model could be made of"));
    }
    let of_line = || line.as_ref().map(|line| line.model(name, sectors, hit_us));
    let model = disk.map(|disk| disk.model(name, sectors)).or_else(of_line);
    if let Some(model) = &model {
        model.check().map_err(|e| Failure::failed(format!("the measurements give no model: {e}")))?;
    }
    let score = model.as_ref().map(|model| score(model, readings, args.seed));
    if let Some(score) = &score {
        report::score(&mut out, "random pages", score)?;
    }
    if let Some(folder) = &args.plots {
        plots(folder, &answers, line.as_ref(), score.as_ref(), sectors).map_err(Failure::failed)?;
    }
    Ok(Asked { model, turns: answers.turns })
}

fn plots(
    folder: &Path,
    answers: &Answers,
    line: Option<&linear::Line>,
    score: Option<&Score>,
    sectors: u64,
) -> Result<(), String> {
    line.map_or(Ok(()), |line| plot::distance(folder, &answers.readings, line))?;
    if let Some(disk) = &answers.disk {
        plot::angle(folder, &answers.readings, disk.turn_us.value, sectors)?;
        plot::seek(folder, disk)?;
    }
    score.map_or(Ok(()), |score| plot::cdf(folder, score))
}

/// Fits an SSD's model to a device in which nothing turns, and compares it with a second run.
fn flash(args: &cli::Calibrate, device: &mut Device, name: &str) -> Result<Model, Failure> {
    let (size, cells) = (device.bytes(), ssd::cells(device.bytes()));
    let mut progress = |line: &str| eprintln!("{line}");
    let runs =
        ssd::measure(device, &cells, args.time.0, args.seed, &mut progress).map_err(Failure::failed)?;
    let few = || Failure::failed("too few reads for a model: a larger device, or a longer --time");
    let model = ssd::fit(&runs.first, name, size).ok_or_else(few)?;
    model.check().map_err(|e| Failure::failed(format!("the measurements give no model: {e}")))?;
    eprint!("{}", ssd::Comparison::new(&model, &runs, args.seed));
    Ok(model)
}

/// Writes the file whole or not at all.
fn save(path: &Path, text: &str) -> Result<(), Failure> {
    let wrong = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let mut file = std::fs::File::create(&part).map_err(wrong)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(wrong)?;
    std::fs::rename(&part, path).map_err(wrong)?;
    eprintln!("{}: written", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_carries_a_known_format_is_not_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let mut disk = vec![0; 1 << 20];
        let looked = |disk: &[u8]| {
            std::fs::write(&path, disk).expect("a file");
            refuse_overwriting(&path, disk.len() as u64)
        };
        assert!(looked(&disk).is_ok(), "nothing is on a blank disk");
        disk[..6].copy_from_slice(b"LUKS\xba\xbe");
        disk[7] = 2;
        let Err(Failure::Unconfirmed(refused)) = looked(&disk) else { panic!("it carries a volume") };
        assert!(refused.contains("LUKS") && refused.contains("--force writes to it"), "{refused}");
    }
}
