//! What reads leave on the flash.

use super::super::Keys;
use super::report::made;
use crate::redo::tests::{disk, put_disks};
use crate::testing::*;
use lamina_block::Begin;
use lamina_sim::{SimEnv, Simulation};
use std::time::Duration;

const BLOCK: u64 = 4096;

/// A new volume on a new flash.
async fn volume(env: &Rc<SimEnv>) -> Rc<Node> {
    let flash = Kind::of::<crate::flash::Keys>();
    let flash = made(env, Begin::Format, &flash, "flash", json!({}), vec![disk(env, "flash")]).await;
    let keys = json!({ "sequential-cutoff": "64KiB" });
    made(env, Begin::Format, &Kind::of::<Keys>(), "top", keys, vec![disk(env, "store"), flash]).await
}

/// Bytes that were missed by reads of `len` bytes, one after the other from `start` on, that are a
/// millisecond apart; the first time, and again.
fn missed(start: u64, len: u64, reads: u64) -> [u64; 2] {
    let world = Simulation::new(1);
    let env = world.env();
    put_disks(&env, &[("store", 4 << 20), ("flash", 4 << 20)]);
    let run = async move {
        let top = volume(&env).await;
        let mut missed = [0; 2];
        for round in &mut missed {
            let before = top.info()["missed_bytes"].as_u64().expect("a number");
            for n in 0..reads {
                let into = Buf::zeroed(len as usize);
                top.submit(Io::read(start + n * len, into)).await.expect("read");
                env.sleep(Duration::from_millis(1)).await;
            }
            *round = top.info()["missed_bytes"].as_u64().expect("a number") - before;
            env.sleep(Duration::from_secs(1)).await;
        }
        missed
    };
    world.run(run).expect("it ends")
}

/// Each read finds its first block on its way to the flash; the others come all the same.
#[test]
fn a_read_fills_what_another_one_does_not() {
    assert_eq!(missed(512, 2 * BLOCK, 20), [41 * BLOCK, 0]);
}

#[test]
fn a_long_stream_leaves_the_blocks_in_which_its_reads_end() {
    let len = 16 * BLOCK;
    // The first read, which is not long, has 17 blocks; of those after it the first block is there.
    assert_eq!(missed(512, len, 4), [65 * BLOCK, 45 * BLOCK]);
    assert_eq!(missed(0, len, 4), [64 * BLOCK, 48 * BLOCK]);
}
