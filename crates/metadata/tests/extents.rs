//! Tables and bitmaps of extents against a plain vector, and their costs.

mod common;

use common::{DISK, PAYLOAD, dyn_env, nothing};
use fastrand::Rng;
use lamina_block::ErrorKind;
use lamina_metadata::extents::{Lxt, Mapping, Policy, Pxb, lxt_len, pxb_len};
use lamina_metadata::{Change, Format, Level, Options, Region, Store, pages};
use lamina_sim::{DiskOptions, Image, Loss, SimEnv, Simulation};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

const TABLE: u64 = 1;
const BITMAP: [u64; 2] = [2, 3];
const TIB: u64 = 1 << 40;

fn options(memory: usize) -> Options {
    Options { memory, interval: Duration::from_secs(3000) }
}

fn region(env: &Rc<SimEnv>) -> Region {
    let node = common::node(env, &nothing());
    let size = node.geometry().size;
    Region::new(node, 0..size).expect("it fits")
}

async fn open(env: &Rc<SimEnv>, memory: usize) -> Store {
    Store::open(&dyn_env(env), region(env), options(memory)).await.expect("it opens")
}

async fn make(env: &Rc<SimEnv>, level: Level, memory: usize) -> Store {
    let format = Format { level, log: 1 << 20, objects: 60 };
    Store::format(&dyn_env(env), &region(env), format).await.expect("it is made");
    open(env, memory).await
}

fn world(bytes: u64) -> Simulation {
    let world = Simulation::new(1);
    let mut disk = DiskOptions::new(bytes.next_multiple_of(4096));
    disk.geometry.block = 4096;
    disk.geometry.optimal = 4096;
    disk.latency_max = Duration::ZERO;
    world.env().put_disk(DISK, Image::blank(disk));
    world
}

struct Model {
    table: Vec<Mapping>,
    used: BTreeSet<u64>,
}

async fn check(store: &Store, lxt: &Lxt, pxb: &Pxb, model: &Model, physical: u64) {
    assert_eq!(lxt.get_all(0..model.table.len() as u64).await.unwrap(), model.table);
    let (len, _) = pxb_len(physical);
    let mut bits = vec![0; len as usize];
    store.load(pxb.ids()[0]).unwrap().read(0, &mut bits).await.unwrap();
    let used: BTreeSet<u64> = (0..physical).filter(|n| bits[(n / 8) as usize] >> (n % 8) & 1 == 1).collect();
    assert_eq!(used, model.used);
}

/// Makes a change; commits first where the store wants that.
async fn change(store: &Store, change: Change) {
    if let Err(e) = store.change(change.clone()).await {
        assert_eq!((e.kind(), store.level()), (ErrorKind::NoSpace, Level::Atomic));
        store.commit().await.unwrap();
        store.change(change).await.unwrap();
    }
}

/// The result that the policy must give.
fn expected(policy: Policy, last: u64, used: &BTreeSet<u64>, physical: u64) -> Option<u64> {
    let mut free = (0..physical).filter(|n| !used.contains(n));
    match policy {
        Policy::FirstAvailable => free.next(),
        Policy::LogStructured => free.clone().find(|n| *n >= last).or_else(|| free.next()),
        // Of two that are as near, the higher.
        Policy::ClosestToLast => free.min_by_key(|n| (n.abs_diff(last), *n < last)),
    }
}

