//! `parity`: devices side by side, in units, with one or two units of parity in each stripe (RAID 5, RAID 6).
//! No byte is lost while no more devices are absent than there are parities.
//!
//! ```text
//!      │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │      here: units in order
//!      a: │ 0 │ 4 │ 8 │ i j │           below: the parity of a stripe is on another device each time;
//!      b: │ 1 │ 5 │ P │ i j │           after the stripes the intent (the regions that were being
//!      c: │ 2 │ P │ 6 │ i j │           written when the power failed), and a journal that is
//!      d: │ P │ 3 │ 7 │ i j │           written only while a device is absent
//!      s: (spare)
//! ```
//!
//! Keys:
//! * `over`: the devices, at least one more than there are parities and one, and after them the spares. The
//!   smallest device decides the size.
//! * `parity` (1): how many devices may be absent: 1 or 2. It stays as it was when the device was made.
//! * `unit` ("64KiB"): the length of a unit, a power of two up to 1 MiB. It stays as it was.
//! * `spares` (0): so many of the devices, the last ones, are spares: a spare replaces a device that fails,
//!   by itself.
//! * `leg-timeout` ("30s"): how long a device may be away before a spare replaces it.
//! * `limit`: bytes for each second of a rebuild; without it, as fast as the devices are while there are no
//!   requests. `lamina jobs` changes it at any time.
//! * `region` (4 MiB; more for devices beyond 256 GiB): the bytes of each device in which the parity is
//!   recomputed together after a crash. It stays as it was.
//!
//! A write of whole stripes reads nothing. A shorter write takes the way that reads least: the old data and
//! parity (a small write is two reads and two writes, with two parities three and three), or the rest of the
//! stripe. Writes to the same stripe that wait together are done as one, so that a stream of small writes
//! becomes whole stripes. A write completes when all its devices have it. A block that one device cannot
//! read, or finds to be corrupt, is computed from the others and written back in whole blocks of 4 KiB
//! (healed, counted, and named in `info`); so is a block that a device finds corrupt when a part of it is
//! written.
//!
//! A device that fails a write or does not answer is *stale*, as in `mirror`, and is rebuilt when it answers
//! again: only the bytes written meanwhile are copied, 4 KiB at a time, or more if the device is large.
//! `fail NAME` fails a device by hand, and `rejoin NAME` takes it in again. A spare or a new device gets every
//! byte, and its rebuild goes on after a restart.
//!
//! After a crash the parity may not be that of the data in the regions of the intent; it is recomputed there.
//! While a device is absent that would not do: its bytes are computed from the parity. So each write goes
//! into a journal first, which costs one more write, the only one that has to be durable at once; now and
//! then the devices are flushed, and the journal goes round. If the power fails and a device is gone when it
//! comes back, the bytes of that device are unknown where writes were under way. They are not guessed: reads
//! of them fail, and writes to a part of such a stripe, until the device is back or whole stripes have been
//! written again. `forget` lists these bytes, and with `force=true` they are zeroes from then on, also if the
//! device ever comes back.
//!
//! `scrub` compares all parity with the data. A block that a device says is corrupt (a layer `integrity`
//! below it does) is healed; with two parities also a block that one device has silently wrong; with one
//! parity such damage is only seen and reported: `trust` means nothing here. A layer `integrity` above knows
//! whether data are right: a block that it finds wrong is computed without each device in turn, with two
//! parities also without each two, until it is right, and written.
//!
//! The device changes while it is served: a name added to `over` is one more spare, and a name taken out
//! together with it is replaced, when the new device has every byte. More devices do not make it larger;
//! `concat` or `stripe` over several do.
//!
//! `grow` uses the space by which all of the devices have grown, spares included, if that is more than the
//! intent takes; all must be in sync. The new bytes are zeroed where all devices can do that at once.
//! Otherwise they read as they lie there, and their parity is computed in the background: until that has
//! ended (`lamina jobs`), the loss of a device is the loss of its part of the new bytes.
//!
//! A parity deliberately does not begin over a disk in use, since no byte would stay where it is. It copies
//! the bytes it writes: a client may change its memory meanwhile. A discard is done for whole stripes, where
//! all devices can zero natively.

