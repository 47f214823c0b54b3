//! Volumes on a flash, in front of simulated stores.

mod bad;
mod canaries;
mod cluster;
mod compaction;
mod domains;
mod epochs;
mod failures;
mod figures;
mod fills;
mod found;
mod gone;
mod handover;
mod hosts;
mod late;
mod neighbours;
mod pace;
mod peers;
pub(crate) mod report;
mod rot;
mod schedules;
mod sizes;
mod storm;

use super::state_record::VolumeRecord;
use crate::testing::*;
use lamina_kit::flaw::FLAW;
use lamina_sim::{Check, Rig, Run, gauntlet};
use std::time::Duration;

/// Bytes of the simulated disks: the flash is not much larger than what is written, so that it goes round.
const DISK: u64 = 1200 << 10;

/// A device called `name` with `keys` over disk `store`, on the flash.
async fn volume(rig: &Rig, name: &str, keys: Value, store: usize, flash: &Rc<Node>) -> Result<Rc<Node>> {
    let over = vec![rig.disk(store), Rc::clone(flash)];
    rig.build(&Kind::of::<super::Keys>(), name, keys, over).await
}

async fn flash(rig: &Rig, disk: usize) -> Result<Rc<Node>> {
    rig.build(&Kind::of::<crate::flash::Keys>(), "flash", json!({}), vec![rig.disk(disk)]).await
}

fn alone(name: &'static str, keys: Value) -> Subject {
    Subject::new(name, move |rig| {
        let keys = keys.clone();
        async move { volume(&rig, "top", keys, 0, &flash(&rig, 1).await?).await }
    })
    .disks_of(DISK)
    .seeds(3)
}

pub fn subject() -> Subject {
    alone("accelerate", json!({ "policy": "write-back", "sequential-cutoff": "64KiB" }))
}

fn write_through() -> Subject {
    alone("write-through", json!({ "policy": "write-through" }))
}

/// A device whose policy and share change all the time.
fn policies() -> Subject {
    Subject::new("policies", |rig| async move {
        let top =
            volume(&rig, "top", json!({ "sequential-cutoff": "64KiB" }), 0, &flash(&rig, 1).await?).await?;
        let (env, weak) = (rig.env(), Rc::downgrade(&top));
        if top.geometry().read_only {
            return Ok(top);
        }
        let task = Rc::clone(&env);
        rig.user(async move {
            loop {
                task.sleep(Duration::from_micros(task.random() % 20_000)).await;
                let Some(top) = weak.upgrade().filter(|_| !task.is_ending()) else { return };
                let policies = ["write-back", "write-through", "uncached"];
                let policy = policies[(task.random() % 3) as usize];
                let set = |name: &str, args| top.control(Command { name: name.into(), args });
                // They may fail: disks do, and the device may be closed.
                let share = set("set-share", json!({ "share": 1 + task.random() % 100 })).await;
                let set = set("set-policy", json!({ "policy": policy })).await;
                if [share, set].iter().any(|set| set.as_ref().is_err_and(|e| e.kind() == ErrorKind::Offline))
                {
                    return;
                }
            }
        });
        Ok(top)
    })
    .disks_of(DISK)
    .seeds(3)
}

/// A device whose flash goes round many times: another volume on it is written and read all the time.
fn crowded() -> Subject {
    Subject::new("crowded", |rig| async move {
        let cache = flash(&rig, 1).await?;
        let top =
            volume(&rig, "top", json!({ "sequential-cutoff": "64KiB", "share": 30 }), 0, &cache).await?;
        if top.geometry().read_only {
            return Ok(top);
        }
        let other = volume(&rig, "other", json!({}), 2, &cache).await?;
        let env = rig.env();
        for _ in 0..CROWD {
            // It may fail: disks do.
            let _asked = ask(&env, &other).await;
        }
        let (task, weak) = (Rc::clone(&env), Rc::downgrade(&other));
        rig.user(async move {
            for _ in 0..10 * CROWD {
                task.sleep(Duration::from_micros(task.random() % 100)).await;
                let Some(other) = weak.upgrade().filter(|_| !task.is_ending()) else { return };
                // It may fail: disks do, and the device may be closed.
                if ask(&task, &other).await.is_err_and(|e| e.kind() == ErrorKind::Offline) {
                    return;
                }
            }
        });
        Ok(top)
    })
    .disks_of(DISK)
    .seeds(1)
}

/// Requests to the other volume of `crowded` before the device is there.
const CROWD: u32 = 40;

