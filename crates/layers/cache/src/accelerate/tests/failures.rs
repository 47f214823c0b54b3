//! A flash that fails under load, and comes back with what it had; and the power fails on the way. Nothing that was
//! acknowledged is ever missing but what was given up, and nothing old comes back.

use super::*;
use crate::testing::history::{BLOCK, Checked, History, told};
use futures_util::future::{join, join_all};
use lamina_block::{Begin, Build, Error};
use lamina_sim::{DiskOptions, Image, Images, Loss, Presence, SimEnv, SimKeep, Simulation};
use std::cell::RefCell;

/// Bytes of the volume, and how many of these workers write.
const SIZE: u64 = 256 << 10;
const BLOCKS: u64 = SIZE / BLOCK;
const FLASH: u64 = 2 << 20;
const WORKERS: u64 = 4;

struct Open {
    env: Rc<SimEnv>,
    node: Rc<Node>,
    flash: Rc<Node>,
    disk: Option<Rc<Node>>,
}

fn world(seed: u64) -> Simulation {
    let world = Simulation::new(seed);
    for (name, size) in [("store", SIZE), ("flash", FLASH)] {
        let mut options = DiskOptions::new(size);
        options.latency_max = Duration::from_micros(if name == "store" { 2000 } else { 100 });
        world.env().put_disk(name, Image::blank(options));
    }
    world
}

pub fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "simulated", Rc::clone(env) as _, env.disk(name).expect("it was put there"))
}

pub async fn layer(
    env: &Rc<SimEnv>,
    kind: Kind,
    name: &str,
    keys: Value,
    over: Vec<Rc<Node>>,
    begin: Begin,
) -> Result<Rc<Node>> {
    let (keep, _) = SimKeep::open(env, name).await?;
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let with = Build { keep: Some(keep), begin, ..Build::new(name, &world, over) };
    let layer = kind.parse(&keys).unwrap_or_else(|e| panic!("{}", e.message)).build(with).await?;
    Ok(Node::new(name, kind.name, world, layer))
}

async fn open_over(env: &Rc<SimEnv>, flash: Rc<Node>, policy: &str, begin: Begin) -> Result<Open> {
    let keys = json!({ "policy": policy, "store-timeout": "1s" });
    let over = vec![disk(env, "store"), Rc::clone(&flash)];
    let node = layer(env, Kind::of::<crate::accelerate::Keys>(), "vm", keys, over, begin).await?;
    Ok(Open { env: Rc::clone(env), node, flash, disk: None })
}

async fn open(env: &Rc<SimEnv>, policy: &str, begin: Begin) -> Result<Open> {
    let disk = disk(env, "flash");
    let over = vec![Rc::clone(&disk)];
    let flash = layer(env, Kind::of::<crate::flash::Keys>(), "cache", json!({}), over, begin).await?;
    Ok(Open { disk: Some(disk), ..open_over(env, flash, policy, begin).await? })
}

fn absent(env: &Rc<SimEnv>) -> Rc<Node> {
    Node::absent("cache", Rc::clone(env) as _, Error::offline("it was taken away"))
}

impl Open {
    async fn command(&self, name: &str, args: Value) -> Result<Value> {
        self.node.control(Command { name: name.into(), args }).await
    }

    fn set_flash(&self, here: bool) {
        let presence = if here { Presence::Here } else { Presence::Failing };
        self.env.disk("flash").expect("a disk").set_presence(presence);
    }

    async fn close(&self) -> Result<()> {
        let closed = self.node.close().await;
        closed.and(self.flash.close().await)
    }

    async fn write(&self, block: u64, value: u8) -> Result<()> {
        let data = Buf::from_vec(vec![value; 4096]);
        self.node.submit(Io::write(block * 4096, data, Durability::Cached)).await
    }

    async fn read(&self, block: u64) -> Result<u8> {
        let buf = Buf::zeroed(4096);
        self.node.submit(Io::read(block * 4096, buf.clone())).await?;
        let bytes = buf.to_vec();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is a mixture");
        Ok(bytes[0])
    }

