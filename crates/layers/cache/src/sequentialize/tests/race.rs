//! Blocks that are written all the time while the segments with their former versions are copied and brought home:
//! the newest version is read, live and after the death of the process at any moment.

use super::super::log::Log;
use super::super::{Keys, begin, format::SLOT};
use super::home::build_on;
use crate::testing::*;
use futures_util::future::join;
use lamina_block::Begin;
use lamina_kit::flaw::FLAW;
use lamina_sim::{DiskOptions, Image, Images, SimEnv, Simulation};
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Bytes of the disk; the log is its last half.
const DISK: u64 = 2 << 20;
/// Writers, each of which has two blocks side by side, and writes them so many times.
const WRITERS: u64 = 6;
const WRITES: u8 = 60;
/// Deaths of the process of which the disks are looked at.
const DEATHS: usize = 6;

/// The versions of each writer: completed, and under way or the same. Both blocks of a writer have them.
type Versions = Rc<RefCell<Vec<[u8; 2]>>>;

async fn opened(env: &Rc<SimEnv>, how: Begin) -> Rc<Log> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let disk = Node::new("disk", "simulated", Rc::clone(&world), env.disk("disk").expect("it is there"));
    let keys: Keys = serde_json::from_value(json!({ "mode": "home", "reserve": 50 })).expect("keys");
    let place = begin::begin(&keys, &build_on(env, &disk, how).await).await.expect("made");
    let log = Log::open("log", &world, disk, place).await.expect("opened");
    log.home.small.set(SLOT as u64);
    log
}

fn bytes_of(writer: u64) -> Range<u64> {
    // Not side by side: no writer goes on where another one ended.
    let at = 3 * writer * SLOT as u64;
    at..at + 2 * SLOT as u64
}

async fn read(log: &Rc<Log>, writer: u64) -> Vec<u8> {
    let (at, into) = (bytes_of(writer), Buf::from_vec(vec![0xEE; 2 * SLOT]));
    log.read(at, into.clone()).await.expect("read");
    into.to_vec()
}

/// Whether each sector has one of the versions: what is under way may be torn between them.
fn is_one_of(bytes: &[u8], versions: [u8; 2]) -> bool {
    bytes.chunks(512).all(|sector| versions.iter().any(|version| *sector == [*version; 512]))
}

/// Writes its blocks, one by one or both at once, and zeroes them; false if it once reads something else.
async fn writer(env: Rc<SimEnv>, log: Rc<Log>, writer: u64, versions: Versions) -> bool {
    let [first, second] = [bytes_of(writer).start, bytes_of(writer).start + SLOT as u64];
    for turn in 1..=WRITES {
        let version = if turn % 7 == 0 { 0 } else { turn };
        versions.borrow_mut()[writer as usize][1] = version;
        let data = |len: usize| Buf::from_vec(vec![version; len]);
        let slot = SLOT as u64;
        if version == 0 {
            log.zero(bytes_of(writer), Zero::default()).await.expect("zeroed");
        } else if turn.is_multiple_of(3) {
            log.write(bytes_of(writer), data(2 * SLOT), Durability::Cached).await.expect("written");
        } else {
            // Backwards: the second one goes on where the first one ended the last time, and may go home.
            log.write(second..second + slot, data(SLOT), Durability::Cached).await.expect("written");
            log.write(first..second, data(SLOT), Durability::Cached).await.expect("written");
        }
        versions.borrow_mut()[writer as usize][0] = version;
        if !is_one_of(&read(&log, writer).await, [version; 2]) {
            return false;
        }
        env.sleep(Duration::from_micros(env.random() % 300)).await;
    }
    true
}

/// Collects closed segments, brings segments home, and makes checkpoints, until all is written.
async fn mover(env: Rc<SimEnv>, log: Rc<Log>, is_done: Rc<Cell<bool>>) {
    while !is_done.get() {
        let closed = log.segments.borrow().oldest_victim(u64::MAX, u64::MAX);
        match (env.random() % 4, closed) {
            (0, _) => log.checkpoint().await.expect("a checkpoint"),
            (1, Some(victim)) => log.collect(victim).await.expect("collected"),
            _ => {
                let next = log.next_to_drain().0;
                if let Some(segment) = next {
                    log.drain_segment(segment).await.expect("brought home");
                }
            }
        }
        env.sleep(Duration::from_micros(env.random() % 100)).await;
    }
}

