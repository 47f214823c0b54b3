//! Legs that are not there, join, leave; what is copied, and what is refused.

use super::*;

fn absent(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    Node::absent(name, world, lamina_block::Error::offline("the device is not there"))
}

async fn write(open: &Open, at: u64, value: u8, len: usize) {
    let buf = Buf::from_vec(vec![value; len]);
    open.node.submit(Io::write(at, buf, Durability::Cached)).await.expect("written");
}

fn copied(open: &Open) -> u64 {
    open.node.info()["copied"].as_u64().expect("a number")
}

fn simulate<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = world(3);
    world.run(test(world.env())).expect("it ends");
}

#[test]
fn only_what_changed_is_copied_after_a_short_absence() {
    simulate(|env| async move {
        let open = open(&env, &["a", "b"], keys(), Begin::Format).await.expect("made");
        write(&open, 0, 1, SIZE as usize).await;
        open.node.submit(Io::flush()).await.expect("flushed");
        open.set_here("b", false);
        for at in [4096, 40960, 8192 + 512] {
            write(&open, at, 2, 512).await;
        }
        assert_eq!(open.roles(), ["in sync", "away"]);
        open.set_here("b", true);
        env.sleep(Duration::from_secs(2)).await;
        open.whole().await;
        assert_eq!((open.roles(), copied(&open)), (vec!["in sync".into(), "in sync".into()], 3 * 4096));
        open.same().await.expect("the same");
    });
}

#[test]
fn after_a_restart_whole_regions_are_copied() {
    simulate(|env| async move {
        let open = open(&env, &["a", "b"], keys(), Begin::Format).await.expect("made");
        write(&open, 0, 1, SIZE as usize).await;
        open.node.submit(Io::flush()).await.expect("flushed");
        // The intent is empty by then.
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(open.node.info()["written_recently"], 0);
        open.set_here("b", false);
        write(&open, 4096, 2, 512).await;
        open.node.close().await.expect("closed");
        open.set_here("b", true);
        let again = super::open(&env, &["a", "b"], keys(), Begin::Open).await.expect("opened");
        assert_eq!(again.roles(), ["in sync", "away"]);
        env.sleep(Duration::from_secs(2)).await;
        again.whole().await;
        assert_eq!(copied(&again), 16 << 10);
        again.same().await.expect("the same");
        // No leg is stale any more, whatever is opened.
        again.node.close().await.expect("closed");
        let b = open_with(&env, vec![absent(&env, "a"), child(&env, "b")], keys(), Begin::Open, &[])
            .await
            .expect("b alone");
        assert_eq!(bytes_of(&b.node, 4096..4608).await, [2; 512]);
    });
}

#[test]
fn an_old_leg_is_never_taken_for_a_good_one() {
    simulate(|env| async move {
        let open = open(&env, &["a", "b"], keys(), Begin::Format).await.expect("made");
        open.set_here("b", false);
        write(&open, 4096, 2, 512).await;
        open.node.close().await.expect("closed");
        open.set_here("b", true);
        let legs = vec![absent(&env, "a"), child(&env, "b")];
        let Err(e) = open_with(&env, legs, keys(), Begin::Open, &[]).await else { panic!("it was opened") };
        assert!(e.message().contains('a') && e.message().contains("older"), "{e}");
    });
}

#[test]
fn it_opens_without_a_leg_and_the_leg_comes_back() {
    simulate(|env| async move {
        let open = open(&env, &["a", "b"], keys(), Begin::Format).await.expect("made");
        write(&open, 0, 1, 8192).await;
        open.node.close().await.expect("closed");
        let missing = absent(&env, "a");
        let legs = vec![Rc::clone(&missing), child(&env, "b")];
        let again = open_with(&env, legs, keys(), Begin::Open, &[]).await.expect("opened");
        assert_eq!(again.roles(), ["away", "in sync"]);
        assert_eq!(again.node.geometry().size, SIZE);
        write(&again, 4096, 3, 512).await;
        let held = missing.quiesce().await;
        held.replace("simulated", env.disk("a").expect("a disk"));
        drop(held);
        env.sleep(Duration::from_secs(2)).await;
        again.whole().await;
        assert_eq!(again.roles(), ["in sync", "in sync"]);
        again.same().await.expect("the same");
    });
}

