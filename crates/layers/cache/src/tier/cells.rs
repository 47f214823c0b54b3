//! The cells of a fast device, each for a copy of a block, and what is known of every one of them.
//!
//! ```text
//!      set    │ cell │ cell │ … │ cell │    64 or a few more, chosen by the block's hash
//!             │ print │ print │ … │        nearly as many ghosts: fingerprints of blocks that went, or did not come
//!
//!      cell   63       58 57 56 55      40 39                          0     one word of 8 bytes, 0 if free
//!             │ class   │u │d │ stamp     │ block                      │
//! ```
//!
//! A copy lies in a cell of its block's set, so that the place of a word in the table is the place of the copy on the
//! device, and no other index is needed: 8 bytes of a cell and 2 of a ghost are 10 bytes for 4 KiB. The price is that a
//! victim is chosen among the cells of a set instead of all. A victim among 64 cells is within the worst 2% of all on
//! average (sampled eviction: Beckmann, Chen, Cidon, *LHD: Improving Cache Hit Rate by Maximizing Hit Density*, NSDI
//! '18).
//!
//! Invariants: a block is in at most one cell, and that cell is in its set.

use std::ops::Range;

/// Cells of a set, at least, where there are so many.
const WAYS: usize = 64;

const BLOCK_BITS: u32 = 40;
const STAMP_AT: u32 = 40;
const DIRTY: u64 = 1 << 56;
const USED: u64 = 1 << 57;
const CLASS_AT: u32 = 58;

/// The most classes that a cell can be of.
pub const CLASSES: usize = 1 << (64 - CLASS_AT);

/// The highest number of a block that a cell can hold: a slow device of 4 PiB.
pub const BLOCK_MAX: u64 = (1 << BLOCK_BITS) - 1;

/// What a cell holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell(u64);

impl Cell {
    /// A copy of `block`, at most [`BLOCK_MAX`], of a class below [`CLASSES`].
    pub fn new(block: u64, class: u8, stamp: u16, dirty: bool) -> Cell {
        let dirty = if dirty { DIRTY } else { 0 };
        let class = u64::from(class) << CLASS_AT;
        Cell((block & BLOCK_MAX) | u64::from(stamp) << STAMP_AT | dirty | USED | class)
    }

    /// The block.
    pub fn block(self) -> u64 {
        self.0 & BLOCK_MAX
    }

    /// When it was last used, in units of its owner's clock that wraps around.
    pub fn stamp(self) -> u16 {
        (self.0 >> STAMP_AT) as u16
    }

    /// What its last use says of the next one.
    pub fn class(self) -> u8 {
        (self.0 >> CLASS_AT) as u8
    }

    /// Whether the copy is newer than the slow device's.
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }
}

/// All cells.
pub struct Cells {
    words: Vec<u64>,
    /// The first of each set says which one of the others is the oldest.
    ghosts: Vec<u16>,
    sets: usize,
    used: usize,
}

impl Cells {
    /// `count` free cells, at least one.
    pub fn new(count: usize) -> Cells {
        let count = count.max(1);
        let sets = (count / WAYS).max(1);
        Cells { words: vec![0; count], ghosts: vec![0; count], sets, used: 0 }
    }

    /// How many cells there are.
    pub fn count(&self) -> usize {
        self.words.len()
    }

    /// How many of them hold a copy.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes of memory that all of them take.
    pub fn memory(&self) -> usize {
        size_of_val(&self.words[..]) + size_of_val(&self.ghosts[..])
    }

    /// The places of the cells of a block's set.
    pub fn set(&self, block: u64) -> Range<usize> {
        let (set, sets) = (((u128::from(hash(block)) * self.sets as u128) >> 64) as usize, self.sets);
        let count = self.words.len();
        set * count / sets..(set + 1) * count / sets
    }

    /// What the cell at a place holds.
    pub fn at(&self, place: usize) -> Option<Cell> {
        Some(Cell(self.words[place])).filter(|cell| cell.0 & USED != 0)
    }

