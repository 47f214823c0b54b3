//! What is shown: how far the store is behind, and the work that brings it up to date.

use super::DISK;
use crate::flash::SLOT;
use crate::redo::tests::{disk, put_disks};
use crate::testing::*;
use lamina_block::{Begin, Build, Job, JobState, Keep, Steering};
use lamina_sim::{Loss, SimEnv, SimKeep, Simulation};
use std::time::Duration;

/// Blocks that are written, none of them beside another one.
const WRITES: u64 = 40;
/// How long the store takes for each.
const SLOW: &str = "50ms";

pub(crate) async fn made(
    env: &Rc<SimEnv>,
    begin: Begin,
    kind: &Kind,
    name: &str,
    keys: Value,
    over: Vec<Rc<Node>>,
) -> Rc<Node> {
    let any: Rc<dyn Env> = Rc::clone(env) as Rc<dyn Env>;
    let Ok(keys) = kind.parse(&keys) else { panic!("{name}: wrong keys") };
    let keep: Rc<dyn Keep> = SimKeep::open(env, name).await.expect("kept").0;
    let with = Build { keep: Some(keep), begin, ..Build::new(name, &any, over) };
    Node::new(name, kind.name, Rc::clone(&any), keys.build(with).await.expect("made"))
}

/// A volume in front of a store that does one write at a time, each of which takes so long.
async fn volume(env: &Rc<SimEnv>, begin: Begin, write: &str) -> (Rc<Node>, Rc<Node>) {
    let slow = Kind::of::<lamina_lab::delay::Keys>();
    let store = made(env, begin, &slow, "slow", json!({ "write": write }), vec![disk(env, "store")]).await;
    let flash = Kind::of::<crate::flash::Keys>();
    let cache = made(env, begin, &flash, "flash", json!({}), vec![disk(env, "nvme")]).await;
    let top = Kind::of::<super::super::Keys>();
    (made(env, begin, &top, "top", json!({ "depth": 1 }), vec![store, Rc::clone(&cache)]).await, cache)
}

/// Runs `test` over new disks, with writes that the store does not have.
fn with_dirty<F: Future<Output = ()> + 'static>(
    write: &'static str,
    test: impl FnOnce(Rc<SimEnv>, Rc<Node>, Rc<Node>) -> F + 'static,
) {
    let world = Simulation::new(1);
    let env = world.env();
    put_disks(&env, &[("store", DISK), ("nvme", DISK)]);
    world
        .run(async move {
            let (top, cache) = volume(&env, Begin::Format, write).await;
            for n in 0..WRITES {
                let data = Buf::from_vec(vec![n as u8 + 1; SLOT]);
                top.submit(Io::write(2 * n * SLOT as u64, data, Durability::Fua)).await.expect("written");
            }
            test(env, top, cache).await;
        })
        .expect("it ends");
}

async fn after(env: &Rc<SimEnv>, seconds: f64) {
    env.sleep(Duration::from_secs_f64(seconds)).await;
}

fn control(name: &str, args: Value) -> Command {
    Command { name: name.into(), args }
}

fn job(node: &Rc<Node>, name: &str) -> Option<Rc<Job>> {
    node.jobs().into_iter().find(|job| job.name() == name)
}

/// Bytes done, and in all.
fn figures(job: &Job) -> (u64, u64) {
    let info = job.info();
    (info["done"].as_u64().expect("bytes"), info["total"].as_u64().expect("bytes"))
}

#[test]
fn a_drain_is_a_job_and_can_be_cancelled() {
    const ALL: u64 = WRITES * SLOT as u64;
    with_dirty(SLOW, |env, top, _| async move {
        assert!(top.jobs().is_empty());
        let drain = || {
            let top = Rc::clone(&top);
            env.start(async move { top.control(control("drain", json!({}))).await })
        };
        let (first, second) = (drain(), drain());
        after(&env, 0.5).await;
        let [job] = &top.jobs()[..] else { panic!("one job for both") };
        let (done, total) = figures(job);
        assert!(0 < done && done < ALL && total == ALL, "{done} of {total}");
        assert!(job.check(Steering::Cancel).is_ok() && job.check(Steering::All).is_err());
        // What is written meanwhile counts, too.
        let more = Io::write(2 * WRITES * SLOT as u64, Buf::zeroed(SLOT), Durability::Cached);
        top.submit(more).await.expect("written");
        assert_eq!(figures(&self::job(&top, "drain").expect("still there")).1, ALL + SLOT as u64);

        job.cancel();
        for ended in [first, second] {
            let e = ended.ended().await.expect_err("cancelled");
            assert_eq!((e.kind(), e.message()), (ErrorKind::Cancelled, "drain was cancelled"));
        }
        assert_eq!(job.state(), JobState::Cancelled);
        assert!(top.info()["dirty_bytes"] != 0);
        // It has harmed nothing: another one ends well.
        let again = drain();
        after(&env, 0.01).await;
        assert_eq!(self::job(&top, "drain").expect("another one").state(), JobState::Running);
        again.ended().await.expect("drained");
        assert!(top.info()["dirty_bytes"] == 0 && top.jobs().is_empty());
    });
}

