//! What has to be found again, and was not once.

use super::super::format::*;
use super::super::log::How;
use super::super::reclaim::Leaves;
use super::super::segments::SMALL;
use super::super::{Cache, Volume};
use crate::testing::*;
use futures_util::future::join_all;
use lamina_block::{Env, Error};
use lamina_kit::flaw::failure_of;
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use std::time::Duration;

pub const SIZE: u64 = 2 << 20;
pub const VOLUME: u128 = 7;

pub fn disk(env: &Rc<SimEnv>) -> Rc<Node> {
    Node::new("flash", "simulated", Rc::clone(env) as _, env.disk("flash").expect("it was put there"))
}

pub async fn open(env: &Rc<SimEnv>) -> Rc<Cache> {
    Cache::open("flash", &(Rc::clone(env) as _), disk(env)).await.expect("opened")
}

pub async fn put(cache: &Rc<Cache>, volume: &Rc<super::super::Volume>, block: u64, byte: u8) {
    let how = How { dirty: true, durability: Durability::Fua, absent: 0, serial: None };
    let space = cache.reserve(1).await.expect("space");
    cache.put(space, volume, block, &Buf::from_vec(vec![byte; SLOT]), how).await.expect("put");
}

/// What a power loss leaves of a new flash after `test`.
pub fn lost<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F + 'static) -> Images {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("flash", Image::blank(DiskOptions::new(SIZE)));
    let run = async move {
        Cache::format(&(Rc::clone(&env) as _), &disk(&env)).await.expect("made");
        test(Rc::clone(&env)).await;
        env.images(Loss::All, 1)
    };
    world.run(run).expect("it ends")
}

/// The blocks of the volume that are to get to its store, when the flash is opened again.
pub fn dirty(images: &Images, size: u64) -> Vec<u64> {
    let world = Simulation::from_images(1, images);
    let env = world.env();
    let run = async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, size).await.expect("the volume");
        let queue = volume.queue.borrow();
        queue.iter().flat_map(|record| record.blocks()).collect()
    };
    world.run(run).expect("it ends")
}

/// On a device that fails for good, with an open volume that has clean blocks in several segments; whatever `test`
/// waits for has to end.
fn with_a_dead_device<F>(test: impl FnOnce(Rc<SimEnv>, Rc<Cache>, Rc<Volume>) -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    lost(|env: Rc<SimEnv>| async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 4096).await.expect("made");
        for block in 0..20 {
            let how = How { dirty: false, durability: Durability::Cached, absent: 0, serial: None };
            let space = cache.reserve(1).await.expect("space");
            cache.put(space, &volume, 1000 + block, &Buf::zeroed(SLOT), how).await.expect("put");
        }
        env.set_fault(Some(Box::new(|_, _, _| Some(Error::media("gone for good")))));
        test(env, cache, volume).await;
    });
}

/// A batch that fails ends its segment, so that there may be none for what waits behind it: that fails with it, and
/// does not wait for a repair.
#[test]
fn what_waits_behind_a_failure_fails() {
    let test = || {
        with_a_dead_device(|env, cache, volume| async move {
            let how = How { dirty: true, durability: Durability::Cached, absent: 0, serial: None };
            let spaces: Vec<_> = std::iter::from_fn(|| cache.try_reserve(1)).collect();
            assert!(spaces.len() > 20, "{}", spaces.len());
            // Batches are made of what came in one turn: each has a few blocks only.
            let attempts = (0..).zip(spaces).map(async |(block, space)| {
                env.sleep(Duration::from_micros(block / 3)).await;
                let put = cache.put(space, &volume, block, &Buf::zeroed(SLOT), how).await;
                put.expect_err("the device is dead");
            });
            join_all(attempts).await;
        });
    };
    test();
    assert!(failure_of("what waits behind a failure waits on", test).contains("it ends"));
}

