//! The difference between a hierarchy at work and a file that describes its next state.
//!
//! Devices are the same if they have the same name. A device whose kind, keys or `over` differ gets another layer under
//! the same node; a new device is created; a device that is gone is deleted. Clients stay where they are: an export
//! that stands on another device than before is pointed there.

use crate::device::Device;
use crate::export::Export;
use crate::local;
use crate::plan::Plan;
use crate::report::{Report, Subject};
use lamina_block::Outside;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

/// One step of a change. They are told in the order in which they are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An evicted member is opened, and taken in again if the device is there.
    Return {
        /// Its name.
        device: String,
    },
    /// A device is opened.
    Create {
        /// Its name.
        device: String,
        /// Its kind.
        kind: &'static str,
        /// The devices below.
        over: Vec<String>,
    },
    /// A device gets another layer, other keys, or other devices below.
    Exchange {
        /// Its name.
        device: String,
        /// The devices below until now.
        before: Vec<String>,
        /// The devices below.
        after: Vec<String>,
    },
    /// An export stands on another device.
    Point {
        /// Its name.
        export: String,
        /// The device before.
        before: String,
        /// The device after.
        after: String,
    },
    /// An export is opened.
    Open {
        /// Its name.
        export: String,
        /// The devices below.
        device: String,
    },
    /// An export is closed. The export must have no clients.
    Close {
        /// Its name.
        export: String,
    },
    /// A device is flushed and closed.
    Delete {
        /// Its name.
        device: String,
    },
}

impl Step {
    /// The device that gets another layer, if this step does that.
    pub(crate) fn exchanged(&self) -> Option<&str> {
        match self {
            Step::Exchange { device, .. } => Some(device),
            Step::Return { .. }
            | Step::Create { .. }
            | Step::Point { .. }
            | Step::Open { .. }
            | Step::Close { .. }
            | Step::Delete { .. } => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |over: &[String]| {
            if over.is_empty() { String::new() } else { format!(" over {}", over.join(", ")) }
        };
        match self {
            Step::Return { device } => write!(f, "return    {device}: taken in again, if it is there"),
            Step::Create { device, kind, over } => write!(f, "create    {device}: {kind}{}", on(over)),
            Step::Exchange { device, before, after } if before == after => {
                write!(f, "exchange  {device}: other keys")
            }
            Step::Exchange { device, before, after } => {
                write!(f, "exchange  {device}:{}, before{}", on(after), on(before))
            }
            Step::Point { export, before, after } => {
                write!(f, "point     export {export}: to {after}, before {before}")
            }
            Step::Open { export, device } => write!(f, "open      export {export}: on {device}"),
            Step::Close { export } => write!(f, "close     export {export}"),
            Step::Delete { device } => write!(f, "delete    {device}"),
        }
    }
}

/// The steps from `old` to `new`, or why they cannot be taken while clients are attached.
pub(crate) fn between(old: &Plan, new: &Plan) -> Result<Vec<Step>, Report> {
    let mut report = Report::new(new.source.clone());
    let before: HashMap<&str, &Device> = old.devices.iter().map(|d| (&*d.name, d)).collect();
    let mut steps = Vec::new();
    for device in &new.devices {
        match before.get(&*device.name) {
            None => steps.push(Step::Create {
                device: device.name.clone(),
                kind: device.kind.name,
                over: device.over.clone(),
            }),
            Some(was) if same(was, device) && !shares_changed(device, &steps) => {}
            Some(was) => {
                if is_sink(was) || is_sink(device) {
                    let subject = Subject::Device(device.name.clone());
                    let message = "is at work with other keys, and a sink keeps its own: give the new one another \
                                   name, and let the devices over it stand on that";
                    report.error(subject, None, Some(device.header.clone()), message);
                }
                rearranged(old, new, was, device, &mut report);
                steps.push(Step::Exchange {
                    device: device.name.clone(),
                    before: was.over.clone(),
                    after: device.over.clone(),
                });
            }
        }
    }
    hierarchies(old, new, &mut report);
    exports(old, new, &mut steps, &mut report);
    let after: HashSet<&str> = new.devices.iter().map(|d| &*d.name).collect();
    let gone = old.devices.iter().rev().filter(|d| !after.contains(&*d.name));
    steps.extend(gone.map(|d| Step::Delete { device: d.name.clone() }));
    report.sort();
    if report.has_errors() { Err(report) } else { Ok(steps) }
}

fn same(a: &Device, b: &Device) -> bool {
    a.kind.name == b.kind.name
        && a.over == b.over
        && (a.has_metadata, &a.leaving) == (b.has_metadata, &b.leaving)
        && same_keys(a, b)
}

/// Paths begin in the folder of the hierarchy file.
fn same_keys(a: &Device, b: &Device) -> bool {
    let split = |device: &Device| {
        let mut keys = device.keys.clone();
        let mut place = |outside: &Outside| {
            let value = outside.key.split('.').try_fold(&mut keys, |at, key| at.get_mut(key))?;
            let place = local::absolute(value.as_str()?, outside, &device.base);
            value.take();
            Some(PathBuf::from(place))
        };
        let places: Vec<_> = device.kind.traits.outside.iter().map(&mut place).collect();
        (places, keys)
    };
    split(a) == split(b)
}

/// True for a device that shares state with a device that gets another layer.
fn shares_changed(device: &Device, steps: &[Step]) -> bool {
    let changed = |below: &String| steps.iter().any(|step| step.exchanged() == Some(below));
    device.kind.traits.shares && device.over.iter().any(changed)
}

/// The changes to the children of a device that stays.
pub(crate) struct Edges {
    /// Lost children, with their data.
    pub lost: Vec<String>,
    /// New children, which have none of the device's data.
    pub gained: Vec<String>,
    /// Replaced children, whose successors show the same data: a layer is inserted or removed.
    pub renamed: Vec<(String, String)>,
}

impl Edges {
    pub fn of(old: &Plan, new: &Plan, was: &Device, is: &Device) -> Edges {
        let mut edges = Edges { lost: Vec::new(), gained: Vec::new(), renamed: Vec::new() };
        edges.gained.extend(is.over.iter().filter(|name| !was.over.contains(name)).cloned());
        for name in was.over.iter().filter(|name| !is.over.contains(name)) {
            let same = |other: &String| stands_on(new, other, name) || stands_on(old, name, other);
            match edges.gained.iter().position(same) {
                Some(at) => edges.renamed.push((name.clone(), edges.gained.remove(at))),
                None => edges.lost.push(name.clone()),
            }
        }
        edges
    }

