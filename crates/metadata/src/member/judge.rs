//! Are these devices the hierarchy? A decision over what was found on them, without any I/O.
//!
//! Wanted is a state (hierarchy and generation) of which *every* device, except those that the state itself calls
//! evicted, has a whole copy with that device's name: this state is the hierarchy. Of several such states, which only
//! an interrupted change leaves, the state of all first copies wins, because these are written first, and else the
//! latest. If there is none, every device that is to blame is told what it is.
//!
//! An evicted member may be in any state: it is taken in again, or passed over; if the hierarchy went on with it as
//! well, without the others, everything is refused.

use super::blame::{blame, other_name};
use super::found::{Candidate, State};
use super::records::Evicted;
use crate::superblock::Superblock;

/// Devices that belong together.
#[derive(Clone, Debug)]
pub struct Assembly {
    /// The superblocks for the members in use, in the order in which they were given.
    pub members: Vec<Superblock>,
    /// What members carry that are evicted and can be taken in again.
    pub back: Vec<Superblock>,
    /// The members that are evicted, and the last generation that each was part of.
    pub evicted: Evicted,
    /// Members that are not evicted yet, and will be because the caller allowed that; each with the last generation
    /// that it surely had.
    pub lost: Evicted,
    /// Notes about the members.
    pub notes: Vec<Note>,
    /// All were shut down cleanly.
    pub clean: bool,
    /// The highest generation that any copy has, also of a change that was taken back: a new one is above it.
    pub latest: u64,
}

/// Something about a device that is accepted, or passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The device.
    pub device: String,
    /// The text of the note, which follows the device's name.
    pub message: String,
}

/// Why a device is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The device; `None` if the refusal is about all of them.
    pub device: Option<String>,
    /// The problem and its remedy.
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

/// Decides whether `candidates`, each called by the device that it is to be, are the hierarchy called `hierarchy`, of
/// which the members `missing` could not be opened. If `degraded`, members may be missing or damaged that are not
/// evicted; the caller knows whether the devices survive that.
pub fn judge(
    hierarchy: &str,
    candidates: &[Candidate],
    missing: &[&str],
    degraded: bool,
) -> Result<Assembly, Vec<Refusal>> {
    let lost = |candidate: &&Candidate| candidate.unfit().is_some() && candidate.found.newer().is_none();
    let unfit = candidates.iter().filter(lost).map(|c| c.device.as_str());
    let dispensable: Vec<&str> =
        if degraded { missing.iter().copied().chain(unfit).collect() } else { Vec::new() };
    let Some(state) = common(candidates, missing, &dispensable) else {
        return Err(blame(hierarchy, candidates, missing));
    };
    let inside: Vec<&Candidate> = candidates.iter().filter(|c| holds(c, &state)).collect();
    let members: Vec<Superblock> = inside.iter().filter_map(|c| c.at(&state)).cloned().collect();
    refuse_what_differs(hierarchy, &inside, &members)?;
    let mut notes = Vec::new();
    for (candidate, chosen) in inside.iter().zip(&members) {
        let note = |message| Note { device: candidate.device.clone(), message };
        notes.extend(candidate.notes(chosen).into_iter().map(note));
    }
    let back = outside(candidates, &state, &members, &mut notes)?;
    let is_lost = |name: &&&str| !state.evicted.contains_key(**name);
    // A change may have been under way that the absent members never saw.
    let sure = inside.iter().flat_map(|c| c.found.whole()).filter(|copy| copy.hierarchy == state.hierarchy);
    let sure = sure.map(|copy| copy.generation).min().unwrap_or(0);
    let all = candidates.iter().flat_map(|c| c.found.whole());
    Ok(Assembly {
        clean: members.iter().all(|m| m.clean),
        latest: all.map(|copy| copy.generation).max().unwrap_or(0),
        lost: dispensable.iter().filter(is_lost).map(|name| ((*name).to_owned(), sure)).collect(),
        evicted: state.evicted,
        members,
        back,
        notes,
    })
}

/// True if a device has a state in which it is the device it is to be.
fn holds(candidate: &Candidate, state: &State) -> bool {
    candidate.unfit().is_none()
        && !state.evicted.contains_key(&candidate.device)
        && candidate.at(state).is_some_and(|copy| copy.name == candidate.device)
}

/// The state that all have, each as the device it is to be, apart from those that are evicted and the `dispensable`.
pub(super) fn common(candidates: &[Candidate], missing: &[&str], dispensable: &[&str]) -> Option<State> {
    let mut states: Vec<State> = Vec::new();
    for state in candidates.iter().flat_map(|c| c.found.whole()).map(State::of) {
        if !states.contains(&state) {
            states.push(state);
        }
    }
    let whole = |state: &State| {
        let needed = |name: &str| !state.evicted.contains_key(name) && !dispensable.contains(&name);
        candidates.iter().any(|c| holds(c, state))
            && candidates.iter().all(|c| !needed(&c.device) || holds(c, state))
            && !missing.iter().any(|name| needed(name))
    };
    states.retain(whole);
    let first = |state: &State| candidates.iter().filter(|c| holds(c, state)).all(|c| c.first_at(state));
    states.into_iter().max_by_key(|state| (first(state), state.generation))
}

