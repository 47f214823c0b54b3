//! What the store has when a device is opened: a process, a policy or a host before may have acknowledged it, and only
//! the cache of the store may have it. A flush makes it durable. And what the store gets of them later.

use super::cluster::{Serves, create};
use super::failures::{disk, layer};
use super::hosts::is_dead;
use super::*;
use lamina_block::{Begin, Error, Op};
use lamina_sim::{DiskOptions, Image, Loss, Reach, SimEnv, Simulation};
use std::cell::Cell;

/// The last block is not whole: its writes go past the flash.
const SIZE: u64 = (256 << 10) + 1024;
const TAIL: u64 = SIZE - 1024;

/// What `work` leaves on the store, and what it leaves there with the canary.
fn with_and_without(work: impl Fn() -> u8) -> [u8; 2] {
    let left = work();
    FLAW.set(Some("what is found on the store counts as durable"));
    let flawed = work();
    FLAW.set(None);
    [left, flawed]
}

async fn put(vm: &Rc<Node>, at: u64, value: u8) {
    let write = Io::write(at, Buf::from_vec(vec![value; 1024]), Durability::Cached);
    vm.submit(write).await.expect("written");
}

/// What the store has at `at` when it has lost its power.
async fn survives(env: &Rc<SimEnv>, at: u64) -> u8 {
    env.put_disk("survives", env.disk("store").expect("a disk").image(Loss::All, 0));
    let into = Buf::zeroed(1024);
    disk(env, "survives").submit(Io::read(at, into.clone())).await.expect("read");
    into.to_vec()[0]
}

async fn opened(env: &Rc<SimEnv>, policy: &str, begin: Begin) -> Rc<Node> {
    let kind = Kind::of::<crate::flash::Keys>();
    let flash = layer(env, kind, "cache", json!({}), vec![disk(env, "flash")], begin).await.expect("a flash");
    let over = vec![disk(env, "store"), flash];
    let kind = Kind::of::<crate::accelerate::Keys>();
    layer(env, kind, "vm", json!({ "policy": policy }), over, begin).await.expect("a volume")
}

/// A process is killed after a write. The store cannot be flushed when the next one is opened, in write-back, and can
/// when that one is asked for a flush.
fn killed(policy: &'static str, at: u64) -> u8 {
    let world = Simulation::new(5);
    let env = world.env();
    env.put_disk("store", Image::blank(DiskOptions::new(SIZE)));
    env.put_disk("flash", Image::blank(DiskOptions::new(2 << 20)));
    let killed = world.run(async move {
        put(&opened(&env, policy, Begin::Format).await, at, 7).await;
        env.orphans()
    });
    let world = Simulation::from_images(1, &killed.expect("it ends"));
    let env = world.env();
    let left = world.run(async move {
        env.set_fault(Some(Box::new(|_, disk, io| {
            let is_hit = disk == "store" && matches!(io.op, Op::Flush);
            is_hit.then(|| Error::offline("it is away"))
        })));
        let vm = opened(&env, "write-back", Begin::Open).await;
        let early = vm.submit(Io::flush()).await;
        assert_eq!(early.is_err(), FLAW.get().is_none(), "{early:?}");
        env.set_fault(None);
        vm.submit(Io::flush()).await.expect("flushed");
        survives(&env, at).await
    });
    left.expect("it ends")
}

#[test]
fn what_went_past_the_flash_before_it_was_opened_is_flushed() {
    for (policy, at) in [("write-back", TAIL), ("write-through", TAIL), ("uncached", 0)] {
        assert_eq!(with_and_without(|| killed(policy, at)), [7, 0], "{policy}, at {at}");
    }
}

