//! The behaviour of a volume, step by step.

use super::super::state::BROKEN;
use super::scene::*;
use crate::testing::*;
use lamina_block::all;
use lamina_block::{Begin, Level, Step};
use lamina_metadata::extents::FANOUT;
use std::future::Future;

fn run<F: Future<Output = ()> + 'static>(how: How, test: impl FnOnce(Open) -> F + 'static) {
    let world = world(&how, 7);
    let env = world.env();
    world
        .run(async move {
            let open = open(&env, &how, Begin::Format).await.expect("it is made");
            test(open).await;
        })
        .expect("it ends");
}

fn each_level<F: Future<Output = ()> + 'static>(test: impl Fn(Open) -> F + Copy + 'static) {
    Level::ALL.into_iter().for_each(|level| run(How::new(level), test));
}

#[test]
fn a_snapshot_stays_as_it_was() {
    each_level(|vol| async move {
        vol.write(0, 1, 64 << 10).await.unwrap();
        let before = vol.all().await;
        vol.command("snapshot", json!({"name": "one"})).await.unwrap();
        vol.write(4096, 2, 4096).await.unwrap();
        vol.node.submit(Io::zero(32 << 10..40 << 10, Zero::default())).await.unwrap();
        vol.node.submit(Io::discard(48 << 10..56 << 10)).await.unwrap();
        let now = vol.all().await;
        assert!(now[4096..8192].iter().all(|b| *b == 2) && now[32 << 10..40 << 10].iter().all(|b| *b == 0));
        assert!(now[..4096].iter().all(|b| *b == 1) && now[8192..32 << 10].iter().all(|b| *b == 1));
        assert_eq!(vol.snapshots().await["one"], before);
        vol.audit(true).await;
        vol.command("rollback", json!({"name": "one"})).await.unwrap();
        assert_eq!(vol.all().await, before);
        vol.reclaimed().await;
        vol.audit(true).await;
        vol.write(0, 9, 4096).await.unwrap();
        assert_eq!(vol.snapshots().await["one"], before);
        vol.command("delete", json!({"name": "one"})).await.unwrap();
        vol.reclaimed().await;
        vol.audit(true).await;
        assert_eq!(vol.all().await[..4096], [9; 4096]);
        vol.node.close().await.unwrap();
    });
}

#[test]
fn space_comes_back() {
    each_level(|vol| async move {
        let free = |vol: &Open| vol.node.info()["free"].as_u64().unwrap();
        let all = free(&vol);
        vol.write(0, 1, 256 << 10).await.unwrap();
        vol.flush().await.unwrap();
        assert_eq!(free(&vol), all - 32);
        vol.command("snapshot", json!({"name": "one"})).await.unwrap();
        vol.write(0, 2, 128 << 10).await.unwrap();
        vol.flush().await.unwrap();
        assert_eq!(free(&vol), all - 48);
        vol.node.submit(Io::discard(0..512 << 10)).await.unwrap();
        vol.flush().await.unwrap();
        vol.reclaimed().await;
        assert_eq!(free(&vol), all - 32);
        vol.command("delete", json!({"name": "one"})).await.unwrap();
        vol.reclaimed().await;
        assert_eq!(free(&vol), all);
        let size = vol.node.geometry().size;
        let hole = Extent { len: size, state: ExtentState::Hole };
        assert_eq!(vol.node.extents(0..size).await.unwrap(), [hole]);
        vol.audit(true).await;
    });
}

