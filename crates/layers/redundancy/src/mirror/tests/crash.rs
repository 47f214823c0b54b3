//! Legs fail, vanish, come back after a power loss of their own, and spares take over, all under load; and
//! the power fails before changes of any disk on the way. Nothing that was acknowledged is ever missing, and
//! in the end legs are the same.

use super::*;
use crate::testing::history::{Checked, told, work};
use lamina_block::Error;
use lamina_sim::Images;
use std::cell::RefCell;

/// Events of the mirror of a, b, c under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// Nothing.
    Quiet,
    /// b vanishes and comes back.
    Vanishes,
    /// b loses power and comes back without what it had not flushed.
    LosesPower,
    /// A request to b fails, and b rejoins.
    Fails,
    /// b is told to fail, the spare takes over, and then a fails.
    Spare,
    /// One after the other vanishes and comes back.
    Alternates,
}

pub const STORIES: [Story; 6] =
    [Story::Quiet, Story::Vanishes, Story::LosesPower, Story::Fails, Story::Spare, Story::Alternates];

fn keys(story: Story) -> Value {
    json!({ "region": "16KiB", "leg-timeout": "1h", "spares": if story == Story::Spare { 1 } else { 0 } })
}

async fn tell(story: Story, open: &Open) -> Checked {
    let env = &open.env;
    let pause = || env.sleep(Duration::from_micros(2000 + env.random() % 8000));
    pause().await;
    match story {
        Story::Quiet => {}
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
        Story::Alternates => {
            for name in ["b", "a", "b"] {
                open.set_here(name, false);
                pause().await;
                open.set_here(name, true);
                open.env.sleep(Duration::from_secs(3)).await;
                open.whole().await;
            }
        }
    }
    Ok(())
}

pub struct Crash {
    at: u64,
    images: Images,
}

async fn verify(history: &History, open: &Open, crash: Option<u64>) -> Checked {
    let all = 0..SIZE / BLOCK / 24 * 24;
    history.read(&open.env, &open.node, all.clone(), crash).await?;
    let names: Vec<&str> = open.legs.iter().map(|leg| leg.name()).collect();
    let good = names.iter().zip(open.roles()).filter(|(_, role)| role == "in sync").map(|(name, _)| name);
    // The first one is right until they agree.
    if let Some(last) = good.skip(1).last().filter(|_| crash.is_some_and(|at| at.is_multiple_of(2))) {
        open.absence(last).await;
    }
    open.env.sleep(Duration::from_secs(2)).await;
    open.whole().await;
    history.read(&open.env, &open.node, all.clone(), crash).await?;
    open.same().await?;
    let legs: Vec<(String, String)> =
        open.legs.iter().map(|leg| leg.name().to_owned()).zip(open.roles()).collect();
    let good: Vec<_> = legs.iter().filter(|(_, role)| role == "in sync").collect();
    if let [first, _, ..] = good[..] {
        // Each alone.
        open.command("fail", json!({ "leg": first.0 })).await.map_err(told("fail"))?;
        history.read(&open.env, &open.node, all, crash).await?;
    }
    open.node.close().await.map_err(told("close"))
}

/// A story under load, with a power loss before one in `one_in` changes of a disk.
pub fn run(story: Story, seed: u64, one_in: u64) -> Checked {
    let world = world(seed);
    let env = world.env();
    let history = Rc::new(History::default());
    let crashes: Rc<RefCell<Vec<Crash>>> = Rc::default();
    let (here, into, main_env) = (Rc::clone(&history), Rc::clone(&crashes), Rc::clone(&env));
    let ended = world.run(async move {
        let (env, history) = (main_env, here);
        let open = open(&env, &["a", "b", "c"], keys(story), Begin::Format).await.map_err(told("made"))?;
        fill(&history, &open).await;
        let (weak, random) = (Rc::downgrade(&env), RefCell::new(xorshift(seed * 2 + 1)));
        env.observe(Some(Rc::new(move || {
            let draw = || (random.borrow_mut())();
            let Some(env) = weak.upgrade().filter(|_| draw() % one_in == 0) else { return };
            let images = env.after_death(draw() >> 8, draw());
            into.borrow_mut().push(Crash { at: env.tick(), images });
        })));
        let start = |n: u64| {
            let (history, node) = (Rc::clone(&history), Rc::clone(&open.node));
            env.start(work(history, Rc::clone(&env), node, n, 40, false))
        };
        let workers: Vec<_> = (0..3).map(start).collect();
        let told = tell(story, &open).await;
        for worker in workers {
            worker.ended().await?;
        }
        told?;
        env.observe(None);
        verify(&history, &open, None).await
    });
    env.observe(None);
    env.set_fault(None);
    if let Some(finding) = env.take_finding() {
        return Err(finding);
    }
    ended.map_err(|hang| hang.to_string())??;
    for crash in crashes.take() {
        recover(story, seed, &history, &crash, true)?;
    }
    Ok(())
}

/// The state after a power loss, and after another one soon after it is opened.
fn recover(story: Story, seed: u64, history: &Rc<History>, crash: &Crash, again: bool) -> Checked {
    let world = Simulation::from_images(seed ^ crash.at, &crash.images);
    let env = world.env();
    let crashes: Rc<RefCell<Vec<Crash>>> = Rc::default();
    if again {
        let (weak, random, at) = (Rc::downgrade(&env), RefCell::new(xorshift(crash.at * 2 + 1)), crash.at);
        let into = Rc::clone(&crashes);
        env.observe(Some(Rc::new(move || {
            let draw = || (random.borrow_mut())();
            let Some(env) = weak.upgrade().filter(|_| draw() % 40 == 0 && into.borrow().len() < 2) else {
                return;
            };
            into.borrow_mut().push(Crash { at, images: env.after_death(draw() >> 8, draw()) });
        })));
    }
    let (here, at, main_env) = (Rc::clone(history), crash.at, Rc::clone(&env));
    let ended = world.run(async move {
        let open =
            open(&main_env, &["a", "b", "c"], keys(story), Begin::Open).await.map_err(told("opened"))?;
        verify(&here, &open, Some(at)).await
    });
    env.observe(None);
    let tell = |e: String| format!("after a power loss at tick {at}: {e}");
    ended.map_err(|hang| tell(hang.to_string()))?.map_err(tell)?;
    for crash in crashes.take() {
        recover(story, seed, history, &crash, false).map_err(|e| format!("again, {e}"))?;
    }
    Ok(())
}

fn seeds(default: u64) -> Range<u64> {
    let set = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match set("LAMINA_SEED") {
        Some(one) => one..one + 1,
        None => 0..set("LAMINA_SEEDS").unwrap_or(default),
    }
}

#[test]
fn the_power_fails_while_legs_fail() {
    for story in STORIES {
        for seed in seeds(4) {
            if let Err(e) = run(story, seed, if seed == 0 { 4 } else { 24 }) {
                panic!("{story:?} with seed {seed}: {e}");
            }
        }
    }
}