async fn random_work(env: Rc<SimEnv>, policy: Policy, level: Level, seed: u64) {
    let (logical, physical) = (70_000, 40_000);
    let mut store = make(&env, level, 512 << 10).await;
    let mut lxt = Lxt::create(&store, logical, physical, TABLE).await.unwrap();
    let mut pxb = Pxb::create(&store, physical, BITMAP).await.unwrap();
    let mut model = Model { table: vec![Mapping::default(); logical as usize], used: BTreeSet::new() };
    let rng = &mut Rng::with_seed(seed);
    let (mut last, mut freed) = (0, Vec::new());
    for step in 0..1500 {
        let extent = if rng.bool() { rng.u64(0..50) } else { rng.u64(0..logical) };
        let old = model.table[extent as usize];
        match rng.u8(0..10) {
            0..6 => {
                let new = pxb.alloc(policy).await.unwrap();
                let busy: BTreeSet<u64> = model.used.iter().chain(&freed).copied().collect();
                assert_eq!(Some(new), expected(policy, last, &busy, physical), "step {step}");
                last = if policy == Policy::LogStructured { new + 1 } else { new };
                let to = Mapping { physical: Some(new), flags: rng.u8(0..8) };
                let mut work = pxb.take(Change::new(), new).unwrap();
                model.used.insert(new);
                if let Some(old) = old.physical {
                    work = pxb.free(work, old).await.unwrap();
                    assert!(pxb.free(Change::new(), old).await.is_err(), "freed twice");
                    model.used.remove(&old);
                    freed.push(old);
                }
                change(&store, lxt.set(work, extent, to).unwrap()).await;
                model.table[extent as usize] = to;
            }
            6 => {
                let (clear, set) = (rng.u8(0..8), rng.u8(0..8));
                change(&store, lxt.flag(Change::new(), extent, clear, set).unwrap()).await;
                model.table[extent as usize].flags = old.flags & !clear | set;
            }
            7 => {
                store.commit().await.unwrap();
                pxb.release(&std::mem::take(&mut freed));
            }
            8 => assert_eq!(lxt.get(extent).await.unwrap(), old),
            _ if step % 20 == 0 => {
                // An extent that was given and never taken is free again.
                let _lost = pxb.alloc(policy).await.unwrap();
                store.close().await.unwrap();
                store = open(&env, 512 << 10).await;
                lxt = Lxt::open(&store, store.find(TABLE).unwrap(), logical, physical).unwrap();
                let ids = BITMAP.map(|tag| store.find(tag).unwrap());
                pxb = Pxb::open(&store, ids, physical).await.unwrap();
                (last, freed) = (0, Vec::new());
                assert_eq!(pxb.free_extents(), physical - model.used.len() as u64);
            }
            _ => {}
        }
    }
    check(&store, &lxt, &pxb, &model, physical).await;
    store.close().await.unwrap();
}

#[test]
fn against_a_vector() {
    for (seed, policy) in
        [Policy::FirstAvailable, Policy::LogStructured, Policy::ClosestToLast].iter().enumerate()
    {
        for level in Level::ALL {
            let world = world(8 << 20);
            world.run(random_work(world.env(), *policy, level, seed as u64)).expect("it ends");
        }
    }
}

/// Many callers ask at the same time; no extent is given twice, and all are used up.
#[test]
fn all_are_given_once() {
    let world = world(8 << 20);
    let env = world.env();
    let run = world.run(async move {
        let store = Rc::new(make(&env, Level::Shadow, 1 << 20).await);
        let pxb = Rc::new(Pxb::create(&store, 70, BITMAP).await.unwrap());
        let tasks: Vec<_> = (0..70)
            .map(|i| {
                let (store, pxb) = (Rc::clone(&store), Rc::clone(&pxb));
                let policy = [Policy::FirstAvailable, Policy::LogStructured, Policy::ClosestToLast][i % 3];
                env.start(async move {
                    let extent = pxb.alloc(policy).await.unwrap();
                    store.change(pxb.take(Change::new(), extent).unwrap()).await.unwrap();
                    extent
                })
            })
            .collect();
        let mut given = BTreeSet::new();
        for task in tasks {
            assert!(given.insert(task.ended().await));
        }
        assert_eq!(given, (0..70).collect());
        let full = pxb.alloc(Policy::LogStructured).await.unwrap_err();
        assert_eq!((full.kind(), pxb.free_extents()), (ErrorKind::NoSpace, 0));
        // A freed extent is given again only after its release.
        store.change(pxb.free(Change::new(), 33).await.unwrap()).await.unwrap();
        assert!(pxb.alloc(Policy::FirstAvailable).await.is_err());
        store.commit().await.unwrap();
        pxb.release(&[33]);
        assert_eq!(pxb.alloc(Policy::ClosestToLast).await.unwrap(), 33);
        let wrong = pxb.take(Change::new(), 34).map(|_| ()).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Invalid);
        assert!(pxb.free(Change::new(), 70).await.is_err());
    });
    run.expect("it ends");
}

