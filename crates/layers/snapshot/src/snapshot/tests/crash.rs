//! The power fails at every write: while commands are carried out, and during random work.

use super::scene::*;
use crate::testing::*;
use lamina_block::{Begin, Geometry, Layer, Level, Manage, Passthrough, Step};
use lamina_sim::{Images, Loss, Simulation};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// The contents of a volume and its snapshots.
#[derive(Clone, Default, PartialEq)]
pub struct State {
    pub volume: Vec<u8>,
    pub snapshots: BTreeMap<String, Vec<u8>>,
}

/// For messages: the first byte of every extent.
impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short =
            |bytes: &Vec<u8>| bytes.iter().step_by(4096).map(|b| format!("{b:x}.")).collect::<String>();
        writeln!(f, "volume {}", short(&self.volume))?;
        self.snapshots.iter().try_for_each(|(name, bytes)| writeln!(f, "{name} {}", short(bytes)))
    }
}

pub async fn state(vol: &Open) -> State {
    State { volume: vol.all().await, snapshots: vol.snapshots().await }
}

/// The state after a crash; then the volume is used, and snapshots must stay as they are.
pub fn recover(how: &How, seed: u64, images: &Images) -> State {
    let world = Simulation::from_images(seed, images);
    let (env, how) = (world.env(), how.clone());
    let test = async move {
        let vol = open(&env, &how, Begin::Open).await.expect("it opens after a crash");
        let found = state(&vol).await;
        let damage = vol.node.check(false).await.expect("it can be checked");
        assert!(!damage.iter().any(lamina_block::Finding::is_damage), "after a crash: {damage:?}");
        // Whatever was thought to be free is given to somebody.
        let size = vol.node.geometry().size;
        for at in (0..size).step_by(8192 * 3) {
            vol.write(at, 0xAA, 4096).await.expect("it can be written");
        }
        vol.flush().await.expect("flushed");
        vol.reclaimed().await;
        for at in (8192..size).step_by(8192 * 3) {
            vol.write(at, 0xBB, 4096).await.expect("it can be written");
        }
        vol.command("reclaim", json!({})).await.expect("it begins");
        vol.reclaimed().await;
        vol.audit(true).await;
        let after = state(&vol).await;
        assert_eq!(after.snapshots, found.snapshots, "a snapshot has changed");
        for (i, (now, then)) in after.volume.chunks(4096).zip(found.volume.chunks(4096)).enumerate() {
            let expected = match i % 6 {
                0 => &[0xAA; 4096][..],
                2 => &[0xBB; 4096][..],
                _ => then,
            };
            assert_eq!(now, expected, "block {i} after the crash");
        }
        vol.node.close().await.expect("closed");
        found
    };
    world.run(test).expect("it ends")
}

/// A volume with two snapshots and something written since.
async fn prepared(vol: &Open) {
    vol.write(0, 1, 256 << 10).await.unwrap();
    vol.command("snapshot", json!({"name": "one"})).await.unwrap();
    vol.write(64 << 10, 2, 64 << 10).await.unwrap();
    vol.node.submit(Io::discard(0..16 << 10)).await.unwrap();
    vol.command("snapshot", json!({"name": "two"})).await.unwrap();
    vol.write(80 << 10, 3, 96 << 10).await.unwrap();
    vol.write(300 << 10, 4, 4096).await.unwrap();
    vol.flush().await.unwrap();
}

