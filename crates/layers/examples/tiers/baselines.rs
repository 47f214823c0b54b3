//! Policies without foresight to compare with: nothing on the fast device, everything, shares, LRU, S3-FIFO, heat of
//! extents.

use super::order::Order;
use super::plan::{Ask, Plan, Policy, push};
use super::policy::Policy as _;
use super::s3fifo::S3Fifo;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;

/// Blocks that are written home together.
pub const GROUP: usize = 256;
/// Blocks of an extent of 64 KiB.
pub const EXTENT: u64 = 16;

/// Ranges of ascending blocks.
pub fn ranges(blocks: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    blocks.into_iter().for_each(|block| push(&mut ranges, block));
    ranges
}

/// Every extent is on one device for ever: so many percent of them are on the fast one. 0 and 100 are a device alone,
/// 50 is the paper's 50/50 if it fits.
pub struct Shares(pub u64);

impl Policy for Shares {
    fn ask(&mut self, ask: &Ask, plan: &mut Plan) {
        for block in ask.blocks() {
            // Fibonacci hashing spreads consecutive extents evenly.
            let spread = (block / EXTENT).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let is_fast = (spread * 100) >> 32 < self.0;
            push(if is_fast { &mut plan.fast } else { &mut plan.slow }, block);
        }
    }

    fn dirty(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    fn resident(&self) -> usize {
        0
    }
}

/// LRU of blocks, written back. When the oldest is dirty, the oldest [`GROUP`] dirty ones are written home in the order
/// of their addresses, and stay as clean ones.
pub struct Lru {
    blocks: usize,
    order: Order,
    /// Longer requests pass by, and those that go on where another one ended.
    longest: u64,
    streams: VecDeque<u64>,
}

/// What is small, in blocks; and how many streams are known.
const SMALL: u64 = 8;
const STREAMS: usize = 16;

impl Lru {
    pub fn new(blocks: usize) -> Lru {
        Lru { blocks, order: Order::new(), longest: u64::MAX, streams: VecDeque::new() }
    }

    /// The paper's other policy: what is small and random goes to the SSD, what is large or sequential to the disk.
    pub fn small(blocks: usize) -> Lru {
        Lru { longest: SMALL, ..Lru::new(blocks) }
    }

    fn passes(&mut self, ask: &Ask) -> bool {
        if self.longest == u64::MAX {
            return false;
        }
        let known = self.streams.iter().position(|end| *end == ask.bytes.start);
        known.and_then(|known| self.streams.remove(known));
        self.streams.truncate(STREAMS - 1);
        self.streams.push_front(ask.bytes.end);
        known.is_some() || ask.blocks().end - ask.blocks().start > self.longest
    }

    fn make_room(&mut self, plan: &mut Plan) {
        while self.order.len() >= self.blocks
            && let Some((block, is_dirty)) = self.order.oldest()
        {
            if is_dirty {
                plan.destage.extend(ranges(self.order.clean(GROUP)));
            }
            self.order.take(block);
        }
    }
}

impl Policy for Lru {
    fn ask(&mut self, ask: &Ask, plan: &mut Plan) {
        let passes = self.passes(ask);
        for block in ask.blocks() {
            if passes && (ask.is_write || !self.order.has(block)) {
                self.order.take(block);
                push(&mut plan.slow, block);
                continue;
            }
            if ask.is_write || self.order.has(block) {
                push(&mut plan.fast, block);
            } else {
                push(&mut plan.slow, block);
                push(&mut plan.fill, block);
            }
            if !self.order.has(block) {
                self.make_room(plan);
            }
            self.order.put(block, ask.is_write);
        }
    }

    fn dirty(&self) -> Vec<Range<u64>> {
        ranges(self.order.dirty())
    }

    fn resident(&self) -> usize {
        self.order.len()
    }
}

/// As `accelerate`: blocks are ranked by S3-FIFO, and what is written goes home soon: as soon as [`GROUP`] blocks wait.
pub struct Accelerate {
    policy: S3Fifo,
    staged: FxHashSet<u64>,
}

impl Accelerate {
    pub fn new(blocks: usize) -> Accelerate {
        Accelerate { policy: S3Fifo::new(blocks), staged: FxHashSet::default() }
    }
}

impl Policy for Accelerate {
    fn ask(&mut self, ask: &Ask, plan: &mut Plan) {
        for block in ask.blocks() {
            if self.policy.access(block, ask.is_write) || ask.is_write {
                push(&mut plan.fast, block);
            } else {
                push(&mut plan.slow, block);
                push(&mut plan.fill, block);
            }
            if ask.is_write {
                self.staged.insert(block);
            }
        }
        if self.staged.len() >= GROUP {
            plan.destage = self.dirty();
            self.staged.clear();
        }
    }

