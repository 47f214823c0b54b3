//! Where a prediction's requests come from: the argument of `--workload`.

use crate::exit::Failure;
use lamina_drive::SECTOR;
use lamina_workload::{Poisson, Prepared, Spec, Workload, web};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

/// The seed of what all runs share, such as where files lie.
const SHARED_SEED: u64 = 1;

/// Random reads in a second. A mean pause beyond eleven days, or below the microsecond, is a mistake.
const RATES: RangeInclusive<f64> = 1e-6..=1e7;

/// A workload that can be begun again for every run.
pub enum Source {
    /// Poisson random reads, so many in a second.
    Random(f64),
    /// One of the crate of workloads, prepared once for each size of disk.
    Spec(Spec, Mutex<BTreeMap<u64, Prepared>>),
}

impl Source {
    /// Reads the argument.
    pub fn read(text: &str) -> Result<Source, Failure> {
        let wrong = |what: &str| Failure::usage(format!("--workload {text}: {what}"));
        if let Some(rate) = text.strip_prefix("random:") {
            return match rate.parse::<f64>() {
                Ok(rate) if RATES.contains(&rate) => Ok(Source::Random(rate)),
                Ok(_) | Err(_) => Err(wrong("write random:N, N reads a second, from 1e-6 to 1e7")),
            };
        }
        let mut spec: Spec = text.parse().map_err(|e: String| wrong(&e))?;
        if let Spec::Web(options, _) = &mut spec
            && options.requests == web::Options::default().requests
        {
            // What is counted ends the run, unless the clients are to end by themselves.
            options.requests = u64::MAX;
        }
        Ok(Source::Spec(spec, Mutex::default()))
    }

    /// True if only the number of requests ends it.
    pub fn is_endless(&self) -> bool {
        match self {
            Source::Random(_) => true,
            Source::Spec(Spec::Web(options, _), _) => options.requests == u64::MAX,
            Source::Spec(Spec::Trace(..), _) => false,
        }
    }

    /// The workload on a device of `size` bytes, for the run with `seed`.
    pub fn workload(&self, seed: u64, size: u64) -> Result<Box<dyn Workload>, Failure> {
        let (spec, all) = match self {
            Source::Random(rate) => return Ok(Box::new(Poisson::new(*rate, size, seed))),
            Source::Spec(spec, all) => (spec, all),
        };
        // Others wait meanwhile: they need the same.
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = all.get(&size) {
            return Ok(prepared.start(seed));
        }
        let prepared = spec.prepare(size / SECTOR, SHARED_SEED).map_err(Failure::usage)?;
        Ok(all.entry(size).or_insert(prepared).start(seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_workloads_are_told_what_there_is() {
        for text in
            ["random:", "random:-1", "random:nan", "random:1e-7", "random:2e7", "mail", "web:both", "trace"]
        {
            let message = Source::read(text).err().expect("it is wrong").into_message();
            assert!(message.starts_with(&format!("--workload {text}: ")), "{message}");
        }
    }

    #[test]
    fn a_web_workload_has_no_end_unless_it_is_given_one() {
        assert!(Source::read("web:cached").is_ok_and(|source| source.is_endless()));
        assert!(Source::read("web:direct,requests=5").is_ok_and(|source| !source.is_endless()));
        assert!(Source::read("trace:x.csv").is_ok_and(|source| !source.is_endless()));
    }
}
