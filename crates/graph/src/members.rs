//! The members of a persistent hierarchy: planned, made, and what is below them opened.

use crate::assemble::refuse;
use crate::device::Device;
use crate::hierarchy::{Hierarchy, How, Maker, blame};
use crate::persistent::{Persistent, is_member};
use crate::plan::Plan;
use crate::report::{Report, Subject};
use lamina_block::{Begin, Env, Error, Node};
use lamina_metadata::member::records::{self, Kept};
use lamina_metadata::member::{self, Refusal};
use lamina_metadata::superblock::{self, DESCRIPTION_MAX, Layout, Superblock};
use std::collections::BTreeMap;
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
        let (nodes, failed) = open_all(self, &env, true).await;
        for device in self.devices.iter().filter(|device| failed.contains_key(&device.name)) {
            blame(self, device, &failed[&device.name], &mut report);
        }
        let made = format(self, persistent, &nodes, &env, created, &mut report).await;
        close_all(&nodes, &mut report).await;
        if report.has_errors() {
            return Err(report);
        }
        if self.devices.iter().any(|device| device.kind.traits.keeps) {
            let made =
                Hierarchy::begin(self.clone(), env, How { begin: Begin::Format, degraded: false }).await?;
            if let Err(e) = made.close().await {
                report.failed(e.kind(), Subject::File, None, None, &format!("closing what was made: {e}"));
                return Err(report);
            }
        }
        Ok(made)
    }
}

/// The devices that are members, in the order of their numbers.
pub(crate) fn member_devices(plan: &Plan) -> Vec<&Device> {
    let mut devices: Vec<&Device> = match plan.persistent {
        Some(_) => plan.devices.iter().filter(|d| is_member(&d.kind, &d.keys)).collect(),
        None => Vec::new(),
    };
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

/// Opens what is below the members. Unless they are to be created, missing files are not. What could not be opened comes
/// back with why.
pub(crate) async fn open_all(
    plan: &Plan,
    env: &Rc<dyn Env>,
    create: bool,
) -> (Vec<Rc<Node>>, BTreeMap<String, Error>) {
    let (mut nodes, mut failed) = (Vec::new(), BTreeMap::new());
    for device in member_devices(plan) {
        match open(plan, device, env, create).await {
            Ok(node) => nodes.push(node),
            Err(e) => drop(failed.insert(device.name.clone(), e)),
        }
    }
    (nodes, failed)
}

/// Opens what is below a member.
pub(crate) async fn open(
    plan: &Plan,
    device: &Device,
    env: &Rc<dyn Env>,
    create: bool,
) -> Result<Rc<Node>, Error> {
    let mut device = device.clone();
    if let (false, Some(keys)) = (create, device.keys.as_object_mut()) {
        keys.remove("size");
    }
    let opened = Maker { plan, env, roster: None }.node(&device, Vec::new(), Begin::Open).await;
    if create { opened } else { opened.map_err(|e| not_found(&e)) }
}

/// A member that cannot be opened: unlike another file it is never made, and it may only have another path now.
fn not_found(e: &Error) -> Error {
    let message = match e.message().split_once(" (with size") {
        Some((what, rest)) => format!("{what}{}", rest.split_once(')').map_or("", |(_, rest)| rest)),
        None => e.message().to_owned(),
    };
    Error::new(e.kind(), format!("{message}. `lamina assemble` finds members wherever they are"))
}

pub(crate) async fn close_all(nodes: &[Rc<Node>], report: &mut Report) {
    for node in nodes {
        if let Err(e) = node.close().await {
            report.failed(e.kind(), Subject::File, None, None, &format!("closing what was opened: {e}"));
        }
    }
}

/// What new members carry: where relative paths begin as well, if there is room for it.
fn described(persistent: &Persistent) -> String {
    let kept = Kept { way: persistent.way.kept(), ..Kept::default() };
    let all = records::join(&persistent.description, &kept);
    if all.len() > DESCRIPTION_MAX { persistent.description.clone() } else { all }
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
    let description = described(persistent);
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
                    description: description.clone(),
                };
                members.push((Rc::clone(node), superblock));
            }
        }
    }
    if report.has_errors() {
        return Vec::new();
    }
    if let Err(e) = superblock::write_new(&members).await {
        let message = format!("its members cannot be written: {e}");
        report.failed(e.kind(), Subject::Hierarchy, None, None, &message);
    }
    members.into_iter().map(|(_, superblock)| superblock).collect()
}
