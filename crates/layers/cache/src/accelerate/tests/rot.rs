//! Rot of the flash: a block that only the flash has, and that is not what was written, goes nowhere.

use super::bad::{on_store, settle};
use super::failures::{disk, layer};
use super::late::{STORES, be_busy};
use super::neighbours::{MIB, Volume, cache, over, put_disks, simulate, volume};
use crate::flash::SLOT;
use crate::testing::*;
use lamina_block::{Begin, Env, Error, Geometry, Layer, Manage, Op, Passthrough, Step};
use lamina_kit::flaw::failure_of;
use lamina_sim::{Images, Loss, Presence, SimEnv, Simulation};
use std::cell::Cell;

const SLOTS: u64 = 4 * MIB / SLOT as u64;

/// Flips a bit in every slot of the flash that is full of `value`; so many there are.
async fn rot(env: &Rc<SimEnv>, value: u8) -> usize {
    let (flash, mut found) = (disk(env, "flash"), 0);
    for slot in 8..SLOTS {
        let buf = Buf::zeroed(SLOT);
        flash.submit(Io::read(slot * SLOT as u64, buf.clone())).await.expect("read");
        let mut bytes = buf.to_vec();
        if bytes.iter().all(|byte| *byte == value) {
            bytes[0] ^= 1;
            let write = Io::write(slot * SLOT as u64, Buf::from_vec(bytes), Durability::Fua);
            flash.submit(write).await.expect("written");
            found += 1;
        }
    }
    found
}

/// Reads of a block fail, as nobody else has it; writing it again heals it.
async fn is_bad_until_written(env: &Rc<SimEnv>, a: &Volume, block: u64) {
    let e = a.read(block).await.expect_err("nobody else has it");
    assert_eq!(e.kind(), ErrorKind::Media);
    assert!(e.message().contains("only copy") && e.message().contains("accept-loss"), "{e}");
    a.command("drain").await.expect_err("a block is missing");
    a.write(block, 99).await.expect("written");
    a.command("drain").await.expect("nothing is missing");
    assert_eq!((a.read(block).await, on_store(env, "a", block).await), (Ok(99), 99));
    assert_eq!((a.figure("bad_bytes"), a.node.info()["flash_trouble"].clone()), (0, Value::Null));
}