/// All have the same state, and must say the same.
fn refuse_what_differs(
    hierarchy: &str,
    candidates: &[&Candidate],
    members: &[Superblock],
) -> Result<(), Vec<Refusal>> {
    let first = &members[0];
    if first.hierarchy_name != hierarchy {
        let foreign = |(c, m): (&&Candidate, &Superblock)| Refusal::of(&c.device, other_name(m, hierarchy));
        return Err(candidates.iter().zip(members).map(foreign).collect());
    }
    let mut refused = Vec::new();
    for (n, (candidate, member)) in candidates.iter().zip(members).enumerate() {
        let before = members[..n].iter().position(|m| m.index == member.index);
        let same = member.description == first.description && member.members == first.members;
        if let Some(other) = before {
            let message = format!(
                "has the same number among the members as device {:?}: one of them was replaced by the other; leave \
                 the older one out",
                candidates[other].device
            );
            refused.push(Refusal::of(&candidate.device, message));
        } else if !same {
            let message = format!(
                "has generation {} as device {:?} has, and describes another hierarchy: they were changed apart from \
                 each other",
                member.generation, candidates[0].device
            );
            refused.push(Refusal::of(&candidate.device, message));
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

/// The superblocks of evicted members that can be taken in again. Others are passed over, with a note; a member that
/// was changed apart from `members` is refused.
fn outside(
    candidates: &[Candidate],
    state: &State,
    members: &[Superblock],
    notes: &mut Vec<Note>,
) -> Result<Vec<Superblock>, Vec<Refusal>> {
    let (mut back, mut refused) = (Vec::new(), Vec::new());
    for candidate in candidates {
        let Some(last) = state.evicted.get(&candidate.device) else { continue };
        let names: Vec<&str> = members.iter().map(|m| m.name.as_str()).collect();
        match returning(candidate, state, *last, &names) {
            Ok(own) => back.push(own.clone()),
            Err(Outside::Apart(message)) => refused.push(Refusal::of(&candidate.device, message)),
            Err(Outside::PassedOver(message)) => {
                notes.push(Note { device: candidate.device.clone(), message })
            }
        }
    }
    if refused.is_empty() { Ok(back) } else { Err(refused) }
}

/// Why a member that is evicted is not taken in again.
pub(super) enum Outside {
    /// The device is not the member any more.
    PassedOver(String),
    /// The hierarchy went on with it as well.
    Apart(String),
}

/// The superblock of a device that was evicted after generation `last` and has not changed since; `state` is the state
/// of the other members, called `names`.
///
/// The device may have later generations, of changes that failed or were interrupted. But if one of these calls all of
/// the others evicted, the hierarchy may have been served without them: none of them would know.
pub(super) fn returning<'a>(
    candidate: &'a Candidate,
    state: &State,
    last: u64,
    names: &[&str],
) -> Result<&'a Superblock, Outside> {
    let passed_over =
        |why: String| Err(Outside::PassedOver(format!("is evicted, and is not taken in again: {why}")));
    for copy in candidate.found.whole().filter(|copy| copy.hierarchy == state.hierarchy) {
        let evicted = State::of(copy).evicted;
        if copy.generation > last && names.iter().all(|name| evicted.contains_key(*name)) {
            return Err(Outside::Apart(format!(
                "has generation {}, which is without {}; the others have generation {}, which is without {:?}: they \
                 were changed apart from each other. Take away the devices to give up: the hierarchy goes on with the \
                 rest",
                copy.generation,
                listed(names),
                state.generation,
                candidate.device
            )));
        }
    }
    match (candidate.unfit(), candidate.found.newer()) {
        (Some(why), Some(_)) => return Err(Outside::Apart(why)),
        (Some(why), None) => return passed_over(why),
        (None, _) => {}
    }
    let Some(own) = candidate.found.newest() else { return passed_over("the device is no member".into()) };
    if own.hierarchy != state.hierarchy {
        return passed_over(format!(
            "the device in its place is member {:?} of another hierarchy, {:?} ({})",
            own.name, own.hierarchy_name, own.hierarchy
        ));
    }
    if own.name != candidate.device {
        return passed_over(format!("the device in its place is member {:?} of this hierarchy", own.name));
    }
    if own.generation < last {
        return passed_over(format!(
            "its generation is {}, and was {last} when the hierarchy went on without it: an older copy has replaced it",
            own.generation
        ));
    }
    Ok(own)
}

/// `"a"`, `"a" and "b"`.
fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" and ")
}
