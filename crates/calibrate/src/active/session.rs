//! A drive under questions: the clock that answers add up to, and how many questions were asked.
//!
//! The moments of all answers are on one time axis, the sum of service and thinking, so that the angle of the platters
//! at an answer follows from a [`Clock`]. Thinking is in whole microseconds, as the simplest probe reads it.

use super::blocks::Blocks;
use crate::Probe;
use crate::numbers::fraction;
use lamina_drive::{Op, Request};

/// An answered read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// When it was sent, in microseconds since the first question.
    pub start_us: f64,
    /// When it ended.
    pub end_us: f64,
}

impl Answer {
    pub(super) fn service_us(&self) -> f64 {
        self.end_us - self.start_us
    }
}

/// What answers from the cache take: anything that a cache answers is near it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HitTime {
    /// Microseconds of a sector.
    pub us: f64,
    /// What hits differ by.
    pub tolerance_us: f64,
}

impl HitTime {
    pub(super) fn fits(&self, service_us: f64) -> bool {
        (service_us - self.us).abs() <= self.tolerance_us
    }
}

/// From moments to turns of the platters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub period_us: f64,
    /// A moment at which `turns` had been made.
    since_us: f64,
    turns: f64,
}

impl Clock {
    pub(super) fn new(period_us: f64) -> Clock {
        Clock { period_us, since_us: 0.0, turns: 0.0 }
    }

    pub(super) fn turns(&self, moment_us: f64) -> f64 {
        self.turns + (moment_us - self.since_us) / self.period_us
    }

    /// From `moment_us` on, the platters are `ahead` turns further than was believed, and turn at another speed.
    pub(super) fn set(&mut self, moment_us: f64, ahead: f64, period_us: f64) {
        *self = Clock { period_us, since_us: moment_us, turns: self.turns(moment_us) + ahead };
    }
}

/// A drive under questions.
pub(super) struct Session<'a> {
    /// The drive; what is read below as a sector is one of its blocks.
    pub probe: Blocks<'a>,
    progress: &'a mut dyn FnMut(&str),
    pub rng: fastrand::Rng,
    /// Microseconds since the first question.
    pub now_us: f64,
    pub requests: u64,
    pub writes: u64,
    /// After so many microseconds no further questions are asked that are not needed.
    pub budget_us: f64,
    /// Not known before it was measured, and then only if there is a cache.
    pub hit: Option<HitTime>,
    /// Known once the rotation was found.
    pub clock: Clock,
    /// What phases differ by between readings of one sector, in turns.
    pub noise: f64,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        probe: Blocks<'a>,
        progress: &'a mut dyn FnMut(&str),
        seed: u64,
        budget_us: f64,
    ) -> Session<'a> {
        let rng = fastrand::Rng::with_seed(seed);
        let clock = Clock::new(1.0);
        let (now_us, noise) = (0.0, 0.0);
        Session { probe, progress, rng, now_us, requests: 0, writes: 0, budget_us, hit: None, clock, noise }
    }

    pub(super) fn sectors(&self) -> u64 {
        self.probe.sectors()
    }

    /// Says where the calibration stands.
    pub(super) fn say(&mut self, stage: &str) {
        let text = format!("{:7.1} s {:7} requests  {stage}", self.now_us / 1e6, self.requests);
        (self.progress)(&text);
    }

    /// Whether there is time for questions that could be left out.
    pub(super) fn has_time(&self) -> bool {
        self.now_us < self.budget_us
    }

    /// Reads `sectors` from `lbn`, `think_us` after the last answer.
    pub(super) fn read_many(&mut self, lbn: u64, sectors: u32, think_us: f64) -> Result<Answer, String> {
        self.ask(Request { op: Op::Read, lbn, sectors }, think_us)
    }

    /// Writes `sectors` from `lbn`, `think_us` after the last answer.
    pub(super) fn write_many(&mut self, lbn: u64, sectors: u32, think_us: f64) -> Result<Answer, String> {
        self.ask(Request { op: Op::Write, lbn, sectors }, think_us)
    }

    /// Empties the buffer of writes.
    pub(super) fn flush(&mut self) -> Result<Answer, String> {
        self.ask(Request { op: Op::Flush, lbn: 0, sectors: 0 }, 0.0)
    }

    fn ask(&mut self, request: Request, think_us: f64) -> Result<Answer, String> {
        let think_us = think_us.max(0.0).round();
        // One that fails may have been done in part.
        self.writes += u64::from(request.op == Op::Write);
        let service_us = self.probe.ask(request, think_us)?;
        if !service_us.is_finite() || service_us < 0.0 {
            return Err(format!("the drive says that {request:?} took {service_us} us"));
        }
        let start_us = self.now_us + think_us;
        self.now_us = start_us + service_us;
        self.requests += 1;
        Ok(Answer { start_us, end_us: self.now_us })
    }

    /// Reads the sector at `lbn` at once.
    pub(super) fn read(&mut self, lbn: u64) -> Result<Answer, String> {
        self.read_many(lbn, 1, 0.0)
    }

    /// Whether the cache had an answer of one sector.
    pub(super) fn is_hit(&self, answer: &Answer) -> bool {
        self.hit.is_some_and(|hit| hit.fits(answer.service_us()))
    }

    /// The angle of the platters at the end of an answer, in turns from 0 to before 1.
    pub(super) fn phase(&self, answer: &Answer) -> f64 {
        fraction(self.clock.turns(answer.end_us))
    }

    /// How near two phases are if they are of one place.
    pub(super) fn tolerance(&self) -> f64 {
        (6.0 * self.noise).clamp(5e-5, 5e-3)
    }

    /// A sector anywhere.
    pub(super) fn anywhere(&mut self) -> u64 {
        let sectors = self.sectors();
        self.rng.u64(..sectors)
    }
}