    async fn all(&self) -> Result<Vec<u8>> {
        let buf = Buf::zeroed(SIZE as usize);
        self.node.submit(Io::read(0, buf.clone())).await?;
        Ok(buf.to_vec())
    }

    fn info(&self, key: &str) -> Value {
        self.node.info()[key].clone()
    }
}

/// What happens to the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// It vanishes under write-through, and is back after the device was closed.
    Vanishes,
    /// Its writes fail under write-through.
    Writes,
    /// It vanishes under write-through, and is attached again when it is back.
    Attached,
    /// It vanishes under write-back when the store has everything.
    Drained,
    /// It vanishes under write-back, and comes back.
    Returns,
    /// It vanishes under write-through while that is about to become write-back, and comes back.
    Switched,
}

const STORIES: [Story; 6] =
    [Story::Vanishes, Story::Writes, Story::Attached, Story::Drained, Story::Returns, Story::Switched];

impl Story {
    fn policy(self) -> &'static str {
        match self {
            Story::Vanishes | Story::Writes | Story::Attached | Story::Switched => "write-through",
            Story::Drained | Story::Returns => "write-back",
        }
    }
}

/// Writes, reads and flushes blocks of its own; `patient` if a request may fail as the device is stopped.
async fn work(history: Rc<History>, env: Rc<SimEnv>, node: Rc<Node>, n: u64, patient: bool) -> Checked {
    let own = |i: u64| i * WORKERS + n;
    for _ in 0..40 {
        let block = own(env.random() % (BLOCKS / WORKERS));
        let id = history.ids.get() + 1;
        history.ids.set(id);
        let done = match env.random() % 8 {
            0..=4 => history.write(&env, &node, block..block + 1, id, env.random().is_multiple_of(4)).await,
            5 => history.flush(&env, &node).await,
            _ => match history.read(&env, &node, block..block + 1, None).await {
                Err(e) if !patient => return Err(e),
                Err(e) if e.starts_with("block") => return Err(e),
                _ => Ok(()),
            },
        };
        match done {
            Err(e) if patient && e.kind() == ErrorKind::Offline => env.sleep(Duration::from_millis(5)).await,
            done => done.map_err(told("a request"))?,
        }
        env.sleep(Duration::from_micros(env.random() % 300)).await;
    }
    Ok(())
}

async fn tell(story: Story, open: &Open, history: &Rc<History>) -> Checked {
    let env = &open.env;
    let pause = || env.sleep(Duration::from_micros(1000 + env.random() % 6000));
    let workers = || {
        let start = |n: u64| {
            let (history, node) = (Rc::clone(history), Rc::clone(&open.node));
            let patient = matches!(story, Story::Returns | Story::Switched);
            env.start(work(history, Rc::clone(env), node, n, patient))
        };
        (0..WORKERS).map(start).collect::<Vec<_>>()
    };
    let first = workers();
    pause().await;
    if story == Story::Drained {
        for worker in first {
            worker.ended().await?;
        }
        open.command("drain", json!({})).await.map_err(told("drain"))?;
        open.set_flash(false);
        let more = workers();
        for worker in more {
            worker.ended().await?;
        }
        return Ok(());
    }
    match story {
        Story::Writes => {
            let before = env.disk_requests();
            env.set_fault(Some(Box::new(move |n, disk, io| {
                let strikes = n > before && disk == "flash" && matches!(io.op, lamina_block::Op::Write(..));
                strikes.then(|| Error::media("a simulated fault"))
            })));
        }
        _ => open.set_flash(false),
    }
    if story == Story::Switched {
        // All requests may have ended before.
        for _ in 0..1000 {
            if open.info("flash_trouble") != Value::Null {
                break;
            }
            env.sleep(Duration::from_micros(env.random() % 50)).await;
        }
        env.sleep(Duration::from_micros(env.random() % 3000)).await;
        // It fails when the flash has been left meanwhile.
        let _set = open.command("set-policy", json!({ "policy": "write-back" })).await;
    }
    pause().await;
    if matches!(story, Story::Attached | Story::Returns | Story::Switched) {
        open.set_flash(true);
    }
    if story == Story::Attached {
        env.sleep(Duration::from_millis(300)).await;
        open.command("set-policy", json!({ "policy": "write-back" })).await.map_err(told("attached"))?;
    }
    for worker in first {
        worker.ended().await?;
    }
    if matches!(story, Story::Attached | Story::Switched) {
        for worker in workers() {
            worker.ended().await?;
        }
    }
    Ok(())
}