    /// Where the block's cell is.
    pub fn find(&self, block: u64) -> Option<usize> {
        let wanted = block | USED;
        let set = self.set(block);
        let word = self.words[set.clone()].iter().position(|word| word & (BLOCK_MAX | USED) == wanted)?;
        Some(set.start + word)
    }

    /// A free cell of the block's set.
    pub fn free(&self, block: u64) -> Option<usize> {
        let set = self.set(block);
        self.words[set.clone()].iter().position(|word| *word == 0).map(|place| set.start + place)
    }

    /// The cell at a place holds that from now on, or is free.
    pub fn put(&mut self, place: usize, cell: Option<Cell>) {
        let before = std::mem::replace(&mut self.words[place], cell.map_or(0, |cell| cell.0));
        self.used = self.used + usize::from(cell.is_some()) - usize::from(before != 0);
    }

    /// Remembers that the block is not here, in place of the oldest ghost of its set.
    pub fn remember(&mut self, block: u64) {
        let set = self.set(block);
        let Some((oldest, ghosts)) = self.ghosts[set].split_first_mut() else { return };
        if let Some(ghost) = ghosts.get_mut(usize::from(*oldest)) {
            *ghost = print(block);
            *oldest = (*oldest + 1) % ghosts.len() as u16;
        }
    }

    /// Whether the block was remembered, as far as a fingerprint can tell; it is not any more.
    pub fn recall(&mut self, block: u64) -> bool {
        let range = self.set(block);
        let found = self.ghosts[range].iter_mut().skip(1).find(|ghost| **ghost == print(block));
        found.is_some_and(|ghost| std::mem::take(ghost) != 0)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*, OOPSLA '14).
pub fn hash(block: u64) -> u64 {
    let mut x = block.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A fingerprint, from other bits of the hash than the set; never 0.
fn print(block: u64) -> u16 {
    (hash(block) as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_cell_keeps_all_of_its_parts() {
        let cell = Cell::new(BLOCK_MAX, 63, u16::MAX, true);
        assert_eq!((cell.block(), cell.class(), cell.stamp()), (BLOCK_MAX, 63, u16::MAX));
        assert!(cell.is_dirty() && !Cell::new(0, 0, 0, false).is_dirty());
    }

    #[test]
    fn they_are_a_map_of_bounded_sets() {
        let mut random = crate::testing::xorshift(3);
        for count in [1, 63, 64, 1000] {
            let (mut cells, mut model) = (Cells::new(count), BTreeMap::new());
            for _ in 0..20_000 {
                let block = random() % (2 * count as u64);
                let set = cells.set(block);
                assert!(!set.is_empty() && set.end <= count && set.len() < 2 * WAYS);
                match cells.find(block) {
                    Some(place) => {
                        assert!(set.contains(&place));
                        assert_eq!(cells.at(place).map(Cell::block), Some(block));
                        cells.put(place, None);
                        model.remove(&block);
                    }
                    None => {
                        if let Some(place) = cells.free(block) {
                            cells.put(place, Some(Cell::new(block, 1, 2, false)));
                            model.insert(block, place);
                        }
                    }
                }
                assert_eq!(cells.find(block), model.get(&block).copied());
                assert_eq!(cells.used(), model.len());
            }
        }
    }

    #[test]
    fn ghosts_are_nearly_as_many_as_cells_and_recalled_once() {
        let mut cells = Cells::new(640);
        (0..640).for_each(|block| cells.remember(block));
        let recalled = (0..640).filter(|block| cells.recall(*block)).count();
        assert!((500..640).contains(&recalled), "{recalled}: sets overflow, but not by much");
        assert!(!(0..640).any(|block| cells.recall(block)), "each is recalled once");
    }

    #[test]
    fn it_takes_ten_bytes_for_a_block() {
        let count = 1 << 20;
        let memory = Cells::new(count).memory();
        assert!(memory <= 10 * count, "{memory} bytes for 2^20 cells");
    }
}
