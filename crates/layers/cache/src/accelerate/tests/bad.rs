//! Blocks that the flash cannot read, or that the store does not take: everything else goes on.

use super::late::{STORES, be_busy};
use super::neighbours::{MIB, Volume, cache, over, simulate, volume};
use crate::accelerate::tests::failures::disk;
use crate::flash::SLOT;
use crate::testing::*;
use lamina_block::{Begin, Error, Op};
use lamina_sim::{SimEnv, Simulation};
use std::cell::Cell;
use std::time::Duration;

/// From now on the flash cannot read where the next write puts its first block.
fn spoil_next(env: &Rc<SimEnv>) {
    let bad = Cell::new(u64::MAX);
    let first = 8 * SLOT as u64;
    env.set_fault(Some(Box::new(move |_, disk, io| match &io.op {
        _ if disk != "flash" => None,
        Op::Write(..) if bad.get() == u64::MAX && io.at.start >= first => {
            bad.set(io.at.start + SLOT as u64);
            None
        }
        Op::Read(_) => io.at.contains(&bad.get()).then(|| Error::media("a bad block")),
        _ => None,
    })));
}

/// The store does not take these blocks.
fn refuse(env: &Rc<SimEnv>, store: &'static str, blocks: Range<u64>) {
    let bytes = blocks.start * 4096..blocks.end * 4096;
    env.set_fault(Some(Box::new(move |_, disk, io| {
        let is_met = io.at.start < bytes.end && bytes.start < io.at.end;
        let is_hit = disk == store && matches!(io.op, Op::Write(..)) && is_met;
        is_hit.then(|| Error::media("a bad sector"))
    })));
}

/// What the store has, past the flash.
pub async fn on_store(env: &Rc<SimEnv>, store: &str, block: u64) -> u8 {
    let buf = Buf::zeroed(4096);
    disk(env, store).submit(Io::read(block * 4096, buf.clone())).await.expect("read");
    buf.to_vec()[0]
}

/// Long enough for what can get to the stores to be there.
pub async fn settle(env: &Rc<SimEnv>) {
    env.sleep(Duration::from_secs(3)).await;
}

#[test]
fn a_block_that_the_flash_cannot_read_fails_alone() {
    simulate(&[("a", MIB), ("b", MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let (a, b) = (volume(&env, "a", &cache).await, volume(&env, "b", &cache).await);
        spoil_next(&env);
        a.write(3, 7).await.expect("written");
        for n in 0..100 {
            a.write(10 + n, n as u8 + 1).await.expect("another block");
            b.write(n, n as u8 + 1).await.expect("another volume");
            env.sleep(Duration::from_millis(50)).await;
        }
        settle(&env).await;
        let e = a.read(3).await.expect_err("nobody else has it");
        assert!(e.message().contains("only copy") && e.message().contains("accept-loss"), "{e}");
        assert_eq!((a.figure("dirty_bytes"), a.figure("bad_bytes")), (4096, 4096));
        assert_eq!((on_store(&env, "a", 109).await, on_store(&env, "b", 99).await), (100, 100));
        assert_eq!((b.figure("dirty_bytes"), b.node.info()["flash_trouble"].clone()), (0, Value::Null));
        a.command("drain").await.expect_err("a block is missing");
        // Somebody writes it again.
        a.write(3, 8).await.expect("written");
        a.command("drain").await.expect("nothing is missing");
        assert_eq!((a.read(3).await, on_store(&env, "a", 3).await), (Ok(8), 8));
        assert_eq!((a.figure("bad_bytes"), a.node.info()["flash_trouble"].clone()), (0, Value::Null));
    });
}

#[test]
fn the_loss_of_a_block_can_be_accepted() {
    let world = Simulation::new(1);
    let images = {
        let env = world.env();
        super::neighbours::put_disks(&env, &[("a", MIB)]);
        let run = async move {
            let cache = cache(&env, Begin::Format).await;
            let a = volume(&env, "a", &cache).await;
            a.write(3, 6).await.expect("written");
            a.command("drain").await.expect("drained");
            spoil_next(&env);
            a.write(3, 7).await.expect("written");
            a.write(4, 7).await.expect("written");
            settle(&env).await;
            a.read(3).await.expect_err("nobody has it");
            let lost = a.command("accept-loss").await.expect("accepted");
            assert_eq!(lost["lost"]["ranges"], json!([{ "start": 3 * 4096, "len": 4096 }]));
            assert_eq!((a.read(3).await, a.read(4).await), (Ok(6), Ok(7)));
            a.command("drain").await.expect("drained");
            a.command("accept-loss").await.expect_err("nothing is lost any more");
            assert_eq!(a.node.info()["policy"], json!("write-back"));
            env.set_fault(None);
            env.images(lamina_sim::Loss::All, 1)
        };
        world.run(run).expect("it ends")
    };
    opened(&images, |a| async move {
        assert_eq!((a.read(3).await, a.read(4).await), (Ok(6), Ok(7)), "it does not come back");
    });
}

/// What a power loss has left, opened again.
fn opened<F: Future<Output = ()> + 'static>(
    images: &lamina_sim::Images,
    test: impl FnOnce(Volume) -> F + 'static,
) {
    let world = Simulation::from_images(1, images);
    let env = world.env();
    let run = async move {
        let cache = cache(&env, Begin::Open).await;
        test(over(&env, disk(&env, "a"), &cache, json!({}), Begin::Open).await).await;
    };
    world.run(run).expect("it ends");
}