#[test]
fn a_leg_joins_and_another_one_leaves() {
    simulate(|env| async move {
        let open = open(&env, &["a", "b"], keys(), Begin::Format).await.expect("made");
        let bytes = Buf::from_vec(pattern(SIZE as usize));
        open.node.submit(Io::write(0, bytes, Durability::Cached)).await.expect("written");
        open.node.close().await.expect("closed");
        let legs = ["a", "b", "c"].map(|name| child(&env, name)).to_vec();
        let three = open_with(&env, legs, keys(), Begin::Open, &["a"]).await.expect("opened");
        three.node.evacuate(vec!["a".into()]).await.expect("evacuated");
        assert_eq!(three.roles()[1..], ["in sync", "in sync"]);
        write(&three, 0, 9, 512).await;
        three.node.close().await.expect("closed");
        let two = super::open(&env, &["c", "b"], keys(), Begin::Open).await.expect("opened");
        assert_eq!(two.roles(), ["in sync", "in sync"]);
        assert_eq!(bytes_of(&two.node, 512..SIZE).await, pattern(SIZE as usize)[512..]);
        // The only leg cannot go.
        two.command("fail", json!({"leg": "c"})).await.expect("failed");
        assert!(two.command("fail", json!({"leg": "b"})).await.is_err());
        assert!(two.node.evacuate(vec!["b".into()]).await.is_err());
        assert_eq!(bytes_of(&two.node, 0..512).await, [9; 512]);
    });
}

#[test]
fn a_spare_takes_over_when_patience_is_over() {
    simulate(|env| async move {
        let keys = json!({ "spares": 1, "leg-timeout": "5s", "region": "16KiB" });
        let open = open(&env, &["a", "b", "c"], keys, Begin::Format).await.expect("made");
        assert_eq!(open.roles(), ["in sync", "in sync", "spare"]);
        open.set_here("a", false);
        write(&open, 0, 7, 512).await;
        env.sleep(Duration::from_secs(3)).await;
        assert_eq!(open.roles(), ["away", "in sync", "spare"]);
        env.sleep(Duration::from_secs(5)).await;
        open.whole().await;
        assert_eq!(open.roles(), ["failed", "in sync", "in sync"]);
        open.set_here("a", true);
        open.command("rejoin", json!({"leg": "a"})).await.expect("rejoins");
        assert_eq!(open.roles(), ["spare", "in sync", "in sync"]);
    });
}

#[test]
fn a_disk_in_use_becomes_a_mirror() {
    simulate(|env| async move {
        let small = super::child(&env, "a");
        small
            .submit(Io::write(0, Buf::from_vec(pattern(DISK as usize)), Durability::Fua))
            .await
            .expect("written");
        let Err(e) = super::open(&env, &["b", "a"], keys(), Begin::Adopt).await else {
            panic!("there is no room")
        };
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        let mut options = DiskOptions::new(DISK + (96 << 10));
        options.junk = Some(0xF000_0009);
        env.put_disk("d", Image::blank(options));
        let open = super::open(&env, &["a", "d"], keys(), Begin::Adopt).await.expect("made");
        assert_eq!(
            (open.node.geometry().size, open.roles()),
            (DISK, vec!["in sync".into(), "away".to_owned()])
        );
        env.sleep(Duration::from_secs(2)).await;
        open.whole().await;
        assert_eq!((copied(&open), bytes_of(&open.legs[1], 0..DISK).await), (DISK, pattern(DISK as usize)));
        // The leg without an intent alone: the other one has to get everything, should it come back.
        open.set_here("d", false);
        write(&open, 0, 1, 512).await;
        let info = open.node.info();
        assert_eq!(info["legs"][1]["out_of_sync_bytes"], DISK);
        open.node.close().await.expect("closed");
        open.set_here("d", true);
        let again = super::open(&env, &["a", "d"], keys(), Begin::Open).await.expect("opened");
        env.sleep(Duration::from_secs(2)).await;
        again.whole().await;
        assert_eq!(bytes_of(&again.legs[1], 512..DISK).await, pattern(DISK as usize)[512..]);
    });
}