/// The power fails at every write of a command, and of the reclaiming after it.
fn command(name: &'static str, args: Value) {
    for (seed, level) in (0..2).flat_map(|seed| Level::ALL.map(|level| (seed, level))) {
        for meta in [None, Some(2 << 20)] {
            let how = How { meta, ..How::new(level) };
            let world = world(&how, seed);
            let (env, args, made) = (world.env(), args.clone(), how.clone());
            let (images, before, after) = world
                .run(async move {
                    let vol = open(&env, &made, Begin::Format).await.expect("made");
                    prepared(&vol).await;
                    vol.reclaimed().await;
                    let before = state(&vol).await;
                    let camera = Camera::start(&env, seed, 1);
                    vol.command(name, args).await.expect("carried out");
                    let done = camera.len();
                    vol.reclaimed().await;
                    let after = state(&vol).await;
                    (
                        camera.end(&env).into_iter().enumerate().map(move |(i, image)| (i >= done, image)),
                        before,
                        after,
                    )
                })
                .expect("it ends");
            for (i, (done, images)) in images.enumerate() {
                let found = recover(&how, seed, &images);
                assert!(
                    found == after || (!done && found == before),
                    "{level:?}, seed {seed}, crash {i}: found {found:?}\nbefore {before:?}\nafter {after:?}"
                );
            }
        }
    }
}

#[test]
fn snapshot() {
    command("snapshot", json!({"name": "three"}));
}

#[test]
fn rollback() {
    command("rollback", json!({"name": "one"}));
}

#[test]
fn delete() {
    command("delete", json!({"name": "two"}));
}

#[test]
fn delete_the_oldest() {
    command("delete", json!({"name": "one"}));
}

#[test]
fn resize() {
    command("resize", json!({"size": "700KiB"}));
}

/// Only the process ends, and no flush comes after what was written: who had an answer lives on, and relies on it.
#[test]
fn what_completed_outlives_the_process() {
    for (seed, level) in (0..8).flat_map(|seed| [Level::Lazy, Level::Shadow].map(|level| (seed, level))) {
        let how = How::new(level);
        let world = world(&how, seed);
        let (env, made) = (world.env(), how.clone());
        let (images, before) = world
            .run(async move {
                let vol = open(&env, &made, Begin::Format).await.expect("made");
                prepared(&vol).await;
                // To new extents, into the same ones while they wait for the map, and where extents stay.
                let at = [0, 4096, 8 << 10, 84 << 10, 400 << 10, 401 << 10, 300 << 10];
                let mut writes = Vec::new();
                for (value, at) in (10..).zip(at) {
                    let buf = Buf::from_vec(vec![value; 1024]);
                    writes.push(vol.node.submit(Io::write(at, buf, Durability::Cached)));
                }
                lamina_block::all(writes).await.expect("written");
                vol.node.submit(Io::zero(88 << 10..104 << 10, Zero::default())).await.expect("zeroed");
                (env.images(Loss::Nothing, seed), state(&vol).await)
            })
            .expect("it ends");
        assert_eq!(recover(&how, seed, &images), before, "{level:?}, seed {seed}");
    }
}

/// The events, one after the other.
#[derive(Default)]
pub struct History {
    /// After every request.
    pub states: Vec<State>,
    /// The first that may be found after a crash now.
    pub floor: usize,
    /// A request is under way that leads to the next state.
    pub under_way: Option<State>,
}

/// A moment at which the power may have failed: what is allowed to be found.
struct Moment {
    images: Images,
    floor: usize,
    end: usize,
    under_way: Option<State>,
}

/// The injected errors, for canaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// The device below flushes when it is asked again, not when it is asked.
    DataLate,
    /// Extents of snapshots count as the volume's own.
    SharedInPlace,
    /// Extents of a snapshot are given to others.
    ReclaimedEarly,
    /// The volume works at `shadow`, and `atomic` is promised.
    OverwrittenInPlace,
}

/// Answers a flush at once; what it stands for is done at the next.
struct Late {
    child: Rc<Node>,
    asked: Cell<bool>,
}

