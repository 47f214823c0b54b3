//! The store by itself: costs, refusals, faults, bounded memory, damage, the golden file.

mod common;

use common::{DISK, History, PAYLOAD, REGION, Work, blank, contents, dyn_env, format, nothing, open, region};
use fastrand::Rng;
use lamina_block::{Buf, Durability, Env, Error, ErrorKind, Io, Node, OpKind};
use lamina_metadata::{Change, Format, Id, Level, Options, Region, Store};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Runs `test` on a new store.
fn with_store<F>(level: Level, test: impl FnOnce(Rc<SimEnv>, Rc<Store>) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let world = Simulation::new(1);
    world.env().put_disk(DISK, blank(512, true));
    let env = world.env();
    let making = world.run(async move {
        Store::format(&dyn_env(&env), &region(&env, &nothing()), format(level)).await?;
        open(&env, &nothing()).await
    });
    let store = making.expect("it ends").expect("it opens");
    world.run(test(world.env(), Rc::new(store))).expect("it ends");
    assert_eq!(world.env().take_finding(), None);
}

/// Writes and flushes that reached a node since the last call.
fn requests(node: &Node, before: &Cell<(u64, u64)>) -> (u64, u64) {
    let of = |op| node.stats().of(op).completed.get();
    let now = (of(OpKind::Write), of(OpKind::Flush));
    let then = before.replace(now);
    (now.0 - then.0, now.1 - then.1)
}

/// A store in a region of 32 MiB, which never commits by itself, and the node under it.
async fn large(env: &Rc<SimEnv>, level: Level, memory: usize) -> (Rc<Node>, Rc<Store>) {
    let below = common::node(env, &nothing());
    let place = Region::new(Rc::clone(&below), 0..32 << 20).unwrap();
    let dyn_env = dyn_env(env);
    Store::format(&dyn_env, &place, Format { level, ..Format::default() }).await.unwrap();
    let options = Options { interval: Duration::from_secs(3000), memory };
    let store = Store::open(&dyn_env, place, options).await.unwrap();
    (below, Rc::new(store))
}

async fn what_a_commit_costs(env: Rc<SimEnv>, level: Level) {
    let (below, store) = large(&env, level, 16 << 20).await;
    let before = Cell::new((0, 0));
    let expect = |lazy, others, what| {
        let expected = if level == Level::Lazy { lazy } else { others };
        assert_eq!(requests(&below, &before), expected, "{level:?}: {what}");
    };
    let object = store.alloc(1 << 20, 0).await.unwrap();
    store.commit().await.unwrap();
    requests(&below, &before);
    for i in 0..16 {
        object.write(i * PAYLOAD as u64, &[1; 8]).await.unwrap();
    }
    expect((0, 0), (0, 0), "changes in memory");
    store.commit().await.unwrap();
    expect((16, 1), (1, 1), "16 changes in 16 pages");
    store.commit().await.unwrap();
    expect((0, 0), (0, 0), "nothing to commit");
    object.write(0, &[2; 100]).await.unwrap();
    let commits: Vec<_> = (0..16)
        .map(|_| {
            let store = Rc::clone(&store);
            env.start(async move { store.commit().await })
        })
        .collect();
    for commit in commits {
        commit.ended().await.unwrap();
    }
    expect((1, 1), (1, 1), "16 commits at once");
    store.alloc(100, 0).await.unwrap();
    store.commit().await.unwrap();
    expect((2, 2), (1, 1), "another object");
    object.write(0, &[3]).await.unwrap();
    store.flush().await.unwrap();
    // The record; the 16 pages and the directory's; the root, forced.
    expect((2, 1), (1 + 17 + 1, 2), "write-back");
    store.flush().await.unwrap();
    expect((0, 0), (0, 0), "nothing to write back");
}

#[test]
fn costs() {
    for level in Level::ALL {
        let world = Simulation::new(1);
        let mut disk = DiskOptions::new(32 << 20);
        // Forced writes are native, so they are no flush.
        disk.geometry.fua = true;
        world.env().put_disk(DISK, Image::blank(disk));
        world.run(what_a_commit_costs(world.env(), level)).expect("it ends");
    }
}

