//! What is written again and again takes no room from the rest.

use super::super::Keys;
use super::report::made;
use crate::redo::tests::{disk, put_disks};
use crate::testing::*;
use lamina_block::Begin;
use lamina_sim::{Loss, SimEnv, Simulation};
use std::time::Duration;

const STORE: u64 = 4 << 20;
const FLASH: u64 = 2 << 20;
const BLOCK: u64 = 4096;
/// Blocks that are written once, before others are written again and again.
const QUIET: u64 = 60;

async fn volume(env: &Rc<SimEnv>, begin: Begin) -> Rc<Node> {
    let flash = Kind::of::<crate::flash::Keys>();
    let flash = made(env, begin, &flash, "flash", json!({}), vec![disk(env, "flash")]).await;
    made(env, begin, &Kind::of::<Keys>(), "top", json!({}), vec![disk(env, "store"), flash]).await
}

async fn write(env: &Rc<SimEnv>, volume: &Rc<Node>, block: u64, byte: u8) {
    let data = Buf::from_vec(vec![byte; BLOCK as usize]);
    volume.submit(Io::write(block * BLOCK, data, Durability::Cached)).await.expect("written");
    env.sleep(Duration::from_millis(20)).await;
}

async fn read(volume: &Rc<Node>, block: u64) -> u8 {
    let data = Buf::zeroed(BLOCK as usize);
    volume.submit(Io::read(block * BLOCK, data.clone())).await.expect("read");
    data.to_vec()[0]
}

/// Far more versions than the flash has slots, and after a power loss each block is what it was.
#[test]
fn old_versions_leave_room_for_what_counts() {
    let world = Simulation::new(1);
    let env = world.env();
    put_disks(&env, &[("store", STORE), ("flash", FLASH)]);
    let run = async move {
        let top = volume(&env, Begin::Format).await;
        for block in 0..QUIET {
            write(&env, &top, block, block as u8 + 1).await;
        }
        for round in 0..2000u64 {
            write(&env, &top, QUIET + round % 5, round as u8).await;
        }
        let before = top.info()["missed_bytes"].as_u64().expect("a number");
        for block in 0..QUIET {
            assert_eq!(read(&top, block).await, block as u8 + 1);
        }
        let missed = top.info()["missed_bytes"].as_u64().expect("a number") - before;
        assert_eq!(missed, 0, "blocks were forgotten for old versions of others");
        top.submit(Io::flush()).await.expect("flushed");
        env.images(Loss::All, 1)
    };
    let images = world.run(run).expect("it ends");
    let world = Simulation::from_images(1, &images);
    let env = world.env();
    let run = async move {
        let top = volume(&env, Begin::Open).await;
        for block in 0..QUIET {
            assert_eq!(read(&top, block).await, block as u8 + 1);
        }
        for round in 1995..2000u64 {
            assert_eq!(read(&top, QUIET + round % 5).await, round as u8);
        }
    };
    world.run(run).expect("it ends");
}