/// Nothing is on its way to the device, and nothing on it is dirty, so that no write and no batch meets the failure.
#[test]
fn a_device_that_fails_keeps_nobody_waiting_for_space() {
    let test = || {
        with_a_dead_device(|_, cache, _| async move {
            cache.segments.borrow_mut().free.clear();
            cache.reserve(1).await.map(drop).expect_err("the device is dead");
        });
    };
    test();
    assert!(failure_of("a dead device is tried on and on", test).contains("it ends"));
}

/// Number n is in copy n mod 2 from the first on: a torn write never takes the only good one.
#[test]
fn each_state_has_its_place() {
    lost(|env: Rc<SimEnv>| async move {
        for (copy, slot) in STATES.into_iter().enumerate() {
            let buf = Buf::zeroed(STATE_SLOTS as usize * SLOT);
            disk(&env).submit(Io::read(u64::from(slot) * SLOT as u64, buf.clone())).await.expect("read");
            let key = open(&env).await.shape.key;
            let state = State::decode(&buf.to_vec(), key).expect("a state");
            assert_eq!(state.sequence as usize % 2, copy);
        }
    });
}

/// The store has grown since its volume was made; what was written behind its former end is found.
#[test]
fn a_volume_that_has_grown_keeps_what_is_new() {
    let images = lost(|env: Rc<SimEnv>| async move {
        let cache = open(&env).await;
        cache.volume(VOLUME, 8).await.expect("made");
        cache.close().await.expect("closed");
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("larger");
        put(&cache, &volume, 3, 1).await;
        put(&cache, &volume, 40, 2).await;
    });
    assert_eq!(dirty(&images, 64), [3, 40]);
}

/// A generation was begun, but could not be kept: what was written since is found all the same.
#[test]
fn writes_after_a_generation_that_was_not_kept_are_found() {
    let images = lost(|env: Rc<SimEnv>| async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("made");
        let first = |at: &Range<u64>| at.start < u64::from(SEGMENTS_AT) * SLOT as u64;
        env.set_fault(Some(Box::new(move |_, _, io| {
            first(&io.at).then(|| Error::new(ErrorKind::Offline, "away"))
        })));
        cache.settle(&volume).await.expect_err("it cannot be kept");
        env.set_fault(None);
        put(&cache, &volume, 3, 1).await;
    });
    assert_eq!(dirty(&images, 64), [3]);
}

/// A generation that was not kept is not given again: what it says of then does not count later.
#[test]
fn a_generation_is_given_once() {
    let images = lost(|env: Rc<SimEnv>| async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("made");
        let first = |at: &Range<u64>| at.start < u64::from(SEGMENTS_AT) * SLOT as u64;
        env.set_fault(Some(Box::new(move |_, _, io| {
            first(&io.at).then(|| Error::new(ErrorKind::Offline, "away"))
        })));
        cache.settle(&volume).await.expect_err("it cannot be kept");
        env.set_fault(None);
        put(&cache, &volume, 3, 1).await;
    });
    let world = Simulation::from_images(1, &images);
    let env = world.env();
    let forgotten = async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("the volume");
        cache.forget(&volume).await.expect("durable");
        env.images(Loss::All, 1)
    };
    let images = world.run(forgotten).expect("it ends");
    assert_eq!(dirty(&images, 64), [0u64; 0]);
}

/// What would be written behind the end of the store is not dropped in silence.
#[test]
fn a_store_that_has_become_too_small_is_refused() {
    let images = lost(|env: Rc<SimEnv>| async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("made");
        put(&cache, &volume, 40, 2).await;
    });
    let world = Simulation::from_images(1, &images);
    let env = world.env();
    let refused = async move {
        let cache = open(&env).await;
        assert!(cache.volume(VOLUME, 41).await.is_ok());
        let cache = open(&env).await;
        let message = cache.volume(VOLUME, 40).await.map(|_| ()).expect_err("too small").message().to_owned();
        assert!(message.contains("has become smaller"), "{message}");
    };
    world.run(refused).expect("it ends");
}

