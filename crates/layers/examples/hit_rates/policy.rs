//! What a cache is here: it is asked for blocks, and says which of them it had.

use super::trace::{Request, Trace};
use std::collections::{BTreeMap, HashMap};

pub trait Policy {
    /// A block is read or written, and the cache has it from now on; true if it had it before.
    fn access(&mut self, key: u64, is_write: bool) -> bool;

    /// All blocks of a request; how many of them it had.
    fn request(&mut self, request: &Request) -> u64 {
        request.blocks().map(|block| u64::from(self.access(block, request.is_write))).sum()
    }
}

/// Hits among so many blocks.
#[derive(Clone, Copy, Default)]
pub struct Hits {
    pub hits: u64,
    pub of: u64,
}

impl Hits {
    /// In percent; not a number if nothing was asked for.
    pub fn rate(&self) -> f64 {
        100.0 * self.hits as f64 / self.of as f64
    }
}

/// What a policy makes of a trace.
#[derive(Clone, Copy, Default)]
pub struct Score {
    pub all: Hits,
    pub reads: Hits,
}

pub fn run(trace: &Trace, policy: &mut dyn Policy) -> Score {
    let mut score = Score::default();
    for request in &trace.requests {
        let blocks = request.blocks();
        let hits = policy.request(request);
        for tally in
            [Some(&mut score.all), (!request.is_write).then_some(&mut score.reads)].into_iter().flatten()
        {
            tally.hits += hits;
            tally.of += blocks.end - blocks.start;
        }
    }
    score
}

/// Keys in the order in which they were put, from which any can be taken.
#[derive(Default)]
pub struct Order {
    places: HashMap<u64, u64>,
    keys: BTreeMap<u64, u64>,
    next: u64,
}

impl Order {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn has(&self, key: u64) -> bool {
        self.places.contains_key(&key)
    }

    /// The key is the newest from now on.
    pub fn put(&mut self, key: u64) {
        self.take(key);
        self.places.insert(key, self.next);
        self.keys.insert(self.next, key);
        self.next += 1;
    }

    /// How many keys have been put since this one was, and with it.
    pub fn age(&self, key: u64) -> Option<usize> {
        self.places.get(&key).map(|place| (self.next - place) as usize)
    }

    /// Takes a key out; true if it was there.
    pub fn take(&mut self, key: u64) -> bool {
        let place = self.places.remove(&key);
        place.is_some_and(|place| self.keys.remove(&place).is_some())
    }

    /// Takes the oldest key out.
    pub fn pop(&mut self) -> Option<u64> {
        let (_, key) = self.keys.pop_first()?;
        self.places.remove(&key);
        Some(key)
    }
}

/// Which of some accesses hit, for tests: reads, and keys in small letters; writes are in capitals.
#[cfg(test)]
pub fn hits(policy: &mut dyn Policy, accesses: &str) -> String {
    let access = |c: char| policy.access(u64::from(c.to_ascii_lowercase()), c.is_ascii_uppercase());
    accesses.chars().map(access).map(|hit| if hit { '+' } else { '.' }).collect()
}
