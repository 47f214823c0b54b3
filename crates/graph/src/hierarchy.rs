//! A plan built: its devices opened, each over its children.
//!
//! Devices are opened bottom-up and closed top-down. If a device cannot be opened, the devices that do not depend on it
//! are tried all the same, so that one report names every problem; then all are closed again: no device stays open
//! without an owner.

use crate::absent;
use crate::assemble::{Assembled, assemble};
use crate::device::Device;
use crate::export::Export;
use crate::export_node::ExportNode;
use crate::follow::{Led, led};
use crate::keys;
use crate::plan::Plan;
use crate::report::{Report, Subject};
use crate::way::Way;
use lamina_block::{Begin, Build, Env, Error, ErrorKind, Geometry, KeyError, Made, Node, Result};
use lamina_metadata::member::{Member, Roster};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// Devices at work, and their exports.
pub struct Hierarchy {
    pub(crate) plan: Plan,
    /// In the order of the plan's devices: bottom-up.
    pub(crate) nodes: Vec<Rc<Node>>,
    /// In the order of the plan's exports.
    pub(crate) export_nodes: Vec<Rc<Node>>,
    /// The members of a persistent hierarchy.
    pub(crate) roster: Option<Rc<Roster>>,
    warnings: Report,
}

impl std::fmt::Debug for Hierarchy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.tree())
    }
}

impl Hierarchy {
    /// Opens the devices of `plan`. Errors name the device, and the key if the layer's message says which.
    pub async fn build(plan: Plan, env: Rc<dyn Env>) -> std::result::Result<Hierarchy, Report> {
        Hierarchy::begin(plan, env, How { begin: Begin::Open, degraded: false }).await
    }

    /// As [`Hierarchy::build`], also without members that are missing or damaged, if the exports have all of their
    /// bytes without them. The other members record these as evicted.
    pub async fn build_degraded(plan: Plan, env: Rc<dyn Env>) -> std::result::Result<Hierarchy, Report> {
        Hierarchy::begin(plan, env, How { begin: Begin::Open, degraded: true }).await
    }

    /// Opens the devices of `plan`, or makes what they remember. If the members have moved on from the plan during a
    /// change, the plan leads to the hierarchy that they carry.
    pub(crate) async fn begin(
        plan: Plan,
        env: Rc<dyn Env>,
        how: How,
    ) -> std::result::Result<Hierarchy, Report> {
        let mut refused = match Hierarchy::try_begin(plan.clone(), &env, how).await {
            Err(report) if how.begin == Begin::Open => report,
            done => return done,
        };
        for Led { plan, message } in led(&plan, &env).await {
            match Hierarchy::try_begin(plan, &env, how).await {
                Ok(mut hierarchy) => {
                    hierarchy.warnings.warning(Subject::Hierarchy, None, None, &message);
                    return Ok(hierarchy);
                }
                Err(report) => refused = report,
            }
        }
        Err(refused)
    }

    async fn try_begin(plan: Plan, env: &Rc<dyn Env>, how: How) -> std::result::Result<Hierarchy, Report> {
        let (built, roster, mut report) = open(&plan, env, how).await;
        if !report.has_errors() {
            report.sort();
            return Ok(Hierarchy { warnings: report, ..Hierarchy::of(plan, built, &[], roster, env) });
        }
        if let Err(e) = close(&built.nodes, roster.as_deref()).await {
            report.failed(e.kind(), Subject::File, None, None, &format!("closing the opened devices: {e}"));
        }
        report.sort();
        Err(report)
    }

    /// Opens as much of `plan` as can be opened, for inspection: nothing is exported, and devices that could not be
    /// opened, and those over them, are missing. The report tells why.
    pub async fn build_partly(plan: Plan, env: Rc<dyn Env>) -> (Hierarchy, Report) {
        let how = How { begin: Begin::Open, degraded: false };
        let (mut plan, mut opened) = (plan.clone(), open(&plan, &env, how).await);
        if opened.1.is_none() {
            // The members have moved on from the plan during a change: the hierarchy that they carry is opened.
            for Led { plan: led, message } in led(&plan, &env).await {
                let other = open(&led, &env, how).await;
                if other.1.is_some() {
                    (plan, opened) = (led, other);
                    opened.2.warning(Subject::Hierarchy, None, None, &message);
                    break;
                }
                let _ = close(&other.0.nodes, other.1.as_deref()).await;
            }
        }
        let (built, roster, mut report) = opened;
        report.sort();
        let roster = roster.filter(|_| !report.has_errors());
        let plan = Plan { exports: Vec::new(), ..plan };
        (Hierarchy::of(plan, built, &[], roster, &env), report)
    }

