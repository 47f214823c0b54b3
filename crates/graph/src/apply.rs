//! A hierarchy becomes another one while clients are attached.
//!
//! ```text
//!   open new devices ─▶ quiesce changed nodes ─▶ write superblocks ─▶ new layers ─▶ close old ones
//!                       (clients wait)
//! ```
//!
//! Clients of a node that stays keep it: their requests wait while the node is quiesced, and none fails. After a
//! failure before the members are written nothing has changed; a later failure is rolled back.
//!
//! Until the new layers are at work, the old ones may write to devices that both use. Layers that keep data in its
//! place allow that. A layer that remembers where data is takes over: the old layer is closed before the new one is
//! made, and a layer that goes is asked for its consent. A new device that needs what only the new layer below has,
//! such as its size, is made right after that.

use crate::absent;
use crate::change::{self, Step};
use crate::device::Device;
use crate::export::Export;
use crate::export_node::ExportNode;
use crate::hierarchy::{self, Built, Hierarchy, Maker};
use crate::later::Later;
use crate::members::MemberPlan;
use crate::persistent::{Persistent, is_member};
use crate::plan::Plan;
use crate::report::{Report, Subject};
use crate::switch::{Exchange, Source, Standstill, fits};
use crate::way::Way;
use lamina_block::{Begin, Env, Error, Made, Node};
use lamina_metadata::member::{Member, Roster, draw};
use lamina_metadata::superblock::{Layout, Superblock};
use std::collections::HashSet;
use std::rc::Rc;

/// A change on its way.
struct Change<'a> {
    from: &'a Hierarchy,
    plan: &'a Plan,
    steps: &'a [Step],
    env: &'a Rc<dyn Env>,
    /// The devices of the plan, as far as they are open.
    built: Built,
    /// The members of the plan.
    members: Vec<Rc<Member>>,
    exchanges: Vec<Exchange>,
    report: Report,
}

impl Hierarchy {
    /// The steps that make `plan` of this hierarchy, or the reasons why that cannot be done while clients are attached.
    pub fn steps(&self, plan: &Plan) -> Result<Vec<Step>, Report> {
        Ok(self.returns(plan).chain(change::between(&self.plan, plan)?).collect())
    }

    /// The devices that would become members of the hierarchy: their data would be lost.
    pub fn new_members(&self, plan: &Plan) -> Vec<MemberPlan> {
        let is_new = |member: &MemberPlan| self.node(&member.device).is_none();
        plan.members().into_iter().filter(is_new).collect()
    }

    /// Becomes what `plan` says, after members that are evicted have been taken in again as far as they are there. The
    /// hierarchy that comes back takes the place of this one; both share the devices that stay. After an error nothing
    /// else has changed. The report names the devices that could not be taken in, or not be closed well afterwards.
    pub async fn change(&self, plan: Plan, env: &Rc<dyn Env>) -> Result<(Hierarchy, Vec<Error>), Report> {
        let steps = self.steps(&plan)?;
        let mut plan = plan;
        let way = self.way().on(&self.plan, &plan);
        plan.persistent.iter_mut().for_each(|persistent| persistent.way = way.clone());
        let mut wrong = self.bring_back(&plan, env).await;
        let mut change = Change {
            from: self,
            plan: &plan,
            steps: &steps,
            env,
            built: Built::default(),
            members: Vec::new(),
            exchanges: Vec::new(),
            report: Report::new(plan.source.clone()),
        };
        change.prepare().await;
        if !change.report.has_errors() {
            change.point();
        }
        let mut outside = self.outside();
        let old = if change.report.has_errors() { None } else { change.switch(&mut outside).await };
        let Some(old) = old else {
            change.give_up().await;
            change.report.sort();
            return Err(change.report);
        };
        let Change { mut built, .. } = change;
        for layer in old {
            wrong.extend(layer.close().await.err());
        }
        let stays = |node: &Rc<Node>| built.by_name.contains_key(node.name());
        // Nothing is expected of evicted members.
        let (gone, lost): (Vec<_>, Vec<_>) = self
            .nodes
            .iter()
            .filter(|node| !stays(node))
            .cloned()
            .partition(|node| !outside.contains(node.name()));
        let _ = hierarchy::close(&lost, None).await;
        wrong.extend(hierarchy::close(&gone, None).await.err());
        built.nodes = plan.devices.iter().map(|d| Rc::clone(&built.by_name[&d.name])).collect();
        let changed = Hierarchy::of(plan, built, &self.export_nodes, self.roster.clone(), env);
        changed.refresh();
        Ok((changed, wrong))
    }
}

