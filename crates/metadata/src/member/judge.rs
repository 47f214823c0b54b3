//! Do these devices make up the hierarchy? A decision over what was found on them, without any I/O.
//!
//! There is a state (hierarchy and generation) of which *every* device has a whole copy that names it as the device it
//! is to be: then the hierarchy is that one. Of several such states, which only an interrupted change leaves, it is the
//! one that all first copies have, because these are written first, and else the latest. If there is none, every device
//! that is to blame is told what it is.

use super::found::{Candidate, State};
use crate::superblock::Superblock;
use uuid::Uuid;

/// Devices that belong together.
#[derive(Clone, Debug)]
pub struct Assembly {
    /// What each device is to carry, in the order in which they were given.
    pub members: Vec<Superblock>,
    /// What is worth saying.
    pub notes: Vec<Note>,
    /// All were closed in order.
    pub clean: bool,
    /// The highest generation that any copy has, also of a change that was taken back: a new one is above it.
    pub latest: u64,
}

/// Something about a device that is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The device.
    pub device: String,
    /// What it is, in words that follow the device's name.
    pub message: String,
}

/// Why a device is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The device; none if it is about all of them.
    pub device: Option<String>,
    /// What is wrong and what to do.
    pub message: String,
}

impl Refusal {
    pub(super) fn of(device: &str, message: impl Into<String>) -> Refusal {
        Refusal { device: Some(device.into()), message: message.into() }
    }

    pub(super) fn of_all(message: impl Into<String>) -> Refusal {
        Refusal { device: None, message: message.into() }
    }
}

/// Decides whether `candidates`, each called by the device that it is to be, are the hierarchy called `hierarchy`.
pub fn judge(hierarchy: &str, candidates: &[Candidate]) -> Result<Assembly, Vec<Refusal>> {
    let unfit: Vec<Refusal> =
        candidates.iter().filter_map(|c| Some(Refusal::of(&c.device, c.unfit()?))).collect();
    if !unfit.is_empty() {
        // What the others are is said as well, as far as it can be known.
        let fit: Vec<Candidate> = candidates.iter().filter(|c| c.unfit().is_none()).cloned().collect();
        let others = if fit.is_empty() { Vec::new() } else { blame(hierarchy, &fit) };
        return Err(unfit.into_iter().chain(others).collect());
    }
    let Some(state) = common(candidates) else {
        let blamed = blame(hierarchy, candidates);
        debug_assert!(!blamed.is_empty());
        return Err(blamed);
    };
    let members: Vec<Superblock> = candidates.iter().filter_map(|c| c.at(state)).cloned().collect();
    refuse_what_differs(hierarchy, candidates, &members)?;
    let notes = candidates.iter().zip(&members).flat_map(|(candidate, chosen)| {
        let note = |message| Note { device: candidate.device.clone(), message };
        candidate.notes(chosen).into_iter().map(note)
    });
    let all = candidates.iter().flat_map(|c| c.found.whole());
    Ok(Assembly {
        notes: notes.collect(),
        clean: members.iter().all(|m| m.clean),
        latest: all.map(|copy| copy.generation).max().unwrap_or(0),
        members,
    })
}

/// The state that all have, each as the device it is to be.
fn common(candidates: &[Candidate]) -> Option<State> {
    let mut states: Vec<State> = Vec::new();
    for copy in candidates.first()?.found.whole() {
        states.push(State::of(copy));
    }
    let held =
        |state: &State| candidates.iter().all(|c| c.at(*state).is_some_and(|copy| copy.name == c.device));
    states.retain(held);
    states.into_iter().max_by_key(|s| (candidates.iter().all(|c| c.first_at(*s)), s.generation))
}

