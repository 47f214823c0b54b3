//! A hierarchy at work becomes what another plan says, under load.
//!
//! ```text
//!   open what is new, beside what is at work            may fail: closed again, nothing has changed
//!   flush what changes, while it is still at work       may fail: nothing has changed
//!   hold and flush what changes, from the top down      may fail: let go, nothing has changed
//!   exchange the layers, let go                         cannot fail
//!   close what nobody stands on any more, top down      what goes wrong is said; the change has been made
//! ```
//!
//! While nodes are held their requests wait; none is lost, none fails. From the top down, because a held node must
//! still be able to finish what is below it. All that changes is held before anything is exchanged, so that no request
//! ever sees a graph that is neither the old nor the new one.
//!
//! Not done here: emptying a layer that keeps data which its children do not have. Whoever takes it away has it write
//! them back first.

use crate::change::{self, Step};
use crate::door::Door;
use crate::hierarchy::{self, Built, Hierarchy};
use crate::plan::Plan;
use crate::report::{Report, Subject};
use lamina_block::{Bytes, Env, Error, Geometry, Io, Made, Node};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A node and the layer that it gets.
struct Exchange {
    node: Rc<Node>,
    kind: &'static str,
    layer: Made,
}

impl Hierarchy {
    /// What has to be done so that this hierarchy becomes `plan`, or why it cannot be done while clients are attached.
    pub fn steps(&self, plan: &Plan) -> Result<Vec<Step>, Report> {
        if self.plan.persistent.is_some() || plan.persistent.is_some() {
            let mut report = Report::new(plan.source.clone());
            let message = "a persistent hierarchy cannot be changed while it is served: what its members carry would not follow";
            report.error(Subject::Hierarchy, None, None, message);
            return Err(report);
        }
        change::between(&self.plan, plan)
    }

    /// Becomes what `plan` says. The hierarchy that comes back takes the place of this one; both share the devices that
    /// stay. After an error nothing has changed. What could not be closed well afterwards comes with it.
    pub async fn change(&self, plan: Plan, env: &Rc<dyn Env>) -> Result<(Hierarchy, Vec<Error>), Report> {
        let steps = self.steps(&plan)?;
        let mut report = Report::new(plan.source.clone());
        let mut exchanges = Vec::new();
        let mut built = self.prepare(&plan, &steps, env, &mut exchanges, &mut report).await;
        if !report.has_errors() {
            self.point(&plan, &steps, &built, &mut exchanges, &mut report);
        }
        let old = if report.has_errors() { None } else { self.switch(&exchanges, &mut report).await };
        let Some(old) = old else {
            self.give_up(built, exchanges).await;
            report.sort();
            return Err(report);
        };
        let mut wrong = Vec::new();
        for layer in old {
            wrong.extend(layer.close().await.err());
        }
        let stays = |node: &Rc<Node>| built.by_name.contains_key(node.name());
        let gone: Vec<_> = self.nodes.iter().filter(|node| !stays(node)).cloned().collect();
        wrong.extend(hierarchy::close(&gone).await.err());
        built.nodes = plan.devices.iter().map(|d| Rc::clone(&built.by_name[&d.name])).collect();
        let changed = Hierarchy::of(plan, built, &self.doors, env);
        changed.refresh();
        Ok((changed, wrong))
    }

    /// Opens the new devices, and makes the layers that others get.
    async fn prepare(
        &self,
        plan: &Plan,
        steps: &[Step],
        env: &Rc<dyn Env>,
        exchanges: &mut Vec<Exchange>,
        report: &mut Report,
    ) -> Built {
        let changes: HashSet<&str> = steps.iter().filter_map(Step::exchanged).collect();
        let mut built = Built::default();
        for device in &plan.devices {
            let Some(children) = built.children(device) else { continue };
            let done = match self.node(&device.name) {
                None => hierarchy::open(plan, device, children, env).await,
                Some(node) if !changes.contains(&*device.name) => Ok(node),
                Some(node) => hierarchy::make(plan, device, children, env).await.and_then(|layer| {
                    let fits = fits(&node.geometry(), &layer.geometry());
                    // Also if it does not fit: what is among them is closed when the change is given up.
                    exchanges.push(Exchange { node: Rc::clone(&node), kind: device.kind.name, layer });
                    fits.map(|()| node)
                }),
            };
            match done {
                Ok(node) => built.add(node),
                Err(e) => hierarchy::blame(plan, device, &e, report),
            }
        }
        built
    }

