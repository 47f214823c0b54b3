//! Several volumes on one flash, and what goes wrong with one of them, or with a part of what they share: a
//! fault stays with what it touches, and ends with its cause.

use super::failures::{disk, layer};
use crate::testing::*;
use lamina_block::{Begin, Error, Geometry, Layer, Manage, Op, Passthrough, Pending, Step};
use lamina_sim::{DiskOptions, Image, Presence, SimEnv, Simulation};
use std::time::Duration;

pub const MIB: u64 = 1 << 20;

/// Puts a flash of 4 MiB there, and these stores.
pub fn put_disks(env: &Rc<SimEnv>, stores: &[(&str, u64)]) {
    for (name, size) in stores.iter().chain(&[("flash", 4 * MIB)]) {
        let mut options = DiskOptions::new(*size);
        options.latency_max = Duration::from_micros(100);
        env.put_disk(name, Image::blank(options));
    }
}

/// A world with a flash and these stores, in which `test` ends.
pub fn simulate<F: Future<Output = ()> + 'static>(
    stores: &[(&str, u64)],
    test: impl FnOnce(Rc<SimEnv>) -> F,
) {
    let world = Simulation::new(1);
    put_disks(&world.env(), stores);
    world.run(test(world.env())).expect("it ends");
}

pub async fn cache(env: &Rc<SimEnv>, begin: Begin) -> Rc<Node> {
    let over = vec![disk(env, "flash")];
    layer(env, Kind::of::<crate::flash::Keys>(), "cache", json!({}), over, begin).await.expect("the flash")
}

/// A volume in front of `store`.
pub struct Volume {
    pub node: Rc<Node>,
}

pub async fn over(env: &Rc<SimEnv>, store: Rc<Node>, cache: &Rc<Node>, keys: Value, begin: Begin) -> Volume {
    let (name, over) = (format!("of {}", store.name()), vec![store, Rc::clone(cache)]);
    let kind = Kind::of::<crate::accelerate::Keys>();
    Volume { node: layer(env, kind, &name, keys, over, begin).await.expect("a volume") }
}

pub async fn volume(env: &Rc<SimEnv>, store: &str, cache: &Rc<Node>) -> Volume {
    over(
        env,
        disk(env, store),
        cache,
        json!({ "store-timeout": "1s", "sequential-cutoff": "0" }),
        Begin::Format,
    )
    .await
}

impl Volume {
    pub async fn write(&self, block: u64, value: u8) -> Result<()> {
        self.node.submit(Io::write(block * 4096, Buf::from_vec(vec![value; 4096]), Durability::Cached)).await
    }

    pub async fn read(&self, block: u64) -> Result<u8> {
        let buf = Buf::zeroed(4096);
        self.node.submit(Io::read(block * 4096, buf.clone())).await?;
        Ok(buf.to_vec()[0])
    }

    pub async fn command(&self, name: &str) -> Result<Value> {
        self.node.control(Command { name: name.into(), args: json!({}) }).await
    }

    pub fn figure(&self, name: &str) -> u64 {
        self.node.info()[name].as_u64().expect("a number")
    }
}

/// A store that takes its time to say what it holds.
struct Slow(Rc<Node>, Rc<SimEnv>);

impl Layer for Slow {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Forward(Rc::clone(&self.0))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.0)
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let told = self.0.extents(at).await?;
            self.1.sleep(Duration::from_secs(5)).await;
            Ok(told)
        })
    }
}

impl Manage for Slow {}

#[test]
fn what_gets_to_the_store_while_it_is_asked_is_no_hole() {
    simulate(&[("a", 8 * MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let world: Rc<dyn Env> = Rc::clone(&env) as _;
        let slow = Node::new("slow", "slow", world, Rc::new(Slow(disk(&env, "a"), Rc::clone(&env))));
        let a = over(&env, slow, &cache, json!({ "sequential-cutoff": "0" }), Begin::Format).await;
        a.write(5, 7).await.expect("written");
        let node = Rc::clone(&a.node);
        let asked = env.start(async move { node.extents(4 * 4096..7 * 4096).await });
        // It gets to the store, and others need its place on the flash.
        env.sleep(Duration::from_millis(1500)).await;
        for block in 10..2000 {
            a.read(block).await.expect("read");
            if block % 200 == 0 {
                env.sleep(Duration::from_millis(200)).await;
            }
        }
        let told = asked.ended().await.expect("told");
        let mut at = 4 * 4096;
        let mut data = Vec::new();
        for run in &told {
            data.extend((run.state == ExtentState::Data).then_some(at..at + run.len));
            at += run.len;
        }
        assert_eq!((data.len(), data.first(), at), (1, Some(&(5 * 4096..6 * 4096)), 7 * 4096), "{told:?}");
    });
}

#[test]
fn what_is_written_again_and_again_is_remembered_once() {
    simulate(&[("a", MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let a = volume(&env, "a", &cache).await;
        for block in 0..200 {
            a.write(block, 1).await.expect("written");
        }
        a.command("drain").await.expect("drained");
        env.disk("a").expect("a disk").set_presence(Presence::Failing);
        for n in 0..20_000u64 {
            a.write(n % 8, (n % 199) as u8).await.expect("written");
        }
        assert_eq!(a.figure("dirty_bytes"), 8 * 4096);
        let records = a.figure("dirty_writes");
        assert!(records <= 4200, "{records} for 8 blocks");
        env.disk("a").expect("a disk").set_presence(Presence::Here);
        a.command("drain").await.expect("drained");
        let store = over(&env, disk(&env, "a"), &cache, json!({ "policy": "uncached" }), Begin::Format).await;
        for block in 0..8 {
            assert_eq!(store.read(block).await, Ok(((19_992 + block) % 199) as u8), "block {block}");
        }
        assert_eq!(store.read(8).await, Ok(1));
    });
}

/// The file of the flash is on a file system that is full for a while.
#[test]
fn a_flash_without_space_is_read_and_goes_on_when_there_is_space() {
    simulate(&[("a", MIB), ("b", MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let (a, b) = (volume(&env, "a", &cache).await, volume(&env, "b", &cache).await);
        let (at_a, at_b) = (env.disk("a").expect("a disk"), env.disk("b").expect("a disk"));
        b.write(1, 5).await.expect("written");
        b.command("drain").await.expect("drained");
        at_a.set_presence(Presence::Failing);
        at_b.set_presence(Presence::Failing);
        a.write(0, 7).await.expect("written");
        // From now on only what has been written before can be written again.
        let slots = u64::from(crate::flash::SLOT as u32);
        env.set_fault(Some(Box::new(move |_, disk, io| {
            let grows = disk == "flash" && matches!(io.op, Op::Write(..)) && io.at.start >= 8 * slots;
            grows.then(|| Error::new(ErrorKind::NoSpace, "no space is left"))
        })));
        for n in 0..20 {
            let e = a.write(n, 8).await.expect_err("no space");
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            env.sleep(Duration::from_millis(50)).await;
        }
        // Dirty, clean on the flash alone as the store is away, and never there.
        assert_eq!((a.read(0).await, b.read(1).await), (Ok(7), Ok(5)));
        at_a.set_presence(Presence::Here);
        at_b.set_presence(Presence::Here);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!((a.figure("dirty_bytes"), a.read(9).await), (0, Ok(0)), "the store gets what there is");
        a.write(1, 9).await.expect_err("no space");
        env.set_fault(None);
        env.sleep(Duration::from_secs(1)).await;
        a.write(1, 9).await.expect("there is space again");
        assert_eq!((a.read(1).await, a.node.info()["policy"].clone()), (Ok(9), json!("write-back")));
    });
}
