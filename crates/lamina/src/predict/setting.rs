//! What the clients of a prediction work on: a hierarchy on certain drives, or a drive alone.

use super::drives::Drive;
use super::figures::Measured;
use super::log::{Counted, Log};
use super::policy::{Policy, has_policy};
use super::source::Source;
use super::world::{Queue, World};
use crate::clients::run;
use crate::exit::Failure;
use crate::files;
use lamina_block::{Command, Env, Node, OpenDisk, Result};
use lamina_graph::{Hierarchy, Plan};
use lamina_sim::{SimEnv, Simulation};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A hierarchy on certain drives.
#[derive(Clone)]
pub struct Setting {
    /// What it is called in titles.
    pub name: String,
    /// The hierarchy and its device for the clients; without one they work on the only drive.
    pub hierarchy: Option<(Plan, String)>,
    /// The drives.
    pub drives: Vec<Drive>,
    /// Requests below a queue that is put above a drive.
    pub depth: u32,
    /// Where relative paths of parameters begin.
    pub base: PathBuf,
}

impl Setting {
    /// Lets a workload work here under `policy`. Also returns how long that took a processor, without the preparation
    /// of what runs share.
    pub fn measure(
        &self,
        policy: &Policy,
        seed: u64,
        source: &Arc<Source>,
        counted: Counted,
    ) -> std::result::Result<(Measured, Duration), Failure> {
        let simulation = Simulation::measuring(seed);
        let (env, log) = (simulation.env(), Log::new(counted));
        for drive in &self.drives {
            drive.put(&env, seed, self.has_data());
        }
        let (setting, policy, source) = (self.clone(), policy.clone(), Arc::clone(source));
        let work = async move {
            let Open { node, _hierarchy } = setting.open(&env, &log, &policy).await?;
            let workload = source.workload(seed, node.geometry().size)?;
            let clock = Rc::clone(&env);
            let begun = Instant::now();
            run(env, Box::new(move || clock.now()), vec![node], workload, Rc::clone(&log), seed).await;
            let took = begun.elapsed();
            log.take().map(|measured| (measured, took)).map_err(Failure::failed)
        };
        simulation.run(work).map_err(Failure::failed)?
    }

    /// Whether the hierarchy has queues of its own that follow a policy.
    fn has_queues(&self) -> bool {
        self.hierarchy.as_ref().is_some_and(|(plan, _)| plan.devices().iter().any(|d| has_policy(&d.kind)))
    }

    /// Whether layers look at the data that is written: those that keep state do.
    fn has_data(&self) -> bool {
        self.hierarchy.as_ref().is_some_and(|(plan, _)| plan.devices().iter().any(|d| d.kind.traits.keeps))
    }

    async fn open(
        &self,
        env: &Rc<SimEnv>,
        log: &Rc<Log>,
        policy: &Policy,
    ) -> std::result::Result<Open, Failure> {
        let queue = match self.has_queues() {
            true => None,
            false => Some(Queue::new(self.keys(policy)).map_err(Failure::failed)?),
        };
        let world: Rc<dyn Env> = World::new(Rc::clone(env), Rc::clone(log), queue, self.base.clone());
        let Some((plan, device)) = &self.hierarchy else {
            let node = self.plain(&world).await.map_err(|e| Failure::usage(e.message()))?;
            return Ok(Open { node, _hierarchy: None });
        };
        let failed = |report| Failure::File(files::shown(&report));
        if plan.persistent().is_some() {
            plan.create(Rc::clone(&world), 0).await.map_err(failed)?;
        }
        let hierarchy = Hierarchy::build(plan.clone(), world).await.map_err(failed)?;
        for node in hierarchy.nodes() {
            let is_queue = plan.devices().iter().any(|d| d.name == node.name() && has_policy(&d.kind));
            if is_queue {
                let command = Command { name: "set".into(), args: Value::Object(policy.keys.clone()) };
                node.control(command).await.map_err(Failure::usage)?;
            }
        }
        let node = hierarchy.node(device);
        let node = node.ok_or_else(|| Failure::failed(format!("no device {device:?}")))?;
        Ok(Open { node, _hierarchy: Some(hierarchy) })
    }

    /// The drive alone, under its queue.
    async fn plain(&self, world: &Rc<dyn Env>) -> Result<Rc<Node>> {
        let path = self.drives.first().map(|drive| drive.path.clone()).unwrap_or_default();
        let open = OpenDisk { path, read_only: false, direct: true, create: None, block: None };
        let queue = world.open_disk(open).await?;
        Ok(Node::new("drive", "simulated", Rc::clone(world), queue))
    }

    /// The keys of a queue above a drive: those of the policy, and what the queue is to know of the drive.
    fn keys(&self, policy: &Policy) -> Map<String, Value> {
        let mut keys = policy.keys.clone();
        keys.entry("depth").or_insert_with(|| self.depth.into());
        if let Some(named) = self.drives.first().and_then(|drive| drive.model.as_ref()) {
            keys.entry("model").or_insert_with(|| named.name.clone().into());
        }
        keys
    }
}

/// What was opened; the hierarchy lives as long as the node is used.
struct Open {
    node: Rc<Node>,
    _hierarchy: Option<Hierarchy>,
}
