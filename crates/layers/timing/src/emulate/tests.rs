use super::*;
use crate::testing::{Buf, Subject, World, all, json, memory, refused, simulated};
use lamina_block::{Durability, Kind, Time};
use lamina_drive::Completion;
use lamina_sim::{DiskOptions, Image};
use std::time::Duration;

const MODEL: &str = "cheetah-15k4";

pub fn subject() -> Subject {
    Subject::layer(&Kind::of::<Keys>(), json!({ "model": MODEL, "k": 0.25, "adaptive": { "min": 0.1 } }), 1)
}

fn model() -> Model {
    Model::named(MODEL).expect("a model that comes with Lamina")
}

/// Offsets of 4 KiB in a memory of 64 MiB, far from each other.
fn offset(n: u64) -> u64 {
    (n * 2_654_435_761 % (16 << 10)) * 4096
}

fn read(node: &Rc<Node>, n: u64) -> lamina_block::Request {
    node.submit(Io::read(offset(n), Buf::zeroed(4096)))
}

/// When a drive by itself ends reads that come when `arrives` says, by their numbers.
fn ends(count: u64, mut arrives: impl FnMut(u64, Time) -> Time) -> Vec<Time> {
    let (mut drive, mut all, mut last) = (model().drive(0), vec![Time(0); count as usize], Time(0));
    let take = |all: &mut Vec<Time>, Completion { id, at, .. }| all[id as usize] = at;
    for n in 0..count {
        last = arrives(n, last);
        while let Some(done) = drive.completed(last) {
            take(&mut all, done);
        }
        drive.submit(last, n, Request::from(&Io::read(offset(n), Buf::zeroed(4096))));
        last = drive.next().expect("a request is under way");
    }
    while let Some(next) = drive.next() {
        while let Some(done) = drive.completed(next) {
            take(&mut all, done);
        }
    }
    all
}

#[test]
fn requests_take_k_times_the_time_of_the_drive() {
    for k in [1, 8] {
        simulated(move |world| async move {
            let below = world.memory("64MiB").await;
            let disk = world.over("emulate", json!({ "model": MODEL, "k": k }), &[&below]).await;
            let start = world.env.now();
            for at in ends(200, |_, last| last) {
                let begun = world.env.now();
                read(&disk, disk.info()["requests"].as_u64().unwrap()).await.unwrap();
                assert_eq!(world.env.now().since(start), k * at.since(Time(0)), "begun at {begun:?}");
            }
            let info = disk.info();
            assert_eq!(
                (&info["valid"], &info["late"], &info["lateness"]["max"]),
                (&json!(true), &json!(0), &json!(0.0))
            );
            assert_eq!(info["requests"], 200);
        });
    }
}

#[test]
fn requests_in_flight_stand_in_one_queue() {
    simulated(|world| async move {
        let below = world.memory("64MiB").await;
        let disk = world.over("emulate", json!({ "model": MODEL, "k": 2 }), &[&below]).await;
        let start = world.env.now();
        let expected = ends(32, |_, _| Time(0));
        let one = |n: u64| {
            let (request, env, at) = (read(&disk, n), Rc::clone(&world.env), expected[n as usize]);
            async move {
                request.await.unwrap();
                assert_eq!(env.now().since(start), 2 * at.since(Time(0)), "request {n}");
            }
        };
        let all = (0..32).map(|n| world.sim.start(one(n))).collect::<Vec<_>>();
        for each in all {
            each.ended().await;
        }
        let busy = *expected.iter().max().unwrap();
        assert!(busy > Time(32 * 2_000_000), "a disk does one after the other: {busy:?}");
    });
}

/// A disk that takes 20 ms for everything, under the emulated one.
async fn over_a_slow_disk(world: &World, keys: Value) -> Rc<Node> {
    let disk = world.sim.put_disk("slow", Image::blank(DiskOptions::new(64 << 20)));
    let slow = "name = \"slow\"\nsize = \"64MiB\"\n\
                [linear]\nconstant-ms = 20.0\nslope-ms = 0.0\nhit-ms = 20.0\n";
    disk.set_drive(Model::parse(slow).expect("a model").drive(0));
    let below = Node::new("slow", "simulated", Rc::clone(&world.env), disk);
    world.over("emulate", keys, &[&below]).await
}

