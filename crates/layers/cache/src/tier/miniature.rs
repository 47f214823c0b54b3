//! Which part of recent misses gets copies: that with which the slow device would have cost the least.
//!
//! ```text
//!      reads and writes ─▶ one group of blocks in many ─▶ ┌ model: copies the best half    ┐
//!                                                         ├ model: copies all              ├─▶ the one that spent
//!                                                         └ model: copies the best quarter ┘   the least decides
//! ```
//!
//! Whether a block that is read for the first time is asked for again before its copy has gone depends on the load.
//! Where it is not, the copy only throws out others, and wears the fast device. Each model is a fast device in small:
//! it sees as small a part of the blocks as its space is of the volume's (miniature simulation: Waldspurger,
//! Saemundsson, Ahmad and Park, *Cache Modeling and Optimization using Miniature Simulations*, USENIX ATC 2017). A
//! model keeps numbers of blocks, and no data.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Parts of recent misses, the best ones by what their blocks cost, that get copies. The first is where a volume
/// begins.
const PARTS: [f64; 3] = [0.5, 1.0, 0.25];
/// Blocks that a model has space for, at most.
const SPACE: u64 = 1024;
/// Blocks side by side that are sampled together: a read of some goes to the slow device if one is missing.
const GROUP: u64 = 16;
/// What was spent is that of the last reads that were sampled, about so many.
const READS: f32 = 16_384.0;
/// After a change of what is asked for, little of what is there is worth its space: all is copied while a read of
/// about so many last ones costs by this factor more than one of the others.
const LATELY: f32 = 512.0;
const CHANGED: f32 = 1.25;
/// Another model decides when it has spent no more than this part of what the one has that decides.
const BETTER: f32 = 0.98;

/// Blocks in the order in which they came, and whether they were asked for since (CLOCK: Corbató, 1968).
struct Model {
    part: f64,
    asked: HashMap<u64, bool>,
    order: VecDeque<u64>,
    /// Milliseconds of the slow device for misses, and of the fast one for copies.
    spent: Mean,
    /// The same of a shorter time.
    lately: Mean,
}

/// A mean of about so many last values.
struct Mean {
    of: f32,
    sum: f32,
    weight: f32,
}

impl Mean {
    fn new(of: f32) -> Mean {
        Mean { of, sum: 0.0, weight: 0.0 }
    }

    fn add(&mut self, value: f32) {
        let keeps = 1.0 - 1.0 / self.of;
        self.sum = self.sum * keeps + value;
        self.weight = self.weight * keeps + 1.0;
    }

    fn get(&self) -> f32 {
        self.sum / self.weight.max(1.0)
    }
}

/// Blocks that are read, as models are told of them.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Which part of recent misses cost more, from 0 to 1.
    pub rank: f64,
    /// Milliseconds that the slow device takes for each block, and the fast one.
    pub slow_ms: f32,
    pub fast_ms: f32,
    /// It is a reason to keep them.
    pub counts: bool,
}

impl Model {
    fn new(part: f64) -> Model {
        let (spent, lately) = (Mean::new(READS), Mean::new(LATELY));
        Model { part, asked: HashMap::new(), order: VecDeque::new(), spent, lately }
    }

    /// True if it has the block, which has been asked for then if that `counts`.
    fn has(&mut self, block: u64, counts: bool) -> bool {
        let asked = self.asked.get_mut(&block);
        asked.map(|asked| *asked |= counts).is_some()
    }

    /// The block comes, and what was not asked for goes.
    fn put(&mut self, block: u64, space: usize) {
        while self.order.len() >= space
            && let Some(oldest) = self.order.pop_front()
        {
            if self.asked.get(&oldest) == Some(&true) {
                self.asked.insert(oldest, false);
                self.order.push_back(oldest);
            } else {
                self.asked.remove(&oldest);
            }
        }
        self.asked.insert(block, false);
        self.order.push_back(block);
    }

    fn read(&mut self, blocks: Range<u64>, read: Read, space: usize) {
        let spent = self.spends(blocks, read, space);
        self.spent.add(spent);
        self.lately.add(spent);
    }

    /// The milliseconds that a read takes, with its copies.
    fn spends(&mut self, blocks: Range<u64>, read: Read, space: usize) -> f32 {
        let all = (blocks.end - blocks.start) as f32;
        let missing: Vec<u64> = blocks.filter(|block| !self.has(*block, read.counts)).collect();
        if missing.is_empty() {
            return 0.0;
        }
        let mut spent = read.slow_ms * all;
        for block in missing {
            if read.rank < self.part || self.order.len() < space {
                self.put(block, space);
                spent += read.fast_ms;
            }
        }
        spent
    }

    fn write(&mut self, blocks: Range<u64>, space: usize) {
        for block in blocks {
            if !self.has(block, true) {
                self.put(block, space);
            }
        }
    }
}

/// The models of a volume.
pub struct Models {
    models: [Model; PARTS.len()],
    /// The one that decides.
    used: usize,
    /// Blocks of the fast device that are the volume's.
    share: u64,
}

