//! What lies between a hierarchy at work and what a file wants it to be.
//!
//! Devices are the same if they have the same name. One whose kind, keys or `over` differ gets another layer under the
//! same node; one that is new is created; one that is gone is deleted. Clients stay where they are: an export that
//! stands on another device than before is pointed there.

use crate::device::Device;
use crate::export::Export;
use crate::plan::Plan;
use crate::report::{Report, Subject};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// One step of a change. They are told in the order in which they are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A device is opened.
    Create {
        /// Its name.
        device: String,
        /// Its kind.
        kind: &'static str,
        /// What it stands on.
        over: Vec<String>,
    },
    /// A device gets another layer, or its layer other keys, or it stands on others.
    Exchange {
        /// Its name.
        device: String,
        /// What it stood on.
        before: Vec<String>,
        /// What it stands on.
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
            Step::Create { .. } | Step::Point { .. } | Step::Delete { .. } => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |over: &[String]| {
            if over.is_empty() { String::new() } else { format!(" over {}", over.join(", ")) }
        };
        match self {
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
        && a.has_metadata == b.has_metadata
        && a.keys == b.keys
}

/// True for a device that shares the state of one that gets another layer.
fn shares_changed(device: &Device, steps: &[Step]) -> bool {
    let changed = |below: &String| steps.iter().any(|step| step.exchanged() == Some(below));
    device.kind.shares && device.over.iter().any(changed)
}

fn is_sink(device: &Device) -> bool {
    *device.kind.children.end() == 0
}

/// What `[hierarchy]` says is for ever.
fn hierarchies(old: &Plan, new: &Plan, report: &mut Report) {
    let mut refuse = |message: &str| report.error(Subject::Hierarchy, None, None, message);
    match (&old.persistent, &new.persistent) {
        (None, None) => {}
        (Some(was), Some(is)) if was.name != is.name => refuse("has another name while it is served"),
        (Some(was), Some(is)) if was.level != is.level => {
            refuse("has another consistency than what its devices were made with")
        }
        (Some(_), Some(_)) => {}
        (None, Some(_)) => refuse("is served without [hierarchy]: only `lamina create` makes it persistent"),
        (Some(_), None) => refuse("is persistent: the file must have its [hierarchy]"),
    }
}

/// The exports must be the same ones, each perhaps on another device.
fn exports(old: &Plan, new: &Plan, steps: &mut Vec<Step>, report: &mut Report) {
    for export in &new.exports {
        let mut wrong = |message: &str| {
            let subject = Subject::Export(export.name.clone());
            report.error(subject, None, Some(export.places.header.clone()), message);
        };
        match old.exports.iter().find(|e| e.name == export.name) {
            None => wrong("is new: an export cannot be added yet while the others are served"),
            Some(was) if !same_but_device(was, export) => {
                wrong("is served with other keys: only its device can change while clients are attached");
            }
            Some(was) if was.device != export.device => steps.push(Step::Point {
                export: export.name.clone(),
                before: was.device.clone(),
                after: export.device.clone(),
            }),
            Some(_) => {}
        }
    }
    for was in old.exports.iter().filter(|was| new.exports.iter().all(|e| e.name != was.name)) {
        let message =
            format!("export {:?} is served, and is not in the file: it cannot be taken away yet", was.name);
        report.error(Subject::File, None, None, &message);
    }
}

fn same_but_device(a: &Export, b: &Export) -> bool {
    let plain = |e: &Export| Export { device: String::new(), places: Default::default(), ..e.clone() };
    plain(a) == plain(b)
}
