//! A model from what was measured before: a trace of single requests with their times.
//!
//! The model is fitted to the first half of the trace and judged by the second, which it has not seen.

use super::{name, report};
use crate::cli;
use crate::exit::Failure;
use lamina_block::Bytes;
use lamina_calibrate::passive::{Fitted, Options, fit, think};
use lamina_calibrate::score;
use lamina_calibrate::trace::{parse, samples};
use lamina_drive::{Model, SECTOR};
use lamina_workload::trace::decompressed;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The longest trace, in bytes of text: some ten million requests.
const TEXT_MAX: u64 = 512 << 20;

/// Fits a model to the trace at `path`.
pub fn of_trace(args: &cli::Calibrate, path: &Path) -> Result<Model, Failure> {
    let wrong = |e: String| Failure::failed(format!("{}: {e}", path.display()));
    let records = parse(&text(path).map_err(wrong)?).map_err(|e| wrong(e.to_string()))?;
    let half = records.len() / 2;
    let think = think(&records[..half]);
    let all = samples(&records, think);
    let end = all.iter().map(|sample| sample.request.end()).max();
    let sectors = args.size.map(|size| size.0 / SECTOR).or(end);
    let options = Options { name: name(args, &path.display().to_string()), sectors };
    let step = &mut |step: &str| eprintln!("{step}");
    let Fitted { model, quality } = fit(&all[..half], &options, step).map_err(|e| wrong(e.to_string()))?;
    model.check().map_err(|e| wrong(format!("the measurements give no model: {e}")))?;
    let unseen = score(&model, &all[half..], args.seed);
    report::fitted(&mut std::io::stderr().lock(), think, &quality, &unseen)?;
    Ok(model)
}

/// The text of a file, perhaps compressed.
fn text(path: &Path) -> Result<String, String> {
    let file = File::open(path).and_then(decompressed).map_err(|e| e.to_string())?;
    let mut text = String::new();
    let read = file.take(TEXT_MAX + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    match read as u64 > TEXT_MAX {
        true => Err(format!("longer than {}: give a part of it", Bytes(TEXT_MAX))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::fmt::Write;

    fn refused(content: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.trace");
        std::fs::write(&path, content).expect("a file");
        let line = ["lamina", "calibrate", "--trace", path.to_str().expect("text")];
        let cli::Command::Calibrate(args) = cli::Cli::parse_from(line).command else { panic!("calibrate") };
        let Err(Failure::Failed(message)) = of_trace(&args, &path) else { panic!("no model") };
        message
    }

    #[test]
    fn what_gives_no_model_is_said() {
        let wrong = refused("R Miss 0 8 5000 100\nX Miss 8 8 5000 100\n");
        assert!(wrong.contains("a.trace: line 2: \"X\" is no operation"), "{wrong}");
        let mut few = String::new();
        for n in 0..40 {
            writeln!(few, "R Miss {} 8 5000.0 100.0", n * 1000).expect("text");
        }
        let wrong = refused(&few);
        assert!(wrong.contains("no rotation shows"), "{wrong}");
        assert!(refused("").contains("no rotation shows"));
    }
}
