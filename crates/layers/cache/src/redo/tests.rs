//! A store that goes from one flush to the next at once.

use super::How;
use super::format::{AREA, Committed, Entry, Head, LOG_MIN, Record, Super, decode_table, encode_table};
use crate::testing::*;
use futures_util::future::join_all;
use lamina_block::{Begin, Build};
use lamina_kit::flaw::FLAW;
use lamina_sim::{Check, DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use std::cell::{Cell, RefCell};
use std::path::Path;

pub fn subject() -> Subject {
    Subject::new("redo", |rig| async move {
        let (store, log) = (vec![rig.disk(0)], Some(rig.disk(1)));
        rig.build_with(&Kind::of::<super::Keys>(), "top", json!({}), store, log).await
    })
    .disks_of(320 << 10)
}

/// Puts new disks into a world.
pub fn put_disks(env: &Rc<SimEnv>, disks: &[(&str, u64)]) {
    for (name, size) in disks {
        env.put_disk(name, Image::blank(DiskOptions::new(*size)));
    }
}

/// A disk of a world.
pub fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    let disk = env.disk(Path::new(name)).expect("it is there");
    Node::new(name, "simulated", Rc::clone(env) as Rc<dyn Env>, disk)
}

/// The disk "store", with its log on the disk "log".
pub async fn redo(env: &Rc<SimEnv>, begin: Begin) -> Result<Rc<Node>> {
    let any: Rc<dyn Env> = Rc::clone(env) as Rc<dyn Env>;
    let Ok(keys) = Kind::of::<super::Keys>().parse(&json!({})) else { panic!("no keys are needed") };
    let metadata = Some(disk(env, "log"));
    let with = Build { metadata, begin, ..Build::new("redo", &any, vec![disk(env, "store")]) };
    Ok(Node::new("redo", "redo", any, keys.build(with).await?))
}

/// Blocks of the store, in the tests of moments.
const BLOCKS: u64 = 40;
const BLOCK: u64 = 512;

/// What each block holds.
type Content = Vec<u64>;

fn block_of(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK as usize / 8)
}

async fn content(node: &Rc<Node>) -> Content {
    let into = Buf::zeroed((BLOCKS * BLOCK) as usize);
    node.submit(Io::read(0, into.clone())).await.expect("read");
    let value = |block: &[u8]| {
        assert!(block.chunks(8).all(|part| part == &block[..8]), "a block is torn");
        u64::from_le_bytes(block[..8].try_into().expect("8 bytes"))
    };
    into.to_vec().chunks(BLOCK as usize).map(value).collect()
}

/// An end of a life: the disks, and how many writes were durable by then, had been answered, and had begun.
struct Moment {
    images: Images,
    durable: usize,
    answered: usize,
    begun: usize,
}

/// The ends that a life might have had, and what was there after each write.
struct Life {
    moments: Vec<Moment>,
    states: Vec<Content>,
}

impl Life {
    /// Writes at random, up to three together, and flushes now and then; `end` makes what a death leaves, and
    /// is told its number.
    fn of(seed: u64, end: fn(&SimEnv, u64) -> Images) -> std::result::Result<Life, String> {
        let simulation = Simulation::new(seed);
        let env = simulation.env();
        put_disks(&env, &[("store", BLOCKS * BLOCK), ("log", LOG_MIN)]);
        let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
        let states: Rc<RefCell<Vec<Content>>> = Rc::new(RefCell::new(vec![vec![0; BLOCKS as usize]]));
        let (durable, answered): (Rc<Cell<usize>>, Rc<Cell<usize>>) = Default::default();
        let (weak, into, now) = (Rc::downgrade(&env), Rc::clone(&moments), Rc::clone(&states));
        let (kept, done, world) = (Rc::clone(&durable), Rc::clone(&answered), Rc::clone(&env));
        let load = async move {
            let mut random = xorshift(seed + 1);
            let top = redo(&world, Begin::Format).await.expect("made");
            let all = Rc::clone(&now);
            world.observe(Some(Rc::new(move || {
                let Some(env) = weak.upgrade() else { return };
                let images = end(&env, into.borrow().len() as u64 + 1);
                let begun = now.borrow().len() - 1;
                into.borrow_mut().push(Moment { images, durable: kept.get(), answered: done.get(), begun });
            })));
            for _ in 0..60 {
                let mut together = Vec::new();
                for _ in 0..1 + random() % 3 {
                    let value = all.borrow().len() as u64;
                    let at = random() % BLOCKS;
                    let count = (1 + random() % 6).min(BLOCKS - at);
                    let bytes: Vec<u8> = (0..count).flat_map(|_| block_of(value)).collect();
                    let mut next = all.borrow()[value as usize - 1].clone();
                    next[at as usize..(at + count) as usize].fill(value);
                    all.borrow_mut().push(next);
                    let write = top.submit(Io::write(at * BLOCK, Buf::from_vec(bytes), Durability::Cached));
                    let answered = &answered;
                    together.push(async move {
                        write.await.expect("written");
                        answered.set(answered.get().max(value as usize));
                    });
                }
                join_all(together).await;
                if random().is_multiple_of(5) {
                    top.submit(Io::flush()).await.expect("flushed");
                    durable.set(answered.get());
                }
            }
            world.observe(None);
        };
        simulation.run(load).map_err(|hang| format!("{hang:?}"))?;
        Ok(Life { moments: moments.take(), states: states.take() })
    }

