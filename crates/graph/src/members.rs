//! The members of a persistent hierarchy: made, and opened.
//!
//! ```text
//!   devices opened ──▶ superblocks read ──▶ judged ──▶ compared with the file ──▶ marked as in use ──▶ layers above
//! ```
//!
//! Nothing is written before all members are known to belong together and to say what the file says; a refusal leaves
//! every byte as it was.

use crate::description;
use crate::device::Device;
use crate::hierarchy::{Hierarchy, Maker, blame};
use crate::keys;
use crate::persistent::{Persistent, is_member};
use crate::plan::Plan;
use crate::report::{Report, Subject};
use lamina_block::{Begin, Env, Error, Node};
use lamina_metadata::member::{self, Assembly, Candidate, Member, Refusal, Roster, words};
use lamina_metadata::superblock::{self, Found, Layout, Superblock};
use std::path::PathBuf;
use std::rc::Rc;

/// A member before it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPlan {
    /// The device that it is.
    pub device: String,
    /// Where it is.
    pub path: PathBuf,
    /// The size in bytes with which it is made if it is a file that does not exist.
    pub size: Option<u64>,
}

impl Plan {
    /// What `lamina create` would make members of, in the order of their numbers; empty unless the plan is persistent.
    pub fn members(&self) -> Vec<MemberPlan> {
        let plan = |device: &Device| MemberPlan {
            device: device.name.clone(),
            path: device.base.join(device.keys["path"].as_str().unwrap_or_default()),
            size: device.keys.get("size").and_then(|size| match size.as_str() {
                Some(text) => text.parse().ok().map(|bytes: lamina_block::Bytes| bytes.0),
                None => size.as_u64(),
            }),
        };
        member_devices(self).into_iter().map(plan).collect()
    }

    /// Makes the members, and what the layers over them remember: files that do not exist are created, and superblocks
    /// with a new hierarchy's identity are written. What was on the devices before is not looked at. `created` is the
    /// time in seconds since 1970.
    pub async fn create(&self, env: Rc<dyn Env>, created: u64) -> Result<Vec<Superblock>, Report> {
        let mut report = Report::new(self.source.clone());
        let Some(persistent) = &self.persistent else {
            report.error(
                Subject::File,
                None,
                None,
                "there is no [hierarchy]: only a persistent hierarchy has members to create",
            );
            return Err(report);
        };
        let nodes = open_all(self, &env, true, &mut report).await;
        let made = format(self, persistent, &nodes, &env, created, &mut report).await;
        close_all(&nodes, &mut report).await;
        if report.has_errors() {
            return Err(report);
        }
        if self.devices.iter().any(|device| device.kind.keeps) {
            let made = Hierarchy::begin(self.clone(), env, Begin::Format).await?;
            if let Err(e) = made.close().await {
                report.error(Subject::File, None, None, &format!("closing what was made: {e}"));
                return Err(report);
            }
        }
        Ok(made)
    }
}

/// The devices that are members, in the order of their numbers.
fn member_devices(plan: &Plan) -> Vec<&Device> {
    let mut devices: Vec<&Device> = match plan.persistent {
        Some(_) => plan.devices.iter().filter(|d| is_member(d.kind.name, &d.keys)).collect(),
        None => Vec::new(),
    };
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

/// Opens the devices below the members. What cannot be opened is reported. Unless they are to be created, missing
/// files are not.
async fn open_all(plan: &Plan, env: &Rc<dyn Env>, create: bool, report: &mut Report) -> Vec<Rc<Node>> {
    let mut nodes = Vec::new();
    let maker = Maker { plan, env, roster: None };
    for device in member_devices(plan) {
        let mut device = device.clone();
        if let (false, Some(keys)) = (create, device.keys.as_object_mut()) {
            keys.remove("size");
        }
        match maker.node(&device, Vec::new(), Begin::Open).await {
            Ok(node) => nodes.push(node),
            Err(e) if create => blame(plan, &device, &e, report),
            Err(e) => blame(plan, &device, &not_found(&e), report),
        }
    }
    nodes
}

/// A member that cannot be opened: unlike another file it is never made, and it may only have another path now.
fn not_found(e: &Error) -> Error {
    let message = match e.message().split_once(" (with size") {
        Some((what, rest)) => format!("{what}{}", rest.split_once(')').map_or("", |(_, rest)| rest)),
        None => e.message().to_owned(),
    };
    Error::new(e.kind(), format!("{message}. `lamina assemble` finds members wherever they are"))
}

async fn close_all(nodes: &[Rc<Node>], report: &mut Report) {
    for node in nodes {
        if let Err(e) = node.close().await {
            report.error(Subject::File, None, None, &format!("closing what was opened: {e}"));
        }
    }
}

/// Writes new superblocks, if all devices can have them.
async fn format(
    plan: &Plan,
    persistent: &Persistent,
    nodes: &[Rc<Node>],
    env: &Rc<dyn Env>,
    created: u64,
    report: &mut Report,
) -> Vec<Superblock> {
    let hierarchy = member::draw(&**env);
    let mut members = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        match Layout::of_size(node.geometry().size) {
            Err(message) => refuse(plan, &Refusal { device: Some(node.name().into()), message }, report),
            Ok(layout) => {
                let superblock = Superblock {
                    hierarchy,
                    hierarchy_name: persistent.name.clone(),
                    member: member::draw(&**env),
                    name: node.name().into(),
                    index: index as u32,
                    members: nodes.len() as u32,
                    generation: 1,
                    created,
                    clean: true,
                    layout,
                    description: persistent.description.clone(),
                };
                members.push((Rc::clone(node), superblock));
            }
        }
    }
    if report.has_errors() {
        return Vec::new();
    }
    if let Err(e) = superblock::write_all(&members).await {
        report.error(Subject::Hierarchy, None, None, &format!("its members cannot be written: {e}"));
    }
    members.into_iter().map(|(_, superblock)| superblock).collect()
}

