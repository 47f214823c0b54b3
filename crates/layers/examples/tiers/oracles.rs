//! What knows the whole trace: the best that a policy could come near to. Moves are charged like those of all others.

use super::baselines::{EXTENT, GROUP, ranges};
use super::plan::{Ask, Plan, Policy, push};
use super::trace::Trace;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// Belady's policy with refusals: the block that is used again last goes, and a block that is read and used again later
/// than all others does not come. Dirty blocks are set apart, a quarter at most, so that they go home in groups.
pub struct Belady {
    blocks: usize,
    /// For each block of each request, one after the other: when the block is used next.
    next: Vec<u32>,
    used: usize,
    /// By the next use: clean ones, and dirty ones.
    orders: [BTreeSet<(u32, u64)>; 2],
    resident: FxHashMap<u64, (u32, bool)>,
}

impl Belady {
    pub fn new(trace: &Trace, blocks: usize) -> Belady {
        let mut next: Vec<u32> = Vec::new();
        let all: Vec<u64> = trace.requests.iter().flat_map(|request| request.blocks()).collect();
        let mut later = FxHashMap::default();
        for (at, block) in all.iter().enumerate().rev() {
            next.push(later.insert(*block, at as u32).unwrap_or(u32::MAX));
        }
        next.reverse();
        Belady { blocks, next, used: 0, orders: Default::default(), resident: FxHashMap::default() }
    }

    fn remove(&mut self, block: u64) -> bool {
        let Some((next, dirty)) = self.resident.remove(&block) else { return false };
        self.orders[usize::from(dirty)].remove(&(next, block));
        dirty
    }

    fn insert(&mut self, block: u64, next: u32, dirty: bool) {
        self.resident.insert(block, (next, dirty));
        self.orders[usize::from(dirty)].insert((next, block));
    }

    /// Writes home those dirty blocks that are used again last.
    fn destage(&mut self, plan: &mut Plan) {
        let mut group: Vec<(u64, u32)> =
            self.orders[1].iter().rev().take(GROUP).map(|(next, block)| (*block, *next)).collect();
        group.sort_unstable();
        for (block, next) in &group {
            self.remove(*block);
            self.insert(*block, *next, false);
        }
        plan.destage.extend(ranges(group.into_iter().map(|(block, _)| block)));
    }

    fn put(&mut self, block: u64, next: u32, dirty: bool, plan: &mut Plan) {
        let was_dirty = self.remove(block);
        if self.orders[1].len() >= (self.blocks / 4).max(1) {
            self.destage(plan);
        }
        if self.resident.len() >= self.blocks
            && let Some((_, victim)) = self.orders[0].last().copied()
        {
            self.remove(victim);
        }
        self.insert(block, next, dirty || was_dirty);
    }
}

impl Policy for Belady {
    fn ask(&mut self, ask: &Ask, plan: &mut Plan) {
        for block in ask.blocks() {
            let next = self.next[self.used];
            self.used += 1;
            let is_full = self.resident.len() >= self.blocks;
            let pays = !is_full || self.orders[0].last().is_some_and(|(last, _)| next < *last);
            if ask.is_write || self.resident.contains_key(&block) {
                push(&mut plan.fast, block);
                self.put(block, next, ask.is_write, plan);
            } else {
                push(&mut plan.slow, block);
                if pays && next != u32::MAX {
                    push(&mut plan.fill, block);
                    self.put(block, next, false, plan);
                }
            }
        }
    }

    fn dirty(&self) -> Vec<Range<u64>> {
        let mut dirty: Vec<u64> =
            self.resident.iter().filter(|(_, (_, dirty))| *dirty).map(|(block, _)| *block).collect();
        dirty.sort_unstable();
        ranges(dirty)
    }

    fn resident(&self) -> usize {
        self.resident.len()
    }
}

/// Placement by clairvoyance: those extents are on the fast device, for ever, that cost a slow device alone the most
/// time. An extent moves in when a request first needs it.
pub struct Placed {
    fast: HashSet<u64>,
    come: FxHashSet<u64>,
    dirty: FxHashSet<u64>,
}

impl Placed {
    /// `took` says what each request of the trace took a slow device alone, in seconds.
    pub fn new(trace: &Trace, took: &[f64], blocks: usize) -> Placed {
        let mut costs: FxHashMap<u64, f64> = FxHashMap::default();
        for (request, took) in trace.requests.iter().zip(took) {
            let blocks = request.blocks();
            for block in blocks.clone() {
                *costs.entry(block / EXTENT).or_default() += took / (blocks.end - blocks.start) as f64;
            }
        }
        let mut extents: Vec<(u64, f64)> = costs.into_iter().collect();
        extents.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let fast = extents.iter().take(blocks / EXTENT as usize).map(|(extent, _)| *extent).collect();
        Placed { fast, come: FxHashSet::default(), dirty: FxHashSet::default() }
    }
}

impl Policy for Placed {
    fn ask(&mut self, ask: &Ask, plan: &mut Plan) {
        for block in ask.blocks() {
            let extent = block / EXTENT;
            if !self.fast.contains(&extent) {
                push(&mut plan.slow, block);
                continue;
            }
            if ask.is_write {
                self.dirty.insert(block);
            }
            if self.come.contains(&extent) || ask.is_write {
                push(&mut plan.fast, block);
            } else {
                push(&mut plan.slow, block);
            }
        }
        for extent in ask.blocks().start / EXTENT..=(ask.blocks().end - 1) / EXTENT {
            if self.fast.contains(&extent) && self.come.insert(extent) {
                plan.fetch.push(extent * EXTENT..(extent + 1) * EXTENT);
            }
        }
    }

    fn dirty(&self) -> Vec<Range<u64>> {
        let mut dirty: Vec<u64> = self.dirty.iter().copied().collect();
        dirty.sort_unstable();
        ranges(dirty)
    }

    fn resident(&self) -> usize {
        self.come.len() * EXTENT as usize
    }
}
