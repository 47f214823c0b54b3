//! A model of a store, random work on both, and the states that a crash may leave.

#![allow(dead_code, reason = "each test file uses a part of it")]

use fastrand::Rng;
use lamina_block::{Env, Node};
use lamina_metadata::{Change, Format, Level, Object, Options, Region, Store};
use lamina_sim::{DiskOptions, Image, Loss, SimEnv, Simulation};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

pub const DISK: &str = "disk";
/// Bytes of an object in a page.
pub const PAYLOAD: usize = 4064;
pub const REGION: std::ops::Range<u64> = 8192..8192 + (2 + 16 + 2 * 60) * 4096;

/// Every object with its bytes.
pub type State = BTreeMap<u64, Vec<u8>>;

pub fn format(level: Level) -> Format {
    Format { level, log: 64 << 10, objects: 100 }
}

/// So little memory that pages come and go.
pub fn options() -> Options {
    Options { memory: 512 << 10, interval: Duration::from_millis(2) }
}

/// The layer between the store and the disk.
pub type Under = Rc<dyn Fn(&Rc<SimEnv>, Rc<Node>) -> Rc<Node>>;

pub fn nothing() -> Under {
    Rc::new(|_, node| node)
}

pub fn node(env: &Rc<SimEnv>, under: &Under) -> Rc<Node> {
    let disk = env.disk(DISK).expect("it was put there");
    under(env, Node::new(DISK, "simulated", Rc::clone(env) as _, disk))
}

pub fn region(env: &Rc<SimEnv>, under: &Under) -> Region {
    Region::new(node(env, under), REGION).expect("it fits")
}

pub fn dyn_env(env: &Rc<SimEnv>) -> Rc<dyn Env> {
    Rc::clone(env) as _
}

pub async fn open(env: &Rc<SimEnv>, under: &Under) -> lamina_block::Result<Store> {
    Store::open(&dyn_env(env), region(env, under), options()).await
}

/// A new disk, full of other data or not.
pub fn blank(block: u32, junk: bool) -> Image {
    let mut disk = DiskOptions::new(REGION.end + 4096);
    disk.geometry.block = block;
    disk.junk = junk.then_some(0xF000_0001);
    Image::blank(disk)
}

pub async fn contents(store: &Store) -> Result<State, String> {
    let mut state = State::new();
    for (id, len, _) in store.objects() {
        let mut bytes = vec![0; len as usize];
        let object = store.load(id).map_err(|e| e.to_string())?;
        object.read(0, &mut bytes).await.map_err(|e| format!("object {}: {e}", id.0))?;
        state.insert(id.0, bytes);
    }
    Ok(state)
}

/// The changes to a store, and those of them that are promised.
#[derive(Default)]
pub struct History {
    /// After every change.
    pub states: RefCell<Vec<State>>,
    /// The first state that may be found after a crash now.
    pub floor: Cell<usize>,
    /// States at which a commit was called.
    pub called: RefCell<Vec<usize>>,
}

impl History {
    fn now(&self) -> usize {
        self.states.borrow().len() - 1
    }

    fn push(&self, change: impl FnOnce(&mut State)) {
        let mut states = self.states.borrow_mut();
        let mut next = states.last().cloned().unwrap_or_default();
        change(&mut next);
        states.push(next);
    }
}

/// A moment at which the power may have failed.
pub struct Crash {
    pub images: lamina_sim::Images,
    pub loss: Loss,
    floor: usize,
    end: usize,
    called: usize,
}

impl Crash {
    /// The violation in `found`, if there is one.
    pub fn check(&self, history: &History, level: Level, found: &State) -> Result<(), String> {
        let states = &history.states.borrow()[..self.end];
        let called = &history.called.borrow()[..self.called];
        let allowed = || (self.floor..self.end).filter(|i| level != Level::Atomic || called.contains(i));
        if level == Level::Lazy {
            return lazy(&states[self.floor..], found);
        }
        if allowed().any(|i| states[i] == *found) {
            return Ok(());
        }
        let which = states.iter().position(|state| state == found);
        let allowed: Vec<usize> = allowed().collect();
        Err(format!("{level:?}: found state {which:?} of {}, allowed are {allowed:?}", self.end))
    }
}

/// The objects are those of one state, and each page is that of one.
fn lazy(states: &[State], found: &State) -> Result<(), String> {
    let numbers = |state: &State| state.iter().map(|(id, bytes)| (*id, bytes.len())).collect::<Vec<_>>();
    if !states.iter().any(|state| numbers(state) == numbers(found)) {
        return Err(format!("there are objects {:?}", numbers(found)));
    }
    for (id, bytes) in found {
        for (i, page) in bytes.chunks(PAYLOAD).enumerate() {
            let known =
                |state: &State| state.get(id).is_some_and(|bytes| bytes.chunks(PAYLOAD).nth(i) == Some(page));
            if !states.iter().any(known) {
                return Err(format!("page {i} of object {id} is as it never was"));
            }
        }
    }
    Ok(())
}

