//! The subjects of the gauntlet, and the world in which they are built.

use super::keep::SimKeep;
use super::run::SEEDS;
use crate::disk::{Image, SimDisk};
use crate::env::{SimEnv, Started};
use crate::options::{Contents, DiskOptions};
use crate::stamp;
use fastrand::Rng;
use lamina_block::{Begin, Build, Env, Error, Geometry, Kind, Layer, Level, Node, Pending, Zones};
use serde_json::Value;
use std::cell::RefCell;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Smallest size of a simulated disk unless a subject asks for more; the seed adds up to as much again.
const DISK_MIN: u64 = 96 << 10;

type Builder = Rc<dyn Fn(Rc<Rig>) -> Pending<Rc<Node>>>;

/// A layer or a graph, as the gauntlet builds it again and again.
#[derive(Clone)]
pub struct Subject {
    pub(crate) name: String,
    pub(crate) build: Builder,
    pub(crate) disk_min: u64,
    pub(crate) keeps: Keeps,
    pub(crate) level: Level,
    pub(crate) seeds: u64,
    pub(crate) heals: bool,
}

/// The writes that a subject keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// Everything, by the contract.
    Durably,
    /// All until the close or a power loss (memory).
    UntilClosed,
    /// None: reads return zeroes (null).
    Nothing,
}