#[test]
fn a_rebuild_goes_on_where_it_was() {
    simulate(|env| async move {
        let open = open(&env, &["a"], keys(), Begin::Format).await.expect("made");
        write(&open, 0, 1, SIZE as usize).await;
        open.node.close().await.expect("closed");
        let slow = json!({ "region": "16KiB", "leg-timeout": "1h", "limit": "8KiB" });
        let open = super::open(&env, &["a", "b"], slow, Begin::Open).await.expect("opened");
        env.sleep(Duration::from_secs(12)).await;
        let before = copied(&open);
        assert!(before > 0 && before < SIZE, "{before}");
        let images = env.images(Loss::All, 1);
        drop(open);
        let world = Simulation::from_images(1, &images);
        let env = world.env();
        world
            .run(async move {
                let open = super::open(&env, &["a", "b"], keys(), Begin::Open).await.expect("opened");
                env.sleep(Duration::from_secs(2)).await;
                open.whole().await;
                assert!(copied(&open) < SIZE, "it began again");
                open.same().await.expect("the same");
            })
            .expect("it ends");
    });
}

#[test]
fn what_cannot_be_is_refused() {
    simulate(|env| async move {
        for (keys, over, what) in [
            (json!({ "spares": 2 }), &["a", "b"][..], "spares"),
            (json!({ "region": 5000 }), &["a", "b"], "region"),
        ] {
            let Err(e) = super::open(&env, over, keys, Begin::Format).await else {
                panic!("{what} was taken")
            };
            assert!(e.message().starts_with(what), "{e}");
        }
        let world: Rc<dyn Env> = Rc::clone(&env) as _;
        let with = Build::new("mirror", &world, vec![child(&env, "a")]);
        let keys =
            Kind::of::<crate::mirror::Keys>().parse(&keys()).unwrap_or_else(|e| panic!("{}", e.message));
        let Err(e) = keys.build(with).await else { panic!("it remembers nothing") };
        assert!(e.message().contains("[hierarchy]"), "{e}");
    });
}

/// A leg on which some requests fail because the memory of the request is not there: on the others it still was.
async fn without_memory(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let rule = json!({ "op": ["write"], "size": "4KiB", "error": "bad-memory", "count": 1 });
    let keys = Kind::of::<lamina_lab::fault::Keys>().parse(&json!({ "rules": [rule] }));
    let with = Build::new(name, &world, vec![child(env, name)]);
    let layer = keys.unwrap_or_else(|e| panic!("{}", e.message)).build(with).await.expect("made");
    Node::new(name, "fault", world, layer)
}

#[test]
fn memory_that_is_gone_puts_no_leg_out_and_legs_become_the_same() {
    simulate(|env| async move {
        for bad in [["a"].as_slice(), &["b"], &["a", "b"]] {
            let mut legs = Vec::new();
            for name in ["a", "b"] {
                legs.push(match bad.contains(&name) {
                    true => without_memory(&env, name).await,
                    false => child(&env, name),
                });
            }
            let open = open_with(&env, legs, keys(), Begin::Format, &[]).await.expect("made");
            write(&open, 4096, 1, SIZE as usize - 4096).await;
            let lost = Io::write(0, Buf::from_vec(vec![2; 4096]), Durability::Cached);
            let e = open.node.submit(lost).await.expect_err("it fails");
            assert_eq!(e.kind(), ErrorKind::BadMemory);
            assert_eq!(open.roles(), ["in sync", "in sync"], "{bad:?}");
            // No client sees two values there, now or later.
            let now = bytes_of(&open.node, 0..4096).await;
            open.whole().await;
            open.same().await.expect("the same");
            assert_eq!(bytes_of(&open.node, 0..4096).await, now);
            write(&open, 0, 3, 4096).await;
            open.same().await.expect("the same");
            open.node.close().await.expect("closed");
        }
    });
}