#[test]
fn a_full_device_says_so_and_loses_nothing() {
    each_level(|vol| async move {
        vol.command("resize", json!({"size": "8MiB"})).await.unwrap();
        let (mut end, size) = (0, vol.node.geometry().size);
        let full = loop {
            match vol.write(end, 3, 8192).await {
                Ok(()) => end += 8192,
                Err(e) => break e,
            }
            assert!(end < size);
        };
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert!(full.message().contains("delete snapshots"), "{full}");
        // Existing data can be read and overwritten.
        for round in 4..8 {
            for at in (0..end).step_by(8192) {
                let written = vol.write(at, round, 4096).await;
                assert!(
                    written.is_ok(),
                    "{:?}: {written:?} at {at} {}",
                    vol.core.store.level(),
                    vol.node.info()
                );
            }
            vol.flush().await.unwrap();
        }
        let bytes = vol.read(0..end).await;
        assert!(bytes.chunks(8192).all(|c| c[..4096] == [7; 4096] && c[4096..] == [3; 4096]));
        // Space that is given back is used.
        vol.node.submit(Io::discard(0..65536)).await.unwrap();
        vol.write(size - 8192, 5, 8192).await.unwrap();
        vol.audit(true).await;
        vol.node.close().await.unwrap();
    });
}

/// Everybody needs a page of the map, and there are fewer than all need: some wait for others, and nobody for ever.
#[test]
fn a_full_map_says_so_and_loses_nothing() {
    for level in Level::ALL {
        let keys = json!({ "extent": "4KiB", "size": "64MiB" });
        let how = How { keys, disk: 96 << 20, meta: Some(1 << 20), ..How::new(level) };
        run(how, |vol| async move {
            let leaf = FANOUT * 4096;
            let write = |n: u64, value: u8| {
                let buf = Buf::from_vec(vec![value; 4096]);
                vol.node.submit(Io::write(n * leaf, buf, Durability::Cached))
            };
            let (mut round, leaves) = (0u8, (64 << 20) / leaf);
            let full = loop {
                round += 1;
                vol.command("snapshot", json!({ "name": format!("n{round}") })).await.unwrap();
                if let Err(e) = all((0..leaves).map(|n| write(n, round))).await {
                    break e;
                }
                vol.flush().await.unwrap();
                assert!(round < 40, "the map never fills up");
            };
            assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
            assert!(full.message().contains("delete snapshots"), "{full}");
            for n in 0..leaves {
                let byte = vol.read(n * leaf..n * leaf + 512).await[0];
                assert!(byte == round || byte == round - 1, "{byte} in round {round}");
            }
            for n in 1..=round {
                vol.command("delete", json!({ "name": format!("n{n}") })).await.unwrap();
            }
            vol.reclaimed().await;
            all((0..leaves).map(|n| write(n, round + 1))).await.unwrap();
            vol.flush().await.unwrap();
            vol.audit(true).await;
        });
    }
}

#[test]
fn snapshots_have_names() {
    run(How::new(Level::Shadow), |vol| async move {
        let said = |e: lamina_block::Error| e.message().to_owned();
        for wrong in ["", "a/b", "tab\there", &"x".repeat(65)] {
            vol.command("snapshot", json!({ "name": wrong })).await.unwrap_err();
        }
        let none = said(vol.command("delete", json!({"name": "x"})).await.unwrap_err());
        assert_eq!(none, "there is no snapshot \"x\"; there are none");
        vol.command("snapshot", json!({"name": "x"})).await.unwrap();
        let twice = said(vol.command("snapshot", json!({"name": "x"})).await.unwrap_err());
        assert_eq!(twice, "there is a snapshot \"x\" already");
        let view = vol.view("x").await;
        let viewed = said(vol.command("delete", json!({"name": "x"})).await.unwrap_err());
        assert_eq!(viewed, "a device shows the snapshot \"x\": take the view away first");
        assert!(view.geometry().read_only);
        let refused = view.submit(Io::write(0, Buf::zeroed(512), Durability::Cached)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        view.close().await.unwrap();
        vol.command("delete", json!({"name": "x"})).await.unwrap();
        assert_eq!(vol.command("list", json!({})).await.unwrap(), json!([]));
    });
}

/// Names that are made are those of which `keep` counts; what a device shows stays.
#[test]
fn old_snapshots_leave_by_themselves() {
    run(How::new(Level::Shadow), |vol| async move {
        let names = async || {
            let list = vol.command("list", json!({})).await.unwrap();
            let names = list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned());
            names.collect::<Vec<_>>().join(" ")
        };
        vol.command("snapshot", json!({"name": "mine"})).await.unwrap();
        // Of another number than its own.
        vol.command("snapshot", json!({"name": "auto-1"})).await.unwrap();
        for _ in 0..2 {
            vol.command("snapshot", json!({})).await.unwrap();
        }
        let view = vol.view("auto-3").await;
        vol.command("snapshot", json!({})).await.unwrap();
        let none = vol.command("snapshot", json!({"keep": 0})).await.unwrap_err();
        assert!(none.message().starts_with("keep: "), "{none}");
        assert_eq!(names().await, "mine auto-1 auto-3 auto-4 auto-5");
        let taken = vol.command("snapshot", json!({"keep": 2})).await.unwrap();
        assert_eq!((&taken["name"], &taken["deleted"]), (&json!("auto-6"), &json!(["auto-4"])));
        assert_eq!(names().await, "mine auto-1 auto-3 auto-5 auto-6");
        view.close().await.unwrap();
        let taken = vol.command("snapshot", json!({"name": "last", "keep": 1})).await.unwrap();
        assert_eq!(taken["deleted"], json!(["auto-3", "auto-5"]));
        assert_eq!(names().await, "mine auto-1 auto-6 last");
        vol.audit(true).await;
    });
}

