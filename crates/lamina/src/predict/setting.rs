//! What the clients of a prediction work on: a hierarchy on certain drives, or a drive alone.

use super::drives::{Drive, put};
use super::figures::Measured;
use super::log::{Counted, Log};
use super::policy::{Policy, has_policy};
use super::source::Source;
use super::world::{Queue, World};
use crate::clients::run;
use crate::daemon::thread_cpu_ns;
use crate::exit::Failure;
use crate::files;
use lamina_block::{Command, Env, Node, OpenDisk, Result};
use lamina_graph::{Device, Hierarchy, Plan};
use lamina_sim::{SimEnv, Simulation};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

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
    /// Lets a workload work here under `policy`. Also returns the time that took of a processor, without the
    /// preparation of what runs share.
    pub fn measure(
        &self,
        policy: &Policy,
        seed: u64,
        source: &Arc<Source>,
        counted: Counted,
    ) -> std::result::Result<(Measured, Duration), Failure> {
        let simulation = Simulation::measuring(seed);
        let (env, log) = (simulation.env(), Log::new(counted));
        put(&self.drives, &env, seed, self.has_data());
        let (setting, policy, source) = (self.clone(), policy.clone(), Arc::clone(source));
        let work = async move {
            let Open { node, _hierarchy } = setting.open(&env, &log, &policy).await?;
            let workload = source.workload(seed, node.geometry().size)?;
            let clock = Rc::clone(&env);
            let begun = thread_cpu_ns();
            log.begin(clock.now());
            run(env, Box::new(move || clock.now()), vec![node], workload, Rc::clone(&log), seed).await;
            let took = Duration::from_nanos(thread_cpu_ns().saturating_sub(begun));
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
            false => Some(self.queue(policy).map_err(Failure::failed)?),
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
        for device in plan.devices().iter().filter(|device| has_policy(&device.kind)) {
            let Some(node) = hierarchy.node(&device.name) else { continue };
            let args = Value::Object(self.keys_of(policy, plan, device));
            node.control(Command { name: "set".into(), args }).await.map_err(Failure::usage)?;
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

    /// The queue above each drive of a hierarchy that has none.
    fn queue(&self, policy: &Policy) -> Result<Queue> {
        let mut keys = policy.keys.clone();
        keys.entry("depth").or_insert_with(|| self.depth.into());
        let model = |drive: &Drive| Some((drive.path.clone(), drive.model.as_ref()?.name.clone()));
        Queue::new(keys, self.drives.iter().filter_map(model).collect())
    }

    /// The keys of a queue that the hierarchy has: those of the policy, and the model of the drive below.
    fn keys_of(&self, policy: &Policy, plan: &Plan, queue: &Device) -> Map<String, Value> {
        let mut keys = policy.keys.clone();
        if let Some(named) = self.drive_below(plan, queue).and_then(|drive| drive.model.as_ref()) {
            keys.entry("model").or_insert_with(|| named.name.clone().into());
        }
        keys
    }

    /// The only drive below a device; `None` if there are several.
    fn drive_below(&self, plan: &Plan, device: &Device) -> Option<&Drive> {
        let [below] = device.over.as_slice() else { return None };
        let drive = self.drives.iter().find(|drive| drive.device == *below);
        drive.or_else(|| self.drive_below(plan, plan.devices().iter().find(|device| device.name == *below)?))
    }
}

/// What was opened; the hierarchy lives as long as the node is used.
struct Open {
    node: Rc<Node>,
    _hierarchy: Option<Hierarchy>,
}
