//! Very many seeds over a list of subjects, as a test or as a program.

use super::run::{Check, Failure, Replay, Run, number, parse, run};
use super::subject::Subject;
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Seeds that the program runs unless it is told otherwise.
const SEEDS: u64 = 10_000;

/// The results of a soak.
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
    let began = Instant::now();
    for seed in from..from.saturating_add(seeds) {
        one(subjects, &Check::ALL, seed)?;
    }
    Ok(Soaked { seeds, took: began.elapsed() })
}

/// The turn depends on the seed alone, so that seeds can be divided between processes and threads.
fn one(subjects: &[Subject], checks: &[Check], seed: u64) -> Result<(), Failure> {
    let turn = (seed % (subjects.len() * checks.len()) as u64) as usize;
    run(&subjects[turn / checks.len()], checks[turn % checks.len()], seed, Run::Sample)
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

/// The arguments of the program.
#[derive(Debug)]
struct Asked {
    seeds: Range<u64>,
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

impl Asked {
    fn choose(&self, subjects: Vec<Subject>) -> Vec<Subject> {
        let asked =
            |subject: &Subject| self.subject.as_deref().is_none_or(|name| subject.name().contains(name));
        match subjects.iter().position(|subject| Some(subject.name()) == self.subject.as_deref()) {
            Some(exact) => subjects.into_iter().skip(exact).take(1).collect(),
            None => subjects.into_iter().filter(asked).collect(),
        }
    }
}

const USAGE: &str = "write [--seeds N] [--from N] [--seed N] [--subject NAME] [--check NAME]";

/// A program that soaks what `subjects` makes, one thread on each processor, as its arguments say: `--seeds` how many,
/// `--from` which, `--subject` (a name or a part of names) and `--check` which ones, or `--seed` a single one. Its exit
/// code is 1 after a failure, and 2 if the arguments are wrong.
pub fn simulate(subjects: fn() -> Vec<Subject>) -> ExitCode {
    let asked = match Asked::read(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    if asked.choose(subjects()).is_empty() {
        eprintln!("there is no subject {:?}", asked.subject.unwrap_or_default());
        return ExitCode::from(2);
    }
    match soak_on_threads(subjects, &asked) {
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

/// A world lives in one thread; each thread has subjects of its own. Of several failures the one of the lowest seed is
/// told.
fn soak_on_threads(subjects: fn() -> Vec<Subject>, asked: &Asked) -> Result<Soaked, Failure> {
    let began = Instant::now();
    let Range { start, end } = asked.seeds;
    let (next, done) = (AtomicU64::new(start), AtomicU64::new(0));
    let failed = Mutex::new(None::<Failure>);
    let work = |tells: bool| {
        let subjects = asked.choose(subjects());
        let mut told = Duration::ZERO;
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= end {
                return;
            }
            if let Err(failure) = one(&subjects, &asked.checks, seed) {
                next.store(end, Relaxed);
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|other| failure.seed < other.seed) {
                    *failed = Some(failure);
                }
                return;
            }
            let done = done.fetch_add(1, Relaxed) + 1;
            let took = began.elapsed();
            if tells && took >= told + Duration::from_secs(1) {
                told = took;
                let rate = done as f64 / took.as_secs_f64();
                eprint!("\r{done} of {} seeds, {rate:.0} a second ", end - start);
                let _unseen = std::io::stderr().flush();
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        for _ in 1..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(move || work(false));
        }
        work(true);
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(Soaked { seeds: end - start, took: began.elapsed() }),
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

    /// Fails, and says so with a number that the world gives.
    fn wrong() -> Vec<Subject> {
        vec![Subject::new("wrong", |rig| async move {
            Err::<_, _>(lamina_block::Error::media(rig.env().tick().to_string()))
        })]
    }

    #[test]
    fn a_failure_in_a_soak_is_found_again_by_its_arguments() {
        let failure = soak(&wrong(), 100, 3).unwrap_err();
        let asked = read(&failure.arguments().replace('"', "")).unwrap();
        let again = soak_on_threads(wrong, &asked).unwrap_err();
        assert_eq!(failure.to_string(), again.to_string());
        assert_eq!(soak_on_threads(wrong, &read("--from 3 --seeds 100").unwrap()).unwrap_err().seed, 3);
    }

    #[test]
    fn a_part_of_a_name_picks_several_subjects_and_a_name_one() {
        let subject = |name| Subject::new(name, |_| async { Err::<_, _>(lamina_block::Error::media("")) });
        let picked = |text: &str| {
            let mut asked = read("").unwrap();
            asked.subject = Some(text.into());
            asked.choose(vec![subject("a flash"), subject("over a flash"), subject("disk")]).len()
        };
        assert_eq!((picked("flash"), picked("a flash"), picked("tape")), (2, 1, 0));
    }
}