#[test]
fn the_table_of_snapshots_fills_up() {
    run(How::new(Level::Shadow), |vol| async move {
        let mut count = 0;
        let full = loop {
            match vol.command("snapshot", json!({ "name": format!("n{count}") })).await {
                Ok(_) => count += 1,
                Err(e) => break e,
            }
        };
        assert_eq!((count, full.kind()), (42, ErrorKind::NoSpace));
        assert_eq!(vol.node.info()["snapshots"].as_array().unwrap().len(), 42);
    });
}

#[test]
fn the_size_changes() {
    each_level(|vol| async move {
        let old = vol.node.geometry().size;
        vol.write(old - 4096, 1, 4096).await.unwrap();
        vol.command("resize", json!({"size": old + 4096})).await.unwrap();
        assert_eq!(vol.node.geometry().size, old + 4096);
        assert_eq!(vol.read(old..old + 4096).await, [0; 4096]);
        let smaller = json!({"size": old - 12288});
        let refused = vol.command("resize", smaller.clone()).await.unwrap_err();
        assert!(refused.message().contains("force"), "{refused}");
        let forced = json!({"size": old - 12288, "force": true});
        vol.command("resize", forced).await.unwrap();
        vol.command("resize", json!({"size": old})).await.unwrap();
        assert_eq!(vol.read(old - 12288..old).await, [0; 12288]);
        vol.audit(true).await;
    });
}

#[test]
fn a_larger_device_below_is_used() {
    for level in Level::ALL {
        let how = How::new(level);
        let world = world(&how, 3);
        let env = world.env();
        let test = async move {
            let vol = open(&env, &how, Begin::Format).await.expect("made");
            let before = vol.node.info()["extents"].as_u64().unwrap();
            vol.write(0, 1, 4096).await.unwrap();
            let below = env.disk(DISK).unwrap();
            below.resize(how.disk + (512 << 10));
            vol.core.child.refresh();
            vol.command("grow", json!({})).await.unwrap();
            assert_eq!(vol.node.info()["extents"].as_u64().unwrap(), before + 64);
            vol.audit(true).await;
            vol.node.close().await.unwrap();
            below.resize(how.disk + (1 << 20));
            let vol = open(&env, &how, Begin::Open).await.expect("opened");
            assert_eq!(vol.node.info()["extents"].as_u64().unwrap(), before + 128);
            assert_eq!(vol.read(0..4096).await, [1; 4096]);
            vol.audit(true).await;
        };
        world.run(test).expect("it ends");
    }
}

