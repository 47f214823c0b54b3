//! Check 2: the power fails before every change of any disk.
//!
//! The disks' images are taken while the subject runs, right before their contents, or the durable part, change: the
//! last moment of each state, when the most has been acknowledged on top of it. Afterwards the subject is opened again
//! over each image, and read twice. While it is opened the power may fail again, and while it is opened after that:
//! recovery must be able to begin again, whatever it writes.

use super::history::Tick;
use super::load::{Load, Style};
use super::run::Run;
use super::scene::Scene;
use super::subject::{Keeps, Subject};
use crate::env::Images;
use crate::media::Loss;
use fastrand::Rng;
use lamina_block::{Durability, Io};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Requests of one run.
const REQUESTS: usize = 40;
/// One in so many crash points is tried when sampling.
const SAMPLE: u8 = 24;

/// How often the power fails again while the subject is opened.
const DEPTH: u8 = 2;
/// Of the moments at which it may fail again, so many are tried.
const AGAIN: usize = 3;

/// Bytes that are read and checked at a time: they stay in the processor's cache.
const PIECE: u64 = 64 << 10;

/// The disks as a power loss leaves them.
pub(crate) struct Crash {
    /// The moments at which it would leave them so: what was acknowledged until then differs.
    ats: Vec<Tick>,
    loss: Loss,
    images: Images,
}

/// How many crashes back the same disks are searched for.
const SAME: usize = 8;

impl Crash {
    /// Now, with everything lost that may be.
    pub(crate) fn losing_all(load: &Load) -> Crash {
        Crash { ats: vec![load.env.tick()], loss: Loss::All, images: load.env.images(Loss::All, 0) }
    }
}

/// Takes crash images while it lives.
pub(crate) struct Recorder(Rc<RefCell<Vec<Crash>>>);

impl Recorder {
    /// Takes images of the disks of `load`'s environment before each change, or before a few drawn ones. `from` says
    /// whether to begin yet.
    pub(crate) fn start(load: &Load, run: Run, seed: u64, from: impl Fn() -> bool + 'static) -> Recorder {
        let crashes = Rc::new(RefCell::new(Vec::new()));
        let rng = RefCell::new(Rng::with_seed(seed));
        let (env, into) = (Rc::downgrade(&load.env), Rc::clone(&crashes));
        load.env.observe(Some(Rc::new(move || {
            let rng = &mut *rng.borrow_mut();
            let skip = run == Run::Sample && rng.u8(0..SAMPLE) > 0;
            if skip || !from() {
                return;
            }
            let Some(env) = env.upgrade() else { return };
            let loss = Loss::ALL[rng.usize(0..Loss::ALL.len())];
            add(
                &mut into.borrow_mut(),
                Crash { ats: vec![env.tick()], loss, images: env.images(loss, rng.u64(..)) },
            );
        })));
        Recorder(crashes)
    }

    /// Takes one more image, in which everything is lost that may be, and ends.
    pub(crate) fn end(self, load: &Load) -> Vec<Crash> {
        load.env.observe(None);
        add(&mut self.0.borrow_mut(), Crash::losing_all(load));
        self.0.take()
    }
}

/// Adds a crash. All that follows from the same disks is the same: these are opened once, for all of their moments.
fn add(crashes: &mut Vec<Crash>, crash: Crash) {
    let same = |known: &&mut Crash| is_same(&known.images, &crash.images);
    match crashes.iter_mut().rev().take(SAME).find(same) {
        Some(known) => known.ats.extend(crash.ats),
        None => crashes.push(crash),
    }
}

/// Whether disks are known to hold the same.
fn is_same(a: &Images, b: &Images) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|((p, a), (q, b))| p == q && a.is_same(b))
}

