//! Check 3: each request to a disk fails once in turn, or from then on the disk stays away.
//!
//! The same seed is run without a fault first, to count the requests to disks. With a fault, requests that were under
//! way when it struck may fail; everything else must not. Afterwards, and after a power loss, contents must still be
//! what was acknowledged: an error that was swallowed shows there.

use super::crash::{Recorder, verify};
use super::load::{Load, Style};
use super::run::Run;
use super::scene::Scene;
use super::subject::Subject;
use crate::env::SimEnv;
use crate::options::Presence;
use fastrand::Rng;
use lamina_block::Error;
use std::cell::Cell;
use std::rc::Rc;

/// Requests of one run.
const REQUESTS: usize = 24;
/// Most faults of a full run.
const FAULTS_MAX: u64 = 64;

/// The fault.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The disk request of this number fails; later ones do not.
    Once(u64),
    /// From the disk request of this number on, its disk fails every request.
    Away(u64),
}

pub(crate) fn check(subject: &Subject, seed: u64, run: Run) -> Result<(), String> {
    let requests = attempt(subject, seed, None)?;
    if requests == 0 {
        return Ok(());
    }
    let rng = &mut Rng::with_seed(seed);
    let draw = |rng: &mut Rng| if rng.u8(0..4) == 0 { Fault::Away } else { Fault::Once };
    let tell =
        |fault: Fault| move |e: String| format!("with the fault {fault:?} of {requests} disk requests: {e}");
    if run == Run::Sample {
        let fault = draw(rng)(rng.u64(0..requests));
        return attempt(subject, seed, Some(fault)).map(drop).map_err(tell(fault));
    }
    let step = requests.div_ceil(FAULTS_MAX);
    for number in (rng.u64(0..step)..requests).step_by(step as usize) {
        let fault = draw(rng)(number);
        attempt(subject, seed, Some(fault)).map_err(tell(fault))?;
    }
    Ok(())
}

/// One run; the number of requests to disks that the load made.
fn attempt(subject: &Subject, seed: u64, fault: Option<Fault>) -> Result<u64, String> {
    let scene = Scene::new(subject, seed);
    let style = Style::draw(&mut Rng::with_seed(seed), REQUESTS);
    let load = scene.load(subject, seed)?;
    let before = load.env.disk_requests();
    let struck = Rc::new(Cell::new(false));
    if let Some(fault) = fault {
        inject(&load, fault, before, Rc::clone(&struck));
    }
    let began = Rc::clone(&struck);
    let recorder = Recorder::start(&load, Run::Sample, seed, move || began.get());
    let work = Rc::clone(&load);
    scene.drive(&load, async move { work.run(style).await })?;
    let crashes = recorder.end(&load);
    let requests = load.env.disk_requests() - before;
    load.env.set_fault(None);
    if !matches!(fault, Some(Fault::Away(_))) {
        let work = Rc::clone(&load);
        scene.drive(&load, async move { work.read_all().await })?;
    }
    for crash in crashes {
        verify(subject, seed, &load, &crash)?;
    }
    return_disks(&load.env);
    match fault {
        Some(Fault::Away(_)) => scene.finish_broken(load)?,
        Some(Fault::Once(_)) | None => scene.finish(load)?,
    }
    Ok(requests)
}

fn inject(load: &Rc<Load>, fault: Fault, before: u64, struck: Rc<Cell<bool>>) {
    let (Fault::Once(number) | Fault::Away(number)) = fault;
    let weak = Rc::downgrade(load);
    load.env.set_fault(Some(Box::new(move |n, disk, _| {
        let load = weak.upgrade().filter(|_| n == before + number)?;
        struck.set(true);
        let now = load.env.tick();
        load.excuse(|excuse| match fault {
            Fault::Once(_) => excuse.fault = Some(now),
            Fault::Away(_) => excuse.broken = Some(now),
        });
        if let (Fault::Away(_), Some(disk)) = (fault, load.env.disk(disk)) {
            disk.set_presence(Presence::Failing);
        }
        Some(Error::media("a simulated fault"))
    })));
}

fn return_disks(env: &SimEnv) {
    env.disks().iter().for_each(|disk| disk.set_presence(Presence::Here));
}
