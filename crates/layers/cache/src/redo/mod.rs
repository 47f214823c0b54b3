//! `redo`: the store below changes atomically from one flush to the next, also if the power fails on the way.
//!
//! Writes are put on a log, one after the other. A flush makes them durable there, with a record that says so;
//! then they are written to the store. If that is interrupted, the next opening does it again.
//!
//! ```text
//!      write ──▶ log: head, data …    read ──▶ log, if the block is there, or store
//!      flush ──▶ log: table ─▶ record: "epoch 7 counts" ──▶ store ──▶ record: "the store is at epoch 7"
//! ```
//!
//! The head before the data of a write makes the write findable before its epoch counts. Opening takes all
//! whole writes from the first one on, and ends the epoch with them. So after the death of the process alone
//! every acknowledged write is there: a guest that outlives the process misses nothing. After a power loss the
//! store is as it was at one moment, at the last acknowledged flush or later.
//!
//! `redo` is made to be the store of `accelerate`, which writes in any order: over a `redo` all data that was
//! dirty at one moment becomes one epoch. These writes have no heads, so that they count together or not at
//! all. The store is then exactly the volume of that moment, even if the flash is lost in the middle of it.
//!
//! Invariants:
//! * An epoch is durable on the log, all of it, before any of it is written to the store.
//! * The epoch is durable on the store before its place on the log is written again.
//! * Writes take effect and are acknowledged in the order of their places: a recovery finds all writes up to
//!   one of them.
//!
//! Keys:
//! * `over`: the store.
//! * `metadata`: the device for the log, which is required. The writes between two flushes have to fit, with
//!   4 KiB more for each write, otherwise the epoch ends earlier. Under an `accelerate` the log limits the
//!   dirty data.
//!
//! All data is written twice, and read once from the log; a flush of new data takes two flushes of the log and
//! one of the store, and two small durable writes. The layer deliberately has only one epoch at a time: writes
//! wait while an epoch gets to the store. The format is in `docs/formats/redo.md`.

mod end;
pub mod format;
mod open;
mod places;

use format::{AREA, ENTRY, Entry, Head, PAGE, Record, Super, checksum, table_len};
use lamina_block::{
    Begin, Buf, Build, Config, Consent, Durability, Effect, Env, Error, Extent, ExtentState, Fate, Geometry,
    Healed, Io, Judge, Layer, Made, Manage, Node, Op, Over, Passthrough, Pending, Place, Result, Signal,
    Signature, Step, Traits, all,
};
use lamina_kit::flaw::flawed;
use lamina_kit::single_flight::SingleFlight;
use places::Places;
use serde::Deserialize;
use serde_json::{Value, json};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// The most bytes that are written or moved at once.
const PIECE: u64 = 1 << 20;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {}

impl Config for Keys {
    const KIND: &'static str = "redo";
    const SUMMARY: &'static str = "a log from which the store goes from one flush to the next at once";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
        metadata: true,
        signature: Some(Signature {
            name: "Lamina redo log",
            magic: &format::SUPER_MAGIC,
            details: format::details,
        }),
        ..Traits::NONE
    };

    fn check(&self, over: &Over<'_>) -> Result<()> {
        if over.metadata { Ok(()) } else { Err(no_log()) }
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let log = with.metadata.clone().ok_or_else(no_log)?;
            let store = with.child();
            if log.geometry().block > store.geometry().block {
                let message = "its blocks are larger than the store's: parts of them cannot be written";
                return Err(Error::unsupported(message).on(log.name()));
            }
            if with.begin != Begin::Open {
                open::format_log(&with.env, &log).await?;
            }
            Ok(Rc::new(Flushed(Redo::open(&with.name, &with.env, store, log).await?)) as Made)
        })
    }
}

fn no_log() -> Error {
    Error::invalid(
        "the log needs a device: name it with metadata = \"NAME\" (a small part of the store will do)",
    )
}

/// `at` in pieces of `len` bytes at most.
fn pieces(at: Range<u64>, len: u64) -> impl Iterator<Item = Range<u64>> {
    let end = at.end;
    at.step_by(len as usize).map(move |start| start..end.min(start + len))
}

/// How far the epoch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Writes join it.
    Open,
    /// It is being made to count, or that has failed, and whether it counts is not known: nothing joins it any more.
    Ending,
    /// It counts, and the store may not have all of it.
    Counts,
}

