//! The destager gives way to writes, and only as long as nobody waits for the store.

use super::failures::disk;
use super::neighbours::{MIB, Volume, cache, over};
use crate::testing::*;
use lamina_block::{Begin, Geometry, Layer, Manage, Op, Passthrough, Step};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use std::cell::Cell;
use std::time::Duration;

/// A store that takes a millisecond for a write, and knows the most that were under way together.
struct Store {
    below: Rc<Node>,
    env: Rc<SimEnv>,
    now: Cell<usize>,
    most: Cell<usize>,
}

impl Layer for Store {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if !matches!(io.op, Op::Write(..)) {
            return Step::Forward(Rc::clone(&self.below));
        }
        let io = io.take();
        Step::control(async move {
            self.now.set(self.now.get() + 1);
            self.most.set(self.most.get().max(self.now.get()));
            self.env.sleep(Duration::from_millis(1)).await;
            let written = self.below.submit(io).await;
            self.now.set(self.now.get() - 1);
            written
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.below)
    }
}

impl Manage for Store {}

/// A volume on a flash of 64 MiB, and its store.
async fn volume(env: &Rc<SimEnv>) -> (Volume, Rc<Store>) {
    for (name, size) in [("a", 64 * MIB), ("flash", 64 * MIB)] {
        env.put_disk(name, Image::blank(DiskOptions::new(size)));
    }
    let cache = cache(env, Begin::Format).await;
    let (below, now, most) = (disk(env, "a"), Cell::new(0), Cell::new(0));
    let store = Rc::new(Store { below, env: Rc::clone(env), now, most });
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let node = Node::new("store", "store", world, Rc::clone(&store) as _);
    let volume = over(env, node, &cache, json!({ "sequential-cutoff": "0" }), Begin::Format).await;
    store.most.set(0);
    (volume, store)
}

/// `count` writes, `every` after the one before, no two of them neighbours: 400 blocks again and again.
async fn write(env: &SimEnv, volume: &Volume, count: u64, every: Duration) {
    for i in 0..count {
        volume.write(i % 400 * 2, i as u8).await.expect("written");
        env.sleep(every).await;
    }
}

const AT_ONCE: Duration = Duration::from_micros(200);
const NOW_AND_THEN: Duration = Duration::from_millis(1);

#[test]
fn while_a_guest_writes_the_store_gets_one_write_at_a_time() {
    let world = Simulation::new(1);
    let env = world.env();
    let test = async move {
        let (volume, store) = volume(&env).await;
        write(&env, &volume, 5000, AT_ONCE).await;
        let brought = volume.figure("destaged_bytes");
        assert!(store.most.get() == 1 && brought > 0, "{} at a time, {brought} bytes", store.most.get());
        // It has paused: nothing is held back any more.
        env.sleep(Duration::from_millis(1000)).await;
        assert!(store.most.get() > 16, "{} at a time", store.most.get());
        assert_eq!(volume.figure("dirty_bytes"), 0);
    };
    world.run(test).expect("it ends");
}

#[test]
fn nobody_who_waits_for_the_store_waits_for_a_guest_to_pause() {
    let world = Simulation::new(1);
    let env = world.env();
    let test = async move {
        let (volume, store) = volume(&env).await;
        write(&env, &volume, 2000, AT_ONCE).await;
        let node = Rc::clone(&volume.node);
        let drain = Command { name: "drain".into(), args: json!({}) };
        let drained = env.start(async move { node.control(drain).await });
        write(&env, &volume, 300, AT_ONCE).await;
        assert!(store.most.get() > 16, "{} at a time", store.most.get());
        drained.ended().await.expect("drained");
    };
    world.run(test).expect("it ends");
}

#[test]
fn a_guest_with_two_writes_in_flight_is_not_given_way_to() {
    let world = Simulation::new(1);
    let env = world.env();
    let test = async move {
        let (volume, store) = volume(&env).await;
        for i in 0..3500 {
            let [one, two] = [0, 1].map(|n| volume.write((2 * i + n) % 400 * 2, i as u8));
            let (one, two) = futures_util::future::join(one, two).await;
            one.and(two).expect("written");
            env.sleep(AT_ONCE).await;
        }
        assert!(store.most.get() > 16, "{} at a time", store.most.get());
    };
    world.run(test).expect("it ends");
}

#[test]
fn a_guest_that_writes_now_and_then_is_not_given_way_to() {
    let world = Simulation::new(1);
    let env = world.env();
    let test = async move {
        let (volume, store) = volume(&env).await;
        write(&env, &volume, 1000, NOW_AND_THEN).await;
        assert!(store.most.get() > 16, "{} at a time", store.most.get());
    };
    world.run(test).expect("it ends");
}