    /// A hierarchy of built devices. Exports that have a node in `export_nodes` keep it.
    pub(crate) fn of(
        plan: Plan,
        built: Built,
        export_nodes: &[Rc<Node>],
        roster: Option<Rc<Roster>>,
        env: &Rc<dyn Env>,
    ) -> Hierarchy {
        let export_node = |export: &Export| {
            let kept = export_nodes.iter().find(|export_node| export_node.name() == export.name);
            kept.map(Rc::clone).unwrap_or_else(|| {
                let layer = Rc::new(ExportNode::new(&export.name, &built.by_name[&export.device]));
                Node::new(&export.name, ExportNode::KIND, Rc::clone(env), layer)
            })
        };
        let export_nodes = plan.exports.iter().map(export_node).collect();
        let warnings = Report::new(plan.source.clone());
        let hierarchy = Hierarchy { plan, nodes: built.nodes, export_nodes, roster, warnings };
        hierarchy.tell_who_is_above();
        hierarchy
    }

    /// Each node knows which ones stand on it.
    fn tell_who_is_above(&self) {
        let mut above: HashMap<&str, Vec<_>> = HashMap::new();
        for node in &self.nodes {
            for below in self.children(node.name()) {
                above.entry(below).or_default().push(Rc::downgrade(node));
            }
        }
        for (export, node) in self.plan.exports.iter().zip(&self.export_nodes) {
            above.entry(&export.device).or_default().push(Rc::downgrade(node));
        }
        for node in &self.nodes {
            node.set_above(above.remove(node.name()).unwrap_or_default());
        }
    }

    /// The changes that led to this hierarchy, and the one under way.
    pub(crate) fn way(&self) -> Way {
        Way::read(self.roster.as_ref().and_then(|roster| roster.way()))
    }

    /// The plan of the hierarchy.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device called `name`.
    pub fn node(&self, name: &str) -> Option<Rc<Node>> {
        self.nodes.iter().find(|node| node.name() == name).map(Rc::clone)
    }

    /// The node that clients of the export `name` are given, which stays when the export's device is exchanged.
    pub fn export_node(&self, name: &str) -> Option<Rc<Node>> {
        self.export_nodes.iter().find(|export_node| export_node.name() == name).map(Rc::clone)
    }

    /// All devices, bottom-up: each comes after its children.
    pub fn nodes(&self) -> &[Rc<Node>] {
        &self.nodes
    }

    /// The names of the devices that `name` stands on, in order; empty for a sink, and if there is no such device.
    pub fn children(&self, name: &str) -> &[String] {
        self.plan.devices.iter().find(|d| d.name == name).map_or(&[], |d| &d.over)
    }

    /// The device `name` and all that it stands on, bottom-up, each once.
    pub fn subtree(&self, name: &str) -> Vec<Rc<Node>> {
        let names = self.plan.below(std::iter::once(&name.to_owned()));
        self.nodes.iter().filter(|node| names.contains(node.name())).map(Rc::clone).collect()
    }

    /// The nodes of these devices.
    pub(crate) fn nodes_of(&self, names: &[String]) -> Vec<Rc<Node>> {
        names.iter().filter_map(|name| self.node(name)).collect()
    }

    /// The members that are evicted, other sinks that are absent, and all devices that are nothing without them.
    pub(crate) fn outside(&self) -> HashSet<String> {
        let out = self.roster.as_ref().map(|roster| roster.evicted()).unwrap_or_default();
        let absent = self.nodes.iter().filter(|node| node.is_absent()).map(|node| node.name());
        let out: Vec<&str> = out.keys().map(String::as_str).chain(absent).collect();
        absent::absent(&self.plan, &out).into_iter().map(str::to_owned).collect()
    }

