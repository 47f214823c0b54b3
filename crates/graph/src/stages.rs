//! The way from one hierarchy to another when data has to be moved.
//!
//! ```text
//!   a b ──▶ a b d ──▶ nothing is left on b ──▶ a d
//! ```
//!
//! A device that remembers where its data is and loses a child needs both for a while: the lost child and the new one.
//! So the change goes by way of a hierarchy that has both, which the members carry: after an interruption the same file
//! leads on from there.

use crate::change;
use crate::description;
use crate::hierarchy::Hierarchy;
use crate::plan::Plan;
use crate::report::{Report, Subject};
use lamina_block::{Absent, Env, Geometry, Kind, Node};
use lamina_metadata::superblock::Layout;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// A part of a change that is done in one piece.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a change has a few of them")]
pub enum Stage {
    /// The hierarchy becomes this one.
    Change(Plan),
    /// The data of these devices is moved to others, while clients go on. The move may take long.
    Move {
        /// The device whose data it is.
        device: String,
        /// The children that are about to go.
        from: Vec<String>,
    },
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Change(plan) => write!(f, "change    {}", plan.file()),
            Stage::Move { device, from } => write!(f, "move      {device}: away from {}", from.join(", ")),
        }
    }
}

impl Hierarchy {
    /// Refuses a change to `plan` whose data would not fit on what is left, or on what joins. `sizes` has the sizes in
    /// bytes of devices that would become members, as far as they are known; without a size there is no answer yet.
    pub fn fits(&self, plan: &Plan, sizes: &BTreeMap<String, u64>, env: &Rc<dyn Env>) -> Result<(), Report> {
        let mut report = Report::new(plan.source.clone());
        if plan.persistent.is_none() {
            return Ok(());
        }
        for was in self.plan.devices.iter().filter(|was| was.kind.traits.keeps) {
            let is = plan.devices.iter().find(|d| d.name == was.name && d.kind.name == was.kind.name);
            let (Some(is), Some(node)) = (is, self.node(&was.name)) else { continue };
            let change::Edges { lost, gained, .. } = change::Edges::of(&self.plan, plan, was, is);
            let joining: Option<Vec<_>> = gained.iter().map(|name| self.joining(name, sizes, env)).collect();
            let Some(joining) = joining else { continue };
            if let Err(e) = node.can_evacuate(&lost, &joining) {
                let what = match lost.is_empty() {
                    true => "cannot be changed so".into(),
                    false => format!("cannot be moved away from {}", lost.join(", ")),
                };
                let message = format!("{what}: {}", e.message());
                let subject = Subject::Device(was.name.clone());
                report.failed(e.kind(), subject, None, Some(is.header.clone()), &message);
            }
        }
        if report.has_errors() { Err(report) } else { Ok(()) }
    }

    /// The device of a name, or one of its size in its place.
    fn joining(&self, name: &str, sizes: &BTreeMap<String, u64>, env: &Rc<dyn Env>) -> Option<Rc<Node>> {
        self.node(name).or_else(|| {
            let layout = Layout::of_size(*sizes.get(name)?).ok()?;
            let size = layout.shape(Geometry::new(0)).size;
            Some(Node::new(name, Absent::KIND, Rc::clone(env), Rc::new(Absent::of_size(size))))
        })
    }

    /// The parts of the change to `plan`, in order, with the text of their steps; or the reasons why the change cannot
    /// be done while clients are attached.
    pub fn stages(&self, plan: &Plan, kinds: &[Kind]) -> Result<Vec<(Stage, Vec<String>)>, Report> {
        let told = |stage: Stage, before: &Plan| {
            let steps = match &stage {
                Stage::Change(after) => {
                    change::between(before, after)?.iter().map(ToString::to_string).collect()
                }
                Stage::Move { .. } => vec![stage.to_string()],
            };
            Ok((stage, steps))
        };
        let moves = moves(&self.plan, plan);
        let returns = self.returns(plan).map(|step| step.to_string());
        if moves.is_empty() || plan.persistent.is_none() {
            let (stage, steps) = told(Stage::Change(plan.clone()), &self.plan)?;
            return Ok(vec![(stage, returns.chain(steps).collect())]);
        }
        let between = union(&self.plan, plan, &moves, kinds)?;
        let mut stages = vec![told(Stage::Change(between.clone()), &self.plan)?];
        for (device, from) in moves {
            stages.push(told(Stage::Move { device, from }, &between)?);
        }
        stages.push(told(Stage::Change(plan.clone()), &between)?);
        stages[0].1.splice(..0, returns);
        stages.retain(|(_, steps)| !steps.is_empty());
        Ok(stages)
    }
}

/// The devices that remember where their data is, and the children that they lose.
fn moves(old: &Plan, new: &Plan) -> Vec<(String, Vec<String>)> {
    let lost = |was: &crate::Device| {
        let is = new.devices.iter().find(|d| d.name == was.name && d.kind.name == was.kind.name)?;
        let lost: Vec<String> = change::Edges::of(old, new, was, is).lost;
        (was.kind.traits.keeps && !lost.is_empty()).then(|| (was.name.clone(), lost))
    };
    old.devices.iter().filter_map(lost).collect()
}

/// The new hierarchy, with what devices lose still below them.
fn union(old: &Plan, new: &Plan, moves: &[(String, Vec<String>)], kinds: &[Kind]) -> Result<Plan, Report> {
    let (mut names, mut all) = (BTreeMap::new(), Vec::new());
    for (device, lost) in moves {
        let find = |plan: &Plan| plan.devices.iter().find(|d| d.name == *device).cloned();
        let (Some(was), Some(is)) = (find(old), find(new)) else { continue };
        let edges = change::Edges::of(old, new, &was, &is);
        let before = was.over.iter().take(was.over.len() - usize::from(was.has_metadata));
        let before = before.map(|name| edges.now(name).to_owned());
        let over: Vec<String> = before.chain(edges.gained.iter().cloned()).collect();
        all.extend(over.iter().cloned());
        names.insert(device.clone(), vec![("over", over), ("leaving", lost.clone())]);
    }
    let needed = old.below(all.iter());
    let text = description::union(&old.source.text, &new.source.text, &names, &needed).ok_or_else(|| {
        let mut report = Report::new(new.source.clone());
        report.error(Subject::File, None, None, "cannot be joined with the hierarchy that is served");
        report
    })?;
    let name = format!("{} (while data is moved)", new.file());
    let from_old = old.devices.iter().filter(|was| new.devices.iter().all(|d| d.name != was.name));
    let elsewhere = from_old.map(|was| (was.name.clone(), was.base.clone())).collect();
    let mut plan = Plan::parse_joined(&text, &name, &new.base, &elsewhere, kinds)?;
    if let Some(persistent) = &mut plan.persistent {
        let gone = plan.devices.iter().filter(|d| new.devices.iter().all(|other| other.name != d.name));
        persistent.way.gone = gone.map(|d| d.name.clone()).collect();
        persistent.way.over = description::children_of(&new.source.text, names.keys());
    }
    Ok(plan)
}
