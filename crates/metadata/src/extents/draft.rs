//! Changes to a version of a [`Tree`], made together.
//!
//! Nothing is changed before the [`Change`]s are made that [`Draft::end`] returns. A draft that is dropped instead
//! leaves no trace.

use super::tree::{FANOUT, WIDTH, slot};
use super::{Entry, Policy, Pxb, Root, Tree};
use crate::Change;
use crate::format::PAYLOAD;
use lamina_block::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The new state of a page.
struct Page {
    bytes: Vec<u8>,
    /// The page is new: all of it is written.
    fresh: bool,
    /// Entries that are written if the page is not new.
    changed: BTreeSet<usize>,
}

/// New entries for a version of a tree.
pub struct Draft<'a> {
    tree: &'a Tree,
    pages_in_use: &'a Pxb,
    root: Root,
    /// New entries are born in this epoch, …
    epoch: u32,
    /// … and entries that were born before this one are shared.
    shared: u32,
    pages: BTreeMap<u64, Page>,
    fresh: Vec<u64>,
    /// The leaf that was changed last: the first extent in it, and its page.
    last: Option<(u64, u64)>,
}

/// The result of a draft.
pub struct Drawn {
    /// The new pages, to which no page refers yet, and their bits in the bitmap.
    pub pages: Change,
    /// The references of old pages to new ones, and the new entries of old pages.
    pub links: Change,
    /// The version's root from then on.
    pub root: Root,
    /// The new pages: a caller that drops the changes gives them back to the bitmap ([`Pxb::release`]).
    pub fresh: Vec<u64>,
}

impl<'a> Draft<'a> {
    /// Changes to the version `root` of `tree`. New entries are born in `epoch`, and entries from before the epoch
    /// `shared` are shared with other versions. Which pages are in use, `pages_in_use` says.
    pub fn new(tree: &'a Tree, pages_in_use: &'a Pxb, root: Root, epoch: u32, shared: u32) -> Draft<'a> {
        let (pages, fresh) = (BTreeMap::new(), Vec::new());
        Draft { tree, pages_in_use, root, epoch, shared, pages, fresh, last: None }
    }

    /// Sets the entry of an extent; returns the old one. After an error the draft may be ended all the same: it has the
    /// entries that were set before.
    pub async fn set(&mut self, index: u64, to: Entry) -> Result<Entry> {
        let first = index / FANOUT * FANOUT;
        let leaf = match self.last {
            Some((known, leaf)) if known == first => leaf,
            _ => self.leaf(index).await?,
        };
        self.last = Some((first, leaf));
        let before = self.entry(leaf, slot(index, 0))?;
        if before != to {
            self.put(leaf, slot(index, 0), to);
        }
        Ok(before)
    }

    /// Pages of the tree that the draft changes, new ones among them, and the most bytes that its changes take, counted
    /// as [`crate::Store::change_max`] counts them.
    pub fn cost(&self) -> (usize, usize) {
        let entries: usize = self.pages.values().map(|page| page.changed.len()).sum();
        // A new page is its bytes, a bit and a count.
        (self.pages.len(), self.fresh.len() * (PAYLOAD + 32 + 2 * 34) + entries * (WIDTH + 32))
    }

    /// Ends the draft.
    pub fn end(mut self) -> Result<Drawn> {
        let object = self.tree.object().id();
        let (mut pages, mut links) = (Change::new(), Change::new());
        for (number, page) in std::mem::take(&mut self.pages) {
            if page.fresh {
                pages = pages.write(object, Tree::offset(number, 0), page.bytes);
                continue;
            }
            for slot in page.changed {
                let bytes = &page.bytes[slot * WIDTH..(slot + 1) * WIDTH];
                links = links.write(object, Tree::offset(number, slot), bytes);
            }
        }
        for page in &self.fresh {
            pages = self.pages_in_use.take(pages, *page)?;
        }
        let (root, fresh) = (self.root, std::mem::take(&mut self.fresh));
        Ok(Drawn { pages, links, root, fresh })
    }

    /// The leaf for an extent, ready to be changed.
    async fn leaf(&mut self, index: u64) -> Result<u64> {
        while index >= self.root.capacity() {
            self.raise().await?;
        }
        let (root, changed) = self.own(self.root.page).await?;
        if changed {
            self.root.page = Entry::At { place: root, born: self.epoch };
        }
        let mut at = root;
        for level in (1..self.root.levels).rev() {
            let slot = slot(index, level);
            let (child, changed) = self.own(self.entry(at, slot)?).await?;
            if changed {
                self.put(at, slot, Entry::At { place: child, born: self.epoch });
            }
            at = child;
        }
        Ok(at)
    }

    /// Puts a page above the root.
    async fn raise(&mut self) -> Result<()> {
        if self.root.page != Entry::Absent {
            let above = self.make(vec![0; PAYLOAD]).await?;
            self.put(above, 0, self.root.page);
            self.root.page = Entry::At { place: above, born: self.epoch };
        }
        self.root.levels += 1;
        Ok(())
    }

    /// A page that may be changed for the page of `entry`: the page itself, a copy, or a new one; and whether it is
    /// another.
    async fn own(&mut self, entry: Entry) -> Result<(u64, bool)> {
        let Some((page, born)) = self.tree.named(entry)? else {
            return Ok((self.make(vec![0; PAYLOAD]).await?, true));
        };
        if self.pages.contains_key(&page) {
            return Ok((page, false));
        }
        let mut bytes = vec![0; PAYLOAD];
        self.tree.object().read(Tree::offset(page, 0), &mut bytes).await?;
        if born < self.shared {
            return Ok((self.make(bytes).await?, true));
        }
        self.pages.insert(page, Page { bytes, fresh: false, changed: BTreeSet::new() });
        Ok((page, false))
    }

    async fn make(&mut self, bytes: Vec<u8>) -> Result<u64> {
        let page = self.pages_in_use.alloc(Policy::FirstAvailable).await?;
        self.fresh.push(page);
        self.pages.insert(page, Page { bytes, fresh: true, changed: BTreeSet::new() });
        Ok(page)
    }

    fn entry(&self, page: u64, slot: usize) -> Result<Entry> {
        let mut raw = [0; WIDTH];
        if let Some(page) = self.pages.get(&page) {
            raw.copy_from_slice(&page.bytes[slot * WIDTH..(slot + 1) * WIDTH]);
        }
        Entry::decode(u64::from_le_bytes(raw))
    }

    fn put(&mut self, page: u64, slot: usize, entry: Entry) {
        if let Some(page) = self.pages.get_mut(&page) {
            page.bytes[slot * WIDTH..(slot + 1) * WIDTH].copy_from_slice(&entry.encode().to_le_bytes());
            page.changed.insert(slot);
        }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.pages_in_use.release(&self.fresh);
    }
}