mod forget;
mod galois;
mod gather;
mod heal;
mod journal;
pub mod layout;
mod recover;
mod replay;
mod ring;
mod stripe;
#[cfg(test)]
pub(crate) mod tests;

pub use journal::{Record, Shape};

use crate::legs::{self, Legs, Needs, Parts, VERBS, needs_quiesce, refusal};
use gather::Queues;
use lamina_block::{
    Arg, ArgType, Begin, Buf, Build, Bytes, Command, Config, Consent, Effect, Error, ErrorKind, Finding,
    Geometry, Growth, Healed, Interval, Io, Job, Judge, Layer, Made, Manage, Node, Op, Over, Passthrough,
    Pending, Place, Result, Step, Traits, Verb, Zero,
};
use lamina_kit::command::args;
use lamina_kit::consent::unless_replaced;
use layout::{COLUMNS_MAX, Layout};
use ring::Ring;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The longest unit.
const UNIT_MAX: u64 = 1 << 20;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default = "one")]
    parity: usize,
    #[serde(default = "unit")]
    unit: Bytes,
    #[serde(default)]
    spares: usize,
    #[serde(default = "leg_timeout")]
    leg_timeout: Interval,
    limit: Option<Bytes>,
    region: Option<Bytes>,
}

fn one() -> usize {
    1
}

fn unit() -> Bytes {
    Bytes(64 << 10)
}

fn leg_timeout() -> Interval {
    Interval(Duration::from_secs(30))
}

/// The command that only a parity has.
const FORGET: Verb =
    Verb::new("forget", "list the bytes that are unknown since a crash and a loss; make them zeroes")
        .with(&[Arg::optional("force", ArgType::Flag, "yes, the bytes are zeroes from now on")]);

/// The commands of all devices with legs, and its own.
const ALL_VERBS: &[Verb] = &[VERBS[0], VERBS[1], VERBS[2], VERBS[3], FORGET];
const _: () = assert!(ALL_VERBS.len() == VERBS.len() + 1);

/// The layer's own state record.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Own {
    unit: u64,
    columns: usize,
    parity: usize,
    journal: Shape,
    /// While a leg is absent: the epoch of the records that count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// How many legs were in sync then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    legs: Option<usize>,
}

impl Own {
    fn layout(&self) -> Layout {
        Layout { unit: self.unit, columns: self.columns, parity: self.parity }
    }

    fn write(&self) -> Value {
        serde_json::to_value(self).expect("numbers are JSON")
    }
}

impl Keys {
    /// Refuses a unit that is impossible over logical blocks of `block` bytes.
    fn check_unit(&self, block: u64) -> Result<()> {
        if !(1..=2).contains(&self.parity) {
            return Err(Error::invalid(format!("parity: {} is neither 1 nor 2", self.parity)));
        }
        let unit = self.unit.0;
        if !unit.is_power_of_two() || !(block..=UNIT_MAX).contains(&unit) {
            return Err(Error::invalid(format!(
                "unit: {} is not a power of two from {} to {}",
                self.unit,
                Bytes(block),
                Bytes(UNIT_MAX)
            )));
        }
        Ok(())
    }

    /// Refuses so many devices that are not spares.
    fn check_columns(&self, columns: usize) -> Result<()> {
        if !(self.parity + 2..=COLUMNS_MAX).contains(&columns) {
            return Err(Error::invalid(format!(
                "over: {columns} devices that are not spares; a parity takes {} to {COLUMNS_MAX}",
                self.parity + 2
            )));
        }
        Ok(())
    }

    /// The record of a new device.
    fn first(&self, with: &Build) -> Result<Own> {
        let here = || with.children.iter().filter(|child| !child.is_absent()).map(|child| child.geometry());
        let block = u64::from(here().map(|shape| shape.block).max().unwrap_or(512));
        let smallest = here().map(|shape| shape.size).min().unwrap_or(0);
        if with.begin == Begin::Adopt {
            return Err(Error::unsupported(
                "over: a parity cannot begin over a device in use: no byte of it would stay where it is",
            ));
        }
        self.check_unit(block)?;
        let columns = with.children.len().saturating_sub(self.spares);
        self.check_columns(columns)?;
        let unit = self.unit.0;
        let journal = Shape::of(smallest, block, columns as u64, unit);
        Ok(Own { unit, columns, parity: self.parity, journal, epoch: None, legs: None })
    }

