//! The journal as a ring: which slots may be overwritten, what a degraded write costs, and what a crash must
//! not bring back.

use super::*;
use crate::parity::ring::Ring;
use lamina_block::{Error, Op};
use std::cell::Cell;

/// A slot goes round when a record says so, and not when a flush has ended.
#[test]
pub fn a_slot_is_free_when_a_record_says_so() {
    let ring = Ring::new(4);
    let (a, b, c) = (ring.take().expect("one"), ring.take().expect("two"), ring.take().expect("three"));
    assert_eq!((a.sequence, b.sequence, c.sequence), (1, 2, 3));
    assert!(ring.take().is_none(), "the last slot is for who says what is free");
    drop(b);
    assert_eq!(ring.done(), 1, "an older one is not in its place");
    drop(a);
    let done = ring.done();
    assert_eq!((done, ring.first()), (3, 1));
    // A write that ends during a flush is not flushed.
    drop(c);
    ring.flushed(done);
    assert_eq!((ring.done(), ring.first()), (4, 3));
    assert!(ring.take().is_none(), "no record says it yet");
    ring.wrote(3);
    let (d, e) = (ring.take().expect("a slot"), ring.take().expect("another"));
    assert_eq!((d.sequence, e.sequence), (4, 5));
    assert!(ring.take().is_none());
    // Older records that end later take nothing back.
    ring.wrote(1);
    ring.flushed(2);
    assert_eq!(ring.first(), 3);
    // In another epoch all are free, and what is still held is of no account.
    ring.reset();
    assert_eq!((ring.first(), ring.done()), (6, 6));
    drop((d, e));
    assert_eq!((0..3).map_while(|_| ring.take()).count(), 3);
}

/// Two devices of three, `b` is missing; each device can write durably.
async fn degraded(env: &Rc<SimEnv>) -> (Open, Vec<u8>) {
    let (open, bytes) = filled(env).await;
    open.command("fail", json!({ "leg": "b" })).await.expect("failed");
    (open, bytes)
}

/// Flushes, and writes that are durable by themselves, that devices get.
fn counting(env: &Rc<SimEnv>) -> (Rc<Cell<u64>>, Rc<Cell<u64>>) {
    let (flushes, durable) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (f, d) = (Rc::clone(&flushes), Rc::clone(&durable));
    env.set_fault(Some(Box::new(move |_, _, io| {
        match &io.op {
            Op::Write(_, Durability::Fua) => d.set(d.get() + 1),
            Op::Flush => f.set(f.get() + 1),
            Op::Write(..) | Op::Read(_) | Op::Zero(_) | Op::Discard => {}
        }
        None
    })));
    (flushes, durable)
}

/// A world whose disks have room for a ring of several slots, and write durably without a flush.
fn large() -> Simulation {
    let world = Simulation::new(3);
    for name in ["a", "b", "c"] {
        let mut options = DiskOptions::new(8 << 20);
        options.geometry.fua = true;
        options.latency_max = Duration::from_micros(500);
        world.env().put_disk(name, Image::blank(options));
    }
    world
}

/// Stripes of three units, of which b has data: writing to one goes through the journal.
fn journaled(stripe: u64) -> bool {
    stripe % 3 != 1
}

#[test]
fn a_degraded_write_is_one_durable_write_and_now_and_then_a_flush() {
    let world = large();
    let env = world.env();
    let run = async move {
        let (open, _) = degraded(&env).await;
        let (flushes, durable) = counting(&env);
        let stripes: Vec<u64> = (0..120).filter(|stripe| journaled(*stripe)).collect();
        // All of it in regions that are written already.
        put(&open, 0, &vec![9; 2 * 120 * UNIT as usize]).await;
        durable.set(0);
        flushes.set(0);
        for stripe in &stripes {
            let write = Io::write(stripe * 2 * UNIT, Buf::from_vec(pattern(512)), Durability::Fua);
            open.node.submit(write).await.expect("written");
        }
        let count = stripes.len() as u64;
        // A few of them are pages of the intent.
        assert!((count..count + 8).contains(&durable.get()), "{} for {count}", durable.get());
        // Each of two devices, when half of the slots, at least two, wait for it.
        let slots = 8 * 1024 * 1024 / 64 / (4096 + 4096);
        assert!(slots >= 8 && flushes.get() <= 2 * (count / (slots / 2) + 2), "{} flushes", flushes.get());
        env.set_fault(None);
        open.node.close().await.expect("closed");
    };
    world.run(run).expect("it ends");
}

/// More writers than slots: they wait for each other, and all end.
#[test]
fn a_full_ring_makes_room() {
    simulate(|env| async move {
        let (open, mut bytes) = degraded(&env).await;
        for turn in 0..3u8 {
            let write = |stripe: u64| {
                let io = Io::write(stripe * 2 * UNIT, Buf::from_vec(vec![turn; 512]), Durability::Cached);
                open.node.submit(io)
            };
            let stripes: Vec<u64> = (0..bytes.len() as u64 / (2 * UNIT)).collect();
            all(stripes.iter().map(|stripe| write(*stripe)).collect::<Vec<_>>()).await.expect("written");
            stripes.iter().for_each(|stripe| bytes[(stripe * 2 * UNIT) as usize..][..512].fill(turn));
        }
        assert!(all_of(&open).await == bytes);
        open.node.close().await.expect("closed");
    });
}

