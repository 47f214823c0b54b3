//! Devices that are not there, join, leave; what is copied, and what is refused.

use super::*;
use lamina_block::Error;

#[test]
fn every_device_can_be_missing() {
    simulate(|env| async move {
        let (open, bytes) = filled(&env).await;
        open.node.close().await.expect("closed");
        for gone in ["a", "b", "c"] {
            let leg = |name: &&str| if *name == gone { absent(&env, name) } else { child(&env, name) };
            // Read-only, so that nothing is kept of it.
            let legs: Children = ["a", "b", "c"].iter().map(leg).collect();
            let again = open_with(&env, legs, keys(), Begin::Open, &[]).await.expect("opened");
            assert_eq!(all_of(&again).await, bytes, "without {gone}");
            again.node.close().await.expect("closed");
            let whole = super::open(&env, &["a", "b", "c"], keys(), Begin::Open).await.expect("opened");
            env.sleep(Duration::from_secs(2)).await;
            whole.whole().await;
            assert_eq!(whole.roles(), ["in sync"; 3]);
            whole.node.close().await.expect("closed");
        }
        let legs = vec![absent(&env, "a"), absent(&env, "b"), child(&env, "c")];
        let e = open_with(&env, legs, keys(), Begin::Open, &[]).await.err().expect("too few");
        assert!(e.message().contains("only 1 of its 3"), "{e}");
    });
}

#[test]
fn only_what_changed_is_copied_after_a_short_absence() {
    simulate(|env| async move {
        let (open, mut bytes) = filled(&env).await;
        open.set_here("b", false);
        for at in [4096, 40960, 8192 + 512] {
            put(&open, at, &[2; 512]).await;
            bytes[at as usize..][..512].fill(2);
        }
        assert_eq!(open.roles(), ["in sync", "away", "in sync"]);
        assert_eq!(all_of(&open).await, bytes);
        open.set_here("b", true);
        env.sleep(Duration::from_secs(2)).await;
        open.whole().await;
        // Of three stripes, at most, the units that are on b.
        let copied = open.node.info()["copied"].as_u64().expect("a number");
        assert!(copied > 0 && copied <= 3 * UNIT && copied.is_multiple_of(UNIT), "{copied}");
        assert_eq!((open.roles(), all_of(&open).await), (vec!["in sync".to_owned(); 3], bytes));
        scrubbed(&open).await;
        assert_eq!(open.found("different"), 0);
    });
}

#[test]
fn a_spare_takes_the_place_of_one_that_is_gone_for_too_long() {
    simulate(|env| async move {
        let keys = json!({ "unit": "4KiB", "region": "16KiB", "leg-timeout": "5s", "spares": 1 });
        let open = open(&env, &["a", "b", "c", "d"], keys.clone(), Begin::Format).await.expect("made");
        let bytes = pattern(open.node.geometry().size as usize);
        put(&open, 0, &bytes).await;
        open.set_here("b", false);
        put(&open, 0, &bytes[..512]).await;
        env.sleep(Duration::from_secs(8)).await;
        open.whole().await;
        assert_eq!(open.roles(), ["in sync", "failed", "in sync", "in sync"]);
        open.node.close().await.expect("closed");
        // The spare has the place from then on, whatever the order in `over` is.
        let again = super::open(&env, &["d", "c", "a"], keys, Begin::Open).await.expect("opened");
        assert_eq!(all_of(&again).await, bytes);
        env.sleep(Duration::from_secs(2)).await;
        again.whole().await;
        again.command("fail", json!({"leg": "c"})).await.expect("failed");
        assert_eq!(all_of(&again).await, bytes);
        assert!(again.command("fail", json!({"leg": "d"})).await.is_err());
    });
}

#[test]
fn one_device_takes_the_place_of_another() {
    simulate(|env| async move {
        let (open, bytes) = filled(&env).await;
        open.node.close().await.expect("closed");
        let legs = ["a", "b", "c", "d"].map(|name| child(&env, name)).to_vec();
        let four = open_with(&env, legs, keys(), Begin::Open, &["a"]).await.expect("opened");
        put(&four, 0, &bytes[..512]).await;
        four.node.evacuate(vec!["a".into()]).await.expect("evacuated");
        assert_eq!(four.roles()[1..], ["in sync"; 3]);
        four.node.close().await.expect("closed");
        let three = super::open(&env, &["d", "b", "c"], keys(), Begin::Open).await.expect("opened");
        assert_eq!((three.roles(), all_of(&three).await), (vec!["in sync".to_owned(); 3], bytes));
        scrubbed(&three).await;
        assert_eq!(three.found("different"), 0);
        // None of them can just go.
        assert!(three.node.evacuate(vec!["b".into()]).await.is_err());
    });
}

