//! What requests cost: measured, by kind and length.

use super::Kind;
use std::time::Duration;

/// Work whose duration was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A read of the slow device that a client waited for.
    Read(Kind),
    /// A read of the fast device.
    Fast,
}

/// Lengths, by powers of two of blocks; the last is of all longer ones.
const LENGTHS: usize = 10;
/// How much a new measurement counts.
const WEIGHT: f32 = 1.0 / 32.0;
/// What requests are believed to take before any was measured, in milliseconds: a disk of 7200 turns a minute, and
/// flash. Measurements replace them from the first one on.
const RANDOM_MS: f32 = 8.0;
const SEQUENTIAL_MS: f32 = 0.5;
const FAST_MS: f32 = 0.1;

/// A mean of recent durations in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<f32>);

impl Mean {
    fn add(&mut self, ms: f32) {
        self.0 = Some(self.0.map_or(ms, |mean| mean + WEIGHT * (ms - mean)));
    }
}

/// Means of durations by length.
#[derive(Clone, Copy, Debug, Default)]
struct Means([Mean; LENGTHS]);

impl Means {
    fn length(blocks: u64) -> usize {
        (63 - blocks.max(1).leading_zeros() as usize).min(LENGTHS - 1)
    }

    fn add(&mut self, blocks: u64, ms: f32) {
        self.0[Means::length(blocks)].add(ms);
    }

    /// Of so many blocks; if there was none of that length, of the nearest one.
    fn of(&self, blocks: u64) -> Option<f32> {
        let length = Means::length(blocks);
        let known = (0..LENGTHS).filter_map(|other| Some((other.abs_diff(length), self.0[other].0?)));
        known.min_by_key(|(distance, _)| *distance).map(|(_, ms)| ms)
    }
}

/// All costs.
#[derive(Default)]
pub struct Costs {
    random: Means,
    sequential: Means,
    fast: Means,
}

impl Costs {
    /// A work on so many blocks took that long.
    pub fn measured(&mut self, work: Work, blocks: u64, took: Duration) {
        let ms = took.as_secs_f32() * 1e3;
        match work {
            Work::Read(Kind::Random) => self.random.add(blocks, ms),
            Work::Read(Kind::Sequential) => self.sequential.add(blocks, ms),
            Work::Fast => self.fast.add(blocks, ms),
        }
    }

    /// What a copy of one of so many blocks saves when all are read, in milliseconds: its share; never negative. A
    /// request that continues a stream of `stream` blocks has its share of the cost of the stream's begin: if only the
    /// begin had a copy, the arm would move for the rest.
    pub fn saved(&self, kind: Kind, blocks: u64, stream: u64) -> f32 {
        let random = self.random.of(blocks).unwrap_or(RANDOM_MS);
        let share = random * blocks as f32 / stream.max(blocks).max(1) as f32;
        let slow = match kind {
            Kind::Random => random,
            Kind::Sequential => share + self.sequential.of(blocks).unwrap_or(SEQUENTIAL_MS),
        };
        (slow.min(random) - self.fast(blocks)).max(0.0) / blocks.max(1) as f32
    }

    /// What a request of so many blocks takes the fast device, in milliseconds.
    pub fn fast(&self, blocks: u64) -> f32 {
        self.fast.of(blocks).unwrap_or(FAST_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn costs_are_those_that_were_measured() {
        let mut costs = Costs::default();
        let random = |costs: &Costs, blocks| costs.saved(Kind::Random, blocks, blocks);
        assert!(random(&costs, 1) > 10.0 * costs.saved(Kind::Sequential, 1, 100));
        costs.measured(Work::Fast, 1, ms(1));
        costs.measured(Work::Read(Kind::Random), 2, ms(9));
        assert_eq!((random(&costs, 2), random(&costs, 1)), (4.0, 8.0), "the nearest length");
        costs.measured(Work::Read(Kind::Random), 64, ms(17));
        assert_eq!((random(&costs, 2), random(&costs, 100)), (4.0, 0.16), "a share of each block");
        assert_eq!(costs.saved(Kind::Sequential, 1, 1 << 30), 0.0, "never negative");
    }

    #[test]
    fn means_are_recent() {
        let mut costs = Costs::default();
        (0..10).for_each(|_| costs.measured(Work::Fast, 1, ms(1)));
        (0..200).for_each(|_| costs.measured(Work::Fast, 1, ms(3)));
        assert!((2.9..=3.0).contains(&costs.fast(1)));
    }
}
