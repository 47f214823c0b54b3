//! The map: where each block is.
//!
//! ```text
//!      address   0 … blocks          blocks …
//!                a block of the      a page of the map
//!                volume
//!                    │ page (1024)       │ places
//!                    ▼                   ▼
//!                   slot                slot, checksum
//! ```
//!
//! Pages of the map are in the log as blocks are, at addresses above the volume's. A page whose blocks are all
//! unmapped takes no memory, and has no place.
//!
//! Invariant: a page that differs from what its place holds is dirty.

use super::classes::Life;
use super::format::{PAGE_BLOCKS, Page};
use super::places::Places;
use std::collections::BTreeSet;
use std::ops::Range;

/// Not mapped. Slot 0 has the superblock.
const NOWHERE: u32 = 0;

/// Where each block of a volume is, and each page of the map itself.
pub struct Map {
    blocks: u32,
    pages: Vec<Option<Places>>,
    places: Vec<Page>,
    dirty: BTreeSet<u32>,
}

fn found(slot: u32) -> Option<u32> {
    (slot != NOWHERE).then_some(slot)
}

impl Map {
    /// The map of a volume of so many blocks, none of which is mapped.
    pub fn new(blocks: u32) -> Map {
        let pages = blocks.div_ceil(PAGE_BLOCKS) as usize;
        Map {
            blocks,
            pages: (0..pages).map(|_| None).collect(),
            places: vec![Page { slot: NOWHERE, checksum: 0 }; pages],
            dirty: BTreeSet::new(),
        }
    }

    /// The slot of an address.
    pub fn get(&self, address: u32) -> Option<u32> {
        if address >= self.blocks {
            return found(self.places[(address - self.blocks) as usize].slot);
        }
        let page = self.pages[(address / PAGE_BLOCKS) as usize].as_ref()?;
        page.get(address % PAGE_BLOCKS)
    }

    /// Maps an address to `slot`; its former slot.
    pub fn set(&mut self, address: u32, slot: u32) -> Option<u32> {
        if address >= self.blocks {
            let place = &mut self.places[(address - self.blocks) as usize];
            return found(std::mem::replace(&mut place.slot, slot));
        }
        let number = address / PAGE_BLOCKS;
        self.dirty.insert(number);
        self.pages[number as usize].get_or_insert_with(Places::new).set(address % PAGE_BLOCKS, Some(slot))
    }

    /// The life of a block of the volume.
    pub fn life(&self, block: u32) -> Life {
        self.pages[(block / PAGE_BLOCKS) as usize].as_ref().map_or(0, |page| page.life(block % PAGE_BLOCKS))
    }

    /// A block of the volume, if it is mapped, has this life from now on.
    pub fn set_life(&mut self, block: u32, life: Life) {
        if let Some(page) = self.pages[(block / PAGE_BLOCKS) as usize].as_mut() {
            page.set_life(block % PAGE_BLOCKS, life);
        }
    }

    /// Unmaps the next mapped block of `blocks`: the block, and its former slot.
    pub fn unmap_next(&mut self, blocks: Range<u32>) -> Option<(u32, u32)> {
        let block = self.next_mapped(blocks)?;
        let number = block / PAGE_BLOCKS;
        self.dirty.insert(number);
        let slot = self.pages[number as usize].as_mut()?.set(block % PAGE_BLOCKS, None)?;
        Some((block, slot))
    }

    /// The mapped ones of these blocks, in ranges.
    pub fn mapped_in(&self, mut blocks: Range<u32>) -> Vec<Range<u32>> {
        let mut ranges = Vec::new();
        while let Some(start) = self.next_mapped(blocks.clone()) {
            let end = (start..blocks.end).find(|block| self.get(*block).is_none()).unwrap_or(blocks.end);
            ranges.push(start..end);
            blocks.start = end;
        }
        ranges
    }

    /// The first mapped block of `blocks`.
    fn next_mapped(&self, blocks: Range<u32>) -> Option<u32> {
        let mut at = blocks.start;
        while at < blocks.end {
            let end = (at / PAGE_BLOCKS).saturating_add(1).saturating_mul(PAGE_BLOCKS).min(blocks.end);
            let start = at / PAGE_BLOCKS * PAGE_BLOCKS;
            let page = self.pages[(at / PAGE_BLOCKS) as usize].as_ref();
            let next = page.and_then(|page| page.next(at - start)).map(|next| start + next);
            if let Some(block) = next.filter(|block| *block < end) {
                return Some(block);
            }
            at = end;
        }
        None
    }

    /// The address of a page.
    pub fn address_of(&self, page: u32) -> u32 {
        self.blocks + page
    }