    /// The exports, in the order of the file.
    pub fn exports(&self) -> &[Export] {
        &self.plan.exports
    }

    /// Findings of the open that deserve a warning.
    pub fn warnings(&self) -> &Report {
        &self.warnings
    }

    /// Takes over changed sizes, from the bottom up: a device that grew makes those over it look again.
    pub fn refresh(&self) {
        self.nodes.iter().chain(&self.export_nodes).for_each(|node| node.refresh());
    }

    /// Drains, flushes and closes every device, from the top down, the members last. The first error is returned; the
    /// remaining devices are closed all the same. A member is called clean only if everything above it was closed well.
    /// The failure of a device is no error if the devices over it survive that and were closed well: the others have
    /// all data.
    pub async fn close(&self) -> Result<()> {
        let mut result = Ok(());
        if let Some(roster) = &self.roster {
            result = roster.complete_writes().await;
        }
        let outside = self.outside();
        let mut failed: Vec<&str> = outside.iter().map(String::as_str).collect();
        for node in top_down(&self.nodes, self.roster.as_deref()) {
            let member = self.roster.as_ref().and_then(|roster| roster.member(node.name()));
            if let (Err(_), Some(member)) = (&result, member) {
                member.spoil();
            }
            if let Err(e) = node.close().await {
                failed.push(node.name());
                if !absent::nothing_more(&self.plan, &outside, &failed) {
                    result = result.and(Err(e));
                }
            }
        }
        result
    }
}

/// How a hierarchy is opened.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// Whether the state of its devices is there.
    pub begin: Begin,
    /// Members may be missing that are not known to be evicted.
    pub degraded: bool,
}

/// Opens the devices of `plan`, bottom-up, as far as possible.
async fn open(plan: &Plan, env: &Rc<dyn Env>, how: How) -> (Built, Option<Rc<Roster>>, Report) {
    let mut report = Report::new(plan.source.clone());
    let mut built = Built::default();
    let (mut roster, mut missing) = (None, BTreeMap::new());
    if let Some(persistent) = &plan.persistent {
        let assembled = assemble(plan, persistent, env, how.degraded, &mut report).await;
        if let Some(Assembled { roster: members, absent }) = assembled {
            (roster, missing) = (Some(members), absent);
        }
        if report.has_errors() {
            return (built, roster, report);
        }
    }
    let maker = Maker { plan, env, roster: roster.as_ref() };
    for device in &plan.devices {
        if let Some(member) = roster.as_ref().and_then(|roster| roster.member(&device.name)) {
            built.add(maker.member(device, member));
            continue;
        }
        // A device over one that failed has nothing to say of its own.
        let Some(children) = built.children(device) else { continue };
        let why = missing.remove(&device.name).or_else(|| absent::why(device, &children));
        if let Some(why) = why {
            built.add(Node::absent(&device.name, Rc::clone(env), why));
            continue;
        }
        match maker.node(device, children, how.begin).await {
            Ok(node) => built.add(node),
            Err(e) if roster.is_some() && how.begin == Begin::Open && built.may_lose(plan, device, &e) => {
                let message = format!("{}. The hierarchy goes on without it", e.message());
                report.warning(Subject::Device(device.name.clone()), None, None, &message);
                built.add(Node::absent(&device.name, Rc::clone(env), e));
            }
            Err(e) => blame(plan, device, &e, &mut report),
        }
    }
    (built, roster, report)
}

/// Devices opened so far.
#[derive(Default)]
pub(crate) struct Built {
    pub nodes: Vec<Rc<Node>>,
    pub by_name: HashMap<String, Rc<Node>>,
}

impl Built {
    pub fn add(&mut self, node: Rc<Node>) {
        self.by_name.insert(node.name().into(), Rc::clone(&node));
        self.nodes.push(node);
    }

