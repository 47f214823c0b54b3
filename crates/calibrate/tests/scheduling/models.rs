//! What a user has of a drive: a model file, made of its times alone.

use crate::disk::Disk;
use lamina_calibrate::active::{self, find};
use lamina_calibrate::passive::{self, fit, think};
use lamina_calibrate::trace::{parse, samples};
use lamina_drive::{Model, Op, Request};
use std::fmt::Write;

/// Requests of a trace: as many as DiskSim's of measured drives have.
const TRACE: usize = 10_000;

/// Asks the drive, as `lamina calibrate --probe` does.
pub fn asked(disk: &mut dyn Disk) -> Result<Model, String> {
    let options = active::Options { seed: 1, budget_s: 600.0, pages: 0, parts: true, writes: false };
    let answers = find(disk, &options, &mut |_| ())?;
    let found = answers.disk.ok_or("no disk is found")?;
    read_back(&found.model("asked", disk.sectors()))
}

/// Measures single requests, and fits a model to the first half of them, as `lamina calibrate --trace` does.
pub fn fitted(disk: &mut dyn Disk) -> Result<Model, String> {
    of_trace(&trace(disk)?, Some(disk.sectors()))
}

/// The model of a drive of `sectors`, or one that ends with its last request, from the first half of a trace.
pub fn of_trace(text: &str, sectors: Option<u64>) -> Result<Model, String> {
    let records = parse(text).map_err(|e| e.to_string())?;
    let end = records.iter().map(|record| record.request.end()).max();
    let half = &records[..records.len() / 2];
    let options = passive::Options { name: "fitted".into(), sectors: sectors.or(end) };
    let fitted = fit(&samples(half, think(half)), &options, &mut |_| ()).map_err(|e| e.to_string())?;
    read_back(&fitted.model)
}

/// The model, as its file has it.
fn read_back(model: &Model) -> Result<Model, String> {
    Model::parse(&model.to_toml()).map_err(|e| e.to_string())
}

/// Requests like those of DiskSim's traces of measured drives: a third are writes, a fifth follow the one before, three
/// tenths are within 500 sectors of it, and the lengths are geometric; to whole microseconds.
fn trace(disk: &mut dyn Disk) -> Result<String, String> {
    let (mut random, mut end, mut text) = (fastrand::Rng::with_seed(1), 0, String::new());
    for _ in 0..TRACE {
        let sectors = 8 * (1..5).find(|_| random.bool()).unwrap_or(5);
        let last = disk.sectors() - u64::from(sectors);
        let place = random.u64(0..=last) / 8 * 8;
        let near = (end + random.u64(0..125) * 8).saturating_sub(500) / 8 * 8;
        let lbn = match random.u8(0..10) {
            0..2 => end.min(last),
            2..5 => near.min(last),
            _ => place,
        };
        let (op, word) = if random.u8(0..3) == 0 { (Op::Write, "W") } else { (Op::Read, "R") };
        let pause = f64::from(random.u32(0..90_000));
        let us = disk.ask(Request { op, lbn, sectors }, pause)?.round();
        writeln!(text, "{word} Miss {lbn} {sectors} {us} {pause}").map_err(|e| e.to_string())?;
        end = lbn + u64::from(sectors);
    }
    Ok(text)
}
