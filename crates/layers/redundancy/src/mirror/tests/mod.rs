//! A world of small disks, and mirrors over them.

mod canaries;
mod crash;
pub mod cut;
mod degraded;
mod scrub;
mod spread;

use crate::testing::history::{BLOCK, History};
pub use crate::testing::*;
use lamina_block::{Begin, Build, Children};
use lamina_sim::{DiskOptions, Image, Loss, Presence, SimEnv, SimKeep, Simulation};
use std::time::Duration;

pub fn subject() -> Subject {
    Subject::layer(&Kind::of::<super::Keys>(), json!({ "region": "16KiB" }), 2).disks_of(256 << 10)
}

pub const DISK: u64 = 256 << 10;
/// Bytes of a mirror over such disks.
pub const SIZE: u64 = history::SIZE;

/// A mirror, open.
pub struct Open {
    pub env: Rc<SimEnv>,
    pub node: Rc<Node>,
    pub legs: Children,
}

pub fn world(seed: u64) -> Simulation {
    let world = Simulation::new(seed);
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        let mut options = DiskOptions::new(DISK + 4096 * n as u64);
        options.latency_max = Duration::from_micros(if (seed >> n).is_multiple_of(2) { 100 } else { 2000 });
        options.geometry.fua = seed >> 1 & 1 == n as u64;
        options.geometry.zero = seed.is_multiple_of(3);
        options.junk = Some(0xF000_0000 + n as u32);
        world.env().put_disk(name, Image::blank(options));
    }
    world
}

pub fn child(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "simulated", Rc::clone(env) as _, env.disk(name).expect("it was put there"))
}

pub async fn open_with(
    env: &Rc<SimEnv>,
    legs: Children,
    keys: Value,
    begin: Begin,
    leaving: &[&str],
) -> Result<Open> {
    let (keep, _) = SimKeep::open(env, "mirror").await?;
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let leaving = leaving.iter().map(|name| name.to_string()).collect();
    let with = Build { keep: Some(keep), begin, leaving, ..Build::new("mirror", &world, legs.clone()) };
    let kind = Kind::of::<crate::mirror::Keys>();
    let layer = kind.parse(&keys).unwrap_or_else(|e| panic!("{}", e.message)).build(with).await?;
    Ok(Open { env: Rc::clone(env), node: Node::new("mirror", kind.name, world, layer), legs })
}

pub async fn open(env: &Rc<SimEnv>, over: &[&str], keys: Value, begin: Begin) -> Result<Open> {
    let legs = over.iter().map(|name| child(env, name)).collect();
    open_with(env, legs, keys, begin, &[]).await
}

pub fn keys() -> Value {
    json!({ "region": "16KiB", "leg-timeout": "1h" })
}

impl Open {
    pub async fn command(&self, name: &str, args: Value) -> Result<Value> {
        self.node.control(Command { name: name.into(), args }).await
    }

    /// The roles of the legs.
    pub fn roles(&self) -> Vec<String> {
        let info = self.node.info();
        let legs = info["legs"].as_array().expect("legs").clone();
        legs.iter().map(|leg| leg["is"].as_str().expect("a word").to_owned()).collect()
    }

    pub fn found(&self, what: &str) -> u64 {
        self.node.info()["found"][what].as_u64().expect("a number")
    }

    /// Waits until `done`, for ten minutes at most.
    pub async fn until(&self, what: &str, done: impl Fn(&Open) -> bool) {
        for _ in 0..6000 {
            if done(self) {
                return;
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
        panic!("{what} does not come: {:#}", self.node.info());
    }

    /// Waits until nothing has to be copied.
    pub async fn whole(&self) {
        let is_whole = |open: &Open| {
            let busy = |role: &String| role == "rebuilding" || role == "away";
            !open.roles().iter().any(busy)
                && open.node.info()["needs_resync_bytes"] == 0
                && open.node.jobs().is_empty()
        };
        self.until("the end of the rebuild", is_whole).await;
    }

    /// A disk fails everything, or is there again, perhaps after a power loss of its own.
    pub fn set_here(&self, name: &str, here: bool) {
        let presence = if here { Presence::Here } else { Presence::Failing };
        self.env.disk(name).expect("a disk").set_presence(presence);
    }

    /// A disk goes away, which a flush notices, before legs have been made the same after a crash; and comes
    /// back later.
    pub async fn absence(&self, name: &str) {
        self.set_here(name, false);
        let _ = self.node.submit(Io::flush()).await;
        self.env.sleep(Duration::from_secs(1 + self.env.random() % 4)).await;
        self.set_here(name, true);
    }

    /// A disk comes back after a power loss of its own.
    pub async fn cycle(&self, name: &str, seed: u64) {
        let node = self.legs.iter().find(|leg| leg.name() == name).expect("a leg");
        let held = node.quiesce().await;
        let image = self.env.disk(name).expect("a disk").image(Loss::All, seed);
        let disk = self.env.put_disk(name, image);
        held.replace("simulated", disk);
    }

    /// Every leg that is in sync holds the same bytes.
    pub async fn same(&self) -> std::result::Result<(), String> {
        let mut copies = Vec::new();
        for (leg, role) in self.legs.iter().zip(self.roles()).filter(|(_, role)| role == "in sync") {
            copies.push((leg.name().to_owned(), role, bytes_of(leg, 0..SIZE).await));
        }
        for pair in copies.windows(2) {
            let at = pair[0].2.chunks(512).zip(pair[1].2.chunks(512)).position(|(a, b)| a != b);
            if let Some(block) = at {
                return Err(format!("{} and {} differ in block {block}", pair[0].0, pair[1].0));
            }
        }
        Ok(())
    }
}

pub async fn bytes_of(node: &Rc<Node>, at: Range<u64>) -> Vec<u8> {
    let buf = Buf::from_vec(vec![0xEE; (at.end - at.start) as usize]);
    node.submit(Io::read(at.start, buf.clone())).await.expect("read");
    buf.to_vec()
}

/// Zeroes everything, and says so.
pub async fn fill(history: &History, open: &Open) {
    for block in (0..SIZE / BLOCK).step_by(8) {
        history.write(&open.env, &open.node, block..block + 8, 1, false).await.expect("written");
    }
    history.flush(&open.env, &open.node).await.expect("flushed");
}