#[test]
fn a_drain_waits_for_blocks_that_the_store_takes_again() {
    for seed in 0..20 {
        let world = Simulation::new(seed);
        let env = world.env();
        super::neighbours::put_disks(&env, &[("a", MIB)]);
        let run = async move {
            let cache = cache(&env, Begin::Format).await;
            let a = volume(&env, "a", &cache).await;
            refuse(&env, "a", 10..40);
            for block in 0..50 {
                a.write(block, block as u8 + 1).await.expect("written");
                env.sleep(Duration::from_millis(30)).await;
            }
            env.sleep(Duration::from_nanos(env.random() % 2_000_000_000)).await;
            env.set_fault(None);
            a.command("drain").await.expect("drained");
            assert_eq!((a.figure("dirty_bytes"), a.figure("bad_bytes")), (0, 0), "seed {seed}");
        };
        world.run(run).expect("it ends");
    }
}

#[test]
fn a_block_that_the_store_does_not_take_keeps_no_other_from_it() {
    let world = Simulation::new(1);
    let env = world.env();
    super::neighbours::put_disks(&env, &[("a", MIB)]);
    let run = async move {
        let cache = cache(&env, Begin::Format).await;
        let a = volume(&env, "a", &cache).await;
        refuse(&env, "a", 5..6);
        for block in 0..40 {
            a.write(block, block as u8 + 1).await.expect("written");
        }
        settle(&env).await;
        assert_eq!((a.figure("dirty_bytes"), a.read(5).await), (4096, Ok(6)));
        assert_eq!((on_store(&env, "a", 4).await, on_store(&env, "a", 6).await), (5, 7));
        assert!(a.node.info()["store_trouble"].as_str().expect("said").contains("a bad sector"));
        let e = a.command("drain").await.expect_err("one is missing");
        assert!(e.message().contains("a bad sector"), "{e}");
        a.node.submit(Io::flush()).await.expect("the flash has it");
        env.images(lamina_sim::Loss::All, 1)
    };
    let images = world.run(run).expect("it ends");
    // The store takes it now.
    opened(&images, |a| async move {
        a.command("drain").await.expect("drained");
        for block in 0..40 {
            assert_eq!(a.read(block).await, Ok(block as u8 + 1));
        }
        a.node
            .control(Command { name: "set-policy".into(), args: json!({ "policy": "uncached" }) })
            .await
            .expect("set");
        assert_eq!(a.read(5).await, Ok(6), "it is on the store");
    });
}

#[test]
fn a_write_that_waits_for_the_store_is_told_that_it_failed() {
    simulate(&[("a", MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let keys = json!({ "policy": "write-through", "store-timeout": "1s" });
        let a = over(&env, disk(&env, "a"), &cache, keys, Begin::Format).await;
        refuse(&env, "a", 5..6);
        assert_eq!(a.write(5, 1).await.expect_err("the store does not take it").message(), "a bad sector");
        for block in 6..20 {
            a.write(block, 1).await.expect("others are taken");
        }
        a.node.submit(Io::flush()).await.expect("what was acknowledged is there");
        env.set_fault(None);
        a.write(5, 2).await.expect("taken");
        a.command("drain").await.expect("drained");
        assert_eq!((a.figure("bad_bytes"), on_store(&env, "a", 5).await), (0, 2));
    });
}

/// It takes part in what goes on in the log, as what it is, and after a power loss nobody takes anything else for it.
#[test]
fn a_block_that_the_flash_cannot_read_stops_no_neighbour() {
    let world = Simulation::new(1);
    let env = world.env();
    super::neighbours::put_disks(&env, &STORES);
    let run = async move {
        let cache = cache(&env, Begin::Format).await;
        let (a, b) = (volume(&env, "a", &cache).await, volume(&env, "b", &cache).await);
        spoil_next(&env);
        a.write(3, 7).await.expect("written");
        be_busy(&env, &b).await;
        a.read(3).await.expect_err("nobody has it");
        a.node.submit(Io::flush()).await.expect("flushed");
        env.images(lamina_sim::Loss::All, 1)
    };
    let images = world.run(run).expect("it ends");
    opened(&images, |a| async move {
        assert_eq!(a.read(3).await.expect_err("nobody has it").kind(), ErrorKind::Media);
        a.command("drain").await.expect_err("it is missing");
        a.write(3, 8).await.expect("written");
        a.command("drain").await.expect("nothing is missing");
        assert_eq!(a.read(3).await, Ok(8));
    });
}