struct Crash {
    at: u64,
    images: Images,
}

fn run(story: Story, seed: u64, one_in: u64) -> Checked {
    let world = world(seed);
    let env = world.env();
    let history = Rc::new(History::default());
    let crashes: Rc<RefCell<Vec<Crash>>> = Rc::default();
    let (here, into, main_env) = (Rc::clone(&history), Rc::clone(&crashes), Rc::clone(&env));
    let ended = world.run(async move {
        let (env, history) = (main_env, here);
        let first = open(&env, story.policy(), Begin::Format).await.map_err(told("made"))?;
        history.ids.set(1);
        history.write(&env, &first.node, 0..BLOCKS, 1, true).await.map_err(told("filled"))?;
        let (weak, random) = (Rc::downgrade(&env), RefCell::new(xorshift(seed * 2 + 1)));
        env.observe(Some(Rc::new(move || {
            let draw = || (random.borrow_mut())();
            let Some(env) = weak.upgrade().filter(|_| draw() % one_in == 0) else { return };
            let images = env.images(Loss::ALL[(draw() >> 8) as usize % 4], draw());
            into.borrow_mut().push(Crash { at: env.tick(), images });
        })));
        tell(story, &first, &history).await?;
        env.observe(None);
        if matches!(story, Story::Returns | Story::Switched) {
            env.sleep(Duration::from_secs(1)).await;
        }
        history.read(&env, &first.node, 0..BLOCKS, None).await?;
        // It may not be able to finish what it has on the flash.
        let _ = first.close().await;
        env.set_fault(None);
        first.set_flash(true);
        let again = open(&env, story.policy(), Begin::Open).await.map_err(told("opened again"))?;
        history.read(&env, &again.node, 0..BLOCKS, None).await?;
        again.close().await.map_err(told("closed"))
    });
    env.observe(None);
    env.set_fault(None);
    if let Some(finding) = env.take_finding() {
        return Err(finding);
    }
    ended.map_err(|hang| hang.to_string())??;
    crashes.take().iter().try_for_each(|crash| recover(story, &history, crash))
}

/// What is there after a power loss, the flash being there again.
fn recover(story: Story, history: &Rc<History>, crash: &Crash) -> Checked {
    let world = Simulation::from_images(crash.at, &crash.images);
    let (env, here, at) = (world.env(), Rc::clone(history), crash.at);
    let ended = world.run(async move {
        let open = open(&env, story.policy(), Begin::Open).await.map_err(told("opened"))?;
        here.read(&env, &open.node, 0..BLOCKS, Some(at)).await?;
        let before = open.all().await.map_err(told("a read"))?;
        env.sleep(Duration::from_secs(1)).await;
        match open.all().await.map_err(told("a read"))? == before {
            true => open.close().await.map_err(told("closed")),
            false => Err("something has changed".into()),
        }
    });
    let tell = |e: String| format!("after a power loss at tick {at}: {e}");
    ended.map_err(|hang| tell(hang.to_string()))?.map_err(tell)
}

fn seeds(default: u64) -> Range<u64> {
    let set = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match set("LAMINA_SEED") {
        Some(one) => one..one + 1,
        None => 0..set("LAMINA_SEEDS").unwrap_or(default),
    }
}

#[test]
fn the_flash_fails_under_load_and_the_power_fails() {
    for story in STORIES {
        for seed in seeds(4) {
            if let Err(e) = run(story, seed, if seed == 0 { 4 } else { 24 }) {
                panic!("{story:?} with seed {seed}: {e}");
            }
        }
    }
}

