//! The map, the segments and the counts agree, whatever was done, and after an opening.

use super::super::log::Log;
use super::super::{Keys, begin, format::SLOT};
use crate::testing::*;
use lamina_block::Begin;

async fn opened(world: &World, disk: &Rc<Node>, keys: &Value, how: Begin) -> Rc<Log> {
    let keys: Keys = serde_json::from_value(keys.clone()).expect("keys");
    let with = super::home::build(world, disk, how).await;
    let place = begin::begin(&keys, &with).await.expect("made");
    Log::open("log", &world.env, Rc::clone(disk), place).await.expect("opened")
}

fn agrees(log: &Log, when: &str) {
    assert_eq!(log.check(), Ok(()), "{when}");
}

/// It ends without a checkpoint: what was written is found.
async fn die(log: &Rc<Log>) {
    log.is_closed.set(true);
    log.moved.notify();
    log.tasks.ended().await;
}

/// Writes and discards blocks at random over three lives. Returns the log of a fourth one, collected.
async fn lives(world: &World, disk: &Rc<Node>, keys: Value) -> Rc<Log> {
    let (mut values, mut random) = (Vec::new(), xorshift(11));
    let mut how = Begin::Format;
    for life in 0..3 {
        let log = opened(world, disk, &keys, how).await;
        how = Begin::Open;
        agrees(&log, "opened");
        let blocks = u64::from(log.shape.blocks);
        values.resize(blocks as usize, 0);
        for turn in 0..4 * blocks {
            let block = random() % blocks;
            let at = block * SLOT as u64..(block + 1) * SLOT as u64;
            let value = random() as u8 % 250;
            values[block as usize] = value;
            match value {
                0..20 => log.zero(at, Zero::default()).await.expect("zeroed"),
                _ => log
                    .write(at, Buf::from_vec(vec![value; SLOT]), Durability::Cached)
                    .await
                    .expect("written"),
            }
            if value < 20 {
                values[block as usize] = 0;
            }
            if turn % 97 == 0 {
                agrees(&log, "in use");
            }
        }
        for (block, value) in (0..).zip(&values) {
            let into = Buf::from_vec(vec![0xEE; SLOT]);
            log.read(block * SLOT as u64..(block + 1) * SLOT as u64, into.clone()).await.expect("read");
            assert_eq!(into.to_vec(), [*value; SLOT], "block {block} in life {life}");
        }
        match life {
            1 => die(&log).await,
            _ => log.close().await.expect("closed"),
        }
        agrees(&log, "closed");
    }
    let log = opened(world, disk, &keys, Begin::Open).await;
    log.collect_all().await.expect("collected");
    agrees(&log, "collected");
    log
}

#[test]
fn map_and_segments_agree_over_three_lives() {
    simulated(|world| async move {
        let disk = world.memory("3MiB").await;
        let log = lives(&world, &disk, json!({ "spare": 5 })).await;
        let used = log.shape.segments - log.segments.borrow().free();
        let info = log.info();
        assert!(info["collected_segments"].as_u64() > Some(0), "{info:#}");
        let live = info["live_bytes"].as_u64().expect("a number") / SLOT as u64;
        let full = u64::from(used) * u64::from(log.shape.segment_slots);
        assert!(live * 10 >= full * 5, "{live} of {full} slots count: {info:#}");
    });
}

#[test]
fn they_agree_beside_homes() {
    simulated(|world| async move {
        let disk = world.memory("3MiB").await;
        let log = lives(&world, &disk, json!({ "mode": "home", "reserve": 25 })).await;
        log.drain().await.expect("drained");
        agrees(&log, "drained");
        assert_eq!(log.info()["live_bytes"], json!(0));
    });
}
