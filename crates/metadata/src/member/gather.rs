//! Which hierarchy do these devices carry? For devices that are known by their paths only.
//!
//! Paths mean nothing: a member is found by its superblock. Other devices are passed over. The result is a claim that
//! [`judge`](super::judge) still has to accept, now that each device has its name.

use super::found::{Candidate, State};
use super::judge::Refusal;
use super::records::Evicted;
use crate::superblock::Superblock;
use std::collections::BTreeMap;

/// A hierarchy, and where its members are among the candidates.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// One of its superblocks.
    pub superblock: Superblock,
    /// By name: the number of the candidate. Evicted members are among them if they are there.
    pub members: BTreeMap<String, usize>,
    /// The numbers of the members that do not carry it: missing, or out.
    pub missing: Vec<u32>,
    /// The members that the hierarchy goes on without, missing or not.
    pub evicted: Evicted,
    /// Candidates that are not needed, and why.
    pub others: Vec<Refusal>,
}

/// Finds the one hierarchy that `candidates` carry, perhaps not all of it.
pub fn gather(candidates: &[Candidate]) -> Result<Gathered, Vec<Refusal>> {
    let found = states(candidates);
    let Some(best) = found.iter().max_by_key(|s| (s.missing == 0, s.first, s.state.generation, s.held))
    else {
        let unfit = candidates.iter().filter_map(|c| Some(Refusal::of(&c.device, c.unfit()?)));
        let none = Refusal::of_all("none of these devices is a member of a hierarchy");
        return Err(unfit.chain([none]).collect());
    };
    several(&found, best, candidates)?;
    let state = &best.state;
    let (members, copies) = places(candidates, state);
    if !copies.is_empty() {
        return Err(copies);
    }
    let superblock = candidates.iter().find_map(|c| c.at(state)).cloned();
    let Some(superblock) = superblock else { return Err(Vec::new()) };
    let numbers: Vec<u32> =
        members.values().filter_map(|n| candidates[*n].at(state)).map(|s| s.index).collect();
    let missing = (0..superblock.members).filter(|index| !numbers.contains(index)).collect();
    let others = candidates.iter().enumerate().filter(|(n, _)| !members.values().any(|m| m == n));
    let others = others.map(|(_, c)| Refusal::of(&c.device, passed_over(c, state))).collect();
    Ok(Gathered { superblock, members, missing, evicted: state.evicted.clone(), others })
}

/// How much of a state is there.
struct Held {
    state: State,
    name: String,
    held: usize,
    missing: usize,
    /// All its holders have it in their first copy.
    first: bool,
}

fn states(candidates: &[Candidate]) -> Vec<Held> {
    let mut found: Vec<Held> = Vec::new();
    for copy in candidates.iter().flat_map(|c| c.found.whole()) {
        let state = State::of(copy);
        if found.iter().any(|held| held.state == state) {
            continue;
        }
        let holders: Vec<&Candidate> = candidates.iter().filter(|c| c.at(&state).is_some()).collect();
        let numbers: std::collections::BTreeSet<u32> =
            holders.iter().filter_map(|c| c.at(&state)).map(|s| s.index).collect();
        found.push(Held {
            name: copy.hierarchy_name.clone(),
            held: numbers.len(),
            missing: (copy.members as usize).saturating_sub(numbers.len() + state.evicted.len()),
            first: holders.iter().all(|c| c.first_at(&state)),
            state,
        });
    }
    found
}

/// Refuses devices of several hierarchies, unless one was about to take the place of the other on the same devices.
fn several(found: &[Held], best: &Held, candidates: &[Candidate]) -> Result<(), Vec<Refusal>> {
    let apart = |other: &&Held| {
        let mut holders = candidates.iter().filter(|c| c.at(&other.state).is_some());
        other.state.hierarchy != best.state.hierarchy && holders.any(|c| c.at(&best.state).is_none())
    };
    let mut names: Vec<String> = Vec::new();
    for other in found.iter().filter(|h| h.state.hierarchy == best.state.hierarchy).take(1) {
        names.push(format!("{:?} ({})", other.name, other.state.hierarchy));
    }
    for other in found.iter().filter(apart) {
        let name = format!("{:?} ({})", other.name, other.state.hierarchy);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() < 2 {
        return Ok(());
    }
    Err(vec![Refusal::of_all(format!(
        "these devices carry {} hierarchies: {}; name the devices of one",
        names.len(),
        names.join(" and ")
    ))])
}

/// Where each member is, and the devices that claim to be one that another is.
fn places(candidates: &[Candidate], state: &State) -> (BTreeMap<String, usize>, Vec<Refusal>) {
    let mut members: BTreeMap<String, usize> = BTreeMap::new();
    let mut copies = Vec::new();
    for (n, candidate) in candidates.iter().enumerate() {
        let Some(copy) = candidate.at(state).or(of_evicted(candidate, state)) else { continue };
        match members.get(&copy.name) {
            None => drop(members.insert(copy.name.clone(), n)),
            Some(other) => {
                let message = format!(
                    "is member {:?}, and so is {}: one is a copy of the other; name only one of them",
                    copy.name, candidates[*other].device
                );
                copies.push(Refusal::of(&candidate.device, message));
            }
        }
    }
    (members, copies)
}

/// The superblock of a device that was a member of the hierarchy and is evicted.
fn of_evicted<'a>(candidate: &'a Candidate, state: &State) -> Option<&'a Superblock> {
    let own = candidate.found.newest()?;
    (own.hierarchy == state.hierarchy && state.evicted.contains_key(&own.name)).then_some(own)
}

fn passed_over(candidate: &Candidate, state: &State) -> String {
    if let Some(message) = candidate.unfit() {
        return message;
    }
    match candidate.found.newest() {
        Some(own) if own.hierarchy == state.hierarchy => format!(
            "is stale: as member {:?} it has generation {}, and others have {}",
            own.name, own.generation, state.generation
        ),
        Some(own) => format!("is member {:?} of another hierarchy, {:?}", own.name, own.hierarchy_name),
        None => "is no member".into(),
    }
}