/// Opens the members of a persistent plan and marks them as in use; nothing stays open after an error.
pub(crate) async fn assemble(
    plan: &Plan,
    persistent: &Persistent,
    env: &Rc<dyn Env>,
    report: &mut Report,
) -> Option<Rc<Roster>> {
    let nodes = open_all(plan, env, false, report).await;
    let opened = opened(plan, persistent, &nodes, report).await;
    if opened.is_none() {
        close_all(&nodes, report).await;
    }
    opened
}

async fn opened(
    plan: &Plan,
    persistent: &Persistent,
    nodes: &[Rc<Node>],
    report: &mut Report,
) -> Option<Rc<Roster>> {
    let accepted = judged(plan, persistent, nodes, report).await?;
    let mut members: Vec<_> = nodes.iter().cloned().zip(accepted.next).collect();
    if let Err(e) = write(nodes, &accepted.found, &accepted.chosen, &mut members).await {
        let message = format!("its members cannot be marked as in use: {e}");
        report.error(Subject::Hierarchy, None, None, &message);
        return None;
    }
    let members = members.into_iter().map(|(below, superblock)| Member::new(below, superblock)).collect();
    match Roster::new(members, accepted.latest) {
        Ok(roster) => Some(roster),
        Err(e) => {
            report.error(Subject::Hierarchy, None, None, e.message());
            None
        }
    }
}

/// Members that belong together.
struct Accepted {
    /// What was found on each, and which of it counts.
    found: Vec<Found>,
    chosen: Vec<Superblock>,
    /// What each is to carry from now on.
    next: Vec<Superblock>,
    /// The highest generation that any has had.
    latest: u64,
}

/// Everything that opening writes: first what was chosen is made whole everywhere, then comes what is new.
async fn write(
    nodes: &[Rc<Node>],
    found: &[Found],
    chosen: &[Superblock],
    next: &mut [(Rc<Node>, Superblock)],
) -> lamina_block::Result<()> {
    for ((node, found), chosen) in nodes.iter().zip(found).zip(chosen) {
        member::settle(node, found, chosen).await?;
    }
    member::take_into_use(next).await
}

/// What each member is to carry, if they belong together and say what the file says.
async fn judged(
    plan: &Plan,
    persistent: &Persistent,
    nodes: &[Rc<Node>],
    report: &mut Report,
) -> Option<Accepted> {
    if report.has_errors() {
        return None;
    }
    let mut candidates = Vec::new();
    for node in nodes {
        candidates.push(Candidate { device: node.name().into(), found: superblock::read(node).await });
    }
    let assembly = match member::judge(&persistent.name, &candidates) {
        Ok(assembly) => assembly,
        Err(refusals) => {
            refusals.iter().for_each(|refusal| refuse(plan, refusal, report));
            return None;
        }
    };
    let next = compared(persistent, &assembly, report)?;
    for note in &assembly.notes {
        let at = keys::place(&plan.source, &note.device, "path");
        report.warning(Subject::Device(note.device.clone()), Some("path"), at, &note.message);
    }
    if !assembly.clean {
        report.warning(Subject::Hierarchy, None, None, "was not closed in order the last time");
    }
    let found = candidates.into_iter().map(|candidate| candidate.found).collect();
    let latest = next.iter().map(|s| s.generation).fold(assembly.latest, u64::max);
    Some(Accepted { found, chosen: assembly.members, next, latest })
}

/// The superblocks with the description of the file. Exports may have changed: that is a change of the hierarchy, and
/// raises its generation. Anything else is refused.
fn compared(persistent: &Persistent, assembly: &Assembly, report: &mut Report) -> Option<Vec<Superblock>> {
    let mut members = assembly.members.clone();
    let described = members.first()?.description.clone();
    let (theirs, kept) = match words::split(&described) {
        Ok(parts) => parts,
        Err(message) => {
            report.error(Subject::Hierarchy, None, None, &message);
            return None;
        }
    };
    let ours = &persistent.description;
    if ours == theirs {
        return Some(members);
    }
    if description::stored(ours) != description::stored(theirs) {
        let what = description::difference(description::stored(ours), description::stored(theirs));
        let message = format!(
            "differs from what its members carry: {}. `lamina assemble` prints the file that they carry",
            what.unwrap_or_else(|| "the same lines stand in another place".into())
        );
        report.error(Subject::Hierarchy, None, None, &message);
        return None;
    }
    for member in &mut members {
        member.generation = assembly.latest + 1;
        member.description = words::join(ours, &kept);
    }
    let message =
        format!("its exports have changed: its members carry generation {} now", assembly.latest + 1);
    report.warning(Subject::Hierarchy, None, None, &message);
    Some(members)
}

fn refuse(plan: &Plan, refusal: &Refusal, report: &mut Report) {
    match &refusal.device {
        Some(device) => {
            let at = keys::place(&plan.source, device, "path");
            report.error(Subject::Device(device.clone()), Some("path"), at, &refusal.message);
        }
        None => report.error(Subject::Hierarchy, None, None, &refusal.message),
    }
}
