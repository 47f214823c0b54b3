//! Stores that are away, that hang, or that nobody has open: their volumes take no more of the flash than
//! their share, and the neighbours write on.

use super::bad::on_store;
use super::failures::disk;
use super::neighbours::{MIB, Volume, cache, over, put_disks, simulate, volume};
use crate::testing::*;
use lamina_block::Begin;
use lamina_sim::{Images, Loss, Presence, SimEnv, Simulation};
use std::cell::Cell;
use std::time::Duration;

/// Blocks of the neighbour, and its writes: four times what the flash holds.
const BLOCKS: u64 = 1500;
const WRITES: u64 = 4000;

pub const STORES: [(&str, u64); 2] = [("a", 4 * MIB), ("b", 8 * MIB)];

/// What is written to a block of the volume whose store is late.
fn value(block: u64) -> u8 {
    (block % 250) as u8 + 1
}

/// Writes one block after the other, until that fails or nothing goes on any more; so many blocks were taken.
async fn fill(env: &Rc<SimEnv>, a: &Volume) -> u64 {
    let (taken, node) = (Rc::new(Cell::new(0)), Rc::clone(&a.node));
    let (count, volume) = (Rc::clone(&taken), Volume { node });
    env.spawn(Box::pin(async move {
        while count.get() < 1024 && volume.write(count.get(), value(count.get())).await.is_ok() {
            count.set(count.get() + 1);
        }
    }));
    env.sleep(Duration::from_secs(5)).await;
    taken.get()
}

/// Writes far more than the flash holds.
pub async fn be_busy(env: &Rc<SimEnv>, b: &Volume) {
    for n in 0..WRITES {
        let began = env.now();
        b.write(n % BLOCKS, (n / BLOCKS) as u8 + 1).await.expect("written");
        let took = env.now().since(began);
        assert!(took < Duration::from_secs(1), "write {n} took {took:?}");
    }
}

/// All that was written is on the stores once these take it.
async fn is_right(env: &Rc<SimEnv>, a: &Volume, taken: u64, b: &Volume) {
    for volume in [a, b] {
        volume.command("drain").await.expect("drained");
    }
    for block in 0..taken {
        assert_eq!((a.read(block).await, on_store(env, "a", block).await), (Ok(value(block)), value(block)));
    }
    for block in 0..BLOCKS {
        let wanted = ((WRITES - 1 - block) / BLOCKS) as u8 + 1;
        assert_eq!((b.read(block).await, on_store(env, "b", block).await), (Ok(wanted), wanted), "{block}");
    }
}

/// The same after a power loss, with stores that work.
fn is_right_after(images: &Images, taken: u64) {
    let world = Simulation::from_images(1, images);
    let env = world.env();
    let run = async move {
        let cache = cache(&env, Begin::Open).await;
        let a = over(&env, disk(&env, "a"), &cache, json!({}), Begin::Open).await;
        let b = over(&env, disk(&env, "b"), &cache, json!({}), Begin::Open).await;
        is_right(&env, &a, taken, &b).await;
    };
    world.run(run).expect("it ends");
}

fn a_late_store(presence: Presence) {
    let world = Simulation::new(1);
    let env = world.env();
    put_disks(&env, &STORES);
    let run = async move {
        let cache = cache(&env, Begin::Format).await;
        let (a, b) = (volume(&env, "a", &cache).await, volume(&env, "b", &cache).await);
        let store = env.disk("a").expect("a disk");
        store.set_presence(presence);
        let taken = fill(&env, &a).await;
        let (dirty, share) = (a.figure("dirty_bytes"), a.figure("share_bytes"));
        assert!(dirty == taken * 4096 && (share / 2..=share).contains(&dirty), "{dirty} of {share}");
        be_busy(&env, &b).await;
        for block in 0..taken {
            assert_eq!(a.read(block).await, Ok(value(block)));
        }
        b.node.submit(Io::flush()).await.expect("flushed");
        let images = env.images(Loss::All, 1);
        store.set_presence(Presence::Here);
        if presence == Presence::Failing {
            is_right(&env, &a, taken, &b).await;
        }
        (images, taken)
    };
    let (images, taken) = world.run(run).expect("it ends");
    is_right_after(&images, taken);
}

#[test]
fn a_store_that_is_away_stops_no_neighbour() {
    a_late_store(Presence::Failing);
}

#[test]
fn a_store_that_hangs_stops_no_neighbour() {
    a_late_store(Presence::Silent);
}

/// A cache, two volumes on it, the first of which has a store that fails, and how much of that one is dirty:
/// all that may be.
async fn beside_a_failing_store(env: &Rc<SimEnv>) -> (Rc<Node>, Volume, Volume, u64) {
    let cache = cache(env, Begin::Format).await;
    let (a, b) = (volume(env, "a", &cache).await, volume(env, "b", &cache).await);
    env.disk("a").expect("a disk").set_presence(Presence::Failing);
    let taken = fill(env, &a).await;
    (cache, a, b, taken)
}

#[test]
fn a_volume_that_nobody_has_open_stops_no_neighbour() {
    simulate(&STORES, |env| async move {
        let (cache, a, b, taken) = beside_a_failing_store(&env).await;
        a.node.close().await.expect("closed");
        be_busy(&env, &b).await;
        env.disk("a").expect("a disk").set_presence(Presence::Here);
        let a = over(&env, disk(&env, "a"), &cache, json!({}), Begin::Open).await;
        is_right(&env, &a, taken, &b).await;
    });
}

/// All that is not dirty is asked for again and again, and what is dirty is of a store that is away.
#[test]
fn a_flash_that_is_hot_and_late_lets_writes_in() {
    simulate(&STORES, |env| async move {
        let (_, a, b, taken) = beside_a_failing_store(&env).await;
        for n in 0..900 {
            b.read(n % 300).await.expect("read");
            env.sleep(Duration::from_micros(500)).await;
        }
        let ended = Rc::new(Cell::new(false));
        let readers: Vec<_> = (0..32)
            .map(|_| {
                let (task, b, ended) =
                    (Rc::clone(&env), Volume { node: Rc::clone(&b.node) }, Rc::clone(&ended));
                env.start(async move {
                    while !ended.get() {
                        b.read(task.random() % 300).await.expect("read");
                    }
                })
            })
            .collect();
        for n in 0..300 {
            let began = env.now();
            b.write(1000 + n, 1).await.expect("written");
            let took = env.now().since(began);
            assert!(took < Duration::from_secs(2), "write {n} took {took:?}");
        }
        ended.set(true);
        for reader in readers {
            reader.ended().await;
        }
        for block in 0..taken {
            assert_eq!(a.read(block).await, Ok(value(block)));
        }
    });
}
