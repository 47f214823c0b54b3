//! The power fails before every change of any disk while a volume changes its layout under load, and again while it is
//! opened and goes on after that: every byte is what it may be, and the change comes to its end.

use super::*;
use crate::testing::history::{BLOCK, Checked, History, told};
use lamina_kit::flaw::FLAW;
use lamina_sim::{Images, Simulation};

/// Blocks of one worker's turn.
const TURN: u64 = 8;
const WORKERS: u64 = 3;

/// A change of layout.
#[derive(Clone)]
struct Scenario {
    name: &'static str,
    volume: Volume,
    /// The disks that it is made over.
    first: &'static [&'static str],
    /// Its size before the change, if it is to be smaller.
    size: Option<u64>,
    /// The disks that it is built over for the change, and those of them that are to be empty.
    then: &'static [&'static str],
    gone: &'static [&'static str],
    /// The disks that hold something in the end.
    last: &'static [&'static str],
}

fn scenarios() -> Vec<Scenario> {
    let stripe = Volume { kind: "stripe", keys: json!({ "unit": "4KiB" }) };
    let concat = Volume { kind: "concat", keys: json!({}) };
    let stripe = |name, first, size, then, gone, last| Scenario {
        name,
        volume: stripe.clone(),
        first,
        size,
        then,
        gone,
        last,
    };
    let concat = |name, first, size, then, gone, last| Scenario {
        name,
        volume: concat.clone(),
        first,
        size,
        then,
        gone,
        last,
    };
    let migrate = Scenario {
        name: "move",
        volume: Volume { kind: "migrate", keys: json!({}) },
        first: &["a"],
        size: None,
        then: &["a", "d"],
        gone: &["a"],
        last: &["d"],
    };
    vec![
        migrate,
        stripe("wider", &["a", "b"], None, &["a", "b", "c"], &[], &["a", "b", "c"]),
        stripe("narrower", &["a", "b", "c"], Some(128 << 10), &["a", "b", "c"], &["c"], &["a", "b"]),
        stripe("no middle", &["a", "b", "c"], Some(100 << 10), &["a", "b", "c"], &["b"], &["a", "c"]),
        stripe("other", &["a", "b"], None, &["a", "b", "c"], &["b"], &["a", "c"]),
        stripe("other and wider", &["a", "b"], None, &["a", "b", "c", "d"], &["a"], &["b", "c", "d"]),
        concat("exchange", &["a", "b"], None, &["a", "b", "d"], &["b"], &["a", "d"]),
        concat("no middle", &["a", "b", "c"], Some(128 << 10), &["a", "b", "c"], &["b"], &["a", "c"]),
        concat(
            "in pieces",
            &["b", "a", "c", "d"],
            Some(150 << 10),
            &["b", "a", "c", "d"],
            &["b"],
            &["a", "c", "d"],
        ),
    ]
}

/// The disks' sizes.
fn size_of(disk: &str) -> u64 {
    match disk {
        "a" => 64 << 10,
        "b" => 72 << 10,
        "c" => 68 << 10,
        _ => 80 << 10,
    }
}

/// The disks as a power loss at one moment leaves them.
struct Crash {
    at: u64,
    images: Images,
}

struct Rig {
    scenario: Scenario,
    seed: u64,
    history: History,
    crashes: RefCell<Vec<Crash>>,
    /// The change has begun.
    began: Cell<bool>,
    /// A request to a disk fails: errors are no surprise.
    faulty: bool,
}

/// Takes images before one in `one_in` changes of a disk, at most `most`.
fn record(rig: &Rc<Rig>, env: &Rc<SimEnv>, at: Option<u64>, one_in: u64, most: usize) {
    let (weak, here) = (Rc::downgrade(env), Rc::clone(rig));
    let mut next = rig.seed ^ 0x9E37_79B9;
    let rng = RefCell::new(move || {
        next = next.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        next >> 33
    });
    env.observe(Some(Rc::new(move || {
        let mut draw = rng.borrow_mut();
        if !here.began.get() || draw() % one_in != 0 || here.crashes.borrow().len() >= most {
            return;
        }
        let Some(env) = weak.upgrade() else { return };
        let at = at.unwrap_or_else(|| env.tick());
        here.crashes.borrow_mut().push(Crash { at, images: env.after_death(draw(), draw()) });
    })));
}

/// Makes the disks.
fn put_disks(env: &Rc<SimEnv>, seed: u64) {
    for (i, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let mut options = DiskOptions::new(size_of(name));
        let bit = |n: usize| seed >> (i * 3 + n) & 1 == 1;
        let geometry = Geometry { fua: bit(0), zero: bit(1), discard: bit(2), ..options.geometry };
        let latency_max = Duration::from_micros(if bit(2) { 3000 } else { 100 });
        let junk = bit(1).then_some(0xF000_0000 + i as u32);
        options = DiskOptions { geometry, junk, latency_max, ..options };
        env.put_disk(name, Image::blank(options));
    }
}