/// A device that leaves its flash without having said so finds old blocks on it when it is back; one whose policy says
/// again after that that the flash has acknowledged writes loses them; one that reads from the store whatever its flash
/// cannot read shows an older state.
#[test]
fn a_flash_that_comes_back_is_noticed() {
    for (flaw, story) in [
        ("flash comes back", Story::Vanishes),
        ("a policy that ignores the failing flash", Story::Switched),
        ("a flash that fails hides an older state", Story::Returns),
    ] {
        FLAW.set(Some(flaw));
        let caught = seeds(40).any(|seed| run(story, seed, 24).is_err());
        FLAW.set(None);
        assert!(caught, "nothing noticed {flaw}");
    }
}

fn simulate<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = world(3);
    world.run(test(world.env())).expect("it ends");
}

/// A device whose store is away, with so many blocks that only its flash has: block n has n + 1.
async fn dirty(env: &Rc<SimEnv>, blocks: &[u64]) -> Open {
    let open = open(env, "write-back", Begin::Format).await.expect("made");
    for block in blocks {
        open.write(*block, 100).await.expect("written");
    }
    open.command("drain", json!({})).await.expect("drained");
    env.disk("store").expect("a disk").set_presence(Presence::Failing);
    for block in blocks {
        open.write(*block, *block as u8 + 1).await.expect("written");
    }
    open.node.submit(Io::flush()).await.expect("flushed");
    open
}

#[test]
fn what_is_at_stake_stops_the_device_and_is_said() {
    simulate(|env| async move {
        let open = dirty(&env, &[0, 1, 7, 9, 10]).await;
        assert_eq!(open.info("lost"), Value::Null);
        let e = open.command("accept-loss", json!({})).await.expect_err("nothing has failed");
        assert_eq!(e.message(), "the flash works: nothing is lost");
        open.set_flash(false);
        env.sleep(Duration::from_secs(1)).await;
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        let lost = open.info("lost");
        assert_eq!((&lost["writes"], &lost["bytes"]), (&json!(5), &json!(5 * 4096)));
        let serials: Vec<u64> = serde_json::from_value(lost["serials"].clone()).expect("two numbers");
        assert_eq!(serials[1] - serials[0], 4);
        let range = |block: u64, blocks: u64| json!({ "start": block * 4096, "len": blocks * 4096 });
        assert_eq!(lost["ranges"], json!([range(0, 2), range(7, 1), range(9, 2)]));
        // The store has what is clean.
        assert_eq!([open.read(2).await, open.read(20).await], [Ok(0), Ok(0)]);
        for e in [
            open.read(7).await.expect_err("a read"),
            open.all().await.expect_err("a read of what is clean, too"),
            open.write(20, 1).await.expect_err("a write of what is clean"),
            open.write(0, 1).await.expect_err("a write"),
            open.node.submit(Io::flush()).await.expect_err("a flush"),
            open.node.submit(Io::discard(0..4096)).await.expect_err("a discard"),
        ] {
            assert_eq!(e.kind(), ErrorKind::Offline);
            let said = ["5 writes", "20480 bytes", "0..8192, 28672..32768", "lamina ctl vm accept-loss"];
            assert!(said.iter().all(|said| e.message().contains(said)), "{e}");
        }
        for verb in ["drain", "set-policy"] {
            let args = if verb == "drain" { json!({}) } else { json!({ "policy": "uncached" }) };
            open.command(verb, args).await.expect_err(verb);
        }
        // It goes on by itself.
        open.set_flash(true);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(open.info("lost"), Value::Null);
        for block in [0, 1, 7, 9, 10] {
            assert_eq!(open.read(block).await.expect("read"), block as u8 + 1);
        }
    });
}

