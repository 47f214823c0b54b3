//! The commands of volumes.

use super::*;
use lamina_block::Buf;
use lamina_kit::flaw::FLAW;
use lamina_sim::Simulation;
use std::future::Future;

const KIB: u64 = 1 << 10;

fn stripe() -> Volume {
    Volume { kind: "stripe", keys: json!({ "unit": "4KiB" }) }
}

fn concat() -> Volume {
    Volume { kind: "concat", keys: json!({}) }
}

/// A world with the disks a to d of 64, 64, 128 and 32 KiB.
fn with_disks<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = Simulation::new(1);
    let env = world.env();
    for (name, size) in [("a", 64), ("b", 64), ("c", 128), ("d", 32)] {
        env.put_disk(name, Image::blank(DiskOptions::new(size * KIB)));
    }
    world.run(test(env)).expect("it ends");
}

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 512 * 31 + 1) as u8).collect()
}

async fn fill(node: &Rc<Node>) -> Vec<u8> {
    let bytes = pattern(node.geometry().size);
    let write = Io::write(0, Buf::from_vec(bytes.clone()), Durability::Cached);
    node.submit(write).await.expect("it can be written");
    node.submit(Io::flush()).await.expect("it can be flushed");
    bytes
}

async fn read(node: &Rc<Node>, len: usize) -> Vec<u8> {
    let buf = Buf::zeroed(len);
    node.submit(Io::read(0, buf.clone())).await.expect("it can be read");
    buf.to_vec()
}

/// Waits for the end of what is done in the background.
async fn done(env: &Rc<SimEnv>, node: &Rc<Node>) {
    for _ in 0..10_000 {
        env.sleep(Duration::from_millis(10)).await;
        if node.jobs().is_empty() {
            return;
        }
    }
    panic!("it does not end: {}", node.info());
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| name.to_string()).collect()
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
fn a_device_that_joins_a_concat_makes_it_larger_at_once() {
    with_disks(|env| async move {
        let node = concat().open(&env, &["a", "b"], &[], Begin::Format).await.unwrap();
        let bytes = fill(&node).await;
        node.close().await.unwrap();
        // The name stands before the others, and its space behind theirs.
        let node = concat().open(&env, &["d", "b", "a"], &[], Begin::Open).await.unwrap();
        assert_eq!(node.geometry().size, 160 * KIB);
        assert_eq!(read(&node, bytes.len()).await, bytes);
        let bytes = fill(&node).await;
        env.sleep(Duration::from_secs(2)).await;
        node.close().await.unwrap();
        let node = concat().open(&env, &["a", "b", "d"], &[], Begin::Open).await.unwrap();
        assert_eq!(read(&node, bytes.len()).await, bytes);
        let d = Buf::zeroed(512);
        child(&env, "d").submit(Io::read(0, d.clone())).await.unwrap();
        assert_eq!(d.to_vec(), bytes[128 << 10..][..512]);
    });
}

#[test]
fn a_device_that_joins_a_stripe_makes_it_larger_when_all_is_moved() {
    with_disks(|env| async move {
        let node = stripe().open(&env, &["a", "b"], &[], Begin::Format).await.unwrap();
        let bytes = fill(&node).await;
        node.close().await.unwrap();
        let node = stripe().open(&env, &["a", "b", "c"], &[], Begin::Open).await.unwrap();
        assert_eq!(node.geometry().size, 128 * KIB);
        let jobs = node.jobs();
        let info = jobs[0].info();
        assert_eq!(
            (&info["name"], &info["done"], &info["total"]),
            (&json!("move"), &json!(0), &json!(128 * KIB))
        );
        done(&env, &node).await;
        node.refresh();
        assert_eq!(node.geometry().size, 192 * KIB);
        assert_eq!(devices(&node), ["a", "b", "c"]);
        assert_eq!(read(&node, bytes.len()).await, bytes);
        fill(&node).await;
    });
}

