//! Which blocks of which volumes are on the flash, and where: in memory, under 16 bytes for each slot.
//!
//! ```text
//!      table    slot numbers, by the hash of volume and block     4 bytes × 5/4
//!      slots    what each slot holds, a word                      8 bytes
//!      ghosts   fingerprints of what went lately (`ghosts.rs`)    2 bytes × 9/10
//! ```
//!
//! The state of a block is in the word of its slot, beside marks of what is under way (*pending*: a newer version is
//! being written; *moving*: a copy is being made):
//!
//! ```text
//!             batch     on the store         copied    written again
//!  clean      -         clean                clean     as the new version says, in another slot
//!  dirty      batched   dirty: it is newer   dirty     the same
//!  batched    batched   clean                batched   the same
//! ```
//!
//! The table is open addressing with linear probing; what is taken out is closed up by moving others back, so
//! that there are no tombstones. A slot holds something exactly if its word is not zero, and then the table
//! has it.

use super::ghosts::Ghosts;
use std::ops::Range;

/// What a slot holds: a block of a volume, and what is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word(u64);

const BLOCK: Range<u32> = 0..40;
const VOLUME: Range<u32> = 40..47;
const FREQUENCY: Range<u32> = 47..49;
/// Not on the store yet.
const DIRTY: u64 = 1 << 49;
/// A newer version is being written.
const PENDING: u64 = 1 << 50;
/// It is being copied to another slot.
const MOVING: u64 = 1 << 51;
/// Not an empty word, also for block 0 of volume 0.
const USED: u64 = 1 << 52;
/// What it holds is, or was, in a batch on its way to the store; no newer version of it has this.
const BATCHED: u64 = 1 << 53;
/// Sectors of the block that only the store has, a bit each.
const ABSENT: Range<u32> = 54..62;

fn field(word: u64, bits: Range<u32>) -> u64 {
    word >> bits.start & ((1 << (bits.end - bits.start)) - 1)
}

impl Word {
    pub fn new(volume: u16, block: u64, dirty: bool) -> Word {
        Word(USED | block | u64::from(volume) << VOLUME.start | if dirty { DIRTY } else { 0 })
    }

    pub fn is_used(self) -> bool {
        self.0 != 0
    }

    pub fn block(self) -> u64 {
        field(self.0, BLOCK)
    }

    pub fn volume(self) -> u16 {
        field(self.0, VOLUME) as u16
    }

    /// How often it was asked for since it came, 3 at most.
    pub fn frequency(self) -> u8 {
        field(self.0, FREQUENCY) as u8
    }

    pub fn with_frequency(self, frequency: u8) -> Word {
        let mask = 0b11 << FREQUENCY.start;
        Word(self.0 & !mask | u64::from(frequency.min(3)) << FREQUENCY.start)
    }

    /// Sectors of the block that it does not have, a bit each: only the store has those.
    pub fn absent(self) -> u8 {
        field(self.0, ABSENT) as u8
    }

    pub fn with_absent(self, absent: u8) -> Word {
        let mask = 0xFF << ABSENT.start;
        Word(self.0 & !mask | u64::from(absent) << ABSENT.start)
    }

    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// A newer version of it is being written.
    pub fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    pub fn is_moving(self) -> bool {
        self.0 & MOVING != 0
    }

    pub fn is_batched(self) -> bool {
        self.0 & BATCHED != 0
    }

    /// The word of a copy: the same version of the same block.
    pub fn copied(self) -> Word {
        Word(self.0 & !(PENDING | MOVING))
    }

    fn set(&mut self, bit: u64, on: bool) {
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }

    fn hash(self) -> u64 {
        hash(self.volume(), self.block())
    }
}

