//! The program: command line, daemon, control API, metrics, and the tools around them.
//!
//! ```text
//!   main thread (tokio)                      one thread per core (the reactor)
//!   control socket, signals, logs  ──────▶   hierarchies, their nodes, their exports
//!                          closures by eventfd; plain data comes back
//! ```
//!
//! A hierarchy lives on one core and never leaves it. The main thread asks for copies of state and sends commands; it
//! never touches a request. Nothing here runs on a timer: an idle daemon sleeps in the kernel. The web page, if it is
//! wanted, has a thread of its own, and takes a sample each ten seconds.
//!
//! The library half exists for the tests; its interface is the binary's command line and the control API.

pub mod api;
pub mod cli;
pub mod control;
pub mod exit;
pub mod metrics;
pub mod show;
pub mod status;
pub mod verbs;

mod apply;
mod assemble;
mod bench;
mod calibrate;
mod check;
mod class;
mod clients;
mod cluster;
mod colour;
mod complete;
mod confirm;
mod create;
mod daemon;
mod design;
mod events;
mod files;
mod generate;
mod images;
mod import;
mod inspect;
mod jobs;
mod kinds;
mod log;
mod look;
mod map;
mod offline;
mod overlay;
mod predict;
mod record;
mod replace;
mod resize;
mod top;
mod uri;
mod vault;
mod web;
mod why;

use clap::Parser;
use cli::{Cli, Command};
use events::Journal;
use exit::Failure;
use std::process::ExitCode;
use std::sync::Arc;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    complete::complete();
    let cli = Cli::parse();
    let journal = log::start(cli.log.as_deref());
    match run(&cli, &journal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: &Cli, journal: &Arc<Journal>) -> Result<(), Failure> {
    match &cli.command {
        Command::Check(args) => check::run(args),
        Command::Serve(args) => daemon::run(args, journal),
        Command::Create(args) => create::run(args),
        Command::Design(args) => design::run(args),
        Command::Assemble(args) => assemble::run(args, journal),
        Command::Show(args) => show::run(args),
        Command::Top(args) => top::run(args),
        Command::Cluster(args) => cluster::run(args),
        Command::Status(args) => status::run(args),
        Command::Ctl(args) => control::ctl(args),
        Command::Repair(args) => offline::run_repair(args),
        Command::Events(args) => events::run(args),
        Command::Why(args) => why::run(args),
        Command::Map(args) => map::run(args),
        Command::Jobs(args) => jobs::run(args),
        Command::Apply(args) => apply::run(args),
        Command::Replace(args) => replace::run(args),
        Command::Resize(args) => resize::run(args),
        Command::Import(args) => import::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Scan(args) => inspect::run_scan(args),
        Command::Bench(args) => bench::run(args),
        Command::Trace(args) => record::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Vault(args) => vault::run(args),
        Command::Kinds(args) => kinds::run(args),
        Command::Completions(args) => generate::completions(args),
        Command::Man(args) => generate::man(args),
    }
}
