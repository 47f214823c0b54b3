//! The map, the segments and the counts agree, whatever was done, and after an opening.

use super::super::log::Log;
use super::super::{Keys, format::SLOT};
use crate::testing::*;

async fn opened(world: &World, disk: &Rc<Node>) -> Rc<Log> {
    Log::open("log", &world.env, Rc::clone(disk)).await.expect("opened")
}

fn agrees(log: &Log, when: &str) {
    assert_eq!(log.check(), Ok(()), "{when}");
}

#[test]
fn map_and_segments_agree_over_three_lives() {
    simulated(|world| async move {
        let (disk, mut random) = (world.memory("3MiB").await, xorshift(11));
        let keys = Keys { size: None, spare: Some(5) };
        keys.format(&world.env, &disk).await.expect("made");
        let mut values = Vec::new();
        for life in 0..3 {
            let log = opened(&world, &disk).await;
            agrees(&log, "opened");
            let blocks = u64::from(log.shape.blocks);
            values.resize(blocks as usize, 0);
            for turn in 0..4 * blocks {
                let block = random() % blocks;
                let at = block * SLOT as u64..(block + 1) * SLOT as u64;
                let value = random() as u8 % 250;
                values[block as usize] = value;
                match value {
                    0..20 => log.discard(at).await.expect("discarded"),
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
            if life == 1 {
                // It ends without a checkpoint: what was written is found.
                log.is_closed.set(true);
                log.moved.notify();
                log.tasks.ended().await;
            } else {
                log.close().await.expect("closed");
            }
            agrees(&log, "closed");
        }
        let log = opened(&world, &disk).await;
        assert!(log.collect_all().await.expect("collected") > 0);
        agrees(&log, "collected");
        let used = log.shape.segments - log.segments.borrow().free();
        let info = log.info();
        let live = info["live_bytes"].as_u64().expect("a number") / SLOT as u64;
        let full = u64::from(used) * u64::from(log.shape.segment_slots);
        assert!(live * 10 >= full * 5, "{live} of {full} slots count: {info:#}");
    });
}
