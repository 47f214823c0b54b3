//! Running checks: one seed, or a test of several.

use super::scene::Scene;
use super::subject::Subject;
use super::{change, crash, deaths, edges, faults, heal, model_check};
use serde_json::Value;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds of each test unless `LAMINA_SEEDS` says otherwise.
pub(crate) const SEEDS: u64 = 20;

/// One of the seven checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Random requests against a model.
    Model,
    /// Power loss before every change of a disk.
    Crash,
    /// Each request to a disk fails once.
    Faults,
    /// Quiesce, replace, grow, close, reopen.
    Change,
    /// Ends and errors.
    Edges,
    /// Several lives, each of which ends with its process or with the power.
    Deaths,
    /// Another copy below is found from above.
    Heal,
}

impl Check {
    /// All checks.
    pub const ALL: [Check; 7] =
        [Check::Model, Check::Crash, Check::Faults, Check::Change, Check::Edges, Check::Deaths, Check::Heal];

    /// The name of its test.
    pub const fn name(self) -> &'static str {
        match self {
            Check::Model => "model_check",
            Check::Crash => "crash_at_every_write",
            Check::Faults => "faults",
            Check::Change => "change_under_load",
            Check::Edges => "contract_edges",
            Check::Deaths => "deaths_in_a_row",
            Check::Heal => "healing_reaches_below",
        }
    }
}

/// The info ([`lamina_block::Manage::info`]) of a new device of `kind` among those of a subject.
pub fn shown(subject: &Subject, kind: &str) -> Value {
    let scene = Scene::new(subject, 0);
    let top = scene.build(subject).unwrap_or_else(|e| panic!("{}: {e}", subject.name));
    let nodes = scene.rig.nodes();
    let made = nodes.iter().chain([&top]).find(|node| node.kind() == kind);
    made.unwrap_or_else(|| panic!("{} has no device of kind {kind}", subject.name)).info()
}

/// How thorough one run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// As a test: every crash point, every fault.
    Full,
    /// As one of very many: a few drawn crash points, one fault.
    Sample,
}

/// A check that failed.
#[derive(Debug)]
pub struct Failure {
    /// The subject's name.
    pub subject: String,
    /// The check.
    pub check: Check,
    /// The seed that shows it.
    pub seed: u64,
    /// The failure.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} with seed {:#x}: {}", self.subject, self.check.name(), self.seed, self.message)
    }
}

impl Failure {
    /// The arguments of [`crate::simulate`] for running this again.
    pub fn arguments(&self) -> String {
        format!("--subject {:?} --check {} --seed {:#x}", self.subject, self.check.name(), self.seed)
    }
}

/// Runs one check with one seed.
pub fn run(subject: &Subject, check: Check, seed: u64, run: Run) -> Result<(), Failure> {
    let checked = catch_unwind(AssertUnwindSafe(|| match check {
        Check::Model => model_check::check(subject, seed),
        Check::Crash => crash::check(subject, seed, run),
        Check::Faults => faults::check(subject, seed, run),
        Check::Change => change::check(subject, seed),
        Check::Edges => edges::check(subject, seed),
        Check::Deaths => deaths::check(subject, seed, run),
        Check::Heal => heal::check(subject, seed),
    }));
    let message = match checked {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(panic) => match panic
            .downcast_ref::<&str>()
            .map(|s| s.to_string())
            .or(panic.downcast_ref::<String>().cloned())
        {
            Some(text) => format!("the run panicked: {text}"),
            None => "the run panicked".into(),
        },
    };
    Err(Failure { subject: subject.name.clone(), check, seed, message })
}

/// The parts of the replay command of a test; `gauntlet!` fills them in.
pub struct Replay {
    /// `CARGO_PKG_NAME`
    pub package: &'static str,
    /// `CARGO_CRATE_NAME`: of the library, or of the integration test.
    pub target: &'static str,
    /// `module_path!()` of the tests.
    pub module: &'static str,
}

/// The [`Replay`] of the module it stands in.
#[macro_export]
macro_rules! replay {
    () => {
        $crate::Replay {
            package: env!("CARGO_PKG_NAME"),
            target: env!("CARGO_CRATE_NAME"),
            module: module_path!(),
        }
    };
}

impl Replay {
    /// The command that runs the test `name` of this module again, with `settings` in its environment.
    pub(crate) fn command(&self, settings: &str, name: &str) -> String {
        let target = match self.target == self.package.replace('-', "_") {
            true => "--lib".into(),
            false => format!("--test {}", self.target),
        };
        let path: Vec<&str> = self.module.split("::").skip(1).chain([name]).collect();
        format!("{settings} cargo test -p {} {target} -- --exact {}", self.package, path.join("::"))
    }
}

/// A number from the environment, decimal or 0x-hexadecimal.
pub(crate) fn number(name: &str) -> Option<u64> {
    parse(&std::env::var(name).ok()?)
}

pub(crate) fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Runs one check as a test: panics with the seed and the replay command if a seed fails.
pub fn test(subject: &Subject, check: Check, replay: &Replay) {
    let seeds = match number("LAMINA_SEED") {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..number("LAMINA_SEEDS").unwrap_or(subject.seeds),
    };
    for seed in seeds {
        if let Err(failure) = run(subject, check, seed, Run::Full) {
            let command = replay.command(&format!("LAMINA_SEED={seed:#x}"), check.name());
            panic!("{failure}\n\nto see it again: {command}\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_names_the_test_and_where_it_is() {
        let command = |target, module| Replay { package: "a-b", target, module }.command("SEED=1", "faults");
        assert_eq!(command("a_b", "a_b::x::y"), "SEED=1 cargo test -p a-b --lib -- --exact x::y::faults");
        assert_eq!(command("t", "t::x"), "SEED=1 cargo test -p a-b --test t -- --exact x::faults");
        assert_eq!(command("t", "t"), "SEED=1 cargo test -p a-b --test t -- --exact faults");
    }
}
