//! Random reads that come whatever the drive does: the open workload that schedulers are often compared on.
//!
//! Reads of 4 KiB at uniform places, their arrivals a Poisson process, as in DiskSim's synthetic workloads. One client
//! sends them and waits for none.

use crate::{Action, Workload};
use lamina_block::Time;
use lamina_drive::{Op, Request, SECTOR};
use std::time::Duration;

/// Sectors of a read.
const SECTORS: u32 = 8;

/// Reads of a Poisson process.
pub struct Poisson {
    /// Reads in a second, on average.
    rate: f64,
    /// Reads that fit beside each other.
    places: u64,
    random: fastrand::Rng,
    /// The next action is a read; otherwise a sleep.
    is_due: bool,
}

impl Poisson {
    /// So many reads a second on a device of `size` bytes.
    pub fn new(rate: f64, size: u64, seed: u64) -> Poisson {
        let places = (size / (SECTORS as u64 * SECTOR)).max(1);
        Poisson { rate, places, random: fastrand::Rng::with_seed(seed), is_due: false }
    }
}

impl Workload for Poisson {
    fn clients(&self) -> u32 {
        1
    }

    fn next(&mut self, _client: u32, _now: Time) -> Action {
        self.is_due = !self.is_due;
        if !self.is_due {
            let lbn = self.random.u64(0..self.places) * SECTORS as u64;
            return Action::Submit { request: Request { op: Op::Read, lbn, sectors: SECTORS }, wait: false };
        }
        Action::Sleep(Duration::from_secs_f64(-(1.0 - self.random.f64()).ln() / self.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_come_at_their_rate_and_fit() {
        let mut workload = Poisson::new(200.0, 1 << 20, 1);
        let (mut slept, mut reads) = (Duration::ZERO, 0);
        for _ in 0..20_000 {
            match workload.next(0, Time(0)) {
                Action::Sleep(d) => slept += d,
                Action::Submit { request, wait } => {
                    assert!(!wait && request.end() * SECTOR <= 1 << 20);
                    reads += 1;
                }
                Action::WaitFor(_) | Action::Join | Action::End => panic!("it has no end"),
            }
        }
        let rate = reads as f64 / slept.as_secs_f64();
        assert!((rate - 200.0).abs() < 6.0, "{rate}");
    }
}