impl Change<'_> {
    fn maker(&self) -> Maker<'_> {
        Maker { plan: self.plan, env: self.env, roster: self.from.roster.as_ref() }
    }

    /// Opens the new devices, and makes the new layers of others as far as possible in advance.
    async fn prepare(&mut self) {
        let mut changes: HashSet<&str> = self.steps.iter().filter_map(Step::exchanged).collect();
        for device in &self.plan.devices {
            let Some(children) = self.built.children(device) else { continue };
            let done = match self.from.node(&device.name) {
                None => self.create(device, children, &mut changes).await,
                Some(node) if !changes.contains(&*device.name) => Ok(node),
                Some(node) => self.exchange(device, node, children, &changes).await,
            };
            match done {
                Ok(node) => {
                    let roster = self.from.roster.as_ref();
                    self.members.extend(roster.and_then(|roster| roster.member(&device.name)));
                    self.built.add(node);
                }
                Err(e) => hierarchy::blame(self.plan, device, &e, &mut self.report),
            }
        }
    }

    /// Opens a device. A device over devices in use takes over their data.
    async fn create<'d>(
        &mut self,
        device: &'d Device,
        children: Vec<Rc<Node>>,
        changes: &mut HashSet<&'d str>,
    ) -> lamina_block::Result<Rc<Node>> {
        if let (Some(roster), Some(persistent)) = (&self.from.roster, &self.plan.persistent)
            && is_member(&device.kind, &device.keys)
        {
            let below = self.maker().node(device, children, Begin::Open).await?;
            return match new_member(&below, roster, persistent, &**self.env) {
                Ok(member) => {
                    self.members.push(Rc::clone(&member));
                    Ok(self.maker().member(device, member))
                }
                Err(e) => {
                    let _ = below.close().await;
                    Err(e)
                }
            };
        }
        let begin = match (self.plan.persistent.is_some(), self.stands_on_used(device)) {
            (false, _) => Begin::Open,
            (true, false) => Begin::Format,
            (true, true) => Begin::Adopt,
        };
        let after = device.over.iter().any(|below| changes.contains(below.as_str()));
        if !(after && device.kind.traits.shares) {
            let made = self.maker().node(device, children.clone(), begin).await;
            // The state of a device has to be there before its members name the device.
            if made.is_ok() || !after || device.kind.traits.keeps {
                return made;
            }
        }
        let node = Node::new(&device.name, device.kind.name, Rc::clone(self.env), Rc::new(Later));
        self.exchanges.push(Exchange {
            node: Rc::clone(&node),
            to: Source::Make(Rc::new(device.clone()), children),
            from: None,
        });
        changes.insert(&device.name);
        Ok(node)
    }

    /// True if data is below a device: something that was there before, apart from where its metadata is to be.
    fn stands_on_used(&self, device: &Device) -> bool {
        let data = if device.has_metadata { device.over.len() - 1 } else { device.over.len() };
        device.over.iter().take(data).any(|name| {
            let below = self.plan.devices.iter().find(|d| d.name == *name);
            self.from.node(name).is_some() || below.is_some_and(|below| self.stands_on_used(below))
        })
    }

    /// Plans what a node gets. If a device below gets another layer at the same time, this layer is made afterwards.
    async fn exchange(
        &mut self,
        device: &Device,
        node: Rc<Node>,
        children: Vec<Rc<Node>>,
        changes: &HashSet<&str>,
    ) -> lamina_block::Result<Rc<Node>> {
        let before = self.from.plan.devices.iter().find(|d| d.name == device.name);
        let from = before.map(|before| (Rc::new(before.clone()), self.from.nodes_of(&before.over)));
        let alone = device.kind.traits.keeps || device.kind.traits.shares;
        let after = device.over.iter().any(|below| changes.contains(below.as_str()));
        if alone || after {
            self.exchanges.push(Exchange {
                node: Rc::clone(&node),
                to: Source::Make(Rc::new(device.clone()), children),
                from,
            });
            return Ok(node);
        }
        let layer = self.maker().layer(device, children, Begin::Open).await?;
        let fits = fits(&node.geometry(), &layer.geometry());
        // A device that does not fit is pushed as well: all of these are closed when the change is given up.
        let to = Source::Layer(device.kind.name, layer);
        self.exchanges.push(Exchange { node: Rc::clone(&node), to, from });
        fits.map(|()| node)
    }

    /// Adds the export nodes that lead to other devices than before.
    fn point(&mut self) {
        for export in &self.plan.exports {
            let moves =
                |step: &Step| matches!(step, Step::Point { export: name, .. } if *name == export.name);
            let Some(export_node) =
                self.from.export_node(&export.name).filter(|_| self.steps.iter().any(moves))
            else {
                continue;
            };
            let device = &self.built.by_name[&export.device];
            let changes = self.exchanges.iter().any(|exchange| Rc::ptr_eq(&exchange.node, device));
            let layer: Made = Rc::new(ExportNode::new(&export.name, device));
            match fits(&export_node.geometry(), &layer.geometry()) {
                Err(e) if !changes => {
                    let (subject, at) = (Subject::Export(export.name.clone()), export.places.device.clone());
                    self.report.failed(e.kind(), subject, Some("device"), Some(at), e.message());
                }
                _ => {
                    let to = Source::Layer(ExportNode::KIND, layer);
                    self.exchanges.push(Exchange { node: export_node, to, from: None });
                }
            }
        }
    }

    /// Exchanges the layers; returns the earlier ones. `None` if the exchange failed: then nothing has changed. The
    /// devices `outside` are evicted, or found to be broken.
    async fn switch(&mut self, outside: &mut HashSet<String>) -> Option<Vec<Made>> {
        let gone = self.gone();
        let exchanges = std::mem::take(&mut self.exchanges);
        let changes = |node: &&Rc<Node>| {
            exchanges.iter().any(|exchange| Rc::ptr_eq(&exchange.node, node))
                || gone.iter().any(|gone| Rc::ptr_eq(gone, node))
        };
        // New devices count, too: they have no users yet.
        let new = self.built.nodes.iter().filter(|node| self.from.node(node.name()).is_none());
        let known = self.from.nodes.iter().chain(&self.from.export_nodes);
        let nodes: Vec<_> = new.chain(known).filter(changes).cloned().collect();
        let going = (&gone[..], &self.leaving()[..]);
        let standstill = Standstill::of(&nodes, &self.from.plan, going, outside, &mut self.report).await;
        let Some(standstill) = standstill else {
            self.exchanges = exchanges;
            return None;
        };
        let before = self.from.roster.as_ref().map_or(Vec::new(), |roster| roster.members());
        let (way, next) = (self.from.way(), self.plan.persistent.as_ref().map(|is| is.way.clone()));
        if !self.report.has_errors() {
            self.tell_members(self.plan, self.members.clone(), next.unwrap_or_default()).await;
        }
        if self.report.has_errors() {
            self.exchanges = exchanges;
            return None;
        }
        let new = Maker { plan: self.plan, env: self.env, roster: self.from.roster.as_ref() };
        let old = Maker { plan: &self.from.plan, ..new };
        let done = standstill.exchange(exchanges, &new, &old, &mut self.report).await;
        if done.is_none() {
            self.tell_members(&self.from.plan, before, way).await;
        }
        done
    }

    /// Writes to the members that the hierarchy is `plan` now. The change counts from then on.
    async fn tell_members(&mut self, plan: &Plan, members: Vec<Rc<Member>>, way: Way) {
        let (Some(roster), Some(persistent)) = (&self.from.roster, &plan.persistent) else { return };
        let known = |name: &str| plan.devices.iter().any(|d| d.name == name);
        let now = |device: &str, child: &str| renamed(&self.from.plan, self.plan, plan, device, child);
        let (file, survives) = (&persistent.description, absent::survives(plan));
        if let Err(e) = roster.become_of(members, file, way.to_record(), &known, &now, survives).await {
            let message = format!("its members cannot be written: {e}");
            self.report.failed(e.kind(), Subject::Hierarchy, None, None, &message);
        }
    }

    /// The devices that are not in the plan.
    fn gone(&self) -> Vec<Rc<Node>> {
        let stays = |node: &&Rc<Node>| !self.built.by_name.contains_key(node.name());
        self.from.nodes.iter().filter(stays).cloned().collect()
    }

    /// Of these, those whose data is to be found below them from now on: that data stays, and so do its users.
    fn leaving(&self) -> Vec<Rc<Node>> {
        let used = self.used();
        let in_place = |node: &Rc<Node>| used.contains(node.name()) && self.stays_below(node.name());
        self.gone().into_iter().filter(in_place).collect()
    }

    /// True if the device shows the data of a device below, which stays.
    fn stays_below(&self, name: &str) -> bool {
        let below = self.from.children(name).first();
        below.is_some_and(|below| self.built.by_name.contains_key(below) || self.stays_below(below))
    }

    /// What devices and exports that stay stood on, directly or on others that go.
    fn used(&self) -> HashSet<&str> {
        let stays = |export: &&Export| self.plan.exports.iter().any(|e| e.name == export.name);
        let from = &self.from.plan;
        let mut used: HashSet<&str> = from.exports.iter().filter(stays).map(|e| &*e.device).collect();
        for device in from.devices.iter().rev() {
            if used.contains(&*device.name) || self.built.by_name.contains_key(&device.name) {
                used.extend(device.over.iter().map(String::as_str));
            }
        }
        used
    }

    /// Closes what was opened for a change that does not take place.
    async fn give_up(&mut self) {
        for exchange in self.exchanges.drain(..) {
            exchange.give_up().await;
        }
        for member in self.members.iter().filter(|member| self.from.node(&member.name()).is_none()) {
            member.spoil();
        }
        let is_fresh = |node: &Rc<Node>| self.from.node(node.name()).is_none();
        let fresh: Vec<_> = self.built.nodes.drain(..).filter(is_fresh).collect();
        let _ = hierarchy::close(&fresh, None).await;
    }
}