#[test]
fn a_move_is_slowed_paused_cancelled_and_goes_on() {
    with_disks(|env| async move {
        let node = stripe().open(&env, &["a", "b"], &[], Begin::Format).await.unwrap();
        let bytes = fill(&node).await;
        node.close().await.unwrap();
        let node = stripe().open(&env, &["a", "b", "c"], &[], Begin::Open).await.unwrap();
        let job = node.jobs().remove(0);
        job.set_limit(Some(16 * KIB));
        command(&node, "move", Value::Null).await.unwrap();
        env.sleep(Duration::from_secs(4)).await;
        let moved = job.info()["done"].as_u64().unwrap();
        assert!((32 * KIB..=96 * KIB).contains(&moved), "{moved} bytes in 4 s");
        job.pause();
        env.sleep(Duration::from_secs(5)).await;
        let paused = job.info()["done"].as_u64().unwrap();
        env.sleep(Duration::from_secs(60)).await;
        assert_eq!(job.info()["done"].as_u64().unwrap(), paused);
        assert_eq!(read(&node, bytes.len()).await, bytes);
        assert!(message(command(&node, "resize", json!({})).await).contains("is being moved"));
        job.cancel();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(read(&node, bytes.len()).await, bytes);
        assert_eq!(node.jobs()[0].state(), JobState::Cancelled);
        command(&node, "move", Value::Null).await.unwrap();
        // The limit was the work's, not that attempt's.
        assert_eq!(node.jobs()[0].limit(), Some(16 * KIB));
        node.jobs()[0].set_limit(None);
        done(&env, &node).await;
        assert_eq!(read(&node, bytes.len()).await, bytes);
        assert!(message(command(&node, "move", Value::Null).await).contains("nothing to move"));
    });
}

#[test]
fn a_move_goes_on_when_the_volume_is_opened_again() {
    with_disks(|env| async move {
        let node = stripe().open(&env, &["a", "b"], &[], Begin::Format).await.unwrap();
        let bytes = fill(&node).await;
        node.close().await.unwrap();
        let node = stripe().open(&env, &["a", "b", "c"], &[], Begin::Open).await.unwrap();
        node.jobs()[0].set_limit(Some(16 * KIB));
        env.sleep(Duration::from_secs(4)).await;
        let position = node.info()["move"]["position"].as_u64().unwrap();
        assert!(0 < position && position < bytes.len() as u64);
        node.close().await.unwrap();
        let node = stripe().open(&env, &["c", "a", "b"], &[], Begin::Open).await.unwrap();
        assert!(node.info()["move"]["position"].as_u64().unwrap() >= position);
        assert_eq!(read(&node, bytes.len()).await, bytes);
        done(&env, &node).await;
        assert_eq!(read(&node, bytes.len()).await, bytes);
        assert_eq!(devices(&node), ["a", "b", "c"]);
    });
}

#[test]
fn one_device_takes_the_place_of_another_and_the_size_stays() {
    for volume in [stripe(), concat()] {
        with_disks(|env| async move {
            let node = volume.open(&env, &["a", "b"], &[], Begin::Format).await.unwrap();
            let bytes = fill(&node).await;
            node.close().await.unwrap();
            let node = volume.open(&env, &["a", "b", "c"], &["b"], Begin::Open).await.unwrap();
            assert_eq!(node.geometry().size, 128 * KIB);
            assert_eq!(node.info()["reserve"], json!(["c"]));
            node.evacuate(names(&["b"])).await.unwrap();
            assert_eq!(devices(&node), ["a", "c"]);
            assert_eq!(read(&node, bytes.len()).await, bytes);
            node.close().await.unwrap();
            let node = volume.open(&env, &["a", "c"], &[], Begin::Open).await.unwrap();
            assert_eq!(read(&node, bytes.len()).await, bytes);
            command(&node, "resize", Value::Null).await.unwrap();
            let larger = if volume.kind == "concat" { 192 * KIB } else { 128 * KIB };
            assert_eq!(node.geometry().size, larger);
            assert_eq!(read(&node, bytes.len()).await, bytes);
        });
    }
}