struct Epoch {
    phase: Phase,
    life: u64,
    places: Places,
    /// All entries, in the order in which they are to be done; and which of them have no head.
    table: Vec<Entry>,
    loose: Vec<usize>,
    /// Those who join, in the order in which they came: what has become of the ones that have ended.
    coming: VecDeque<Option<Came>>,
    /// The number of the first of them, counted from the beginning of the epoch.
    came: u64,
    /// The number of the first one that failed, or whose data have no head: nobody finds what comes after it
    /// before the epoch counts.
    gap: Option<u64>,
    /// Where the next data goes.
    end: u64,
    /// What is discarded has been, or will stay as it is.
    is_discarded: bool,
    /// When its first write came, in seconds since 1970.
    time: u64,
}

/// How somebody has joined an epoch.
enum Came {
    With(Entry, How),
    /// There is nothing to be done.
    Without,
    Failed,
}

/// A place in an epoch.
struct Ticket {
    /// On the log.
    place: u64,
    life: u64,
    number: u64,
}

/// How what is written is found before its epoch counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By its head.
    Alone,
    /// Not at all: it counts with its epoch.
    Together,
}

impl How {
    /// Bytes before the data.
    fn head(self) -> u64 {
        match self {
            How::Alone => PAGE,
            How::Together => 0,
        }
    }
}

impl Epoch {
    fn new(env: &Rc<dyn Env>) -> Epoch {
        Epoch {
            phase: Phase::Open,
            life: env.random(),
            places: Places::default(),
            table: Vec::new(),
            loose: Vec::new(),
            coming: VecDeque::new(),
            came: 0,
            gap: None,
            end: AREA,
            is_discarded: false,
            time: 0,
        }
    }

    fn add(&mut self, entry: Entry) {
        if let Some((place, _)) = entry.data {
            self.places.put(&entry.at, place);
        }
        self.table.push(entry);
    }

    /// `number` has ended: it takes effect when all before it have.
    fn ended(&mut self, number: u64, came: Came) {
        self.coming[(number - self.came) as usize] = Some(came);
        while let Some(Some(_)) = self.coming.front() {
            match self.coming.pop_front().flatten() {
                Some(Came::With(entry, how)) => {
                    if how == How::Together {
                        self.loose.push(self.table.len());
                        // A discard takes no place.
                        if entry.data.is_some() {
                            self.gap = self.gap.or(Some(self.came));
                        }
                    }
                    self.add(entry);
                }
                Some(Came::Failed) => self.gap = self.gap.or(Some(self.came)),
                Some(Came::Without) | None => {}
            }
            self.came += 1;
        }
    }

    /// Leaves out what counts only with the epoch.
    fn abandon(&mut self) {
        let loose = std::mem::take(&mut self.loose);
        let mut number = 0..;
        let mut kept = std::mem::take(&mut self.table);
        kept.retain(|_| number.next().is_some_and(|number| loose.binary_search(&number).is_err()));
        self.places = Places::default();
        kept.into_iter().for_each(|entry| self.add(entry));
    }
}

/// A store and its log, as an `accelerate` above shares it.
pub(crate) struct Redo {
    name: String,
    env: Rc<dyn Env>,
    store: Rc<Node>,
    log: Rc<Node>,
    of: Super,
    epoch: RefCell<Epoch>,
    /// The last record that is known to be durable, and which of the two places has it.
    record: Cell<Record>,
    slot: Cell<usize>,
    /// Reads that are under way.
    reading: Cell<usize>,
    /// An epoch is being ended.
    ending: Cell<bool>,
    ends: SingleFlight,
    moved: Signal,
    scratch: RefCell<Vec<u8>>,
    written: Cell<u64>,
}

impl Redo {
    fn geometry(&self) -> Geometry {
        let store = self.store.geometry();
        Geometry {
            read_only: store.read_only || self.log.geometry().read_only,
            zero: false,
            fua: true,
            ..store
        }
    }

    /// Bytes of the log for data and table.
    fn area(&self) -> u64 {
        self.of.size - AREA
    }

    /// Writes of `len` bytes each, that fit into one epoch.
    pub fn room_for(&self, len: u64) -> u64 {
        ((self.area() - 2 * PAGE) / (len + ENTRY)).min(format::ENTRIES_MAX)
    }

    /// The epoch that the store is at, or is brought to when it is opened, and when that was: seconds since 1970, 0 if
    /// nobody knew.
    pub fn point(&self) -> (u64, u64) {
        (self.record.get().epoch, self.record.get().time)
    }

