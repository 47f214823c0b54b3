//! The layer in a simulated world: through the gauntlet, and what only it does.

mod below;
mod canaries;
mod crash;
mod damage;
mod over;

use super::{Integrity, Keys};
use crate::sums;
use crate::sums::scene::How;
use crate::testing::*;
use lamina_block::{Layer, Level};
use lamina_sim::{Check, Rig, Run};

fn kind() -> Kind {
    Kind::of::<Keys>()
}

fn keys() -> Value {
    soon(json!({ "region": "16KiB" }))
}

pub fn subject() -> Subject {
    Subject::layer(&kind(), keys(), 1).disks_of(384 << 10)
}

/// These keys, and intents that are cleared soon: the time of a simulation is short.
fn soon(mut keys: Value) -> Value {
    keys["idle"] = json!("300us");
    keys
}

/// A layer with these keys.
pub fn how(keys: Value) -> How {
    How {
        make: |keys, with| {
            Box::pin(async move {
                let keys: Keys = serde_json::from_value(keys).expect("the keys are right");
                let sums = sums::open(&keys.wanted(), &with).await?;
                Ok((Rc::clone(&sums), Rc::new(Integrity(sums)) as Rc<dyn Layer>))
            })
        },
        keys: soon(keys),
        meta: false,
    }
}

/// The table lies on a device of its own, at any level.
fn apart(level: Level) -> Subject {
    let build = |rig: Rc<Rig>| async move {
        let [data, meta] = [rig.disk(0), rig.disk(1)];
        rig.build_with(
            &kind(),
            "top",
            soon(json!({ "region": "16KiB", "checksum": "xxh3" })),
            vec![data],
            Some(meta),
        )
        .await
    };
    Subject::new("integrity with a device for its table", build).disks_of(256 << 10).level(level)
}

/// Between others.
fn between() -> Subject {
    let build = |rig: Rc<Rig>| async move {
        let known = |name| crate::testing::kind(name);
        let mut legs = Vec::new();
        for i in 0..2 {
            let leg = rig.build(&kind(), &format!("leg{i}"), keys(), vec![rig.disk(i)]).await?;
            legs.push(leg);
        }
        let stripe = rig.build(known("stripe"), "stripe", json!({ "unit": "8KiB" }), legs).await?;
        rig.build(known("snapshot"), "top", json!({ "extent": "4KiB", "size": "256KiB" }), vec![stripe]).await
    };
    Subject::new("snapshot over stripe over integrity", build).disks_of(1 << 20)
}

fn passes(subjects: &[Subject], checks: &[Check], seeds: Range<u64>) {
    for (subject, check) in
        subjects.iter().flat_map(|subject| checks.iter().map(move |check| (subject, *check)))
    {
        for seed in seeds.clone() {
            if let Err(failure) = lamina_sim::run(subject, check, seed, Run::Sample) {
                panic!("{failure}");
            }
        }
    }
}

#[test]
fn a_table_on_its_own_device_passes_the_gauntlet() {
    passes(&Level::ALL.map(apart), &Check::ALL, 0..4);
}

#[test]
fn it_passes_the_gauntlet_between_others() {
    // The edges are not looked at: there, only the device on top is closed, and what lies below goes on settling.
    passes(&[between()], &[Check::Model, Check::Crash, Check::Faults, Check::Change], 0..4);
}

#[test]
fn an_interval_that_would_keep_a_processor_busy_is_refused() {
    let said = refused("integrity", json!({ "idle": "99us" }), &[&memory("1MiB")]);
    assert_eq!(said, "idle: 99us is less than 100us");
}
