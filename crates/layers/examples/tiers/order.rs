//! Blocks of a fast device, from the one that was used last to the one that was not used for the longest time.

use rustc_hash::FxHashMap;

const NONE: u32 = u32::MAX;

struct Node {
    block: u64,
    newer: u32,
    older: u32,
    dirty: bool,
}

/// A list in which any block is found.
pub struct Order {
    places: FxHashMap<u64, u32>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl Order {
    pub fn new() -> Order {
        Order {
            places: FxHashMap::default(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn has(&self, block: u64) -> bool {
        self.places.contains_key(&block)
    }

    fn unlink(&mut self, place: u32) {
        let (newer, older) = (self.nodes[place as usize].newer, self.nodes[place as usize].older);
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }

    fn link(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.newest, place);
        let node = &mut self.nodes[place as usize];
        (node.newer, node.older) = (NONE, older);
        match older {
            NONE => self.oldest = place,
            older => self.nodes[older as usize].newer = place,
        }
    }

    /// The block is the newest from now on, and dirty if it was or is written.
    pub fn put(&mut self, block: u64, dirty: bool) {
        if let Some(place) = self.places.get(&block).copied() {
            self.nodes[place as usize].dirty |= dirty;
            self.unlink(place);
            return self.link(place);
        }
        let node = Node { block, newer: NONE, older: NONE, dirty };
        let place = self.free.pop().unwrap_or(self.nodes.len() as u32);
        match self.nodes.get_mut(place as usize) {
            Some(free) => *free = node,
            None => self.nodes.push(node),
        }
        self.places.insert(block, place);
        self.link(place);
    }

    /// Takes a block out; whether it was there.
    pub fn take(&mut self, block: u64) -> bool {
        let Some(place) = self.places.remove(&block) else { return false };
        self.unlink(place);
        self.free.push(place);
        true
    }

    /// The oldest block, and whether it is dirty.
    pub fn oldest(&self) -> Option<(u64, bool)> {
        self.nodes.get(self.oldest as usize).map(|node| (node.block, node.dirty))
    }

    /// The oldest `most` dirty blocks are clean from now on: which they are, ascending.
    pub fn clean(&mut self, most: usize) -> Vec<u64> {
        let (mut found, mut place) = (Vec::new(), self.oldest);
        while place != NONE && found.len() < most {
            let node = &mut self.nodes[place as usize];
            if std::mem::take(&mut node.dirty) {
                found.push(node.block);
            }
            place = node.newer;
        }
        found.sort_unstable();
        found
    }

    /// All dirty blocks, ascending.
    pub fn dirty(&self) -> Vec<u64> {
        let dirty = self.places.values().map(|place| &self.nodes[*place as usize]).filter(|node| node.dirty);
        let mut blocks: Vec<u64> = dirty.map(|node| node.block).collect();
        blocks.sort_unstable();
        blocks
    }
}