    /// True for addresses of pages.
    pub fn is_page(&self, address: u32) -> bool {
        address >= self.blocks
    }

    /// The pages that differ from what their places hold.
    pub fn dirty(&self) -> impl Iterator<Item = u32> {
        self.dirty.iter().copied()
    }

    /// The bytes of a page, which is clean from now on; `None` if none of its blocks is mapped: its memory is released.
    pub fn clean(&mut self, page: u32) -> Option<Vec<u8>> {
        self.dirty.remove(&page);
        let of = self.pages[page as usize].as_ref()?;
        if of.next(0).is_none() {
            self.pages[page as usize] = None;
            return None;
        }
        Some(of.bytes())
    }

    /// A page is not in its place after all.
    pub fn soil(&mut self, page: u32) {
        self.dirty.insert(page);
    }

    /// A page has this place from now on; its former slot.
    pub fn place(&mut self, page: u32, place: Page) -> Option<u32> {
        found(std::mem::replace(&mut self.places[page as usize], place).slot)
    }

    /// The places of all pages.
    pub fn places(&self) -> &[Page] {
        &self.places
    }

    /// Takes in the bytes of a page, as its place holds them. False if a slot in it is none of `slots`.
    pub fn load(&mut self, page: u32, bytes: &[u8], slots: &Range<u32>) -> bool {
        let places = Places::load(bytes);
        // The last page may be longer than the volume.
        let here = (self.blocks - page * PAGE_BLOCKS).min(PAGE_BLOCKS);
        let is_possible = places.next(here).is_none()
            && (0..here).filter_map(|at| places.get(at)).all(|slot| slots.contains(&slot));
        self.pages[page as usize] = Some(places);
        is_possible
    }

    /// All addresses that are mapped, with their slots.
    pub fn mapped(&self) -> impl Iterator<Item = (u32, u32)> {
        let pages = (0..self.places.len() as u32).map(|page| self.blocks + page);
        let blocks =
            self.pages.iter().enumerate().filter(|(_, page)| page.is_some()).flat_map(|(number, _)| {
                let start = number as u32 * PAGE_BLOCKS;
                start..self.blocks.min(start + PAGE_BLOCKS)
            });
        blocks.chain(pages).filter_map(|address| Some((address, self.get(address)?)))
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        let pages: usize = self.pages.iter().flatten().map(Places::memory).sum();
        (pages + self.pages.len() * (size_of::<Option<Places>>() + size_of::<Page>())) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::SLOT;
    use super::*;

    #[test]
    fn what_was_mapped_is_found() {
        let mut map = Map::new(2500);
        assert_eq!((map.get(7), map.set(7, 100), map.set(7, 101)), (None, None, Some(100)));
        assert_eq!(map.get(7), Some(101));
        map.set(2499, 55);
        let page = map.address_of(2);
        assert_eq!((map.set(page, 9), map.get(page), map.is_page(page)), (None, Some(9), true));
        assert_eq!(map.dirty().collect::<Vec<_>>(), [0, 2], "a page's own place makes nothing dirty");
        assert_eq!(map.mapped().collect::<Vec<_>>(), [(7, 101), (2499, 55), (page, 9)]);
    }

    #[test]
    fn unmapping_walks_over_what_is_there() {
        let mut map = Map::new(5000);
        for block in [3, 1023, 1024, 4999] {
            map.set(block, block + 1);
        }
        assert_eq!(map.mapped_in(0..5000), [3..4, 1023..1025, 4999..5000]);
        assert_eq!(map.mapped_in(4..1024), vec![1023..1024]);
        assert_eq!(map.unmap_next(4..5000), Some((1023, 1024)));
        assert_eq!(map.unmap_next(4..1024), None);
        assert_eq!(map.unmap_next(4..5000), Some((1024, 1025)));
        assert_eq!(map.unmap_next(4..4999), None);
        assert_eq!(map.get(3), Some(4));
    }

    #[test]
    fn a_page_is_what_was_loaded_or_has_no_memory() {
        let mut map = Map::new(1500);
        map.set(1499, 77);
        let bytes = map.clean(1).expect("something is mapped");
        assert_eq!((bytes.len(), map.dirty().count()), (SLOT, 0));
        let mut other = Map::new(1500);
        assert!(other.load(1, &bytes, &(10..78)));
        assert_eq!(other.mapped().collect::<Vec<_>>(), [(1499, 77)]);
        assert!(!other.load(1, &bytes, &(10..77)), "there is no such slot");
        assert!(!Map::new(1400).load(1, &bytes, &(10..78)), "there is no such block");
        map.unmap_next(0..1500);
        assert_eq!(map.clean(1), None);
        assert!(map.memory() < SLOT as u64);
    }
}