/// A leg that is being rebuilt is stale where it could not take a write.
#[test]
fn a_stale_leg_gets_the_bytes_it_missed_for_want_of_memory() {
    simulate(|env| async move {
        let legs = vec![child(&env, "a"), without_memory(&env, "b").await];
        let open = open_with(&env, legs, keys(), Begin::Format, &[]).await.expect("made");
        write(&open, 4096, 1, SIZE as usize - 4096).await;
        open.command("fail", json!({ "leg": "b" })).await.expect("it is put out");
        write(&open, 65536, 2, 65536).await;
        open.command("rejoin", json!({ "leg": "b" })).await.expect("it comes back");
        let lost = Io::write(0, Buf::from_vec(vec![2; 4096]), Durability::Cached);
        open.node.submit(lost).await.expect_err("it fails");
        open.whole().await;
        assert_eq!(open.roles(), ["in sync", "in sync"]);
        open.same().await.expect("the same");
    });
}

#[test]
fn a_read_into_memory_that_is_gone_heals_nothing() {
    simulate(|env| async move {
        let open = open(&env, &["a", "b"], keys(), Begin::Format).await.expect("made");
        write(&open, 0, 1, SIZE as usize).await;
        for at in [0, 4096, 8192] {
            let read = Io::read(at, lamina_sim::gone_memory(4096));
            let e = open.node.submit(read).await.expect_err("it fails");
            assert_eq!(e.kind(), ErrorKind::BadMemory);
        }
        assert_eq!((open.roles(), open.found("healed")), (vec!["in sync".into(), "in sync".into()], 0));
        // Each was asked for what it holds once.
        let reads = |leg: &Rc<Node>| leg.stats().of(OpKind::Read).errors.get();
        assert_eq!(open.legs.iter().map(reads).sum::<u64>(), 3);
    });
}

/// A write that was under way when the power failed is on a alone.
fn torn() -> Simulation {
    let world = world(3);
    let env = world.env();
    let images = world
        .run(async move {
            let open = open(&env, &["a", "b"], keys(), Begin::Format).await.expect("made");
            open.whole().await;
            write(&open, 10240, 1, 512).await;
            open.node.submit(Io::flush()).await.expect("flushed");
            write(&open, 10240, 2, 512).await;
            let mut images = env.images(Loss::All, 1);
            images.insert("a".into(), env.disk("a").expect("a").image(Loss::Nothing, 1));
            images
        })
        .expect("it ends");
    Simulation::from_images(4, &images)
}

#[test]
fn a_leg_that_was_away_when_legs_were_made_the_same_is_made_the_same() {
    for gone in ["a", "b"] {
        let world = torn();
        let env = world.env();
        world
            .run(async move {
                let open = open(&env, &["a", "b"], keys(), Begin::Open).await.expect("opened");
                assert_ne!(open.node.info()["needs_resync_bytes"], 0);
                open.set_here(gone, false);
                write(&open, 51200, 3, 512).await;
                env.sleep(Duration::from_secs(5)).await;
                assert_eq!(open.node.info()["needs_resync_bytes"], 0, "the other one alone is right");
                let right = bytes_of(&open.node, 10240..10752).await;
                open.set_here(gone, true);
                env.sleep(Duration::from_secs(2)).await;
                open.whole().await;
                assert_eq!(open.roles(), ["in sync", "in sync"]);
                for _ in 0..8 {
                    assert_eq!(bytes_of(&open.node, 10240..10752).await, right, "without {gone}");
                }
                open.same().await.expect("the same");
            })
            .expect("it ends");
    }
}

#[test]
fn one_leg_after_the_other_is_away_when_legs_are_made_the_same() {
    let world = torn();
    let env = world.env();
    world
        .run(async move {
            let legs = ["a", "b", "c"].map(|name| child(&env, name)).to_vec();
            let open = open_with(&env, legs, keys(), Begin::Open, &[]).await.expect("opened");
            open.set_here("b", false);
            write(&open, 51200, 3, 512).await;
            env.sleep(Duration::from_secs(5)).await;
            open.until("c", |open| open.roles()[2] == "in sync").await;
            open.set_here("a", false);
            write(&open, 55296, 4, 512).await;
            open.set_here("b", true);
            env.sleep(Duration::from_secs(5)).await;
            open.until("b", |open| open.roles()[1] == "in sync").await;
            open.set_here("a", true);
            env.sleep(Duration::from_secs(2)).await;
            open.whole().await;
            assert_eq!(open.roles(), ["in sync"; 3]);
            open.same().await.expect("the same");
            assert_eq!(bytes_of(&open.node, 10240..10752).await, [2; 512]);
        })
        .expect("it ends");
}
