//! Drives that schedulers are tried on, and that tell a calibration nothing but times.

use crate::child::Hidden;
use lamina_block::Time;
use lamina_calibrate::Probe;
use lamina_drive::{Drive, Model, Request};
use std::time::Duration;

/// A drive that also says what it would do.
pub trait Disk: Probe {
    /// The microseconds that a read would take, sent `think_us` after the last answer.
    fn would(&mut self, request: Request, think_us: f64) -> f64;
}

/// A drive that behaves as a model says.
pub struct Modelled {
    drive: Drive,
    sectors: u64,
    now: Time,
}

impl Modelled {
    pub fn new(model: &Model, seed: u64) -> Modelled {
        Modelled { drive: model.drive(seed), sectors: model.sectors(), now: Time(0) }
    }

    fn after(&self, think_us: f64) -> Time {
        self.now.after(Duration::from_nanos((think_us * 1e3).round() as u64))
    }
}

impl Probe for Modelled {
    fn ask(&mut self, request: Request, think_us: f64) -> Result<f64, String> {
        let begin = self.after(think_us);
        self.drive.submit(begin, 0, request);
        self.now = self.drive.next().ok_or("no request is under way")?;
        self.drive.completed(self.now).ok_or("no request has ended")?;
        Ok(self.now.since(begin).as_nanos() as f64 / 1e3)
    }

    fn sectors(&self) -> u64 {
        self.sectors
    }
}

impl Disk for Modelled {
    fn would(&mut self, request: Request, think_us: f64) -> f64 {
        self.drive.cost(self.after(think_us), &request).as_nanos() as f64 / 1e3
    }
}

impl Disk for Hidden {
    fn would(&mut self, request: Request, think_us: f64) -> f64 {
        self.say("?", request, think_us).expect("an answer")
    }
}