/// The store has lost something, and says so once, to the flush of a client: a batch under way is brought once more.
#[test]
fn what_a_store_says_once_a_batch_hears() {
    let world = Simulation::new(5);
    let env = world.env();
    env.put_disk("store", Image::blank(DiskOptions::new(SIZE)));
    env.put_disk("flash", Image::blank(DiskOptions::new(2 << 20)));
    let run = async move {
        let vm = opened(&env, "write-back", Begin::Format).await;
        let batches = |vm: &Rc<Node>| vm.info()["batches"].as_u64().expect("a number");
        let (is_written, mut is_over) = (Rc::new(Cell::new(false)), false);
        let writes = Rc::clone(&is_written);
        env.set_fault(Some(Box::new(move |_, disk, io| {
            let is_flush = disk == "store" && matches!(io.op, Op::Flush);
            writes.set(writes.get() || disk == "store" && matches!(io.op, Op::Write(..)) && io.at.start == 0);
            let fails = writes.get() && is_flush && !is_over;
            is_over |= fails;
            fails.then(|| Error::media("it has lost something"))
        })));
        put(&vm, 0, 7).await;
        put(&vm, TAIL, 7).await;
        // The batch waits for more.
        env.sleep(Duration::from_millis(490)).await;
        while !is_written.get() {
            env.sleep(Duration::from_micros(1)).await;
        }
        vm.submit(Io::flush()).await.expect_err("something is lost");
        env.sleep(Duration::from_millis(50)).await;
        assert_eq!(batches(&vm), 0, "what may be lost counts");
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(batches(&vm), 1);
    };
    world.run(run).expect("it ends");
}

/// A host acknowledges what the cache of the store has, and loses its power; the one that takes the volume has opened
/// its device before.
fn moved() -> u8 {
    let world = super::cluster::world(3);
    let env = world.env();
    let left = world.run(async move {
        create(&env, &["a", "b"]).await.expect("created");
        let open = async |host, policy| {
            let keys = json!({ "peers": 0, "policy": policy });
            Serves::open_with(&env, host, keys, json!({}), Begin::Open).await.expect("opened")
        };
        let a = open("a", "uncached").await;
        put(&a.vm, 0, 7).await;
        let b = open("b", "write-back").await;
        put(&a.vm, 0, 8).await;
        a.lose_power(Loss::All);
        is_dead(&env, "a").await;
        let into = Buf::zeroed(1024);
        b.vm.submit(Io::read(0, into.clone())).await.expect("taken");
        assert_eq!(into.to_vec()[0], 8);
        b.vm.submit(Io::flush()).await.expect("flushed");
        survives(&env, 0).await
    });
    left.expect("it ends")
}

#[test]
fn what_the_host_before_has_acknowledged_is_flushed() {
    let [left, flawed] = with_and_without(moved);
    assert!(left == 8 && flawed != 8, "{left}, with the canary {flawed}");
}

/// A host takes the volume from one that stands still, and its process dies with a write under way. The store does that
/// write after everything of the next process, and after the other host has ended: when the next one has opened its
/// device, or while it takes the volume.
fn overtaken(is_early: bool) {
    let world = super::cluster::world(3);
    let env = world.env();
    let left = world.run(async move {
        create(&env, &["a", "b"]).await.expect("created");
        let open = async |host| {
            let (keys, settles) = (json!({ "peers": 1 }), json!({ "settles": "20s" }));
            Serves::open_with(&env, host, keys, settles, Begin::Open).await.expect("opened")
        };
        let (a, b) = (open("a").await, open("b").await);
        put(&a.vm, 0, 7).await;
        a.paired().await.expect("a peer");
        a.env.stop();
        put(&b.vm, 0, 7).await;
        b.store.set_reach(Reach::Held);
        let vm = Rc::clone(&b.vm);
        b.env.spawn(Box::pin(async move { put(&vm, 0, 8).await }));
        env.sleep(Duration::from_secs(1)).await;
        b.kill();
        let b = open("b").await;
        if is_early {
            // It waits for the last beat of the other host.
            env.sleep(Duration::from_secs(1)).await;
            is_dead(&env, "a").await;
        }
        put(&b.vm, 0, 9).await;
        if !is_early {
            is_dead(&env, "a").await;
        }
        env.sleep(Duration::from_secs(5)).await;
        let store = disk(&env, "store");
        put(&store, 0, 8).await;
        store.submit(Io::flush()).await.expect("flushed");
        env.sleep(Duration::from_secs(20)).await;
        survives(&env, 0).await
    });
    assert_eq!(left.expect("it ends"), 9);
}

#[test]
fn late_writes_of_the_own_past_are_awaited_beside_another_hosts() {
    [false, true].into_iter().for_each(overtaken);
}
