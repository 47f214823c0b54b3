//! Tiers of a flash and a slow device, simulated.

mod budget;
mod notes;

use super::Keys;
use crate::accelerate::tests::report::made;
use crate::redo::tests::{disk, put_disks};
use crate::testing::*;
use lamina_block::Begin;
use lamina_kit::flaw::{FLAW, failure_of};
use lamina_sim::{Check, Rig, Run, SimEnv, Simulation, gauntlet};
use std::time::Duration;

/// Bytes of the simulated disks: the flash is not much larger than what is written, so that it goes round.
const DISK: u64 = 1200 << 10;

/// A tier called `name` over `slow`, on the flash.
async fn tier(rig: &Rig, name: &str, keys: Value, slow: Rc<Node>, flash: &Rc<Node>) -> Result<Rc<Node>> {
    let over = vec![slow, Rc::clone(flash)];
    rig.build(&Kind::of::<Keys>(), name, keys, over).await
}

async fn flash(rig: &Rig, disk: usize) -> Result<Rc<Node>> {
    rig.build(&Kind::of::<crate::flash::Keys>(), "flash", json!({}), vec![rig.disk(disk)]).await
}

pub fn subject() -> Subject {
    Subject::new("tier", |rig| async move {
        tier(&rig, "top", json!({}), rig.disk(0), &flash(&rig, 1).await?).await
    })
    .disks_of(DISK)
    .seeds(3)
}

/// The slow device of the first or the second of two tiers: a disk of its own, or half of one.
async fn slow(rig: &Rig, second: bool, is_shared: bool) -> Result<Rc<Node>> {
    if !is_shared {
        return Ok(rig.disk(if second { 2 } else { 0 }));
    }
    let (disk, name) = (rig.disk(0), if second { "half 2" } else { "half 1" });
    let half = disk.geometry().size / 2 / 4096 * 4096;
    let keys = json!({ "offset": u64::from(second) * half, "size": half });
    rig.build(kind("linear"), name, keys, vec![disk]).await
}

/// A tier whose flash another one fills, so that blocks move all the time, and whose rules change.
fn crowded() -> Subject {
    crowd("crowded tier", false)
}

/// The same, and both are on one disk, whose time their weights share out.
fn beside() -> Subject {
    crowd("tiers beside each other", true)
}

fn crowd(name: &'static str, is_shared: bool) -> Subject {
    Subject::new(name, move |rig| async move {
        let flash = flash(&rig, 1).await?;
        let top =
            tier(&rig, "top", json!({ "weight": 30 }), slow(&rig, false, is_shared).await?, &flash).await?;
        if top.geometry().read_only {
            return Ok(top);
        }
        let other =
            tier(&rig, "other", json!({ "placement": "lru" }), slow(&rig, true, is_shared).await?, &flash)
                .await?;
        let (env, weak) = (rig.env(), Rc::downgrade(&top));
        for _ in 0..CROWD {
            // It may fail: disks do.
            let _asked = ask(&env, &other).await;
        }
        let (task, neighbour) = (Rc::clone(&env), Rc::downgrade(&other));
        rig.user(async move {
            for _ in 0..10 * CROWD {
                task.sleep(Duration::from_micros(task.random() % 100)).await;
                let Some(other) = neighbour.upgrade().filter(|_| !task.is_ending()) else { return };
                if ask(&task, &other).await.is_err_and(|e| e.kind() == ErrorKind::Offline) {
                    return;
                }
            }
        });
        let task = env;
        rig.user(async move {
            loop {
                task.sleep(Duration::from_micros(task.random() % 20_000)).await;
                let Some(top) = weak.upgrade().filter(|_| !task.is_ending()) else { return };
                let placement = ["heat", "lru", "random-to-ssd", "static:30"][(task.random() % 4) as usize];
                let args = json!({ "placement": placement });
                let set = top.control(Command { name: "set-placement".into(), args }).await;
                let args = json!({ "weight": 1 + task.random() % 100 });
                let weighed = top.control(Command { name: "set-weight".into(), args }).await;
                if [set, weighed]
                    .iter()
                    .any(|set| set.as_ref().is_err_and(|e| e.kind() == ErrorKind::Offline))
                {
                    return;
                }
            }
        });
        Ok(top)
    })
    .disks_of(DISK)
    .seeds(1)
}