/// A block rots before it gets to its store.
fn a_rotten_block() {
    simulate(&[("a", MIB), ("b", MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let (a, b) = (volume(&env, "a", &cache).await, volume(&env, "b", &cache).await);
        a.write(3, 7).await.expect("written");
        assert_eq!(rot(&env, 7).await, 1);
        for n in 0..100 {
            a.write(10 + n, n as u8 + 100).await.expect("another block");
            b.write(n, n as u8 + 100).await.expect("another volume");
        }
        settle(&env).await;
        assert_eq!(on_store(&env, "a", 3).await, 0, "rot got to the store");
        assert_eq!((on_store(&env, "a", 109).await, on_store(&env, "b", 99).await), (199, 199));
        assert_eq!((a.figure("dirty_bytes"), a.figure("bad_bytes")), (4096, 4096));
        let trouble = a.node.info()["flash_trouble"].as_str().expect("said").to_owned();
        assert!(trouble.contains("1 blocks") && trouble.contains("as it was written"), "{trouble}");
        assert_eq!((b.figure("dirty_bytes"), b.node.info()["flash_trouble"].clone()), (0, Value::Null));
        is_bad_until_written(&env, &a, 3).await;
    });
}

#[test]
fn a_rotten_block_fails_alone() {
    a_rotten_block();
}

#[test]
fn rot_that_is_not_noticed_gets_to_the_store() {
    for test in [a_rotten_block, rot_while_the_store_is_away, a_rotten_block_is_written_in_part] {
        let words = failure_of("rot is not noticed", test);
        assert!(words.contains("rot got to the store"), "{words}");
    }
}

/// All blocks of an entry are bad together, and no others.
#[test]
fn what_was_written_with_it_is_bad_too() {
    simulate(&[("a", MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let a = volume(&env, "a", &cache).await;
        // On a small flash no more than three blocks are put together.
        let bytes = (0..48u8).flat_map(|n| vec![n + 1; SLOT]).collect();
        a.node.submit(Io::write(0, Buf::from_vec(bytes), Durability::Cached)).await.expect("written");
        // What has been written again is compared all the same.
        a.write(20, 77).await.expect("written");
        assert_eq!(rot(&env, 21).await, 1);
        settle(&env).await;
        let wanted = |n: u64| match n {
            20 => 77,
            18..21 => 0,
            _ => n as u8 + 1,
        };
        for n in 0..48 {
            assert_eq!(on_store(&env, "a", n).await, wanted(n), "block {n}");
        }
        assert_eq!(a.figure("bad_bytes"), 2 * 4096);
    });
}

/// A flash whose next read of data gives something else.
struct Flaky(Rc<Node>, Rc<Cell<bool>>);

impl Layer for Flaky {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match &io.op {
            Op::Read(into) if self.1.replace(false) => {
                let (into, read) = (into.clone(), self.0.submit(io.clone()));
                Step::control(async move {
                    read.await?;
                    into.write(0, &[1]);
                    Ok(())
                })
            }
            _ => Step::Forward(Rc::clone(&self.0)),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.0)
    }
}

impl Manage for Flaky {}

/// What was wrong only on its way is right the second time.
#[test]
fn a_read_that_goes_wrong_once_costs_nothing() {
    simulate(&[("a", MIB)], |env| async move {
        let (world, is_wrong): (Rc<dyn Env>, _) = (Rc::clone(&env) as _, Rc::new(Cell::new(false)));
        let flaky = Rc::new(Flaky(disk(&env, "flash"), Rc::clone(&is_wrong)));
        let over = vec![Node::new("flaky", "flaky", world, flaky)];
        let kind = Kind::of::<crate::flash::Keys>();
        let cache = layer(&env, kind, "cache", json!({}), over, Begin::Format).await.expect("the flash");
        let a = volume(&env, "a", &cache).await;
        a.write(3, 7).await.expect("written");
        is_wrong.set(true);
        settle(&env).await;
        assert_eq!((is_wrong.get(), on_store(&env, "a", 3).await, a.figure("bad_bytes")), (false, 7, 0));
    });
}

/// The block is copied from one segment to the next, and its store comes back.
fn rot_while_the_store_is_away() {
    let world = Simulation::new(1);
    put_disks(&world.env(), &STORES);
    let env = world.env();
    let run = async move {
        let cache = cache(&env, Begin::Format).await;
        let (a, b) = (volume(&env, "a", &cache).await, volume(&env, "b", &cache).await);
        env.disk("a").expect("a disk").set_presence(Presence::Failing);
        a.write(3, 251).await.expect("written");
        a.write(4, 252).await.expect("written");
        assert_eq!(rot(&env, 251).await, 1);
        be_busy(&env, &b).await;
        b.node.submit(Io::flush()).await.expect("flushed");
        let images = env.images(Loss::All, 1);
        env.disk("a").expect("a disk").set_presence(Presence::Here);
        settle(&env).await;
        assert_eq!(on_store(&env, "a", 3).await, 0, "rot got to the store");
        assert_eq!(on_store(&env, "a", 4).await, 252);
        is_bad_until_written(&env, &a, 3).await;
        images
    };
    let images = world.run(run).expect("it ends");
    opened(&images);
}

/// What a power loss has left: block 3 is bad, and nothing older or rotten is there.
fn opened(images: &Images) {
    let world = Simulation::from_images(1, images);
    let env = world.env();
    let run = async move {
        let cache = cache(&env, Begin::Open).await;
        let a = over(&env, disk(&env, "a"), &cache, json!({}), Begin::Open).await;
        settle(&env).await;
        assert_eq!(on_store(&env, "a", 3).await, 0, "rot got to the store");
        assert_eq!(on_store(&env, "a", 4).await, 252);
        is_bad_until_written(&env, &a, 3).await;
    };
    world.run(run).expect("it ends");
}

#[test]
fn rot_is_not_copied() {
    rot_while_the_store_is_away();
}

/// Nobody has the volume open: its blocks go from one end of the log to the other all the same.
#[test]
fn rot_of_a_volume_that_nobody_has_open() {
    simulate(&STORES, |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let (a, b) = (volume(&env, "a", &cache).await, volume(&env, "b", &cache).await);
        env.disk("a").expect("a disk").set_presence(Presence::Failing);
        a.write(3, 251).await.expect("written");
        a.node.close().await.expect("closed");
        assert_eq!(rot(&env, 251).await, 1);
        be_busy(&env, &b).await;
        env.disk("a").expect("a disk").set_presence(Presence::Here);
        let a = over(&env, disk(&env, "a"), &cache, json!({}), Begin::Open).await;
        settle(&env).await;
        assert_eq!(on_store(&env, "a", 3).await, 0, "rot got to the store");
        is_bad_until_written(&env, &a, 3).await;
    });
}