    /// What was written [together](How::Together) since the last flush is not to be there. None of that is under way.
    pub fn abandon(&self) {
        let epoch = &mut *self.epoch.borrow_mut();
        if epoch.phase != Phase::Open {
            return;
        }
        epoch.abandon();
        if epoch.table.is_empty() && epoch.coming.is_empty() {
            *epoch = Epoch::new(&self.env);
        }
    }

    /// A place on the log for `len` bytes that join the epoch, once they can.
    async fn join(&self, len: u64) -> Result<Ticket> {
        loop {
            let moved = self.moved.wait();
            if self.ending.get() {
                moved.await;
                continue;
            }
            let ticket = self.take(len);
            match ticket {
                Some(ticket) => return Ok(ticket),
                None => self.end().await?,
            }
        }
    }

    /// A place for `len` bytes, if the epoch has one.
    fn take(&self, len: u64) -> Option<Ticket> {
        let epoch = &mut *self.epoch.borrow_mut();
        let place = epoch.end;
        let entries = epoch.table.len() + epoch.coming.len() + 1;
        let end = (place + len).next_multiple_of(PAGE) + table_len(entries);
        let fits = end <= self.of.size && entries as u64 <= format::ENTRIES_MAX;
        (epoch.phase == Phase::Open && fits).then(|| {
            if entries == 1 {
                epoch.time = self.env.unix_time();
            }
            let number = epoch.came + epoch.coming.len() as u64;
            epoch.end += len;
            epoch.coming.push_back(None);
            Ticket { place, life: epoch.life, number }
        })
    }

    /// What had the ticket has ended. Returns when it has taken effect, and will be found.
    async fn joined(&self, ticket: Ticket, came: Came) -> Result<()> {
        let is_found = matches!(came, Came::With(_, How::Alone));
        self.epoch.borrow_mut().ended(ticket.number, came);
        self.moved.notify();
        let in_epoch = |is: &dyn Fn(&Epoch) -> bool| {
            let epoch = self.epoch.borrow();
            epoch.life == ticket.life && is(&epoch)
        };
        if !flawed("answered before those that came first") {
            self.moved.until(|| !in_epoch(&|epoch| epoch.came <= ticket.number)).await;
        }
        let is_behind_gap = in_epoch(&|epoch| epoch.gap.is_some_and(|gap| gap < ticket.number));
        if is_found && is_behind_gap { self.end().await } else { Ok(()) }
    }

    /// Writes `from`, which is found again as `how` says.
    pub async fn write(&self, at: Range<u64>, from: Buf, how: How) -> Result<()> {
        let longest = PIECE.min((self.area() / 4) / PAGE * PAGE);
        for piece in pieces(at.clone(), longest) {
            let part = from.slice((piece.start - at.start) as usize..(piece.end - at.start) as usize);
            let len = how.head() + part.len() as u64;
            let ticket = self.join(len).await?;
            // Guests may change their memory at any time: what is summed is what is written.
            let bytes = self.env.pool().take(len as usize);
            let data = bytes.slice(how.head() as usize..bytes.len());
            data.copy_from(&part);
            let sum = self.sum(&data);
            if how == How::Alone {
                bytes.write(0, &self.head(&ticket, &piece, sum).encode(ticket.place, self.of.key));
            }
            let written = self.log.submit(Io::write(ticket.place, bytes, Durability::Cached)).await;
            self.written.set(self.written.get() + len);
            let entry = Entry { at: piece, data: Some((ticket.place + how.head(), sum)) };
            let came = if written.is_ok() { Came::With(entry, how) } else { Came::Failed };
            self.joined(ticket, came).await.and(written)?;
        }
        Ok(())
    }

    fn head(&self, ticket: &Ticket, at: &Range<u64>, sum: u64) -> Head {
        let (epoch, time) = (self.record.get().epoch + 1, self.epoch.borrow().time);
        Head { epoch, life: ticket.life, time, at: at.clone(), sum }
    }

    /// `at` is discarded when the epoch ends, before anything of it is written.
    pub async fn discard(&self, at: Range<u64>) -> Result<()> {
        // What was written is not taken back: the store has something older there.
        for (part, place) in self.parts(&at) {
            if place.is_none() {
                let ticket = self.join(0).await?;
                let is_free = !self.epoch.borrow().places.touches(&part);
                let entry = Entry { at: part, data: None };
                let came = if is_free { Came::With(entry, How::Together) } else { Came::Without };
                self.joined(ticket, came).await?;
            }
        }
        Ok(())
    }

    fn parts(&self, at: &Range<u64>) -> Vec<(Range<u64>, Option<u64>)> {
        self.epoch.borrow().places.parts(at)
    }

