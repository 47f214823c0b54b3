//! A volume whose store is always what the volume was at one moment.

use super::{DISK, flash};
use crate::flash::SLOT;
use crate::redo::tests::{disk, put_disks, redo};
use crate::testing::*;
use lamina_block::{Begin, Build, Keep};
use lamina_kit::flaw::FLAW;
use lamina_sim::{Images, Loss, SimEnv, SimKeep, Simulation, gauntlet};
use std::cell::{Cell, RefCell};
use std::time::Duration;

fn epochs(name: &'static str, keys: Value) -> Subject {
    Subject::new(name, move |rig| {
        let keys = keys.clone();
        async move {
            let redo = Kind::of::<crate::redo::Keys>();
            let store =
                rig.build_with(&redo, "store", json!({}), vec![rig.disk(0)], Some(rig.disk(2))).await?;
            let over = vec![store, flash(&rig, 1).await?];
            rig.build(&Kind::of::<super::super::Keys>(), "top", keys, over).await
        }
    })
    .disks_of(DISK)
    .seeds(3)
}

gauntlet!(write_back, epochs("epochs", json!({ "sequential-cutoff": "64KiB" })));
gauntlet!(through, epochs("epochs, write-through", json!({ "policy": "write-through" })));

/// Blocks of the volume.
const BLOCKS: u64 = 24;
const TAIL: u64 = BLOCKS * SLOT as u64;

/// How the disks were at one moment.
struct Moment {
    images: Images,
    /// Writes that were acknowledged.
    acknowledged: u64,
    /// What was said to be lost if the flash was lost then.
    lag_bytes: u64,
}

async fn accelerated(env: &Rc<SimEnv>, keys: Value) -> Rc<Node> {
    let any: Rc<dyn Env> = Rc::clone(env) as Rc<dyn Env>;
    let made = async |kind: &Kind, name: &str, keys: Value, over: Vec<Rc<Node>>| {
        let Ok(keys) = kind.parse(&keys) else { panic!("they are right") };
        let keep: Rc<dyn Keep> = SimKeep::open(env, name).await.expect("kept").0;
        let with = Build { keep: Some(keep), begin: Begin::Format, ..Build::new(name, &any, over) };
        Node::new(name, kind.name, Rc::clone(&any), keys.build(with).await.expect("made"))
    };
    let store = redo(env, Begin::Format).await.expect("made");
    let flash = made(&Kind::of::<crate::flash::Keys>(), "flash", json!({}), vec![disk(env, "nvme")]).await;
    made(&Kind::of::<super::super::Keys>(), "top", keys, vec![store, flash]).await
}

/// The block that a write goes to: some are written often.
fn place(seed: u64, number: u64) -> u64 {
    let mut random = xorshift(seed * 1000 + number + 1);
    (random() % BLOCKS).min(random() % BLOCKS)
}

/// Writes the end of the store: many times when nothing is dirty, each after the one before; and once later,
/// so that what has come meanwhile goes to the store at once.
async fn write_end(env: &Rc<SimEnv>, top: &Rc<Node>, len: usize, number: u64) {
    let writes = match number % 7 {
        0 => 8,
        3 => 1,
        _ => return,
    };
    if writes > 1 {
        let drain = Command { name: "drain".into(), args: json!({}) };
        top.control(drain).await.expect("drained");
    }
    for _ in 0..writes {
        let (top, data) = (Rc::clone(top), Buf::zeroed(len));
        env.spawn(Box::pin(async move {
            top.submit(Io::write(TAIL, data, Durability::Cached)).await.expect("written");
        }));
    }
    env.sleep(Duration::from_nanos(1)).await;
}

