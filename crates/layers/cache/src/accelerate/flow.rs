//! Flow control: writes are slowed down before the flash is full, so that none has to stop.
//!
//! Three signals (SYSTEMS C4), each a fraction of what is too much: writes that are not on the store, their
//! bytes, and how long it would take to bring them there, by a moving average. The largest is the pressure.
//! An acknowledgement is held back for as long as the store takes for a write, times the pressure, eight
//! times at most: it begins at nothing, rises with the backlog and falls with it, so that writes settle at
//! the speed of the store without a step on the way. A store that was away for a while seems to take that long
//! for a write; no guest waits for that.

use crate::flash::SLOT;
use serde_json::{Value, json};
use std::time::Duration;

/// Writes in the staging queue that are too many; on a large flash half as many as the share has blocks. They
/// take memory.
const WRITES: f64 = 262_144.0;
/// It takes too long to bring everything to the store.
const SECONDS: f64 = 120.0;
/// No signal counts below this part of what is too much.
const FREE: f64 = 0.8;
/// An acknowledgement is held back by so many latencies of the store, at most.
const LATENCIES: f64 = 8.0;
/// And for so long at most: guests and clients give up after 30 seconds.
const LONGEST: Duration = Duration::from_secs(5);
/// What the newest measurement counts in a moving average.
const NEWEST: f64 = 0.125;

/// Writes of a batch, and its blocks, at most: it takes about so long to bring it to the store, where that is
/// fast enough for the flushes that it costs not to count, but is not so small or large.
const BATCH: Duration = Duration::from_millis(250);
const BATCH_BLOCKS: std::ops::RangeInclusive<usize> = 4096..=131_072;

/// What is measured, and what follows from it.
#[derive(Default)]
pub struct Flow {
    /// Seconds that a write of the store takes.
    latency: f64,
    /// Bytes that get to the store in a second.
    rate: f64,
    /// Writes, bytes, seconds: parts of what is too much.
    signals: [f64; 3],
    delayed: u64,
}

impl Flow {
    /// A batch of `bytes` took `took`, a request of it `latency`.
    pub fn measured(&mut self, bytes: u64, took: Duration, latency: Duration) {
        let average = |average: &mut f64, newest: f64| {
            *average = if *average == 0.0 { newest } else { *average * (1.0 - NEWEST) + newest * NEWEST };
        };
        if bytes > 0 && !took.is_zero() {
            average(&mut self.rate, bytes as f64 / took.as_secs_f64());
            average(&mut self.latency, latency.as_secs_f64());
        }
    }

    /// How long an acknowledgement is held back while `writes` writes of `bytes` bytes wait, where `share` bytes may.
    pub fn delay(&mut self, writes: usize, bytes: u64, share: u64) -> Duration {
        self.look(writes, bytes, share);
        let pressure = self.pressure();
        if pressure > 0.0 {
            self.delayed += 1;
        }
        Duration::from_secs_f64(self.latency * LATENCIES * pressure).min(LONGEST)
    }

    /// The most writes of a batch, and its most blocks.
    pub fn batch(&self) -> usize {
        let blocks = self.rate * BATCH.as_secs_f64() / SLOT as f64;
        (blocks as usize).clamp(*BATCH_BLOCKS.start(), *BATCH_BLOCKS.end())
    }

    /// What waits now.
    pub fn look(&mut self, writes: usize, bytes: u64, share: u64) {
        let seconds = if self.rate > 0.0 { bytes as f64 / self.rate } else { 0.0 };
        let too_many = WRITES.max(share as f64 / SLOT as f64 / 2.0);
        self.signals = [writes as f64 / too_many, bytes as f64 / share.max(1) as f64, seconds / SECONDS];
    }

    /// Bytes that get to the store in a second; 0: nobody knows.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    fn pressure(&self) -> f64 {
        let most = self.signals.iter().copied().fold(0.0, f64::max);
        ((most - FREE) / (1.0 - FREE)).clamp(0.0, 1.0)
    }

    /// What is shown.
    pub fn info(&self) -> Value {
        json!({
            "writes": self.signals[0],
            "bytes": self.signals[1],
            "time": self.signals[2],
            "pressure": self.pressure(),
            "delayed": self.delayed,
            "store_latency_us": self.latency * 1e6,
            "store_bytes_per_second": self.rate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Flow {
        let mut flow = Flow::default();
        flow.measured(1 << 20, Duration::from_millis(10), Duration::from_millis(1));
        flow
    }

    #[test]
    fn the_delay_rises_without_a_step_up_to_eight_latencies() {
        let mut flow = measured();
        let share = 1 << 30;
        let delays: Vec<_> = (0..=200).map(|i| flow.delay(1, share / 100 * i, share)).collect();
        assert_eq!(delays[80], Duration::ZERO);
        assert_eq!(delays[200], Duration::from_millis(8));
        let step = delays.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
        assert!(delays.is_sorted() && step <= Duration::from_micros(401), "a step of {step:?}");
    }

    #[test]
    fn a_store_that_was_away_holds_nobody_back_for_as_long() {
        let mut flow = Flow::default();
        flow.measured(4096, Duration::from_secs(20), Duration::from_secs(20));
        assert_eq!(flow.delay(0, 1000, 1000), Duration::from_secs(5));
    }

    #[test]
    fn each_signal_is_enough() {
        assert!(measured().delay(250_000, 0, 1 << 30) > Duration::ZERO);
        assert_eq!(measured().delay(250_000, 0, 16 << 30), Duration::ZERO);
        assert!(measured().delay(2 << 20, 0, 16 << 30) > Duration::ZERO);
        assert!(measured().delay(0, 900, 1000) > Duration::ZERO);
        assert!(measured().delay(0, 12 << 30, 1 << 40) > Duration::ZERO);
        assert_eq!(measured().delay(1000, 1 << 20, 1 << 40), Duration::ZERO);
    }
}
