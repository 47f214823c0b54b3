//! Devices grow below a mirror and a parity, under load; and the power fails before changes of any disk on
//! the way. The size is the old or the new one, nothing that was acknowledged is missing, and what is new is
//! the same on all legs.

use crate::mirror::tests::{DISK, Open, SIZE, bytes_of, child, world as small_world};
use crate::testing::history::work;
use crate::testing::history::{BLOCK, Checked, History, told};
use crate::testing::*;
use lamina_block::{Begin, Build};
use lamina_kit::flaw::FLAW;
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, SimKeep, Simulation};
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// The growth of each disk.
const MORE: u64 = 192 << 10;

/// A device with legs.
#[derive(Clone, Copy, Debug)]
struct How {
    kind: &'static str,
    over: &'static [&'static str],
    /// So many may be lost.
    survives: usize,
}

const HOWS: [How; 4] = [
    How { kind: "mirror", over: &["a", "b"], survives: 1 },
    How { kind: "mirror", over: &["a", "b", "c"], survives: 1 },
    How { kind: "parity", over: &["a", "b", "c"], survives: 1 },
    How { kind: "parity", over: &["a", "b", "c", "d", "e"], survives: 2 },
];

impl How {
    /// So many bytes of data there are for each byte of a leg.
    fn data(&self) -> u64 {
        if self.kind == "mirror" { 1 } else { (self.over.len() - self.survives) as u64 }
    }

    fn keys(&self) -> Value {
        match self.kind {
            "mirror" => {
                json!({ "region": "16KiB", "leg-timeout": "1h", "spares": self.over.len() - 1 - self.survives })
            }
            _ => json!({ "region": "16KiB", "leg-timeout": "1h", "unit": "4KiB", "parity": self.survives }),
        }
    }

    async fn open(&self, env: &Rc<SimEnv>, begin: Begin) -> Result<Open> {
        let legs: Vec<_> = self.over.iter().map(|name| child(env, name)).collect();
        let (keep, _) = SimKeep::open(env, self.kind).await?;
        let world: Rc<dyn Env> = Rc::clone(env) as _;
        let with = Build { keep: Some(keep), begin, ..Build::new(self.kind, &world, legs.clone()) };
        let kind = crate::testing::kind(self.kind);
        let layer = kind.parse(&self.keys()).unwrap_or_else(|e| panic!("{}", e.message)).build(with).await?;
        Ok(Open { env: Rc::clone(env), node: Node::new(self.kind, kind.name, world, layer), legs })
    }

    fn world(&self, seed: u64) -> Simulation {
        let world = small_world(seed);
        for (n, name) in self.over.iter().enumerate().skip(3) {
            let mut options = DiskOptions::new(DISK + 4096 * n as u64);
            options.geometry.zero = seed.is_multiple_of(3);
            options.junk = Some(0xF000_0000 + n as u32);
            world.env().put_disk(*name, Image::blank(options));
        }
        world
    }
}

impl Open {
    fn size(&self) -> u64 {
        self.node.geometry().size
    }

    /// The disks have so many bytes more.
    fn enlarge(&self, more: u64) {
        for leg in &self.legs {
            self.env.disk(leg.name()).expect("a disk").resize(leg.geometry().size + more);
            leg.refresh();
        }
    }

    async fn grow(&self) -> Result<Value> {
        self.command("grow", json!({})).await
    }

    /// The bytes of all legs in sync agree, up to the end.
    async fn agrees(&self) -> Checked {
        let used = self.node.info()["size"].as_u64().expect("a number");
        if self.node.kind() == "mirror" {
            let mut copies = Vec::new();
            for (leg, _) in self.legs.iter().zip(self.roles()).filter(|(_, role)| role == "in sync") {
                copies.push(bytes_of(leg, 0..used).await);
            }
            return match copies.windows(2).all(|pair| pair[0] == pair[1]) {
                true => Ok(()),
                false => Err("the legs differ".into()),
            };
        }
        self.command("scrub", json!({})).await.map_err(told("scrub"))?;
        self.until("the end of the scrub", |open| open.node.jobs().is_empty()).await;
        match self.found("different") {
            0 => Ok(()),
            n => Err(format!("{n} stripes have another parity")),
        }
    }
}

/// Runs `test` for each kind, with disks that zero quickly (seed 3) or do not.
fn each<F: Future<Output = ()> + 'static>(test: impl Fn(How, Rc<SimEnv>) -> F + Copy + 'static) {
    for how in HOWS {
        for seed in [3, 4] {
            let world = how.world(seed);
            world.run(test(how, world.env())).unwrap_or_else(|hang| panic!("{how:?}: {hang}"));
        }
    }
}

