//! Devices fail, vanish, lose power, are replaced, all under load; and the power fails before changes of any
//! disk on the way, perhaps for good on one of them. Nothing that was acknowledged is ever missing, and
//! nothing is ever guessed.

use super::*;
use lamina_block::Error;
use lamina_sim::Images;
use std::cell::RefCell;

/// Events of a parity of a, b, c (and d) under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// Nothing.
    Quiet,
    /// b vanishes and comes back.
    Vanishes,
    /// b loses power and comes back without what it had not flushed.
    LosesPower,
    /// A write to b fails, and b rejoins.
    Fails,
    /// b is told to fail, the spare takes over, and then a fails.
    Spare,
    /// b is missing all the time, also after the power has failed.
    Missing,
    /// As missing, and so many write to few stripes that the journal is full.
    Crowded,
    /// As crowded; with two parities also c is missing after the power has failed, and comes back.
    Twice,
    /// b is gone after the power has failed.
    Lost,
}

pub const STORIES: [Story; 9] = [
    Story::Quiet,
    Story::Vanishes,
    Story::LosesPower,
    Story::Fails,
    Story::Spare,
    Story::Missing,
    Story::Crowded,
    Story::Twice,
    Story::Lost,
];

/// Blocks that are written and read: 512 bytes each.
const BLOCKS: u64 = crate::mirror::tests::SIZE / 512 / 24 * 24;

#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub story: Story,
    pub parity: usize,
    pub seed: u64,
    /// The power fails before one in so many changes of a disk.
    pub one_in: u64,
}

impl Run {
    /// True if b is not there from the beginning on.
    fn is_missing(&self) -> bool {
        matches!(self.story, Story::Missing | Story::Crowded | Story::Twice)
    }

    fn is_crowded(&self) -> bool {
        matches!(self.story, Story::Crowded | Story::Twice)
    }

    /// The devices that are absent after the power has failed.
    fn without(&self) -> &'static [&'static str] {
        match self.story {
            Story::Twice if self.parity == 2 => &["b", "c"],
            Story::Missing | Story::Crowded | Story::Twice | Story::Lost => &["b"],
            Story::Quiet | Story::Vanishes | Story::LosesPower | Story::Fails | Story::Spare => &[],
        }
    }

    fn keys(&self) -> Value {
        let spares = if self.story == Story::Spare { 1 } else { 0 };
        // As long as what is remembered of a device that is away, or longer.
        let unit = if self.seed.is_multiple_of(2) { "4KiB" } else { "16KiB" };
        json!({ "unit": unit, "region": "16KiB", "leg-timeout": "1h", "spares": spares, "parity": self.parity })
    }

    fn over(&self) -> Vec<&'static str> {
        let count = self.parity + 2 + usize::from(self.story == Story::Spare);
        ["a", "b", "c", "d", "e"][..count].to_vec()
    }

    async fn open(&self, env: &Rc<SimEnv>, begin: Begin, without: &[&str]) -> Result<Open> {
        let leg = |name: &&str| if without.contains(name) { absent(env, name) } else { child(env, name) };
        open_with(env, self.over().iter().map(leg).collect(), self.keys(), begin, &[]).await
    }

    async fn tell(&self, open: &Open) -> Checked {
        let env = &open.env;
        let pause = || env.sleep(Duration::from_micros(2000 + env.random() % 8000));
        pause().await;
        match self.story {
            Story::Quiet | Story::Missing | Story::Crowded | Story::Twice | Story::Lost => {}
            Story::Vanishes => {
                open.set_here("b", false);
                pause().await;
                open.set_here("b", true);
            }
            Story::LosesPower => {
                open.set_here("b", false);
                pause().await;
                open.cycle("b", env.random()).await;
            }
            Story::Fails => {
                let before = env.disk_requests();
                env.set_fault(Some(Box::new(move |n, disk, io| {
                    let strikes = n > before && disk == "b" && matches!(io.op, lamina_block::Op::Write(..));
                    strikes.then(|| Error::media("a simulated fault"))
                })));
                pause().await;
                env.set_fault(None);
                open.command("rejoin", json!({"leg": "b"})).await.map_err(told("rejoin"))?;
            }
            Story::Spare => {
                open.command("fail", json!({"leg": "b"})).await.map_err(told("fail"))?;
                open.whole().await;
                open.command("fail", json!({"leg": "a"})).await.map_err(told("fail"))?;
                open.command("rejoin", json!({"leg": "b"})).await.map_err(told("rejoin"))?;
            }
        }
        Ok(())
    }
}