/// The volume before the change, with something in every block; then the change begins.
async fn prepare(rig: &Rc<Rig>, env: &Rc<SimEnv>) -> std::result::Result<Rc<Node>, String> {
    let Scenario { volume, first, size, then, gone, .. } = &rig.scenario;
    let node = volume.open(env, first, &[], Begin::Format).await.map_err(told("it cannot be made"))?;
    if let Some(size) = size {
        let args = json!({ "size": size, "force": true });
        command(&node, "resize", args).await.map_err(told("it cannot be made smaller"))?;
    }
    for block in (0..node.geometry().size / BLOCK).step_by(TURN as usize) {
        let end = (block + TURN).min(node.geometry().size / BLOCK);
        rig.history.write(env, &node, block..end, 1, false).await.map_err(told("a write"))?;
    }
    rig.history.ids.set(1);
    rig.history.flush(env, &node).await.map_err(told("a flush"))?;
    node.close().await.map_err(told("it cannot be closed"))?;
    volume.open(env, then, gone, Begin::Open).await.map_err(told("it cannot be opened for the change"))
}

/// Changes the layout, and waits for the end; a move that stopped for a fault goes on.
async fn change(rig: &Rc<Rig>, env: &Rc<SimEnv>, node: &Rc<Node>) -> Checked {
    let Scenario { gone, last, .. } = &rig.scenario;
    rig.began.set(true);
    let names = gone.iter().map(|name| name.to_string()).collect();
    let (evacuating, moved) = (Rc::clone(node), Rc::new(Cell::new(false)));
    let is_moved = Rc::clone(&moved);
    let evacuated = env.start(async move {
        let result = evacuating.evacuate(names).await;
        is_moved.set(true);
        result
    });
    let mut patience = 20_000;
    while !moved.get() || !node.jobs().is_empty() {
        for job in node.jobs() {
            if job.state() == JobState::Paused {
                if job.info()["error"].is_null() {
                    return Err("it paused and does not say why".into());
                }
                job.resume();
            }
        }
        env.sleep(Duration::from_millis(1)).await;
        patience -= 1;
        if patience == 0 {
            return Err(format!("it does not come to its end: {}", node.info()));
        }
    }
    evacuated.ended().await.map_err(told("evacuate"))?;
    if devices(node) != *last {
        return Err(format!("it lies on {:?} in the end", devices(node)));
    }
    Ok(())
}

/// One worker's requests: its own blocks, one write of each at a time.
async fn work(rig: Rc<Rig>, env: Rc<SimEnv>, node: Rc<Node>, worker: u64, requests: u64) -> Checked {
    let turns = node.geometry().size / BLOCK / TURN;
    let mine = (turns - worker).div_ceil(WORKERS);
    for _ in 0..requests {
        let draw = env.random();
        let start = (worker + (draw >> 8) % mine * WORKERS) * TURN;
        let from = (draw >> 40) % TURN;
        let at = start + from..start + from + 1 + (draw >> 48) % (TURN - from);
        let done = match draw % 16 {
            0..8 => {
                let id = rig.history.ids.replace(rig.history.ids.get() + 1) + 1;
                rig.history.write(&env, &node, at, id, draw.is_multiple_of(5)).await
            }
            8 => rig.history.write(&env, &node, at, 0, false).await,
            9..11 => rig.history.flush(&env, &node).await,
            _ => match rig.history.read(&env, &node, at, None).await {
                Err(e) if !rig.faulty => return Err(format!("a read under load: {e}")),
                Err(_) | Ok(()) => Ok(()),
            },
        };
        match done {
            Err(e) if !rig.faulty => return Err(format!("a request failed: {e}")),
            Err(_) | Ok(()) => {}
        }
        env.sleep(Duration::from_micros(draw >> 16 & 0xFF)).await;
    }
    Ok(())
}

/// Reads anywhere, while others write.
async fn look(rig: Rc<Rig>, env: Rc<SimEnv>, node: Rc<Node>, requests: u64) -> Checked {
    let blocks = node.geometry().size / BLOCK;
    for _ in 0..requests {
        let start = env.random() % blocks;
        let read = rig.history.read(&env, &node, start..(start + 4).min(blocks), None).await;
        if !rig.faulty {
            read?;
        }
    }
    Ok(())
}

/// Reads everything, and looks once more with only those devices that are to be left.
async fn verify(rig: &Rc<Rig>, env: &Rc<SimEnv>, node: &Rc<Node>, crash: Option<u64>) -> Checked {
    let blocks = match rig.scenario.size {
        Some(size) => size / BLOCK,
        None => *rig.history.blocks.borrow().keys().last().expect("all were written") + 1,
    };
    rig.history.read(env, node, 0..blocks, crash).await?;
    node.close().await.map_err(told("it cannot be closed"))?;
    let Scenario { volume, last, .. } = &rig.scenario;
    let again =
        volume.open(env, last, &[], Begin::Open).await.map_err(told("it cannot be opened without"))?;
    rig.history.read(env, &again, 0..blocks, crash).await?;
    again.close().await.map_err(told("it cannot be closed"))
}