#[test]
fn what_is_not_there_is_said() {
    let how = How::new(Level::Shadow);
    let world = world(&how, 3);
    let env = world.env();
    let test = async move {
        let none = open(&env, &how, Begin::Open).await.err().expect("there is nothing");
        assert!(none.message().contains("lamina create"), "{none}");
        let adopt = open(&env, &how, Begin::Adopt).await.err().expect("nowhere to put the map");
        assert!(adopt.message().contains("metadata = "), "{adopt}");
        open(&env, &how, Begin::Format).await.expect("made").node.close().await.unwrap();
        let other = How { keys: json!({"extent": "16KiB"}), ..how.clone() };
        let other = open(&env, &other, Begin::Open).await.err().expect("another extent");
        assert!(other.message().starts_with("extent: the volume was made with 8KiB"), "{other}");
    };
    world.run(test).expect("it ends");
}

#[test]
fn wrong_keys_are_refused() {
    let below = memory("4MiB");
    for (keys, word) in [
        (json!({"extent": "5KiB"}), "extent"),
        (json!({"extent": "2MiB"}), "extent"),
        (json!({"memory": "64KiB"}), "memory"),
        (json!({"size": 1000}), "size"),
        (json!({"policy": "best"}), "policy"),
    ] {
        let said = refused("snapshot", keys, &[&below]);
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn steady_requests_are_handed_on() {
    for level in [Level::Lazy, Level::Shadow] {
        run(How::new(level), |vol| async move {
            let size = vol.node.geometry().size;
            vol.write(0, 1, size as usize).await.unwrap();
            vol.flush().await.unwrap();
            let layer = vol.node.quiesce().await.layer();
            let at = |i: u64| i * 7 % (size / 4096) * 4096;
            let write = |i| Io::write(at(i), Buf::zeroed(4096), Durability::Cached);
            let read = |i| Io::read(at(i), Buf::zeroed(4096));
            let is_handed_on = |mut io: Io| matches!(Rc::clone(&layer).submit(&mut io), Step::Forward(_));
            assert!((0..200).all(|i| is_handed_on(write(i)) && is_handed_on(read(i))));
            assert!(is_handed_on(Io::flush()) && is_handed_on(Io::read(0, Buf::zeroed(65536))));
            vol.command("snapshot", json!({"name": "x"})).await.unwrap();
            assert!(is_handed_on(read(0)) && !is_handed_on(write(0)));
        });
    }
}

/// Every transition of the state is followed by a check of its invariants, in builds with debug assertions.
#[test]
fn a_broken_state_is_noticed_at_the_next_transition() {
    run(How::new(Level::Shadow), |vol| async move {
        vol.core.change(|_| ());
        let transition = |broken: bool| {
            if broken {
                vol.core.state.borrow_mut().frees.retire(vec![9, 9]);
            }
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| vol.core.change(|_| ())))
        };
        assert!(transition(false).is_ok());
        let words = transition(true).err().and_then(|panic| panic.downcast_ref::<String>().cloned());
        assert_eq!(words.is_some_and(|words| words.contains(BROKEN)), cfg!(debug_assertions));
    });
}

/// Room in the map is promised to a write before its data is written; one that fails gives it back.
#[test]
fn failed_writes_take_no_room_in_the_map() {
    for level in Level::ALL {
        let keys = json!({ "extent": "4KiB", "size": "512MiB" });
        let how = How { keys, disk: 96 << 20, meta: Some(1 << 20), ..How::new(level) };
        run(how, move |vol| async move {
            let (leaf, size) = (FANOUT * 4096, vol.node.geometry().size);
            vol.env.set_fault(Some(Box::new(|_, disk, io| {
                let fails = disk == DISK && io.op.kind() == OpKind::Write;
                fails.then(|| lamina_block::Error::media("a fault of the test"))
            })));
            for at in (0..3).flat_map(|_| (0..size).step_by(leaf as usize)) {
                let failed = vol.write(at, 1, 4096).await.unwrap_err();
                assert_eq!(failed.kind(), ErrorKind::Media, "{level:?}, {at}: {failed}");
            }
            vol.env.set_fault(None);
            vol.write(0, 1, 4096).await.unwrap();
            vol.audit(true).await;
        });
    }
}
