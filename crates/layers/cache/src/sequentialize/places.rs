//! A page of the map in memory: few entries by themselves, or all of them.
//!
//! A page of a volume that is written at random, and little, has few entries; a table of all would take 4 KiB for each.
//!
//! Invariant: entries by themselves are in the order of their numbers, and each has a slot.

use super::classes::Life;
use super::format::PAGE_BLOCKS;

/// Not mapped. Slot 0 has the superblock.
const NOWHERE: u32 = 0;
/// Entries by themselves, at most: as a table they would take hardly more.
const FEW: usize = 512;

/// An entry by itself, without gaps for alignment: its number in the page, its slot, and its life.
#[derive(Clone, Copy)]
pub(super) struct Entry([u8; 7]);

impl Entry {
    fn new(at: u16, slot: u32, life: Life) -> Entry {
        let ([a, b], [c, d, e, f]) = (at.to_le_bytes(), slot.to_le_bytes());
        Entry([a, b, c, d, e, f, life])
    }

    fn at(self) -> u16 {
        u16::from_le_bytes([self.0[0], self.0[1]])
    }

    fn slot(self) -> u32 {
        u32::from_le_bytes([self.0[2], self.0[3], self.0[4], self.0[5]])
    }

    fn life(self) -> Life {
        self.0[6]
    }
}

/// Where the blocks of a page are.
pub enum Places {
    /// Those that are mapped.
    Few(Vec<Entry>),
    /// All.
    All(Box<Table>),
}

/// All entries of a page.
pub(super) struct Table {
    slots: [u32; PAGE_BLOCKS as usize],
    lives: [Life; PAGE_BLOCKS as usize],
}

impl Places {
    /// None is mapped.
    pub fn new() -> Places {
        Places::Few(Vec::new())
    }

    /// The slot of block `at` of the page.
    pub fn get(&self, at: u32) -> Option<u32> {
        let slot = match self {
            Places::Few(entries) => entries.get(find(entries, at).ok()?)?.slot(),
            Places::All(table) => table.slots[at as usize],
        };
        (slot != NOWHERE).then_some(slot)
    }

    /// Maps block `at` of the page, or unmaps it: its former slot.
    pub fn set(&mut self, at: u32, slot: Option<u32>) -> Option<u32> {
        let before = match self {
            Places::Few(entries) => set_few(entries, at, slot),
            Places::All(table) => {
                if slot.is_none() {
                    table.lives[at as usize] = 0;
                }
                std::mem::replace(&mut table.slots[at as usize], slot.unwrap_or(NOWHERE))
            }
        };
        if matches!(self, Places::Few(entries) if entries.len() > FEW) {
            *self = Places::All(self.table());
        }
        (before != NOWHERE).then_some(before)
    }

    /// The life of block `at` of the page.
    pub fn life(&self, at: u32) -> Life {
        match self {
            Places::Few(entries) => find(entries, at).map_or(0, |index| entries[index].life()),
            Places::All(table) => table.lives[at as usize],
        }
    }

    /// Block `at` of the page, if it is mapped, has this life from now on.
    pub fn set_life(&mut self, at: u32, life: Life) {
        match self {
            Places::Few(entries) => {
                if let Ok(index) = find(entries, at) {
                    entries[index].0[6] = life;
                }
            }
            Places::All(table) if table.slots[at as usize] != NOWHERE => table.lives[at as usize] = life,
            Places::All(_) => {}
        }
    }

    /// The first block from `at` on that is mapped.
    pub fn next(&self, at: u32) -> Option<u32> {
        match self {
            Places::Few(entries) => {
                let (Ok(next) | Err(next)) = find(entries, at);
                entries.get(next).map(|entry| u32::from(entry.at()))
            }
            Places::All(table) => (at..PAGE_BLOCKS).find(|at| table.slots[*at as usize] != NOWHERE),
        }
    }

    /// All entries, of few.
    fn table(&self) -> Box<Table> {
        let mut table =
            Box::new(Table { slots: [NOWHERE; PAGE_BLOCKS as usize], lives: [0; PAGE_BLOCKS as usize] });
        if let Places::Few(entries) = self {
            for entry in entries {
                table.slots[usize::from(entry.at())] = entry.slot();
                table.lives[usize::from(entry.at())] = entry.life();
            }
        }
        table
    }

    /// The bytes that are on disk.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = |slots: &[u32]| slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        match self {
            Places::Few(_) => bytes(&self.table().slots),
            Places::All(table) => bytes(&table.slots),
        }
    }

    /// The page whose bytes these are.
    pub fn load(bytes: &[u8]) -> Places {
        let mut places = Places::new();
        for (at, bytes) in (0..PAGE_BLOCKS).zip(bytes.as_chunks::<4>().0) {
            places.set(at, Some(u32::from_le_bytes(*bytes)).filter(|slot| *slot != NOWHERE));
        }
        places
    }

    /// Bytes of memory, besides itself.
    pub fn memory(&self) -> usize {
        match self {
            Places::Few(entries) => entries.capacity() * size_of::<Entry>(),
            Places::All(_) => size_of::<Table>(),
        }
    }
}

fn find(entries: &[Entry], at: u32) -> Result<usize, usize> {
    entries.binary_search_by_key(&at, |entry| u32::from(entry.at()))
}

/// Sets an entry by itself: the former slot.
fn set_few(entries: &mut Vec<Entry>, at: u32, slot: Option<u32>) -> u32 {
    match (find(entries, at), slot) {
        (Ok(index), Some(slot)) => {
            let life = entries[index].life();
            std::mem::replace(&mut entries[index], Entry::new(at as u16, slot, life)).slot()
        }
        (Ok(index), None) => entries.remove(index).slot(),
        (Err(index), Some(slot)) => {
            if entries.len() == entries.capacity() {
                entries.reserve_exact(entries.len() / 4 + 1);
            }
            entries.insert(index, Entry::new(at as u16, slot, 0));
            NOWHERE
        }
        (Err(_), None) => NOWHERE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::xorshift;
    use std::collections::BTreeMap;

    /// Whatever is set, few or all, is what a map of the standard library has.
    #[test]
    fn what_was_set_is_there() {
        let mut random = xorshift(9);
        for turns in [5, 300, 3000] {
            let (mut places, mut model) = (Places::new(), BTreeMap::new());
            for _ in 0..turns {
                let (at, slot) = (random() as u32 % PAGE_BLOCKS, random() as u32 % 9);
                let before = if slot == 0 { model.remove(&at) } else { model.insert(at, slot) };
                assert_eq!(places.set(at, Some(slot).filter(|slot| *slot > 0)), before);
                let next = random() as u32 % PAGE_BLOCKS;
                assert_eq!(places.get(next), model.get(&next).copied());
                assert_eq!(places.next(next), model.range(next..).next().map(|(at, _)| *at));
            }
            let life = |places: &Places| (0..PAGE_BLOCKS).map(|at| places.life(at)).collect::<Vec<_>>();
            (0..PAGE_BLOCKS).for_each(|at| places.set_life(at, at as Life));
            let lives = (0..PAGE_BLOCKS).map(|at| if model.contains_key(&at) { at as Life } else { 0 });
            assert!(lives.eq(life(&places)));
            let same = Places::load(&places.bytes());
            assert!((0..PAGE_BLOCKS).all(|at| same.get(at) == places.get(at)));
            assert!(
                places.memory() <= (model.len() * 10).max(14).min(size_of::<Table>()),
                "{turns}: {}",
                places.memory()
            );
        }
    }
}
