//! From measured times of a drive to its model.
//!
//! A [`Sample`] is one request that a drive was given alone, with the moments when it was sent and when it ended.
//! Samples come from a trace, or from probes that are chosen as answers come in; both feed the same estimator.

pub mod active;
mod numbers;
pub mod passive;
mod score;
pub mod ssd;
pub mod trace;

pub use score::{Score, score};

use lamina_drive::Request;

/// One measured request. The drive had nothing else to do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What was asked.
    pub request: Request,
    /// When it was sent, in microseconds since the first.
    pub started_us: f64,
    /// How long it took, in microseconds.
    pub service_us: f64,
}

/// A drive that can be asked: one request at a time.
pub trait Probe {
    /// Waits `think_us` microseconds after the last answer, sends `request`, and returns the microseconds it took.
    fn ask(&mut self, request: Request, think_us: f64) -> Result<f64, String>;
    /// The size of the drive in sectors of 512 bytes.
    fn sectors(&self) -> u64;
}
