//! Check 6: several lives, each of which ends in the middle.
//!
//! ```text
//!   made ─▶ load ─✗ ─▶ opened ─▶ load ─✗ ─▶ opened ─▶ load ─✗ ─▶ opened, read
//!                         ✗                    ✗
//! ```
//!
//! A life ends when its process dies, or when the power fails: under load, or while the subject is opened. After the
//! death of a process all its writes are there, and are not durable: data that is believed then, and acted on, may be
//! gone after the next death. So all acknowledged writes are there, also without a flush: a guest outlives the process.
//! All lives have one history, so that data that comes back two lives later is noticed as well. Data that is read after
//! a power loss is durable, whatever it was before: the disks cannot have had anything else.

use super::history::{History, Stays, Tick};
use super::load::{Load, Style};
use super::run::Run;
use super::scene::Scene;
use super::subject::{Keeps, Subject};
use crate::env::{Images, SimEnv};
use crate::media::Loss;
use fastrand::Rng;
use lamina_block::Level;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Requests of the first life, and of each of the others.
const REQUESTS: [usize; 2] = [32, 12];
/// Ends of the first life that are tried, in a full run and in a sample.
const ENDS: [usize; 2] = [8, 2];
/// Lives after the first one.
const LIVES: u8 = 3;

/// The end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// The process dies, and the machine goes on.
    Process,
    Power(Loss),
}

impl Death {
    fn draw(rng: &mut Rng) -> Death {
        if rng.bool() { Death::Process } else { Death::Power(Loss::ALL[rng.usize(0..Loss::ALL.len())]) }
    }
}

/// A death, and the disks that it leaves.
struct End {
    at: Tick,
    death: Death,
    images: Images,
}

/// Takes the images that a death would leave at a few moments, during a life.
struct Watch {
    env: Rc<SimEnv>,
    ends: Rc<RefCell<Vec<End>>>,
}

impl Watch {
    /// Draws `count` moments; every one has the same chance.
    fn begin(env: &Rc<SimEnv>, count: usize, seed: u64) -> Watch {
        let ends: Rc<RefCell<Vec<End>>> = Rc::default();
        let (weak, into, met) = (Rc::downgrade(env), Rc::clone(&ends), Cell::new(0));
        let rng = RefCell::new(Rng::with_seed(seed));
        env.observe(Some(Rc::new(move || {
            let (Some(env), rng) = (weak.upgrade(), &mut *rng.borrow_mut()) else { return };
            met.set(met.get() + 1);
            let mut ends = into.borrow_mut();
            let place = if ends.len() < count { ends.len() } else { rng.usize(0..met.get()) };
            if place >= count {
                return;
            }
            let death = Death::draw(rng);
            let images = match death {
                Death::Process => env.orphans(),
                Death::Power(loss) => env.images(loss, rng.u64(..)),
            };
            let end = End { at: env.tick(), death, images };
            match ends.get_mut(place) {
                Some(other) => *other = end,
                None => ends.push(end),
            }
        })));
        Watch { env: Rc::clone(env), ends }
    }

    fn end(self) -> Vec<End> {
        self.env.observe(None);
        self.ends.take()
    }
}

/// A subject that is followed through its lives.
struct Lives<'a> {
    subject: &'a Subject,
    seed: u64,
}

impl Lives<'_> {
    /// The history until the end of a life, for the next one.
    fn until(&self, end: &End, history: &History) -> History {
        // At `atomic` a map goes back to its state at one moment, whatever has died.
        let stays = match end.death {
            Death::Process if self.subject.level != Level::Atomic => Stays::Ended,
            Death::Process | Death::Power(_) => Stays::Durable,
        };
        history.after(end.at, stays)
    }

    /// The life after `end`, and after it up to `left` more. `history` is what happened until then.
    fn next(&self, before: &Load, history: History, end: &End, left: u8) -> Result<(), String> {
        let tell = |e: String| match end.death {
            Death::Process => format!("after a death of the process at tick {}: {e}", end.at),
            Death::Power(loss) => format!("after a power loss at tick {} (lost: {loss:?}): {e}", end.at),
        };
        let seed = self.seed ^ end.at.rotate_left(32) ^ u64::from(left);
        let scene = Scene::after(self.subject, self.seed, &end.images);
        let env = scene.rig.env();
        env.skip_to(end.at);
        let watch = Watch::begin(&env, 1, seed);
        let built = scene.build(self.subject);
        let early = watch.end();
        let load = before.resume(Rc::clone(&env), built.map_err(tell)?, history.clone(), seed);
        let (found, is_durable) = (Rc::clone(&load), end.death != Death::Process);
        scene.drive(&load, async move { found.find(is_durable).await }).map_err(tell)?;
        let watch = Watch::begin(&env, 1, !seed);
        let requests = if left > 0 { REQUESTS[1] } else { 0 };
        let (work, style) = (Rc::clone(&load), Style::draw(&mut Rng::with_seed(seed), requests));
        let driven = scene.drive(&load, async move {
            work.run(style).await;
            work.read_all().await;
        });
        let late = watch.end();
        driven.map_err(tell)?;
        drop(scene);
        if left == 0 {
            return Ok(());
        }
        for next in &early {
            let history = self.until(next, &history);
            self.next(&load, history, next, left - 1).map_err(|e| tell(format!("during the open, {e}")))?;
        }
        for next in &late {
            let history = self.until(next, &load.history.borrow());
            self.next(&load, history, next, left - 1)
                .map_err(|e| tell(format!("and in its next life {e}")))?;
        }
        Ok(())
    }
}

pub(crate) fn check(subject: &Subject, seed: u64, run: Run) -> Result<(), String> {
    if subject.keeps != Keeps::Durably {
        return Ok(());
    }
    let scene = Scene::new(subject, seed);
    let load = scene.load(subject, seed)?;
    let style = Style::draw(&mut Rng::with_seed(seed), REQUESTS[0]);
    let watch = Watch::begin(&load.env, ENDS[usize::from(run == Run::Sample)], seed);
    let work = Rc::clone(&load);
    let driven = scene.drive(&load, async move { work.run(style).await });
    let ends = watch.end();
    driven?;
    let lives = Lives { subject, seed };
    for end in &ends {
        let history = lives.until(end, &load.history.borrow());
        lives.next(&load, history, end, LIVES - 1)?;
    }
    scene.finish(load)
}
