//! Hosts in front of one store, each with a flash of its own, a vault that all of them reach, and guests that write.

mod group;
mod invariants;
mod story;

pub use group::Group;
pub use invariants::{Invariants, is_wrong};
pub use story::{is_told, tell, tell_logs};

use super::*;
use crate::testing::history::{Checked, History, told};
use lamina_block::{Address, Begin, Build};
use lamina_cluster::Uuid;
use lamina_sim::{
    DiskOptions, Image, Loss, Presence, SimDisk, SimEnv, SimHost, SimKeep, SimRemote, Simulation,
};
use std::cell::{Cell, RefCell};
use std::rc::Weak;

pub const SIZE: u64 = 256 << 10;
pub const BLOCKS: u64 = SIZE / crate::testing::history::BLOCK;
/// Sectors side by side that one worker writes, two blocks of the flash; and how many workers there are.
pub const OWN: u64 = 16;
pub const WORKERS: u64 = 3;
pub const VAULT: &str = "/vault";
pub const LEASE: Duration = Duration::from_secs(5);
/// Hosts, and the bytes of a flash.
pub const HOSTS: [&str; 5] = ["a", "b", "c", "d", "e"];
pub const FLASH: u64 = 2 << 20;

pub fn world(seed: u64) -> Simulation {
    let world = Simulation::new(seed);
    put(&world.env(), "store", SIZE, Duration::from_millis(20));
    HOSTS.iter().for_each(|host| drop(put(&world.env(), &format!("flash-{host}"), FLASH, FAST)));
    world
}

/// The longest that a request takes on a flash.
const FAST: Duration = Duration::from_micros(100);

/// A new disk in the place of whatever is there.
fn put(world: &Rc<SimEnv>, name: &str, size: u64, latency: Duration) -> Rc<SimDisk> {
    let mut options = DiskOptions::new(size);
    options.latency_max = latency;
    world.put_disk(name, Image::blank(options))
}

/// A flash of another size in the place of that of a host.
pub fn put_flash(world: &Rc<SimEnv>, host: &str, size: u64) {
    put(world, &format!("flash-{host}"), size, FAST);
}

/// The device of a host's flash, which has the state records of its hierarchy as well, works or does not.
pub fn set_device(world: &Rc<SimEnv>, host: &str, presence: Presence) {
    let suffix = format!("-{host}");
    let disks = world.disks().into_iter().filter(|disk| disk.name().ends_with(&suffix));
    disks.for_each(|disk| disk.set_presence(presence));
}

pub fn address(host: &str) -> Address {
    Address::Tcp(format!("{host}:7000"))
}

/// A host, whose process serves the volume.
pub struct Serves {
    pub name: &'static str,
    pub env: Rc<SimHost>,
    pub vm: Rc<Node>,
    pub below: [Rc<Node>; 2],
    /// Its way to the store.
    pub store: Rc<SimRemote>,
    /// How far its store was, when it had the volume last, and the generation.
    checkpoint: Cell<Option<(u64, u64)>>,
}

async fn layer(
    env: &Rc<SimHost>,
    kind: Kind,
    name: &str,
    keys: Value,
    over: Vec<Rc<Node>>,
    begin: Begin,
) -> Result<Rc<Node>> {
    let (keep, _) = SimKeep::open(env.world(), name).await?;
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let with = Build { keep: Some(keep), begin, ..Build::new(name, &world, over) };
    let layer = kind.parse(&keys).unwrap_or_else(|e| panic!("{}", e.message)).build(with).await?;
    Ok(Node::new(name, kind.name, world, layer))
}

impl Serves {
    /// A process begins.
    pub async fn open(world: &Rc<SimEnv>, host: &'static str, peers: usize, begin: Begin) -> Result<Serves> {
        Serves::open_with(world, host, json!({ "peers": peers }), json!({}), begin).await
    }