    /// The record of an existing device.
    fn kept(&self, with: &Build) -> Result<Own> {
        let kept = with.keep.as_ref().and_then(|keep| keep.get()).unwrap_or(Value::Null);
        let corrupt = |e: String| Error::new(ErrorKind::Corrupt, format!("the record of its stripes: {e}"));
        let own = Own::deserialize(&kept["own"]).map_err(|e| corrupt(e.to_string()))?;
        if own.parity != self.parity {
            return Err(Error::invalid(format!("parity: the device was made with {}", own.parity)));
        }
        if own.unit != self.unit.0 {
            return Err(Error::invalid(format!("unit: the device was made with {}", Bytes(own.unit))));
        }
        let possible = own.unit.is_power_of_two()
            && own.unit <= UNIT_MAX
            && (own.parity + 2..=COLUMNS_MAX).contains(&own.columns)
            && own.journal.is_possible();
        if possible { Ok(own) } else { Err(corrupt("impossible numbers".into())) }
    }
}

impl Config for Keys {
    const KIND: &'static str = "parity";
    const SUMMARY: &'static str = "devices side by side, one or two of which may be lost (RAID 5, RAID 6)";
    const CHILDREN: std::ops::RangeInclusive<usize> = 3..=COLUMNS_MAX + 16;
    const TRAITS: Traits = Traits {
        growth: Growth::EachThen("grow"),
        renamed: &[("patience", "leg-timeout")],
        keeps: true,
        verbs: ALL_VERBS,
        figures: legs::FIGURES,
        elsewhere: &["raid4", "raid5", "raid-5", "raid6", "raid-6", "raidz", "raidz2", "erasure"],
        computes: true,
        reads_to_write: Some("a write of less than a row of stripes reads old data, to add up the parity"),
        ..Traits::NONE
    };

    fn survives(&self, _children: usize) -> usize {
        self.parity
    }

    fn check(&self, over: &Over<'_>) -> Result<()> {
        self.check_unit(512)?;
        legs::not_all_spares(over.kinds.len(), self.spares)?;
        self.check_columns(over.kinds.len().saturating_sub(self.spares))
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let own = match with.begin {
                Begin::Open if with.keep.as_ref().is_some_and(|keep| keep.get().is_some()) => {
                    self.kept(&with)?
                }
                Begin::Open | Begin::Format | Begin::Adopt => self.first(&with)?,
            };
            let needs = Needs {
                kind: Self::KIND,
                legs: own.columns - own.parity,
                spares: self.spares,
                unit: own.unit,
                region: self.region.map(|region| region.0),
                timeout: self.leg_timeout.0,
                limit: self.limit.map(|limit| limit.0),
                columns: own.columns,
                tail: own.journal.area(),
                own: own.write(),
            };
            let legs = Legs::build(needs, &with).await?;
            Ok(Parity::open(legs, own).await? as Made)
        })
    }
}

struct Parity {
    me: Weak<Parity>,
    legs: Rc<Legs>,
    layout: Layout,
    journal: Shape,
    /// The slots of the journal.
    ring: Ring,
    /// The epoch of the records that count; 0 while no leg is absent.
    epoch: Cell<u64>,
    /// Ranges that the journal would change, and that must not be written.
    undone: RefCell<Vec<Range<u64>>>,
    /// The legs in sync when the state was last recorded.
    recorded_in_sync: RefCell<Vec<usize>>,
    /// Writes to legs that are not acknowledged yet.
    under_way: Cell<usize>,
    queues: Queues,
}

/// A write under way, until it is dropped.
struct Busy<'a>(&'a Parity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        if self.0.under_way.get() == 0 {
            self.0.legs.moved.notify();
        }
    }
}