/// Requests to the other tier of `crowded` before the device is there.
const CROWD: u32 = 20;

/// Reads or writes some sectors somewhere.
async fn ask(env: &Rc<SimEnv>, node: &Rc<Node>) -> Result<()> {
    let len = 512 * (1 + env.random() % 64);
    let at = env.random() % ((node.geometry().size - len) / 512) * 512;
    let buf = Buf::from_vec(vec![env.random() as u8; len as usize]);
    node.submit(match env.random() % 3 {
        0 => Io::read(at, buf),
        _ => Io::write(at, buf, Durability::Cached),
    })
    .await
}

/// Three tiers: a tier is the slow device of another one.
fn three() -> Subject {
    Subject::new("three tiers", |rig| async move {
        let over = vec![tier(&rig, "middle", json!({}), rig.disk(0), &flash(&rig, 1).await?).await?];
        let fast = rig.build(&Kind::of::<crate::flash::Keys>(), "fast", json!({}), vec![rig.disk(2)]).await?;
        let over = over.into_iter().chain([fast]).collect();
        rig.build(&Kind::of::<Keys>(), "top", json!({}), over).await
    })
    .disks_of(DISK)
    .seeds(1)
}

#[test]
fn blocks_move_all_the_time() {
    for subject in [crowded(), beside()] {
        for check in [Check::Model, Check::Crash, Check::Heal] {
            lamina_sim::test(&subject, check, &lamina_sim::replay!());
        }
    }
}

gauntlet!(of_three, three());