/// Random work on a store.
pub struct Work {
    pub env: Rc<SimEnv>,
    pub store: Rc<Store>,
    pub history: Rc<History>,
    pub rng: Rng,
    /// Requests fail now and then: errors are no finding.
    pub faulty: bool,
}

impl Work {
    pub async fn run(mut self, steps: usize) -> Result<(), String> {
        if self.history.states.borrow().is_empty() {
            self.history.push(|_| {});
            self.history.called.borrow_mut().push(0);
        }
        for _ in 0..steps {
            match self.rng.u8(0..20) {
                0..3 => self.alloc().await?,
                3 => self.free().await?,
                4..6 => self.commit(self.rng.clone().bool()).await?,
                6 => self.env.sleep(Duration::from_micros(self.rng.u64(0..3000))).await,
                7 => self.read().await?,
                8 => drop(self.object().map(|object| self.store.unload(object.id()))),
                _ => self.change().await?,
            }
        }
        Ok(())
    }

    fn object(&mut self) -> Option<Object> {
        let objects = self.store.objects();
        let (id, ..) = *objects.get(self.rng.usize(0..objects.len().max(1)))?;
        self.store.load(id).ok()
    }

    async fn alloc(&mut self) -> Result<(), String> {
        let len = if self.rng.bool() { self.rng.u64(1..500) } else { self.rng.u64(1..4 * PAYLOAD as u64) };
        loop {
            match self.store.alloc(len, 0).await {
                Ok(object) => {
                    self.history.push(|state| drop(state.insert(object.id().0, vec![0; len as usize])));
                    return Ok(());
                }
                Err(e) if e.message().contains("commit first") => self.commit(true).await?,
                Err(e) if e.kind() == lamina_block::ErrorKind::NoSpace => return self.free().await,
                Err(_) if self.faulty => return Ok(()),
                Err(e) => return Err(format!("alloc: {e}")),
            }
        }
    }

    async fn free(&mut self) -> Result<(), String> {
        let Some(object) = self.object() else { return Ok(()) };
        let id = object.id();
        self.make(Change::new().free(id), |state| drop(state.remove(&id.0))).await
    }

