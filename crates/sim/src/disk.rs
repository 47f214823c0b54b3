//! A simulated disk: a sink that keeps what was written apart from what is durable.
//!
//! Requests take a time drawn from the seed, or none; long ones take effect in pieces, so that overlapping requests
//! interleave block by block; failed writes leave some of their blocks written. At power loss [`Image`] says what is
//! left ([`Loss`]). Requests are checked again here: a request that breaks the contract is a finding, whatever its
//! source.
//!
//! A disk that has a model takes the time of the model's drive, with its queue, instead of drawn times and pieces.
//! Otherwise the disk deliberately models no particular device: no queue, no seek, no wear. A disk may have sequential
//! zones (`zoned.rs`).

mod zoned;

use crate::executor::{Executor, give_way};
use crate::media::{Loss, Media, Write};
use crate::memory;
use crate::options::{Contents, DiskOptions, Presence};
use crate::probe::Probe;
use crate::service::Service;
use crate::zones::ZoneMedia;
use fastrand::Rng;
use lamina_block::{
    Buf, Command, Deferred, Durability, Error, Extent, ExtentState, Geometry, Healed, Io, Judge, Layer,
    Manage, Op, OpKind, Passthrough, Pending, Result, Step, Zones,
};
use lamina_drive::{Drive, Request};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// A disk in a simulated environment.
pub struct SimDisk {
    name: String,
    executor: Rc<Executor>,
    probe: Rc<Probe>,
    options: Cell<DiskOptions>,
    media: RefCell<Media>,
    /// The sequential zones, if it is a zoned device; `media` has the rest.
    zones: RefCell<Option<ZoneMedia>>,
    lives: u64,
    presence: Cell<Presence>,
    /// Blocks that give other bytes than they have; something below the disk has another copy.
    rotten: RefCell<BTreeSet<u64>>,
    rng: RefCell<Rng>,
    /// The drive whose time requests take.
    service: RefCell<Option<Rc<Service>>>,
}

/// The time that a request takes.
enum Pace {
    /// None: there is no await that waits.
    Instant,
    /// As drawn from the seed, again and again.
    Drawn,
    /// That of a drive.
    Drive(Rc<Service>, Request),
}

/// The contents of a disk after a power loss; a new simulation may start from it.
#[derive(Clone)]
pub struct Image {
    options: DiskOptions,
    media: Media,
    zones: Option<ZoneMedia>,
    /// See [`Image::lives`].
    lives: u64,
}

impl SimDisk {
    pub(crate) fn make(
        name: &str,
        executor: Rc<Executor>,
        probe: Rc<Probe>,
        image: Image,
        seed: u64,
    ) -> Rc<SimDisk> {
        Rc::new(SimDisk {
            name: name.into(),
            executor,
            probe,
            options: Cell::new(image.options),
            media: RefCell::new(image.media),
            zones: RefCell::new(image.zones),
            lives: image.lives,
            presence: Cell::default(),
            rotten: RefCell::default(),
            rng: RefCell::new(Rng::with_seed(seed)),
            service: RefCell::default(),
        })
    }

