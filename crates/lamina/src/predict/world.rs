//! The world that a hierarchy is opened in for a prediction: virtual time, and simulated drives in the place of disks.
//!
//! ```text
//!   clients ──▶ layers of the file ──▶ queue, if the file has none ──▶ stopwatch ──▶ simulated drive
//!               as they are            follows the policy              service       a model, or no time
//! ```
//!
//! Nothing of the real machine is touched but small files that layers read, such as models and keys.

use super::figures::Service;
use super::log::Log;
use super::policy::has_policy;
use crate::files;
use lamina_block::{
    Address, Build, Config, Conn, Env, Error, Geometry, Io, Kind, Layer, Listener, Made, Manage, Node,
    OpenDisk, Passthrough, Pending, Pool, Question, Result, Step, Time,
};
use lamina_sim::SimEnv;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::future::Future;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// Every kind of layer, for use in this world: a sink that is a server becomes a simulated drive like other sinks.
pub fn kinds() -> Vec<Kind> {
    let is_server = |kind: &Kind| kind.traits.outside.iter().any(|outside| outside.stored && outside.address);
    let as_drive = |kind: Kind| {
        if !is_server(&kind) {
            return kind;
        }
        let mut drive = Kind::of::<Server>();
        (drive.name, drive.traits.outside) = (kind.name, kind.traits.outside);
        drive
    };
    files::kinds().into_iter().map(as_drive).collect()
}

/// The path in this world of the drive in the place of the server that a device stands for.
pub fn server_path(device: &str) -> PathBuf {
    Path::new("/server").join(device)
}

/// A sink on a server: its keys mean nothing here.
#[derive(Deserialize)]
#[serde(transparent)]
struct Server(#[expect(dead_code, reason = "any keys are accepted")] Value);

impl Config for Server {
    const KIND: &'static str = "server";
    const SUMMARY: &'static str = "a drive in the place of a server";
    const CHILDREN: RangeInclusive<usize> = 0..=0;

    fn build(self, with: Build) -> Pending<Made> {
        let path = server_path(&with.name);
        with.env.open_disk(OpenDisk { path, read_only: false, direct: true, create: None, block: None })
    }
}

/// The queue that is put above each drive if the hierarchy has none.
#[derive(Clone)]
pub struct Queue {
    kind: Kind,
    keys: Map<String, Value>,
    /// The names of the drives' models, by their paths.
    models: BTreeMap<PathBuf, String>,
}

impl Queue {
    /// A queue with these keys, which knows the drive below by its model unless the keys name another one.
    pub fn new(keys: Map<String, Value>, models: BTreeMap<PathBuf, String>) -> Result<Queue> {
        let kind = files::kinds().into_iter().find(has_policy);
        let kind = kind.ok_or_else(|| Error::unsupported("there is no kind of layer that has a policy"))?;
        Ok(Queue { kind, keys, models })
    }

    async fn over(&self, path: &Path, drive: Rc<Node>, env: &Rc<dyn Env>, base: &Path) -> Result<Made> {
        let mut keys = self.keys.clone();
        if let Some(model) = self.models.get(path) {
            keys.entry("model").or_insert_with(|| model.as_str().into());
        }
        let keys = self.kind.parse(&Value::Object(keys));
        let keys = keys.map_err(|e| Error::invalid(format!("--policy: {}: {}", e.path, e.message)))?;
        keys.build(Build { base: base.into(), ..Build::new(drive.name(), env, vec![Rc::clone(&drive)]) })
            .await
    }
}

/// The environment. Its disks are those of the simulation, which have to be there before they are opened.
pub struct World {
    sim: Rc<SimEnv>,
    log: Rc<Log>,
    queue: Option<Queue>,
    /// Where relative paths of the queue's keys begin.
    base: PathBuf,
}

impl World {
    /// The world of a simulation. What its drives serve goes into `log`.
    pub fn new(sim: Rc<SimEnv>, log: Rc<Log>, queue: Option<Queue>, base: PathBuf) -> Rc<World> {
        Rc::new(World { sim, log, queue, base })
    }
}

impl Env for World {
    fn now(&self) -> Time {
        self.sim.now()
    }

    fn sleep(&self, d: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        self.sim.sleep(d)
    }

    fn ending(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.sim.ending()
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.sim.spawn(task);
    }

    fn random(&self) -> u64 {
        self.sim.random()
    }

    fn pool(&self) -> &Pool {
        self.sim.pool()
    }

    fn open_disk(&self, open: OpenDisk) -> Pending<Rc<dyn Layer>> {
        let (sim, log, queue) = (Rc::clone(&self.sim), Rc::clone(&self.log), self.queue.clone());
        let base = self.base.clone();
        Box::pin(async move {
            let path = open.path.clone();
            let disk = sim.open_disk(open).await?;
            let timed: Made = Rc::new(Stopwatch { disk, env: Rc::clone(&sim), log });
            let Some(queue) = queue else { return Ok(timed) };
            let env = sim as Rc<dyn Env>;
            let node = Node::new(&path.display().to_string(), "drive", Rc::clone(&env), timed);
            queue.over(&path, node, &env, &base).await
        })
    }

    fn connect(&self, to: Address) -> Pending<Rc<dyn Conn>> {
        Box::pin(async move { Err(Error::unsupported(format!("{to}: there is no network in a prediction"))) })
    }

    fn listen(&self, at: Address) -> Result<Rc<dyn Listener>> {
        Err(Error::unsupported(format!("{at}: there is no network in a prediction")))
    }

    fn read_file(&self, path: PathBuf, max: usize) -> Pending<Vec<u8>> {
        Box::pin(async move { read(&path, max) })
    }

    fn read_text(&self, path: PathBuf, max: usize) -> Pending<String> {
        Box::pin(async move { read_text(&path, max) })
    }

    /// A simulated volume opens with any passphrase: a prediction asks no person.
    fn ask_secret(&self, _: Question) -> Pending<Vec<u8>> {
        Box::pin(async { Ok(b"simulated".to_vec()) })
    }

    fn secret(&self, into: &mut [u8]) -> Result<()> {
        self.sim.secret(into)
    }
}

/// The bytes of a file of this machine, at most `max`.
fn read(path: &Path, max: usize) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::invalid(format!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() <= max {
        true => Ok(bytes),
        false => Err(Error::invalid(format!("{} is longer than {max} bytes", path.display()))),
    }
}

/// The text in a file of this machine, at most `max` bytes.
pub fn read_text(path: &Path, max: usize) -> Result<String> {
    let no_text = |_| Error::invalid(format!("{} is no text: it is not UTF-8", path.display()));
    String::from_utf8(read(path, max)?).map_err(no_text)
}

/// A drive whose requests are timed.
struct Stopwatch {
    disk: Rc<dyn Layer>,
    env: Rc<SimEnv>,
    log: Rc<Log>,
}

impl Layer for Stopwatch {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let (sent, offset) = (self.env.now(), io.at.start);
        match Rc::clone(&self.disk).submit(io) {
            Step::Control(work) => Step::control(async move {
                let result = work.await;
                self.log.served(Service { sent, ended: self.env.now(), offset });
                result
            }),
            Step::Done(result) => {
                self.log.served(Service { sent, ended: sent, offset });
                Step::Done(result)
            }
            // A simulated disk is a sink: there is nothing below that it could forward to.
            Step::Forward(below) => Step::Forward(below),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Stopwatch {}