    /// Adds the doors that lead to other devices than before.
    fn point(
        &self,
        plan: &Plan,
        steps: &[Step],
        built: &Built,
        exchanges: &mut Vec<Exchange>,
        report: &mut Report,
    ) {
        for export in &plan.exports {
            let moves =
                |step: &Step| matches!(step, Step::Point { export: name, .. } if *name == export.name);
            let Some(door) = self.door(&export.name).filter(|_| steps.iter().any(moves)) else { continue };
            let layer: Made = Rc::new(Door(Rc::clone(&built.by_name[&export.device])));
            match fits(&door.geometry(), &layer.geometry()) {
                Ok(()) => exchanges.push(Exchange { node: door, kind: Door::KIND, layer }),
                Err(e) => {
                    let (subject, at) = (Subject::Export(export.name.clone()), export.places.device.clone());
                    report.error(subject, Some("device"), Some(at), e.message());
                }
            }
        }
    }

    /// Exchanges the layers; those that were there come back. `None` if a device could not be flushed: then nothing
    /// has changed.
    async fn switch(&self, exchanges: &[Exchange], report: &mut Report) -> Option<Vec<Made>> {
        let mut fail = |node: &Node, e: Error| {
            let message = format!("nothing was changed, because it cannot be flushed: {e}");
            report.error(Subject::Device(node.name().into()), None, None, &message);
        };
        // Clients wait while a node is held: what they wrote up to now is flushed before.
        for Exchange { node, .. } in exchanges.iter().filter(|e| !e.node.geometry().read_only) {
            if let Err(e) = node.submit(Io::flush()).await {
                fail(node, e);
                return None;
            }
        }
        let by_name: HashMap<*const Node, &Exchange> =
            exchanges.iter().map(|e| (Rc::as_ptr(&e.node), e)).collect();
        let mut held = Vec::new();
        for node in self.nodes.iter().chain(&self.doors).rev() {
            let Some(exchange) = by_name.get(&Rc::as_ptr(node)) else { continue };
            let hold = node.hold().await;
            if let Err(e) = hold.flush().await {
                fail(node, e);
                return None;
            }
            held.push((hold, exchange));
        }
        Some(
            held.iter()
                .map(|(hold, exchange)| hold.replace(exchange.kind, Rc::clone(&exchange.layer)))
                .collect(),
        )
    }

    /// Closes what was opened for a change that does not take place.
    async fn give_up(&self, built: Built, exchanges: Vec<Exchange>) {
        for exchange in exchanges {
            let _ = exchange.layer.close().await;
        }
        let fresh: Vec<_> = built.nodes.into_iter().filter(|node| self.node(node.name()).is_none()).collect();
        let _ = hierarchy::close(&fresh).await;
    }
}

/// Whoever uses a device relies on what it was: requests that were good must stay good.
fn fits(before: &Geometry, after: &Geometry) -> lamina_block::Result<()> {
    if after.size < before.size {
        let (now, then) = (Bytes(before.size), Bytes(after.size));
        return Err(Error::invalid(format!("it would shrink from {now} to {then} under those who use it")));
    }
    if after.block > before.block {
        let (now, then) = (before.block, after.block);
        return Err(Error::invalid(format!(
            "its blocks would grow from {now} to {then} bytes under those who use it"
        )));
    }
    if after.read_only && !before.read_only {
        return Err(Error::invalid("it would become read-only under those who use it"));
    }
    Ok(())
}
