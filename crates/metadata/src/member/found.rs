//! A device that may be a member, with the messages about its own problems.

use super::records::{Evicted, evicted_in};
use crate::superblock::{COPY_LEN, Damage, Found, Place, Superblock};
use lamina_block::Bytes;
use uuid::Uuid;

/// The message about a truncated member that others do not repair.
const CUT: &str = "its end is gone: the second copy of its superblock is not there. The device was cut short, and the \
                   data beyond the cut is lost, or its creation was interrupted: restore the device from a backup, or \
                   create it again. If no mirror or parity stands on it, `lamina repair` accepts the device, with \
                   zeroes for the lost data";

/// A device that was looked at.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The name of a device of the file, or a path.
    pub device: String,
    /// The superblocks on it.
    pub found: Found,
    /// A device that [was cut short](Candidate::is_cut) is a member all the same: the others send it all data.
    pub anew: bool,
}

/// The state of a member: a hierarchy at one generation. Two halves of a hierarchy that went on apart may be of the
/// same generation; then each calls the other evicted.
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

    /// A whole device with these superblocks.
    pub fn new(device: impl Into<String>, found: Found) -> Candidate {
        Candidate { device: device.into(), found, anew: false }
    }

    /// True if the end of a member is gone: it was cut short and has its size back. A second copy is written before the
    /// first one names its place, and from then on there is always some copy, damaged perhaps.
    pub fn is_cut(&self) -> bool {
        let [Ok(first), Err(Damage::Absent)] = &self.found.copies else { return false };
        first.layout.end() <= self.found.size
    }

    /// The reason why this device cannot be a member of any hierarchy, if there is one.
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
                    "has shrunk: it has {} bytes, and as member {:?} it needs {end}: give the device its size back. If \
                     its data there is lost, a mirror or parity above resyncs it",
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

    /// Notes about a member that is accepted with `chosen`.
    pub(super) fn notes(&self, chosen: &Superblock) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_cut() {
            notes.push("its end is gone: the device was cut short. The others send it all data".into());
        } else if let Some((place, damage)) = self.found.half() {
            notes.push(format!("{place} of its superblock {damage}; it is written anew from the other one"));
        }
        let other = self.found.whole().find(|copy| State::of(copy) != State::of(chosen));
        if let Some(other) = other {
            notes.push(if other.hierarchy != chosen.hierarchy {
                format!(
                    "the device was about to become a member of another hierarchy, or had been one, and stays in {:?}",
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