    /// True if `device` is a sink that does not answer, and the hierarchy goes on without it: the device over it that
    /// survives the absence records on the members which data the sink missed, so these need not list the sink.
    fn may_lose(&self, plan: &Plan, device: &Device, e: &Error) -> bool {
        let absent = self.nodes.iter().filter(|node| node.is_absent()).map(|node| node.name());
        let absent: Vec<&str> = absent.chain([&device.name[..]]).collect();
        let silent = matches!(e.kind(), ErrorKind::Offline | ErrorKind::TimedOut | ErrorKind::Busy);
        silent && device.over.is_empty() && absent::survives(plan)(&absent)
    }

    /// The children of `device`; `None` if not all of them were opened.
    pub fn children(&self, device: &Device) -> Option<Vec<Rc<Node>>> {
        device.over.iter().map(|name| self.by_name.get(name).cloned()).collect()
    }
}

/// Devices, which are given bottom-up, in the order in which they are closed: from the top down, and members after all
/// others, because a device that is closed may keep something on every member, also on those that others stand on.
fn top_down<'a>(nodes: &'a [Rc<Node>], roster: Option<&Roster>) -> impl Iterator<Item = &'a Rc<Node>> {
    let is_member = |node: &&Rc<Node>| roster.is_some_and(|roster| roster.member(node.name()).is_some());
    let (members, others): (Vec<_>, Vec<_>) = nodes.iter().rev().partition(is_member);
    others.into_iter().chain(members)
}

/// Closes devices, which are given bottom-up, from the top down, those of them that are members of `roster` last.
pub(crate) async fn close(nodes: &[Rc<Node>], roster: Option<&Roster>) -> Result<()> {
    let mut result = Ok(());
    for node in top_down(nodes, roster) {
        let closed = node.close().await;
        result = result.and(closed);
    }
    result
}

/// The context in which the layers of a hierarchy are made.
pub(crate) struct Maker<'a> {
    pub plan: &'a Plan,
    pub env: &'a Rc<dyn Env>,
    pub roster: Option<&'a Rc<Roster>>,
}

impl Maker<'_> {
    /// Makes the layer of a device over `children`, the one for its metadata being the last.
    pub async fn layer(&self, device: &Device, mut children: Vec<Rc<Node>>, begin: Begin) -> Result<Made> {
        if let Some(why) = absent::why(device, &children) {
            return Err(why);
        }
        let failed = |KeyError { path, message }| Error::invalid(format!("{path}: {message}"));
        let keys = device.kind.parse(&device.keys).map_err(failed)?;
        let metadata = if device.has_metadata { children.pop() } else { None };
        let mut with = Build { base: device.base.clone(), ..Build::new(&device.name, self.env, children) };
        with.file = self.plan.file().into();
        with.metadata = metadata;
        with.begin = begin;
        with.leaving.clone_from(&device.leaving);
        with.level = self.plan.persistent.as_ref().map(|p| p.level).unwrap_or_default();
        with.keep = self.roster.filter(|_| device.kind.traits.keeps).map(|roster| roster.keep(&device.name));
        let layer = keys.build(with).await?;
        match check(&layer.geometry()) {
            Ok(()) => Ok(layer),
            Err(e) => {
                // The first error explains why the layer cannot be used; an error of the close adds nothing.
                let _ = layer.close().await;
                Err(e)
            }
        }
    }

    /// Makes a device.
    pub async fn node(&self, device: &Device, children: Vec<Rc<Node>>, begin: Begin) -> Result<Rc<Node>> {
        let layer = self.layer(device, children, begin).await?;
        Ok(Node::new(&device.name, device.kind.name, Rc::clone(self.env), layer))
    }

    /// The device that is a member.
    pub fn member(&self, device: &Device, member: Rc<Member>) -> Rc<Node> {
        Node::new(&device.name, device.kind.name, Rc::clone(self.env), member)
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

/// Reports that a device could not be opened; where the key stands, if the layer says which.
pub(crate) fn blame(plan: &Plan, device: &Device, e: &Error, report: &mut Report) {
    let subject = Subject::Device(device.name.clone());
    let message = match e.device() {
        Some(other) if other != device.name => e.to_string(),
        _ => e.message().to_owned(),
    };
    let (key, message) = keys::of_message(&device.kind, &message);
    let at = key.and_then(|key| keys::place(&plan.source, &device.name, key));
    report.failed(e.kind(), subject, key, Some(at.unwrap_or(device.header.clone())), message);
}
