//! The members of a persistent hierarchy: planning and making them, and opening the devices below.

use crate::assemble::refuse;
use crate::device::Device;
use crate::hierarchy::{Hierarchy, How, Maker, blame};
use crate::persistent::{Persistent, is_member};
use crate::plan::Plan;
use crate::report::{Report, Subject};
use lamina_block::{Begin, Env, Error, ErrorKind, Node};
use lamina_metadata::member::records::{self, Trailer};
use lamina_metadata::member::{self, Refusal};
use lamina_metadata::superblock::{self, DESCRIPTION_MAX, Layout, Superblock};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

/// A member before it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPlan {
    /// The name of its device.
    pub device: String,
    /// Its path.
    pub path: PathBuf,
    /// The size in bytes of the file to make, if none exists.
    pub size: Option<u64>,
}

impl Plan {
    /// The devices that `lamina create` would make members, in the order of their numbers; empty unless the plan is
    /// persistent.
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

    /// Makes the members, and the state of the layers over them: files that do not exist are created, and superblocks
    /// with a new hierarchy's identity are written. Earlier data on the devices is not looked at. `created` is the time
    /// in seconds since 1970.
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
                report.failed(e.kind(), Subject::File, None, None, &format!("closing the new devices: {e}"));
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

/// Opens what is below the members. Unless they are to be created, missing files are not. Each device that could not be
/// opened comes with the reason.
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

/// A member that cannot be opened: unlike another file a member is never made, and its path may have changed.
fn not_found(e: &Error) -> Error {
    let message = match e.message().split_once(" (the key size") {
        Some((what, rest)) => format!("{what}{}", rest.split_once(')').map_or("", |(_, rest)| rest)),
        None => e.message().to_owned(),
    };
    let advice = match e.kind() {
        // It was found, and is another user's.
        ErrorKind::ReadOnly => "The user that runs this has to read and write it: `ls -l` shows whose it is",
        _ => "`lamina assemble` finds members wherever they are",
    };
    Error::new(e.kind(), format!("{message}. {advice}"))
}

pub(crate) async fn close_all(nodes: &[Rc<Node>], report: &mut Report) {
    for node in nodes {
        if let Err(e) = node.close().await {
            report.failed(e.kind(), Subject::File, None, None, &format!("closing the opened devices: {e}"));
        }
    }
}

/// The description that new members carry, with the folder of relative paths if there is space.
fn described(persistent: &Persistent) -> String {
    let trailer = Trailer { way: persistent.way.to_record(), ..Trailer::default() };
    let all = records::join(&persistent.description, &trailer);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_helps_depends_on_the_failure() {
        let told = |kind, message: &str| not_found(&Error::new(kind, message)).message().to_owned();
        let missing = "there is no a.img (the key size makes one)";
        let gone = told(ErrorKind::Offline, missing);
        assert_eq!(gone, "there is no a.img. `lamina assemble` finds members wherever they are");
        let refused = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let foreign =
            told(Error::from(refused).kind(), "a.img cannot be opened: Permission denied (os error 13)");
        assert!(foreign.ends_with("`ls -l` shows whose it is") && !foreign.contains("assemble"), "{foreign}");
    }
}
