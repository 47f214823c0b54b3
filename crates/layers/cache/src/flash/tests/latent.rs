//! Slots that cannot be read: what stood there is lost for its volume, and nothing else is.

use super::super::Cache;
use super::super::format::*;
use super::super::log::How;
use super::super::volume::Volume;
use super::recovery::{SIZE, VOLUME, disk, lost, open, put};
use crate::testing::*;
use lamina_block::{Error, Op};
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};

const OTHER: u128 = 8;

/// From now on these slots cannot be read.
fn spoil(env: &Rc<SimEnv>, slots: Range<u32>) {
    let bad = u64::from(slots.start) * SLOT as u64..u64::from(slots.end) * SLOT as u64;
    env.set_fault(Some(Box::new(move |_, _, io| {
        let is_met = matches!(io.op, Op::Read(_)) && io.at.start < bad.end && bad.start < io.at.end;
        is_met.then(|| Error::media("latent"))
    })));
}

async fn try_open(env: &Rc<SimEnv>) -> Result<Rc<Cache>> {
    Cache::open("flash", &(Rc::clone(env) as _), disk(env)).await
}

/// What the flash has of a block, if anything.
pub async fn get(cache: &Rc<Cache>, volume: &Volume, block: u64) -> Option<Result<u8>> {
    let slot = cache.runs(volume, block..block + 1).remove(0).slot?;
    let buf = Buf::zeroed(SLOT);
    Some(cache.read(slot, 0..SLOT as u64, buf.clone()).await.map(|()| buf.to_vec()[0]))
}

/// Runs `test` over what a crash has left.
fn after<F: Future<Output = ()> + 'static>(images: &Images, test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = Simulation::from_images(1, images);
    world.run(test(world.env())).expect("it ends");
}

/// A closed flash with 60 blocks of a volume, in several segments.
fn closed() -> Images {
    lost(|env: Rc<SimEnv>| async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("made");
        for block in 0..60 {
            put(&cache, &volume, block, block as u8 + 1).await;
        }
        cache.close().await.expect("closed");
    })
}

/// Whichever slot of those that `slot` gives cannot be read: all blocks are there.
fn each_can_be_missing(slots: impl Fn(&Super, u32) -> Range<u32> + Clone + 'static) {
    for number in 0..6 {
        let slots = slots.clone();
        after(&closed(), |env: Rc<SimEnv>| async move {
            let shape = open(&env).await.shape;
            spoil(&env, slots(&shape, number));
            let cache = try_open(&env).await.unwrap_or_else(|e| panic!("segment {number}: {e}"));
            let volume = cache.volume(VOLUME, 64).await.expect("the volume");
            for block in 0..60 {
                let found = get(&cache, &volume, block).await;
                assert_eq!(
                    found,
                    Some(Ok(block as u8 + 1)),
                    "block {block} without a slot of segment {number}"
                );
            }
        });
    }
}

#[test]
fn without_a_summary_heads_are_enough() {
    each_can_be_missing(|shape, number| {
        let start = shape.segment(number).start + shape.batch_slots();
        start..start + 1
    });
}

#[test]
fn with_a_summary_the_first_head_is_not_needed() {
    each_can_be_missing(|shape, number| {
        let start = shape.segment(number).start;
        start..start + 1
    });
}

/// A segment without a summary: blocks 3 and 5 of two volumes, and versions that came before them.
fn unfinished() -> Images {
    lost(|env: Rc<SimEnv>| async move {
        let cache = open(&env).await;
        let one = cache.volume(VOLUME, 64).await.expect("made");
        let two = cache.volume(OTHER, 64).await.expect("made");
        for (volume, block, byte) in [(&one, 3, 1), (&two, 5, 2), (&one, 3, 3), (&two, 5, 4)] {
            put(&cache, volume, block, byte).await;
        }
        let how = How { dirty: false, durability: Durability::Fua, absent: 0, serial: None };
        let space = cache.reserve(1).await.expect("space");
        cache.put(space, &one, 9, &Buf::from_vec(vec![5; SLOT]), how).await.expect("put");
        let space = cache.reserve(1).await.expect("space");
        cache.put(space, &one, 9, &Buf::from_vec(vec![6; SLOT]), how).await.expect("put");
    })
}

/// What is found of blocks 3 and 9 of the first volume, and of 5 of the other one.
async fn found(cache: &Rc<Cache>) -> [Option<Option<u8>>; 3] {
    let one = cache.volume(VOLUME, 64).await.expect("the volume");
    let two = cache.volume(OTHER, 64).await.expect("the volume");
    let blocks = [get(cache, &one, 3).await, get(cache, &one, 9).await, get(cache, &two, 5).await];
    blocks.map(|found| found.map(|read| read.ok()))
}