#[test]
fn a_device_below_that_is_too_slow_is_said_to_be() {
    simulated(|world| async move {
        let disk = over_a_slow_disk(&world, json!({ "model": MODEL })).await;
        for n in 0..99 {
            let start = world.env.now();
            read(&disk, n).await.unwrap();
            assert_eq!(world.env.now().since(start), Duration::from_millis(20));
        }
        assert_eq!(disk.info()["valid"], json!(null), "too few to say");
        read(&disk, 99).await.unwrap();
        let info = disk.info();
        assert_eq!(
            (&info["valid"], &info["invalid"], &info["late"]),
            (&json!(false), &json!(true), &json!(100))
        );
        let asked = Command { name: "reset".into(), args: Value::Null };
        assert_eq!(disk.control(asked).await.unwrap()["late"], 0);
    });
}

#[test]
fn k_rises_until_the_device_below_keeps_up_and_can_be_fixed_then() {
    simulated(|world| async move {
        let disk = over_a_slow_disk(&world, json!({ "model": MODEL, "adaptive": { "max": 40 } })).await;
        for n in 0..3000 {
            read(&disk, n).await.unwrap();
        }
        let info = disk.info();
        let k = info["k"].as_f64().unwrap();
        // The fastest reads of the drive are those that take half a turn and hardly any seek.
        assert!((3.0..=6.0).contains(&k), "{info:#}");
        assert_eq!(info["valid"], true);
        let set = |args| disk.control(Command { name: "set".into(), args });
        let fixed = set(json!({ "k": k })).await.unwrap();
        assert_eq!((&fixed["adaptive"], &fixed["requests"]), (&json!(null), &json!(0)));
        let bounds = set(json!({ "adaptive": { "min": 2 } })).await.unwrap();
        assert_eq!((&bounds["adaptive"]["min"], &bounds["k"]), (&json!(2.0), &json!(k)));
    });
}

#[test]
fn k_and_the_drive_change_under_load() {
    simulated(|world| async move {
        let below = world.memory("64MiB").await;
        let disk = world.over("emulate", json!({ "model": MODEL, "k": 100 }), &[&below]).await;
        let start = world.env.now();
        let under_way = {
            let disk = Rc::clone(&disk);
            world.sim.start(async move { all((0..64).map(|n| read(&disk, n))).await })
        };
        world.env.sleep(Duration::from_millis(1)).await;
        let set = |args| disk.control(Command { name: "set".into(), args });
        set(json!({ "k": 0.5 })).await.unwrap();
        under_way.ended().await.unwrap();
        let busy = ends(64, |_, _| Time(0)).into_iter().max().unwrap().since(Time(0));
        let took = world.env.now().since(start);
        assert!(took < busy / 2 + Duration::from_millis(2), "the rest goes on faster: {took:?} of {busy:?}");
        let other = set(json!({ "model": "no-such" })).await;
        let message = other.err().map(|e| e.message().to_owned()).unwrap_or_default();
        assert!(
            message.contains("is no model that comes with Lamina, and cannot be read as a file"),
            "{message}"
        );
        world.sim.put_file(
            "/slow.toml",
            b"name = \"slow\"\nsize = \"1GiB\"\n\
            [linear]\nconstant-ms = 7.0\nslope-ms = 0.0\nhit-ms = 7.0\n",
        );
        assert_eq!(set(json!({ "model": "slow.toml" })).await.unwrap()["model"], "slow");
        let start = world.env.now();
        disk.submit(Io::write(0, Buf::zeroed(4096), Durability::Cached)).await.unwrap();
        assert_eq!(world.env.now().since(start), Duration::from_micros(3500));
    });
}

#[test]
fn wrong_keys_say_what_is_wrong() {
    let (small, below) = (memory("1MiB"), memory("1TiB"));
    for (keys, child, says) in [
        (json!({}), &small, "model"),
        (json!({ "model": MODEL, "k": 0 }), &small, "k: 0 is no factor: from 0.001 to 10000"),
        (json!({ "model": MODEL, "adaptive": { "least": 1 } }), &small, "least"),
        (json!({ "model": MODEL, "adaptive": { "max": 1e9 } }), &small, "adaptive.max"),
        (
            json!({ "model": MODEL, "adaptive": { "min": 2, "max": 1.5 } }),
            &small,
            "min 2 is more than max 1.5",
        ),
        (json!({ "model": MODEL }), &below, "the device below has 1TiB"),
        (json!({ "model": "no-such" }), &small, "no-such"),
    ] {
        let message = refused("emulate", keys, &[child]);
        assert!(message.contains(says), "{message}");
    }
}