impl Models {
    /// Nothing has been read.
    pub fn new() -> Models {
        Models { models: PARTS.map(Model::new), used: 0, share: 1 }
    }

    /// So many blocks of the fast device are the volume's from now on.
    pub fn set_share(&mut self, blocks: u64) {
        self.share = blocks.max(1);
    }

    /// The part of recent misses that is to be copied while a copy throws out another one.
    pub fn part(&self) -> f64 {
        let Model { part, spent, lately, .. } = &self.models[self.used];
        if lately.get() > CHANGED * spent.get() { 1.0 } else { *part }
    }

    /// Those of some blocks that models see, a range for each group (Fibonacci hashing: Knuth, volume 3, section 6.4).
    pub fn sampled(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let most = ((SPACE << 32) / self.share).min(1 << 32);
        let groups = blocks.start / GROUP..blocks.end.div_ceil(GROUP);
        groups
            .filter(move |group| group.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 < most)
            .map(move |group| blocks.start.max(group * GROUP)..blocks.end.min((group + 1) * GROUP))
    }

    fn space(&self) -> usize {
        self.share.min(SPACE) as usize
    }

    /// Sampled blocks of a group are read.
    pub fn read(&mut self, blocks: &Range<u64>, read: Read) {
        let space = self.space();
        self.models.iter_mut().for_each(|model| model.read(blocks.clone(), read, space));
        let spent = |model: usize| self.models[model].spent.get();
        let least = (0..PARTS.len()).min_by(|a, b| spent(*a).total_cmp(&spent(*b))).unwrap_or(0);
        if spent(least) < BETTER * spent(self.used) {
            self.used = least;
        }
    }

    /// Sampled blocks of a group are written: the fast device gets all writes.
    pub fn write(&mut self, blocks: &Range<u64>) {
        let space = self.space();
        self.models.iter_mut().for_each(|model| model.write(blocks.clone(), space));
    }

    /// Bytes that they take.
    pub fn memory(&self) -> usize {
        let of = |model: &Model| model.asked.capacity() * 17 + model.order.capacity() * 8;
        self.models.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rank: f64) -> Read {
        Read { rank, slow_ms: 4.0, fast_ms: 0.1, counts: true }
    }

    /// The part that is copied after reads of single blocks: `next` has their numbers, and how they rank.
    fn part(share: u64, mut next: impl FnMut(u64) -> (u64, f64)) -> f64 {
        let mut models = Models::new();
        models.set_share(share);
        for n in 0..200_000 {
            let (block, rank) = next(n);
            models.sampled(block..block + 1).for_each(|part| models.read(&part, read(rank)));
            for model in &models.models {
                assert!(model.order.len() <= models.space() && model.asked.len() == model.order.len());
            }
        }
        models.part()
    }

    #[test]
    fn a_scan_among_hot_blocks_gets_no_copies_and_what_moves_does() {
        let mut random = crate::testing::xorshift(3);
        for share in [500, 50_000] {
            // A hot set that just fits, and ten times as many blocks that are read once, and rank lower.
            let scan = part(share, |n| match n % 10 {
                0 => ((random() % (share * 9 / 10)), 0.1),
                _ => (share * 4 + n, 0.7),
            });
            assert!(scan < 1.0, "share {share}: {scan}");
            // Blocks are asked for again soon, and never later; what is new ranks low.
            let moving = part(share, |n| ((n / 2) + random() % (share / 8), 0.9));
            assert_eq!(moving, 1.0, "share {share}");
        }
    }

    #[test]
    fn models_see_as_much_of_a_volume_as_they_have_of_its_space() {
        let mut models = Models::new();
        for share in [100, SPACE, 10 * SPACE, 1000 * SPACE] {
            models.set_share(share);
            let blocks = 1_000_000 * GROUP;
            let seen: u64 = models.sampled(0..blocks).map(|part| part.end - part.start).sum();
            let wanted = (blocks * SPACE / share).min(blocks);
            assert!(seen.abs_diff(wanted) <= wanted / 50, "share {share}: {seen} of {wanted}");
        }
        models.set_share(1);
        let parts: Vec<_> = models.sampled(GROUP - 2..2 * GROUP + 1).collect();
        assert_eq!(parts, [GROUP - 2..GROUP, GROUP..2 * GROUP, 2 * GROUP..2 * GROUP + 1]);
    }

    #[test]
    fn what_is_written_is_there_and_what_is_asked_for_stays() {
        let mut model = Model::new(0.0);
        model.write(0..4, 4);
        model.read(0..1, read(0.9), 4);
        model.write(4..6, 4);
        let has = (0..6).map(|block| model.has(block, false)).collect::<Vec<_>>();
        assert_eq!(has, [true, false, false, true, true, true]);
        assert_eq!(model.spends(0..3, read(0.9), 4), 12.0, "one that is missing is a read of all");
        assert!(!model.has(1, false), "it is not worth a copy");
    }
}