    /// Opens the device over `images`, which `moment` has left: it holds what was there after one write,
    /// which is `least` or a later one.
    fn check(
        &self,
        seed: u64,
        moment: &Moment,
        images: &Images,
        least: usize,
    ) -> std::result::Result<(), String> {
        let simulation = Simulation::from_images(seed, images);
        let env = simulation.env();
        let found = simulation.run(async move {
            let top = redo(&env, Begin::Open).await?;
            Ok::<_, lamina_block::Error>(content(&top).await)
        });
        let found = found.map_err(|hang| format!("{hang:?}"))?.map_err(|e| e.to_string())?;
        match self.states[least..=moment.begun].contains(&found) {
            true => Ok(()),
            false => {
                let which = self.states.iter().position(|content| *content == found);
                Err(format!("it holds {which:?}, not one of {least}..={}: {found:?}", moment.begun))
            }
        }
    }
}

/// The power fails at any moment.
fn moments(seed: u64) -> std::result::Result<(), String> {
    let lost = |env: &SimEnv, number: u64| env.images(Loss::ALL[number as usize % Loss::ALL.len()], number);
    let life = Life::of(seed, lost)?;
    for (number, moment) in life.moments.iter().enumerate() {
        let checked = life.check(seed ^ number as u64, moment, &moment.images, moment.durable);
        checked.map_err(|e| format!("at moment {number} {e}"))?;
    }
    Ok(())
}

/// The process dies at any moment, and whoever uses the device does not.
fn processes(seed: u64) -> std::result::Result<(), String> {
    let life = Life::of(seed, |env, _| env.orphans())?;
    for (number, moment) in life.moments.iter().enumerate() {
        let checked = life.check(seed ^ number as u64, moment, &moment.images, moment.answered);
        checked.map_err(|e| format!("at moment {number} {e}"))?;
    }
    Ok(())
}

/// The process dies at one moment in `one_in`, and the power fails at any moment while what it left is opened.
fn deaths(seed: u64, one_in: usize) -> std::result::Result<(), String> {
    let life = Life::of(seed, |env, _| env.orphans())?;
    for (number, moment) in life.moments.iter().enumerate().step_by(one_in) {
        let simulation = Simulation::from_images(seed, &moment.images);
        let env = simulation.env();
        let losses: Rc<RefCell<Vec<Images>>> = Rc::default();
        let (into, weak) = (Rc::clone(&losses), Rc::downgrade(&env));
        env.observe(Some(Rc::new(move || {
            let Some(env) = weak.upgrade() else { return };
            let number = into.borrow().len() as u64;
            into.borrow_mut().push(env.images(Loss::ALL[number as usize % Loss::ALL.len()], number));
        })));
        let opening = Rc::clone(&env);
        let opened = simulation.run(async move { redo(&opening, Begin::Open).await.map(drop) });
        env.observe(None);
        opened.map_err(|hang| format!("{hang:?}"))?.map_err(|e| format!("moment {number}: {e}"))?;
        for (again, images) in losses.take().iter().enumerate() {
            life.check(seed, moment, images, moment.durable).map_err(|e| {
                format!("its process died at moment {number}, and the power failed at {again}: {e}")
            })?;
        }
    }
    Ok(())
}