#[test]
fn it_grows_with_the_smallest_and_what_was_there_stays() {
    each(|how, env| async move {
        let open = how.open(&env, Begin::Format).await.expect("made");
        let (before, bytes) = (open.size(), pattern(open.size() as usize));
        let write = |at, bytes: &[u8]| Io::write(at, Buf::from_vec(bytes.to_vec()), Durability::Cached);
        open.node.submit(write(0, &bytes)).await.expect("written");
        open.grow().await.expect("nothing is larger");
        assert_eq!(open.size(), before);
        let resized = open.node.resized();
        open.enlarge(MORE);
        open.grow().await.expect("it grows");
        resized.await;
        assert_eq!(open.size(), before + how.data() * MORE);
        assert_eq!(bytes_of(&open.node, 0..before).await, bytes);
        if open.legs.iter().all(|leg| leg.geometry().zero) {
            assert_eq!(open.node.info()["needs_resync_bytes"], json!(0), "{how:?}");
            assert!(bytes_of(&open.node, before..open.size()).await.iter().all(|byte| *byte == 0));
        }
        let more = pattern((how.data() * MORE) as usize);
        open.node.submit(write(before, &more)).await.expect("written");
        open.whole().await;
        open.agrees().await.expect("the same everywhere");
        // A part of a block is not enough for anything.
        open.enlarge(2048);
        open.grow().await.expect("it is asked");
        assert_eq!(open.size(), before + how.data() * MORE);
        open.node.close().await.expect("closed");
        let open = how.open(&env, Begin::Open).await.expect("opened");
        assert_eq!(open.size(), before + how.data() * MORE);
        assert_eq!(open.node.info()["needs_resync_bytes"], json!(0));
        open.command("fail", json!({"leg": "a"})).await.expect("it can be done without");
        assert_eq!(bytes_of(&open.node, 0..before).await, bytes);
        assert_eq!(bytes_of(&open.node, before..open.size()).await, more);
        open.node.close().await.expect("closed");
    });
}

#[test]
fn it_does_not_grow_while_a_leg_is_stale() {
    each(|how, env| async move {
        let open = how.open(&env, Begin::Format).await.expect("made");
        open.whole().await;
        let before = open.size();
        open.enlarge(MORE);
        open.command("fail", json!({"leg": "b"})).await.expect("failed");
        open.whole().await;
        let why = open.grow().await.expect_err("it grew").to_string();
        assert!(why.contains("b has failed: let it rejoin"), "{why}");
        assert_eq!(open.size(), before);
        open.command("rejoin", json!({"leg": "b"})).await.expect("it rejoins");
        open.whole().await;
        open.grow().await.expect("it grows");
        assert!(open.size() > before);
        open.node.close().await.expect("closed");
    });
}

#[test]
fn the_smallest_rules_and_spares_count() {
    each(|how, env| async move {
        let open = how.open(&env, Begin::Format).await.expect("made");
        let before = open.size();
        let (last, others) = open.legs.split_last().expect("legs");
        for leg in others {
            env.disk(leg.name()).expect("a disk").resize(leg.geometry().size + MORE);
            leg.refresh();
        }
        open.grow().await.expect("it is asked");
        let by = how.data() * (last.geometry().size - DISK);
        assert_eq!(open.size(), before + by, "{} was that much larger", last.name());
        open.node.close().await.expect("closed");
    });
}

struct Crash {
    at: u64,
    images: Images,
}

/// The events, and their times.
#[derive(Default)]
struct Story {
    history: Rc<History>,
    /// When the command to grow had ended, and when all of what is new was written.
    grown: Cell<u64>,
    filled: Cell<u64>,
}

impl Story {
    /// After a power loss at `crash`, or now.
    async fn verify(&self, how: How, open: &Open, sizes: &[u64; 2], crash: Option<u64>) -> Checked {
        let now = crash.unwrap_or(u64::MAX);
        let size = open.size();
        if !sizes.contains(&size) || (size == sizes[0] && self.grown.get() < now) {
            return Err(format!("it has {size} bytes, and was to have {sizes:?}"));
        }
        let filled = self.filled.get() < now;
        let read = async || {
            self.history.read(&open.env, &open.node, 0..SIZE / BLOCK / 24 * 24, crash).await?;
            match filled {
                true => {
                    let new = sizes[0] / BLOCK..sizes[1] / BLOCK;
                    self.history.read(&open.env, &open.node, new, crash).await
                }
                false => Ok(()),
            }
        };
        read().await?;
        let blank = self.grown.get() >= now && open.legs.iter().all(|leg| leg.geometry().zero);
        // A region that needs a resync needs one in the larger size as well.
        open.enlarge(MORE.saturating_sub(open.legs[0].geometry().size - DISK));
        open.grow().await.map_err(told("grow after a power loss"))?;
        if open.size() != sizes[1] {
            return Err(format!("it has {} bytes after growing", open.size()));
        }
        // No write there before the power failed.
        if blank && bytes_of(&open.node, sizes[0]..sizes[1]).await.iter().any(|byte| *byte != 0) {
            return Err("what is new is not zeroed".into());
        }
        open.env.sleep(Duration::from_secs(2)).await;
        open.whole().await;
        open.agrees().await?;
        // A leg that is said to have failed stays so, and is none that grows.
        open.env.observe(None);
        for name in &how.over[..how.survives] {
            open.command("fail", json!({ "leg": name })).await.map_err(told("fail"))?;
        }
        read().await?;
        open.node.close().await.map_err(told("close"))
    }
}