/// Writes numbers, and takes moments. At each of them the store and its log, without the flash, are what the volume was
/// after some write; and not more is missing than was said. A store whose last block has `tail` bytes is written there
/// meanwhile.
fn moments(seed: u64, tail: usize) -> std::result::Result<(), String> {
    let simulation = Simulation::new(seed);
    let env = simulation.env();
    put_disks(&env, &[("store", TAIL + tail as u64), ("log", 320 << 10), ("nvme", DISK)]);
    let taken: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let acknowledged = Rc::new(Cell::new(0));
    let (into, done, world, weak) =
        (Rc::clone(&taken), Rc::clone(&acknowledged), Rc::clone(&env), Rc::downgrade(&env));
    simulation
        .run(async move {
            // One write of a batch at a time, so that others come between.
            let keys = if tail > 0 { json!({ "depth": 1 }) } else { json!({}) };
            let top = accelerated(&world, keys).await;
            let (node, done_then, mut number) = (Rc::downgrade(&top), Rc::clone(&done), 0u64);
            world.observe(Some(Rc::new({
                let number = Cell::new(0u64);
                move || {
                    number.set(number.get() + 1);
                    let (Some(env), Some(top)) = (weak.upgrade(), node.upgrade()) else { return };
                    if number.get() % 5 == seed % 5 {
                        let images =
                            env.images(Loss::ALL[number.get() as usize % Loss::ALL.len()], number.get());
                        let lag_bytes = top.info()["recovery_point"]["lag_bytes"].as_u64().expect("known");
                        into.borrow_mut().push(Moment { images, acknowledged: done_then.get(), lag_bytes });
                    }
                }
            })));
            while number < 150 {
                number += 1;
                let bytes = number.to_le_bytes().repeat(SLOT / 8);
                let at = place(seed, number) * SLOT as u64;
                top.submit(Io::write(at, Buf::from_vec(bytes), Durability::Cached)).await.expect("written");
                done.set(number);
                match number % 7 {
                    0 => world.sleep(Duration::from_millis(number * 2)).await,
                    3 => top.submit(Io::flush()).await.expect("flushed"),
                    _ => {}
                }
                if tail > 0 {
                    write_end(&world, &top, tail, number).await;
                }
            }
            world.observe(None);
        })
        .map_err(|hang| format!("{hang:?}"))?;
    let after = |count: u64| {
        let mut content = vec![0; BLOCKS as usize];
        (1..=count).for_each(|number| content[place(seed, number) as usize] = number);
        content
    };
    let mut latest = 0;
    for moment in taken.borrow().iter() {
        let simulation = Simulation::from_images(seed, &moment.images);
        let env = simulation.env();
        let found: Vec<u64> = simulation
            .run(async move {
                let store = redo(&env, Begin::Open).await.expect("opened");
                let into = Buf::zeroed(BLOCKS as usize * SLOT);
                store.submit(Io::read(0, into.clone())).await.expect("read");
                let number = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
                into.to_vec().chunks(SLOT).map(number).collect()
            })
            .map_err(|hang| format!("{hang:?}"))?;
        let count = found.iter().copied().max().unwrap_or(0);
        if found != after(count) {
            return Err(format!(
                "the store is at no moment: {found:?}; after write {count}: {:?}",
                after(count)
            ));
        }
        let mut missing: Vec<u64> =
            (count + 1..=moment.acknowledged).map(|number| place(seed, number)).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.len() as u64 * SLOT as u64 > moment.lag_bytes {
            return Err(format!("{missing:?} are missing, and {} bytes were said to be", moment.lag_bytes));
        }
        latest = latest.max(count);
    }
    match latest {
        50.. => Ok(()),
        _ => Err(format!("the store never was beyond write {latest}")),
    }
}

#[test]
fn without_its_flash_the_store_is_what_the_volume_was() {
    for seed in 0..8 {
        moments(seed, 0).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// What goes past the flash ends an epoch, which has no part of a batch.
#[test]
fn a_write_to_the_end_leaves_the_store_at_a_moment() {
    for seed in 0..3 {
        moments(seed, 1024).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn canaries() {
    for flaw in ["an epoch of a part", "record before the table"] {
        FLAW.set(Some(flaw));
        let noticed =
            (0..20).any(|seed| std::panic::catch_unwind(|| moments(seed, 0).is_err()).unwrap_or(true));
        FLAW.set(None);
        assert!(noticed, "{flaw}: nothing noticed");
    }
}