    /// The same with more keys, of the device and of the reservation.
    pub async fn open_with(
        world: &Rc<SimEnv>,
        host: &'static str,
        more: Value,
        of_reservation: Value,
        begin: Begin,
    ) -> Result<Serves> {
        let with = |keys: Value, more: Value| {
            let tables = [keys, more].into_iter().filter_map(|table| table.as_object().cloned());
            Value::Object(tables.flatten().collect())
        };
        let env = SimHost::new(world, host);
        let named = |what: &str| format!("{what}-{host}");
        let node = |name: &str, layer| Node::new(name, "simulated", Rc::clone(&env) as _, layer);
        let lease = format!("{}s", LEASE.as_secs());
        let listen = address(host).to_string();
        let mut keys = json!({ "vault": VAULT, "volume": "vm1", "host": host, "listen": listen });
        (keys["lease"], keys["settles"]) = (json!(lease), json!("1s"));
        let keys = with(keys, of_reservation);
        let remote = SimRemote::open(world, "store").expect("it was put there");
        let store = vec![node("store", Rc::clone(&remote) as _)];
        let kind = Kind::of::<lamina_hosts::reservation::Keys>();
        let store = layer(&env, kind, &named("store"), keys, store, begin).await?;
        let flash = vec![node(&named("flash"), world.disk(named("flash")).expect("it was put there"))];
        let flash =
            layer(&env, Kind::of::<crate::flash::Keys>(), &named("cache"), json!({}), flash, begin).await?;
        let keys = with(json!({ "store-timeout": "3s" }), more);
        let over = vec![Rc::clone(&store), Rc::clone(&flash)];
        let vm = layer(&env, Kind::of::<crate::accelerate::Keys>(), &named("vm"), keys, over, begin).await?;
        // As the hierarchy says it.
        store.set_above(vec![Rc::downgrade(&vm)]);
        Ok(Serves { name: host, env, vm, below: [store, flash], store: remote, checkpoint: Cell::new(None) })
    }

    pub async fn close(&self) -> Result<()> {
        let mut closed = self.vm.close().await;
        for node in &self.below {
            closed = closed.and(node.close().await);
        }
        closed
    }

    /// The flash, by its UUID.
    pub fn flash(&self) -> Option<Uuid> {
        let env: Rc<dyn Env> = Rc::clone(&self.env) as _;
        crate::flash::cache_of(&self.below[1], &env).ok().and_then(|cache| cache.uuid())
    }

    /// Ends its tasks, and gives its disks other contents.
    fn dies(&self, contents: impl Fn(&SimDisk) -> Image) {
        self.env.kill();
        self.store.end();
        let (world, suffix) = (self.env.world(), format!("-{}", self.name));
        for disk in world.disks().iter().filter(|disk| disk.name().ends_with(&suffix)) {
            world.put_disk(disk.name(), contents(disk));
        }
    }

    /// The process dies, as by SIGKILL: the other ends of its connections see that, unless they are cut off.
    pub fn kill(&self) {
        self.dies(SimDisk::orphan);
        self.env.world().net().cut_host(self.name);
    }

    /// The machine loses its power: nobody is told, and what its flash had not made durable may be lost.
    pub fn lose_power(&self, loss: Loss) {
        let seed = self.env.world().random();
        self.dies(|disk| disk.image(loss, seed));
        self.env.world().net().silence_host(self.name);
    }

    /// Whether writes are acknowledged from flash.
    pub fn is_write_back(&self) -> bool {
        self.vm.info()["policy"] == json!("write-back")
    }

    /// Waits until writes are acknowledged from flash.
    pub async fn paired(&self) -> Checked {
        for _ in 0..2000 {
            if self.is_write_back() {
                return Ok(());
            }
            self.env.world().sleep(Duration::from_millis(50)).await;
        }
        Err(format!("I10: {}: no peers: {}", self.name, self.vm.info()["peers"]))
    }

    pub async fn command(&self, name: &str, args: Value) -> Result<Value> {
        self.vm.control(Command { name: name.into(), args }).await
    }
}