/// The state after a power loss, and after another one in the recovery.
fn recover(rig: &Rc<Rig>, crash: &Crash, depth: u8) -> Checked {
    let world = Simulation::from_images(rig.seed, &crash.images);
    let (env, at) = (world.env(), crash.at);
    let again = Rc::new(Rig {
        scenario: rig.scenario.clone(),
        seed: rig.seed ^ at,
        history: History::default(),
        crashes: RefCell::default(),
        began: Cell::new(true),
        faulty: false,
    });
    if depth > 0 {
        record(&again, &env, Some(at), 12, 2);
    }
    let (here, world_env) = (Rc::clone(rig), Rc::clone(&env));
    let ended = world.run(async move {
        let Scenario { volume, then, gone, .. } = &here.scenario;
        let node = volume.open(&world_env, then, gone, Begin::Open).await;
        let node = node.map_err(told("it cannot be opened"))?;
        let blocks = node.geometry().size / BLOCK;
        let written = here.history.blocks.borrow().len() as u64;
        here.history.read(&world_env, &node, 0..blocks.min(written), Some(at)).await?;
        change(&here, &world_env, &node).await?;
        verify(&here, &world_env, &node, Some(at)).await
    });
    env.observe(None);
    let tell = |e: String| format!("after a power loss at tick {at}: {e}");
    ended.map_err(|hang| tell(hang.to_string()))?.map_err(tell)?;
    for crash in again.crashes.take() {
        recover(rig, &crash, depth - 1).map_err(|e| format!("again, {e}"))?;
    }
    Ok(())
}

/// A change under load, with a power loss before one in `one_in` changes of a disk; the number of disk requests of the
/// change. `fault`: the number of the disk request that fails.
fn run(scenario: &Scenario, seed: u64, one_in: u64, fault: Option<u64>) -> std::result::Result<u64, String> {
    let world = Simulation::new(seed);
    let env = world.env();
    put_disks(&env, seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let rig = Rc::new(Rig {
        scenario: scenario.clone(),
        seed,
        history: History::default(),
        crashes: RefCell::default(),
        began: Cell::new(false),
        faulty: fault.is_some(),
    });
    record(&rig, &env, None, one_in, usize::MAX);
    let (here, world_env) = (Rc::clone(&rig), Rc::clone(&env));
    let ended = world.run(async move {
        let (rig, env) = (here, world_env);
        let node = prepare(&rig, &env).await?;
        let before = env.disk_requests();
        if let Some(number) = fault {
            let strikes = move |n: u64| n == before + number;
            env.set_fault(Some(Box::new(move |n, _, _| {
                strikes(n).then(|| Error::media("a simulated fault"))
            })));
        }
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| env.start(work(Rc::clone(&rig), Rc::clone(&env), Rc::clone(&node), worker, 24)))
            .collect();
        let reader = env.start(look(Rc::clone(&rig), Rc::clone(&env), Rc::clone(&node), 60));
        let changed = change(&rig, &env, &node).await;
        for worker in workers {
            worker.ended().await?;
        }
        reader.ended().await?;
        changed?;
        let requests = env.disk_requests() - before;
        env.set_fault(None);
        verify(&rig, &env, &node, None).await?;
        Ok::<_, String>(requests)
    });
    env.observe(None);
    let requests = ended.map_err(|hang| hang.to_string())??;
    for crash in rig.crashes.take() {
        recover(&rig, &crash, 2)?;
    }
    Ok(requests)
}

fn seeds(default: u64) -> Range<u64> {
    let set = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match set("LAMINA_SEED") {
        Some(one) => one..one + 1,
        None => 0..set("LAMINA_SEEDS").unwrap_or(default),
    }
}

#[test]
fn the_power_fails_at_every_write() {
    for scenario in scenarios() {
        for seed in seeds(3) {
            if let Err(e) = run(&scenario, seed, if seed == 0 { 1 } else { 16 }, None) {
                panic!("{} with seed {seed}: {e}", scenario.name);
            }
        }
    }
}

#[test]
fn a_fault_pauses_the_move_and_loses_nothing() {
    for scenario in scenarios() {
        for seed in seeds(2) {
            let all = run(&scenario, seed, u64::MAX, None).expect("without a fault all is well");
            for fault in (seed..all).step_by(11) {
                if let Err(e) = run(&scenario, seed, 64, Some(fault)) {
                    panic!("{} with seed {seed}, fault {fault} of {all}: {e}", scenario.name);
                }
            }
        }
    }
}

/// Movers that are wrong in one way each; without that, the same runs are good.
#[test]
fn canaries() {
    let first_error = || {
        let runs = (0..3).flat_map(|seed| scenarios().into_iter().map(move |scenario| (scenario, seed)));
        runs.filter_map(|(scenario, seed)| run(&scenario, seed, 8, None).err()).next()
    };
    assert_eq!(first_error(), None);
    for flaw in [
        "the position before the copy",
        "changes do not wait for the window",
        "a window overlaps what has not been moved",
        "changes under way are not waited for",
    ] {
        FLAW.set(Some(flaw));
        let caught = first_error();
        FLAW.set(None);
        assert!(caught.is_some(), "{flaw:?} is not caught");
    }
}
