//! Calibration of drives in which nothing turns: latencies of random reads by length and depth.
//!
//! ```text
//!   length × depth, read in turns of a second ─┬─▶ first run  ─▶ model: a table of quantiles
//!                                              └─▶ second run ─▶ comparison: run with run, model with run
//! ```
//!
//! How an SSD works inside shows in its latencies too little to be told from outside, and what else its host does shows
//! as well: the model is the table of what was measured. How good it can be is how much one run is like another, so
//! that two are made at the same time, in turns, and their difference stands beside the model's.
//!
//! Deliberately not measured: writes, which would destroy data. What they take in the model is a guess.

mod compare;
mod fit;
mod measure;

pub use compare::{Comparison, Row};
pub use fit::fit;
pub use measure::{Cell, Device, Runs, cells, measure};

use crate::numbers::sorted_quantile;
use lamina_block::Time;
use lamina_drive::{Drive, Model, Op, Request, SECTOR};

/// Random reads of one length, so many under way at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    /// Length and depth.
    pub cell: Cell,
    /// What each took, in microseconds, ascending.
    pub us: Vec<f64>,
}

impl Latencies {
    /// Latencies in any order.
    fn new(cell: Cell, mut us: Vec<f64>) -> Latencies {
        us.sort_by(f64::total_cmp);
        Latencies { cell, us }
    }

    /// The time in microseconds that the share `probability` of all reads is not above; 0 of none.
    pub fn quantile(&self, probability: f64) -> f64 {
        sorted_quantile(&self.us, probability)
    }

    /// Reads a second: by Little's law, depth over mean latency.
    pub fn per_second(&self) -> f64 {
        let sum: f64 = self.us.iter().sum();
        if sum > 0.0 { f64::from(self.cell.depth) * self.us.len() as f64 * 1e6 / sum } else { 0.0 }
    }
}

/// What `count` random reads of a drive of `model` take, in virtual time.
pub fn run(model: &Model, cell: Cell, count: usize, seed: u64) -> Latencies {
    let mut drive = model.drive(seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    let sectors = u32::try_from(cell.length / SECTOR).unwrap_or(u32::MAX);
    let places = (model.size.0 / cell.length.max(SECTOR)).max(1);
    let mut send = |drive: &mut Drive, sent: &mut Vec<Time>, now: Time| {
        let lbn = rng.u64(..places) * u64::from(sectors);
        drive.submit(now, sent.len() as u64, Request { op: Op::Read, lbn, sectors });
        sent.push(now);
    };
    let (mut sent, mut us) = (Vec::new(), Vec::new());
    (0..cell.depth).for_each(|_| send(&mut drive, &mut sent, Time(0)));
    while us.len() < count
        && let Some(now) = drive.next()
    {
        while let Some(done) = drive.completed(now) {
            us.push(done.at.since(sent[done.id as usize]).as_nanos() as f64 / 1e3);
            send(&mut drive, &mut sent, done.at);
        }
    }
    Latencies::new(cell, us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_joined_by_lines_and_rates_follow_from_depth() {
        let l = Latencies::new(Cell { length: 4096, depth: 7 }, vec![4.0, 1.0, 2.0]);
        for (p, us) in [(0.0, 1.0), (0.25, 1.5), (0.5, 2.0), (0.75, 3.0), (1.0, 4.0)] {
            assert_eq!(l.quantile(p), us, "{p}");
        }
        assert_eq!(l.per_second(), 3e6);
    }
}