/// So many write to few stripes, each to blocks of its own, and mostly durably.
const CROWD: u64 = 6;

async fn crowd(history: Rc<History>, env: Rc<SimEnv>, node: Rc<Node>, worker: u64) -> Checked {
    for _ in 0..30 {
        let draw = env.random();
        let block = (draw >> 8) % 2 * 96 + worker * 8 + (draw >> 16) % 2;
        if draw.is_multiple_of(24) {
            history.flush(&env, &node).await.map_err(told("a flush"))?;
        }
        let id = history.ids.replace(history.ids.get() + 1) + 2;
        let fua = !draw.is_multiple_of(3);
        history.write(&env, &node, block..block + 1, id, fua).await.map_err(told("a write"))?;
        if draw.is_multiple_of(16) {
            env.sleep(Duration::from_micros(draw >> 24 & 0xFFF)).await;
        }
    }
    Ok(())
}

/// c, which was absent when the journal was replayed, is rebuilt; then c is right by itself.
async fn comes_back(run: Run, history: &History, env: &Rc<SimEnv>, crash: u64) -> Checked {
    let open = run.open(env, Begin::Open, &["b"]).await.map_err(told("with c"))?;
    let c = run.over().iter().position(|leg| *leg == "c").unwrap_or(0);
    open.until("c", |open| open.roles()[c] == "in sync" && open.node.jobs().is_empty()).await;
    open.command("fail", json!({ "leg": "a" })).await.map_err(told("fail"))?;
    read_all(history, &open, Some(crash), false).await.map_err(|e| format!("with c: {e}"))?;
    open.node.close().await.map_err(told("close"))
}

pub struct Crash {
    at: u64,
    images: Images,
}

/// Reads everything; where it `may` be unknown, an error that says so is right.
async fn read_all(history: &History, open: &Open, crash: Option<u64>, may: bool) -> Checked {
    for at in (0..BLOCKS).step_by(4) {
        match history.read(&open.env, &open.node, at..at + 4, crash).await {
            Err(e) if may && e.contains("cannot be known") => {}
            other => other?,
        }
    }
    Ok(())
}

async fn verify(run: Run, history: &History, open: &Open, crash: Option<u64>, away: bool) -> Checked {
    let may = run.story == Story::Lost && crash.is_some();
    read_all(history, open, crash, may).await?;
    if run.is_missing() || run.story == Story::Lost {
        // It goes on, with what is there.
        let last = open.node.geometry().size - 512;
        let write = Io::write(last, Buf::zeroed(512), Durability::Fua);
        match open.node.submit(write).await {
            Err(e) if may && e.message().contains("cannot be known") => {}
            other => other.map_err(told("a write afterwards"))?,
        }
        return open.node.close().await.map_err(told("close"));
    }
    let is_whole = open.roles().iter().all(|role| role == "in sync");
    if let Some(at) = crash.filter(|_| away && is_whole) {
        open.absence(open.legs[at as usize % open.legs.len()].name()).await;
    }
    open.env.sleep(Duration::from_secs(2)).await;
    open.whole().await;
    read_all(history, open, crash, false).await?;
    scrubbed(open).await;
    if open.found("different") > 0 {
        return Err(format!("the parity is not right: {}", open.node.info()["found"]));
    }
    let legs: Vec<String> = open.legs.iter().map(|leg| leg.name().to_owned()).collect();
    let good: Vec<_> = legs.iter().zip(open.roles()).filter(|(_, role)| role == "in sync").collect();
    if good.len() == run.parity + 2 {
        let first = open.env.random() as usize;
        for n in 0..run.parity {
            let (leg, _) = good[(first + n) % good.len()];
            open.command("fail", json!({ "leg": leg })).await.map_err(told("fail"))?;
        }
        read_all(history, open, crash, false).await.map_err(|e| format!("without {first}: {e}"))?;
    }
    open.node.close().await.map_err(told("close"))
}