/// One that destages late has no reason of its own to try the flash again.
#[test]
fn a_device_that_destages_late_goes_on_by_itself_too() {
    simulate(|env| async move {
        let lazy = open(&env, "write-back", Begin::Format).await.expect("made");
        lazy.close().await.expect("closed");
        let keys = json!({ "destage": "late", "store-timeout": "1s" });
        let disk = disk(&env, "flash");
        let kinds = (Kind::of::<crate::flash::Keys>(), Kind::of::<crate::accelerate::Keys>());
        let flash = layer(&env, kinds.0, "cache", json!({}), vec![Rc::clone(&disk)], Begin::Open).await;
        let flash = flash.expect("opened");
        let over = vec![self::disk(&env, "store"), Rc::clone(&flash)];
        let node = layer(&env, kinds.1, "vm", keys, over, Begin::Open).await.expect("opened");
        let lazy = Open { env: Rc::clone(&env), node, flash, disk: Some(disk) };
        for block in 0..5 {
            lazy.write(block, block as u8 + 1).await.expect("written");
        }
        env.sleep(Duration::from_secs(2)).await;
        lazy.set_flash(false);
        lazy.read(0).await.expect_err("only the flash has it");
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!((lazy.info("lost")["writes"].clone(), lazy.read(20).await), (json!(5), Ok(0)));
        lazy.set_flash(true);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(lazy.info("lost"), Value::Null);
        lazy.write(7, 7).await.expect("written");
        assert_eq!(lazy.read(4).await, Ok(5));
    });
}

#[test]
fn after_a_loss_that_was_accepted_the_store_is_what_there_is() {
    simulate(|env| async move {
        let open = dirty(&env, &[0, 1, 7]).await;
        open.set_flash(false);
        env.sleep(Duration::from_secs(1)).await;
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        let lost = open.command("accept-loss", json!({})).await.expect("accepted")["lost"].clone();
        assert_eq!((&lost["writes"], &lost["bytes"]), (&json!(3), &json!(3 * 4096)));
        assert_eq!((open.info("policy"), open.info("lost")), (json!("uncached"), Value::Null));
        assert!(open.info("flash_trouble").as_str().is_some_and(|why| why.contains("vanished")));
        open.command("accept-loss", json!({})).await.expect_err("once");
        for block in [0, 1, 7] {
            assert_eq!(open.read(block).await.expect("read"), 100);
        }
        open.write(1, 50).await.expect("written");
        // The flash comes back, with what was given up.
        open.set_flash(true);
        env.sleep(Duration::from_secs(1)).await;
        let both = |open: &Open| (open.info("policy"), open.info("flash_trouble"));
        assert_eq!([open.read(0).await, open.read(1).await], [Ok(100), Ok(50)]);
        open.command("set-policy", json!({ "policy": "write-back" })).await.expect("attached");
        assert_eq!(both(&open), (json!("write-back"), Value::Null));
        assert_eq!([open.read(0).await, open.read(1).await], [Ok(100), Ok(50)]);
        open.write(0, 51).await.expect("written");
        open.close().await.expect("closed");
        let again = super::failures::open(&env, "write-back", Begin::Open).await.expect("opened");
        assert_eq!([again.read(0).await, again.read(1).await], [Ok(51), Ok(50)]);
        assert_eq!(again.flash.info()["volumes"].as_array().map(Vec::len), Some(1));
    });
}

/// What can still be read is not given up.
#[test]
fn a_loss_is_no_larger_than_it_has_to_be() {
    simulate(|env| async move {
        let open = dirty(&env, &[0, 1, 2, 7]).await;
        // One block cannot be read, neither by itself nor with others.
        let (tries, bad) = (Rc::new(RefCell::new(Vec::new())), Rc::new(std::cell::Cell::new(None)));
        let (into, at) = (Rc::clone(&tries), Rc::clone(&bad));
        env.set_fault(Some(Box::new(move |_, disk, io| {
            let is_read = disk == "flash" && matches!(io.op, lamina_block::Op::Read(_));
            if !is_read {
                return None;
            }
            into.borrow_mut().push(io.at.clone());
            let place = at.get().unwrap_or(io.at.start);
            at.set(Some(place));
            io.at.contains(&place).then(|| Error::media("a simulated fault"))
        })));
        assert_eq!(open.read(1).await.expect_err("unreadable").kind(), ErrorKind::Media);
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!((open.info("lost"), open.info("bad_bytes")), (Value::Null, json!(4096)), "it goes on");
        let lost = open.command("accept-loss", json!({})).await.expect("accepted")["lost"].clone();
        assert_eq!((&lost["writes"], &lost["bytes"]), (&json!(1), &json!(4096)));
        assert_eq!(lost["ranges"], json!([{ "start": 4096, "len": 4096 }]));
        let found = [open.read(0).await, open.read(1).await, open.read(2).await, open.read(7).await];
        assert_eq!(found, [Ok(1), Ok(100), Ok(3), Ok(8)]);
    });
}

