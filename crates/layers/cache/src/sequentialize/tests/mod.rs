//! A log that takes all writes, and one beside homes.

mod agree;
mod canaries;
mod edges;
mod failed;
mod format;
mod home;
mod leave;
mod race;
mod tidy;
mod zones;

use crate::testing::*;
use lamina_block::Zones;
use lamina_sim::{Check, Rig, SimEnv};
use std::time::Duration;

/// Bytes of a disk: some twenty segments of eight slots.
const DISK: u64 = 640 << 10;

pub fn subject() -> Subject {
    Subject::layer(&Kind::of::<super::Keys>(), json!({}), 1).disks_of(DISK)
}

/// A part of a device that is written elsewhere all the time: the log goes round many times, segments are collected,
/// and checkpoints are made, also by command.
pub fn crowded() -> Subject {
    crowded_with("crowded", json!({})).disks_of(DISK)
}

fn crowded_with(name: &str, keys: Value) -> Subject {
    Subject::new(name, move |rig| {
        let disk = rig.disk(0);
        crowd(rig, disk, keys.clone())
    })
    .seeds(3)
}

async fn crowd(rig: Rc<Rig>, disk: Rc<Node>, keys: Value) -> Result<Rc<Node>> {
    let log = rig.build(&Kind::of::<super::Keys>(), "log", keys, vec![disk]).await?;
    let half = log.geometry().size / 2 / 4096 * 4096;
    let top = part(&rig, "top", json!({ "size": half }), &log).await?;
    if top.geometry().read_only {
        return Ok(top);
    }
    let other = part(&rig, "other", json!({ "offset": half }), &log).await?;
    let env = rig.env();
    for _ in 0..CROWD {
        // It may fail: disks do.
        let _asked = ask(&env, &other).await;
    }
    let (other, log) = (Rc::downgrade(&other), Rc::downgrade(&log));
    rig.user(async move {
        for _ in 0..20 * CROWD {
            env.sleep(Duration::from_micros(env.random() % 100)).await;
            let both = (other.upgrade(), log.upgrade());
            let (Some(other), Some(log)) = both else { return };
            if env.is_ending() {
                return;
            }
            let name = ["collect", "checkpoint", "tidy"][(env.random() % 3) as usize];
            let command = Command { name: name.into(), args: json!({}) };
            let asked = match env.random() % 8 {
                0 => log.control(command).await.map(drop),
                _ => ask(&env, &other).await,
            };
            // It may fail: disks do, and the device may be closed.
            if asked.is_err_and(|e| e.kind() == ErrorKind::Offline) {
                return;
            }
        }
    });
    Ok(top)
}

/// Requests beside those of the gauntlet before the device is there.
const CROWD: u32 = 40;

async fn part(rig: &Rig, name: &str, keys: Value, log: &Rc<Node>) -> Result<Rc<Node>> {
    rig.build(kind("linear"), name, keys, vec![Rc::clone(log)]).await
}

/// Writes somewhere, or discards.
async fn ask(env: &Rc<SimEnv>, node: &Rc<Node>) -> Result<()> {
    let blocks = node.geometry().size / 4096;
    let len = 1 + env.random() % 3.min(blocks - 1);
    let at = env.random() % (blocks - len) * 4096;
    if env.random().is_multiple_of(16) {
        return node.submit(Io::discard(at..at + len * 4096)).await;
    }
    let buf = Buf::from_vec(vec![env.random() as u8; len as usize * 4096]);
    node.submit(Io::write(at, buf, Durability::Cached)).await
}

#[test]
fn a_log_that_goes_round() {
    for check in [Check::Model, Check::Crash] {
        lamina_sim::test(&crowded(), check, &lamina_sim::replay!());
    }
}

#[test]
fn a_log_that_goes_round_over_several_deaths() {
    lamina_sim::test(&crowded(), Check::Deaths, &lamina_sim::replay!());
}