/// A story under load, with power losses.
pub fn run(run: Run) -> Checked {
    let world = world(run.seed);
    let env = world.env();
    let history = Rc::new(History::default());
    let crashes: Rc<RefCell<Vec<Crash>>> = Rc::default();
    let (here, into, main_env) = (Rc::clone(&history), Rc::clone(&crashes), Rc::clone(&env));
    let ended = world.run(async move {
        let (env, history) = (main_env, here);
        let mut open = run.open(&env, Begin::Format, &[]).await.map_err(told("made"))?;
        fill(&history, &open).await;
        if run.is_missing() {
            open.node.close().await.map_err(told("closed"))?;
            open = run.open(&env, Begin::Open, &["b"]).await.map_err(told("without b"))?;
        }
        let (weak, random) = (Rc::downgrade(&env), RefCell::new(xorshift(run.seed * 2 + 1)));
        env.observe(Some(Rc::new(move || {
            let draw = || (random.borrow_mut())();
            let Some(env) = weak.upgrade().filter(|_| draw() % run.one_in == 0) else { return };
            // A journal is worst off when writes are torn.
            let loss = match draw() >> 8 {
                n if run.is_crowded() && n.is_multiple_of(2) => Loss::Torn,
                n => Loss::ALL[n as usize / 2 % 4],
            };
            let images = match draw() % 4 {
                // That one is about records that are torn.
                0 if !run.is_crowded() => env.orphans(),
                _ => env.images(loss, draw()),
            };
            into.borrow_mut().push(Crash { at: env.tick(), images });
        })));
        let start = |n: u64| {
            let (history, node) = (Rc::clone(&history), Rc::clone(&open.node));
            let env = Rc::clone(&env);
            match run.is_crowded() {
                true => env.start(crowd(history, Rc::clone(&env), node, n)),
                false => env.start(work(history, Rc::clone(&env), node, n, 40, false)),
            }
        };
        let count = if run.is_crowded() { CROWD } else { 3 };
        let workers: Vec<_> = (0..count).map(start).collect();
        let told = run.tell(&open).await;
        for worker in workers {
            worker.ended().await?;
        }
        told?;
        env.observe(None);
        verify(run, &history, &open, None, false).await
    });
    env.observe(None);
    env.set_fault(None);
    if let Some(finding) = env.take_finding() {
        return Err(finding);
    }
    ended.map_err(|hang| hang.to_string())??;
    for crash in crashes.take() {
        recover(run, &history, &crash, true)?;
    }
    Ok(())
}

/// The state after a power loss, and after another one soon after it is opened.
fn recover(run: Run, history: &Rc<History>, crash: &Crash, again: bool) -> Checked {
    let world = Simulation::from_images(run.seed ^ crash.at, &crash.images);
    let env = world.env();
    let crashes: Rc<RefCell<Vec<Crash>>> = Rc::default();
    if again {
        let (weak, random, at) = (Rc::downgrade(&env), RefCell::new(xorshift(crash.at * 2 + 1)), crash.at);
        let into = Rc::clone(&crashes);
        env.observe(Some(Rc::new(move || {
            let draw = || (random.borrow_mut())();
            let Some(env) = weak.upgrade().filter(|_| draw() % 24 == 0 && into.borrow().len() < 2) else {
                return;
            };
            let images = env.after_death(draw() >> 8, draw());
            into.borrow_mut().push(Crash { at, images });
        })));
    }
    let (here, at, main_env) = (Rc::clone(history), crash.at, Rc::clone(&env));
    // A device that was absent once may have come back before the power failed again.
    let without = if again { run.without() } else { &run.without()[..run.without().len().min(1)] };
    let ended = world.run(async move {
        let open = run.open(&main_env, Begin::Open, without).await.map_err(told("opened"))?;
        // A write under way when the power failed may be there or not, and stays so. The bytes of a device
        // that was away meanwhile are known in regions only when the power fails once more.
        verify(run, &here, &open, Some(at), !again).await?;
        match without {
            ["b", "c"] => comes_back(run, &here, &main_env, at).await,
            _ => Ok(()),
        }
    });
    env.observe(None);
    let tell = |e: String| format!("after a power loss at tick {at}: {e}");
    ended.map_err(|hang| tell(hang.to_string()))?.map_err(tell)?;
    for crash in crashes.take() {
        recover(run, history, &crash, false).map_err(|e| format!("again, {e}"))?;
    }
    Ok(())
}

pub fn seeds(default: u64) -> Range<u64> {
    let set = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match set("LAMINA_SEED") {
        Some(one) => one..one + 1,
        None => 0..set("LAMINA_SEEDS").unwrap_or(default),
    }
}

fn all_stories(parity: usize, count: u64) {
    for (story, seed) in STORIES.into_iter().flat_map(|story| seeds(count).map(move |seed| (story, seed))) {
        let this = Run { story, parity, seed, one_in: if seed == 0 { 6 } else { 32 } };
        run(this).unwrap_or_else(|e| panic!("{this:?}: {e}"));
    }
}

#[test]
fn the_power_fails_while_devices_fail() {
    all_stories(1, 4);
}

#[test]
fn the_power_fails_while_devices_with_two_parities_fail() {
    all_stories(2, 2);
}
