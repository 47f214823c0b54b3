//! `lamina predict`: how schedulers and drives would do, in virtual time.
//!
//! A run is a hierarchy on simulated drives, a policy, a workload and a seed. The layers are the real ones; only the
//! clock and the drives are not. All policies run with the same seeds, and a policy ranks above another only if the
//! seeds agree ([`rank`]).
//!
//! ```text
//!   settings (drives)  ×  policies  ×  seeds  ──▶  runs, a thread each  ──▶  figures  ──▶  tables, rankings, pictures
//! ```
//!
//! Predictions deliberately leave out the time that processors take, as the paper's virtual disk could not
//! (*Predicting Disk Scheduling Performance with Virtual Machines*, section 7).

pub mod drives;
mod figures;
pub mod log;
mod plots;
mod policy;
mod rank;
mod report;
mod setting;
mod source;
pub mod world;

use crate::bench::target::Target;
use crate::cli;
use crate::exit::Failure;
use drives::{Drive, Models, Named};
use figures::{Figures, Measured};
use lamina_graph::Plan;
use log::Counted;
use policy::Policy;
use report::{Outcome, Report, Scenario};
use setting::Setting;
use source::Source;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Requests that are counted, and those before, of a workload without an end.
const ENDLESS: Counted = Counted { warmup: 5000, requests: 50_000 };

/// Runs `lamina predict`.
pub fn run(args: &cli::Predict) -> Result<(), Failure> {
    let (report, first) = predict(args)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        out.write_all(report.text(args.verbose).as_bytes())?;
    }
    if let Some(folder) = &args.plots {
        for path in plots::write(folder, &report, &first)? {
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(())
}

/// The report, and what the first seeds measured, by setting and policy.
fn predict(args: &cli::Predict) -> Result<(Report, Vec<Vec<Measured>>), Failure> {
    let source = Arc::new(Source::read(&args.workload)?);
    let policies: Vec<Policy> =
        args.policy.iter().map(|text| Policy::read(text)).collect::<Result<_, _>>()?;
    let settings = settings(args)?;
    let counted = Counted {
        warmup: args.warmup.unwrap_or(if source.is_endless() { ENDLESS.warmup } else { 0 }),
        requests: args.requests.unwrap_or(if source.is_endless() { ENDLESS.requests } else { u64::MAX }),
    };
    let runs: Vec<Run<'_>> = settings
        .iter()
        .flat_map(|setting| policies.iter().map(move |policy| (setting, policy)))
        .flat_map(|(setting, policy)| (1..=args.seeds).map(move |seed| Run { setting, policy, seed }))
        .collect();
    let ran = all(&runs, &source, counted, processors(args.jobs))?;
    Ok(gathered(args, &settings, &policies, ran))
}

fn processors(wanted: Option<u16>) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    wanted.map_or_else(all, usize::from)
}

/// One run.
struct Run<'a> {
    setting: &'a Setting,
    policy: &'a Policy,
    seed: u64,
}

/// What a run measured, and how long that took.
struct Ran {
    measured: Measured,
    figures: Figures,
    took: Duration,
}

impl Run<'_> {
    fn run(&self, source: &Arc<Source>, counted: Counted) -> Result<Ran, Failure> {
        let (mut measured, took) = self.setting.measure(self.policy, self.seed, source, counted)?;
        let figures = measured.figures();
        // Only the pictures need more than the figures, and they show the first seed.
        if self.seed != 1 {
            measured = Measured::default();
        }
        Ok(Ran { measured, figures, took })
    }
}