    fn dirty(&self) -> Vec<Range<u64>> {
        let mut blocks: Vec<u64> = self.staged.iter().copied().collect();
        blocks.sort_unstable();
        ranges(blocks)
    }

    fn resident(&self) -> usize {
        0
    }
}

/// Requests after which extents are ranked anew.
const EPOCH: u64 = 1000;
/// Extents that move in an epoch.
const MOVES: usize = 64;
/// What is left of an extent's heat after an epoch.
const DECAY: f64 = 0.9;

/// Heat of extents, as an exponentially weighted moving average: the hottest ones move in whole, and out whole.
pub struct Extents {
    extents: usize,
    heat: FxHashMap<u64, f64>,
    /// Extents on the fast device, and whether they are dirty.
    resident: FxHashMap<u64, bool>,
    asked: u64,
}

impl Extents {
    pub fn new(blocks: usize) -> Extents {
        let extents = blocks / EXTENT as usize;
        Extents { extents, heat: FxHashMap::default(), resident: FxHashMap::default(), asked: 0 }
    }

    fn rank(&mut self, plan: &mut Plan) {
        let heat = |extent: &u64| self.heat.get(extent).copied().unwrap_or_default();
        let mut hot: Vec<u64> = self.heat.keys().copied().collect();
        hot.sort_unstable_by(|a, b| heat(b).total_cmp(&heat(a)).then(a.cmp(b)));
        hot.truncate(self.extents);
        let wanted: Vec<u64> = hot.into_iter().filter(|extent| !self.resident.contains_key(extent)).collect();
        let mut cold: Vec<u64> = self.resident.keys().copied().collect();
        cold.sort_unstable_by(|a, b| heat(b).total_cmp(&heat(a)).then(a.cmp(b)));
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for extent in wanted.into_iter().take(MOVES) {
            if self.resident.len() - gone.len() + come.len() >= self.extents {
                match cold.pop() {
                    Some(coldest) if heat(&coldest) < heat(&extent) => gone.push(coldest),
                    Some(_) | None => break,
                }
            }
            come.push(extent);
        }
        gone.sort_unstable();
        for extent in gone {
            if self.resident.remove(&extent) == Some(true) {
                plan.destage.push(extent * EXTENT..(extent + 1) * EXTENT);
            }
        }
        come.sort_unstable();
        for extent in come {
            self.resident.insert(extent, false);
            plan.fetch.push(extent * EXTENT..(extent + 1) * EXTENT);
        }
        self.heat.values_mut().for_each(|heat| *heat *= DECAY);
        self.heat.retain(|_, heat| *heat > 1e-3);
    }
}

impl Policy for Extents {
    fn ask(&mut self, ask: &Ask, plan: &mut Plan) {
        self.asked += 1;
        if self.asked.is_multiple_of(EPOCH) {
            self.rank(plan);
        }
        for block in ask.blocks() {
            let extent = block / EXTENT;
            *self.heat.entry(extent).or_default() += 1.0 / (ask.blocks().end - ask.blocks().start) as f64;
            match self.resident.get_mut(&extent) {
                Some(dirty) => {
                    *dirty |= ask.is_write;
                    push(&mut plan.fast, block);
                }
                None => push(&mut plan.slow, block),
            }
        }
    }

    fn dirty(&self) -> Vec<Range<u64>> {
        let mut dirty: Vec<u64> =
            self.resident.iter().filter(|(_, dirty)| **dirty).map(|(extent, _)| *extent).collect();
        dirty.sort_unstable_by_key(|extent| Reverse(*extent));
        dirty.into_iter().rev().map(|extent| extent * EXTENT..(extent + 1) * EXTENT).collect()
    }

    fn resident(&self) -> usize {
        self.resident.len() * EXTENT as usize
    }
}