/// Reads or writes somewhere.
async fn ask(env: &Rc<lamina_sim::SimEnv>, node: &Rc<Node>) -> Result<()> {
    let len = 4096 << (env.random() % 4);
    let at = env.random() % (node.geometry().size / 4096 - 8) * 4096;
    let buf = Buf::from_vec(vec![env.random() as u8; len]);
    node.submit(match env.random() % 3 {
        0 => Io::read(at, buf),
        _ => Io::write(at, buf, Durability::Cached),
    })
    .await
}

#[test]
fn a_flash_that_goes_round() {
    for check in [Check::Model, Check::Crash] {
        lamina_sim::test(&crowded(), check, &lamina_sim::replay!());
    }
}

/// A device that is brought up to date and forgotten by its flash whenever it is opened: what is read is what
/// the store has.
fn drained() -> Subject {
    Subject::new("drained", |rig| async move {
        let top = volume(&rig, "top", json!({}), 0, &flash(&rig, 1).await?).await?;
        if !top.geometry().read_only {
            for policy in ["uncached", "write-back"] {
                let args = json!({ "policy": policy });
                top.control(Command { name: "set-policy".into(), args }).await?;
            }
        }
        Ok(top)
    })
    .disks_of(DISK)
    .seeds(3)
}

gauntlet!(through, write_through());
gauntlet!(uncached, alone("uncached", json!({ "policy": "uncached" })));

/// The other checks want nothing to be under way at their ends, and a change of the policy may be.
#[test]
fn policies_change() {
    for check in [Check::Model, Check::Crash] {
        lamina_sim::test(&policies(), check, &lamina_sim::replay!());
    }
}

#[test]
fn the_store_has_everything_after_a_crash() {
    for check in [Check::Model, Check::Crash] {
        lamina_sim::test(&drained(), check, &lamina_sim::replay!());
    }
}

/// What must be noticed, by which check, and over which subject.
type Canary = (&'static str, fn() -> Subject, Check);

#[test]
fn canaries() {
    let canaries: [Canary; 5] = [
        ("acknowledged before it is durable", subject, Check::Crash),
        ("checkpoint before the store", drained, Check::Crash),
        ("unordered overlap", subject, Check::Model),
        ("stale generation", policies, Check::Crash),
        ("summary before the flush", subject, Check::Crash),
    ];
    let seeds: u64 = std::env::var("LAMINA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    let unnoticed = |(flaw, subject, check): &Canary| {
        FLAW.set(Some(flaw));
        let found = (0..seeds).find(|seed| lamina_sim::run(&subject(), *check, *seed, Run::Sample).is_err());
        FLAW.set(None);
        found.is_none()
    };
    let missed: Vec<_> = canaries.iter().filter(|canary| unnoticed(canary)).map(|canary| canary.0).collect();
    assert!(missed.is_empty(), "nothing noticed: {missed:?}");
}

#[test]
fn words_are_as_they_were() {
    const GOLDEN: &str = include_str!("../../tests/golden/kept-volume-2.json");
    let words = VolumeRecord::new(0xA1, true);
    let text = json!(words).to_string() + "\n";
    if std::env::var_os("LAMINA_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/kept-volume-2.json");
        std::fs::write(path, &text).expect("it can be written");
    }
    assert_eq!(text, GOLDEN, "the format has changed: see docs/formats/kept.md");
    let kept: Value = serde_json::from_str(GOLDEN).expect("JSON");
    assert_eq!(VolumeRecord::read(&kept).expect("read"), words);
    let wrong = |key: &str, value: Value| {
        let mut kept = kept.clone();
        kept[key] = value;
        VolumeRecord::read(&kept).expect_err(key).kind()
    };
    assert_eq!(wrong("more", json!(1)), ErrorKind::Corrupt);
    assert_eq!(wrong("uuid", json!("0")), ErrorKind::Corrupt);
    assert_eq!(wrong("version", json!(3)), ErrorKind::Unsupported);
}

/// Version 1 did not say whether the volume owes anything: it may.
#[test]
fn the_words_of_version_1_are_read() {
    const GOLDEN: &str = include_str!("../../tests/golden/kept-volume-1.json");
    let kept: Value = serde_json::from_str(GOLDEN).expect("JSON");
    assert_eq!(VolumeRecord::read(&kept).expect("read"), VolumeRecord::new(0xA1, true));
    let mut more = kept;
    more["attached"] = json!(true);
    assert_eq!(VolumeRecord::read(&more).expect_err("unknown").kind(), ErrorKind::Corrupt);
}