/// After a power loss the table and the bitmap agree: what one names, the other has, and nothing else.
#[test]
fn table_and_bitmap_agree_after_a_crash() {
    for (level, seed) in [Level::Shadow, Level::Atomic].into_iter().flat_map(|l| (0..10).map(move |s| (l, s)))
    {
        let world = world(8 << 20);
        let env = world.env();
        let images = world.run(async move {
            let store = make(&env, level, 1 << 20).await;
            let lxt = Lxt::create(&store, 500, 500, TABLE).await.unwrap();
            let pxb = Pxb::create(&store, 500, BITMAP).await.unwrap();
            store.commit().await.unwrap();
            let rng = &mut Rng::with_seed(seed);
            for _ in 0..rng.u64(1..60) {
                let (extent, new) = (rng.u64(0..500), pxb.alloc(Policy::FirstAvailable).await.unwrap());
                let mut change = pxb.take(Change::new(), new).unwrap();
                if let Some(old) = lxt.get(extent).await.unwrap().physical {
                    change = pxb.free(change, old).await.unwrap();
                }
                let to = Mapping { physical: Some(new), flags: 0 };
                store.change(lxt.set(change, extent, to).unwrap()).await.unwrap();
                if rng.u8(0..4) == 0 {
                    store.commit().await.unwrap();
                }
            }
            env.images(Loss::Torn, seed)
        });
        let after = Simulation::from_images(seed, &images.expect("it ends"));
        let env = after.env();
        let run = after.run(async move {
            let store = open(&env, 1 << 20).await;
            let lxt = Lxt::open(&store, store.find(TABLE).unwrap(), 500, 500).unwrap();
            let pxb = Pxb::open(&store, BITMAP.map(|tag| store.find(tag).unwrap()), 500).await.unwrap();
            let table = lxt.get_all(0..500).await.unwrap();
            let used = table.iter().filter_map(|to| to.physical).collect();
            check(&store, &lxt, &pxb, &Model { table, used }, 500).await;
        });
        run.expect("it ends");
    }
}

/// The table of the module's documentation.
#[test]
fn what_a_tib_takes() {
    let mut rows = Vec::new();
    for (name, extent) in [("4 KiB", 4096), ("32 KiB", 32 << 10), ("1 MiB", 1 << 20)] {
        let extents = TIB / extent;
        let (lxt, (bitmap, counts)) = (lxt_len(extents, extents), pxb_len(extents));
        let on_disk = (pages(lxt) + pages(bitmap) + pages(counts)) * 2 * 4096;
        let mib = |bytes: u64| (bytes / PAYLOAD as u64 * 4096) as f64 / f64::from(1 << 20);
        let row = format!(
            "| {name} | {:.*} MiB | {:.1} MiB | {:.1} KiB | {:.*} MiB |",
            usize::from(mib(lxt) < 10.0),
            mib(lxt),
            mib(bitmap),
            counts as f64 / 1024.0,
            usize::from(on_disk < 10 << 20),
            on_disk as f64 / f64::from(1 << 20),
        );
        rows.push(row);
    }
    let documented = include_str!("../src/extents/mod.rs");
    for row in &rows {
        assert!(documented.contains(row), "the documentation should say:\n{}", rows.join("\n"));
    }
}

/// A TiB in extents of 32 KiB, and an eighth of one in 4 KiB, written all over: memory stays within its limit.
#[test]
fn memory_of_a_tib_is_bounded() {
    for (logical, extent) in [(TIB, 32 << 10), (TIB / 8, 4 << 10), (TIB, 1 << 20)] {
        let extents = logical / extent;
        let world = world(300 << 20);
        let env = world.env();
        let run = world.run(async move {
            let memory = 2 << 20;
            let store = make(&env, Level::Shadow, memory).await;
            let lxt = Lxt::create(&store, extents, extents, TABLE).await.unwrap();
            let pxb = Pxb::create(&store, extents, BITMAP).await.unwrap();
            let rng = &mut Rng::with_seed(1);
            let mut most = 0;
            for _ in 0..2000 {
                let (at, new) = (rng.u64(0..extents), pxb.alloc(Policy::LogStructured).await.unwrap());
                let to = Mapping { physical: Some(new), flags: 1 };
                let change = lxt.set(pxb.take(Change::new(), new).unwrap(), at, to).unwrap();
                store.change(change).await.unwrap();
                most = most.max(store.memory() + pxb.memory());
            }
            // Half of the memory is for copies during write-back.
            assert!(most <= memory / 2 + (16 << 10), "{most} bytes");
        });
        run.expect("it ends");
    }
}
