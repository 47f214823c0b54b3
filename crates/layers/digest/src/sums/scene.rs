//! A device with a table over a simulated disk, for tests.

use super::Sums;
use crate::testing::*;
use lamina_block::{Begin, Build, Layer};
use lamina_sim::{DiskOptions, Image, Images, SimEnv, Simulation};
use std::cell::RefCell;
use std::time::Duration;

pub const DISK: &str = "disk";
/// The disk for the table, if there is one.
pub const META: &str = "meta";

/// Makes a layer, and returns the sums it is built on.
pub type Maker =
    fn(Value, Build) -> std::pin::Pin<Box<dyn Future<Output = Result<(Rc<Sums>, Rc<dyn Layer>)>>>>;

/// How a device is built.
#[derive(Clone)]
pub struct How {
    pub make: Maker,
    pub keys: Value,
    pub meta: bool,
}

/// A device, open.
#[derive(Clone)]
pub struct Open {
    pub env: Rc<SimEnv>,
    pub node: Rc<Node>,
    pub sums: Rc<Sums>,
    pub disk: Rc<Node>,
}

fn options(size: u64) -> DiskOptions {
    let mut options = DiskOptions::new(size);
    options.latency_max = Duration::from_micros(50);
    options.geometry.discard = true;
    options.geometry.zero = true;
    options.junk = Some(0xF000_0001);
    options
}

/// Blank disks.
pub fn world(seed: u64) -> Simulation {
    let world = Simulation::new(seed);
    world.env().put_disk(DISK, Image::blank(options(512 << 10)));
    world.env().put_disk(META, Image::blank(options(512 << 10)));
    world
}

/// Runs `test` over blank disks.
pub fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = world(1);
    world.run(test(world.env())).expect("it ends");
}

pub fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "simulated", Rc::clone(env) as _, env.disk(name).expect("it was put there"))
}

pub async fn open(env: &Rc<SimEnv>, how: &How, begin: Begin) -> Result<Open> {
    let (disk, dyn_env) = (disk(env, DISK), Rc::clone(env) as Rc<dyn Env>);
    let metadata = how.meta.then(|| self::disk(env, META));
    let with = Build { begin, metadata, ..Build::new("top", &dyn_env, vec![Rc::clone(&disk)]) };
    let (sums, layer) = (how.make)(how.keys.clone(), with).await?;
    Ok(Open { env: Rc::clone(env), node: Node::new("top", "sums", dyn_env, layer), sums, disk })
}

impl Open {
    pub async fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.node.submit(Io::write(at, Buf::from_vec(bytes.to_vec()), Durability::Cached)).await
    }

    pub async fn read(&self, at: Range<u64>) -> Result<Vec<u8>> {
        let buf = Buf::from_vec(vec![0xEE; (at.end - at.start) as usize]);
        self.node.submit(Io::read(at.start, buf.clone())).await?;
        Ok(buf.to_vec())
    }

    pub async fn command(&self, name: &str, args: Value) -> Result<Value> {
        self.node.control(Command { name: name.into(), args }).await
    }

    /// Changes one byte below, as no layer would.
    pub async fn flip(&self, at: u64) {
        let (start, buf) = (self.sums.below(at) / 512 * 512, Buf::zeroed(512));
        self.disk.submit(Io::read(start, buf.clone())).await.expect("read");
        let mut byte = [0];
        buf.read((at % 512) as usize, &mut byte);
        buf.write((at % 512) as usize, &[byte[0] ^ 0x10]);
        self.disk.submit(Io::write(start, buf, Durability::Fua)).await.expect("written");
    }

    /// Waits until no range is intended or needs a resync.
    pub async fn resynced(&self) {
        while !self.sums.intent.is_empty() || !self.sums.jobs().is_empty() {
            self.env.sleep(Duration::from_micros(100)).await;
        }
    }

    /// Waits until no job is under way.
    pub async fn rested(&self) {
        self.sums.tasks.ended().await;
    }
}

/// Takes images of the disks before one in so many changes, until told to end.
pub struct Camera(Rc<RefCell<Vec<Images>>>);

impl Camera {
    pub fn start(env: &Rc<SimEnv>, seed: u64, one_in: u64) -> Camera {
        let images = Rc::new(RefCell::new(Vec::new()));
        let (weak, into) = (Rc::downgrade(env), Rc::clone(&images));
        let random = RefCell::new(xorshift(seed * 2 + 1));
        env.observe(Some(Rc::new(move || {
            let draw = || (random.borrow_mut())();
            let Some(env) = weak.upgrade().filter(|_| draw() % one_in == 0) else { return };
            into.borrow_mut().push(env.after_death(draw() >> 8, draw()));
        })));
        Camera(images)
    }

    pub fn end(self, env: &Rc<SimEnv>) -> Vec<Images> {
        env.observe(None);
        self.0.take()
    }
}
