//! The members of a persistent hierarchy, opened.
//!
//! ```text
//!   opened ─▶ superblocks read ─▶ judged ─▶ compared with the file ─▶ marked in use ─▶ layers
//! ```
//!
//! Nothing is written before all members are known to belong together and to say what the file says; a refusal changes
//! no byte. Evicted members may be missing; those that are there again are taken in when the others are marked. Other
//! members may be missing only if the caller allowed that; before any layer is made, the rest record them as evicted.

use crate::absent;
use crate::description;
use crate::hierarchy::blame;
use crate::keys;
use crate::local;
use crate::members::{close_all, member_devices, open_all};
use crate::persistent::Persistent;
use crate::plan::Plan;
use crate::report::{Report, Subject, quoted};
use crate::way::Way;
use lamina_block::{Env, Error, ErrorKind, Node};
use lamina_metadata::member::{self, Assembly, Candidate, Member, Refusal, Roster, records};
use lamina_metadata::superblock::{self, Superblock};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Members at work, and absent members.
pub(crate) struct Assembled {
    pub roster: Rc<Roster>,
    /// Why each of the others is absent.
    pub absent: BTreeMap<String, Error>,
}

/// The opened devices, and their superblocks.
struct Opened {
    nodes: Vec<Rc<Node>>,
    /// In the order of the nodes.
    candidates: Vec<Candidate>,
    /// The devices that could not be opened, and why.
    failed: BTreeMap<String, Error>,
}

/// Opens the members of a persistent plan and marks them as in use; nothing stays open after an error. If `degraded`,
/// the hierarchy goes on without members that are missing or damaged, as far as its exports survive that.
pub(crate) async fn assemble(
    plan: &Plan,
    persistent: &Persistent,
    env: &Rc<dyn Env>,
    degraded: bool,
    report: &mut Report,
) -> Option<Assembled> {
    let (nodes, failed) = open_all(plan, env, false).await;
    let mut candidates = Vec::new();
    for node in &nodes {
        candidates.push(Candidate::new(node.name(), superblock::read(node).await));
    }
    let missing: Vec<&str> = failed.keys().map(String::as_str).collect();
    plan.mark_cut(&persistent.name, &mut candidates, &missing, degraded);
    let opened = Opened { nodes, candidates, failed };
    let assembled = match judged(plan, persistent, &opened, degraded, report) {
        Some(assembly) => taken(plan, persistent, &opened, assembly, report).await,
        None => None,
    };
    let is_used = |node: &&Rc<Node>| assembled.as_ref().is_some_and(|a| !a.absent.contains_key(node.name()));
    let unused: Vec<Rc<Node>> = opened.nodes.iter().filter(|node| !is_used(node)).cloned().collect();
    close_all(&unused, report).await;
    assembled
}

/// The hierarchy that the devices make together, if all exported devices are there.
fn judged(
    plan: &Plan,
    persistent: &Persistent,
    opened: &Opened,
    degraded: bool,
    report: &mut Report,
) -> Option<Assembly> {
    let missing: Vec<&str> = opened.failed.keys().map(String::as_str).collect();
    let judge = |degraded| member::judge(&persistent.name, &opened.candidates, &missing, degraded);
    match judge(degraded) {
        Ok(assembly) => {
            exports_are_there(plan, &assembly, report);
            (!report.has_errors()).then_some(assembly)
        }
        Err(refusals) => {
            for refusal in &refusals {
                let failed = refusal.device.as_ref().and_then(|device| opened.failed.get_key_value(device));
                match failed.and_then(|(name, e)| Some((plan.devices.iter().find(|d| d.name == *name)?, e))) {
                    Some((device, e)) => blame(plan, device, e, report),
                    None => refuse(plan, refusal, report),
                }
            }
            let without = judge(true).ok().filter(|_| !degraded);
            if let Some(assembly) = without.filter(|assembly| survives(plan, assembly)) {
                let lost: Vec<String> = assembly.lost.keys().map(|name| quoted(name)).collect();
                let message = format!(
                    "`lamina serve --degraded` goes on without {}. Every write made while others of its members were \
                     away is given up with that",
                    lost.join(" and ")
                );
                report.error(Subject::Hierarchy, None, None, &message);
            }
            None
        }
    }
}