/// At any moment of it, what was acknowledged is there, or what was given up is gone for good.
#[test]
fn the_power_fails_while_a_loss_is_accepted() {
    let crashes: Rc<RefCell<Vec<Images>>> = Rc::default();
    let into = Rc::clone(&crashes);
    simulate(|env| async move {
        let open = dirty(&env, &[0, 1, 7]).await;
        open.set_flash(false);
        env.sleep(Duration::from_secs(1)).await;
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        let (weak, number) = (Rc::downgrade(&env), std::cell::Cell::new(0));
        env.observe(Some(Rc::new(move || {
            number.set(number.get() + 1);
            let Some(env) = weak.upgrade() else { return };
            into.borrow_mut().push(env.images(Loss::ALL[number.get() as usize % 4], number.get()));
        })));
        open.command("accept-loss", json!({})).await.expect("accepted");
        for block in [0, 1, 7] {
            open.write(block, 60).await.expect("written");
        }
        env.observe(None);
    });
    assert!(crashes.borrow().len() > 3);
    for images in crashes.take() {
        let world = Simulation::from_images(1, &images);
        let env = world.env();
        let run = async move {
            let open = open(&env, "write-back", Begin::Open).await.expect("opened");
            let all = open.all().await.expect("read");
            let mut kept = 0;
            for (block, value) in [(0, 1), (1, 2), (7, 8)] {
                for sector in all[block * 4096..(block + 1) * 4096].chunks(512) {
                    assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is a mixture");
                    kept += u32::from(sector[0] == value);
                    assert!([value, 100, 60].contains(&sector[0]), "block {block} has {}", sector[0]);
                }
            }
            assert!([0, 24].contains(&kept), "{kept} sectors were kept");
        };
        world.run(run).expect("it ends");
    }
}

/// It comes back after a power loss of its own, without what was not durable there: that is no reason to go on.
#[test]
fn a_flash_that_has_lost_something_is_not_used_again() {
    simulate(|env| async move {
        let open = dirty(&env, &[0, 1]).await;
        open.write(7, 8).await.expect("written");
        open.set_flash(false);
        env.sleep(Duration::from_secs(1)).await;
        let held = open.disk.as_ref().expect("a disk").quiesce().await;
        let image = env.disk("flash").expect("a disk").image(Loss::All, 1);
        drop(held.replace("simulated", env.put_disk("flash", image)));
        drop(held);
        env.sleep(Duration::from_secs(2)).await;
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        env.sleep(Duration::from_secs(2)).await;
        open.read(0).await.expect_err("stopped");
        let lost = open.command("accept-loss", json!({})).await.expect("accepted")["lost"].clone();
        assert_eq!(lost["ranges"], json!([{ "start": 7 * 4096, "len": 4096 }]));
        assert_eq!([open.read(0).await, open.read(1).await, open.read(7).await], [Ok(1), Ok(2), Ok(0)]);
    });
}