/// Runs a life; the disks at some moments of it, with the versions then. `None` if a writer reads something else.
fn life(seed: u64) -> Option<Vec<(Images, Vec<[u8; 2]>)>> {
    let world = Simulation::new(seed);
    let env = world.env();
    let options = DiskOptions { latency_max: Duration::from_micros(200), ..DiskOptions::new(DISK) };
    env.put_disk("disk", Image::blank(options));
    let (deaths, is_right) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(true)));
    let (into, right) = (Rc::clone(&deaths), Rc::clone(&is_right));
    let run = async move {
        let log = opened(&env, Begin::Format).await;
        let versions: Versions = Rc::new(RefCell::new(vec![[0; 2]; WRITERS as usize]));
        let is_done = Rc::new(Cell::new(false));
        let start = |n| env.start(writer(Rc::clone(&env), Rc::clone(&log), n, Rc::clone(&versions)));
        let writers: Vec<_> = (0..WRITERS).map(start).collect();
        let movers: Vec<_> =
            (0..3).map(|_| env.start(mover(Rc::clone(&env), Rc::clone(&log), Rc::clone(&is_done)))).collect();
        for _ in 0..DEATHS {
            env.sleep(Duration::from_micros(env.random() % 8000)).await;
            into.borrow_mut().push((env.orphans(), versions.borrow().clone()));
        }
        for writer in writers {
            right.set(writer.ended().await && right.get());
        }
        is_done.set(true);
        for mover in movers {
            mover.ended().await;
        }
        log.close().await.expect("closed");
    };
    world.run(run).expect("it ends");
    is_right.get().then(|| deaths.take())
}

fn is_right_after(seed: u64, images: &Images, versions: Vec<[u8; 2]>) -> bool {
    let world = Simulation::from_images(seed, images);
    let (env, is_right) = (world.env(), Rc::new(Cell::new(true)));
    let into = Rc::clone(&is_right);
    let run = async move {
        let log = opened(&env, Begin::Open).await;
        for (writer, versions) in (0..).zip(versions) {
            let is_right = is_one_of(&read(&log, writer).await, versions);
            into.set(is_right && into.get());
        }
    };
    world.run(run).expect("it ends");
    is_right.get()
}

fn is_right(seed: u64) -> bool {
    life(seed).is_some_and(|deaths| {
        deaths.into_iter().all(|(images, versions)| is_right_after(seed, &images, versions))
    })
}

#[test]
fn the_newest_version_is_read() {
    for seed in 0..20 {
        assert!(is_right(seed), "seed {seed}");
    }
}

#[test]
fn canaries() {
    let flaws = [
        "homes count whatever is there",
        "an older version goes home",
        "homes are not locked",
        "what is mapped goes home",
    ];
    let unnoticed = |flaw: &&'static str| {
        FLAW.set(Some(*flaw));
        // The rarest needs some two hundred.
        let is_unnoticed = (0..1000).all(is_right);
        FLAW.set(None);
        is_unnoticed
    };
    let missed: Vec<&str> = flaws.into_iter().filter(|flaw| unnoticed(flaw)).collect();
    assert!(missed.is_empty(), "nothing noticed: {missed:?}");
}

/// Copies a segment and brings it home at once: the bytes that counted in it, and those that were copied or brought
/// home.
fn copied_and_brought() -> (u64, u64) {
    let world = Simulation::new(1);
    let env = world.env();
    let options = DiskOptions { latency_max: Duration::from_micros(200), ..DiskOptions::new(DISK) };
    env.put_disk("disk", Image::blank(options));
    let found = Rc::new(Cell::new((0, 0)));
    let into = Rc::clone(&found);
    let run = async move {
        let log = opened(&env, Begin::Format).await;
        let victim = || log.segments.borrow().oldest_victim(u64::MAX, u64::MAX);
        let mut turn = 0;
        while victim().is_none() {
            // Most is garbage: it is copied, not brought home.
            let at = if turn % 3 == 0 { 3 * turn * SLOT as u64 } else { 0 };
            let data = Buf::from_vec(vec![1; SLOT]);
            log.write(at..at + SLOT as u64, data, Durability::Cached).await.expect("written");
            turn += 1;
        }
        let victim = victim().expect("there is one");
        let live = u64::from(log.segments.borrow().get(victim).live) * SLOT as u64;
        let bytes = |what: &str| log.info()[what].as_u64().expect("a number");
        let moved = || bytes("copied_bytes") + bytes("homed_bytes");
        let before = moved();
        let (copied, brought) = join(log.collect(victim), log.drain_segment(victim)).await;
        copied.and(brought.map(drop)).expect("one after the other");
        into.set((live, moved() - before));
        log.close().await.expect("closed");
    };
    world.run(run).expect("it ends");
    found.get()
}

#[test]
fn a_block_is_copied_or_brought_home() {
    let (live, moved) = copied_and_brought();
    assert!(live > 0 && moved == live, "{moved} of {live}");
    FLAW.set(Some("a segment is collected twice at a time"));
    let (live, moved) = copied_and_brought();
    FLAW.set(None);
    assert!(moved > live, "{moved} of {live}");
}
