//! Check 4: the device changes while requests run. The device is quiesced, its layer and its disks are replaced by
//! equal ones, a disk grows, it is closed and opened again. No request may fail but for a close, and no byte may be
//! wrong.

use super::crash::{Crash, verify};
use super::load::{Load, Style};
use super::scene::Scene;
use super::subject::{Keeps, Rig, Subject};
use crate::options::Presence;
use fastrand::Rng;
use lamina_block::{Buf, Durability, Env, Io, Layer, Node, OpKind, Step};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Requests of one run.
const REQUESTS: usize = 120;
/// Changes of one run before the last one.
const CHANGES: usize = 4;

type Checked = Result<(), String>;

/// The task that changes the device under load.
struct Changer {
    subject: Subject,
    rig: Rc<Rig>,
    load: Rc<Load>,
    rng: RefCell<Rng>,
}

pub(crate) fn check(subject: &Subject, seed: u64) -> Checked {
    let scene = Scene::new(subject, seed);
    let rng = &mut Rng::with_seed(seed);
    let style = Style::draw(rng, REQUESTS);
    let load = scene.load(subject, seed)?;
    let changer = Changer {
        subject: subject.clone(),
        rig: Rc::clone(&scene.rig),
        load: Rc::clone(&load),
        rng: RefCell::new(rng.fork()),
    };
    let reopens = rng.bool() && subject.keeps == Keeps::Durably;
    let work = Rc::clone(&load);
    let crash = scene.drive(&load, async move {
        let run = Rc::clone(&work);
        let running = work.env.start(async move { run.run(style).await });
        changer.change_often().await?;
        let crash = if reopens { Some(changer.reopen().await?) } else { None };
        if !reopens {
            changer.grow().await?;
        }
        running.ended().await;
        work.excuse(|excuse| excuse.closing = None);
        work.read_all().await;
        Ok::<_, String>(crash)
    })??;
    if let Some(problem) = load.problem() {
        return Err(problem);
    }
    if let Some(crash) = crash {
        verify(subject, seed, &load, &crash)?;
    }
    scene.finish(load)
}

impl Changer {
    async fn wait(&self) {
        let us = self.rng.borrow_mut().u64(0..400);
        self.load.env.sleep(Duration::from_micros(us)).await;
    }

    fn draw_disk(&self) -> Option<Rc<Node>> {
        self.rng.borrow_mut().choice(self.rig.disk_nodes())
    }

    async fn change_often(&self) -> Checked {
        for _ in 0..CHANGES {
            self.wait().await;
            let draw = self.rng.borrow_mut().u8(0..3);
            match draw {
                0 => self.quiesce().await?,
                1 => self.replace_disk().await,
                _ => self.replace_top().await?,
            }
        }
        Ok(())
    }

    /// While the device is quiesced, none of its requests is in flight and none completes.
    async fn quiesce(&self) -> Checked {
        let top = self.load.top();
        let held = top.quiesce().await;
        let completed = completed(&top);
        if top.stats().in_flight() > 0 {
            return Err(format!(
                "the device is quiesced with {} requests in flight",
                top.stats().in_flight()
            ));
        }
        self.wait().await;
        if top.stats().in_flight() > 0 || completed != self::completed(&top) {
            return Err("a request passed while the device was quiesced".into());
        }
        drop(held);
        Ok(())
    }

    /// Puts a disk with the same contents in the place of one. The old one must not be used any more.
    async fn replace_disk(&self) {
        let Some(node) = self.draw_disk() else { return };
        let held = node.quiesce().await;
        let Some(disk) = self.load.env.disk(node.name()) else { return };
        let twin = self.load.env.put_disk(node.name(), disk.twin());
        disk.set_presence(Presence::Replaced);
        self.wait().await;
        held.replace(node.kind(), twin);
    }

    /// Closes the layer on top and puts another one, built the same way, in its place.
    async fn replace_top(&self) -> Checked {
        let top = self.load.top();
        if self.subject.keeps == Keeps::UntilClosed || top.kind() == "simulated" {
            return Ok(());
        }
        let held = top.quiesce().await;
        let failed = |e: lamina_block::Error| format!("its layer could not be closed to be replaced: {e}");
        flush(held.layer()).await.map_err(failed)?;
        held.layer().close().await.map_err(failed)?;
        for node in self.rig.take_built(&top) {
            node.close().await.map_err(failed)?;
        }
        let again = (self.subject.build)(Rc::clone(&self.rig)).await;
        let again = again.map_err(|e| format!("the device cannot be built again: {e}"))?;
        let fresh = again.quiesce().await;
        held.replace(again.kind(), fresh.layer());
        self.rig.put_in_place(&again, &top);
        Ok(())
    }

    /// Closes the device and opens it again; checks the disks that a power loss right after the close leaves.
    async fn reopen(&self) -> Result<Crash, String> {
        self.wait().await;
        let env = &self.load.env;
        let closing = env.tick();
        self.load.excuse(|excuse| excuse.closing = Some(closing));
        self.load.top().close().await.map_err(|e| format!("close failed: {e}"))?;
        // Closing flushed what had completed.
        self.load.history.borrow_mut().flushed(env.tick(), env.tick());
        let crash = Crash::losing_all(&self.load);
        for node in self.rig.take_built(&self.load.top()) {
            node.close().await.map_err(|e| format!("close failed: {e}"))?;
        }
        self.wait().await;
        self.rig.forget_nodes();
        let again = (self.subject.build)(Rc::clone(&self.rig)).await;
        self.load.set_top(again.map_err(|e| format!("the device cannot be opened again: {e}"))?);
        Ok(crash)
    }

    /// Makes a disk larger. The device may grow; its data stays in place.
    async fn grow(&self) -> Checked {
        let top = self.load.top();
        let before = top.geometry().size;
        if let Some(node) = self.draw_disk() {
            let held = node.quiesce().await;
            if let Some(disk) = self.load.env.disk(node.name()) {
                let more = self.rng.borrow_mut().u64(1..32) * 4096;
                disk.resize(disk.geometry().size + more);
            }
            drop(held);
        }
        self.rig.nodes().iter().for_each(|node| node.refresh());
        top.refresh();
        let after = top.geometry();
        if after.size < before {
            return Err(format!("a disk grew, and the device shrank from {before} to {}", after.size));
        }
        if after.size == before || self.subject.keeps == Keeps::Nothing {
            return Ok(());
        }
        let (at, bytes) = (after.size - u64::from(after.block), vec![0x77; after.block as usize]);
        let (write, read) = (Buf::from_vec(bytes.clone()), Buf::zeroed(bytes.len()));
        let failed = |e| format!("the last block after growing from {before} to {}: {e}", after.size);
        top.submit(Io::write(at, write, Durability::Fua)).await.map_err(failed)?;
        top.submit(Io::read(at, read.clone())).await.map_err(failed)?;
        if read.to_vec() == bytes {
            Ok(())
        } else {
            Err("a write to the new part of the device cannot be read".into())
        }
    }
}

fn completed(node: &Node) -> u64 {
    OpKind::ALL.iter().map(|op| node.stats().of(*op).completed.get()).sum()
}

/// Flushes a layer whose node is quiesced.
async fn flush(layer: Rc<dyn Layer>) -> lamina_block::Result<()> {
    let mut io = Io::flush();
    match layer.submit(&mut io) {
        Step::Forward(node) => node.submit(io).await,
        Step::Done(result) => result,
        Step::Control(work) => work.await,
    }
}
