//! Very many seeds over a list of subjects, as a test or as a program.

use super::run::{Check, Failure, Replay, Run, number, parse, run};
use super::subject::Subject;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Seeds that the program runs unless it is told otherwise.
const SEEDS: u64 = 10_000;

/// What a soak did.
#[derive(Clone, Copy, Debug)]
pub struct Soaked {
    /// Seeds run.
    pub seeds: u64,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Soaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.seeds as f64 / self.took.as_secs_f64().max(1e-9);
        write!(f, "{} seeds in {:.1} s, {rate:.0} a second", self.seeds, self.took.as_secs_f64())
    }
}

/// Runs `seeds` seeds from `from` on: each seed is one check of one subject, all of them in turn. Stops at the first
/// failure.
pub fn soak(subjects: &[Subject], seeds: u64, from: u64) -> Result<Soaked, Failure> {
    soak_and_tell(subjects, &Check::ALL, from..from.saturating_add(seeds), |_, _| {})
}

/// The first seed of a soak that is not told where to begin: others than the single tests run.
const FROM: u64 = 1 << 20;

/// Soaks as the test `name`: `seeds` seeds, or as many as `LAMINA_SOAK` says, from `LAMINA_SOAK_FROM` on. Panics with
/// the replay command if one fails.
pub fn soak_test(subjects: &[Subject], seeds: u64, name: &str, replay: &Replay) {
    let seeds = number("LAMINA_SOAK").unwrap_or(seeds);
    match soak(subjects, seeds, number("LAMINA_SOAK_FROM").unwrap_or(FROM)) {
        Ok(soaked) => println!("{soaked}: no failure"),
        Err(failure) => {
            let settings = format!("LAMINA_SOAK=1 LAMINA_SOAK_FROM={:#x}", failure.seed);
            panic!("{failure}\n\nto see it again: {}\n", replay.command(&settings, name));
        }
    }
}

fn soak_and_tell(
    subjects: &[Subject],
    checks: &[Check],
    seeds: std::ops::Range<u64>,
    mut tell: impl FnMut(u64, Duration),
) -> Result<Soaked, Failure> {
    let began = Instant::now();
    let pairs: Vec<(&Subject, Check)> =
        subjects.iter().flat_map(|subject| checks.iter().map(move |check| (subject, *check))).collect();
    let in_turn = pairs.iter().cycle();
    let mut done = 0;
    // The turn depends on the seed alone, so that ranges can be divided.
    let skip = if pairs.is_empty() { 0 } else { (seeds.start % pairs.len() as u64) as usize };
    for (seed, (subject, check)) in seeds.zip(in_turn.skip(skip)) {
        run(subject, *check, seed, Run::Sample)?;
        done += 1;
        tell(done, began.elapsed());
    }
    Ok(Soaked { seeds: done, took: began.elapsed() })
}

/// What the program is asked to do.
#[derive(Debug)]
struct Asked {
    seeds: std::ops::Range<u64>,
    checks: Vec<Check>,
    subject: Option<String>,
}

impl Asked {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
        let (mut count, mut from) = (SEEDS, 0);
        let mut asked = Asked { seeds: 0..0, checks: Check::ALL.to_vec(), subject: None };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || parse(&value).ok_or_else(|| format!("{name}: {value:?} is no number"));
            match name.as_str() {
                "--seeds" => count = number()?,
                "--from" => from = number()?,
                "--seed" => (from, count) = (number()?, 1),
                "--subject" => asked.subject = Some(value),
                "--check" => {
                    asked.checks.retain(|check| check.name() == value);
                    if asked.checks.is_empty() {
                        return Err(format!("there is no check {value:?}"));
                    }
                }
                _ => return Err(format!("{name} is not known: {USAGE}")),
            }
        }
        asked.seeds = from..from.saturating_add(count);
        Ok(asked)
    }
}

const USAGE: &str = "write [--seeds N] [--from N] [--seed N] [--subject NAME] [--check NAME]";

/// A program that soaks `subjects` as its arguments say: `--seeds` how many, `--from` which, `--subject` and `--check`
/// which ones, or `--seed` a single one. Its exit code is 1 after a failure, and 2 if the arguments are wrong.
pub fn simulate(subjects: Vec<Subject>) -> ExitCode {
    let asked = match Asked::read(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let chosen = |subject: &Subject| asked.subject.as_deref().is_none_or(|name| subject.name() == name);
    let subjects: Vec<Subject> = subjects.into_iter().filter(chosen).collect();
    if subjects.is_empty() {
        eprintln!("there is no subject {:?}", asked.subject.unwrap_or_default());
        return ExitCode::from(2);
    }
    let total = asked.seeds.end - asked.seeds.start;
    let mut told = Duration::ZERO;
    let tell = |done: u64, took: Duration| {
        if took >= told + Duration::from_secs(1) {
            told = took;
            eprint!("\r{done} of {total} seeds, {:.0} a second ", done as f64 / took.as_secs_f64());
            let _unseen = std::io::stderr().flush();
        }
    };
    match soak_and_tell(&subjects, &asked.checks, asked.seeds, tell) {
        Ok(soaked) => {
            println!("\r{soaked}: no failure");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("\r{failure}\n\nto see it again: the same command with {}", failure.arguments());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Asked, String> {
        Asked::read(text.split_whitespace().map(String::from))
    }

    #[test]
    fn arguments() {
        let asked = read("--check faults --seed 0x10").unwrap();
        assert_eq!((asked.seeds, asked.checks), (16..17, vec![Check::Faults]));
        assert_eq!(read("--seeds 5 --from 7").unwrap().seeds, 7..12);
        for wrong in ["--seeds", "--seeds x", "--check nothing", "--what 1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_failure_in_a_soak_is_found_again_by_its_arguments() {
        let wrong = Subject::new("wrong", |rig| async move {
            Err::<_, _>(lamina_block::Error::media(rig.env().tick().to_string()))
        });
        let failure = soak(std::slice::from_ref(&wrong), 100, 3).unwrap_err();
        let asked = read(&failure.arguments().replace('"', "")).unwrap();
        let again = soak_and_tell(&[wrong], &asked.checks, asked.seeds, |_, _| {}).unwrap_err();
        assert_eq!(failure.to_string(), again.to_string());
    }
}
