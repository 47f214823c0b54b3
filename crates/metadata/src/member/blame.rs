//! The messages when devices are not the whole hierarchy: for each culprit its state and the remedy.

use super::found::{Candidate, State};
use super::judge::{Refusal, common};
use crate::superblock::Superblock;
use uuid::Uuid;

pub(super) fn other_name(member: &Superblock, hierarchy: &str) -> String {
    format!(
        "is member {:?} of hierarchy {:?} ({}), and this file describes {hierarchy:?}",
        member.name, member.hierarchy_name, member.hierarchy
    )
}

/// Says what is wrong with each device that keeps the others from being served, and with each that is missing.
pub(super) fn blame(hierarchy: &str, candidates: &[Candidate], missing: &[&str]) -> Vec<Refusal> {
    // The identity of possible members is reported as well, as far as it is known.
    let fit: Vec<&Candidate> = candidates.iter().filter(|c| c.unfit().is_none()).collect();
    let newest: Vec<&Superblock> = fit.iter().filter_map(|c| c.found.newest()).collect();
    let ours = prevailing(hierarchy, &newest);
    let of_ours = newest.iter().filter(|s| Some(s.hierarchy) == ours);
    let latest = of_ours.reduce(|best, other| if other.generation > best.generation { other } else { best });
    let evicted = latest.map(|latest| State::of(latest).evicted).unwrap_or_default();
    let needed = |device: &str| !evicted.contains_key(device);
    let unfit = candidates.iter().filter(|c| needed(&c.device));
    let mut refused: Vec<Refusal> = unfit.filter_map(|c| Some(Refusal::of(&c.device, c.unfit()?))).collect();
    refused.extend(missing.iter().filter(|name| needed(name)).map(|name| Refusal::of(name, "is not there")));
    if let (Some(ours), Some(latest)) = (ours, latest) {
        let others = fit.iter().filter(|c| needed(&c.device));
        refused.extend(
            others.filter_map(|c| Some(Refusal::of(&c.device, wrong(hierarchy, c, &fit, ours, latest)?))),
        );
    }
    if refused.is_empty() && common(candidates, missing, &[]).is_none() {
        refused.push(Refusal::of_all(
            "the members have no state in common: no generation of the hierarchy is whole on all of them",
        ));
    }
    refused
}

/// The problem of a device, if it has one.
fn wrong(
    hierarchy: &str,
    candidate: &Candidate,
    all: &[&Candidate],
    ours: Uuid,
    latest: &Superblock,
) -> Option<String> {
    let own = candidate.found.newest()?;
    let others = all.iter().copied().filter(|c| c.device != candidate.device);
    if own.hierarchy != ours {
        Some(foreign(hierarchy, own, ours))
    } else if own.hierarchy_name != hierarchy {
        Some(other_name(own, hierarchy))
    } else if own.name != candidate.device {
        Some(misplaced(own, others))
    } else {
        (own.generation < latest.generation).then(|| stale(own, latest))
    }
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
            "is a copy of member {:?}, and so is device {:?}: leave out the copy",
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
        "is stale: it has generation {}, and member {:?} has {}: the hierarchy was changed without it. Use \
         the device that has taken its place, which `lamina assemble` finds; if there is none, this \
         hierarchy cannot be served whole",
        own.generation, latest.name, latest.generation
    )
}