    /// Requests take the time that `drive` needs for them from now on. Requests take effect in the order in which the
    /// drive ends them, each at once.
    pub fn set_drive(&self, drive: Drive) {
        let service = Service::new(Rc::clone(&self.executor), drive);
        *self.service.borrow_mut() = Some(service);
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The contents if the power fails now; `seed` decides the points that `loss` leaves open.
    pub fn image(&self, loss: Loss, seed: u64) -> Image {
        let rng = &mut Rng::with_seed(seed);
        let media = self.media.borrow().survive(loss, rng);
        let block = self.options.get().geometry.block;
        self.next_life(media, self.zones.borrow().as_ref().map(|zones| zones.survive(loss, block, rng)))
    }

    /// The whole contents, durable or not, to be continued by another disk.
    pub fn twin(&self) -> Image {
        let (media, zones) = (self.media.borrow().clone(), self.zones.borrow().clone());
        Image { options: self.options.get(), media, zones, lives: self.lives }
    }

    /// The contents for the next process if the present one dies now, and the machine does not.
    pub fn orphan(&self) -> Image {
        self.next_life(self.media.borrow().orphan(), self.zones.borrow().as_ref().map(ZoneMedia::orphan))
    }

    fn next_life(&self, media: Media, zones: Option<ZoneMedia>) -> Image {
        Image { options: self.options.get(), media, zones, lives: self.lives + 1 }
    }

    /// Makes it vanish or come back. Requests already under way are not affected.
    pub fn set_presence(&self, presence: Presence) {
        self.presence.set(presence);
    }

    /// Lets reads of `at` give other bytes than were written, until it is written anew or healed from another copy,
    /// which is there.
    pub fn rot(&self, at: &Range<u64>) {
        self.rotten.borrow_mut().extend(self.blocks(at));
    }

    /// Nothing is rotten any more.
    pub fn stop_rot(&self) {
        self.rotten.take();
    }

    fn blocks(&self, at: &Range<u64>) -> Range<u64> {
        let block = u64::from(self.options.get().geometry.block);
        at.start / block..at.end.div_ceil(block)
    }

    /// Changes its size, a multiple of its block. The node above is to be told.
    pub fn resize(&self, size: u64) {
        let mut options = self.options.get();
        options.geometry.size = size;
        self.options.set(options);
    }

    /// The breach of the contract in `io`, if there is one.
    fn breach(&self, io: &Io) -> Option<&'static str> {
        let g = self.options.get().geometry;
        let writes = match &io.op {
            Op::Flush => return None,
            Op::Read(_) => false,
            Op::Write(..) | Op::Zero(_) | Op::Discard => true,
        };
        let buf_len = match &io.op {
            Op::Read(buf) | Op::Write(buf, _) => buf.len() as u64,
            Op::Zero(_) | Op::Discard | Op::Flush => io.len(),
        };
        if io.at.start >= io.at.end || io.at.end > g.size {
            Some("out of range")
        } else if !(io.at.start | io.at.end).is_multiple_of(g.block.into()) {
            Some("misaligned")
        } else if buf_len != io.len() {
            Some("with a buffer of another length")
        } else if writes && g.read_only {
            Some("to a read-only disk")
        } else {
            None
        }
    }

    fn draw_latency(&self) -> Duration {
        let max = self.options.get().latency_max.as_nanos() as u64;
        Duration::from_nanos(self.rng.borrow_mut().u64(0..=max))
    }

    /// `at` in up to three pieces.
    fn pieces(&self, at: &Range<u64>) -> Vec<Range<u64>> {
        let block = u64::from(self.options.get().geometry.block);
        let blocks = (at.end - at.start) / block;
        let rng = &mut self.rng.borrow_mut();
        if blocks < 2 || self.service.borrow().is_some() || rng.u8(..) < 192 {
            return vec![at.clone()];
        }
        let mut cuts = [
            at.start,
            at.start + rng.u64(0..=blocks) * block,
            at.start + rng.u64(0..=blocks) * block,
            at.end,
        ];
        cuts.sort_unstable();
        cuts.windows(2).map(|w| w[0]..w[1]).filter(|r| !r.is_empty()).collect()
    }

    /// The time of `io`.
    fn pace(&self, io: &Io) -> Pace {
        if let Some(service) = &*self.service.borrow() {
            return Pace::Drive(Rc::clone(service), Request::from(io));
        }
        let at_once = self.rng.borrow_mut().u8(..) < self.options.get().instant;
        if at_once { Pace::Instant } else { Pace::Drawn }
    }

    /// Lets the time pass that a request takes before it has an effect.
    async fn pass(&self, pace: &Pace) {
        match pace {
            Pace::Instant => {}
            Pace::Drawn => self.executor.sleep(self.draw_latency()).await,
            Pace::Drive(service, request) => service.serve(*request).await,
        }
    }

    /// Perhaps lets some time pass between the pieces of a request.
    async fn pause(&self, pace: &Pace) {
        match pace {
            Pace::Instant | Pace::Drive(..) => {}
            Pace::Drawn => {
                give_way().await;
                if self.rng.borrow_mut().bool() {
                    self.executor.sleep(self.draw_latency()).await;
                }
            }
        }
    }

    /// Does one request.
    async fn perform(
        self: Rc<Self>,
        io: Io,
        failure: Option<Error>,
        pace: Pace,
        mut whole: Whole,
    ) -> Result<()> {
        if let Some(zone) = whole.zone {
            let is_durable = matches!(io.op, Op::Write(_, Durability::Fua));
            let result = self.write_zone(zone, &io, is_durable, failure, &pace).await;
            whole.ended = true;
            return result;
        }
        if self.options.get().contents == Contents::Zeroes {
            let result = self.forget(io.op, failure, &pace).await;
            whole.ended = true;
            return result;
        }
        let Io { op, at, .. } = io;
        let result = match op {
            Op::Read(into) => self.read(at, into, failure, &pace).await,
            Op::Write(from, durability) => self.change(at, Some(from), durability, failure, &pace).await,
            Op::Zero(how) => self.change(at, None, how.durability, failure, &pace).await,
            Op::Discard => self.discard(at, failure, &pace).await,
            Op::Flush => self.flush(failure, &pace).await,
        };
        whole.ended = true;
        result
    }

