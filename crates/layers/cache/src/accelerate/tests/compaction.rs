//! What is written again and again takes no space from the rest.

use super::super::Keys;
use super::report::made;
use crate::redo::tests::{disk, put_disks};
use crate::testing::*;
use lamina_block::Begin;
use lamina_kit::flaw::FLAW;
use lamina_sim::{Images, Loss, SimEnv, Simulation};
use std::cell::RefCell;
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

/// Blocks of the store, and those of them that are written most.
const BLOCKS: u64 = 400;
const HOT: u64 = 40;
/// Requests of a life.
const REQUESTS: u64 = 3000;

/// Numbers of the writes of each block: begun, acknowledged, and durable.
#[derive(Clone)]
struct Writes {
    begun: Vec<u32>,
    acknowledged: Vec<u32>,
    durable: Vec<u32>,
}

impl Writes {
    fn of(found: Vec<u32>) -> Writes {
        Writes { begun: found.clone(), acknowledged: found.clone(), durable: found }
    }
}

type Random = RefCell<Box<dyn FnMut() -> u64>>;

async fn numbers(top: &Rc<Node>, blocks: std::ops::Range<u64>) -> std::result::Result<Vec<u32>, String> {
    let data = Buf::zeroed(((blocks.end - blocks.start) * BLOCK) as usize);
    top.submit(Io::read(blocks.start * BLOCK, data.clone())).await.map_err(|e| format!("a read: {e}"))?;
    let number = |block: &[u8]| u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    Ok(data.to_vec().chunks(BLOCK as usize).map(number).collect())
}

async fn step(top: &Rc<Node>, writes: &RefCell<Writes>, random: &Random) -> std::result::Result<(), String> {
    let draw = |below: u64| (random.borrow_mut())() % below;
    let failed = |e| format!("a request: {e}");
    match draw(20) {
        0 => {
            let acknowledged = writes.borrow().acknowledged.clone();
            top.submit(Io::flush()).await.map_err(failed)?;
            writes.borrow_mut().durable = acknowledged;
        }
        kind @ 1..=14 => {
            let block = draw(if kind < 14 { HOT } else { BLOCKS });
            let is_fua = draw(8) == 0;
            writes.borrow_mut().begun[block as usize] += 1;
            let number = writes.borrow().begun[block as usize];
            let mut data = vec![0; BLOCK as usize];
            data[..4].copy_from_slice(&number.to_le_bytes());
            let durability = if is_fua { Durability::Fua } else { Durability::Cached };
            top.submit(Io::write(block * BLOCK, Buf::from_vec(data), durability)).await.map_err(failed)?;
            let mut writes = writes.borrow_mut();
            writes.acknowledged[block as usize] = number;
            if is_fua {
                writes.durable[block as usize] = number;
            }
        }
        _ => {
            let first = draw(BLOCKS);
            let blocks = first..(first + 1 + draw(8)).min(BLOCKS);
            let found = numbers(top, blocks.clone()).await?;
            let wanted = &writes.borrow().acknowledged[blocks.start as usize..blocks.end as usize];
            if found != wanted {
                return Err(format!("blocks {blocks:?} are {found:?}, not {wanted:?}"));
            }
        }
    }
    Ok(())
}

/// Opens what a power loss left, and checks it; then so many requests, and what power losses among them leave.
fn live(
    seed: u64,
    requests: u64,
    images: &Images,
    before: Option<&Writes>,
) -> std::result::Result<Vec<(Images, Writes)>, String> {
    let world = Simulation::from_images(seed, images);
    let env = world.env();
    let crashes: Rc<RefCell<Vec<(Images, Writes)>>> = Rc::default();
    let (into, before) = (Rc::clone(&crashes), before.cloned());
    let run = async move {
        let begin = if before.is_some() { Begin::Open } else { Begin::Format };
        let top = volume(&env, begin).await;
        let found = numbers(&top, 0..BLOCKS).await?;
        for (block, number) in found.iter().enumerate() {
            let Some(before) = &before else { continue };
            let may = before.durable[block]..=before.begun[block];
            if !may.contains(number) {
                return Err(format!("block {block} is {number}, not one of {may:?}"));
            }
        }
        let writes = Rc::new(RefCell::new(Writes::of(found)));
        let random: Rc<Random> = Rc::new(RefCell::new(Box::new(xorshift(seed * 2 + 1))));
        let (weak, known, draw) = (Rc::downgrade(&env), Rc::clone(&writes), Rc::clone(&random));
        env.observe(Some(Rc::new(move || {
            let draw = || (draw.borrow_mut())();
            let Some(env) = weak.upgrade().filter(|_| draw() % 400 == 0) else { return };
            // The power fails, or the process is killed.
            let images = match Loss::ALL.get((draw() >> 8) as usize % 5) {
                Some(loss) => env.images(*loss, draw()),
                None => env.orphans(),
            };
            into.borrow_mut().push((images, known.borrow().clone()));
        })));
        let mut result = Ok(());
        for _ in 0..requests {
            result = result.and(step(&top, &writes, &random).await);
            let pause = (random.borrow_mut())() % 2000;
            env.sleep(Duration::from_micros(pause)).await;
        }
        env.observe(None);
        result
    };
    world.run(run).map_err(|hang| hang.to_string())??;
    Ok(crashes.take())
}

fn lives(seed: u64) -> std::result::Result<(), String> {
    let world = Simulation::new(seed);
    put_disks(&world.env(), &[("store", BLOCKS * BLOCK), ("flash", 1200 << 10)]);
    let mut crashes = live(seed, REQUESTS, &world.env().images(Loss::Nothing, seed), None)?;
    for life in 1..3 {
        let next = crashes.len() / 2;
        for (n, (images, writes)) in crashes.iter().enumerate() {
            let tell = |e| format!("life {life}, power loss {n}: {e}");
            live(seed, 0, images, Some(writes)).map_err(tell)?;
        }
        let (images, writes) = &crashes[next];
        crashes = live(seed * 10 + life, REQUESTS, images, Some(writes))?;
    }
    Ok(())
}

fn seeds(default: u64) -> u64 {
    std::env::var("LAMINA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default)
}

/// Few blocks are written again and again, so that segments are compacted all the time.
#[test]
fn the_power_fails_while_segments_are_compacted() {
    for seed in 0..seeds(2) {
        lives(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn copies_that_are_not_durable_are_noticed() {
    FLAW.set(Some("erased before its copies are durable"));
    let found = (0..seeds(10)).find(|seed| lives(*seed).is_err());
    FLAW.set(None);
    assert!(found.is_some(), "nothing noticed");
}
