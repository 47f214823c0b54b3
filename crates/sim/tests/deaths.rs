//! The canaries of several lives: a layer that recovers from data that it may lose again; and one that has acknowledged
//! writes in memory.
//!
//! ```text
//!      map    which slot has which unit: one block, written at once
//!      slot   0  1  2  …  n + 3      n units, and some spare ones
//! ```
//!
//! A unit that is changed goes to a spare slot, durably, and then the map says so. The slot where it was is a spare one
//! as soon as the map is durable. So one that is believed when it is opened has to be durable: where it is not, slots
//! are taken for spare ones in which the durable map has units.

use lamina_block::{
    Buf, Durability, Geometry, Io, Layer, Manage, Node, Op, Passthrough, Result, Signal, Step, believe,
};
use lamina_sim::{Check, Rig, Run, Subject, run};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes of a unit.
const UNIT: u64 = 8192;
/// Units, and slots.
const UNITS: u8 = 6;
const ALL: u8 = UNITS + 4;
/// Where the slots begin; the map is at 0.
const SLOTS: u64 = 4096;

/// How the layer is made.
#[derive(Clone, Copy, Default)]
struct How {
    believes_at_once: bool,
    /// A flush writes the map.
    forgets_until_flush: bool,
}

struct Spare {
    how: How,
    disk: Rc<Node>,
    map: RefCell<Vec<u8>>,
    /// Slots that a map has which may be the durable one.
    held: RefCell<Vec<u8>>,
    busy: Cell<bool>,
    moved: Signal,
}

impl Spare {
    async fn build(rig: Rc<Rig>, how: How) -> Result<Rc<Node>> {
        let disk = rig.disk(0);
        if !how.believes_at_once {
            believe([&disk]).await;
        }
        let block = Buf::zeroed(disk.geometry().block as usize);
        disk.submit(Io::read(0, block.clone())).await?;
        let mut map = block.to_vec();
        map.truncate(1 + usize::from(UNITS));
        if map[0] != 1 {
            map = [1].into_iter().chain(0..UNITS).collect();
        }
        let layer = Spare {
            how,
            disk,
            map: RefCell::new(map),
            held: RefCell::default(),
            busy: Cell::new(false),
            moved: Signal::new(),
        };
        Ok(rig.node("spare", "spare", Rc::new(layer)))
    }

    fn slot(&self, unit: u64) -> u8 {
        self.map.borrow()[1 + unit as usize]
    }

    /// A spare slot, once there is one.
    async fn spare(&self) -> Result<u8> {
        let find = || {
            let (map, held) = (self.map.borrow(), self.held.borrow());
            (0..ALL).find(|slot| !map[1..].contains(slot) && !held.contains(slot))
        };
        match find() {
            Some(slot) => Ok(slot),
            None => self.flush().await.map(|()| find().unwrap_or_default()),
        }
    }

    async fn write_map(&self, map: &[u8]) -> Result<()> {
        let block = Buf::zeroed(self.disk.geometry().block as usize);
        block.write(0, map);
        self.disk.submit(Io::write(0, block, Durability::Cached)).await
    }

    async fn flush(&self) -> Result<()> {
        let map = self.map.borrow().clone();
        self.write_map(&map).await?;
        self.disk.submit(Io::flush()).await?;
        self.held.borrow_mut().clear();
        Ok(())
    }

    /// Changes a part of a unit, which begins at `at` and is within it.
    async fn change(&self, at: u64, bytes: &Buf) -> Result<()> {
        let (unit, within) = (at / UNIT, (at % UNIT) as usize);
        let free = self.spare().await?;
        let place = |slot: u8| SLOTS + u64::from(slot) * UNIT;
        let whole = Buf::zeroed(UNIT as usize);
        self.disk.submit(Io::read(place(self.slot(unit)), whole.clone())).await?;
        whole.slice(within..within + bytes.len()).copy_from(bytes);
        self.disk.submit(Io::write(place(free), whole, Durability::Fua)).await?;
        let mut map = self.map.borrow().clone();
        map[1 + unit as usize] = free;
        self.held.borrow_mut().push(self.slot(unit));
        if !self.how.forgets_until_flush {
            self.write_map(&map).await?;
        }
        self.map.replace(map);
        Ok(())
    }

    async fn go(self: Rc<Self>, io: Io) -> Result<()> {
        self.moved.until(|| !self.busy.get()).await;
        self.busy.set(true);
        let result = self.alone(&io).await;
        self.busy.set(false);
        self.moved.notify();
        result
    }

    async fn alone(&self, io: &Io) -> Result<()> {
        if matches!(io.op, Op::Flush) {
            return self.flush().await;
        }
        let mut at = io.at.start;
        while at < io.at.end {
            let end = io.at.end.min((at / UNIT + 1) * UNIT);
            let part = (at - io.at.start) as usize..(end - io.at.start) as usize;
            match &io.op {
                Op::Read(into) => {
                    let from = SLOTS + u64::from(self.slot(at / UNIT)) * UNIT + at % UNIT;
                    self.disk.submit(Io::read(from, into.slice(part))).await?;
                }
                Op::Write(bytes, _) => self.change(at, &bytes.slice(part)).await?,
                Op::Zero(_) | Op::Discard | Op::Flush => {}
            }
            at = end;
        }
        Ok(())
    }
}

impl Layer for Spare {
    fn geometry(&self) -> Geometry {
        Geometry {
            discard: false,
            zero: false,
            fua: false,
            ..self.disk.geometry().with_size(u64::from(UNITS) * UNIT)
        }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        Step::control(self.go(io.take()))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Spare {}

fn spare(how: How) -> Subject {
    Subject::new("spare", move |rig| Spare::build(rig, how))
}

#[test]
fn who_makes_durable_what_it_believes_passes() {
    let checks = [Check::Model, Check::Crash, Check::Deaths];
    for (check, seed) in checks.into_iter().flat_map(|check| (0..10).map(move |seed| (check, seed))) {
        run(&spare(How::default()), check, seed, Run::Full).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn who_believes_what_may_go_is_caught() {
    let wrong = spare(How { believes_at_once: true, ..How::default() });
    let failures = (0..60).filter_map(|seed| run(&wrong, Check::Deaths, seed, Run::Full).err());
    let said: Vec<String> = failures.map(|failure| failure.message).collect();
    assert!(
        said.iter().any(|said| said.contains("a death of the process") && said.contains("it may hold")),
        "{said:#?}"
    );
    // A power loss alone, as often as it likes, leaves nothing that is not durable.
    for seed in 0..10 {
        run(&wrong, Check::Crash, seed, Run::Full).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The lost writes were not flushed: only a client that outlives the process notices.
#[test]
fn who_forgets_with_its_process_is_caught() {
    let wrong = spare(How { forgets_until_flush: true, ..How::default() });
    let failures = (0..60).filter_map(|seed| run(&wrong, Check::Deaths, seed, Run::Full).err());
    let said: Vec<String> = failures.map(|failure| failure.message).collect();
    assert!(said.iter().any(|said| said.contains("a death of the process")), "{said:#?}");
    for (check, seed) in [Check::Model, Check::Crash].into_iter().flat_map(|c| (0..10).map(move |s| (c, s))) {
        run(&wrong, check, seed, Run::Full).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