    /// Any request to a disk that keeps nothing.
    async fn forget(&self, op: Op, failure: Option<Error>, pace: &Pace) -> Result<()> {
        self.pass(pace).await;
        match op {
            Op::Read(into) if failure.is_none() => into.fill(0),
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard | Op::Flush => {}
        }
        failure.map_or(Ok(()), Err)
    }

    async fn read(&self, at: Range<u64>, into: Buf, failure: Option<Error>, pace: &Pace) -> Result<()> {
        self.pass(pace).await;
        if let Some(e) = failure {
            return Err(e);
        }
        for part in self.pieces(&at) {
            let within = (part.start - at.start) as usize..(part.end - at.start) as usize;
            let into = into.slice(within);
            self.contents(&part, &into);
            if !self.rotten.borrow().is_empty() {
                self.spoil(&part, &into);
            }
            self.pause(pace).await;
        }
        Ok(())
    }

    /// Makes rotten blocks of `part` in `bytes` other than they are.
    fn spoil(&self, part: &Range<u64>, bytes: &Buf) {
        let block = u64::from(self.options.get().geometry.block);
        for rotten in self.rotten.borrow().range(self.blocks(part)) {
            let at = (rotten * block - part.start) as usize;
            let flipped: Vec<u8> = bytes.slice(at..at + block as usize).to_vec().iter().map(|b| !b).collect();
            bytes.write(at, &flipped);
        }
    }

    /// Writes or zeroes.
    async fn change(
        &self,
        at: Range<u64>,
        from: Option<Buf>,
        durability: Durability,
        failure: Option<Error>,
        pace: &Pace,
    ) -> Result<()> {
        self.probe.event(&self.name, &at);
        let write = self.media.borrow_mut().begin(&at, from.as_ref());
        self.pass(pace).await;
        for part in self.pieces(&at) {
            if failure.is_some() && self.rng.borrow_mut().bool() {
                continue;
            }
            self.probe.event(&self.name, &part);
            self.apply(&write, &at, part, from.as_ref());
            self.pause(pace).await;
        }
        let at_once = durability == Durability::Fua || self.options.get().contents == Contents::Durable;
        let durable = at_once && failure.is_none();
        if durable {
            self.probe.event(&self.name, &at);
        }
        self.media.borrow_mut().complete(&write, &at, durable);
        failure.map_or(Ok(()), Err)
    }

    fn apply(&self, write: &Write, at: &Range<u64>, part: Range<u64>, from: Option<&Buf>) {
        let bytes =
            from.map(|buf| buf.slice((part.start - at.start) as usize..(part.end - at.start) as usize));
        self.media.borrow_mut().apply(write, &part, bytes.as_ref());
        let blocks = self.blocks(&part);
        self.rotten.borrow_mut().retain(|block| !blocks.contains(block));
    }

