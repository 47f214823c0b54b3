//! What has been written to new places and is not in the map yet, and how much room the map will need for it.
//!
//! | an extent's entry is … | `get` | `set` | `freeze` | `mapped` | `thaw` |
//! |---|---|---|---|---|---|
//! | absent | `None` | new | absent | absent | absent |
//! | new | new | new; the old one is answered | frozen | new | new |
//! | frozen | frozen | both | – | absent: the map has it | new |
//! | both: replaced since | new | both; the old new one is answered | – | new | new; the frozen one is answered |
//!
//! "–" is an assertion: what is frozen goes into the map, or thaws, before more is frozen. An entry that is
//! answered is one that the map never had.
//!
//! A reservation of room comes before data is written, and ends when its entries are set or its request has
//! failed:
//!
//! | pages of the map are promised to … | `reserve` | `end_reservation` | `freeze` | all `mapped` | `thaw` |
//! |---|---|---|---|---|---|
//! | leaves, for new entries | more, or refused | same | those of open reservations | same | and the frozen |
//! | what is frozen | same | same | what was promised before | none | none |
//!
//! Invariants:
//! * An extent that is promised a place in the map gets it: room is reserved before data is written.
//! * Pages are promised to what is frozen only while there is any, and to nothing when nothing waits or is reserved.

use lamina_metadata::extents::{Entry, FANOUT};
use std::collections::BTreeMap;

/// The most extents that wait for the map.
pub(in super::super) const ENTRIES_MAX: usize = 8192;
/// Bytes of a change of the store for an entry (two bits, two counts, the entry), and for a new page of the
/// map.
const ENTRY_COST: usize = 200;
const PAGE_COST: usize = 4200;
/// … and for what is in every change.
const HEAD_COST: usize = 1024;

/// How far an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Age {
    /// In the map.
    Mapped,
    /// On its way into the map.
    Frozen,
    /// Since then.
    New,
}

/// What the room for changes is measured with.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Bounds {
    /// New pages that the map can have.
    pub pages: u64,
    /// The longest change in bytes, and the most pages that it touches, if all must be in one.
    pub together: Option<(usize, usize)>,
    /// Pages of the bitmap.
    pub bitmap: usize,
}

#[derive(Clone, Copy, Default)]
struct Leaf {
    /// Reservations that have not ended.
    open: u32,
    /// New pages that it may take.
    pages: u32,
}

/// Entries that wait for the map.
#[derive(Default)]
pub(in super::super) struct Overlay {
    new: BTreeMap<u64, Entry>,
    frozen: BTreeMap<u64, Entry>,
    /// Leaves that new entries are for, or reserved for.
    leaves: BTreeMap<u64, Leaf>,
    /// New pages for them, and for what is frozen.
    pages: u64,
    pages_frozen: u64,
    /// Entries reserved and not set.
    reserved: usize,
}

impl Overlay {
    /// The entry of an extent, and whether it is frozen.
    #[inline]
    pub fn get(&self, extent: u64) -> Option<(Entry, Age)> {
        if self.new.is_empty() && self.frozen.is_empty() {
            return None;
        }
        let found = |of: &BTreeMap<u64, Entry>, age| of.get(&extent).map(|entry| (*entry, age));
        found(&self.new, Age::New).or_else(|| found(&self.frozen, Age::Frozen))
    }

    /// The first extent from `from` on that waits.
    pub fn next(&self, from: u64) -> Option<u64> {
        let first = |of: &BTreeMap<u64, Entry>| of.range(from..).next().map(|(extent, _)| *extent);
        first(&self.new).into_iter().chain(first(&self.frozen)).min()
    }