#[test]
fn without_its_flash_a_device_that_owes_something_is_stopped() {
    simulate(|env| async move {
        let open = dirty(&env, &[0]).await;
        open.close().await.expect("closed");
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        let without = open_over(&env, absent(&env), "write-through", Begin::Open).await.expect("opened");
        let e = without.read(0).await.expect_err("stopped");
        assert!(e.message().contains("not known") && e.message().contains("accept-loss"), "{e}");
        assert_eq!(without.info("lost"), json!({ "unknown": true }));
        without.close().await.expect_err("it is said again");
        // With it nothing was lost.
        let again = super::failures::open(&env, "write-back", Begin::Open).await.expect("opened");
        assert_eq!(again.read(0).await, Ok(1));
        again.write(0, 2).await.expect("written");
        env.disk("store").expect("a disk").set_presence(Presence::Failing);
        again.write(0, 3).await.expect("written");
        again.close().await.expect("closed");
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        let without = open_over(&env, absent(&env), "write-back", Begin::Open).await.expect("opened");
        let lost = without.command("accept-loss", json!({})).await.expect("accepted");
        assert_eq!(lost, json!({ "lost": { "unknown": true } }));
        let found = without.read(0).await.expect("read");
        without.write(1, 9).await.expect("written");
        without.command("set-policy", json!({ "policy": "write-back" })).await.expect_err("no flash");
        without.close().await.expect("closed");
        let last = super::failures::open(&env, "write-back", Begin::Open).await.expect("opened");
        assert_eq!([last.read(0).await, last.read(1).await], [Ok(found), Ok(9)]);
        assert_eq!(last.info("policy"), "write-back");
    });
}

#[test]
fn without_its_flash_a_device_that_owes_nothing_goes_on() {
    simulate(|env| async move {
        for policy in ["write-through", "write-back"] {
            let begin = if policy == "write-through" { Begin::Format } else { Begin::Open };
            let open = open(&env, policy, begin).await.expect("opened");
            open.write(0, 1).await.expect("written");
            open.command("drain", json!({})).await.expect("drained");
            open.close().await.expect("closed");
            let without = open_over(&env, absent(&env), policy, Begin::Open).await.expect("opened");
            assert_eq!(without.info("policy"), "uncached");
            assert_eq!(without.read(0).await, Ok(1));
            without.write(0, 2).await.expect("written");
            without.close().await.expect("closed");
            let again = super::failures::open(&env, policy, Begin::Open).await.expect("opened");
            assert_eq!((again.read(0).await, again.info("policy")), (Ok(2), json!(policy)));
            again.close().await.expect("closed");
        }
    });
}

/// Its superblock is damaged: the cache is there, and of no use.
#[test]
fn a_damaged_flash_is_as_good_as_none() {
    simulate(|env| async move {
        let open = dirty(&env, &[0]).await;
        open.close().await.expect("closed");
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        let zeroes = Buf::zeroed(4096);
        disk(&env, "flash").submit(Io::write(0, zeroes, Durability::Fua)).await.expect("written");
        let open = super::failures::open(&env, "write-back", Begin::Open).await.expect("opened");
        assert!(open.flash.info()["failed"].is_string());
        open.read(0).await.expect_err("stopped");
        open.command("accept-loss", json!({})).await.expect("accepted");
        assert_eq!(open.read(0).await, Ok(100));
    });
}

#[test]
fn a_clean_block_that_cannot_be_read_is_read_from_the_store() {
    simulate(|env| async move {
        let open = open(&env, "write-back", Begin::Format).await.expect("made");
        open.write(0, 1).await.expect("written");
        open.command("drain", json!({})).await.expect("drained");
        env.set_fault(Some(Box::new(|_, disk, io| {
            let is_read = disk == "flash" && matches!(io.op, lamina_block::Op::Read(_));
            is_read.then(|| Error::media("a simulated fault"))
        })));
        assert_eq!(open.read(0).await, Ok(1));
        assert_eq!(open.info("unreadable_bytes"), 4096);
        assert_eq!(open.info("policy"), "write-back");
    });
}

#[test]
fn a_write_is_answered_when_the_store_has_it_also_while_the_flash_is_left() {
    for seed in 0..200 {
        let (world, after) = (world(seed), Duration::from_micros(seed * 25));
        let env = world.env();
        let story = async move {
            let open = open(&env, "write-through", Begin::Format).await.expect("made");
            let store = disk(&env, "store");
            let write = async |block: u64| {
                for value in 1..5 {
                    open.write(block, value).await.expect("written");
                    let buf = Buf::zeroed(4096);
                    store.submit(Io::read(block * 4096, buf.clone())).await.expect("read");
                    assert_eq!(buf.to_vec(), [value; 4096], "block {block}, seed {seed}");
                }
            };
            let vanish = async {
                env.sleep(after).await;
                open.set_flash(false);
            };
            join(join_all((0..16).map(write)), vanish).await;
        };
        world.run(story).expect("it ends");
    }
}