/// The members that are not there.
fn absent_members<'a>(plan: &'a Plan, assembly: &Assembly) -> Vec<&'a str> {
    let there = |name: &str| assembly.members.iter().chain(&assembly.back).any(|m| m.name == name);
    member_devices(plan).into_iter().map(|d| d.name.as_str()).filter(|name| !there(name)).collect()
}

fn survives(plan: &Plan, assembly: &Assembly) -> bool {
    absent::survives(plan)(&absent_members(plan, assembly))
}

/// Reports the exports whose devices are absent.
fn exports_are_there(plan: &Plan, assembly: &Assembly, report: &mut Report) {
    let members = absent_members(plan, assembly);
    let absent = absent::absent(plan, &members);
    for export in plan.exports.iter().filter(|export| absent.contains(export.device.as_str())) {
        let names: Vec<String> = members.iter().map(|name| quoted(name)).collect();
        let message = format!(
            "device {} is absent without {}: too many of the devices below are missing",
            quoted(&export.device),
            names.join(" and ")
        );
        let (subject, at) = (Subject::Export(export.name.clone()), export.places.device.clone());
        report.error(subject, Some("device"), Some(at), &message);
    }
}

/// Writes the outcome, and makes members of the devices that are there.
async fn taken(
    plan: &Plan,
    persistent: &Persistent,
    opened: &Opened,
    assembly: Assembly,
    report: &mut Report,
) -> Option<Assembled> {
    let is_cut = |name: &str| opened.candidates.iter().any(|c| c.device == name && c.is_cut());
    let leg_of = |name: &str| match is_cut(name) {
        true => plan.leg_of(name).map(|(device, leg)| (&device.name[..], leg)),
        false => None,
    };
    let anew = assembly.members.iter().filter_map(|member| leg_of(&member.name)).collect();
    let next = compared(plan, persistent, &assembly, anew, report)?;
    let mut absent = noted(plan, opened, &assembly, report);
    let latest = next.iter().map(|s| s.generation).fold(assembly.latest, u64::max);
    let node = |name: &str| opened.nodes.iter().find(|node| node.name() == name).cloned();
    let mut members: Vec<(Rc<Node>, Superblock)> =
        next.into_iter().filter_map(|superblock| Some((node(&superblock.name)?, superblock))).collect();
    if let Err(e) = write(opened, &assembly, &mut members).await {
        let message = format!("its members cannot be marked as in use: {e}");
        report.failed(e.kind(), Subject::Hierarchy, None, None, &message);
        return None;
    }
    let members = members.into_iter().map(|(below, superblock)| Member::new(below, superblock)).collect();
    let roster = match Roster::new(members, latest, absent::survives(plan)) {
        Ok(roster) => roster,
        Err(e) => {
            report.failed(e.kind(), Subject::Hierarchy, None, None, e.message());
            return None;
        }
    };
    for superblock in assembly.back {
        let name = superblock.name.clone();
        let Some(below) = node(&name) else { continue };
        let last = assembly.evicted.get(&name).copied().unwrap_or_default();
        let message = match roster.rejoin(Member::new(below, superblock), leg_of(&name)).await {
            Ok(()) if is_cut(&name) => {
                format!("was evicted after generation {last}, and was cut short: the others send it all data")
            }
            Ok(()) => format!("was evicted after generation {last}, and is taken in again"),
            Err(e) => {
                let message = format!("is evicted, and cannot be taken in again: {e}");
                absent.insert(name.clone(), e);
                message
            }
        };
        warn(plan, &name, &message, report);
    }
    Some(Assembled { roster, absent })
}

/// Says what is worth saying; the members that are not there, and why.
fn noted(plan: &Plan, opened: &Opened, assembly: &Assembly, report: &mut Report) -> BTreeMap<String, Error> {
    let mut absent = BTreeMap::new();
    for name in absent_members(plan, assembly) {
        let unfit = opened.candidates.iter().find(|c| c.device == name).and_then(Candidate::unfit);
        let why = opened.failed.get(name).cloned().or(unfit.map(Error::offline));
        let note = assembly.notes.iter().find(|note| note.device == name);
        let why =
            why.or(note.map(|note| Error::offline(&note.message))).unwrap_or(Error::offline("is evicted"));
        if note.is_none() {
            let message = format!("{}. The hierarchy goes on without it", why.message());
            warn(plan, name, &message, report);
        }
        absent.insert(name.to_owned(), why);
    }
    for note in &assembly.notes {
        warn(plan, &note.device, &note.message, report);
    }
    if !assembly.clean {
        report.warning(Subject::Hierarchy, None, None, "was not shut down cleanly the last time");
    }
    absent
}