/// At the speed of its key; then the layer is not needed any more.
#[test]
fn a_device_moves_to_another_one_with_a_limit() {
    with_disks(|env| async move {
        let volume = Volume { kind: "migrate", keys: json!({ "limit": "8KiB" }) };
        let node = volume.open(&env, &["a"], &[], Begin::Adopt).await.unwrap();
        let bytes = fill(&node).await;
        node.close().await.unwrap();
        assert!(message(volume.open(&env, &["a", "c"], &[], Begin::Open).await).contains("in its place"));
        let only = volume.open(&env, &["a"], &[], Begin::Open).await.unwrap();
        let joining = |name: &str| vec![child(&env, name)];
        assert!(message(only.can_evacuate(&names(&["a"]), &joining("d"))).contains("32KiB free"));
        assert!(message(only.can_evacuate(&names(&["a"]), &[])).contains("0B free"));
        only.can_evacuate(&names(&["a"]), &joining("c")).expect("there is room");
        assert!(only.jobs().is_empty(), "nothing is begun");
        only.close().await.unwrap();
        let small = volume.open(&env, &["a", "d"], &["a"], Begin::Open).await.unwrap();
        assert!(message(small.evacuate(names(&["a"])).await).contains("32KiB free"));
        small.close().await.unwrap();
        let node = volume.open(&env, &["a", "c"], &["a"], Begin::Open).await.unwrap();
        let moved = Rc::clone(&node);
        env.spawn(Box::pin(async move { moved.evacuate(names(&["a"])).await.unwrap() }));
        while node.jobs().is_empty() {
            env.sleep(Duration::from_nanos(1)).await;
        }
        assert_eq!(node.jobs()[0].limit(), Some(8 * KIB));
        done(&env, &node).await;
        assert_eq!((devices(&node), node.geometry().size), (names(&["c"]), 64 * KIB));
        node.close().await.unwrap();
        let node = volume.open(&env, &["c"], &[], Begin::Open).await.unwrap();
        node.quiesce().await.layer().detach().await.unwrap();
        node.close().await.unwrap();
        assert_eq!(read(&child(&env, "c"), bytes.len()).await, bytes);
    });
}

/// It grows with the device that it stands on: not while it moves, and afterwards it is as large as the new one.
#[test]
fn what_migrates_grows_with_its_device() {
    with_disks(|env| async move {
        let volume = Volume { kind: "migrate", keys: json!({ "limit": "8KiB" }) };
        let (a, c) = (child(&env, "a"), child(&env, "c"));
        let enlarge = |of: &Rc<Node>, node: &Rc<Node>| {
            env.disk(of.name()).expect("a disk").resize(of.geometry().size + 32 * KIB);
            of.refresh();
            node.refresh();
            node.geometry().size
        };
        let node = volume.over(&env, vec![Rc::clone(&a)], &[], Begin::Adopt).await.unwrap();
        assert_eq!(enlarge(&a, &node), 96 * KIB);
        let bytes = fill(&node).await;
        node.close().await.unwrap();
        let node = volume.over(&env, vec![Rc::clone(&a), Rc::clone(&c)], &["a"], Begin::Open).await.unwrap();
        let moved = Rc::clone(&node);
        env.spawn(Box::pin(async move { moved.evacuate(names(&["a"])).await.unwrap() }));
        while node.jobs().is_empty() {
            env.sleep(Duration::from_nanos(1)).await;
        }
        assert_eq!((enlarge(&a, &node), enlarge(&c, &node)), (96 * KIB, 96 * KIB));
        assert!(message(command(&node, "resize", json!({})).await).contains("is being moved"));
        done(&env, &node).await;
        assert_eq!((devices(&node), node.geometry().size), (names(&["c"]), 96 * KIB));
        node.close().await.unwrap();
        let node = volume.over(&env, vec![Rc::clone(&c)], &[], Begin::Open).await.unwrap();
        assert_eq!(node.geometry().size, 160 * KIB);
        assert_eq!(enlarge(&c, &node), 192 * KIB);
        assert_eq!(read(&node, bytes.len()).await, bytes);
    });
}

