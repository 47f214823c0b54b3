//! Physical extents between two owners: no map refers to them any more, or not yet, and none may be given
//! away.
//!
//! | an extent is … | `committed` | `give_up` | `next_batch` | `released` |
//! |---|---|---|---|---|
//! | ahead: in use in the bitmap, not in the map yet (`lazy`) | ahead | garbage | ahead | ahead |
//! | cleared: its bit is, in a change that is not committed | retired | – | cleared | cleared |
//! | later: its bit is cleared after a commit (`lazy`) | answered: the caller clears it | – | later | later |
//! | retired: a request may be on its way to it | retired | – | draining | retired |
//! | draining: a grace period runs that began when it was retired | draining | – | – | answered: free |
//! | none of these | | retired | | |
//!
//! "–" would be a second owner. `next_batch` and `released` alternate: all retired extents wait for one grace
//! period.
//!
//! Invariants:
//! * An extent is one of these at a time.
//! * Draining extents have a task that will release them.

use std::collections::BTreeSet;

/// The task that releases extents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Release {
    /// There is none.
    #[default]
    Idle,
    /// The task is about to look.
    Asked,
    /// The task waits until no request can be on its way to these.
    Draining(Vec<u64>),
}

/// See the module. `C`: a change of the store that clears bits.
pub(in super::super) struct Frees<C> {
    ahead: BTreeSet<u64>,
    cleared: Vec<u64>,
    later: Vec<(C, Vec<u64>)>,
    retired: Vec<u64>,
    release: Release,
}

/// The fate of an extent that no entry refers to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Gone {
    /// The extent is released after a grace period.
    Retired,
    /// The bitmap has the extent in use: only reclaiming finds it.
    Garbage,
}

impl<C> Default for Frees<C> {
    fn default() -> Self {
        let (ahead, release) = (BTreeSet::new(), Release::Idle);
        Frees { ahead, cleared: Vec::new(), later: Vec::new(), retired: Vec::new(), release }
    }
}

impl<C> Frees<C> {
    /// The bitmap has these in use, and the map does not refer to them yet.
    pub fn go_ahead(&mut self, extents: &[u64]) {
        self.ahead.extend(extents);
    }

    /// The map refers to these now.
    pub fn linked(&mut self, extents: &[u64]) {
        for extent in extents {
            self.ahead.remove(extent);
        }
    }

    /// Whether the bitmap has an extent in use that the map does not refer to yet.
    pub fn is_ahead(&self, extent: u64) -> bool {
        self.ahead.contains(&extent)
    }

    pub fn ahead(&self) -> impl Iterator<Item = u64> {
        self.ahead.iter().copied()
    }

    /// The bits of these are cleared in a change that is not committed.
    pub fn cleared(&mut self, extents: Vec<u64>) {
        self.cleared.extend(extents);
    }

    /// `change` clears the bits of these, and is made after the next commit.
    pub fn clear_later(&mut self, change: C, extents: Vec<u64>) {
        if !extents.is_empty() {
            self.later.push((change, extents));
        }
    }

    /// The staged changes are durable. Returns the changes that had to wait for that.
    pub fn committed(&mut self) -> Vec<(C, Vec<u64>)> {
        self.retired.append(&mut self.cleared);
        std::mem::take(&mut self.later)
    }

    /// The bits of these are clear, and need not be durably so.
    pub fn retire(&mut self, extents: Vec<u64>) {
        self.retired.extend(extents);
    }

    /// An entry that the map never had is replaced by another one: no other entry referred to this extent.
    pub fn give_up(&mut self, extent: u64) -> Gone {
        if self.ahead.remove(&extent) {
            return Gone::Garbage;
        }
        self.retired.push(extent);
        Gone::Retired
    }

    /// True if extents will be released.
    pub fn is_pending(&self) -> bool {
        self.is_releasing() || !self.retired.is_empty()
    }

    /// True while there is a task that releases extents.
    pub fn is_releasing(&self) -> bool {
        self.release != Release::Idle
    }

    /// True: a task is to be spawned that releases retired extents.
    pub fn ask_release(&mut self) -> bool {
        let spawn = !self.retired.is_empty() && !self.is_releasing();
        if spawn {
            self.release = Release::Asked;
        }
        spawn
    }

    /// All retired extents wait for one grace period from now on; false: there are none, and the task ends.
    pub fn next_batch(&mut self) -> bool {
        assert_eq!(self.release, Release::Asked, "a grace period is for extents retired before it began");
        self.release = match self.retired.is_empty() {
            true => Release::Idle,
            false => Release::Draining(std::mem::take(&mut self.retired)),
        };
        self.is_releasing()
    }

    /// The grace period is over: these have no owner, and can be given away.
    pub fn released(&mut self) -> Vec<u64> {
        match std::mem::replace(&mut self.release, Release::Asked) {
            Release::Draining(extents) => extents,
            other @ (Release::Idle | Release::Asked) => panic!("no grace period has begun: {other:?}"),
        }
    }

    /// How many extents are here.
    pub fn len(&self) -> usize {
        self.all().count()
    }

    /// All extents that are here but those that an entry refers to already.
    pub fn unowned(&self) -> impl Iterator<Item = u64> {
        let draining: &[u64] = match &self.release {
            Release::Draining(extents) => extents,
            Release::Idle | Release::Asked => &[],
        };
        let later = self.later.iter().flat_map(|(_, extents)| extents);
        self.cleared.iter().chain(later).chain(&self.retired).chain(draining).copied()
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.ahead().chain(self.unowned())
    }

    /// The invariants; see the module.
    pub fn check(&self) -> std::result::Result<(), String> {
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.all().find(|extent| !seen.insert(*extent)) {
            return Err(format!("extent {twice} would be given to two: it is freed twice"));
        }
        match &self.release {
            Release::Draining(extents) if extents.is_empty() => Err("a grace period runs for nothing".into()),
            Release::Draining(_) | Release::Idle | Release::Asked => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "tests/frees.rs"]
mod tests;