#[test]
fn a_change_of_the_policy_drains_and_can_be_cancelled() {
    with_dirty(SLOW, |env, top, _| async move {
        let set = |policy: &str| {
            let (top, args) = (Rc::clone(&top), json!({ "policy": policy }));
            env.start(async move { top.control(control("set-policy", args)).await })
        };
        let uncached = set("uncached");
        after(&env, 0.5).await;
        job(&top, "drain").expect("it drains").cancel();
        assert_eq!(uncached.ended().await.expect_err("cancelled").kind(), ErrorKind::Cancelled);
        assert_eq!(top.info()["policy"], "write-back");
        set("uncached").ended().await.expect("drained");
        assert!(top.info()["policy"] == "uncached" && top.jobs().is_empty());
    });
}

#[test]
fn what_is_found_is_replayed_as_a_job() {
    with_dirty("1h", |env, top, _| async move {
        assert!(top.jobs().is_empty());
        let images = env.images(Loss::ALL[0], 1);
        drop(top);
        let world = Simulation::from_images(2, &images);
        let env = world.env();
        let ended = world.run(async move {
            let (top, _) = volume(&env, Begin::Open, SLOW).await;
            let found = top.info()["dirty_bytes"].as_u64().expect("bytes");
            assert_eq!(found, WRITES * SLOT as u64);
            after(&env, 1.0).await;
            let job = job(&top, "replay").expect("it goes on");
            let (done, total) = figures(&job);
            assert!(0 < done && done < found && total == found, "{done} of {total}");
            let left = json!({ "found_bytes": found, "left_bytes": found - done });
            let info = top.info();
            assert_eq!(info["replaying"], left);
            assert_eq!(info["oldest_dirty_seconds"].as_f64().map(f64::round), Some(1.0));
            assert!(job.check(Steering::Cancel).is_err());
            drop(job);
            after(&env, 10.0).await;
            let info = top.info();
            assert!(
                info["dirty_bytes"] == 0 && info["replaying"].is_null() && top.jobs().is_empty(),
                "{info}"
            );
            assert_eq!(
                (&info["oldest_dirty_seconds"], &info["seconds_to_clean"]),
                (&json!(0.0), &json!(0.0))
            );
        });
        ended.expect("it ends");
    });
}

#[test]
fn figures_are_of_now() {
    with_dirty(SLOW, |env, top, cache| async move {
        let info = top.info();
        // No batch has ended: nobody knows how long it takes.
        assert!(info["seconds_to_clean"].is_null() && info["recent_hit_rate"].is_null(), "{info}");
        assert_eq!(cache.info()["dirty_bytes"], WRITES * SLOT as u64);
        assert!(info["flow"]["bytes"].as_f64().expect("a part") > 0.0);
        top.control(control("drain", json!({}))).await.expect("drained");
        // No write has come since.
        assert_eq!(top.info()["flow"]["bytes"], 0.0);
        for at in [0, SLOT as u64, 0, 0] {
            top.submit(Io::read(at, Buf::zeroed(SLOT))).await.expect("read");
        }
        let info = top.info();
        assert_eq!((&info["recent_hit_rate"], &info["hit_rate"]), (&json!(0.75), &json!(0.75)));
        after(&env, 100.0).await;
        assert!(top.info()["recent_hit_rate"].is_null());
        let data = Buf::zeroed(WRITES as usize * SLOT);
        top.submit(Io::write(0, data, Durability::Cached)).await.expect("written");
        // As fast as before.
        let seconds = top.info()["seconds_to_clean"].as_f64().expect("known");
        assert!((1.0..4.0).contains(&seconds), "{seconds}");
    });
}

#[test]
fn a_store_that_hangs_is_an_alert() {
    with_dirty("1h", |env, top, cache| async move {
        let alerts = || top.info()["alerts"].clone();
        let none = json!({
            "store_trouble": false, "flash_trouble": false, "lagging": false, "recovery_point_old": false,
            "stopped": false,
        });
        after(&env, 290.0).await;
        assert_eq!(alerts(), none);
        after(&env, 20.0).await;
        assert_eq!(alerts()["lagging"], true);
        // The flash is full some time, and a write waits for space.
        let weak = Rc::downgrade(&top);
        env.start(async move {
            for n in 0..DISK / SLOT as u64 {
                let Some(top) = weak.upgrade() else { return };
                let write = Io::write(n * SLOT as u64, Buf::zeroed(SLOT), Durability::Cached);
                if top.submit(write).await.is_err() {
                    return;
                }
            }
        });
        after(&env, 60.0).await;
        let info = cache.info();
        assert_eq!(info["alerts"], json!({ "failed": false, "stalled": true }), "{info}");
        assert!(info["stalls"].as_u64() >= Some(1), "{info}");
        assert!(info["stalled_seconds"].as_f64().expect("seconds") > 10.0, "{info}");
    });
}
