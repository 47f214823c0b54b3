//! Two runs over all lengths and depths, in turns.
//!
//! Each cell is read for a second in one run and then for a second in the other; the next round goes the other way
//! around. What the host does besides, for minutes or for hours, thus meets both runs alike, and neither has only the
//! first or the second half of it.

use super::Latencies;
use std::time::Duration;

/// Lengths of reads in bytes, and depths.
const LENGTHS: [u64; 5] = [4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// The longest turn of a run.
const TURN: Duration = Duration::from_secs(1);

/// A length in bytes, and how many reads are under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Bytes of a read, whole sectors.
    pub length: u64,
    /// Reads under way, from 1.
    pub depth: u32,
}

/// A drive that can be read, several reads at a time.
pub trait Device {
    /// Its size in bytes.
    fn bytes(&self) -> u64;
    /// Reads at random for `time`, `cell.depth` reads at a time, and returns what each took, in microseconds. `seed`
    /// decides where.
    fn read_for(&mut self, cell: Cell, time: Duration, seed: u64) -> Result<Vec<f64>, String>;
}

/// What two runs measured, cell by cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    /// The run that a model is made of.
    pub first: Vec<Latencies>,
    /// The run that it is held against, of the same cells.
    pub second: Vec<Latencies>,
}

/// The cells that a drive of `bytes` has room for, shortest first.
pub fn cells(bytes: u64) -> Vec<Cell> {
    let lengths = LENGTHS.into_iter().filter(|length| length * 4 <= bytes);
    lengths.flat_map(|length| DEPTHS.map(|depth| Cell { length, depth })).collect()
}

/// Reads each of `cells` for `time` in each of two runs.
pub fn measure(
    device: &mut dyn Device,
    cells: &[Cell],
    time: Duration,
    seed: u64,
    progress: &mut dyn FnMut(&str),
) -> Result<Runs, String> {
    let rounds = time.as_nanos().div_ceil(TURN.as_nanos()).max(1) as u32;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut us = [vec![Vec::new(); cells.len()], vec![Vec::new(); cells.len()]];
    for round in 0..rounds {
        progress(&format!("round {} of {rounds}: {} lengths and depths, twice", round + 1, cells.len()));
        for (n, cell) in cells.iter().enumerate() {
            for turn in 0..2 {
                let run = (turn + round as usize) % 2;
                us[run][n].extend(device.read_for(*cell, time / rounds, rng.u64(..))?);
            }
        }
    }
    let [first, second] =
        us.map(|us| cells.iter().zip(us).map(|(cell, us)| Latencies::new(*cell, us)).collect());
    Ok(Runs { first, second })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells which turn a read was in.
    struct Turns(Vec<(Cell, Duration)>);

    impl Device for Turns {
        fn bytes(&self) -> u64 {
            1 << 20
        }
        fn read_for(&mut self, cell: Cell, time: Duration, _seed: u64) -> Result<Vec<f64>, String> {
            self.0.push((cell, time));
            Ok(vec![self.0.len() as f64])
        }
    }

    #[test]
    fn runs_take_turns_and_the_first_is_not_always_first() {
        let cells = [Cell { length: 4096, depth: 1 }, Cell { length: 4096, depth: 2 }];
        let mut device = Turns(Vec::new());
        let mut said = Vec::new();
        let mut progress = |line: &str| said.push(line.to_owned());
        let runs =
            measure(&mut device, &cells, Duration::from_millis(1500), 1, &mut progress).expect("measured");
        let us = |run: &[Latencies]| run.iter().map(|l| l.us.clone()).collect::<Vec<_>>();
        assert_eq!(us(&runs.first), [vec![1.0, 6.0], vec![3.0, 8.0]]);
        assert_eq!(us(&runs.second), [vec![2.0, 5.0], vec![4.0, 7.0]]);
        assert!(device.0.iter().all(|(_, time)| *time == Duration::from_millis(750)));
        assert_eq!(said.len(), 2);
    }

    #[test]
    fn a_small_drive_is_read_in_short_pieces() {
        let longest = |bytes| cells(bytes).iter().map(|cell| cell.length).max();
        assert_eq!(
            (longest(1 << 40), longest(1 << 20), longest(4096)),
            (Some(1 << 20), Some(256 << 10), None)
        );
        assert_eq!(cells(1 << 40).len(), 30);
    }
}