/// All runs, on so many threads; results are in the order of the runs, whatever the order of their ends.
fn all(
    runs: &[Run<'_>],
    source: &Arc<Source>,
    counted: Counted,
    threads: usize,
) -> Result<Vec<Ran>, Failure> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<Ran, Failure>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(runs.len()) {
            scope.spawn(|| {
                while let Some((number, run)) = next_of(runs, &next) {
                    let ran = run.run(source, counted);
                    if ran.is_err() {
                        // Nothing more is begun.
                        next.store(runs.len(), Ordering::Relaxed);
                    }
                    done.lock().unwrap_or_else(|e| e.into_inner()).push((number, ran));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, ran)| ran).collect()
}

fn next_of<'a, T>(all: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    Some((number, all.get(number)?))
}

/// The report, and what the first seeds measured, by setting and policy.
fn gathered(
    args: &cli::Predict,
    settings: &[Setting],
    policies: &[Policy],
    ran: Vec<Ran>,
) -> (Report, Vec<Vec<Measured>>) {
    let requests: u64 = ran.iter().map(|ran| ran.figures.requests).sum();
    let seconds: f64 = ran.iter().map(|ran| ran.took.as_secs_f64()).sum();
    let mut ran = ran.into_iter();
    let (mut scenarios, mut first) = (Vec::new(), Vec::new());
    for setting in settings {
        let (mut outcomes, mut measured) = (Vec::new(), Vec::new());
        for policy in policies {
            let mut runs: Vec<Ran> = ran.by_ref().take(args.seeds as usize).collect();
            measured.extend(runs.first_mut().map(|run| std::mem::take(&mut run.measured)));
            let took = runs.iter().map(|run| run.took.as_secs_f64()).sum();
            outcomes.push(Outcome::new(
                &policy.name,
                runs.into_iter().map(|run| run.figures).collect(),
                took,
            ));
        }
        scenarios.push(Scenario::new(&setting.name, outcomes));
        first.push(measured);
    }
    let simulated_requests_per_s = if seconds > 0.0 { requests as f64 / seconds } else { 0.0 };
    let report =
        Report { workload: args.workload.clone(), seeds: args.seeds, scenarios, simulated_requests_per_s };
    (report, first)
}

/// The settings: each of the models for all sinks, and with other drives in the place of some if that is asked.
fn settings(args: &cli::Predict) -> Result<Vec<Setting>, Failure> {
    let (mut all, mut models) = (Vec::new(), Models::default());
    for text in &args.model {
        match text.split_once('=') {
            Some((device, model)) => models.give(device, model)?,
            None => all.push(Named::read(text)?),
        }
    }
    let base = std::env::current_dir().map_err(Failure::failed)?;
    let Some(file) = &args.file else {
        if let Some(device) = models.of.keys().next() {
            return Err(Failure::usage(format!(
                "--model {device}=...: there is no hierarchy file that has {device:?}"
            )));
        }
        let plain = |named: Named| Setting {
            name: named.model.name.clone(),
            hierarchy: None,
            drives: vec![Drive {
                device: "drive".into(),
                path: "/drive".into(),
                size: named.model.size.0,
                model: Some(named),
            }],
            depth: args.depth,
            base: base.clone(),
        };
        return Ok(all.into_iter().map(plain).collect());
    };
    let Target { plan, devices } = Target::of_file(file, args.device.as_slice(), &world::kinds())?;
    let replaced = replaced(&args.replace)?;
    let alls: Vec<Option<Named>> =
        if all.is_empty() { vec![None] } else { all.into_iter().map(Some).collect() };
    let mut settings = Vec::new();
    for all in alls {
        let mut models = Models { all, of: models.of.clone() };
        let setting = |models: &Models| on(models, &plan, &devices[0], args.depth, &base);
        settings.push(setting(&models)?);
        if !replaced.of.is_empty() {
            models.of.extend(replaced.of.clone());
            settings.push(setting(&models)?);
        }
    }
    Ok(settings)
}

/// The drives that are to take the places of others.
fn replaced(options: &[String]) -> Result<Models, Failure> {
    let mut models = Models::default();
    for text in options {
        let wrong = || Failure::usage(format!("--replace {text}: write DEVICE=MODEL"));
        let (device, model) = text.split_once('=').ok_or_else(wrong)?;
        models.give(device, model)?;
    }
    Ok(models)
}

/// A hierarchy on the drives of `models`.
fn on(models: &Models, plan: &Plan, device: &str, depth: u32, base: &Path) -> Result<Setting, Failure> {
    Ok(Setting {
        name: models.title(),
        hierarchy: Some((plan.clone(), device.to_owned())),
        drives: models.drives(plan)?,
        depth,
        base: base.to_owned(),
    })
}

#[cfg(test)]
mod tests;
