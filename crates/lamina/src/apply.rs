//! `lamina apply`: asks a daemon to become what a file says, and tells how far it is.
//!
//! The steps are printed before anything is done. While data is moved, how far that is, now and then. Ctrl-C ends this
//! program and not the change, which is the daemon's. Afterwards the applied file can replace the one with which the
//! daemon was started ([`write`]), so that the next start knows it.

mod write;

use crate::api::{Applied, Apply, Job};
use crate::cli;
use crate::control::Client;
use crate::exit::Failure;
use crate::files;
use crate::jobs;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the work in the background is told: to a person, and to a log.
const TELL: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];

/// Runs `lamina apply`: the file is checked here, so that its mistakes are reported with their lines; then the daemon
/// reads it.
pub fn run(args: &cli::Apply) -> Result<(), Failure> {
    files::regular(&args.file).map_err(Failure::Usage)?;
    let plan = files::load(std::slice::from_ref(&args.file))?.remove(0);
    crate::daemon::check_together(std::slice::from_ref(&plan))?;
    crate::daemon::check_groups(&plan).map_err(Failure::File)?;
    let file = std::path::absolute(&args.file).map_err(Failure::failed)?;
    let file = file.to_str().ok_or_else(|| Failure::usage("the file's path is not UTF-8"))?.to_owned();
    let client = Client::find(args.daemon.control.as_deref())?;
    let ask = |plan| Apply { file: file.clone(), plan, force: args.force };
    let planned: Applied = client.post("/v1/apply", &ask(true))?;
    let mut out = std::io::stdout().lock();
    match planned.steps.as_slice() {
        [] => writeln!(out, "everything is as the file says")?,
        steps => steps.iter().try_for_each(|step| writeln!(out, "{step}"))?,
    }
    out.flush()?;
    if args.plan {
        return Ok(());
    }
    let applied = changed(&client, &ask(false))?;
    for started in &applied.outdated {
        replaced(args, &plan, Path::new(started), &client)?;
    }
    match applied.warnings.as_slice() {
        [] => Ok(()),
        wrong => Err(Failure::failed(format!("the hierarchy was changed, but {}", wrong.join("; ")))),
    }
}

/// Has the daemon make the change, and waits for it.
fn changed(client: &Client, apply: &Apply) -> Result<Applied, Failure> {
    let each = TELL[usize::from(!std::io::stderr().is_terminal())];
    let mut told = Instant::now();
    let tell = |jobs: Vec<Job>| {
        if !jobs.is_empty() && told.elapsed() >= each {
            told = Instant::now();
            eprint!("{}", jobs::table(&jobs));
        }
    };
    match client.post_watched("/v1/apply", apply, tell)? {
        Some(applied) => Ok(applied),
        None => Err(Failure::failed(
            "interrupted: the change goes on in the daemon. `lamina jobs` shows its progress, `lamina ctl DEVICE job \
             move cancel` stops a move of data; then the same file leads on, and when all data was moved the earlier \
             file leads back",
        )),
    }
}

/// Replaces the file with which the daemon was started, if that is wanted, or else warns of the consequences.
fn replaced(
    args: &cli::Apply,
    plan: &lamina_graph::Plan,
    started: &Path,
    client: &Client,
) -> Result<(), Failure> {
    let shown = started.display();
    if !args.write && !wanted(&format!("replace {shown}, which the daemon was started with, by this file?")) {
        eprintln!(
            "lamina: the daemon was started with {shown}, which describes the earlier hierarchy; `--write` replaces it \
             by this file"
        );
        return Ok(());
    }
    let kept = write::replace(started, &args.file, plan)?;
    eprintln!("lamina: {shown} is this file now; the old one is kept as {}", kept.display());
    let file = started.to_str().ok_or_else(|| Failure::usage("the file's path is not UTF-8"))?.to_owned();
    // Tells the daemon.
    client.post("/v1/apply", &Apply { file, plan: false, force: false }).map(|_: Applied| ())
}

/// Asks a person, if there is one.
pub fn wanted(question: &str) -> bool {
    let there = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if !there {
        return false;
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && ["y", "yes"].contains(&answer.trim())
}
