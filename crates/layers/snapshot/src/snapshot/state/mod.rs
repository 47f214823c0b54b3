//! The state of a volume: plain structs that decide at once. [`super::core::Core`] carries out their
//! decisions.
//!
//! ```text
//!   Versions   which versions there are, what an entry of a map means, what snapshots may share
//!   Overlay    entries that wait for the map, and the room in it that is reserved for others
//!   Rounds     when the overlay goes into the map, and which requests wait for that
//!   Frees      extents that have no owner: not committed, or in their grace period
//!   Garbage    whether to look for space that no version refers to
//!   Action     what a request does with an extent, given where that lies
//! ```
//!
//! Each has its states and operations as a table at the head of its file. Across them:
//!
//! * Entries are frozen only while a round is under way.
//! * No entry of the overlay refers to an extent that has no owner, and no two refer to the same one.
//! * An extent that the bitmap has ahead of the map has an entry in the overlay.

mod action;
mod frees;
mod garbage;
mod overlay;
mod rounds;
mod versions;

pub(super) use self::action::{Action, Covers};
pub(super) use self::frees::{Frees, Gone};
use self::garbage::Garbage;
pub(super) use self::overlay::{Age, Bounds, Overlay};
pub(super) use self::rounds::{Rounds, Ticket};
pub(super) use self::versions::{PhysicalExtent, Snapshot, Versions};
use lamina_metadata::Change;
use lamina_metadata::extents::Entry;
use std::collections::BTreeSet;

/// The beginning of a panic caused by [`State::check`].
pub(super) const BROKEN: &str = "the state is broken";

/// A state of so many extents is checked after every transition, a larger one after one in so many.
const CHECKED_MAX: usize = 64;

/// See the module.
pub(super) struct State {
    pub versions: Versions,
    pub overlay: Overlay,
    pub rounds: Rounds,
    pub frees: Frees<Change>,
    pub garbage: Garbage,
    /// No work begins any more.
    pub closed: bool,
}

/// The location of an extent of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// `None`: no physical extent, it reads as zeroes.
    pub at: Option<PhysicalExtent>,
    pub age: Age,
}

/// The event that a request waits for that needs space, and finds none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// No action is needed: a round is under way, a reservation ends, extents are released.
    Others,
    /// A round has to be asked for.
    Round,
    /// Only garbage may be left to be found.
    Garbage,
}

impl State {
    pub fn new(versions: Versions) -> State {
        State {
            versions,
            overlay: Overlay::default(),
            rounds: Rounds::default(),
            frees: Frees::default(),
            garbage: Garbage::default(),
            closed: false,
        }
    }

    /// True if the map has every entry durably.
    #[inline]
    pub fn is_committed(&self) -> bool {
        self.overlay.is_empty() && !self.rounds.is_uncommitted()
    }

    /// The location of an extent whose entry waits for the map.
    #[inline]
    pub fn waiting(&self, extent: u64) -> Option<Location> {
        let (entry, age) = self.overlay.get(extent)?;
        Some(Location { at: self.versions.resolve(extent, entry), age })
    }

    /// The physical extent that may be written in place: no snapshot has it and, at `atomic`, no map on disk.
    #[inline]
    pub fn own(&self, location: Location, atomic: bool) -> Option<PhysicalExtent> {
        let physical = location.at?;
        (self.versions.is_own(physical.born) && (location.age == Age::New || !atomic)).then_some(physical)
    }

    /// An extent has another physical extent from now on, or none.
    pub fn set(&mut self, extent: u64, entry: Entry) {
        if let Some(before) = self.overlay.set(extent, entry) {
            self.give_up(before);
        }
    }

    /// A round has failed: entries that it could not put into the map wait for the next one.
    pub fn thaw(&mut self) {
        for replaced in self.overlay.thaw() {
            self.give_up(replaced);
        }
    }

    fn give_up(&mut self, entry: Entry) {
        if let Entry::At { place, .. } = entry
            && self.frees.give_up(place) == Gone::Garbage
        {
            self.versions.note_garbage();
        }
    }

    /// The store has committed the staged changes. Returns the changes that had to wait for that, with the
    /// extents that they free.
    pub fn committed(&mut self) -> Vec<(Change, Vec<u64>)> {
        self.rounds.committed();
        self.versions.committed();
        self.frees.committed()
    }

    /// The event that a request waits for that got no room in the map.
    ///
    /// A round under way may make room; to ask for another one would keep everybody waiting for ever.
    pub fn wait_for_room(&self) -> Wait {
        if !self.overlay.is_empty() {
            Wait::Round
        } else if self.rounds.is_working() || self.overlay.is_reserved() {
            Wait::Others
        } else {
            Wait::Garbage
        }
    }

    /// The event that a request waits for that got no extent. `asked`: it has waited for a round, which freed
    /// none.
    pub fn wait_for_extent(&self, asked: bool) -> Wait {
        if self.frees.is_pending() {
            Wait::Others
        } else if !asked && !self.is_committed() {
            // An extent replaced since the last commit is free after the next.
            Wait::Round
        } else {
            Wait::Garbage
        }
    }

    /// The invariants of all parts, and across them; see the module.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.versions.check()?;
        self.overlay.check()?;
        self.rounds.check()?;
        self.frees.check()?;
        if self.overlay.is_frozen() && !self.rounds.is_running() {
            return Err("entries are frozen, and no round will put them into the map".into());
        }
        let mut owned = BTreeSet::new();
        if let Some(twice) = self.overlay.physical_extents().find(|place| !owned.insert(*place)) {
            return Err(format!("extent {twice} has two owners"));
        }
        if let Some(both) = self.frees.unowned().find(|extent| owned.contains(extent)) {
            return Err(format!("extent {both} is in use, and about to be free"));
        }
        match self.frees.ahead().find(|extent| !owned.contains(extent)) {
            Some(lost) => Err(format!("extent {lost} is ahead of the map, and nothing refers to it")),
            None => Ok(()),
        }
    }

    /// [`State::check`] after a transition, in builds with debug assertions. A large state is not checked
    /// each time, or what a request costs would grow with the number of those that wait.
    #[inline]
    pub fn debug_check(&self) {
        if cfg!(debug_assertions) {
            let len = self.overlay.len();
            if (len <= CHECKED_MAX && self.frees.len() <= CHECKED_MAX) || len.is_multiple_of(CHECKED_MAX) {
                self.check().unwrap_or_else(|broken| panic!("{BROKEN}: {broken}"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
