//! Layers stacked into graphs, through the gauntlet; and many seeds of everything.

use crate::testing::*;
use lamina_sim::{Rig, gauntlet, replay, soak_test};

async fn layer(rig: &Rig, kind: &str, name: &str, keys: Value, over: &[&Rc<Node>]) -> Result<Rc<Node>> {
    let kind = crate::KINDS.iter().find(|known| known.name == kind).expect("the kind is registered");
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

gauntlet!(a_part_of_a_stripe, part_of_a_stripe());
gauntlet!(recorded, recorded_parts());
gauntlet!(striped_twice, stripe_of_stripes());

/// `LAMINA_SOAK` says how many seeds, `LAMINA_SOAK_FROM` which is the first.
#[test]
fn soak_of_all_layers_and_graphs() {
    let mut subjects = crate::gauntlet::subjects();
    subjects.extend([part_of_a_stripe(), recorded_parts(), stripe_of_stripes()]);
    soak_test(&subjects, 2_000, "soak_of_all_layers_and_graphs", &replay!());
}