/// All have the same state, and must say the same.
fn refuse_what_differs(
    hierarchy: &str,
    candidates: &[Candidate],
    members: &[Superblock],
) -> Result<(), Vec<Refusal>> {
    let first = &members[0];
    if first.hierarchy_name != hierarchy {
        let foreign = |(c, m): (&Candidate, &Superblock)| Refusal::of(&c.device, other_name(m, hierarchy));
        return Err(candidates.iter().zip(members).map(foreign).collect());
    }
    let mut refused = Vec::new();
    for (n, (candidate, member)) in candidates.iter().zip(members).enumerate() {
        let before = members[..n].iter().position(|m| m.index == member.index);
        let same = member.description == first.description && member.members == first.members;
        if let Some(other) = before {
            let message = format!(
                "has the same number among the members as device {:?}: one of them was replaced by the other; leave the older one out",
                candidates[other].device
            );
            refused.push(Refusal::of(&candidate.device, message));
        } else if !same {
            let message = format!(
                "has generation {} as device {:?} has, and describes another hierarchy: they were changed apart from each other",
                member.generation, candidates[0].device
            );
            refused.push(Refusal::of(&candidate.device, message));
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

fn other_name(member: &Superblock, hierarchy: &str) -> String {
    format!(
        "is member {:?} of hierarchy {:?} ({}), and this file describes {hierarchy:?}",
        member.name, member.hierarchy_name, member.hierarchy
    )
}

/// Says what is wrong with each device that keeps the others from being served.
fn blame(hierarchy: &str, candidates: &[Candidate]) -> Vec<Refusal> {
    let newest: Vec<&Superblock> = candidates.iter().filter_map(|c| c.found.newest()).collect();
    let Some(ours) = prevailing(hierarchy, &newest) else { return Vec::new() };
    let latest = newest.iter().filter(|s| s.hierarchy == ours).map(|s| s.generation).max().unwrap_or(0);
    let mut refused = Vec::new();
    for candidate in candidates {
        let Some(own) = candidate.found.newest() else { continue };
        let others = candidates.iter().filter(|c| c.device != candidate.device);
        let message = if own.hierarchy != ours {
            foreign(hierarchy, own, ours)
        } else if own.hierarchy_name != hierarchy {
            other_name(own, hierarchy)
        } else if own.name != candidate.device {
            misplaced(own, others)
        } else if own.generation < latest {
            let latest = newest.iter().find(|s| s.hierarchy == ours && s.generation == latest);
            stale(own, latest.map_or(own, |s| s))
        } else {
            continue;
        };
        refused.push(Refusal::of(&candidate.device, message));
    }
    if refused.is_empty() && candidates.len() > 1 && common(candidates).is_none() {
        refused.push(Refusal::of_all(
            "the members have no state in common: no generation of the hierarchy is whole on all of them",
        ));
    }
    refused
}

/// The hierarchy that is meant: of the right name where there is one, and then the one that most have.
fn prevailing(hierarchy: &str, newest: &[&Superblock]) -> Option<Uuid> {
    let count = |of: Uuid| newest.iter().filter(|s| s.hierarchy == of).count();
    // The first of several that are equal: `max_by_key` would take the last.
    let best = newest.iter().rev().max_by_key(|s| (s.hierarchy_name == hierarchy, count(s.hierarchy)));
    best.map(|s| s.hierarchy)
}

fn foreign(hierarchy: &str, own: &Superblock, ours: Uuid) -> String {
    let same = if own.hierarchy_name == hierarchy { " of the same name" } else { "" };
    format!(
        "is foreign: it is member {:?} of another hierarchy{same}, {:?} ({}); the other devices here belong to {ours}",
        own.name, own.hierarchy_name, own.hierarchy
    )
}

fn misplaced<'a>(own: &Superblock, mut others: impl Iterator<Item = &'a Candidate>) -> String {
    let twin = others.find(|c| c.found.whole().any(|s| s.member == own.member));
    match twin {
        Some(twin) => format!(
            "is a copy of member {:?}, and so is device {:?}: leave out the one that was copied",
            own.name, twin.device
        ),
        None => format!(
            "is member {:?} of this hierarchy: the paths were exchanged, and device {:?} is where this path belongs",
            own.name, own.name
        ),
    }
}

fn stale(own: &Superblock, latest: &Superblock) -> String {
    format!(
        "is stale: it has generation {}, and member {:?} has {}: the hierarchy was changed without it. Use the device \
         that has taken its place; if there is none, this hierarchy cannot be served whole",
        own.generation, latest.name, latest.generation
    )
}
