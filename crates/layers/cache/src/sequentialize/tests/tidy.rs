//! Tidying puts blocks into the order of their addresses, by command and by itself, and stops for users; writes that
//! come together share a head.

use super::super::log::Log;
use super::super::{Keys, begin, format::SLOT};
use super::edges::made;
use crate::testing::*;
use std::time::Duration;

/// A log on a disk of so many bytes, and the disk.
async fn opened(world: &World, size: &str) -> (Rc<Log>, Rc<Node>) {
    let disk = world.memory(size).await;
    let keys: Keys = serde_json::from_value(json!({ "spare": 40 })).expect("keys");
    let mut with = lamina_block::Build::new("log", &world.env, vec![Rc::clone(&disk)]);
    with.begin = lamina_block::Begin::Format;
    let place = begin::begin(&keys, &with).await.expect("made");
    (Log::open("log", &world.env, Rc::clone(&disk), place).await.expect("opened"), disk)
}

fn at(block: u64) -> Range<u64> {
    block * SLOT as u64..(block + 1) * SLOT as u64
}

async fn put(log: &Rc<Log>, block: u64, value: u8) {
    let _user = log.user();
    let data = Buf::from_vec(vec![value; SLOT]);
    log.write(at(block), data, Durability::Cached).await.expect("written");
}

/// Writes all blocks at random, twice: their values.
async fn scatter(log: &Rc<Log>) -> Vec<u8> {
    let (blocks, mut random) = (u64::from(log.shape.blocks), xorshift(5));
    let mut values = vec![0; blocks as usize];
    for turn in 0..3 * blocks {
        let block = if turn < blocks { turn } else { random() % blocks };
        values[block as usize] = random() as u8;
        put(log, block, values[block as usize]).await;
    }
    values
}

/// Pieces in which all blocks are read.
fn pieces(log: &Log) -> usize {
    log.runs(&(0..u64::from(log.shape.blocks) * SLOT as u64)).len()
}

async fn assert_holds(log: &Rc<Log>, values: &[u8]) {
    for (block, value) in (0..).zip(values) {
        let into = Buf::from_vec(vec![0xEE; SLOT]);
        log.read(at(block), into.clone()).await.expect("read");
        assert_eq!(into.to_vec(), [*value; SLOT], "block {block}");
    }
    assert_eq!(log.check(), Ok(()));
}

#[test]
fn a_command_puts_blocks_in_order() {
    simulated(|world| async move {
        let (log, _) = opened(&world, "128MiB").await;
        let values = scatter(&log).await;
        let before = pieces(&log);
        assert!(log.tidy_all().await.expect("tidied") > 0);
        let after = pieces(&log);
        assert!(before > 9000 && after < before / 8, "{before} pieces before, {after} after");
        let again = log.tidy_all().await.expect("tidied");
        assert!(again < u64::from(log.shape.blocks) / 10, "{again} blocks, and hardly anything is scattered");
        assert_holds(&log, &values).await;
        log.close().await.expect("closed");
    });
}

#[test]
fn it_tidies_when_users_are_gone() {
    simulated(|world| async move {
        let (log, _) = opened(&world, "128MiB").await;
        let mut values = scatter(&log).await;
        let before = pieces(&log);
        for _ in 0..9 {
            world.env.sleep(Duration::from_millis(100)).await;
            assert!(log.jobs.borrow().iter().all(|job| job.name() != "tidy"), "users may be back soon");
        }
        world.env.sleep(Duration::from_secs(900)).await;
        let after = pieces(&log);
        assert!(after < before / 8, "{before} pieces before, {after} after");
        // What was tidied is left alone.
        let copied = log.counters.copied();
        put(&log, 7, 1).await;
        values[7] = 1;
        world.env.sleep(Duration::from_secs(900)).await;
        assert!(log.counters.copied() - copied < 20);
        assert_holds(&log, &values).await;
        log.close().await.expect("closed");
    });
}

#[test]
fn users_end_it() {
    simulated(|world| async move {
        let (log, _) = opened(&world, "128MiB").await;
        scatter(&log).await;
        world.env.sleep(Duration::from_millis(1500)).await;
        let before = pieces(&log);
        for _ in 0..20 {
            put(&log, 3, 3).await;
            world.env.sleep(Duration::from_millis(900)).await;
        }
        assert!(pieces(&log) + 300 > before, "nobody was gone for long");
        log.close().await.expect("closed");
    });
}

#[test]
fn writes_that_come_together_share_a_head() {
    simulated(|world| async move {
        let disk = world.memory("256MiB").await;
        let log = made(&world, &disk, json!({})).await.expect("made");
        let written = || disk.stats().of(OpKind::Write).bytes.get() / SLOT as u64;
        let (before, data) = (written(), Buf::from_vec(vec![1; SLOT]));
        for turn in 0..10 {
            let write = |block| log.submit(Io::write(block * SLOT as u64, data.clone(), Durability::Cached));
            all((turn * 100..turn * 100 + 100).map(write)).await.expect("written");
        }
        assert!(written() - before <= 1000 + 20, "{} slots for 1000 blocks", written() - before);
    });
}