    async fn read(&self, at: Range<u64>, into: Buf) -> Result<()> {
        self.reading.set(self.reading.get() + 1);
        let reads = self.parts(&at).into_iter().map(|(part, place)| {
            let into = into.slice((part.start - at.start) as usize..(part.end - at.start) as usize);
            match place {
                Some(place) => self.log.submit(Io::read(place, into)),
                None => self.store.submit(Io::read(part.start, into)),
            }
        });
        let result = all(reads).await;
        self.reading.set(self.reading.get() - 1);
        self.moved.notify();
        result
    }

    fn sum(&self, data: &Buf) -> u64 {
        let scratch = &mut *self.scratch.borrow_mut();
        scratch.resize(data.len(), 0);
        data.read(0, scratch);
        checksum(scratch)
    }
}

/// The device.
struct Flushed(Rc<Redo>);

impl Layer for Flushed {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let redo = Rc::clone(&self.0);
        if matches!(io.op, Op::Read(_)) && !redo.epoch.borrow().places.touches(&io.at) {
            return Step::Forward(Rc::clone(&redo.store));
        }
        let Io { op, at, .. } = io.take();
        match op {
            Op::Read(into) => Step::control(async move { redo.read(at, into).await }),
            Op::Write(from, durability) => Step::control(async move {
                redo.write(at, from, How::Alone).await?;
                match durability {
                    Durability::Fua => redo.end().await,
                    Durability::Cached => Ok(()),
                }
            }),
            // Whoever reads there afterwards is always to find the same.
            Op::Discard => Step::control(async move {
                redo.discard(at).await?;
                redo.end().await
            }),
            Op::Flush => Step::control(async move { redo.end().await }),
            // The node writes zeroes instead: the geometry says that it is not done here.
            Op::Zero(_) => Error::unsupported("zeroes are written").into(),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let mut runs = Vec::new();
            for (part, place) in self.0.parts(&at) {
                match place {
                    Some(_) => Extent::push(&mut runs, part.end - part.start, ExtentState::Data),
                    None => {
                        for run in self.0.store.extents(part).await? {
                            Extent::push(&mut runs, run.len, run.state);
                        }
                    }
                }
            }
            Ok(runs)
        })
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        let block = u64::from(self.0.geometry().block);
        let first = at / block * block;
        let place = self.0.parts(&(first..first + block)).into_iter().find_map(|(_, place)| place);
        let place = match place {
            Some(place) => Place::data(&self.0.log, place + (at - first)),
            None => Place::data(&self.0.store, at),
        };
        Box::pin(async { Ok(vec![place]) })
    }

    /// Of what is in one piece on the log or on the store.
    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move {
            match self.0.parts(&at)[..] {
                [(ref at, Some(place))] => {
                    self.0.log.heal(place..place + (at.end - at.start), is_right).await
                }
                [(ref at, None)] => self.0.store.heal(at.clone(), is_right).await,
                _ => Ok(None),
            }
        })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            match self.0.geometry().read_only {
                true => Ok(()),
                false => self.0.end().await,
            }
        })
    }
}

impl Manage for Flushed {
    /// Between two epochs it has nothing of the store.
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        let redo = Rc::clone(&self.0);
        match (Rc::ptr_eq(child, &redo.store), effect.bytes) {
            (_, Fate::Stay) | (false, Fate::Captured) => Consent::Untouched,
            (false, Fate::Replaced) => Consent::Refuses(format!("its log is on {}", child.name())),
            (true, Fate::Captured | Fate::Replaced) => {
                Consent::Prepares(Box::pin(async { Ok(()) }), Box::pin(async move { redo.end().await }))
            }
        }
    }

    fn shared(&self) -> Option<Rc<dyn Any>> {
        Some(Rc::clone(&self.0) as Rc<dyn Any>)
    }

    /// The store is to be the device by itself.
    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.0.end().await })
    }

    fn info(&self) -> Value {
        let (epoch, time) = self.0.point();
        let under_way = self.0.epoch.borrow();
        json!({
            "epoch": epoch,
            "epoch_time": time,
            "log_bytes": self.0.area(),
            "log_used_bytes": under_way.end - AREA,
            "is_behind": under_way.phase != Phase::Open,
            "written_bytes": self.0.written.get(),
        })
    }
}

/// The store, if it is a `redo`.
pub(crate) fn redo_of(node: &Rc<Node>) -> Option<Rc<Redo>> {
    node.shared().and_then(|shared| shared.downcast::<Redo>().ok())
}

#[cfg(test)]
pub(crate) mod tests;