#[test]
fn a_write_waits_for_room_no_longer_than_the_store_may_be_away() {
    simulate(|env| async move {
        let open = open(&env, "write-back", Begin::Format).await.expect("made");
        let store = env.disk("store").expect("a disk");
        store.set_presence(Presence::Failing);
        const LAST: usize = SIZE as usize / 4096 - 1;
        // In each segment some block is dirty, though few are in all.
        let (mut acknowledged, mut n) = ([0; LAST + 1], 0);
        let (block, began, e) = loop {
            let block = if n % 4 == 0 { n / 4 % LAST } else { LAST };
            let began = env.now();
            match open.write(block as u64, (n % 250) as u8).await {
                Ok(()) => acknowledged[block] = (n % 250) as u8,
                Err(e) => break (block as u64, began, e),
            }
            n += 1;
        };
        assert_eq!(e.kind(), lamina_block::ErrorKind::Offline, "{e}");
        assert!(e.to_string().contains("store"), "{e}");
        let waited = env.now().since(began);
        assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(2), "{waited:?}");
        let discard = open.node.submit(Io::discard(SIZE - 4096..SIZE)).await;
        assert_eq!(discard, Ok(()), "what is dirty stays as it is");
        store.set_presence(Presence::Here);
        open.write(block, 251).await.expect("written when the store is back");
        acknowledged[block as usize] = 251;
        for (block, value) in acknowledged.iter().enumerate() {
            assert_eq!(open.read(block as u64).await, Ok(*value), "block {block}");
        }
    });
}

#[test]
fn a_store_that_is_too_large_is_refused() {
    let world = Simulation::new(1);
    for (name, size) in [("store", 4 << 50), ("flash", FLASH)] {
        world.env().put_disk(name, Image::blank(DiskOptions::new(size)));
    }
    let env = world.env();
    world
        .run(async move {
            let e = open(&env, "write-back", Begin::Format).await.err().expect("refused");
            assert!(e.to_string().contains("above 4 PiB"), "{e}");
        })
        .expect("it ends");
}

#[test]
fn a_volume_that_nobody_uses_is_forgotten() {
    simulate(|env| async move {
        let first = dirty(&env, &[0, 1]).await;
        let uuid = first.flash.info()["volumes"][0]["uuid"].clone();
        let forget = |args: Value| first.flash.control(Command { name: "forget".into(), args });
        let e = forget(json!({ "uuid": uuid })).await.expect_err("open");
        assert!(e.message().contains("open"), "{e}");
        first.node.close().await.expect("closed");
        let e = forget(json!({ "uuid": uuid })).await.expect_err("dirty");
        assert!(e.message().contains("8192 bytes"), "{e}");
        forget(json!({ "uuid": "12" })).await.expect_err("unknown");
        let told = forget(json!({ "uuid": uuid, "accept-loss": true })).await.expect("forgotten");
        assert_eq!((&told["bytes"], &told["lost_bytes"]), (&json!(8192), &json!(8192)));
        assert_eq!(first.flash.info()["volumes"], json!([]));
        // Another volume gets the number, and none of the blocks, also after a crash.
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        let cache = Rc::clone(&first.flash);
        let second = open_over(&env, cache, "write-back", Begin::Format).await.expect("made");
        assert_eq!([second.read(0).await, second.read(1).await], [Ok(100), Ok(100)]);
        second.write(1, 5).await.expect("written");
        second.node.submit(Io::flush()).await.expect("flushed");
        let world = Simulation::from_images(1, &env.images(Loss::All, 1));
        let env = world.env();
        let run = async move {
            let open = super::failures::open(&env, "write-back", Begin::Open).await.expect("opened");
            assert_eq!([open.read(0).await, open.read(1).await], [Ok(100), Ok(5)]);
            assert_eq!(open.flash.info()["volumes"].as_array().map(Vec::len), Some(1));
        };
        world.run(run).expect("it ends");
    });
}