/// Takes images of the disks of `scene` while its subject is opened after `crash`: a few drawn moments.
fn fail_again(scene: &Scene, crash: &Crash, seed: u64) -> Rc<RefCell<Vec<Crash>>> {
    let again: Rc<RefCell<Vec<Crash>>> = Rc::default();
    let (ats, into, met) = (crash.ats.clone(), Rc::clone(&again), Cell::new(0));
    let (env, rng) = (Rc::downgrade(&scene.rig.env()), RefCell::new(Rng::with_seed(seed)));
    scene.rig.env().observe(Some(Rc::new(move || {
        let (Some(env), rng) = (env.upgrade(), &mut *rng.borrow_mut()) else { return };
        met.set(met.get() + 1);
        let mut again = into.borrow_mut();
        // Every moment has the same chance to stay.
        let place = if again.len() < AGAIN { again.len() } else { rng.usize(0..met.get()) };
        if place >= AGAIN {
            return;
        }
        let loss = Loss::ALL[rng.usize(0..Loss::ALL.len())];
        let crash = Crash { ats: ats.clone(), loss, images: env.images(loss, rng.u64(..)) };
        match again.get_mut(place) {
            Some(other) => *other = crash,
            None => again.push(crash),
        }
    })));
    again
}

/// Opens the subject over the disks after a crash, and checks its contents; also after crashes while it is opened.
pub(crate) fn verify(subject: &Subject, seed: u64, load: &Load, crash: &Crash) -> Result<(), String> {
    verify_to(subject, seed, load, crash, DEPTH)
}

fn verify_to(subject: &Subject, seed: u64, load: &Load, crash: &Crash, depth: u8) -> Result<(), String> {
    let tell =
        |e: String| format!("after a power loss at tick {:?} (lost: {:?}): {e}", crash.ats, crash.loss);
    let scene = Scene::after(subject, seed, &crash.images);
    let crashes = fail_again(&scene, crash, seed ^ u64::from(depth));
    let built = scene.build(subject);
    scene.rig.env().observe(None);
    let top = built.map_err(tell)?;
    let block = u64::from(top.geometry().block);
    for at in load.arena().iter().flat_map(|at| pieces(at, PIECE.max(block))) {
        let first = scene.read(&top, at.clone()).map_err(tell)?;
        if subject.keeps == Keeps::Durably {
            load.history.borrow().check_crash(&at, &first, &crash.ats).map_err(tell)?;
        }
        if scene.read(&top, at.clone()).map_err(tell)? != first {
            return Err(tell(format!("two reads of {at:?} differ")));
        }
    }
    // The device still works.
    let again = Rc::clone(&top);
    let from = load.arena()[0].start;
    let bytes = load.history.borrow().bytes(u32::MAX, &(from..from + block));
    let write = lamina_block::Buf::from_vec(bytes.clone());
    let written = scene.run(async move { again.submit(Io::write(from, write, Durability::Fua)).await });
    written.map_err(tell)?.map_err(|e| tell(format!("a write failed: {e}")))?;
    if subject.keeps != Keeps::Nothing && scene.read(&top, from..from + block).map_err(tell)? != bytes {
        return Err(tell("a write that succeeded afterwards cannot be read".into()));
    }
    drop((top, scene));
    if depth == 0 {
        return Ok(());
    }
    // What follows from the same disks is known.
    let mut opened: Vec<&Images> = Vec::new();
    let crashes = crashes.take();
    for crash in &crashes {
        if opened.iter().any(|images| is_same(images, &crash.images)) {
            continue;
        }
        opened.push(&crash.images);
        verify_to(subject, seed, load, crash, depth - 1)
            .map_err(|e| tell(format!("and again, during the open: {e}")))?;
    }
    Ok(())
}

/// The parts of `at`, of `size` bytes each, the last one as long as it is.
fn pieces(at: &Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> {
    let end = at.end;
    at.clone().step_by(size as usize).map(move |from| from..end.min(from + size))
}

pub(crate) fn check(subject: &Subject, seed: u64, run: Run) -> Result<(), String> {
    let scene = Scene::new(subject, seed);
    let style = Style::draw(&mut Rng::with_seed(seed), REQUESTS);
    let load = scene.load(subject, seed)?;
    let recorder = Recorder::start(&load, run, seed, || true);
    let work = Rc::clone(&load);
    scene.drive(&load, async move { work.run(style).await })?;
    for crash in recorder.end(&load) {
        verify(subject, seed, &load, &crash)?;
    }
    scene.finish(load)
}