impl Parity {
    async fn open(legs: Rc<Legs>, own: Own) -> Result<Rc<Parity>> {
        let parity = Rc::new_cyclic(|me| Parity {
            me: me.clone(),
            legs,
            layout: own.layout(),
            journal: own.journal,
            ring: Ring::new(own.journal.slots),
            epoch: Cell::new(own.epoch.unwrap_or(0)),
            undone: RefCell::default(),
            recorded_in_sync: RefCell::default(),
            under_way: Cell::new(0),
            queues: Queues::default(),
        });
        if own.epoch.is_some() {
            parity.replay(own.legs).await?;
        }
        let weak = Rc::downgrade(&parity);
        parity.legs.start(weak as _);
        if (parity.legs.is_degraded() || own.epoch.is_some()) && !parity.legs.is_read_only() {
            // The journal has been replayed: a new epoch.
            parity.legs.changed();
            parity.legs.record().await?;
        } else {
            parity.recorded_in_sync.replace(parity.legs.in_sync().collect());
        }
        parity.legs.finish_growing().await?;
        Ok(parity)
    }

    fn node(&self, leg: usize) -> &Rc<Node> {
        &self.legs.nodes[leg]
    }

    fn column(&self, leg: usize) -> Option<usize> {
        self.legs.column(leg)
    }

    fn busy(&self) -> Busy<'_> {
        self.under_way.set(self.under_way.get() + 1);
        Busy(self)
    }

    /// A new epoch begins: records from now on count, and no earlier ones; no records while no leg is absent.
    fn begin_epoch(&self) {
        let epoch = self.legs.is_degraded().then(|| self.legs.env.random());
        self.epoch.set(epoch.unwrap_or(0));
        self.ring.reset();
        let Layout { unit, columns, parity } = self.layout;
        let legs = epoch.map(|_| self.legs.in_sync().count());
        self.legs.own.replace(Own { unit, columns, parity, journal: self.journal, epoch, legs }.write());
    }

    /// The bytes of columns that make up `at`, each with its part of the buffer.
    fn runs(&self, at: &Range<u64>, bytes: &Buf) -> Vec<(usize, Range<u64>, Buf)> {
        let (mut runs, mut from): (Vec<(usize, Range<u64>, Buf)>, usize) = (Vec::new(), 0);
        for piece in self.layout.pieces(at) {
            let first = piece.stripe * self.layout.unit;
            for (cell, rows) in self.layout.cells(&piece.within) {
                let (column, there) =
                    (self.layout.column(piece.stripe, cell), first + rows.start..first + rows.end);
                let to = from + (rows.end - rows.start) as usize;
                match runs.iter_mut().rfind(|run| run.0 == column) {
                    Some(run) if run.1.end == there.start => {
                        run.1.end = there.end;
                        run.2.append_part(bytes, from..to);
                    }
                    _ => runs.push((column, there, bytes.slice(from..to))),
                }
                from = to;
            }
        }
        runs
    }

    fn read(self: Rc<Self>, io: Io) -> Step {
        self.legs.asked();
        let Op::Read(bytes) = &io.op else { return Step::Done(Ok(())) };
        let runs = self.runs(&io.at, bytes);
        let legs: Vec<Option<usize>> =
            runs.iter().map(|(column, at, _)| self.holder(*column, at, &[])).collect();
        let asked = runs.iter().zip(&legs).enumerate().filter_map(|(number, ((_, at, into), leg))| {
            Some((number, self.node((*leg)?).submit(Io::read(at.start, into.clone()))))
        });
        let parts = Parts::new(asked);
        if parts.are_good() && legs.iter().all(Option::is_some) {
            return Step::Done(Ok(()));
        }
        Step::control(async move {
            let mut left: Vec<_> = legs.iter().map(|leg| leg.is_none().then_some(None)).collect();
            for part in parts.all().await {
                if let Err(e) = part.result {
                    left[part.leg] = Some(legs[part.leg].map(|leg| (leg, e)));
                }
            }
            let around = runs
                .into_iter()
                .zip(left)
                .filter_map(|((column, at, into), failed)| Some(self.read_around(column, at, into, failed?)));
            futures_util::future::join_all(around).await.into_iter().collect()
        })
    }

    /// Reads `at` of a column, from a leg that has it.
    async fn read_column(&self, column: usize, at: Range<u64>, into: Buf) -> Result<()> {
        let failed = match self.holder(column, &at, &[]) {
            Some(leg) => match self.node(leg).submit(Io::read(at.start, into.clone())).await {
                Ok(()) => return Ok(()),
                Err(e) => Some((leg, e)),
            },
            None => None,
        };
        self.read_around(column, at, into, failed).await
    }

    /// A discard: of whole stripes, which become zeroes.
    fn discard(self: Rc<Self>, at: Range<u64>) -> Step {
        let width = self.layout.width();
        let whole = at.start.next_multiple_of(width)..at.end / width * width;
        if whole.start >= whole.end || self.legs.is_degraded() {
            return Step::Done(Ok(()));
        }
        let zero = Io::zero(whole, Zero { unmap: true, ..Zero::default() });
        Step::control(async move { self.change(zero).await })
    }

    /// Fails unless a fast zeroing can be fast.
    fn refuse_fast_zero(&self, io: &Io) -> Result<()> {
        let width = self.layout.width();
        let Op::Zero(Zero { fast: true, .. }) = io.op else { return Ok(()) };
        let slow = self.legs.is_degraded() || self.legs.targets().any(|leg| !self.node(leg).geometry().zero);
        match slow || !io.at.start.is_multiple_of(width) || !io.at.end.is_multiple_of(width) {
            true => {
                Err(Error::unsupported("zeroing is fast here only for whole stripes, on devices that are"))
            }
            false => Ok(()),
        }
    }
}