fn warn(plan: &Plan, device: &str, message: &str, report: &mut Report) {
    let at = keys::place(&plan.source, device, "path");
    report.warning(Subject::Device(device.into()), Some("path"), at, message);
}

/// Everything that opening writes: first what was chosen is made whole everywhere, then comes what is new. A truncated
/// member is written last, and gets the new state only: in the chosen state the member counts as whole.
async fn write(
    opened: &Opened,
    assembly: &Assembly,
    next: &mut [(Rc<Node>, Superblock)],
) -> lamina_block::Result<()> {
    for ((node, _), chosen) in next.iter().zip(&assembly.members) {
        let found = opened.candidates.iter().find(|candidate| candidate.device == chosen.name);
        if let Some(candidate) = found.filter(|candidate| !candidate.is_cut()) {
            member::repair_copies(node, &candidate.found, chosen).await?;
        }
    }
    let is_cut = |name: &str| opened.candidates.iter().any(|c| c.device == name && c.is_cut());
    next.sort_by_key(|(_, superblock)| is_cut(&superblock.name));
    member::take_into_use(next).await
}

/// The superblocks with the description of the file. Exports may have changed, and paths and addresses of this host:
/// such a change raises the generation of the hierarchy. Any other difference is refused. Newly evicted members are a
/// change as well, and so are legs that begin `anew`: children that their devices do not know any more.
fn compared(
    plan: &Plan,
    persistent: &Persistent,
    assembly: &Assembly,
    anew: Vec<(&str, &str)>,
    report: &mut Report,
) -> Option<Vec<Superblock>> {
    let mut members = assembly.members.clone();
    let described = members.first()?.description.clone();
    let (theirs, mut trailer) = match records::split(&described) {
        Ok(parts) => parts,
        Err(message) => {
            report.failed(ErrorKind::Corrupt, Subject::Hierarchy, None, None, &message);
            return None;
        }
    };
    let ours = &persistent.description;
    let (carried, way) = (Way::read(trailer.way.take()), &persistent.way);
    let way = match way.files.is_empty() && carried.is_under_way() {
        true => Way { base: way.base.clone(), ..carried.clone() },
        false => way.clone(),
    };
    // Members from before there was a way need none as long as nothing else changes.
    let same_way = carried == way || carried == Way::default();
    if ours == theirs && assembly.lost.is_empty() && anew.is_empty() && same_way {
        return Some(members);
    }
    anew.iter().for_each(|(device, child)| records::forget(&mut trailer.records, device, child));
    trailer.evicted.extend(assembly.lost.clone());
    trailer.way = way.to_record();
    let agreed = |text: &str| local::agreed(text, &plan.kinds);
    if agreed(ours) != agreed(theirs) {
        let what = description::difference(&agreed(ours), &agreed(theirs));
        let message = format!(
            "differs from the file on the members: {}. `lamina assemble` prints that file",
            what.unwrap_or_else(|| "the same lines stand in another place".into())
        );
        report.error(Subject::Hierarchy, None, None, &message);
        return None;
    }
    for member in &mut members {
        member.generation = assembly.latest + 1;
        member.description = records::join(ours, &trailer);
    }
    if ours != theirs {
        let stored = |text: &str| text.split_once("\n[export.").map_or(text, |(stored, _)| stored).to_owned();
        let what = match stored(ours) == stored(theirs) {
            true => "the exports have",
            false => "paths or addresses of this host have",
        };
        let message = format!("{what} changed: the members carry generation {} now", assembly.latest + 1);
        report.warning(Subject::Hierarchy, None, None, &message);
    }
    Some(members)
}

pub(crate) fn refuse(plan: &Plan, refusal: &Refusal, report: &mut Report) {
    match &refusal.device {
        Some(device) => {
            let at = keys::place(&plan.source, device, "path");
            report.error(Subject::Device(device.clone()), Some("path"), at, &refusal.message);
        }
        None => report.error(Subject::Hierarchy, None, None, &refusal.message),
    }
}