/// It rots while the machine is off: with a summary, and without one.
#[test]
fn rot_before_it_is_opened() {
    for is_closed in [true, false] {
        let world = Simulation::new(1);
        put_disks(&world.env(), &[("a", MIB)]);
        let env = world.env();
        let run = async move {
            let cache = cache(&env, Begin::Format).await;
            let a = volume(&env, "a", &cache).await;
            a.write(3, 6).await.expect("written");
            a.node.submit(Io::flush()).await.expect("flushed");
            env.disk("a").expect("a disk").set_presence(Presence::Failing);
            // Later heads say that it is durable.
            for (block, value) in [(3, 251), (4, 252), (5, 253)] {
                a.write(block, value).await.expect("written");
                a.node.submit(Io::flush()).await.expect("flushed");
            }
            if is_closed {
                a.node.close().await.expect("closed");
                cache.close().await.expect("closed");
            }
            assert_eq!(rot(&env, 251).await, 1);
            env.disk("a").expect("a disk").set_presence(Presence::Here);
            env.images(Loss::All, 1)
        };
        opened(&world.run(run).expect("it ends"));
    }
}

/// Writes the first half of a block.
async fn write_half(a: &Volume, block: u64, value: u8) -> Result<()> {
    a.node.submit(Io::write(block * 4096, Buf::from_vec(vec![value; 2048]), Durability::Cached)).await
}

/// What a write does not cover does not become a part of a newer version: if only the flash has it, the write
/// fails, and otherwise the store's is taken.
fn a_rotten_block_is_written_in_part() {
    simulate(&[("a", MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let a = volume(&env, "a", &cache).await;
        a.write(3, 7).await.expect("written");
        a.command("drain").await.expect("drained");
        assert_eq!(rot(&env, 7).await, 1);
        a.node
            .submit(Io::write(3 * 4096 + 2048, Buf::from_vec(vec![8; 2048]), Durability::Cached))
            .await
            .expect("written");
        a.command("drain").await.expect("drained");
        assert_eq!(on_store(&env, "a", 3).await, 7, "rot got to the store");
        assert_eq!(a.figure("unreadable_bytes"), 4096);
        a.write(4, 9).await.expect("written");
        assert_eq!(rot(&env, 9).await, 1);
        let e = write_half(&a, 4, 10).await.expect_err("nobody has the other half");
        assert_eq!(e.kind(), ErrorKind::Media);
        a.write(4, 11).await.expect("written");
        write_half(&a, 4, 12).await.expect("written");
        assert_eq!(a.figure("bad_bytes"), 0);
    });
}

#[test]
fn rot_is_no_part_of_a_newer_version() {
    a_rotten_block_is_written_in_part();
}

/// The flash has failed, and what can be read of it is brought to the store.
#[test]
fn rot_is_lost_with_a_flash_that_is_given_up() {
    simulate(&[("a", MIB)], |env| async move {
        let cache = cache(&env, Begin::Format).await;
        let a = volume(&env, "a", &cache).await;
        env.disk("a").expect("a disk").set_presence(Presence::Failing);
        a.write(3, 7).await.expect("written");
        a.write(4, 8).await.expect("written");
        a.node.submit(Io::flush()).await.expect("flushed");
        assert_eq!(rot(&env, 7).await, 1);
        // It can be read, but not written.
        env.set_fault(Some(Box::new(|_, disk, io| {
            let is_hit = disk == "flash" && matches!(io.op, Op::Write(..));
            is_hit.then(|| Error::offline("it takes nothing"))
        })));
        a.write(5, 9).await.expect_err("it takes nothing");
        env.disk("a").expect("a disk").set_presence(Presence::Here);
        let lost = a.command("accept-loss").await.expect("accepted");
        assert_eq!(lost["lost"]["ranges"], json!([{ "start": 3 * 4096, "len": 4096 }]));
        assert_eq!((on_store(&env, "a", 3).await, on_store(&env, "a", 4).await), (0, 8));
    });
}