/// Nothing can be flushed any more: writers get the error, and none of them waits for ever.
#[test]
fn a_full_ring_that_cannot_be_flushed_is_an_error() {
    simulate(|env| async move {
        let (open, _) = degraded(&env).await;
        env.set_fault(Some(Box::new(|_, _, io| {
            matches!(io.op, Op::Flush).then(|| Error::media("a simulated fault"))
        })));
        let mut failed = 0;
        for stripe in (0..24).filter(|stripe| journaled(*stripe)) {
            let io = Io::write(stripe * 2 * UNIT, Buf::zeroed(512), Durability::Cached);
            failed += u64::from(open.node.submit(io).await.is_err());
        }
        assert!(failed > 0);
        env.set_fault(None);
        put(&open, 0, &[5; 512]).await;
        open.node.submit(Io::flush()).await.expect("flushed");
    });
}

/// A write to the places of a stripe fails half-way on a device that cannot be done without; other records go
/// round the ring, and then the power fails. What the missing device had there is not made up.
#[test]
fn a_stripe_that_is_half_written_is_not_guessed_when_its_record_is_gone() {
    let world = world(3);
    let env = world.env();
    let (images, bytes, failed) = world
        .run(async move {
            let (open, mut bytes) = degraded(&env).await;
            env.set_fault(Some(Box::new(|_, disk, io| {
                let is_place = matches!(io.op, Op::Write(..)) && disk == "c" && io.at.start < 64 << 10;
                is_place.then(|| Error::media("a simulated fault"))
            })));
            let mut failed = Vec::new();
            for stripe in (0..12).filter(|stripe| journaled(*stripe)) {
                for at in [stripe * 2 * UNIT, stripe * 2 * UNIT + UNIT] {
                    let io = Io::write(at, Buf::from_vec(vec![7; 512]), Durability::Cached);
                    if open.node.submit(io).await.is_err() {
                        failed.push(at..at + 512);
                    } else {
                        bytes[at as usize..][..512].fill(7);
                    }
                }
            }
            assert!(!failed.is_empty());
            env.set_fault(None);
            for stripe in (12..24).filter(|stripe| journaled(*stripe)) {
                put(&open, stripe * 2 * UNIT, &[8; 512]).await;
                bytes[(stripe * 2 * UNIT) as usize..][..512].fill(8);
            }
            (env.images(Loss::All, 1), bytes, failed)
        })
        .expect("it ends");
    let world = Simulation::from_images(5, &images);
    let env = world.env();
    let run = async move {
        let legs = vec![child(&env, "a"), absent(&env, "b"), child(&env, "c")];
        let open = open_with(&env, legs, keys(), Begin::Open, &[]).await.expect("opened");
        let mut unknown = 0;
        for at in (0..bytes.len() as u64).step_by(512) {
            let buf = Buf::zeroed(512);
            match open.node.submit(Io::read(at, buf.clone())).await {
                Ok(()) => {
                    let right = buf.to_vec() == bytes[at as usize..][..512];
                    assert!(right || failed.contains(&(at..at + 512)), "made up at {at}");
                }
                Err(e) => {
                    assert!(e.message().contains("cannot be known"), "{e}");
                    unknown += 1;
                }
            }
        }
        assert!(unknown > 0);
    };
    world.run(run).expect("it ends");
}

/// Without a place to write to, what stands in the journal only is an error, and what does not is read.
#[test]
fn what_nobody_may_write_is_not_read_as_it_was() {
    let world = world(3);
    let env = world.env();
    let (images, bytes) = world
        .run(async move {
            let (open, bytes) = degraded(&env).await;
            let write = Io::write(0, Buf::from_vec(vec![7; 512]), Durability::Fua);
            open.node.submit(write).await.expect("written");
            (env.images(Loss::All, 1), bytes)
        })
        .expect("it ends");
    let world = Simulation::new(5);
    let env = world.env();
    for (path, image) in images {
        let mut options = DiskOptions::new(DISK + (64 << 10));
        options.geometry.read_only = path.to_str().is_some_and(|name| name.len() == 1);
        env.put_disk(path, image.with_options(options));
    }
    let run = async move {
        let open = super::open(&env, &["a", "b", "c"], keys(), Begin::Open).await.expect("opened");
        let read = async |at| open.node.submit(Io::read(at, Buf::zeroed(512))).await;
        let e = read(0).await.expect_err("it is older");
        assert!(e.message().contains("stands in the journal"), "{e}");
        for at in (2 * UNIT..bytes.len() as u64).step_by(512) {
            read(at).await.expect("read");
        }
    };
    world.run(run).expect("it ends");
}