#[test]
fn a_device_leaves_when_the_volume_was_made_smaller() {
    for (volume, fits) in [(stripe(), 128 * KIB), (concat(), 192 * KIB)] {
        with_disks(|env| async move {
            let node = volume.open(&env, &["a", "b", "c"], &[], Begin::Format).await.unwrap();
            let bytes = fill(&node).await;
            let refused = message(node.evacuate(names(&["a"])).await);
            assert!(refused.contains(&format!("resize {fits} force=true")), "{refused}");
            let refused = message(command(&node, "resize", json!({ "size": fits })).await);
            assert!(refused.contains("force=true"), "{refused}");
            assert!(message(command(&node, "resize", json!({ "size": 100 })).await).contains("size: "));
            command(&node, "resize", json!({ "size": fits, "force": true })).await.unwrap();
            assert_eq!(node.geometry().size, fits);
            node.evacuate(names(&["a"])).await.unwrap();
            assert_eq!(read(&node, fits as usize).await, bytes[..fits as usize]);
            // Nothing more to do.
            node.evacuate(names(&["a", "nobody"])).await.unwrap();
            node.close().await.unwrap();
            let node = volume.open(&env, &["b", "c"], &[], Begin::Open).await.unwrap();
            assert_eq!(node.geometry().size, fits);
            assert_eq!(read(&node, fits as usize).await, bytes[..fits as usize]);
            let too_large = message(command(&node, "resize", json!({ "size": "1MiB" })).await);
            assert!(too_large.contains("room"), "{too_large}");
            command(&node, "resize", json!({ "size": fits - 4096, "force": true })).await.unwrap();
            command(&node, "resize", json!({ "size": fits - 512 })).await.unwrap();
            assert_eq!(node.geometry().size, fits - 512);
        });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    with_disks(|env| async move {
        let node = stripe().open(&env, &["a", "b"], &[], Begin::Format).await.unwrap();
        node.close().await.unwrap();
        let open = |volume: Volume, over: &'static [&'static str]| {
            let env = Rc::clone(&env);
            async move { message(volume.open(&env, over, &[], Begin::Open).await) }
        };
        let missing = open(stripe(), &["a", "c"]).await;
        assert!(missing.starts_with("over: b is missing") && missing.contains("lamina apply"), "{missing}");
        let small = open(stripe(), &["a", "b", "d"]).await;
        assert!(small.starts_with("over: it has 128KiB, and a, b, d have room for 96KiB"), "{small}");
        let unit = open(Volume { keys: json!({ "unit": "8KiB" }), ..stripe() }, &["a", "b"]).await;
        assert!(unit.starts_with("unit: the device was made with 4KiB"), "{unit}");
        assert!(open(concat(), &["a", "b"]).await.starts_with("type: the device was made as \"stripe\""));
        env.disk("a").unwrap().resize(32 * KIB);
        assert!(open(stripe(), &["a", "b"]).await.starts_with("over: a has 32KiB, and 64KiB"));
    });
}

#[test]
fn only_what_stays_in_its_place_may_be_adopted_or_left() {
    with_disks(|env| async move {
        let adopt = stripe().open(&env, &["a", "b"], &[], Begin::Adopt).await;
        assert!(message(adopt).contains("bytes would change places"));
        for volume in [stripe(), concat()] {
            let node = volume.open(&env, &["a"], &[], Begin::Adopt).await.unwrap();
            node.quiesce().await.layer().detach().await.unwrap();
            node.close().await.unwrap();
        }
        // All that is on the first stays; what is new lies behind it.
        concat().open(&env, &["a", "b"], &[], Begin::Adopt).await.unwrap().close().await.unwrap();
        let node = concat().open(&env, &["a", "b"], &[], Begin::Format).await.unwrap();
        assert!(message(node.quiesce().await.layer().detach().await).contains("several devices"));
    });
}

#[test]
fn without_a_place_to_keep_it_nothing_moves() {
    with_disks(|env| async move {
        let world: Rc<dyn Env> = Rc::clone(&env) as _;
        let children = vec![child(&env, "a"), child(&env, "b")];
        let kind = crate::testing::kind("stripe");
        let keys = kind.parse(&json!({})).unwrap();
        let layer = keys.build(Build::new("volume", &world, children)).await.unwrap();
        let node = Node::new("volume", "stripe", world, layer);
        for refused in [
            message(node.evacuate(names(&["b"])).await),
            message(command(&node, "resize", Value::Null).await),
        ] {
            assert!(refused.contains("[hierarchy] table"), "{refused}");
        }
        node.evacuate(names(&["c"])).await.unwrap();
        assert!(message(command(&node, "grow", Value::Null).await).contains("resize"));
    });
}

#[test]
fn a_volume_grows_with_its_devices() {
    for (volume, larger) in [(stripe(), 256 * KIB), (concat(), 192 * KIB)] {
        with_disks(|env| async move {
            let node = volume.open(&env, &["a", "b"], &[], Begin::Format).await.unwrap();
            let bytes = fill(&node).await;
            node.close().await.unwrap();
            for disk in ["a", "b"] {
                env.disk(disk).unwrap().resize(128 * KIB);
            }
            let node = volume.open(&env, &["a", "b"], &[], Begin::Open).await.unwrap();
            assert_eq!(node.geometry().size, larger);
            assert_eq!(read(&node, bytes.len()).await, bytes);
            // The rest of the first device is used on request.
            command(&node, "resize", Value::Null).await.unwrap();
            assert_eq!(node.geometry().size, 256 * KIB);
            assert_eq!(read(&node, bytes.len()).await, bytes);
            let bytes = fill(&node).await;
            assert_eq!(read(&node, bytes.len()).await, bytes);
        });
    }
}

