//! The layer in a simulated world: through the gauntlet, alone and in graphs, and what only it does.

mod adopt;
mod canaries;
mod check;
mod crash;
mod difference;
mod figures;
mod golden;
mod scene;
mod space;
mod volume;

use crate::testing::*;

use lamina_block::{Level, Result};
use lamina_sim::{Check, Rig, Run};

const KEYS: &str = r#"{ "extent": "4KiB", "size": "512KiB" }"#;

fn kind() -> Kind {
    Kind::of::<super::Keys>()
}

fn keys() -> Value {
    serde_json::from_str(KEYS).expect("these are keys")
}

pub fn subject() -> Subject {
    Subject::layer(&kind(), keys(), 1).disks_of(1280 << 10)
}

/// The map lies on a device of its own.
fn apart(level: Level) -> Subject {
    let build = |rig: Rc<Rig>| async move {
        let [data, meta] = [rig.disk(0), rig.disk(1)];
        rig.build_with(&kind(), "top", keys(), vec![data], Some(meta)).await
    };
    Subject::new("snapshot with a device for metadata", build).disks_of(1 << 20).level(level)
}

/// Keeps the volume as it is whenever it is opened, so that what is written goes to new places; forgets old snapshots.
async fn keep(node: &Rc<Node>) -> Result<()> {
    if node.geometry().read_only {
        return Ok(());
    }
    let command = |name: &str, args| node.control(Command { name: name.into(), args });
    let there = command("list", json!({})).await?;
    let names: Vec<&str> =
        there.as_array().into_iter().flatten().filter_map(|s| s["name"].as_str()).collect();
    if let [oldest, _, ..] = names[..] {
        command("delete", json!({ "name": oldest })).await?;
    }
    let next = names.last().and_then(|name| name.parse::<u32>().ok()).map_or(0, |last| last + 1);
    command("snapshot", json!({ "name": next.to_string() })).await?;
    Ok(())
}

/// With snapshots.
fn kept(level: Level) -> Subject {
    let build = |rig: Rc<Rig>| async move {
        let node = rig.build(&kind(), "top", keys(), rig.disks(1)).await?;
        keep(&node).await?;
        Ok(node)
    };
    Subject::new("snapshot that keeps versions", build).disks_of(3 << 20).level(level)
}

/// Over a stripe.
fn striped(level: Level) -> Subject {
    let build = |rig: Rc<Rig>| async move {
        let stripe = crate::testing::kind("stripe");
        let below = rig.build(stripe, "below", json!({ "unit": "8KiB" }), rig.disks(2)).await?;
        let node = rig.build(&kind(), "top", keys(), vec![below]).await?;
        keep(&node).await?;
        Ok(node)
    };
    Subject::new("snapshot over stripe", build).disks_of(1536 << 10).level(level)
}

/// Over another one, which keeps versions too.
fn nested(level: Level) -> Subject {
    let build = |rig: Rc<Rig>| async move {
        let larger = json!({ "extent": "8KiB", "size": "2MiB" });
        let below = rig.build(&kind(), "below", larger, rig.disks(1)).await?;
        keep(&below).await?;
        let node = rig.build(&kind(), "top", keys(), vec![below]).await?;
        keep(&node).await?;
        Ok(node)
    };
    Subject::new("snapshot over snapshot", build).disks_of(6 << 20).level(level)
}

/// A few seeds of all checks: what is here beside the plain layer takes longer, and the soak has more of it.
fn passes(subjects: &[Subject], seeds: Range<u64>, how: Run) {
    for (subject, check) in subjects.iter().flat_map(|subject| Check::ALL.map(|check| (subject, check))) {
        for seed in seeds.clone() {
            if let Err(failure) = lamina_sim::run(subject, check, seed, how) {
                panic!("{failure}");
            }
        }
    }
}

#[test]
fn the_other_levels_pass_the_gauntlet() {
    passes(&[Level::Lazy, Level::Atomic].map(|level| subject().level(level)), 0..2, Run::Full);
}

#[test]
fn a_map_on_its_own_device_passes_the_gauntlet() {
    passes(&Level::ALL.map(apart), 0..4, Run::Sample);
}

#[test]
fn a_volume_with_snapshots_passes_the_gauntlet() {
    passes(&Level::ALL.map(kept), 0..4, Run::Sample);
}

#[test]
fn a_volume_over_a_stripe_passes_the_gauntlet() {
    passes(&Level::ALL.map(striped), 0..4, Run::Sample);
}

#[test]
fn a_volume_over_a_volume_passes_the_gauntlet() {
    passes(&Level::ALL.map(nested), 0..4, Run::Sample);
}
