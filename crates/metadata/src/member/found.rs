//! A device that may be a member, with the words for what is wrong with it alone.

use super::records::{Evicted, evicted_in};
use crate::superblock::{COPY_LEN, Damage, Found, Place, Superblock};
use lamina_block::Bytes;
use uuid::Uuid;

/// What is said of a member that was cut short and is not made whole by others.
const CUT: &str = "its end is gone: the second copy of its superblock is not there. It was cut short, and what lay behind the \
                   cut is lost, or its creation was interrupted: restore it from a backup, or create it again. If no mirror or \
                   parity stands on it, `lamina repair` takes it as it is, with zeroes for what is lost";

/// A device that was looked at.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What it is called: the name of a device of the file, or a path.
    pub device: String,
    /// What was found on it.
    pub found: Found,
    /// If it [was cut short](Candidate::is_cut), it is a member all the same: it gets everything from the others.
    pub anew: bool,
}

/// What a member can be part of: a hierarchy at one generation. Two halves of it that went on apart may be of the same
/// generation; then each says that the other is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub hierarchy: Uuid,
    pub generation: u64,
    pub evicted: Evicted,
}

impl State {
    pub fn of(superblock: &Superblock) -> State {
        let Superblock { hierarchy, generation, description, .. } = superblock;
        State { hierarchy: *hierarchy, generation: *generation, evicted: evicted_in(description) }
    }
}

impl Candidate {
    /// The copy that says that this device was part of `state`.
    pub(super) fn at(&self, state: &State) -> Option<&Superblock> {
        self.found.whole().find(|copy| State::of(copy) == *state)
    }

    /// True if the first copy, which is written before the second, says so.
    pub(super) fn first_at(&self, state: &State) -> bool {
        self.found.copies[0].as_ref().is_ok_and(|copy| State::of(copy) == *state)
    }

    /// A device on which this was found, which has everything that it should.
    pub fn new(device: impl Into<String>, found: Found) -> Candidate {
        Candidate { device: device.into(), found, anew: false }
    }

    /// True if the end of a member is gone: it was cut short and has its size back. A second copy is written before the
    /// first one says where it is, and from then on something is always there, damaged perhaps.
    pub fn is_cut(&self) -> bool {
        let [Ok(first), Err(Damage::Absent)] = &self.found.copies else { return false };
        first.layout.end() <= self.found.size
    }

    /// What keeps this device from being a member of anything, if something does.
    pub fn unfit(&self) -> Option<String> {
        let found = &self.found;
        if let Some(version) = found.newer() {
            return Some(format!(
                "its superblock has format version {version}, and this Lamina knows {}: use a newer Lamina",
                crate::superblock::VERSION
            ));
        }
        if let Some(newest) = found.newest() {
            let end = newest.layout.end();
            return (end > found.size).then(|| {
                format!(
                    "has shrunk: it has {} bytes, and as member {:?} it needs {end}: give it its size back. If what it held there \
                     is lost, a mirror or parity above gives it everything anew",
                    found.size, newest.name
                )
            })
            .or_else(|| (self.is_cut() && !self.anew).then(|| CUT.into()));
        }
        if found.is_absent() {
            return Some(
                "carries no superblock: it is no member of a hierarchy. Is it the right device? \
                 `lamina assemble` finds members wherever they are, and `lamina create` makes new ones"
                    .into(),
            );
        }
        let [Err(first), Err(second)] = &found.copies else { return None };
        Some(format!(
            "both of its superblocks are lost: {} {first}; {} {second}. Nothing was changed: its data may be whole",
            Place::First,
            Place::Second
        ))
    }

    /// What is worth saying about a member that is accepted with `chosen`.
    pub(super) fn notes(&self, chosen: &Superblock) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_cut() {
            notes.push("its end is gone: it was cut short. It gets everything from the others".into());
        } else if let Some((place, damage)) = self.found.half() {
            notes.push(format!("{place} of its superblock {damage}; it is written anew from the other one"));
        }
        let other = self.found.whole().find(|copy| State::of(copy) != State::of(chosen));
        if let Some(other) = other {
            notes.push(if other.hierarchy != chosen.hierarchy {
                format!(
                    "it was about to become a member of another hierarchy, or had been one: it stays in {:?}",
                    { &chosen.hierarchy_name }
                )
            } else if other.generation > chosen.generation {
                let (from, to) = (other.generation, chosen.generation);
                format!("a change to generation {from} was interrupted: it is taken back to {to}")
            } else {
                let generation = chosen.generation;
                format!("a change to generation {generation} was interrupted: it is completed")
            });
        }
        let more = self.found.size.saturating_sub(chosen.layout.end());
        if more >= COPY_LEN {
            notes.push(format!("has grown by {} since it became a member: they are not used", {
                Bytes(more - more % COPY_LEN)
            }));
        }
        notes
    }
}
