//! The return of evicted members while the hierarchy is served.
//!
//! ```text
//!   opened ─▶ recognised ─▶ the members list it ─▶ its node gets it ─▶ absent devices above are made
//! ```
//!
//! An absent member is opened. An evicted member that is still open is closed before, because a device may be open only
//! once. Another sink that was absent (the server of an `nbd` device, say) is opened if it answers now. The device
//! above is told on its child node ([`Node::resized`]), and resyncs the child by itself. A member that cannot be taken
//! in stays evicted, and that is no error.

use crate::absent;
use crate::change::{Step, is_leaving};
use crate::device::Device;
use crate::hierarchy::{Hierarchy, Maker};
use crate::members;
use crate::persistent::is_member;
use crate::plan::Plan;
use lamina_block::{Absent, Begin, Env, Error, Node, Result};
use lamina_metadata::member::{Candidate, Member, Roster};
use lamina_metadata::superblock;
use std::collections::HashSet;
use std::rc::Rc;

impl Hierarchy {
    /// The members that are evicted, as far as `plan` still has them, and not only until they are let go.
    fn out_in(&self, plan: &Plan) -> Vec<&Device> {
        let Some(roster) = &self.roster else { return Vec::new() };
        let out = roster.evicted();
        let stays = |device: &&Device| {
            plan.devices.iter().any(|d| d.name == device.name && is_member(&d.kind, &d.keys))
        };
        let here = self.plan.devices.iter().filter(|d| !is_leaving(plan, &d.name));
        here.filter(|d| out.contains_key(&d.name)).filter(stays).collect()
    }

    /// Sinks that are absent, and no members, as far as `plan` has the same, and not only until they are let go.
    fn silent_in(&self, plan: &Plan) -> Vec<&Device> {
        let is_sink = |device: &&Device| device.over.is_empty() && !is_member(&device.kind, &device.keys);
        let is_absent = |device: &&Device| self.node(&device.name).is_some_and(|node| node.is_absent());
        let stays =
            |device: &&Device| plan.devices.iter().any(|d| d.name == device.name && d.keys == device.keys);
        let here = self.plan.devices.iter().filter(|d| !is_leaving(plan, &d.name));
        here.filter(is_sink).filter(is_absent).filter(stays).collect()
    }

    /// The first steps of a change to `plan`.
    pub(crate) fn returns(&self, plan: &Plan) -> impl Iterator<Item = Step> {
        let devices = self.out_in(plan).into_iter().chain(self.silent_in(plan));
        devices.map(|device| Step::Return { device: device.name.clone() })
    }

    /// Takes in again the evicted members of `plan`, and makes the devices that were absent without them. Returns the
    /// failures.
    pub(crate) async fn bring_back(&self, plan: &Plan, env: &Rc<dyn Env>) -> Vec<Error> {
        let Some(roster) = &self.roster else { return Vec::new() };
        let maker = Maker { plan: &self.plan, env, roster: Some(roster) };
        let (mut wrong, mut back) = (Vec::new(), HashSet::new());
        for device in self.out_in(plan) {
            let Some(node) = self.node(&device.name) else { continue };
            match bring(device, plan, &node, &maker, roster).await {
                Ok(()) => back.extend(absent::absent(&self.plan, &[&device.name])),
                Err(e) => wrong.push(e),
            }
        }
        let silent: Vec<&str> = self.silent_in(plan).iter().map(|device| &device.name[..]).collect();
        back.extend(absent::absent(&self.plan, &silent));
        for (device, node) in self.plan.devices.iter().zip(&self.nodes).filter(|(_, node)| node.is_absent()) {
            let children = self.nodes_of(&device.over);
            let is_silent = silent.contains(&&device.name[..]);
            if device.over.is_empty() && !is_silent || absent::why(device, &children).is_some() {
                continue;
            }
            let quiesced = node.quiesce().await;
            match maker.layer(device, children, Begin::Open).await {
                Ok(layer) => drop(quiesced.replace(device.kind.name, layer)),
                Err(e) => wrong.push(e.on(&device.name)),
            }
        }
        self.refresh();
        let came = |node: &&Rc<Node>| back.contains(node.name()) && !node.is_absent();
        self.nodes.iter().filter(came).for_each(|node| node.came_back());
        wrong
    }
}

/// Takes in a member again. Its path may be another one in `plan`.
async fn bring(
    device: &Device,
    plan: &Plan,
    node: &Rc<Node>,
    maker: &Maker<'_>,
    roster: &Rc<Roster>,
) -> Result<()> {
    let quiesced = node.quiesce().await;
    // The old layer may be broken: an error of its close says nothing about the present device.
    let _ = quiesced.layer().close().await;
    let done = match taken_in(device, plan, maker.env, roster).await {
        Ok(member) => {
            quiesced.replace(device.kind.name, member);
            Ok(())
        }
        Err(e) => {
            quiesced.replace(Absent::KIND, Rc::new(Absent::new(e.clone())));
            Err(e.on(&device.name))
        }
    };
    drop(quiesced);
    done
}

async fn taken_in(
    device: &Device,
    plan: &Plan,
    env: &Rc<dyn Env>,
    roster: &Rc<Roster>,
) -> Result<Rc<Member>> {
    let device = plan.devices.iter().find(|d| d.name == device.name).unwrap_or(device);
    let below = members::open(plan, device, env, false).await?;
    let mut candidate = Candidate::new(&device.name, superblock::read(&below).await);
    // The others do without it already.
    let leg = plan.leg_of(&device.name).filter(|_| candidate.is_cut());
    candidate.anew = leg.is_some();
    let taken = match roster.recognise(&candidate) {
        Ok(superblock) => {
            let member = Member::new(Rc::clone(&below), superblock);
            let leg = leg.map(|(device, leg)| (&device.name[..], leg));
            roster.rejoin(Rc::clone(&member), leg).await.map(|()| member)
        }
        Err(why) => Err(Error::offline(why)),
    };
    if taken.is_err() {
        // The first error explains why the member cannot be used; an error of the close adds nothing.
        let _ = below.close().await;
    }
    taken
}
