//! Hierarchy files for every command that reads them, and the kinds of layers that they may name.

use crate::exit::Failure;
use lamina_block::{Error, Kind};
use lamina_graph::{Plan, Report};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Every kind of layer, by name. The one place where they come together.
pub fn kinds() -> Vec<Kind> {
    let mut kinds = lamina_layers::KINDS.to_vec();
    kinds.push(lamina_nbd::client::KIND.clone());
    kinds.sort_by_key(|kind| kind.name);
    kinds
}

/// Reads and checks files. All problems are reported, warnings too.
pub fn load(files: &[PathBuf]) -> Result<Vec<Plan>, Failure> {
    load_with(files, &kinds())
}

/// The same, with these kinds.
pub fn load_with(files: &[PathBuf], kinds: &[Kind]) -> Result<Vec<Plan>, Failure> {
    let mut plans = Vec::new();
    let mut wrong = String::new();
    for file in files {
        match Plan::load(file, kinds) {
            Ok(plan) => plans.push(plan),
            Err(report) => wrong.push_str(&shown(&report)),
        }
    }
    for plan in &plans {
        eprint!("{}", shown(plan.warnings()));
    }
    if wrong.is_empty() { Ok(plans) } else { Err(Failure::File(wrong)) }
}

/// A sentence if `file` can be read once only, or never to its end: to open a pipe waits for its other end, and a
/// device may have no end. The reading itself tells whether the file can be read at all.
pub fn regular(file: &Path) -> Result<(), String> {
    match std::fs::metadata(file) {
        Ok(meta) if !meta.is_file() => {
            Err(format!("{} is no regular file: the daemon has to read the file as well", file.display()))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The text of a report, with its class.
pub fn failed(report: &Report) -> Error {
    Error::new(report.kind(), shown(report))
}

/// A report for standard error: with the lines of the file for a person, one line each for a log.
pub fn shown(report: &Report) -> String {
    if std::io::stderr().is_terminal() { report.pictures() } else { report.to_string() }
}
