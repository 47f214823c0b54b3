//! Fits models to traces of measured drives and scores them on what they have not seen.
//!
//! `cargo run --release -p lamina-calibrate --example drives -- TRACE...`: traces in DiskSim's format, plain or `.gz`.
//! A model is fitted to the first half of the requests and scored on the second.

use lamina_calibrate::passive::{Fitted, Options, Quality, ablations, fit, think};
use lamina_calibrate::trace::{parse, samples};
use lamina_calibrate::{Score, score};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// DiskSim's own demerit figures on its validation set, over the whole traces, in milliseconds.
const DISKSIM: [(&str, f64); 3] = [("atlas10k", 0.268), ("cheetah9LP", 0.107), ("hp_c3323a", 0.305)];

fn main() -> ExitCode {
    println!(
        "drive | demerit ms | DiskSim | far reads | median ms | of a turn | within 0.5 ms | a turn off | rms ms"
    );
    for path in std::env::args().skip(1) {
        if let Err(message) = drive(&path) {
            eprintln!("{path}: {message}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn drive(path: &str) -> Result<(), String> {
    let records = parse(&text(path)?).map_err(|e| e.to_string())?;
    let began = Instant::now();
    let half = records.len() / 2;
    let think = think(&records[..half]);
    let all = samples(&records, think);
    let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".gz").trim_end_matches(".trace");
    let options = Options { name: name.into(), sectors: None };
    let size = all.iter().map(|s| s.request.end()).max();
    let options = Options { sectors: size, ..options };
    let Fitted { model, quality } =
        fit(&all[..half], &options, &mut |step| eprintln!("{name}: {step}")).map_err(|e| e.to_string())?;
    let s = score(&model, &all[half..], 1);
    print(name, &s, &quality);
    for (part, demerit_ms) in ablations(&model, &all[..half], &all[half..], 1) {
        println!("{name} | {part} | {demerit_ms:.3}");
    }
    eprintln!("{name}: {think:?}, {quality:#?} in {:?}", began.elapsed());
    if let Ok(folder) = std::env::var("MODELS") {
        std::fs::write(format!("{folder}/{name}.toml"), model.to_toml()).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn print(name: &str, s: &Score, quality: &Quality) {
    let disksim = DISKSIM.iter().find(|d| d.0 == name).map_or("-".into(), |d| d.1.to_string());
    println!(
        "{name} | {:.3} | {disksim} | {} | {:.3} | {:.1}% | {:.1}% | {:.1}% | {:.3}",
        s.demerit_ms,
        s.far,
        s.median_ms,
        100.0 * s.median_ms * 1000.0 / quality.rotation.period_us,
        100.0 * s.within_half_ms,
        100.0 * s.whole_turn_off,
        s.rms_ms
    );
}

fn text(path: &str) -> Result<String, String> {
    let bytes = if path.ends_with(".gz") {
        let output = Command::new("gzip").args(["-dc", path]).output().map_err(|e| e.to_string())?;
        output.stdout
    } else {
        std::fs::read(path).map_err(|e| e.to_string())?
    };
    String::from_utf8(bytes).map_err(|e| e.to_string())
}