#[test]
fn objects_come_and_go() {
    for level in Level::ALL {
        with_store(level, |env, store| async move {
            let a = store.alloc(10_000, 7).await.unwrap();
            let b = store.alloc(0, 8).await.unwrap();
            assert_eq!((a.id(), a.len(), b.len()), (Id(1), 10_000, 0));
            a.write(4000, b"across two pages, all of it, and whole").await.unwrap();
            a.write(4060, &[9; 100]).await.unwrap();
            assert_eq!(store.find(7), Some(a.id()));
            assert_eq!(store.find(9), None);
            for (offset, len) in [(10_000, 1), (u64::MAX, 1), (9_999, 2)] {
                let wrong = a.write(offset, &vec![0; len]).await.unwrap_err();
                assert_eq!(wrong.kind(), ErrorKind::Invalid);
                assert_eq!(a.read(offset, &mut vec![0; len]).await.unwrap_err().kind(), ErrorKind::Invalid);
            }
            store.unload(a.id()).unwrap();
            store.close().await.unwrap();
            assert_eq!(a.write(0, b"x").await.unwrap_err().kind(), ErrorKind::Offline);
            let again = open(&env, &nothing()).await.unwrap();
            let mut bytes = [0; 64];
            again.load(a.id()).unwrap().read(4000, &mut bytes).await.unwrap();
            assert_eq!(&bytes[..60], [&b"across two pages, all of it, and whole"[..], &[0; 22]].concat());
            assert_eq!(bytes[60..], [9; 4]);
            // Freed with a change of another: both or none; and its pages are empty for the next.
            again.change(Change::new().free(a.id())).await.unwrap();
            assert_eq!(again.free(a.id()).await.unwrap_err().kind(), ErrorKind::Invalid);
            assert_eq!(a.read(0, &mut bytes).await.unwrap(), ());
            again.commit().await.unwrap();
            let c = again.alloc(10_000, 0).await.unwrap();
            assert_eq!(c.id(), Id(3));
            let mut all = vec![1; 10_000];
            c.read(0, &mut all).await.unwrap();
            assert_eq!(all, [0; 10_000]);
            again.close().await.unwrap();
        });
    }
}

#[test]
fn space_is_bounded_and_comes_back() {
    with_store(Level::Shadow, |_, store| async move {
        let whole = 58 * PAYLOAD as u64;
        for _ in 0..10 {
            let all = store.alloc(whole, 0).await.unwrap();
            assert_eq!(store.alloc(1, 0).await.err().map(|e| e.kind()), Some(ErrorKind::NoSpace));
            store.free(all.id()).await.unwrap();
            // Freed pages may still be in use if the power fails now.
            assert_eq!(store.alloc(1, 0).await.err().map(|e| e.kind()), Some(ErrorKind::NoSpace));
            store.commit().await.unwrap();
        }
        let too_large = Change::new().write(Id(1), 0, vec![0; 1 << 20]);
        assert_eq!(store.change(too_large).await.unwrap_err().kind(), ErrorKind::Invalid);
    });
}

#[test]
fn atomic_asks_for_a_commit_and_others_commit() {
    for level in Level::ALL {
        with_store(level, |_, store| async move {
            let object = store.alloc(50 * PAYLOAD as u64, 0).await.unwrap();
            let mut refused = 0;
            for i in 0..500 {
                let at = i % 50 * PAYLOAD as u64;
                if let Err(e) = object.write(at, &[i as u8; 900]).await {
                    assert_eq!((e.kind(), level), (ErrorKind::NoSpace, Level::Atomic));
                    refused += 1;
                    store.commit().await.unwrap();
                    object.write(at, &[i as u8; 900]).await.unwrap();
                }
            }
            assert_eq!(refused > 0, level == Level::Atomic);
            store.close().await.unwrap();
        });
    }
}

#[test]
fn what_nobody_commits_is_committed_in_time() {
    for level in Level::ALL {
        with_store(level, |env, store| async move {
            store.alloc(1, 0).await.unwrap();
            env.sleep(Duration::from_millis(10)).await;
            let images = env.images(lamina_sim::Loss::All, 0);
            let world = Simulation::from_images(2, &images);
            let env = world.env();
            let found = world.run(async move { contents(&open(&env, &nothing()).await.unwrap()).await });
            assert_eq!(found.unwrap().unwrap().len(), usize::from(level != Level::Atomic));
        });
    }
}