impl Subject {
    /// A subject that `build` makes of a rig's disks. The function is called again over the same disks after a crash or
    /// a close, and must then yield the same device.
    pub fn new<F>(name: impl Into<String>, build: impl Fn(Rc<Rig>) -> F + 'static) -> Subject
    where
        F: Future<Output = lamina_block::Result<Rc<Node>>> + 'static,
    {
        Subject {
            name: name.into(),
            build: Rc::new(move |rig| Box::pin(build(rig))),
            disk_min: DISK_MIN,
            keeps: Keeps::Durably,
            level: Level::default(),
            seeds: SEEDS,
            heals: true,
        }
    }

    /// A layer of `kind` with `keys` (those of the hierarchy file, without `type` and `over`) over `disks` disks.
    pub fn layer(kind: &Kind, keys: Value, disks: usize) -> Subject {
        let kind = kind.clone();
        Subject::new(kind.name, move |rig| {
            let (kind, keys) = (kind.clone(), keys.clone());
            async move {
                let children = rig.disks(disks);
                rig.build(&kind, "top", keys, children).await
            }
        })
    }

    /// Gives every simulated disk at least `bytes` (a multiple of 4096).
    pub fn disks_of(self, bytes: u64) -> Subject {
        Subject { disk_min: bytes, ..self }
    }

    /// The consistency level of its metadata.
    pub fn level(self, level: Level) -> Subject {
        Subject { level, ..self }
    }

    /// Each of its tests runs so many seeds unless it is told otherwise: for subjects whose checks take long, and which
    /// are soaked with many more seeds.
    pub fn seeds(self, seeds: u64) -> Subject {
        Subject { seeds, ..self }
    }

    /// The subject keeps nothing across a close or a power loss, by design.
    pub fn volatile(self) -> Subject {
        Subject { keeps: Keeps::UntilClosed, ..self }
    }

    /// The subject keeps nothing at all and reads as zeroes, by design.
    pub fn forgetful(self) -> Subject {
        Subject { keeps: Keeps::Nothing, ..self }
    }

    /// The subject cannot hand on a request for other copies, as with a protocol that has none: `why` is the reason.
    pub fn heals_nothing(self, why: &str) -> Subject {
        assert!(!why.is_empty(), "a reason is needed");
        Subject { heals: false, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The parts of a subject: an environment, and simulated disks whose properties the seed draws.
pub struct Rig {
    env: Rc<SimEnv>,
    rng: RefCell<Rng>,
    block: u32,
    disk_min: u64,
    level: Level,
    nodes: RefCell<Vec<Rc<Node>>>,
    users: RefCell<Vec<Started<()>>>,
}

impl Rig {
    pub(crate) fn new(env: Rc<SimEnv>, subject: &Subject, seed: u64) -> Rc<Rig> {
        let mut rng = Rng::with_seed(seed);
        Rc::new(Rig {
            env,
            block: if rng.u8(0..4) == 0 { 4096 } else { 512 },
            rng: RefCell::new(rng),
            disk_min: subject.disk_min,
            level: subject.level,
            nodes: RefCell::default(),
            users: RefCell::default(),
        })
    }

    /// The environment.
    pub fn env(&self) -> Rc<SimEnv> {
        Rc::clone(&self.env)
    }

    /// The first `n` disks, each under a node.
    pub fn disks(&self, n: usize) -> Vec<Rc<Node>> {
        (0..n).map(|i| self.disk(i)).collect()
    }

    /// The disk number `n` under a node, made when it is asked for first. Its path in the environment is `diskN`.
    pub fn disk(&self, n: usize) -> Rc<Node> {
        let name = format!("disk{n}");
        if let Some(node) = self.nodes.borrow().iter().find(|node| node.name() == name) {
            return Rc::clone(node);
        }
        self.node(&name, "simulated", self.sim_disk(n))
    }

    /// The disk number `n` without a node, for subjects that open it by its path.
    pub fn sim_disk(&self, n: usize) -> Rc<SimDisk> {
        let path = PathBuf::from(format!("disk{n}"));
        self.env.disk(&path).unwrap_or_else(|| {
            let options = self.draw(n);
            self.env.put_disk(&path, Image::blank(options))
        })
    }

    /// The same for a disk with `zones`, which begin within the size of a disk; nothing is behind them.
    pub fn sim_zoned(&self, n: usize, zones: Zones) -> Rc<SimDisk> {
        let path = PathBuf::from(format!("disk{n}"));
        self.env.disk(&path).unwrap_or_else(|| {
            let mut options = self.draw(n);
            options.geometry.size = zones.range().end;
            self.env.put_disk(&path, Image::zoned(options, zones))
        })
    }

    /// A device on the way from the disks to the top.
    pub fn node(&self, name: &str, kind: &'static str, layer: Rc<dyn Layer>) -> Rc<Node> {
        let node = Node::new(name, kind, self.env(), layer);
        self.nodes.borrow_mut().push(Rc::clone(&node));
        node
    }

    /// Adds a device that was built elsewhere (a graph), those below before those above.
    pub fn adopt(&self, node: &Rc<Node>) {
        self.nodes.borrow_mut().push(Rc::clone(node));
    }

    /// Runs a user of the device beside the load. It ends soon when the world is [ending](SimEnv::is_ending): the
    /// device is closed only then, as a daemon does.
    pub fn user(&self, work: impl Future<Output = ()> + 'static) {
        self.users.borrow_mut().push(self.env.start(work));
    }

    /// The users that have not been waited for.
    pub(crate) fn take_users(&self) -> Vec<Started<()>> {
        self.users.take()
    }

    /// Builds a layer of `kind` as the graph does.
    pub async fn build(
        &self,
        kind: &Kind,
        name: &str,
        keys: Value,
        children: Vec<Rc<Node>>,
    ) -> lamina_block::Result<Rc<Node>> {
        self.build_with(kind, name, keys, children, None).await
    }

    /// As [`Rig::build`], with a device for its metadata.
    pub async fn build_with(
        &self,
        kind: &Kind,
        name: &str,
        keys: Value,
        children: Vec<Rc<Node>>,
        metadata: Option<Rc<Node>>,
    ) -> lamina_block::Result<Rc<Node>> {
        let keys = kind.parse(&keys).map_err(|e| Error::invalid(format!("{}: {}", e.path, e.message)))?;
        let env: Rc<dyn Env> = self.env();
        let mut with = Build { level: self.level, metadata, ..Build::new(name, &env, children) };
        if kind.traits.keeps {
            // The record is made once, on new disks, and is there from then on.
            let (keep, is_new) = SimKeep::open(&self.env, name).await?;
            with.keep = Some(keep);
            with.begin = if is_new { Begin::Format } else { Begin::Open };
        }
        let layer = keys.build(with).await?;
        Ok(self.node(name, kind.name, layer))
    }

    /// Nodes made so far, those below first.
    pub(crate) fn nodes(&self) -> Vec<Rc<Node>> {
        self.nodes.borrow().clone()
    }

    /// Nodes of simulated disks.
    pub(crate) fn disk_nodes(&self) -> Vec<Rc<Node>> {
        self.nodes().into_iter().filter(|node| node.kind() == "simulated").collect()
    }

    /// Removes and returns the nodes between the disks and `top`, those above first.
    pub(crate) fn take_built(&self, top: &Rc<Node>) -> Vec<Rc<Node>> {
        let mut nodes = self.nodes.borrow_mut();
        let between = |node: &mut Rc<Node>| node.kind() != "simulated" && !Rc::ptr_eq(node, top);
        let mut taken: Vec<_> = nodes.extract_if(.., between).collect();
        taken.reverse();
        taken
    }

    /// `top` stays in the place of the node `again`, whose layer it took over.
    pub(crate) fn put_in_place(&self, again: &Rc<Node>, top: &Rc<Node>) {
        let mut nodes = self.nodes.borrow_mut();
        nodes.retain(|node| !Rc::ptr_eq(node, again) && !Rc::ptr_eq(node, top));
        nodes.push(Rc::clone(top));
    }

    /// Forgets all nodes, so that the next build makes new ones over the same disks.
    pub(crate) fn forget_nodes(&self) {
        self.nodes.take();
    }

    /// Draws what disk `n` is.
    fn draw(&self, n: usize) -> DiskOptions {
        let mut rng = self.rng.borrow_mut();
        let block = u64::from(self.block);
        let size = self.disk_min + rng.u64(0..=self.disk_min / block) * block;
        let geometry = Geometry {
            block: self.block,
            optimal: self.block.max(4096 >> rng.u8(0..4)),
            discard: rng.bool(),
            zero: rng.bool(),
            fua: rng.bool(),
            ..Geometry::new(size)
        };
        DiskOptions {
            geometry,
            latency_max: Duration::from_nanos([0, 1_000, 100_000, 10_000_000][rng.usize(0..4)]),
            instant: [0, 32, 128, 255][rng.usize(0..4)],
            junk: rng.bool().then_some(stamp::FOREIGN + n as u32),
            contents: Contents::Cached,
        }
    }
}