#[test]
fn data_that_cannot_be_read_are_lost_for_their_volume_only() {
    let base = SEGMENTS_AT;
    let cases = [
        (5, [Some(None), Some(Some(6)), Some(Some(4))]),
        (7, [Some(Some(3)), Some(Some(6)), Some(None)]),
        // The store has it, and perhaps a newer one.
        (11, [Some(Some(3)), None, Some(Some(4))]),
        // It had been written again.
        (1, [Some(Some(3)), Some(Some(6)), Some(Some(4))]),
    ];
    for (slot, wanted) in cases {
        let world = Simulation::from_images(1, &unfinished());
        let env = world.env();
        let run = async move {
            spoil(&env, base + slot..base + slot + 1);
            assert_eq!(found(&open(&env).await).await, wanted, "without slot {slot}");
            env.images(Loss::All, 1)
        };
        let images = world.run(run).expect("it ends");
        // What could not be read once is not believed when it can be.
        after(&images, |env: Rc<SimEnv>| async move {
            assert_eq!(found(&open(&env).await).await, wanted, "after slot {slot}");
        });
    }
}

#[test]
fn where_a_head_may_be_nobody_knows_what_is_lost() {
    for slot in [0, 4, 12] {
        after(&unfinished(), |env: Rc<SimEnv>| async move {
            spoil(&env, SEGMENTS_AT + slot..SEGMENTS_AT + slot + 1);
            let e = try_open(&env).await.map(drop).expect_err("refused");
            let message = format!("slot {slot} of segment 0 of the cache cannot be read");
            assert!(e.message().contains(&message), "{e}");
        });
    }
}

/// A copy of the state that cannot be read may be the newer one; its second half is zeroes with a few volumes.
#[test]
fn half_of_a_state_is_enough_and_none_is_not() {
    for state in STATES {
        after(&closed(), |env: Rc<SimEnv>| async move {
            spoil(&env, state + 1..state + 2);
            let cache = open(&env).await;
            let volume = cache.volume(VOLUME, 64).await.expect("the volume");
            assert_eq!(get(&cache, &volume, 3).await, Some(Ok(4)));
        });
        after(&closed(), |env: Rc<SimEnv>| async move {
            spoil(&env, state..state + 1);
            let e = try_open(&env).await.map(drop).expect_err("refused");
            assert!(e.message().contains("may be the newer one"), "{e}");
        });
    }
}

/// A write failed, and got to the device all the same. Its summary, which is without it, cannot be read.
#[test]
fn what_failed_stays_failed_without_its_summary() {
    let images = lost(|env: Rc<SimEnv>| async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("made");
        put(&cache, &volume, 3, 1).await;
        let fails = std::cell::Cell::new(true);
        env.set_fault(Some(Box::new(move |_, _, io| {
            let is_batch = matches!(io.op, Op::Write(..)) && io.at.end - io.at.start == 2 * SLOT as u64;
            (is_batch && fails.replace(false)).then(|| Error::media("no"))
        })));
        let how = How { dirty: true, durability: Durability::Fua, absent: 0, serial: None };
        let space = cache.reserve(1).await.expect("space");
        cache.put(space, &volume, 3, &Buf::from_vec(vec![2; SLOT]), how).await.expect_err("failed");
        env.set_fault(None);
        let zeroed = Buf::zeroed(SLOT);
        let at = u64::from(SEGMENTS_AT + 2) * SLOT as u64;
        disk(&env).submit(Io::read(at, zeroed.clone())).await.expect("read");
        assert!(zeroed.to_vec().iter().all(|byte| *byte == 0));
    });
    after(&images, |env: Rc<SimEnv>| async move {
        let shape = open(&env).await.shape;
        let summary = shape.segment(0).start + shape.batch_slots();
        spoil(&env, summary..summary + 1);
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("the volume");
        assert_eq!(get(&cache, &volume, 3).await, Some(Ok(1)));
    });
}

/// No segment's summary can be read any more, while it is open: what comes gets space, and what is there stays right.
#[test]
fn a_summary_that_cannot_be_read_stops_nobody() {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("flash", Image::blank(DiskOptions::new(SIZE)));
    let run = async move {
        Cache::format(&(Rc::clone(&env) as _), &disk(&env)).await.expect("made");
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 4096).await.expect("made");
        let shape = cache.shape;
        env.set_fault(Some(Box::new(move |_, _, io| {
            let slot = (io.at.start / SLOT as u64) as u32;
            let is_summary =
                slot >= SEGMENTS_AT && (slot - SEGMENTS_AT) % shape.segment_slots == shape.batch_slots();
            (is_summary && matches!(io.op, Op::Read(_))).then(|| Error::media("latent"))
        })));
        let mut values = std::collections::BTreeMap::new();
        for n in 0..3000u64 {
            let block = n * n % 101;
            put(&cache, &volume, block, n as u8).await;
            values.insert(block, n as u8);
            if n % 8 == 0 {
                let (dirty, upto) = cache.batch(&volume, 100).expect("dirty");
                cache.checkpoint(&volume, upto, &dirty).await.expect("kept");
            }
            if let Some(slot) = cache.runs(&volume, block..block + 1)[0].slot {
                cache.touch(slot..slot + 1);
            }
        }
        for (block, value) in values {
            if let Some(found) = get(&cache, &volume, block).await {
                assert_eq!(found, Ok(value), "block {block}");
            }
        }
    };
    world.run(run).expect("it ends");
}