pub fn hash(volume: u16, block: u64) -> u64 {
    // The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA '14).
    let mut x = (block | u64::from(volume) << 40).wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The index of a flash.
pub struct Index {
    slots: Vec<Word>,
    /// Slot numbers; slot 0 is the superblock's, so 0 is an empty place.
    table: Vec<u32>,
    pub ghosts: Ghosts,
}

impl Index {
    /// An empty one for `slots` slots.
    pub fn new(slots: u32) -> Index {
        let slots = slots as usize;
        Index {
            slots: vec![Word::default(); slots],
            table: vec![0; slots + slots / 4 + 8],
            ghosts: Ghosts::new(slots),
        }
    }

    /// Bytes that it takes.
    pub fn memory(&self) -> usize {
        size_of_val(&self.slots[..]) + size_of_val(&self.table[..]) + self.ghosts.memory()
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.table.len() as u128) >> 64) as usize
    }

    fn next(&self, place: usize) -> usize {
        if place + 1 == self.table.len() { 0 } else { place + 1 }
    }

    /// The place in the table that has the block, or the empty one where it would be put.
    fn place(&self, volume: u16, block: u64) -> usize {
        let mut place = self.home(hash(volume, block));
        loop {
            let slot = self.table[place];
            let word = self.slots[slot as usize];
            if slot == 0 || (word.volume() == volume && word.block() == block) {
                return place;
            }
            place = self.next(place);
        }
    }

    /// The slot that has the block.
    pub fn find(&self, volume: u16, block: u64) -> Option<u32> {
        Some(self.table[self.place(volume, block)]).filter(|slot| *slot != 0)
    }

    /// What a slot holds.
    pub fn word(&self, slot: u32) -> Word {
        self.slots[slot as usize]
    }

    /// From now on `slot` has what `word` says. The slot that had it before, which is empty now, and what it said.
    pub fn put(&mut self, slot: u32, word: Word) -> Option<(u32, Word)> {
        debug_assert!(!self.word(slot).is_used(), "a slot in use was written");
        let place = self.place(word.volume(), word.block());
        let before = std::mem::replace(&mut self.table[place], slot);
        self.slots[slot as usize] = word;
        (before != 0).then(|| (before, std::mem::take(&mut self.slots[before as usize])))
    }

    /// Empties the slot that has the block, if one has it; what it said.
    pub fn remove(&mut self, volume: u16, block: u64) -> Option<(u32, Word)> {
        let mut hole = self.place(volume, block);
        let slot = self.table[hole];
        if slot == 0 {
            return None;
        }
        let mut place = self.next(hole);
        while self.table[place] != 0 {
            let home = self.home(self.slots[self.table[place] as usize].hash());
            // It may move back if its home is not after the hole, going round.
            let len = self.table.len();
            let from_home = (place + len - home) % len;
            let from_hole = (place + len - hole) % len;
            if from_home >= from_hole {
                self.table[hole] = self.table[place];
                hole = place;
            }
            place = self.next(place);
        }
        self.table[hole] = 0;
        Some((slot, std::mem::take(&mut self.slots[slot as usize])))
    }

    /// Somebody asked for what the slot holds, or held: its block may have gone elsewhere since it was looked up.
    pub fn touch(&mut self, slot: u32) {
        if self.word(slot).is_used() {
            self.set_frequency(slot, self.word(slot).frequency() + 1);
        }
    }

    pub fn set_frequency(&mut self, slot: u32, frequency: u8) {
        debug_assert!(self.word(slot).is_used(), "an empty slot has no frequency");
        let word = &mut self.slots[slot as usize];
        *word = word.with_frequency(frequency);
    }

    fn set(&mut self, slot: u32, bit: u64, on: bool) {
        debug_assert!(!on || self.word(slot).is_used(), "an empty slot has no state");
        self.slots[slot as usize].set(bit, on);
    }

    pub fn set_pending(&mut self, slot: u32, on: bool) {
        self.set(slot, PENDING, on);
    }

    pub fn set_moving(&mut self, slot: u32, on: bool) {
        self.set(slot, MOVING, on);
    }

    /// A dirty block goes into a batch.
    pub fn batch(&mut self, slot: u32) {
        debug_assert!(self.word(slot).is_dirty(), "a batch is of dirty blocks");
        self.set(slot, BATCHED, true);
    }

    /// The store has a batch in which the block was: true if the block is clean now, and was not before. A
    /// version that was written since is in no batch.
    pub fn stored(&mut self, slot: u32) -> bool {
        let is_clean = self.word(slot).is_dirty() && self.word(slot).is_batched();
        if is_clean {
            self.set(slot, DIRTY, false);
        }
        is_clean
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::VOLUMES_MAX;
    use super::*;
    use crate::testing::xorshift;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_a_map() {
        let mut random = xorshift(7);
        let mut index = Index::new(100);
        let mut model = BTreeMap::new();
        let mut free: Vec<u32> = (1..100).collect();
        for _ in 0..20_000 {
            let (volume, block) = ((random() % 3) as u16, random() % 40);
            match (random().is_multiple_of(2), free.pop()) {
                (true, Some(slot)) => {
                    let before = index.put(slot, Word::new(volume, block, false)).map(|(slot, _)| slot);
                    assert_eq!(before, model.insert((volume, block), slot));
                    free.extend(before);
                }
                (_, slot) => {
                    free.extend(slot);
                    let gone = index.remove(volume, block).map(|(slot, _)| slot);
                    assert_eq!(gone, model.remove(&(volume, block)));
                    free.extend(gone);
                }
            }
            let (volume, block) = ((random() % 3) as u16, random() % 40);
            assert_eq!(index.find(volume, block), model.get(&(volume, block)).copied());
        }
    }

    #[test]
    fn the_table_of_states() {
        type Change = fn(&mut Index) -> bool;
        let changes: [Change; 2] = [|index| (index.batch(7), true).1, |index| index.stored(7)];
        const BATCH: usize = 0;
        const STORED: usize = 1;
        // Dirty, changes with their answers, dirty and batched afterwards.
        type Row = (bool, &'static [(usize, bool)], bool, bool);
        let rows: [Row; 5] = [
            (false, &[(STORED, false)], false, false),
            (true, &[(STORED, false)], true, false),
            (true, &[(BATCH, true)], true, true),
            (true, &[(BATCH, true), (BATCH, true), (STORED, true)], false, true),
            (true, &[(BATCH, true), (STORED, true), (STORED, false)], false, true),
        ];
        for (number, (is_dirty, made, dirty, batched)) in rows.into_iter().enumerate() {
            let mut index = Index::new(100);
            index.put(7, Word::new(3, 5, is_dirty));
            for (change, answer) in made {
                assert_eq!(changes[*change](&mut index), *answer, "row {number}");
            }
            index.set_moving(7, true);
            index.set_pending(7, true);
            let word = index.word(7).copied();
            let state = (word.is_dirty(), word.is_batched(), word.is_moving() || word.is_pending());
            assert_eq!(state, (dirty, batched, false), "row {number}: what a copy has");
            // A newer version is in another slot, and in no batch.
            index.put(8, Word::new(3, 5, true));
            assert!(!index.word(7).is_used() && !index.stored(8) && index.word(8).is_dirty());
        }
    }

    #[test]
    fn a_word_keeps_all_of_its_parts() {
        let word = Word::new(127, (1 << 40) - 1, true).with_frequency(9).with_absent(0xA5);
        assert_eq!((word.volume(), word.block(), word.frequency()), (127, (1 << 40) - 1, 3));
        assert_eq!((word.absent(), word.with_absent(0).absent()), (0xA5, 0));
        const { assert!(VOLUMES_MAX < 1 << 7, "each volume has a number") };
        assert!(word.is_dirty() && !word.is_pending() && !word.is_moving());
        assert!(Word::new(0, 0, false).is_used() && !Word::default().is_used());
    }

    #[test]
    fn what_is_asked_for_when_it_has_gone_stays_gone() {
        let mut index = Index::new(100);
        index.put(7, Word::new(3, 5, false));
        index.put(8, Word::new(3, 5, true));
        index.touch(7);
        index.touch(8);
        assert_eq!((index.word(7), index.word(8).frequency()), (Word::default(), 1));
    }

    #[test]
    fn it_takes_less_than_sixteen_bytes_for_a_block() {
        let index = Index::new(1 << 20);
        assert!(index.memory() < 15 << 20, "{} bytes for 2^20 slots", index.memory());
    }
}