    /// Zeroes some blocks and leaves others as they are: both are allowed.
    async fn discard(&self, at: Range<u64>, failure: Option<Error>, mut pace: &Pace) -> Result<()> {
        if self.zones.borrow().is_some() {
            return self.discard_zones(&at, failure, pace).await;
        }
        if let Pace::Drive(..) = pace {
            self.pass(pace).await;
            pace = &Pace::Instant;
        }
        for part in self.pieces(&at) {
            if self.rng.borrow_mut().bool() {
                self.change(part, None, Durability::Cached, failure.clone(), pace).await?;
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn flush(&self, failure: Option<Error>, pace: &Pace) -> Result<()> {
        let mark = self.media.borrow_mut().flush_begins();
        let zones = self.zones.borrow().as_ref().map(ZoneMedia::flush_begins);
        self.pass(pace).await;
        if let Some(e) = failure {
            return Err(e);
        }
        self.probe.event(&self.name, &(0..0));
        self.media.borrow_mut().flush(mark);
        if let (Some(zones), Some(mark)) = (&mut *self.zones.borrow_mut(), zones) {
            zones.flush(&mark);
        }
        Ok(())
    }
}

/// A request that must be done to its end: an abandoned one is a finding.
struct Whole {
    disk: Rc<SimDisk>,
    op: OpKind,
    at: Range<u64>,
    /// The sequential zone that it writes to.
    zone: Option<u32>,
    ended: bool,
}

impl Drop for Whole {
    fn drop(&mut self) {
        if !self.ended {
            let (disk, op, at) = (&self.disk.name, self.op.name(), &self.at);
            self.disk.probe.finding(format!("{disk}: {op} of {at:?} was given up half-way"));
        }
    }
}

impl Layer for SimDisk {
    fn geometry(&self) -> Geometry {
        self.shape()
    }

    fn zones(&self) -> Option<Zones> {
        self.zones.borrow().as_ref().map(|zones| zones.pointers().zones())
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        self.executor.trace(io.at.start ^ io.at.end.rotate_left(32) ^ io.op.kind() as u64);
        if let Some(breach) = self.breach(io) {
            self.probe.finding(format!(
                "{}: {} of {:?} reached it {breach}",
                self.name,
                io.op.kind().name(),
                io.at
            ));
            return Error::invalid(breach).into();
        }
        match self.presence.get() {
            Presence::Here => {}
            Presence::Failing => return Error::offline("the simulated disk has vanished").into(),
            Presence::Replaced => {
                self.probe.finding(format!("a request reached {} after it had been replaced", self.name));
                return Error::offline("the disk has been replaced").into();
            }
            Presence::Silent => return Step::control(std::future::pending()),
        }
        let zone = match self.enter_zone(io) {
            Ok(zone) => zone,
            Err(e) => return e.into(),
        };
        let memory = match &io.op {
            Op::Read(buf) | Op::Write(buf, _) => memory::check(buf).err(),
            Op::Zero(_) | Op::Discard | Op::Flush => None,
        };
        let failure = self.probe.arrives(&self.name, io).map(|e| e.at(io.at.clone()));
        let failure = failure.or(memory.map(|e| Error::new(e.kind(), e.message()).at(io.at.clone())));
        let pace = self.pace(io);
        let at_once = matches!(pace, Pace::Instant);
        let whole = Whole { op: io.op.kind(), at: io.at.clone(), disk: Rc::clone(&self), zone, ended: false };
        let mut work = Deferred::new(self.perform(io.take(), failure, pace, whole));
        if !at_once {
            return Step::Control(work);
        }
        match Pin::new(&mut work).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(result) => Step::Done(result),
            std::task::Poll::Pending => Step::Control(work),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            self.pause(&Pace::Drawn).await;
            if let Some(zones) = &*self.zones.borrow() {
                return Ok(zones.pointers().extents(&at));
            }
            let block = u64::from(self.geometry().block);
            let mut list = Vec::new();
            let mut offset = at.start;
            while offset < at.end {
                let end = at.end.min((offset / block + 1) * block);
                let state = match self.media.borrow().is_zero(offset) {
                    true if (offset / block).is_multiple_of(2) => ExtentState::Hole,
                    true => ExtentState::Zero,
                    false => ExtentState::Data,
                };
                Extent::push(&mut list, end - offset, state);
                offset = end;
            }
            Ok(list)
        })
    }

    /// There is another copy of rotten blocks.
    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move {
            self.pause(&Pace::Drawn).await;
            let blocks = self.blocks(&at);
            if self.rotten.borrow().range(blocks.clone()).next().is_none() {
                return Ok(None);
            }
            let bytes = Buf::zeroed((at.end - at.start) as usize);
            self.contents(&at, &bytes);
            if !is_right(&bytes) {
                return Ok(None);
            }
            self.rotten.borrow_mut().retain(|block| !blocks.contains(block));
            Ok(Some(Healed { bytes, copies: 1 }))
        })
    }
}

impl Manage for SimDisk {
    /// `resize`: takes over the present size.
    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "resize" => Ok(Value::Null),
                other => Err(Error::unsupported(format!("there is no command {other:?} here"))),
            }
        })
    }
}

impl Image {
    /// A new disk.
    pub fn blank(options: DiskOptions) -> Image {
        Image { options, media: Media::new(options.geometry.block, options.junk), zones: None, lives: 0 }
    }

    /// How many processes, or machines, have died while they used it.
    pub fn lives(&self) -> u64 {
        self.lives
    }

    /// Whether nothing can tell the two apart, as far as can be seen at once. Only for contents that all are durable.
    pub(crate) fn is_same(&self, other: &Image) -> bool {
        self.lives == other.lives
            && self.options == other.options
            && self.media.is_same(&other.media)
            && self.zones == other.zones
    }

    /// The disk's properties.
    pub fn options(&self) -> &DiskOptions {
        &self.options
    }

    /// The same contents on a disk with other properties. The block must stay.
    pub fn with_options(self, options: DiskOptions) -> Image {
        Image { options, ..self }
    }
}