    async fn change(&mut self) -> Result<(), String> {
        let mut change = Change::new();
        let mut writes = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            let Some(object) = self.object() else { return Ok(()) };
            let most = if self.rng.u8(0..4) == 0 { 6000 } else { 100 };
            let len = self.rng.u64(1..=object.len().min(most));
            let at = self.rng.u64(0..=object.len() - len);
            let bytes: Vec<u8> = std::iter::repeat_with(|| self.rng.u8(..)).take(len as usize).collect();
            change = change.write(object.id(), at, &bytes[..]);
            writes.push((object.id(), at as usize, bytes));
        }
        let into = |state: &mut State| {
            for (id, at, bytes) in writes {
                state.get_mut(&id.0).expect("known")[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        };
        self.make(change, into).await
    }

    async fn make(&mut self, change: Change, into: impl FnOnce(&mut State)) -> Result<(), String> {
        loop {
            match self.store.change(change.clone()).await {
                Ok(()) => {
                    self.history.push(into);
                    return Ok(());
                }
                Err(e) if e.message().contains("commit first") => self.commit(true).await?,
                Err(_) if self.faulty => return Ok(()),
                Err(e) => return Err(format!("change: {e}")),
            }
        }
    }

    /// Commits; changes meanwhile are not promised.
    async fn commit(&mut self, wait: bool) -> Result<(), String> {
        let (store, history, home) =
            (Rc::clone(&self.store), Rc::clone(&self.history), self.rng.u8(0..5) == 0);
        let started = self.env.start(async move {
            let now = history.now();
            history.called.borrow_mut().push(now);
            let done = if home { store.flush().await } else { store.commit().await };
            if done.is_ok() {
                history.floor.set(history.floor.get().max(now));
            }
            done
        });
        if wait
            && let Err(e) = started.ended().await
            && !self.faulty
        {
            return Err(format!("commit: {e}"));
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), String> {
        let Some(object) = self.object() else { return Ok(()) };
        let mut bytes = vec![0; object.len() as usize];
        match object.read(0, &mut bytes).await {
            Err(_) if self.faulty => return Ok(()),
            result => result.map_err(|e| format!("read: {e}"))?,
        }
        match self.history.states.borrow().last().is_some_and(|state| state[&object.id().0] == bytes) {
            true => Ok(()),
            false => Err(format!("object {} reads as something else", object.id().0)),
        }
    }
}

/// The part that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    /// The machine: unflushed writes may be lost.
    Machine,
    /// The process alone: its writes are there, though perhaps in a cache.
    Process,
}

/// Takes images before every change of the disk from now on; `one_in` says how many of them.
pub fn record(
    world: &Simulation,
    history: &Rc<History>,
    dies: Dies,
    one_in: u8,
    seed: u64,
) -> Rc<RefCell<Vec<Crash>>> {
    let crashes = Rc::new(RefCell::new(Vec::new()));
    let (env, into, history) = (Rc::downgrade(&world.env()), Rc::clone(&crashes), Rc::clone(history));
    let rng = RefCell::new(Rng::with_seed(seed));
    world.env().observe(Some(Rc::new(move || {
        let (Some(env), rng) = (env.upgrade(), &mut *rng.borrow_mut()) else { return };
        if rng.u8(0..one_in) > 0 {
            return;
        }
        let loss = Loss::ALL[rng.usize(0..Loss::ALL.len())];
        into.borrow_mut().push(Crash {
            images: if dies == Dies::Machine { env.images(loss, rng.u64(..)) } else { env.orphans() },
            loss,
            floor: history.floor.get(),
            end: history.states.borrow().len(),
            called: history.called.borrow().len(),
        });
    })));
    crashes
}

/// Opens the image of a crash, and those of crashes during that, down to `depth`; returns the findings.
pub fn recover(images: &lamina_sim::Images, under: &Under, depth: u8, seed: u64) -> Result<State, String> {
    let world = Simulation::from_images(seed, images);
    let history = Rc::new(History::default());
    let again = record(&world, &history, Dies::Machine, if depth > 1 { 3 } else { 6 }, seed);
    let (env, below) = (world.env(), Rc::clone(under));
    let opened = world.run(async move {
        let store = open(&env, &below).await.map_err(|e| format!("it cannot be opened: {e}"))?;
        env.observe(None);
        let found = contents(&store).await?;
        // It works.
        let object = store.alloc(100, 7).await.map_err(|e| format!("afterwards: {e}"))?;
        object.write(1, &[1; 9]).await.map_err(|e| format!("afterwards: {e}"))?;
        store.close().await.map_err(|e| format!("close: {e}"))?;
        Ok::<_, String>(found)
    });
    let found = opened.map_err(|hang| hang.to_string())??;
    if let Some(finding) = world.env().take_finding() {
        return Err(finding);
    }
    drop(world);
    if depth > 0 {
        for (i, crash) in again.take().iter().enumerate() {
            let after = recover(&crash.images, under, depth - 1, seed.wrapping_add(i as u64))
                .map_err(|e| format!("after a crash while it was opened ({:?}): {e}", crash.loss))?;
            if after != found {
                return Err(format!("a crash while it was opened ({:?}) changes what is found", crash.loss));
            }
        }
    }
    Ok(found)
}

/// A whole run: random work, a crash before each change of the disk or a few of them, and the findings afterwards.
pub fn crash_run(level: Level, seed: u64, steps: usize, one_in: u8, under: &Under) -> Result<(), String> {
    let (history, crashes) = work(level, seed, steps, one_in, under, Dies::Machine)?;
    for (i, crash) in crashes.iter().enumerate() {
        let tell = |e| format!("seed {seed}, crash {i} ({:?}): {e}", crash.loss);
        let found = recover(&crash.images, under, 2, seed ^ i as u64).map_err(tell)?;
        crash.check(&history, level, &found).map_err(tell)?;
    }
    Ok(())
}

/// Random work on a new store, and moments at which it may have died.
pub fn work(
    level: Level,
    seed: u64,
    steps: usize,
    one_in: u8,
    under: &Under,
    dies: Dies,
) -> Result<(Rc<History>, Vec<Crash>), String> {
    let rng = &mut Rng::with_seed(seed);
    let world = Simulation::new(seed);
    world.env().put_disk(DISK, blank(if rng.bool() { 512 } else { 4096 }, rng.bool()));
    let (env, below) = (world.env(), Rc::clone(under));
    let store = world
        .run(async move {
            Store::format(&dyn_env(&env), &region(&env, &below), format(level)).await?;
            open(&env, &below).await
        })
        .map_err(|hang| hang.to_string())?
        .map_err(|e| format!("it cannot be made: {e}"))?;
    let history = Rc::new(History::default());
    let (env, store) = (world.env(), Rc::new(store));
    history.push(|_| {});
    history.called.borrow_mut().push(0);
    let crashes = record(&world, &history, dies, one_in, seed);
    let work = Work { env, store, history: Rc::clone(&history), rng: rng.fork(), faulty: false };
    world.run(work.run(steps)).map_err(|hang| hang.to_string())??;
    if let Some(finding) = world.env().take_finding() {
        return Err(finding);
    }
    drop(world);
    let crashes = crashes.take();
    Ok((history, crashes))
}