/// The log says what is to be on the store, and is not durable: if the store were brought to it and the power
/// then took the log, the store would be between two moments.
#[test]
fn a_log_that_a_dead_process_left_is_durable_before_the_store_follows_it() {
    for seed in 0..4 {
        deaths(seed, 5).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn after_a_power_loss_it_holds_what_was_there_at_one_moment() {
    for seed in 0..6 {
        moments(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Nobody flushed, and nobody will write it again: a guest goes on as if nothing had been.
#[test]
fn what_was_answered_outlives_the_process() {
    for seed in 0..6 {
        processes(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn canaries() {
    for (flaw, test) in [
        ("record before the table", moments as fn(u64) -> _),
        ("record before the store", moments),
        ("answered before those that came first", processes),
    ] {
        FLAW.set(Some(flaw));
        let fails = |seed| test(seed).is_err();
        let noticed = (0..20).any(|seed| std::panic::catch_unwind(|| fails(seed)).unwrap_or(true));
        FLAW.set(None);
        assert!(noticed, "{flaw}: nothing noticed");
    }
}

#[test]
fn what_counts_together_is_not_there_if_it_is_abandoned() {
    simulated(|world| async move {
        let (store, log) = (world.memory("1MiB").await, world.memory("1MiB").await);
        super::open::format_log(&world.env, &log).await.unwrap();
        let redo = super::Redo::open("redo", &world.env, store, log).await.unwrap();
        let top = Node::new("redo", "redo", Rc::clone(&world.env), Rc::new(super::Flushed(Rc::clone(&redo))));
        let put = async |at: u64, value: u8, how: How| {
            redo.write(at..at + 512, Buf::from_vec(vec![value; 512]), how).await.unwrap()
        };
        let get = async || {
            let into = Buf::zeroed(1024);
            top.submit(Io::read(0, into.clone())).await.unwrap();
            (into.to_vec()[0], into.to_vec()[512])
        };
        put(0, 1, How::Together).await;
        top.submit(Io::flush()).await.unwrap();
        put(0, 2, How::Together).await;
        assert_eq!(get().await, (2, 0));
        redo.abandon();
        assert_eq!(get().await, (1, 0));
        assert_eq!(redo.point().0, 1);
        // What was answered to somebody stays.
        put(512, 4, How::Alone).await;
        put(0, 3, How::Together).await;
        put(512, 5, How::Together).await;
        redo.abandon();
        assert_eq!(get().await, (1, 4));
        top.submit(Io::flush()).await.unwrap();
        assert_eq!((get().await, redo.point().0), ((1, 4), 2));
    });
}

/// So is what comes after a write without a head.
#[test]
fn what_is_behind_a_write_without_a_head_outlives_the_process() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    put_disks(&env, &[("store", BLOCKS * BLOCK), ("log", LOG_MIN)]);
    let world = Rc::clone(&env);
    let images = simulation.run(async move {
        let top = redo(&world, Begin::Format).await.expect("made");
        let shared = super::redo_of(&top).expect("a redo");
        shared.write(0..BLOCK, Buf::from_vec(block_of(1)), How::Together).await.expect("written");
        let write = Io::write(BLOCK, Buf::from_vec(block_of(2)), Durability::Cached);
        top.submit(write).await.expect("written");
        world.orphans()
    });
    let simulation = Simulation::from_images(2, &images.expect("it ends"));
    let env = simulation.env();
    let found = simulation.run(async move { content(&redo(&env, Begin::Open).await.expect("opened")).await });
    assert_eq!(found.expect("it ends")[1], 2);
}

/// What comes after a write that has failed is behind a gap in the log: nobody would find it before its epoch counts.
#[test]
fn what_is_behind_a_failed_write_outlives_the_process() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    put_disks(&env, &[("store", BLOCKS * BLOCK), ("log", LOG_MIN)]);
    let world = Rc::clone(&env);
    let images = simulation.run(async move {
        let top = redo(&world, Begin::Format).await.expect("made");
        let write = |at: u64, value: u64| {
            top.submit(Io::write(at * BLOCK, Buf::from_vec(block_of(value)), Durability::Cached))
        };
        write(0, 1).await.expect("written");
        world.set_fault(Some(Box::new(|_, _, _| Some(lamina_block::Error::media("a fault of the test")))));
        write(1, 2).await.expect_err("it fails");
        world.set_fault(None);
        write(2, 3).await.expect("written");
        world.orphans()
    });
    let simulation = Simulation::from_images(2, &images.expect("it ends"));
    let env = simulation.env();
    let found = simulation.run(async move { content(&redo(&env, Begin::Open).await.expect("opened")).await });
    let found = found.expect("it ends");
    assert_eq!((found[0], found[2]), (1, 3));
}

#[test]
fn an_epoch_that_is_too_long_ends_before() {
    simulated(|world| async move {
        let (store, log) = (world.memory("4MiB").await, world.memory("256KiB").await);
        super::open::format_log(&world.env, &log).await.unwrap();
        let redo = super::Redo::open("redo", &world.env, store, log).await.unwrap();
        let top = Node::new("redo", "redo", Rc::clone(&world.env), Rc::new(super::Flushed(Rc::clone(&redo))));
        for block in 0..redo.room_for(4096) {
            let at = block * 4096..(block + 1) * 4096;
            redo.write(at, Buf::zeroed(4096), How::Together).await.unwrap();
        }
        assert_eq!(redo.point().0, 0, "all of it was to fit");
        let whole = vec![7; 2 << 20];
        top.submit(Io::write(0, Buf::from_vec(whole.clone()), Durability::Fua)).await.unwrap();
        assert!(redo.point().0 > 4);
        let into = Buf::zeroed(2 << 20);
        top.submit(Io::read(0, into.clone())).await.unwrap();
        assert_eq!(into.to_vec(), whole);
    });
}

#[test]
fn the_log_needs_a_device_that_is_large_enough() {
    let e = refused("redo", json!({}), &[&memory("1MiB")]);
    assert!(e.contains("metadata = \"NAME\""), "{e}");
}

/// The log of version 1: each page in hexadecimal, without the zeroes at its end.
const GOLDEN: &str = include_str!("../../tests/golden/redo-1.txt");

#[test]
fn the_format_of_version_1_is_as_it_was() {
    let of = Super { size: LOG_MIN, key: 0x0123_4567_89AB_CDEF };
    let table = vec![
        Entry { at: 0..4096, data: Some((AREA, 0xAAAA)) },
        Entry { at: 8192..8704, data: Some((AREA + 4096, 0xBBBB)) },
        Entry { at: 65536..131072, data: None },
    ];
    let (bytes, sum) = encode_table(&table, of.key);
    let committed = Committed { table: AREA + 8192, entries: 3, sum };
    let record = Record { sequence: 9, epoch: 4, time: 1_800_000_000, committed: Some(committed) };
    let line = |name: &str, bytes: &[u8]| {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let hex: String = bytes[..end].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name} {hex}\n")
    };
    let head = Head { epoch: 5, life: 77, time: 1_800_000_001, at: 4096..8192, sum: 0xCCCC };
    let text = line("super", &of.encode())
        + &line("record", &record.encode(of.key))
        + &line("table", &bytes)
        + &line("head", &head.encode(AREA, of.key));
    if std::env::var_os("LAMINA_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/redo-1.txt"), &text)
            .expect("written");
    }
    assert_eq!(text, GOLDEN, "the format has changed: see docs/formats/redo.md");
    assert_eq!(Super::decode(&of.encode(), LOG_MIN), Ok(of));
    assert_eq!(Record::decode(&record.encode(of.key), &of), Some(record));
    assert_eq!(decode_table(&bytes, &committed, &of, 1 << 20, 512), Ok(table));
    assert_eq!(Head::decode(&head.encode(AREA, of.key), AREA, &of), Some(head.clone()));
    // Somewhere else, and with data that do not fit.
    assert_eq!(Head::decode(&head.encode(AREA, of.key), AREA + 4096, &of), None);
    assert_eq!(Head::decode(&head.encode(LOG_MIN - 4096, of.key), LOG_MIN - 4096, &of), None);
    // Of a larger log, of a later version, damaged; a table for a smaller store.
    assert_eq!(Super::decode(&of.encode(), LOG_MIN - 1).unwrap_err().kind(), ErrorKind::Corrupt);
    let mut later = of.encode();
    later[16] = 2;
    assert_eq!(Super::decode(&later, LOG_MIN).unwrap_err().kind(), ErrorKind::Unsupported);
    for byte in [17, 30, 100] {
        let mut damaged = record.encode(of.key);
        damaged[byte] ^= 1;
        assert_eq!(Record::decode(&damaged, &of), None);
    }
    assert_eq!(decode_table(&bytes, &committed, &of, 65536, 512).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// The checks that load and crash it hold for a store that is slow to flush, too.
#[test]
fn a_slow_store_changes_nothing() {
    let slow = Subject::new("redo over a slow store", |rig| async move {
        let keys = json!({ "write": "1ms", "flush": "5ms" });
        let slow = rig.build(&Kind::of::<lamina_lab::delay::Keys>(), "slow", keys, vec![rig.disk(0)]).await?;
        rig.build_with(&Kind::of::<super::Keys>(), "top", json!({}), vec![slow], Some(rig.disk(1))).await
    })
    .disks_of(320 << 10)
    .seeds(3);
    for check in [Check::Model, Check::Crash] {
        lamina_sim::test(&slow, check, &lamina_sim::replay!());
    }
}