/// The name of a child of `device` in `plan`, which is either `old` or `new` and replaces the other.
fn renamed(old: &Plan, new: &Plan, plan: &Plan, device: &str, child: &str) -> Option<String> {
    let find = |plan: &Plan| plan.devices.iter().find(|d| d.name == device).cloned();
    let (was, is) = (find(old)?, find(new)?);
    let edges = change::Edges::of(old, new, &was, &is);
    let forth = std::ptr::eq(plan, new);
    let pair = edges.renamed.into_iter().find(|(was, is)| child == if forth { was } else { is });
    pair.map(|(was, is)| if forth { is } else { was })
}

/// A device that becomes a member when the members are told.
fn new_member(
    below: &Rc<Node>,
    roster: &Roster,
    persistent: &Persistent,
    env: &dyn Env,
) -> lamina_block::Result<Rc<Member>> {
    let layout = Layout::of_size(below.geometry().size).map_err(Error::invalid)?;
    let others = roster.members();
    let Some(first) = others.first() else { return Err(Error::invalid("the hierarchy has no members")) };
    let member = Member::new(
        Rc::clone(below),
        Superblock {
            member: draw(env),
            name: below.name().into(),
            hierarchy_name: persistent.name.clone(),
            layout,
            ..first.superblock()
        },
    );
    // The device carries nothing yet, and gets no write unless it becomes a member.
    member.spoil();
    Ok(member)
}
