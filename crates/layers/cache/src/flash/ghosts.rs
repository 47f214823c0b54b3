//! Ghosts: what went lately, by fingerprints; and how large the small queue should be, which they tell.
//!
//! ```text
//!      bucket   │ latest │ 2nd │ 3rd │ 4th │ latest │      2 bytes each
//!               └──── small let go ────────┴─ main ─┘
//! ```
//!
//! What small let go and is asked for again goes to main (S3-FIFO). If it has gone just now, a longer small
//! queue would have had it still; likewise for main. So both pull: small grows when its latest ghosts come
//! again, and shrinks when main's do, as in ARC (Megiddo and Modha, FAST '03). Each queue is judged by as
//! many ghosts, one of each bucket: what it would have with that many slots more.

use super::index::hash;
use super::segments::{MAIN, SMALL};
use std::ops::RangeInclusive;

/// Ghosts of the small queue in a bucket. Behind them there is one of main.
const OF_SMALL: usize = 4;
const WAYS: usize = OF_SMALL + 1;

/// Parts of the blocks that small may have before main has to give way, in percent: S3-FIFO's own at least,
/// and not so many that a scan takes most of main. It begins where most traces are best
/// (docs/benchmarks-hit-rates.md).
const SMALL_PERCENT: RangeInclusive<u64> = 10..=40;
const FIRST_PERCENT: u64 = 20;
/// Slots that small wins, or loses, when a ghost comes again. What was in main had been asked for before, and
/// is more likely to be asked for once more.
const WINS: u64 = 1;
const LOSES: u64 = 2;

pub struct Ghosts {
    /// In each part of a bucket the latest comes first.
    buckets: Vec<[u16; WAYS]>,
    slots: u64,
    /// Slots of all that small should have.
    small: u64,
}

impl Ghosts {
    /// For a flash of so many slots.
    pub fn new(slots: usize) -> Ghosts {
        let buckets = vec![[0; WAYS]; (slots * 9 / 10).div_ceil(WAYS).max(1)];
        Ghosts { buckets, slots: slots as u64, small: slots as u64 * FIRST_PERCENT / 100 }
    }

    /// Bytes that they take.
    pub fn memory(&self) -> usize {
        size_of_val(&self.buckets[..])
    }

    fn bucket(&mut self, volume: u16, block: u64) -> (&mut [u16; WAYS], u16) {
        let hash = hash(volume, block);
        let bucket = ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize;
        // The low bits say something else than the high ones, which chose the bucket.
        (&mut self.buckets[bucket], (hash as u16).max(1))
    }

    /// The block has gone from `log`.
    pub fn remember(&mut self, log: u8, volume: u16, block: u64) {
        let (bucket, print) = self.bucket(volume, block);
        let of = if log == SMALL { &mut bucket[..OF_SMALL] } else { &mut bucket[OF_SMALL..] };
        of.rotate_right(1);
        of[0] = print;
    }

    /// A block comes that is not there; the log that it goes to. If it went lately, that is not remembered any more.
    pub fn recall(&mut self, volume: u16, block: u64) -> u8 {
        let (bucket, print) = self.bucket(volume, block);
        let Some(way) = bucket.iter().position(|way| *way == print) else { return SMALL };
        let of_small = &mut bucket[..OF_SMALL];
        if way < OF_SMALL {
            of_small[way..].rotate_left(1);
            of_small[OF_SMALL - 1] = 0;
        } else {
            bucket[way] = 0;
        }
        let [least, most] =
            [SMALL_PERCENT.start(), SMALL_PERCENT.end()].map(|percent| self.slots * percent / 100);
        match way {
            0 => self.small = (self.small + WINS).min(most),
            OF_SMALL => self.small = self.small.saturating_sub(LOSES).max(least),
            _ => {}
        }
        if way < OF_SMALL { MAIN } else { SMALL }
    }

    /// True if small has more than its part of so many blocks.
    pub fn is_large(&self, [small, main]: [u64; 2]) -> bool {
        small * self.slots > (small + main) * self.small
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recalled(ghosts: &mut Ghosts, blocks: u64) -> usize {
        (0..blocks).filter(|block| ghosts.recall(1, *block) == MAIN).count()
    }

    #[test]
    fn what_went_lately_is_recalled_once() {
        let mut ghosts = Ghosts::new(1000);
        (0..100).for_each(|block| ghosts.remember(SMALL, 1, block));
        let first = recalled(&mut ghosts, 100);
        assert!(first > 90, "only {first}");
        assert_eq!(recalled(&mut ghosts, 100), 0);
    }

    #[test]
    fn what_main_let_go_is_new_again() {
        let mut ghosts = Ghosts::new(1000);
        (0..100).for_each(|block| ghosts.remember(MAIN, 1, block));
        assert_eq!(recalled(&mut ghosts, 100), 0);
    }

    #[test]
    fn small_grows_and_shrinks_with_what_comes_again() {
        let mut ghosts = Ghosts::new(1000);
        let all = [[99, 901], [101, 899], [201, 799], [399, 601], [401, 599]];
        let large = |ghosts: &Ghosts| all.map(|live| ghosts.is_large(live));
        assert_eq!(large(&ghosts), [false, false, true, true, true]);
        let mut again = |log: u8| {
            for block in 0..1000 {
                ghosts.remember(log, 1, block);
                ghosts.recall(1, block);
            }
            large(&ghosts)
        };
        assert_eq!(again(SMALL), [false, false, false, false, true]);
        assert_eq!(again(MAIN), [false, true, true, true, true]);
    }

    #[test]
    fn only_the_latest_ghosts_of_small_make_it_grow() {
        let mut ghosts = Ghosts::new(1000);
        (0..700).for_each(|block| ghosts.remember(SMALL, 1, block));
        let before = ghosts.small;
        recalled(&mut ghosts, 300);
        let old = ghosts.small - before;
        assert!(old < 30, "{old}");
    }
}