impl Layer for Parity {
    fn geometry(&self) -> Geometry {
        let shapes = || self.legs.targets().map(|leg| self.node(leg).geometry());
        let size = self.legs.size() / self.layout.unit * self.layout.width();
        let all = shapes().reduce(Geometry::and).unwrap_or(Geometry::new(0)).with_size(size);
        Geometry {
            block: self.legs.block(),
            stripe: u32::try_from(self.layout.width()).unwrap_or(0),
            discard: shapes().all(|shape| shape.zero),
            ..all
        }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match &io.op {
            Op::Read(_) => self.read(io.take()),
            Op::Write(..) | Op::Zero(_) => match self.refuse_fast_zero(io) {
                Err(e) => e.into(),
                Ok(()) => {
                    let io = io.take();
                    Step::control(async move { self.change(io).await })
                }
            },
            Op::Discard => self.discard(io.at.clone()),
            Op::Flush => Step::control(async move { self.flush().await }),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        Box::pin(async move { Ok(self.located(at)) })
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move { self.put_right(&at, is_right).await })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.legs.close().await })
    }
}

impl Manage for Parity {
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        unless_replaced(effect, || refusal(child))
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            if command.name == "scrub" && !command.args["trust"].is_null() {
                return Err(Error::invalid("trust: a parity does not say which of its devices is right"));
            }
            match command.name.as_str() {
                "forget" => self.forget(args(command)?).await,
                _ => self.legs.control(command).await,
            }
        })
    }

    fn needs_quiesce(&self, command: &Command) -> bool {
        needs_quiesce(command)
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.legs.jobs()
    }

    fn can_evacuate(&self, _gone: &[String], joining: &[Rc<Node>]) -> Result<()> {
        self.legs.can_evacuate(joining)
    }

    fn commit(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.legs.record().await })
    }

    fn evacuate(self: Rc<Self>, names: Vec<String>) -> Pending {
        Box::pin(async move { Rc::clone(&self.legs).evacuate(names).await })
    }

    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async { Err(Error::invalid("none of its devices has the same bytes: copy them first")) })
    }

    fn check(self: Rc<Self>, _repair: bool) -> Pending<Vec<Finding>> {
        Box::pin(async move { Ok(self.legs.check()) })
    }

    fn info(&self) -> Value {
        let mut info = self.legs.info();
        info["parity"] = self.layout.parity.into();
        info["unit"] = self.layout.unit.into();
        info
    }
}
