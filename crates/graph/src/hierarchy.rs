//! A plan built: its devices opened, each over those it stands on.
//!
//! Devices are opened bottom-up and closed top-down. If one cannot be opened, those that do not depend on it are
//! tried all the same, so that everything that is wrong is said at once, and then all are closed again: nothing stays
//! open that nobody holds.

use crate::device::Device;
use crate::export::Export;
use crate::keys;
use crate::plan::Plan;
use crate::report::{Report, Subject};
use lamina_block::{Build, Env, Error, Geometry, KeyError, Node, Result};
use std::collections::HashMap;
use std::rc::Rc;

/// Devices at work, and what is exported of them.
pub struct Hierarchy {
    /// Bottom-up.
    nodes: Vec<Rc<Node>>,
    /// What each device stands on, and its place in `nodes`.
    devices: HashMap<String, (usize, Vec<String>)>,
    exports: Vec<Export>,
}

impl std::fmt::Debug for Hierarchy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.tree())
    }
}

impl Hierarchy {
    /// Opens the devices of `plan`. Errors name the device, and the key if the layer's message says which.
    pub async fn build(plan: Plan, env: Rc<dyn Env>) -> std::result::Result<Hierarchy, Report> {
        let mut report = Report::new(plan.source.clone());
        let mut built: HashMap<String, Rc<Node>> = HashMap::new();
        let mut nodes = Vec::new();
        for device in &plan.devices {
            let children: Option<Vec<Rc<Node>>> =
                device.over.iter().map(|name| built.get(name).cloned()).collect();
            // A device over one that failed has nothing to say of its own.
            let Some(children) = children else { continue };
            match open(&plan, device, children, &env).await {
                Ok(node) => {
                    built.insert(device.name.clone(), Rc::clone(&node));
                    nodes.push(node);
                }
                Err(e) => blame(&plan, device, &e, &mut report),
            }
        }
        let devices = plan.devices.into_iter().enumerate().map(|(i, d)| (d.name, (i, d.over))).collect();
        let hierarchy = Hierarchy { nodes, devices, exports: plan.exports };
        if !report.has_errors() {
            return Ok(hierarchy);
        }
        if let Err(e) = hierarchy.close().await {
            report.error(Subject::File, None, None, &format!("closing what was opened: {e}"));
        }
        report.sort();
        Err(report)
    }

    /// The device called `name`.
    pub fn node(&self, name: &str) -> Option<Rc<Node>> {
        self.devices.get(name).and_then(|(i, _)| self.nodes.get(*i)).map(Rc::clone)
    }

    /// All devices, bottom-up: each comes after all that it stands on.
    pub fn nodes(&self) -> &[Rc<Node>] {
        &self.nodes
    }

    /// The names of the devices that `name` stands on, in order; empty for a sink, and if there is no such device.
    pub fn children(&self, name: &str) -> &[String] {
        self.devices.get(name).map_or(&[], |(_, over)| over)
    }

    /// What is exported, in the order of the file.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Takes over changed sizes, from the bottom up: a device that grew makes those over it look again.
    pub fn refresh(&self) {
        self.nodes.iter().for_each(|node| node.refresh());
    }

    /// Drains, flushes and closes every device, from the top down. The first error is returned; what comes after it
    /// is closed all the same.
    pub async fn close(&self) -> Result<()> {
        let mut result = Ok(());
        for node in self.nodes.iter().rev() {
            let closed = node.close().await;
            result = result.and(closed);
        }
        result
    }
}

async fn open(plan: &Plan, device: &Device, children: Vec<Rc<Node>>, env: &Rc<dyn Env>) -> Result<Rc<Node>> {
    let failed = |KeyError { path, message }| Error::invalid(format!("{path}: {message}"));
    let keys = device.kind.parse(&device.keys).map_err(failed)?;
    let with = Build { name: device.name.clone(), env: Rc::clone(env), children, base: plan.base.clone() };
    let layer = keys.build(with).await?;
    let node = Node::new(&device.name, device.kind.name, Rc::clone(env), layer);
    match check(&node.geometry()) {
        Ok(()) => Ok(node),
        Err(e) => {
            // Why it cannot be used is the news; what closing it says is not.
            let _ = node.close().await;
            Err(e)
        }
    }
}

/// Every layer relies on these; they come from disks and peers as well as from code.
fn check(g: &Geometry) -> Result<()> {
    let power = |n: u32| n.is_power_of_two();
    if !power(g.block) || !(512..=64 << 10).contains(&g.block) {
        return Err(Error::unsupported(format!(
            "blocks of {} bytes: they have 512 to 65536, a power of two",
            g.block
        )));
    }
    if !power(g.optimal) || g.optimal < g.block {
        return Err(Error::unsupported(format!(
            "an optimal unit of {} bytes over blocks of {}",
            g.optimal, g.block
        )));
    }
    if !g.size.is_multiple_of(g.block as u64) || g.size > i64::MAX as u64 {
        return Err(Error::unsupported(format!(
            "{} bytes cannot be a size in blocks of {}",
            g.size, g.block
        )));
    }
    Ok(())
}

/// Reports that a device could not be opened. A layer that knows which key does not fit begins its message with it
/// (`size: ...`, `rules[2].count: ...`); the problem is then reported where that key stands.
fn blame(plan: &Plan, device: &Device, e: &Error, report: &mut Report) {
    let subject = Subject::Device(device.name.clone());
    let message = match e.device() {
        Some(other) if other != device.name => e.to_string(),
        _ => e.message().to_owned(),
    };
    let (key, message) = match message.split_once(": ") {
        Some((path, rest)) if keys::is_key_of(&device.kind, path) => (Some(path), rest),
        _ => (None, message.as_str()),
    };
    let at = key.and_then(|key| keys::place(&plan.source, &device.name, key));
    report.error(subject, key, Some(at.unwrap_or(device.header.clone())), message);
}
