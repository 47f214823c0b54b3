//! Entries of new extents that are not in the map yet, and the room that the map needs for them.
//!
//! | an extent's entry is … | `get` | `set` | `freeze` | `mapped` | `thaw` |
//! |---|---|---|---|---|---|
//! | absent | `None` | new | absent | absent | absent |
//! | new | new | new; the old one is answered | frozen | new | new |
//! | frozen | frozen | both | – | absent: the map has it | new |
//! | both: replaced since | new | both; the old new one is answered | – | new | new; the frozen one is answered |
//!
//! "–" is an assertion: frozen entries go into the map, or thaw, before more are frozen. An entry that is
//! answered is one that the map never had.
//!
//! A reservation of room comes before data is written, and ends when its entries are set or its request has
//! failed:
//!
//! | pages of the map are promised to … | `reserve` | `end_reservation` | `freeze` | all `mapped` | `thaw` |
//! |---|---|---|---|---|---|
//! | leaves, for new entries | more, or refused | same | those of open reservations | same | and the frozen |
//! | frozen entries | same | same | all earlier promises | none | none |
//!
//! Invariants:
//! * An extent that is promised a place in the map gets it: room is reserved before data is written.
//! * Pages are promised to frozen entries only while there are any, and to nothing when nothing waits or is
//!   reserved.

use lamina_metadata::extents::{Entry, FANOUT};
use std::collections::BTreeMap;

/// The most extents that wait for the map.
pub(in super::super) const ENTRIES_MAX: usize = 8192;
/// Bytes of a change of the store for an entry (two bits, two counts, the entry), and for a new page of the
/// map.
const ENTRY_COST: usize = 200;
const PAGE_COST: usize = 4200;
/// … and for the parts of every change.
const HEAD_COST: usize = 1024;

/// The progress of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Age {
    /// In the map.
    Mapped,
    /// On its way into the map.
    Frozen,
    /// Set since the freeze.
    New,
}

/// The bounds of the room for changes.
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
    /// New pages that the leaf may take.
    pages: u32,
}

/// Entries that wait for the map.
#[derive(Default)]
pub(in super::super) struct Overlay {
    new: BTreeMap<u64, Entry>,
    frozen: BTreeMap<u64, Entry>,
    /// Leaves that new entries are for, or reserved for.
    leaves: BTreeMap<u64, Leaf>,
    /// New pages for these leaves, and for frozen entries.
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

    /// The first extent from `from` on whose entry waits.
    pub fn next(&self, from: u64) -> Option<u64> {
        let first = |of: &BTreeMap<u64, Entry>| of.range(from..).next().map(|(extent, _)| *extent);
        first(&self.new).into_iter().chain(first(&self.frozen)).min()
    }

    /// True if no entry waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.frozen.is_empty()
    }

    /// The number of entries that wait.
    pub fn len(&self) -> usize {
        self.new.len() + self.frozen.len()
    }

    /// True while a request has reserved room, and has not used it yet.
    pub fn is_reserved(&self) -> bool {
        self.reserved > 0
    }

    /// Sets the entry of an extent; returns the replaced entry, if that was new: the map never had it.
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

    /// Ends a reservation: its entries are set.
    pub fn end_reservation(&mut self, extent: u64, entries: usize) {
        self.reserved -= entries;
        if let Some(leaf) = self.leaves.get_mut(&(extent / FANOUT)) {
            leaf.open -= 1;
        }
        self.end_promises();
    }

    /// A request that has failed set no entry: when none waits, and none is to come, no pages are promised
    /// any more.
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

    /// The physical extents that entries refer to.
    pub fn physical_extents(&self) -> impl Iterator<Item = u64> {
        self.new.values().chain(self.frozen.values()).filter_map(|entry| match entry {
            Entry::At { place, .. } => Some(*place),
            Entry::Hole | Entry::Absent => None,
        })
    }

    /// Freezes the new entries, to be put into the map. Later entries wait for the next time.
    pub fn freeze(&mut self) {
        assert!(self.frozen.is_empty(), "one round at a time: what is frozen is in the map before more is");
        self.frozen = std::mem::take(&mut self.new);
        self.pages_frozen = if self.frozen.is_empty() { 0 } else { self.pages };
        self.leaves.retain(|_, leaf| leaf.open > 0);
        self.pages = self.leaves.values().map(|leaf| u64::from(leaf.pages)).sum();
    }

    /// The first frozen entries, in order.
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

    /// Frozen entries could not be put into the map: they are new again, unless they were replaced since.
    /// Returns the replaced ones.
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
            return Err("an entry that waits for the map is absent".into());
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