/// A device that lets the first read that comes wait.
struct Sluggish {
    below: Rc<Node>,
    waits: Cell<bool>,
    waiting: Cell<bool>,
    go: Signal,
}

impl Layer for Sluggish {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let reads = io.op.kind() == lamina_block::OpKind::Read;
        if !reads || !self.waits.replace(false) {
            return Step::Forward(Rc::clone(&self.below));
        }
        self.waiting.set(true);
        let io = io.take();
        Step::control(async move {
            self.go.until(|| !self.waiting.get()).await;
            self.below.submit(io).await
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.below)
    }
}

impl Manage for Sluggish {}

/// Reads the last byte of a stripe from a device that is slow, while the stripe becomes narrower. Whether all was
/// moved meanwhile, and whether the read found what it should.
fn read_slowly() -> (bool, bool) {
    let result = Rc::new(Cell::new((false, false)));
    let told = Rc::clone(&result);
    with_disks(|env| async move {
        let children = ["a", "b", "c"].map(|name| child(&env, name));
        let node = stripe().over(&env, children.to_vec(), &[], Begin::Format).await.unwrap();
        command(&node, "resize", json!({ "size": "96KiB", "force": true })).await.unwrap();
        let bytes = fill(&node).await;
        node.close().await.unwrap();
        let slow = Rc::new(Sluggish {
            below: child(&env, "b"),
            waits: Cell::new(false),
            waiting: Cell::new(false),
            go: Signal::new(),
        });
        let b = Node::new("b", "slow", Rc::clone(&env) as _, Rc::clone(&slow) as _);
        let over = vec![child(&env, "a"), b, child(&env, "c")];
        let node = stripe().over(&env, over, &[], Begin::Open).await.unwrap();
        let evacuating = Rc::clone(&node);
        let evacuated = env.start(async move { evacuating.evacuate(names(&["c"])).await });
        while node.jobs().is_empty() {
            env.sleep(Duration::from_micros(1)).await;
        }
        node.jobs()[0].pause();
        // Unit 7 is in row 2 of b. When unit 5 has moved there, unit 7 has long been moved itself.
        slow.waits.set(true);
        let (reading, buf) = (Rc::clone(&node), Buf::zeroed(4096));
        let into = buf.clone();
        let read = env.start(async move { reading.submit(Io::read(7 * 4096, into)).await });
        env.sleep(Duration::from_millis(100)).await;
        assert!(slow.waiting.get(), "the read came to the device before the move did");
        node.jobs()[0].resume();
        env.sleep(Duration::from_secs(60)).await;
        let ended = node.jobs().is_empty();
        slow.waiting.set(false);
        slow.go.notify();
        read.ended().await.unwrap();
        evacuated.ended().await.unwrap();
        told.set((ended, buf.to_vec() == bytes[7 * 4096..][..4096]));
    });
    result.get()
}

#[test]
fn a_place_is_not_written_while_it_is_read() {
    assert_eq!(read_slowly(), (false, true));
    FLAW.set(Some("reads of the old place are not waited for"));
    let flawed = read_slowly();
    FLAW.set(None);
    assert_eq!(flawed, (true, false), "a mover that does not wait is noticed");
}

#[test]
fn holes_stay_holes() {
    with_disks(|env| async move {
        let memory = crate::testing::kind("memory");
        let mut children = Vec::new();
        for name in ["a", "b", "c"] {
            let world: Rc<dyn Env> = Rc::clone(&env) as _;
            let layer = memory.parse(&json!({ "size": "1MiB" })).unwrap();
            let layer = layer.build(Build::new(name, &world, Vec::new())).await.unwrap();
            children.push(Node::new(name, "memory", world, layer));
        }
        let node = concat().over(&env, children[..2].to_vec(), &[], Begin::Format).await.unwrap();
        let bytes = pattern(4096);
        let write = Io::write(1 << 20, Buf::from_vec(bytes.clone()), Durability::Cached);
        node.submit(write).await.unwrap();
        node.close().await.unwrap();
        let node = concat().over(&env, children.clone(), &["b"], Begin::Open).await.unwrap();
        node.evacuate(names(&["b"])).await.unwrap();
        let runs = children[2].extents(0..1 << 20).await.unwrap();
        // Memory is allocated in chunks of 64 KiB.
        let data: u64 = runs.iter().filter(|run| run.state == ExtentState::Data).map(|run| run.len).sum();
        assert_eq!(data, 64 * KIB);
        assert_eq!(read(&children[2], 4096).await, bytes);
    });
}