    /// True if nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.frozen.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.new.len() + self.frozen.len()
    }

    /// True while a request has reserved room, and has not used it yet.
    pub fn is_reserved(&self) -> bool {
        self.reserved > 0
    }

    /// Sets the entry of an extent; what it replaces, if that was new: the map never heard of it.
    pub fn set(&mut self, extent: u64, entry: Entry) -> Option<Entry> {
        self.new.insert(extent, entry)
    }

    /// Reserves room for `entries` extents of the leaf of `extent`, which may take `pages` new pages, if
    /// there is room.
    pub fn reserve(&mut self, extent: u64, entries: usize, pages: u32, bounds: Bounds) -> bool {
        let number = extent / FANOUT;
        let leaf = self.leaves.get(&number).copied().unwrap_or_default();
        let more = u64::from(pages.saturating_sub(leaf.pages));
        let all = self.new.len() + self.reserved + entries;
        let (pages_new, leaves) = (self.pages + more, self.leaves.len() + usize::from(leaf.open == 0));
        let fits = |(bytes, touched): (usize, usize)| {
            let bits = (2 * all).min(bounds.bitmap);
            pages_new as usize * PAGE_COST + all * ENTRY_COST + HEAD_COST <= bytes
                && pages_new as usize + leaves + bits + 8 <= touched
        };
        let has_room = all <= ENTRIES_MAX
            && pages_new + self.pages_frozen <= bounds.pages
            && bounds.together.is_none_or(fits);
        if has_room {
            self.leaves.insert(number, Leaf { open: leaf.open + 1, pages: leaf.pages.max(pages) });
            self.pages = pages_new;
            self.reserved += entries;
        }
        has_room
    }

    /// Ends a reservation: what was to be set is set.
    pub fn end_reservation(&mut self, extent: u64, entries: usize) {
        self.reserved -= entries;
        if let Some(leaf) = self.leaves.get_mut(&(extent / FANOUT)) {
            leaf.open -= 1;
        }
        self.end_promises();
    }

    /// A request that has failed set no entry: when none waits, and none is to come, nothing is promised any more.
    fn end_promises(&mut self) {
        if self.is_empty() && !self.is_reserved() {
            self.leaves.clear();
            self.pages = 0;
        }
    }

    /// True while entries are on their way into the map.
    pub fn is_frozen(&self) -> bool {
        !self.frozen.is_empty()
    }

    /// The extents of the child that entries refer to.
    pub fn places(&self) -> impl Iterator<Item = u64> {
        self.new.values().chain(self.frozen.values()).filter_map(|entry| match entry {
            Entry::At { place, .. } => Some(*place),
            Entry::Hole | Entry::Absent => None,
        })
    }

    /// Takes what is new to be put into the map. What comes from now on waits for the next time.
    pub fn freeze(&mut self) {
        assert!(self.frozen.is_empty(), "one round at a time: what is frozen is in the map before more is");
        self.frozen = std::mem::take(&mut self.new);
        self.pages_frozen = if self.frozen.is_empty() { 0 } else { self.pages };
        self.leaves.retain(|_, leaf| leaf.open > 0);
        self.pages = self.leaves.values().map(|leaf| u64::from(leaf.pages)).sum();
    }

    /// The first of what is frozen, in order.
    pub fn frozen(&self) -> Vec<(u64, Entry)> {
        self.frozen.iter().map(|(extent, entry)| (*extent, *entry)).collect()
    }

    /// These are in the map.
    pub fn mapped(&mut self, extents: &[u64]) {
        for extent in extents {
            self.frozen.remove(extent);
        }
        if self.frozen.is_empty() {
            self.pages_frozen = 0;
            self.end_promises();
        }
    }

    /// What is still frozen could not be put into the map: it is new again, unless it has changed since. The
    /// entries that have.
    pub fn thaw(&mut self) -> Vec<Entry> {
        let mut replaced = Vec::new();
        for (extent, entry) in std::mem::take(&mut self.frozen) {
            match self.new.contains_key(&extent) {
                true => replaced.push(entry),
                false => {
                    self.new.insert(extent, entry);
                }
            }
        }
        self.pages += std::mem::take(&mut self.pages_frozen);
        replaced
    }

    /// The invariants; see the module.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.new.values().chain(self.frozen.values()).any(|entry| *entry == Entry::Absent) {
            return Err("an entry that waits for the map says nothing".into());
        }
        let open = self.leaves.values().any(|leaf| leaf.open > 0);
        if open != self.is_reserved() {
            return Err(format!(
                "{} entries are reserved, and a leaf has reservations: {open}",
                self.reserved
            ));
        }
        let (idle, promises) = (self.is_empty() && !open, self.pages + self.pages_frozen);
        if (idle && promises > 0) || (self.frozen.is_empty() && self.pages_frozen > 0) {
            return Err(format!("{promises} pages stay promised, and nothing is to come"));
        }
        let promised: u64 = self.leaves.values().map(|leaf| u64::from(leaf.pages)).sum();
        match promised <= self.pages {
            true => Ok(()),
            false => Err(format!("{} pages are promised, and to leaves {promised}", self.pages)),
        }
    }
}

#[cfg(test)]
#[path = "tests/overlay.rs"]
mod tests;
