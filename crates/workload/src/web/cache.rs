//! A page cache: which pages of which files are in memory, the least recently used leaving first.
//!
//! A page is in the cache from the moment when its read is sent, as in a kernel: a process that needs it waits for that
//! read. Pages of files only: metadata are not modelled, and nothing is ever dirty.

use rustc_hash::FxHashMap;

/// A page of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PageId {
    pub file: u32,
    pub page: u32,
}

/// The facts about a page in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// The client that read it, and the number of its request.
    pub reader: u32,
    pub request: u64,
    /// Whether reading this page is the sign to read ahead further (`PG_readahead`).
    pub marker: bool,
}

const NONE: u32 = u32::MAX;

struct Slot {
    id: PageId,
    page: Page,
    /// The neighbours in the order of use.
    newer: u32,
    older: u32,
}

/// The cache.
pub(super) struct PageCache {
    slots: Vec<Slot>,
    index: FxHashMap<PageId, u32>,
    newest: u32,
    oldest: u32,
    capacity: u32,
}

impl PageCache {
    /// An empty cache of `capacity` pages, at least one.
    pub(super) fn new(capacity: u32) -> PageCache {
        PageCache {
            slots: Vec::new(),
            index: FxHashMap::default(),
            newest: NONE,
            oldest: NONE,
            capacity: capacity.clamp(1, NONE - 1),
        }
    }

    /// Whether nothing can come without something leaving.
    pub(super) fn is_full(&self) -> bool {
        self.slots.len() as u32 == self.capacity
    }

    pub(super) fn has(&self, id: PageId) -> bool {
        self.index.contains_key(&id)
    }

    /// Uses a page: it is now the last to leave.
    pub(super) fn get(&mut self, id: PageId) -> Option<&mut Page> {
        let at = *self.index.get(&id)?;
        self.unlink(at);
        self.link(at);
        Some(&mut self.slots[at as usize].page)
    }

    /// Adds a page that is not there. The least recently used one leaves when there is no room.
    pub(super) fn insert(&mut self, id: PageId, page: Page) {
        let slot = Slot { id, page, newer: NONE, older: NONE };
        let at = if self.is_full() {
            let at = self.oldest;
            self.unlink(at);
            self.index.remove(&self.slots[at as usize].id);
            self.slots[at as usize] = slot;
            at
        } else {
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        };
        self.index.insert(id, at);
        self.link(at);
    }

    fn link(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        match before {
            NONE => self.oldest = at,
            before => self.slots[before as usize].newer = at,
        }
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older) = (NONE, before);
    }

    fn unlink(&mut self, at: u32) {
        let Slot { newer, older, .. } = self.slots[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const PAGE: Page = Page { reader: 0, request: 0, marker: false };

    #[test]
    fn it_is_least_recently_used_as_a_list_would_be() {
        for capacity in [1, 2, 7] {
            let mut cache = PageCache::new(capacity);
            let mut list: VecDeque<PageId> = VecDeque::new();
            let mut random = fastrand::Rng::with_seed(capacity as u64);
            for _ in 0..2000 {
                let id = PageId { file: random.u32(0..4), page: random.u32(0..4) };
                let at = list.iter().position(|other| *other == id);
                assert_eq!(cache.has(id), at.is_some());
                assert_eq!(cache.get(id).is_some(), at.is_some());
                match at {
                    Some(at) => drop(list.remove(at)),
                    None => cache.insert(id, PAGE),
                }
                list.push_front(id);
                list.truncate(capacity as usize);
                assert_eq!(cache.is_full(), list.len() == capacity as usize);
            }
        }
    }
}