impl Layer for Late {
    fn geometry(&self) -> Geometry {
        Geometry { fua: false, ..self.child.geometry() }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op.kind() == OpKind::Flush && !self.asked.replace(!self.asked.get()) {
            true => Step::Done(Ok(())),
            false => Step::Forward(Rc::clone(&self.child)),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }
}

impl Manage for Late {}

impl Wrong {
    async fn open(self, env: &Rc<lamina_sim::SimEnv>, how: &How) -> Result<Open> {
        let child = match self {
            Wrong::DataLate => {
                let late = Late { child: disk(env, DISK), asked: Cell::new(false) };
                Node::new("late", "late", Rc::clone(env) as _, Rc::new(late))
            }
            Wrong::Nothing | Wrong::SharedInPlace | Wrong::ReclaimedEarly | Wrong::OverwrittenInPlace => {
                disk(env, DISK)
            }
        };
        let level = if self == Wrong::OverwrittenInPlace { Level::Shadow } else { how.level };
        open_over(env, &How { level, ..how.clone() }, Begin::Format, child).await
    }

    /// Does the damage that is done after a request.
    async fn after(self, vol: &Open) {
        match self {
            Wrong::Nothing | Wrong::DataLate | Wrong::OverwrittenInPlace => {}
            Wrong::SharedInPlace => vol.core.state.borrow_mut().versions.pretend_to_be_old(),
            Wrong::ReclaimedEarly => {
                let space = Rc::clone(&vol.core.space.borrow());
                let (used, _) = space.used(0).await.expect("bits");
                let Some(extent) = used.first().filter(|_| !vol.core.state().versions.snapshots().is_empty())
                else {
                    return;
                };
                let freed = space.free(lamina_metadata::Change::new(), *extent).await.expect("it is in use");
                vol.core.stage(freed).await.expect("changed");
                space.release(&[*extent]);
            }
        }
    }
}

/// Random requests one after the other; crashes among them.
fn work(how: &How, seed: u64, steps: usize, one_in: u64, wrong: Wrong) -> (Vec<State>, Vec<Moment>) {
    let world = world(how, seed);
    let (env, how) = (world.env(), how.clone());
    let history = Rc::new(RefCell::new(History::default()));
    let moments = Rc::new(RefCell::new(Vec::new()));
    let (h, m) = (Rc::clone(&history), Rc::clone(&moments));
    world
        .run(async move {
            let vol = wrong.open(&env, &how).await.expect("made");
            let first = state(&vol).await;
            h.borrow_mut().states.push(first);
            let (weak, into, seen) = (Rc::downgrade(&env), Rc::clone(&m), Rc::clone(&h));
            let random = RefCell::new(xorshift(seed * 2 + 1));
            env.observe(Some(Rc::new(move || {
                let draw = || (random.borrow_mut())();
                let Some(env) = weak.upgrade().filter(|_| draw() % one_in == 0) else { return };
                let history = seen.borrow();
                into.borrow_mut().push(Moment {
                    images: env.after_death(draw() >> 8, draw()),
                    floor: history.floor,
                    end: history.states.len(),
                    under_way: history.under_way.clone(),
                });
            })));
            let mut draw = xorshift(seed * 2 + 77);
            for step in 0..steps {
                one(&vol, &h, &mut draw, step).await;
                wrong.after(&vol).await;
            }
            env.observe(None);
            vol.audit(false).await;
            vol.command("reclaim", json!({})).await.expect("it begins");
            vol.reclaimed().await;
            vol.audit(true).await;
            vol.node.close().await.expect("closed");
        })
        .expect("it ends");
    let states = std::mem::take(&mut history.borrow_mut().states);
    (states, moments.take())
}

/// One request or command.
async fn one(vol: &Open, history: &RefCell<History>, draw: &mut impl FnMut() -> u64, step: usize) {
    let now = history.borrow().states.last().cloned().expect("there is one");
    let blocks = vol.node.geometry().size / 4096;
    let at = (draw() >> 4) % blocks * 4096;
    let len = (((draw() >> 4) % 8 + 1) * 4096).min(blocks * 4096 - at);
    let (from, to) = (at as usize, (at + len) as usize);
    let mut next = now.clone();
    let begin = |next: &State| history.borrow_mut().under_way = Some(next.clone());
    let mut durable = false;
    match (draw() >> 4) % 20 {
        0..10 => {
            next.volume[from..to].fill(step as u8 | 1);
            begin(&next);
            vol.write(at, step as u8 | 1, len as usize).await.expect("written");
        }
        10..12 => {
            next.volume[from..to].fill(0);
            begin(&next);
            vol.node.submit(Io::zero(at..at + len, Zero::default())).await.expect("zeroed");
        }
        12..16 => {
            vol.flush().await.expect("flushed");
            durable = true;
        }
        16 | 17 if now.snapshots.len() < 4 => {
            let name = format!("s{step}");
            next.snapshots.insert(name.clone(), now.volume.clone());
            begin(&next);
            vol.command("snapshot", json!({ "name": name })).await.expect("kept");
            durable = true;
        }
        18 if !now.snapshots.is_empty() => {
            let name = now.snapshots.keys().nth(draw() as usize % now.snapshots.len()).expect("one");
            next.volume = now.snapshots[name].clone();
            begin(&next);
            vol.command("rollback", json!({ "name": name })).await.expect("rolled back");
            durable = true;
        }
        _ if !now.snapshots.is_empty() => {
            let name = now.snapshots.keys().nth(draw() as usize % now.snapshots.len()).expect("one").clone();
            next.snapshots.remove(&name);
            begin(&next);
            vol.command("delete", json!({ "name": name })).await.expect("deleted");
        }
        _ => {}
    }
    let mut history = history.borrow_mut();
    let deleted = next.snapshots.len() < now.snapshots.len();
    history.states.push(next);
    history.under_way = None;
    if durable || deleted {
        history.floor = match durable {
            true => history.states.len() - 1,
            // Of the volume nothing became durable, but the snapshot does not come back.
            false => history.floor,
        };
    }
}

/// Whether `found` may be what a crash has left.
fn allowed(level: Level, states: &[State], moment: &Moment, found: &State) -> bool {
    let possible = || states[moment.floor..moment.end].iter().chain(&moment.under_way);
    if !possible().any(|state| state.snapshots == found.snapshots) {
        return false;
    }
    if level == Level::Atomic {
        // One moment, whole: a request that was under way then may be there in part.
        let all: Vec<&State> = possible().collect();
        return all.iter().any(|state| state.volume == found.volume)
            || all.windows(2).any(|pair| mixed(pair, &found.volume));
    }
    mixed(&possible().collect::<Vec<_>>(), &found.volume)
}

/// Whether every block is as in one of `states`.
fn mixed(states: &[&State], found: &[u8]) -> bool {
    let known = |at: usize| {
        let of = |state: &&State| {
            state.volume.get(at * 512..(at + 1) * 512) == found.get(at * 512..(at + 1) * 512)
        };
        states.iter().any(of)
    };
    (0..found.len() / 512).all(known)
}

pub fn random_work(
    level: Level,
    meta: Option<u64>,
    seeds: Range<u64>,
    steps: usize,
    one_in: u64,
    wrong: Wrong,
) -> std::result::Result<(), String> {
    for seed in seeds {
        let how = How { meta, ..How::new(level) };
        let (states, moments) = work(&how, seed, steps, one_in, wrong);
        for (i, moment) in moments.iter().enumerate() {
            let found = recover(&how, seed, &moment.images);
            if !allowed(level, &states, moment, &found) {
                let last = &states[moment.end - 1];
                return Err(format!("{level:?}, seed {seed}, crash {i}: found {found:?}\nlast {last:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn random_work_lazy() {
    random_work(Level::Lazy, None, 0..4, 80, 12, Wrong::Nothing).unwrap();
}

#[test]
fn random_work_shadow() {
    random_work(Level::Shadow, None, 0..4, 80, 12, Wrong::Nothing).unwrap();
}

#[test]
fn random_work_atomic() {
    random_work(Level::Atomic, None, 0..4, 80, 12, Wrong::Nothing).unwrap();
    random_work(Level::Atomic, Some(2 << 20), 4..6, 80, 12, Wrong::Nothing).unwrap();
}