/// What must be noticed, by which check, and over which subject.
type Canary = (&'static str, fn() -> Subject, Check);

#[test]
fn canaries() {
    let canaries: [Canary; 6] = [
        ("copied while it is healed", crowded, Check::Heal),
        ("absent sectors are read from the flash", subject, Check::Model),
        ("absent sectors are forgotten", subject, Check::Crash),
        ("a checkpoint of what stays dirty", crowded, Check::Crash),
        ("checkpoint before the store", crowded, Check::Crash),
        ("unordered overlap", subject, Check::Model),
    ];
    let seeds: u64 = std::env::var("LAMINA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100);
    let unnoticed = |(flaw, subject, check): &Canary| {
        FLAW.set(Some(flaw));
        let found = (0..seeds).find(|seed| lamina_sim::run(&subject(), *check, *seed, Run::Sample).is_err());
        FLAW.set(None);
        found.is_none()
    };
    let missed: Vec<_> = canaries.iter().filter(|canary| unnoticed(canary)).map(|canary| canary.0).collect();
    assert!(missed.is_empty(), "nothing noticed: {missed:?}");
}

/// A new tier on a new flash, over a slow device that is full of 0xAB.
async fn new_tier(env: &Rc<SimEnv>, keys: Value) -> Rc<Node> {
    let slow = disk(env, "store");
    let full = Io::write(0, Buf::from_vec(vec![0xAB; slow.geometry().size as usize]), Durability::Fua);
    slow.submit(full).await.expect("written");
    let flash = Kind::of::<crate::flash::Keys>();
    let flash = made(env, Begin::Format, &flash, "flash", json!({}), vec![disk(env, "flash")]).await;
    made(env, Begin::Format, &Kind::of::<Keys>(), "top", keys, vec![slow, flash]).await
}

const SLOW: u64 = 2 << 20;

/// Runs `test` in a world that has the disks.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = Simulation::new(1);
    put_disks(&world.env(), &[("store", SLOW), ("flash", 4 << 20)]);
    world.run(test(world.env())).expect("it ends");
}

async fn write(node: &Rc<Node>, at: u64, len: usize, byte: u8) {
    let buf = Buf::from_vec(vec![byte; len]);
    node.submit(Io::write(at, buf, Durability::Cached)).await.expect("written");
}

async fn read(node: &Rc<Node>, at: u64, len: usize) -> Vec<u8> {
    let buf = Buf::zeroed(len);
    node.submit(Io::read(at, buf.clone())).await.expect("read");
    buf.to_vec()
}

async fn ctl(node: &Rc<Node>, name: &str, args: Value) -> Value {
    node.control(Command { name: name.into(), args }).await.expect(name)
}

fn figure(node: &Rc<Node>, name: &str) -> u64 {
    node.info()[name].as_u64().expect(name)
}

#[test]
fn a_small_write_waits_for_no_read_of_the_slow_device() {
    run(|env| async move {
        let top = new_tier(&env, json!({ "placement": "random-to-ssd" })).await;
        let reads = Rc::new(std::cell::Cell::new(0));
        let counted = Rc::clone(&reads);
        env.set_fault(Some(Box::new(move |_, disk, io| {
            let is_read = disk == "store" && matches!(io.op, lamina_block::Op::Read(_));
            counted.set(counted.get() + u32::from(is_read));
            None
        })));
        write(&top, 512, 512, 1).await;
        write(&top, 4096 + 1024, 8192, 2).await;
        write(&top, 2048, 1024, 3).await;
        assert_eq!(reads.get(), 0, "reads of the slow device");
        let mut expected = vec![0xAB; 16 << 10];
        expected[512..1024].fill(1);
        expected[2048..3072].fill(3);
        expected[4096 + 1024..4096 + 1024 + 8192].fill(2);
        assert_eq!(read(&top, 2048, 1024).await, [3; 1024]);
        assert_eq!(reads.get(), 0, "the flash has all that was asked for");
        assert!(read(&top, 0, 16 << 10).await == expected);
        assert!(reads.get() > 0);
        ctl(&top, "drain", json!({})).await;
        assert!(read(&disk(&env, "store"), 0, 16 << 10).await == expected, "the slow device has it all");
        assert!(read(&top, 0, 16 << 10).await == expected);
    });
}

#[test]
fn what_is_written_again_gets_to_the_slow_device_once() {
    run(|env| async move {
        let top = new_tier(&env, json!({})).await;
        for n in 0..100 {
            write(&top, 8192, 4096, n).await;
            env.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!((figure(&top, "destaged_bytes"), figure(&top, "dirty_bytes")), (0, 4096));
        ctl(&top, "drain", json!({})).await;
        assert_eq!((figure(&top, "destaged_bytes"), figure(&top, "dirty_bytes")), (4096, 0));
        assert_eq!(read(&disk(&env, "store"), 8192, 4096).await, [99; 4096]);
    });
}

#[test]
fn what_is_dirty_goes_home_before_its_space_is_needed() {
    run(|env| async move {
        let top = new_tier(&env, json!({})).await;
        // Several times what the flash holds; the last block of each round stays dirty.
        for round in 0..20u8 {
            for block in 0..400 {
                write(&top, block * 4096, 4096, round).await;
            }
        }
        let (dirty, share) = (figure(&top, "dirty_bytes"), figure(&top, "share_bytes"));
        assert!(dirty > 0 && dirty < share, "{dirty} of {share}");
        assert!(figure(&top, "destaged_bytes") < 20 * 400 * 4096, "some were written again before they went");
        ctl(&top, "drain", json!({})).await;
        assert_eq!(read(&disk(&env, "store"), 0, 400 * 4096).await, vec![19; 400 * 4096]);
    });
}

#[test]
fn what_is_known_and_pinned_is_shown_and_can_be_changed() {
    run(|env| async move {
        let top = new_tier(&env, json!({ "pin": [{ "offset": 0, "size": "64KiB" }] })).await;
        env.sleep(Duration::from_secs(5)).await;
        assert_eq!((figure(&top, "pinned_bytes"), figure(&top, "cached_bytes")), (64 << 10, 64 << 10));
        let told = ctl(&top, "explain", json!({ "offset": "60KiB" })).await;
        assert_eq!((&told["pinned"], &told["copy"]["dirty"]), (&json!(true), &json!(false)), "{told}");
        assert_eq!(ctl(&top, "explain", json!({ "offset": "1MiB" })).await["copy"], Value::Null);
        read(&top, 1 << 20, 4096).await;
        let top_extents = ctl(&top, "top", json!({ "count": 1 })).await;
        assert_eq!(top_extents["extents"][0]["offset"], json!(1 << 20), "{top_extents}");
        let map = ctl(&top, "heat-map", json!({ "cells": 4 })).await;
        let cells = map["cells"].as_array().expect("cells");
        assert_eq!((cells.len(), &map["cell_bytes"]), (4, &json!(SLOW / 4)));
        assert_eq!((&cells[0]["pinned_ratio"], &cells[0]["fast_ratio"]), (&json!(0.125), &json!(0.125)));
        assert_eq!((&cells[2]["reads"], &cells[1]["reads"]), (&json!(1.0), &json!(0.0)), "{map}");
        ctl(&top, "unpin", json!({ "offset": "16KiB", "size": "16KiB" })).await;
        assert_eq!(figure(&top, "pinned_bytes"), 48 << 10);
        let all = Command { name: "pin".into(), args: json!({ "offset": 0, "size": SLOW }) };
        let refused = top.control(all).await.expect_err("too much");
        assert!(refused.to_string().contains("half of the volume's part"), "{refused}");
        assert_eq!(
            ctl(&top, "set-placement", json!({ "placement": "static:30" })).await["placement"],
            "static:30"
        );
        for (name, args) in
            [("set-weight", json!({ "weight": 0 })), ("set-placement", json!({ "placement": "x" }))]
        {
            top.control(Command { name: name.into(), args }).await.expect_err(name);
        }
    });
}

#[test]
fn what_would_move_next_is_shown() {
    run(|env| async move {
        let top = new_tier(&env, json!({})).await;
        read(&top, 1 << 20, 4096).await;
        // The copy shares a head with others.
        env.sleep(Duration::from_secs(1)).await;
        let next = ctl(&top, "next", json!({})).await;
        let extent = json!({ "offset": 1 << 20, "bytes": 256 << 10, "missing_bytes": 252 << 10 });
        assert_eq!((&next["when_read"], &next["tail"]), (&json!([extent]), &json!([])), "{next}");
        // The tail is what was written first; what is asked for again stays.
        for block in 0..300 {
            write(&top, block * 4096, 4096, 7).await;
        }
        let next = ctl(&top, "next", json!({ "count": 1 })).await;
        assert_eq!(next["tail"][0]["move"], "home", "{next}");
        ctl(&top, "drain", json!({})).await;
        let tail = ctl(&top, "next", json!({})).await["tail"].clone();
        assert_eq!(tail[0]["move"], "forgotten", "{tail}");
        let at = tail[0]["offset"].as_u64().expect("a place");
        // Simulated disks take no time, of which a hit saves nothing.
        ctl(&top, "set-placement", json!({ "placement": "lru" })).await;
        for _ in 0..3 {
            read(&top, at, 4096).await;
        }
        let tail = ctl(&top, "next", json!({})).await["tail"].clone();
        assert_eq!((&tail[0]["offset"], &tail[0]["bytes"]), (&json!(at), &json!(4096)), "{tail}");
        assert_eq!((&tail[0]["move"], &tail[1]["move"]), (&json!("kept"), &json!("forgotten")), "{tail}");
        ctl(&top, "set-placement", json!({ "placement": "static:0" })).await;
        assert_eq!(ctl(&top, "next", json!({})).await["when_read"], json!([]));
    });
}

#[test]
fn a_volume_has_its_weight_of_the_flash() {
    run(|env| async move {
        put_disks(&env, &[("one", SLOW), ("two", SLOW), ("fast", 4 << 20)]);
        let flash = Kind::of::<crate::flash::Keys>();
        let flash = made(&env, Begin::Format, &flash, "fast", json!({}), vec![disk(&env, "fast")]).await;
        let mut tiers = Vec::new();
        for (name, weight) in [("one", 100), ("two", 300)] {
            let over = vec![disk(&env, name), Rc::clone(&flash)];
            let keys = json!({ "weight": weight });
            tiers.push(made(&env, Begin::Format, &Kind::of::<Keys>(), name, keys, over).await);
        }
        let shares = || [0, 1].map(|n: usize| figure(&tiers[n], "share_bytes"));
        let [one, two] = shares();
        assert!(two.abs_diff(3 * one) < 16384, "{one} and {two}");
        ctl(&tiers[0], "set-weight", json!({ "weight": 300 })).await;
        let [one, two] = shares();
        assert!(one.abs_diff(two) < 8192, "{one} and {two}");
    });
}

/// Tiers of these weights on one flash, over these slow devices.
async fn beside_each_other(env: &Rc<SimEnv>, slow: [&Rc<Node>; 2], weights: [u32; 2]) -> Vec<Rc<Node>> {
    let flash = Kind::of::<crate::flash::Keys>();
    let flash = made(env, Begin::Format, &flash, "fast", json!({}), vec![disk(env, "fast")]).await;
    let mut tiers = Vec::new();
    for (name, slow, weight) in [("light", slow[0], weights[0]), ("heavy", slow[1], weights[1])] {
        let (keys, over) = (json!({ "weight": weight }), vec![Rc::clone(slow), Rc::clone(&flash)]);
        tiers.push(made(env, Begin::Format, &Kind::of::<Keys>(), name, keys, over).await);
    }
    tiers
}

#[test]
fn a_slow_device_serves_volumes_by_their_weights() {
    run(|env| async move {
        put_disks(&env, &[("shared", SLOW), ("fast", 4 << 20)]);
        let slow = disk(&env, "shared");
        let tiers = beside_each_other(&env, [&slow, &slow], [100, 1000]).await;
        // Both ask for something.
        read(&tiers[1], 1 << 19, 4096).await;
        // Reads of the light one, all at once: few of them have ended when one of the heavy one has that came later.
        let ended = Rc::new(std::cell::Cell::new(0));
        for block in 0..24 {
            let (light, ended) = (Rc::clone(&tiers[0]), Rc::clone(&ended));
            env.spawn(Box::pin(async move {
                read(&light, block * 8192, 4096).await;
                ended.set(ended.get() + 1);
            }));
        }
        env.sleep(Duration::from_micros(1)).await;
        read(&tiers[1], 1 << 20, 4096).await;
        assert!(ended.get() < 6, "{} went before it", ended.get());
    });
}

/// A change of a hierarchy quiesces one device after the other: none may wait for one that is quiesced already, only
/// because both volumes are on one disk.
fn beside_a_quiesced_part() {
    run(|env| async move {
        put_disks(&env, &[("shared", SLOW), ("fast", 4 << 20)]);
        let (shared, mut halves) = (disk(&env, "shared"), Vec::new());
        for (name, offset) in [("half 1", 0), ("half 2", SLOW / 2)] {
            let keys = json!({ "offset": offset, "size": SLOW / 2 });
            let over = vec![Rc::clone(&shared)];
            halves.push(made(&env, Begin::Format, kind("linear"), name, keys, over).await);
        }
        let tiers = beside_each_other(&env, [&halves[0], &halves[1]], [100, 1000]).await;
        read(&tiers[1], 0, 4096).await;
        let quiesced = halves[0].quiesce().await;
        let held: Vec<_> = (0..4u64)
            .map(|block| {
                let light = Rc::clone(&tiers[0]);
                env.start(async move { read(&light, block * 8192, 4096).await })
            })
            .collect();
        env.sleep(Duration::from_millis(1)).await;
        read(&tiers[1], 1 << 19, 4096).await;
        drop(tiers[1].quiesce().await);
        drop(quiesced);
        for held in held {
            held.ended().await;
        }
    });
}

#[test]
fn a_part_of_a_slow_device_that_is_quiesced_stops_no_other() {
    beside_a_quiesced_part();
    let words = failure_of("a stalled device is waited for", beside_a_quiesced_part);
    assert!(words.contains("it ends: Livelock"), "{words}");
}
