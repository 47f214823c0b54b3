//! Layers stacked into graphs, through the gauntlet; and many seeds of everything.

use lamina_block::{Command, Env, Node, Result};
use lamina_sim::{Check, Rig, Subject, gauntlet, replay, soak_test};
use serde_json::{Value, json};
use std::rc::Rc;

async fn layer(rig: &Rig, kind: &str, name: &str, keys: Value, over: &[&Rc<Node>]) -> Result<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("the kind is registered");
    rig.build(kind, name, keys, over.iter().map(|node| Rc::clone(node)).collect()).await
}

/// A volume as a host would have it: parts of a stripe.
fn part_of_a_stripe() -> Subject {
    Subject::new("part of a stripe", |rig| async move {
        let [a, b] = [rig.disk(0), rig.disk(1)];
        let both = layer(&rig, "stripe", "both", json!({"unit": "8KiB"}), &[&a, &b]).await?;
        layer(&rig, "linear", "top", json!({"offset": "12KiB"}), &[&both]).await
    })
}

/// A recorded device of unlike parts, one of them slow.
fn recorded_parts() -> Subject {
    Subject::new("recorded parts", |rig| async move {
        let [a, b] = [rig.disk(0), rig.disk(1)];
        let front = layer(&rig, "linear", "front", json!({"size": "32KiB"}), &[&a]).await?;
        let slow = layer(&rig, "delay", "slow", json!({"write": "2ms", "parallel": 2}), &[&b]).await?;
        let whole = layer(&rig, "concat", "whole", json!({}), &[&front, &slow]).await?;
        layer(&rig, "record", "top", json!({"log": "log", "log-size": "64MiB"}), &[&whole]).await
    })
}

/// A stripe of stripes, with layers that keep requests between them.
fn stripe_of_stripes() -> Subject {
    Subject::new("stripe of stripes", |rig| async move {
        let disks = rig.disks(4);
        let left = layer(&rig, "stripe", "left", json!({"unit": "4KiB"}), &[&disks[0], &disks[1]]).await?;
        let right = layer(&rig, "stripe", "right", json!({"unit": "16KiB"}), &[&disks[2], &disks[3]]).await?;
        let marked = layer(&rig, "template", "marked", json!({}), &[&left]).await?;
        let checked = layer(&rig, "fault", "checked", json!({"rules": [{"count": 0}]}), &[&right]).await?;
        layer(&rig, "stripe", "top", json!({"unit": "8KiB"}), &[&marked, &checked]).await
    })
}

/// A stripe that gets wider while it is used.
fn wider_stripe() -> Subject {
    Subject::new("wider stripe", |rig| async move {
        let disks = rig.disks(3);
        let keys = || json!({"unit": "4KiB"});
        let narrow = layer(&rig, "stripe", "top", keys(), &[&disks[0], &disks[1]]).await;
        if let Ok(narrow) = narrow {
            // The first time, or after a power loss before the third device was known. Any three have room for so much.
            let args = json!({ "size": "160KiB", "force": true });
            narrow.control(Command { name: "resize".into(), args }).await?;
            narrow.close().await?;
        }
        let top = layer(&rig, "stripe", "top", keys(), &disks.iter().collect::<Vec<_>>()).await?;
        // Refused if all is done.
        let _ = top.control(Command { name: "move".into(), args: Value::Null }).await;
        Ok(top)
    })
}

/// A device whose data moves to others while it is used.
fn leaving(kind: &'static str, keys: Value) -> Subject {
    Subject::new(format!("{kind} without a device"), move |rig| {
        let keys = keys.clone();
        async move {
            let disks = rig.disks(3);
            let top = layer(&rig, kind, "top", keys, &disks.iter().collect::<Vec<_>>()).await?;
            // As much as any two of them have room for. Refused while bytes move, and then done before.
            let args = json!({ "size": "180KiB", "force": true });
            let _ = top.control(Command { name: "resize".into(), args }).await;
            let (node, names) = (Rc::clone(&top), vec!["disk1".into()]);
            rig.env().spawn(Box::pin(async move {
                // Ended when the device is closed.
                let _ = node.evacuate(names).await;
            }));
            Ok(top)
        }
    })
}

gauntlet!(a_part_of_a_stripe, part_of_a_stripe());
gauntlet!(recorded, recorded_parts());
gauntlet!(striped_twice, stripe_of_stripes());

/// Puts a subject that moves data in the background through the gauntlet, but for the contract's edges: there each
/// request to a disk is taken for one of the load's.
macro_rules! moving {
    ($name:ident, $subject:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn model_check() {
                lamina_sim::test(&$subject, Check::Model, &replay!());
            }

            #[test]
            fn crash_at_every_write() {
                lamina_sim::test(&$subject, Check::Crash, &replay!());
            }

            #[test]
            fn faults() {
                lamina_sim::test(&$subject, Check::Faults, &replay!());
            }

            #[test]
            fn change_under_load() {
                lamina_sim::test(&$subject, Check::Change, &replay!());
            }

            #[test]
            fn deaths_in_a_row() {
                lamina_sim::test(&$subject, Check::Deaths, &replay!());
            }

            #[test]
            fn healing_reaches_below() {
                lamina_sim::test(&$subject, Check::Heal, &replay!());
            }
        }
    };
}

moving!(a_stripe_that_gets_wider, wider_stripe());
moving!(a_stripe_without_a_device, leaving("stripe", json!({"unit": "8KiB"})));
moving!(a_concat_without_a_device, leaving("concat", json!({})));

/// `LAMINA_SOAK` says how many seeds, `LAMINA_SOAK_FROM` which is the first.
#[test]
fn soak() {
    soak_test(&[part_of_a_stripe(), recorded_parts(), stripe_of_stripes()], 240, "soak", &replay!());
}