#[test]
fn memory_stays_within_its_bound() {
    let world = Simulation::new(1);
    world.env().put_disk(DISK, Image::blank(DiskOptions::new(32 << 20)));
    let env = world.env();
    let run = world.run(async move {
        let (_, store) = large(&env, Level::Shadow, 1 << 20).await;
        let object = store.alloc(10 << 20, 0).await.unwrap();
        let rng = &mut Rng::with_seed(1);
        let mut most = 0;
        for i in 0..3000u64 {
            let at = rng.u64(0..(10 << 20) - 8);
            object.write(at, &i.to_le_bytes()).await.unwrap();
            most = most.max(store.memory());
        }
        assert!(most <= (1 << 20) / 2 + 20 * 4096, "{most} bytes");
    });
    run.expect("it ends");
}

/// Each request to the disk fails once in turn; a later commit makes good for it.
#[test]
fn a_failed_request_is_made_good() {
    for level in Level::ALL {
        for seed in 0..30 {
            let world = Simulation::new(seed);
            world.env().put_disk(DISK, blank(512, false));
            let (env, history) = (world.env(), Rc::new(History::default()));
            let known = Rc::clone(&history);
            let run = world.run(async move {
                Store::format(&dyn_env(&env), &region(&env, &nothing()), format(level)).await.unwrap();
                let store = Rc::new(open(&env, &nothing()).await.unwrap());
                let rng = &mut Rng::with_seed(seed);
                let faults = &mut rng.fork();
                let mut faults = faults.fork();
                env.set_fault(Some(Box::new(move |_, _, _| {
                    (faults.u8(0..8) == 0).then(|| Error::media("a fault of the test"))
                })));
                let (store2, env2) = (Rc::clone(&store), Rc::clone(&env));
                Work { env: env2, store: store2, history: known, rng: rng.fork(), faulty: true }
                    .run(150)
                    .await
                    .unwrap();
                env.set_fault(None);
                // The round that a fault ended may still be under way, so twice.
                let _first = store.flush().await;
                store.close().await.unwrap();
                contents(&open(&env, &nothing()).await.unwrap()).await.unwrap()
            });
            let found = run.expect("it ends");
            assert_eq!(Some(&found), history.states.borrow().last(), "{level:?}, seed {seed}");
        }
    }
}

#[test]
fn damage_is_an_error() {
    with_store(Level::Shadow, |env, store| async move {
        let object = store.alloc(3 * PAYLOAD as u64, 0).await.unwrap();
        for i in 0..2 {
            object.write(0, &[i; 2 * PAYLOAD]).await.unwrap();
            store.flush().await.unwrap();
        }
        store.close().await.unwrap();
        let disk = common::node(&env, &nothing());
        let slots = REGION.start + (2 + 16) * 4096;
        // The object's first page is page 2, both its slots are in use.
        for slot in 0..2 {
            let at = slots + (2 * 2 + slot) * 4096;
            let buf = Buf::zeroed(512);
            disk.submit(Io::read(at, buf.clone())).await.unwrap();
            let mut bytes = buf.to_vec();
            bytes[3] ^= 1;
            disk.submit(Io::write(at, Buf::from_vec(bytes), Durability::Fua)).await.unwrap();
            let again = open(&env, &nothing()).await.unwrap();
            let wrong = again.load(object.id()).unwrap().read(0, &mut [0]).await.unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Corrupt);
            // Another page is not affected.
            again.load(object.id()).unwrap().read(PAYLOAD as u64, &mut [0]).await.unwrap();
            disk.submit(Io::write(at, buf, Durability::Fua)).await.unwrap();
        }
        // Without one of its roots the store is as it was, or refused, but never older; without both, there is none.
        let expected = contents(&open(&env, &nothing()).await.unwrap()).await.unwrap();
        let roots = Buf::zeroed(2 * 4096);
        disk.submit(Io::read(REGION.start, roots.clone())).await.unwrap();
        let mut opened = 0;
        for lost in [0..4096, 4096..8192, 0..8192] {
            let zeroes = Buf::zeroed(lost.len());
            disk.submit(Io::write(REGION.start + lost.start as u64, zeroes, Durability::Fua)).await.unwrap();
            if let Ok(again) = open(&env, &nothing()).await
                && let Ok(found) = contents(&again).await
            {
                assert_eq!(found, expected);
                opened += 1;
            }
            disk.submit(Io::write(REGION.start, roots.clone(), Durability::Fua)).await.unwrap();
        }
        assert_eq!(opened, 2);
    });
}

