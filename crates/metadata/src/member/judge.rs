//! Do these devices make up the hierarchy? A decision over what was found on them, without any I/O.
//!
//! There is a state (hierarchy and generation) of which *every* device has a whole copy that names it as the device it
//! is to be, except those that this state itself says are evicted: then the hierarchy is that one. Of several such states,
//! which only an interrupted change leaves, it is the one that all first copies have, because these are written first, and
//! else the latest. If there is none, every device that is to blame is told what it is.
//!
//! A member that is evicted may be anything: it is taken in again, passed over, or, if the hierarchy went on with it as well,
//! without the others, everything is refused.

use super::blame::{blame, other_name};
use super::found::{Candidate, State};
use super::records::Evicted;
use crate::superblock::Superblock;

/// Devices that belong together.
#[derive(Clone, Debug)]
pub struct Assembly {
    /// What the members that the hierarchy goes on with are to carry, in the order in which they were given.
    pub members: Vec<Superblock>,
    /// What members carry that are evicted and can be taken in again.
    pub back: Vec<Superblock>,
    /// The members that are evicted, and the last generation that each was part of.
    pub evicted: Evicted,
    /// Those that are not out and that it would go on without all the same, because it was asked to; and the last
    /// generation that each was surely part of.
    pub lost: Evicted,
    /// What is worth saying.
    pub notes: Vec<Note>,
    /// All were closed in order.
    pub clean: bool,
    /// The highest generation that any copy has, also of a change that was taken back: a new one is above it.
    pub latest: u64,
}

/// Something about a device that is accepted, or passed over.
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

/// Decides whether `candidates`, each called by the device that it is to be, are the hierarchy called `hierarchy`, of
/// which the members `missing` could not be opened. If `degraded`, it may be without members that are missing or damaged,
/// also if they are not out; whether its devices survive that is for who asks to know.
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
    // A change may have been under way that those who are not here never saw.
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

/// Of the members that are evicted, what those carry that can be taken in again. Others are passed over, with a note; one that
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
    /// It is not the member any more.
    PassedOver(String),
    /// The hierarchy went on with it as well.
    Apart(String),
}

/// What a device carries that is evicted after generation `last` and is what it was then; `state` is what the other members,
/// called `names`, carry.
///
/// It may have later generations, of changes that never came about, because they failed or were interrupted. But if one of
/// them says that all of the others are evicted, the hierarchy may have been served without them: none of them would know.
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
                "has generation {}, which is without {}; the others have generation {}, which is without {:?}: they were \
                 changed apart from each other. Take away what is to be given up: the hierarchy goes on with the rest",
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
    let Some(own) = candidate.found.newest() else { return passed_over("it is no member".into()) };
    if own.hierarchy != state.hierarchy {
        return passed_over(format!(
            "what is in its place is member {:?} of another hierarchy, {:?} ({})",
            own.name, own.hierarchy_name, own.hierarchy
        ));
    }
    if own.name != candidate.device {
        return passed_over(format!("what is in its place is member {:?} of this hierarchy", own.name));
    }
    if own.generation < last {
        return passed_over(format!(
            "it has generation {}, and had {last} when the hierarchy went on without it: it was replaced by an older copy",
            own.generation
        ));
    }
    Ok(own)
}

/// `"a"`, `"a" and "b"`.
fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" and ")
}