/// Opens the flash over what a crash has left, and what the volume has of blocks 3 and 5, after `test`.
fn next_life<F: Future<Output = ()> + 'static>(
    images: &Images,
    loss: Loss,
    test: impl FnOnce(Rc<Cache>, Rc<super::super::Volume>) -> F + 'static,
) -> ([Option<u8>; 2], Images) {
    let world = Simulation::from_images(1, images);
    let env = world.env();
    let run = async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("the volume");
        test(Rc::clone(&cache), Rc::clone(&volume)).await;
        let mut found = [None; 2];
        for (block, found) in [3, 5].into_iter().zip(&mut found) {
            let Some(slot) = cache.runs(&volume, block..block + 1).remove(0).slot else { continue };
            let buf = Buf::zeroed(SLOT);
            cache.read(slot, 0..SLOT as u64, buf.clone()).await.expect("read");
            *found = buf.to_vec().first().copied();
        }
        (found, env.images(loss, 1))
    };
    world.run(run).expect("it ends")
}

/// The power takes the first batch of a segment and leaves the second one, which nobody finds. It is not found later
/// either, when a segment at the same place has got a first batch again.
#[test]
fn what_was_lost_does_not_come_back_over_what_is_durable() {
    let mut half_lost = 0;
    for seed in 0..16 {
        let world = Simulation::new(1);
        let env = world.env();
        env.put_disk("flash", Image::blank(DiskOptions::new(SIZE)));
        let run = async move {
            Cache::format(&(Rc::clone(&env) as _), &disk(&env)).await.expect("made");
            let cache = open(&env).await;
            let volume = cache.volume(VOLUME, 64).await.expect("made");
            for (block, byte) in [(3, 1), (5, 2)] {
                let how = How { dirty: true, durability: Durability::Cached, absent: 0, serial: None };
                let space = cache.reserve(1).await.expect("space");
                cache.put(space, &volume, block, &Buf::from_vec(vec![byte; SLOT]), how).await.expect("put");
            }
            env.images(Loss::Writes, seed)
        };
        let images = world.run(run).expect("it ends");
        half_lost += u32::from(next_life(&images, Loss::All, |_, _| async {}).0 == [None; 2]);
        let again = |cache, volume| async move { put(&cache, &volume, 5, 3).await };
        let (_, images) = next_life(&images, Loss::All, again);
        let (found, _) = next_life(&images, Loss::All, |_, _| async {});
        assert_eq!(found[1], Some(3), "seed {seed}: {found:?}");
    }
    assert!(half_lost > 0, "no first batch was lost");
}

/// Copies wait for a segment, and one becomes free: they go on.
#[test]
fn what_waits_for_a_segment_gets_the_next_one() {
    let test = || {
        lost(|env: Rc<SimEnv>| async move {
            let cache = open(&env).await;
            let volume = cache.volume(VOLUME, 64).await.expect("made");
            for block in 0..8 {
                put(&cache, &volume, block, 1).await;
            }
            let (dirty, upto) = cache.batch(&volume, 100).expect("dirty");
            cache.checkpoint(&volume, upto, &dirty).await.expect("kept");
            // They are all taken when somebody comes who was promised space.
            let rooms: Vec<_> = (0..5).map(|_| cache.try_reserve(3).expect("space")).collect();
            let free = std::mem::take(&mut cache.segments.borrow_mut().free);
            let put = async {
                for (n, space) in rooms.into_iter().enumerate() {
                    let how = How { dirty: true, durability: Durability::Cached, absent: 0, serial: None };
                    let data = Buf::from_vec(vec![2; 3 * SLOT]);
                    cache.put(space, &volume, 20 + 3 * n as u64, &data, how).await.expect("put");
                }
            };
            let freed = async {
                env.sleep(std::time::Duration::from_secs(1)).await;
                cache.empty_segment(SMALL, 0, Leaves::Tail).await.expect("emptied");
                cache.free(vec![(SMALL, 0)]).await.expect("freed");
            };
            futures_util::future::join(put, freed).await;
            cache.segments.borrow_mut().free.extend(free);
        });
    };
    test();
    let words = failure_of("nobody hears of a free segment", test);
    assert!(words.contains("it ends: Deadlock"), "{words}");
}