/// Observes `env`, and takes some of its moments as power losses, `most` of them.
fn observe(env: &Rc<SimEnv>, seed: u64, one_in: u64, most: usize) -> Rc<RefCell<Vec<Crash>>> {
    let crashes: Rc<RefCell<Vec<Crash>>> = Rc::default();
    let (weak, random, into) = (Rc::downgrade(env), RefCell::new(xorshift(seed)), Rc::clone(&crashes));
    env.observe(Some(Rc::new(move || {
        let draw = || (random.borrow_mut())();
        let Some(env) = weak.upgrade().filter(|_| draw() % one_in == 0 && into.borrow().len() < most) else {
            return;
        };
        let images = env.images(Loss::ALL[(draw() >> 8) as usize % 4], draw());
        into.borrow_mut().push(Crash { at: env.tick(), images });
    })));
    crashes
}

/// It grows under load, with a power loss before one in `one_in` changes of a disk.
fn run(how: How, seed: u64, one_in: u64) -> Checked {
    let world = how.world(seed);
    let env = world.env();
    let story = Rc::new(Story::default());
    story.grown.set(u64::MAX);
    story.filled.set(u64::MAX);
    let sizes: Rc<Cell<[u64; 2]>> = Rc::default();
    let crashes: Rc<RefCell<Vec<Crash>>> = Rc::default();
    let (here, into, main_env, measured) =
        (Rc::clone(&story), Rc::clone(&crashes), Rc::clone(&env), Rc::clone(&sizes));
    let ended = world.run(async move {
        let (env, story) = (main_env, here);
        let open = how.open(&env, Begin::Format).await.map_err(told("made"))?;
        crate::mirror::tests::fill(&story.history, &open).await;
        let both = [open.size(), open.size() + how.data() * MORE];
        measured.set(both);
        let observed = observe(&env, seed * 2 + 1, one_in, usize::MAX);
        let history = Rc::clone(&story.history);
        let start = |n: u64| {
            let (history, node) = (Rc::clone(&history), Rc::clone(&open.node));
            env.start(work(history, Rc::clone(&env), node, n, 20, false))
        };
        let workers: Vec<_> = (0..3).map(start).collect();
        env.sleep(Duration::from_micros(2000 + env.random() % 8000)).await;
        open.enlarge(MORE);
        open.grow().await.map_err(told("grow"))?;
        story.grown.set(env.tick());
        for block in (both[0] / BLOCK..both[1] / BLOCK).step_by(8) {
            history.write(&env, &open.node, block..block + 8, 1, false).await.map_err(told("fill"))?;
        }
        history.flush(&env, &open.node).await.map_err(told("flush"))?;
        story.filled.set(env.tick());
        for worker in workers {
            worker.ended().await?;
        }
        env.observe(None);
        into.replace(observed.take());
        story.verify(how, &open, &both, None).await
    });
    env.observe(None);
    if let Some(finding) = env.take_finding() {
        return Err(finding);
    }
    ended.map_err(|hang| hang.to_string())??;
    for crash in crashes.take() {
        recover(how, seed, &story, &sizes.get(), &crash, true)?;
    }
    Ok(())
}

/// The state after a power loss, and after another one while it grows as soon as it is opened.
fn recover(how: How, seed: u64, story: &Rc<Story>, sizes: &[u64; 2], crash: &Crash, again: bool) -> Checked {
    let world = Simulation::from_images(seed ^ crash.at, &crash.images);
    let env = world.env();
    let crashes = observe(&env, crash.at * 2 + 1, 20, if again { 3 } else { 0 });
    let (story_here, at, sizes_here, main_env) = (Rc::clone(story), crash.at, *sizes, Rc::clone(&env));
    let ended = world.run(async move {
        let open = how.open(&main_env, Begin::Open).await.map_err(told("opened"))?;
        story_here.verify(how, &open, &sizes_here, Some(at)).await
    });
    env.observe(None);
    let tell = |e: String| format!("after a power loss at tick {}: {e}", crash.at);
    ended.map_err(|hang| tell(hang.to_string()))?.map_err(tell)?;
    for next in crashes.take() {
        let next = Crash { at: crash.at, images: next.images };
        recover(how, seed, story, sizes, &next, false).map_err(|e| format!("again, {e}"))?;
    }
    Ok(())
}

#[test]
fn the_power_fails_while_it_grows() {
    for how in HOWS {
        for seed in 0..4 {
            if let Err(e) = run(how, seed, if seed == 1 { 6 } else { 24 }) {
                panic!("{how:?} with seed {seed}: {e}");
            }
        }
    }
}

#[test]
fn canaries() {
    let first = || {
        HOWS.iter().flat_map(|how| (1..4).map(move |seed| (*how, seed))).find_map(|(how, seed)| {
            let ran = std::panic::catch_unwind(|| run(how, seed, 16));
            ran.unwrap_or_else(|_| Err("it panicked".into())).err()
        })
    };
    for flaw in
        ["what is new is not marked", "what needs a resync is forgotten", "zeroing is not taken up again"]
    {
        FLAW.set(Some(flaw));
        let caught = first();
        FLAW.set(None);
        assert!(caught.is_some(), "{flaw} is not caught");
    }
}