#[test]
fn a_device_that_leaves_is_used_until_a_spare_has_all() {
    simulate(|env| async move {
        let keys = json!({ "unit": "4KiB", "region": "16KiB", "leg-timeout": "1h", "spares": 1 });
        let open = open(&env, &["a", "b", "c", "d"], keys.clone(), Begin::Format).await.expect("made");
        let bytes = pattern(open.node.geometry().size as usize);
        put(&open, 0, &bytes).await;
        open.set_here("b", false);
        put(&open, 0, &bytes[..512]).await;
        assert_eq!(open.roles(), ["in sync", "away", "in sync", "spare"]);
        // Without b every byte of a is needed, although a spare is to take its place.
        let node = Rc::clone(&open.node);
        let evacuated = env.start(async move { node.evacuate(vec!["a".into()]).await });
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(all_of(&open).await, bytes);
        assert_eq!(
            (open.node.info()["legs_in_sync"].as_u64(), open.roles()[0].as_str()),
            (Some(2), "in sync")
        );
        open.set_here("b", true);
        evacuated.ended().await.expect("evacuated");
        assert_eq!(open.roles(), ["failed", "in sync", "in sync", "in sync"]);
        assert_eq!(all_of(&open).await, bytes);
        open.node.close().await.expect("closed");
        let again = super::open(&env, &["d", "b", "c"], keys, Begin::Open).await.expect("opened");
        assert_eq!((again.roles(), all_of(&again).await), (vec!["in sync".to_owned(); 3], bytes));
        scrubbed(&again).await;
        assert_eq!(again.found("different"), 0);
    });
}

#[test]
fn what_one_device_cannot_read_is_healed() {
    simulate(|env| async move {
        let (open, bytes) = filled(&env).await;
        let bad = Rc::new(std::cell::Cell::new(true));
        let left = Rc::clone(&bad);
        env.set_fault(Some(Box::new(move |_, disk, io| {
            let hit = disk == "a" && io.at.start <= 8192 && 8192 < io.at.end && bad.get();
            match io.op.kind() {
                OpKind::Read => hit.then(|| Error::new(ErrorKind::Corrupt, "a simulated checksum")),
                OpKind::Write => {
                    bad.set(bad.get() && !hit);
                    None
                }
                OpKind::Zero | OpKind::Discard | OpKind::Flush => None,
            }
        })));
        assert_eq!(all_of(&open).await, bytes);
        if left.get() {
            // It was parity, which nobody reads.
            scrubbed(&open).await;
        }
        assert!(!left.get());
        assert_eq!((open.found("healed"), open.roles()), (1, vec!["in sync".to_owned(); 3]));
        env.set_fault(None);
    });
}

#[test]
fn what_it_was_made_as_it_stays() {
    simulate(|env| async move {
        let (open, _) = filled(&env).await;
        open.node.close().await.expect("closed");
        let refused = async |keys: Value, begin: Begin, over: &[&str]| {
            super::open(&env, over, keys, begin).await.err().expect("refused").message().to_owned()
        };
        let abc = ["a", "b", "c"];
        assert!(refused(json!({"unit": "8KiB"}), Begin::Open, &abc).await.contains("made with 4KiB"));
        assert!(
            refused(json!({"unit": "4KiB", "parity": 2}), Begin::Open, &abc).await.contains("made with 1")
        );
        assert!(refused(json!({"unit": "12KiB"}), Begin::Format, &abc).await.starts_with("unit"));
        assert!(refused(json!({"parity": 3}), Begin::Format, &abc).await.starts_with("parity"));
        assert!(refused(json!({"parity": 2}), Begin::Format, &abc).await.starts_with("over"));
        assert!(refused(json!({"spares": 1}), Begin::Format, &abc).await.starts_with("over"));
        assert!(refused(keys(), Begin::Adopt, &abc).await.starts_with("over"));
    });
}

/// A write interrupted by a power loss is wrong in one parity. Its device is away when parities are made
/// right.
#[test]
fn a_device_that_was_away_when_the_parity_was_made_right_gets_it() {
    for gone in ["a", "b", "c"] {
        let world = world(3);
        let env = world.env();
        let (images, bytes) = world
            .run(async move {
                let (open, mut bytes) = filled(&env).await;
                put(&open, 0, &[7; 6 * UNIT as usize]).await;
                bytes[..6 * UNIT as usize].fill(7);
                let mut images = env.images(Loss::Nothing, 1);
                images.insert(gone.into(), env.disk(gone).expect("a disk").image(Loss::All, 1));
                (images, bytes)
            })
            .expect("it ends");
        let world = Simulation::from_images(4, &images);
        let env = world.env();
        world
            .run(async move {
                let open = open(&env, &["a", "b", "c"], keys(), Begin::Open).await.expect("opened");
                open.absence(gone).await;
                env.sleep(Duration::from_secs(2)).await;
                open.whole().await;
                assert_eq!(open.roles(), ["in sync"; 3]);
                let there = all_of(&open).await;
                assert!(there[6 * UNIT as usize..] == bytes[6 * UNIT as usize..], "what was flushed");
                scrubbed(&open).await;
                assert_eq!(open.found("different"), 0, "{gone} was away");
                let other = if gone == "a" { "b" } else { "a" };
                open.command("fail", json!({ "leg": other })).await.expect("failed");
                assert!(all_of(&open).await == there, "without {other}");
            })
            .expect("it ends");
    }
}