/// The newer root is damaged, at every place of the log: never is an older state taken for the newest.
#[test]
fn a_lost_root_is_noticed() {
    with_store(Level::Shadow, |env, store| async move {
        let object = store.alloc(40 * PAYLOAD as u64, 0).await.unwrap();
        let rng = &mut Rng::with_seed(3);
        let (mut refused, mut opened) = (0, 0);
        for i in 0..200 {
            object.write(rng.u64(0..40) * PAYLOAD as u64, &vec![i; rng.usize(1..4000)]).await.unwrap();
            if rng.u8(0..3) == 0 {
                store.flush().await.unwrap()
            } else {
                store.commit().await.unwrap()
            }
            let expected = contents(&store).await.unwrap();
            let images = env.images(lamina_sim::Loss::Nothing, 0);
            let world = Simulation::from_images(2, &images);
            let (env, slot) = (world.env(), u64::from(i % 2));
            let found = world.run(async move {
                let disk = common::node(&env, &nothing());
                let junk = Buf::from_vec(vec![7; 512]);
                disk.submit(Io::write(REGION.start + slot * 4096, junk, Durability::Fua)).await.unwrap();
                contents(&open(&env, &nothing()).await.map_err(|e| e.to_string())?).await
            });
            match found.unwrap() {
                Ok(found) => {
                    assert_eq!(found, expected, "after {i}");
                    opened += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(opened > 100 && refused > 0, "{opened} opened, {refused} refused");
    });
}

#[test]
fn regions_are_checked() {
    let world = Simulation::new(1);
    world.env().put_disk(DISK, Image::blank(DiskOptions::new(1 << 20)));
    let env = world.env();
    let run = world.run(async move {
        let node = common::node(&env, &nothing());
        for (from, to) in [(0, 4095), (1, 4096), (0, 2 << 20), (8192, 4096)] {
            assert!(Region::new(Rc::clone(&node), from..to).is_err());
        }
        let small = Region::new(node, 0..(2 + 16 + 2 * 2) * 4096).unwrap();
        let refused = Store::format(&dyn_env(&env), &small, format(Level::Shadow)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        let nothing_there = Store::open(&dyn_env(&env), small, common::options()).await.err().unwrap();
        assert_eq!(nothing_there.kind(), ErrorKind::Corrupt);
    });
    run.expect("it ends");
}

/// Version 1: a store with a replayed log, as bytes. `LAMINA_BLESS=1` writes it, which no later change may do.
#[test]
fn golden_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/metadata-1.img");
    let len = (REGION.end - REGION.start) as usize;
    if std::env::var_os("LAMINA_BLESS").is_some() {
        with_store(Level::Shadow, move |env, store| async move {
            let a = store.alloc(5000, 0x1234).await.unwrap();
            a.write(4000, &[7; 200]).await.unwrap();
            store.flush().await.unwrap();
            // This is in the log only.
            a.write(10, b"in the log").await.unwrap();
            store.alloc(1, 0x5678).await.unwrap();
            store.commit().await.unwrap();
            let buf = Buf::zeroed(len);
            let disk = common::node(&env, &nothing());
            disk.submit(Io::read(REGION.start, buf.clone())).await.unwrap();
            let bytes = buf.to_vec();
            let end = bytes.iter().rposition(|b| *b != 0).unwrap_or(0) + 1;
            std::fs::write(path, &bytes[..end]).unwrap();
        });
    }
    let mut bytes = std::fs::read(path).expect("the golden file");
    bytes.resize(len, 0);
    let world = Simulation::new(1);
    world.env().put_disk(DISK, blank(512, false));
    let env = world.env();
    let run = world.run(async move {
        let disk = common::node(&env, &nothing());
        disk.submit(Io::write(REGION.start, Buf::from_vec(bytes), Durability::Fua)).await.unwrap();
        let store = open(&env, &nothing()).await.unwrap();
        let mut expected = vec![0; 5000];
        expected[10..20].copy_from_slice(b"in the log");
        expected[4000..4200].fill(7);
        assert_eq!(store.objects(), [(Id(1), 5000, 0x1234), (Id(2), 1, 0x5678)]);
        assert_eq!(contents(&store).await.unwrap(), [(1, expected), (2, vec![0])].into());
        assert_eq!(store.level(), Level::Shadow);
    });
    run.expect("it ends");
}
