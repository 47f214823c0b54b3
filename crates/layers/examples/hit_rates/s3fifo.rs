//! S3-FIFO as published, block by block (Yang et al., *FIFO Queues Are All You Need for Cache Eviction*, SOSP '23,
//! algorithm 1): a small queue of a tenth, a main queue, and the ghosts of as many blocks as main has.

use super::policy::{Order, Policy};
use std::collections::{HashMap, VecDeque};

/// What a counter of two bits can say.
const FREQUENCY_MAX: u8 = 3;

pub struct S3Fifo {
    blocks: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: Order,
    /// How often each block was asked for since it came.
    frequencies: HashMap<u64, u8>,
}

impl S3Fifo {
    /// A cache of `blocks` blocks.
    pub fn new(blocks: usize) -> S3Fifo {
        S3Fifo {
            blocks,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: Order::default(),
            frequencies: HashMap::new(),
        }
    }

    fn small_blocks(&self) -> usize {
        (self.blocks / 10).max(1)
    }

    fn evict(&mut self) {
        if self.small.len() >= self.small_blocks() || self.main.is_empty() {
            self.evict_small();
        } else {
            self.evict_main();
        }
    }

    /// Moves blocks to main until one goes.
    fn evict_small(&mut self) {
        while let Some(key) = self.small.pop_front() {
            if self.frequencies[&key] > 1 {
                self.frequencies.insert(key, 0);
                self.main.push_back(key);
                continue;
            }
            self.frequencies.remove(&key);
            self.ghosts.put(key);
            if self.ghosts.len() > self.blocks - self.small_blocks() {
                self.ghosts.pop();
            }
            return;
        }
    }

    fn evict_main(&mut self) {
        while let Some(key) = self.main.pop_front() {
            match self.frequencies[&key] {
                0 => {
                    self.frequencies.remove(&key);
                    return;
                }
                frequency => {
                    self.frequencies.insert(key, frequency - 1);
                    self.main.push_back(key);
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, key: u64, _is_write: bool) -> bool {
        if let Some(frequency) = self.frequencies.get_mut(&key) {
            *frequency = (*frequency + 1).min(FREQUENCY_MAX);
            return true;
        }
        while self.small.len() + self.main.len() >= self.blocks {
            self.evict();
        }
        let queue = if self.ghosts.take(key) { &mut self.main } else { &mut self.small };
        queue.push_back(key);
        self.frequencies.insert(key, 0);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::hits;
    use super::*;

    #[test]
    fn a_scan_leaves_what_was_asked_for_again() {
        assert_eq!(hits(&mut S3Fifo::new(4), "aaabbbcdefghijab"), ".++.++........++");
    }

    #[test]
    fn what_was_asked_for_only_twice_is_a_ghost_and_then_goes_to_main() {
        assert_eq!(hits(&mut S3Fifo::new(4), "aabcdeafghia"), ".+.........+");
    }
}