/// The hosts know the volume, and none has it.
pub async fn create(world: &Rc<SimEnv>, hosts: &[&'static str]) -> Checked {
    let peers = (hosts.len() - 1).min(3);
    for host in hosts {
        let made = Serves::open(world, host, peers, Begin::Format).await.map_err(told("created"))?;
        made.close().await.map_err(told("closed"))?;
        made.env.kill();
    }
    Ok(())
}

/// Requests of a guest on a host, which it uses until they are over or the host is. Each worker has blocks of its own.
/// One whose requests have no end thinks between them, and goes on after an error.
pub fn guest(seen: &Rc<Invariants>, serves: &Serves, worker: u64, requests: u64) -> Rc<Guest> {
    let guest = Rc::new(Guest {
        env: Rc::clone(&serves.env),
        vm: Rc::clone(&serves.vm),
        is_over: Cell::new(false),
        requests: Cell::new(0),
        ends: Cell::new(false),
        failed: RefCell::default(),
    });
    let (seen, world) = (Rc::clone(seen), Rc::clone(serves.env.world()));
    let (vm, counts, host) = (Rc::clone(&serves.vm), Rc::clone(&guest), serves.name);
    let is_endless = requests == u64::MAX;
    serves.env.spawn(Box::pin(async move {
        let _uses = vm.use_it();
        for _ in 0..requests {
            if counts.ends.get() {
                break;
            }
            if let Err(e) = request(&seen, &world, host, &vm, worker).await {
                let is_fenced = e.contains("has it now");
                counts.failed.replace(Some(format!("{host}: {e}")));
                if !is_endless || is_fenced {
                    break;
                }
                world.sleep(Duration::from_millis(300)).await;
            }
            counts.requests.set(counts.requests.get() + 1);
            if is_endless {
                world.sleep(Duration::from_micros(world.random() % 60_000)).await;
            }
        }
        counts.is_over.set(true);
    }));
    guest
}

pub struct Guest {
    pub env: Rc<SimHost>,
    vm: Rc<Node>,
    pub is_over: Cell<bool>,
    pub requests: Cell<u64>,
    pub ends: Cell<bool>,
    pub failed: RefCell<Option<String>>,
}

impl Guest {
    /// It asks for nothing more, and has nothing under way unless its host is stopped.
    pub async fn ended(&self, world: &Rc<SimEnv>) -> Checked {
        self.ends.set(true);
        for _ in 0..6000 {
            if self.is_over.get() || !self.env.is_running() {
                return Ok(());
            }
            world.sleep(Duration::from_millis(20)).await;
        }
        let (host, info) = (self.env.name(), self.vm.info());
        Err(format!("I10: {host}: a request has no answer after two minutes: {info}"))
    }

    /// True if it may have something under way.
    pub fn may_write(&self) -> bool {
        !self.is_over.get() && !self.env.is_dead()
    }

    pub async fn has_done(&self, world: &Rc<SimEnv>, requests: u64) -> Checked {
        for _ in 0..60_000 {
            if let Some(e) = &*self.failed.borrow() {
                return Err(e.clone());
            }
            if self.requests.get() >= requests {
                return Ok(());
            }
            world.sleep(Duration::from_millis(10)).await;
        }
        Err(format!("I10: {} of {requests} requests after ten minutes", self.requests.get()))
    }
}

/// A request of a worker's. On a host that does not have the volume the first ones read, as a guest does that starts: a
/// write that waits for its turn would come after what others have written meanwhile.
pub async fn request(
    seen: &Rc<Invariants>,
    env: &Rc<SimEnv>,
    host: &str,
    vm: &Rc<Node>,
    worker: u64,
) -> Checked {
    let history = &seen.history;
    let end = (env.random() % (BLOCKS / OWN / WORKERS) * WORKERS + worker + 1) * OWN;
    let block = end - 1 - env.random() % OWN;
    let (asked, draw) = (seen.asks(host), env.random() % 8);
    let draw = if seen.has_it(host) { draw } else { 7 };
    let is_write = draw < 5;
    match draw {
        0..=4 => {
            let to = end.min(block + 1 + env.random() % OWN);
            write(history, env, vm, block..to, env.random().is_multiple_of(4))
                .await
                .map_err(told("a write"))?;
        }
        5 => return seen.flush(host, vm).await.map_err(told("a flush")),
        _ => seen.read(vm, block..block + 1).await?,
    }
    seen.answered(host, asked, is_write)
}

/// A write with a number of its own.
pub async fn write(
    history: &History,
    env: &Rc<SimEnv>,
    vm: &Rc<Node>,
    at: std::ops::Range<u64>,
    fua: bool,
) -> Result<()> {
    history.ids.set(history.ids.get() + 1);
    history.write(env, vm, at, history.ids.get(), fua).await
}

/// True if one of these seeds shows the flaw.
pub fn caught(flaw: &'static str, mut run: impl FnMut(u64) -> Checked, seeds: u64) -> bool {
    FLAW.set(Some(flaw));
    let caught = (0..seeds).any(|seed| run(seed).is_err());
    FLAW.set(None);
    caught
}
