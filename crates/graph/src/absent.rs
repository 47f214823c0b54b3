//! Which devices are there if some members are not.
//!
//! A device is absent if more of the devices that its data is on are absent than it survives
//! ([`Config::survives`](lamina_block::Config::survives), not counting those that it
//! [`may_miss`](lamina_block::Config::may_miss)), or the one that its metadata is on. A hierarchy survives an absence
//! if every exported device is still there.

use crate::device::Device;
use crate::plan::Plan;
use crate::report::quoted;
use lamina_block::{Error, Node};
use lamina_metadata::member::Survives;
use std::collections::HashSet;
use std::rc::Rc;

/// The devices of `plan` that are absent without `members`, these included.
pub(crate) fn absent<'a>(plan: &'a Plan, members: &[&str]) -> HashSet<&'a str> {
    let mut absent: HashSet<&str> = HashSet::new();
    for device in &plan.devices {
        let gone = |name: &String| absent.contains(name.as_str());
        if members.contains(&device.name.as_str()) || !stands(device, |at| gone(&device.over[at])) {
            absent.insert(&device.name);
        }
    }
    absent
}

/// True if a device is there when the devices of its `over` that `gone` names are not.
fn stands(device: &Device, gone: impl Fn(usize) -> bool) -> bool {
    let data = device.over.len() - usize::from(device.has_metadata);
    let counts = |at: &usize| !device.may_miss.contains(at) && gone(*at);
    (0..data).filter(counts).count() <= device.survives && !(data..device.over.len()).any(gone)
}

/// The reason why a device over `children` is absent; `None` if the device is there.
pub(crate) fn why(device: &Device, children: &[Rc<Node>]) -> Option<Error> {
    if stands(device, |at| children[at].is_absent()) {
        return None;
    }
    let gone = children.iter().filter(|child| child.is_absent()).map(|child| quoted(child.name()));
    let gone: Vec<String> = gone.collect();
    Some(Error::offline(format!("the device stands on {}, which is absent", gone.join(" and "))))
}

/// Whether the hierarchy of `plan` survives that members are evicted: every exported device is there. Without exports,
/// the devices on which no other device stands count.
pub(crate) fn survives(plan: &Plan) -> Survives {
    let plan = plan.clone();
    Rc::new(move |members: &[&str]| {
        let absent = absent(&plan, members);
        match plan.exports.is_empty() {
            false => plan.exports.iter().all(|export| !absent.contains(export.device.as_str())),
            true => tops(&plan).all(|name| !absent.contains(name)),
        }
    })
}

/// True if the loss of `devices` loses nothing that is not `outside` already: no exported device, and no device on
/// which no other stands.
pub(crate) fn nothing_more(plan: &Plan, outside: &HashSet<String>, devices: &[&str]) -> bool {
    let absent = absent(plan, devices);
    let exported = plan.exports.iter().map(|export| export.device.as_str());
    tops(plan).chain(exported).all(|name| !absent.contains(name) || outside.contains(name))
}

/// The devices that no other one stands on.
fn tops(plan: &Plan) -> impl Iterator<Item = &str> {
    let below: HashSet<&String> = plan.devices.iter().flat_map(|device| &device.over).collect();
    let tops = plan.devices.iter().filter(move |device| !below.contains(&device.name));
    tops.map(|device| device.name.as_str())
}
