//! A world with a subject in it, with the beginning and the end of every check.

use super::load::Load;
use super::subject::{Rig, Subject};
use crate::env::{Images, Simulation};
use lamina_block::{Buf, Io, Node};
use std::future::Future;
use std::ops::Range;
use std::rc::{Rc, Weak};

/// A simulation with a rig. The drop frees everything.
pub(crate) struct Scene {
    world: Simulation,
    pub rig: Rc<Rig>,
}

impl Scene {
    pub(crate) fn new(subject: &Subject, seed: u64) -> Scene {
        let world = Simulation::new(seed);
        let rig = Rig::new(world.env(), subject, seed ^ 0x5EED);
        Scene { world, rig }
    }

    /// A scene with the disks that a power loss left.
    pub(crate) fn after(subject: &Subject, seed: u64, images: &Images) -> Scene {
        let world = Simulation::from_images(seed, images);
        let rig = Rig::new(world.env(), subject, seed ^ 0x5EED);
        Scene { world, rig }
    }

    /// Runs `work`; a hang is an error.
    pub(crate) fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Result<T, String> {
        self.world.run(work).map_err(|hang| hang.to_string())
    }

    /// Builds the subject.
    pub(crate) fn build(&self, subject: &Subject) -> Result<Rc<Node>, String> {
        let building = (subject.build)(Rc::clone(&self.rig));
        self.run(building)?.map_err(|e| format!("the device cannot be built: {e}"))
    }

    /// Builds the subject and reads its first contents.
    pub(crate) fn load(&self, subject: &Subject, seed: u64) -> Result<Rc<Load>, String> {
        let top = self.build(subject)?;
        let (rig, subject) = (Rc::clone(&self.rig), subject.clone());
        self.run(async move { Load::new(&subject, &rig, top, seed ^ 0x10AD).await })?
    }

    /// Runs `work` on a load; a hang names the requests that never completed.
    pub(crate) fn drive<T: 'static>(
        &self,
        load: &Load,
        work: impl Future<Output = T> + 'static,
    ) -> Result<T, String> {
        let ended = self.run(work);
        if let Some(problem) = load.problem() {
            return Err(problem);
        }
        ended.map_err(|hang| match load.outstanding().as_slice() {
            [] => hang,
            waiting => format!("{hang}; not completed: {}", waiting.join(", ")),
        })
    }

    /// Reads without judging.
    pub(crate) fn read(&self, top: &Rc<Node>, at: Range<u64>) -> Result<Vec<u8>, String> {
        let (top, buf) = (Rc::clone(top), Buf::zeroed((at.end - at.start) as usize));
        let io = Io::read(at.start, buf.clone());
        let read = self.run(async move { top.submit(io).await })?;
        read.map_err(|e| format!("a read of {at:?} failed: {e}"))?;
        Ok(buf.to_vec())
    }

    /// Closes the device, which may have worked in the background until then. No part of it may be left.
    pub(crate) fn finish(self, load: Rc<Load>) -> Result<(), String> {
        self.end_users()?;
        let top = load.top();
        self.all_idle(&[Rc::clone(&top)])?;
        drop(load);
        self.close_all(&top)?.map_err(|e| format!("close failed: {e}"))?;
        self.idle()?;
        self.freed(top)
    }

    /// As [`Scene::finish`], for a device whose disks failed: its close may report that.
    pub(crate) fn finish_broken(self, load: Rc<Load>) -> Result<(), String> {
        self.end_users()?;
        let top = load.top();
        self.all_idle(&[Rc::clone(&top)])?;
        drop(load);
        let _may_fail = self.close_all(&top)?;
        self.idle()?;
        self.freed(top)
    }

    /// Closes the device and those between it and the disks, from the top down, as a hierarchy does.
    pub(crate) fn close_all(&self, top: &Rc<Node>) -> Result<lamina_block::Result<()>, String> {
        let between = |node: &Rc<Node>| node.kind() != "simulated" && !Rc::ptr_eq(node, top);
        let below: Vec<_> = self.rig.nodes().into_iter().rev().filter(between).collect();
        let top = Rc::clone(top);
        self.run(async move {
            let mut result = top.close().await;
            for node in below {
                result = result.and(node.close().await);
            }
            result
        })
    }

    /// Waits for the users beside the load.
    fn end_users(&self) -> Result<(), String> {
        self.rig.env().end_soon();
        self.rig.take_users().into_iter().try_for_each(|user| self.run(user.ended()))
    }

    /// No node may have requests in flight.
    pub(crate) fn idle(&self) -> Result<(), String> {
        self.all_idle(&self.rig.nodes())
    }

    fn all_idle(&self, nodes: &[Rc<Node>]) -> Result<(), String> {
        self.world.settle();
        match nodes.iter().find(|node| node.stats().in_flight() > 0) {
            Some(node) => {
                Err(format!("{} requests are still in flight in {}", node.stats().in_flight(), node.name()))
            }
            None => Ok(()),
        }
    }

    /// Drops a closed device: the device must really go, with its layers and all nodes under it.
    pub(crate) fn freed(&self, top: Rc<Node>) -> Result<(), String> {
        let nodes: Vec<Weak<Node>> = self.rig.nodes().iter().chain([&top]).map(Rc::downgrade).collect();
        let holding = Rc::clone(&top);
        let layer = self.run(async move { Rc::downgrade(&holding.quiesce().await.layer()) })?;
        self.rig.forget_nodes();
        drop(top);
        self.world.settle();
        if let Some(node) = nodes.iter().find_map(Weak::upgrade) {
            return Err(format!("{} is closed and still referenced: by a task, or a cycle", node.name()));
        }
        // The layer of a bare disk belongs to the environment.
        let disks = self.rig.env().disks();
        let is_disk = disks.iter().any(|disk| Rc::as_ptr(disk).cast::<()>() == layer.as_ptr().cast());
        match layer.strong_count() > 0 && !is_disk {
            true => Err("its layer is closed and still referenced: by a task, or a cycle".into()),
            false => Ok(()),
        }
    }
}