    /// The name of a child in the new plan.
    pub fn now<'a>(&'a self, name: &'a str) -> &'a str {
        self.renamed.iter().find(|(was, _)| was == name).map_or(name, |(_, is)| is)
    }
}

/// True if `plan` has a device only until its data has been moved away.
pub(crate) fn is_leaving(plan: &Plan, name: &str) -> bool {
    plan.devices.iter().flat_map(|d| &d.leaving).any(|top| top == name || stands_on(plan, top, name))
}

/// True if `top` stands on `below`, directly or not.
fn stands_on(plan: &Plan, top: &str, below: &str) -> bool {
    let device = plan.devices.iter().find(|d| d.name == top);
    device.is_some_and(|d| d.over.iter().any(|child| child == below || stands_on(plan, child, below)))
}

/// Reports what a device that remembers where its data is cannot become: its data would be taken for other data.
fn rearranged(old: &Plan, new: &Plan, was: &Device, is: &Device, report: &mut Report) {
    if !was.kind.traits.keeps && !is.kind.traits.keeps {
        return;
    }
    let mut refuse = |message: &str| {
        report.error(Subject::Device(is.name.clone()), None, Some(is.header.clone()), message);
    };
    if was.kind.name != is.kind.name {
        return refuse("would get another type, which does not find the data: give the new one another name");
    }
    let edges = Edges::of(old, new, was, is);
    let metadata = |d: &Device| if d.has_metadata { d.over.last().cloned() } else { None };
    if metadata(was).map(|name| edges.now(&name).to_owned()) != metadata(is) {
        return refuse("would look for its metadata elsewhere: metadata does not move");
    }
    if new.persistent.is_some() {
        return;
    }
    let stay: Vec<&str> = was.over.iter().map(|name| edges.now(name)).collect();
    let stay: Vec<&str> = stay.into_iter().filter(|name| is.over.iter().any(|n| n == name)).collect();
    let after: Vec<&str> = is.over.iter().map(String::as_str).filter(|name| stay.contains(name)).collect();
    if stay != after {
        return refuse("has the same devices below in another order: its data would be taken for other data");
    }
    let at_end = is.over[stay.len().min(is.over.len())..] == edges.gained[..];
    if !edges.lost.is_empty() || !(edges.gained.is_empty() || is.kind.traits.appends && at_end) {
        refuse(
            "would have to move data, and remember its new place: only a persistent hierarchy can ([hierarchy])",
        );
    }
    if was.keys != is.keys {
        refuse(
            "has other keys, which a device that remembers something takes over only in a persistent hierarchy \
             ([hierarchy])",
        );
    }
}

fn is_sink(device: &Device) -> bool {
    *device.kind.children.end() == 0
}

/// The keys of `[hierarchy]` never change.
fn hierarchies(old: &Plan, new: &Plan, report: &mut Report) {
    let mut refuse = |message: &str| report.error(Subject::Hierarchy, None, None, message);
    match (&old.persistent, &new.persistent) {
        (None, None) => {}
        (Some(was), Some(is)) if was.name != is.name => refuse("has another name while it is served"),
        (Some(was), Some(is)) if was.level != is.level => {
            refuse("has another consistency than its devices were made with")
        }
        (Some(_), Some(_)) => {}
        (None, Some(_)) => refuse("is served without [hierarchy]: only `lamina create` makes it persistent"),
        (Some(_), None) => refuse("is persistent: the file must have its [hierarchy]"),
    }
}

/// The changes to the exports. An export that stays may get another device; its other keys stay as long as it is
/// served.
fn exports(old: &Plan, new: &Plan, steps: &mut Vec<Step>, report: &mut Report) {
    for export in &new.exports {
        match old.exports.iter().find(|e| e.name == export.name) {
            None => steps.push(Step::Open { export: export.name.clone(), device: export.device.clone() }),
            Some(was) if !same_but_device(was, export) => {
                let message = "is served with other keys: only its device can change while it is served";
                let subject = Subject::Export(export.name.clone());
                report.error(subject, None, Some(export.places.header.clone()), message);
            }
            Some(was) if was.device != export.device => steps.push(Step::Point {
                export: export.name.clone(),
                before: was.device.clone(),
                after: export.device.clone(),
            }),
            Some(_) => {}
        }
    }
    let gone = old.exports.iter().filter(|was| new.exports.iter().all(|e| e.name != was.name));
    steps.extend(gone.map(|export| Step::Close { export: export.name.clone() }));
}

fn same_but_device(a: &Export, b: &Export) -> bool {
    let plain = |e: &Export| Export { device: String::new(), places: Default::default(), ..e.clone() };
    plain(a) == plain(b)
}
