//! `mirror`: the same bytes on several devices (RAID 1). No byte is lost while one of the devices has it.
//!
//! ```text
//!      │ 0 ───────────── size │                  here
//!           ╱     │     ╲   each write, to all; a read, from one
//!      │ a  ···     │ i │                        below: the bytes at the same addresses,
//!      │ b  ···     │ i │                        and after them the intent: the regions that
//!      │ s  (spare) │ i │                        were being written when the power failed
//! ```
//!
//! Keys:
//! * `over`: the legs, and after them the spares. The smallest device decides the size.
//! * `spares` (0): so many of the devices, the last ones, are spares: a spare replaces a leg that fails, by
//!   itself.
//! * `leg-timeout` ("30s"): how long a leg may be away (a network that is down) before a spare replaces it.
//! * `limit`: bytes for each second of a rebuild; without it, as fast as the legs are while there are no
//!   requests. `lamina jobs` changes it at any time.
//! * `region` (4 MiB; more for devices beyond 256 GiB): the bytes that are resynced together after a crash.
//!   It stays as it was when the mirror was made.
//!
//! A write completes when all legs in sync have it. A leg that fails a write, or does not answer, is *stale*:
//! the other devices of the hierarchy record that before the write is acknowledged, so that its bytes are
//! never taken for current ones. When the leg answers again, or at `rejoin` after an error, the bytes written
//! meanwhile are copied to it, and no others: 4 KiB at a time (8 KiB beyond 4 GiB, 16 KiB beyond 8 GiB, and
//! so on up to 1 MiB), or whole regions if the daemon was restarted in between. A leg that does not answer
//! for a while without failing delays writes: an `nbd` leg for its `reconnect`, so give it a short one. A new
//! device gets every byte, and its rebuild goes on after a restart. Reads are spread over the legs; a stream
//! stays on one leg while that is no busier than the others. A block that one leg cannot read, or finds to be
//! corrupt, is read from another leg, and written back in whole blocks of 4 KiB (healed, counted, and named
//! in `info`). A leg that refuses to write a part of a block because it finds the rest of it corrupt gets the
//! whole block from another leg. Bytes that no leg has are an error there, and put no leg out.
//!
//! After a crash legs may differ in the regions of the intent. There the first leg is right, and is read,
//! until the others have been made the same. `scrub` compares everything: a block that a leg says is corrupt
//! (a layer `integrity` below it does) is healed; otherwise, of three or more copies the majority is right,
//! and of two that differ neither is known to be: they stay as they are, and are reported, unless `trust`
//! names the leg that is right. A layer `integrity` above knows which copy is right: that copy is written to
//! the legs that have other bytes.
//!
//! `fail LEG` stops all requests to a leg until `rejoin LEG`, which rebuilds it; a leg that rejoins when
//! there are enough becomes a spare. A rebuild that is cancelled goes on at `rejoin`, or after a restart.
//!
//! The mirror changes while it is served: a name added to `over` is one more leg (or a spare, as `spares`
//! says), a name taken out is detached when the others have every byte, and both in one change are an
//! exchange. A mirror can be put over a disk in use: the first device is the one with the data, and another
//! one must be larger by 96 KiB, for the intent.
//!
//! `grow` uses the space by which all of the devices have grown, spares included, if that is more than the
//! intent takes; all legs must be in sync. The new bytes read as zeroes where all legs can zero at once;
//! otherwise as the bytes of the first leg there, which are copied to the others in the background.
//!
//! A write whose memory was taken away by its client (EFAULT) fails by itself: no leg is put out, and where
//! only some legs have the write they are made the same again.
//!
//! The mirror deliberately does not copy the bytes it writes: a client that changes memory while that is
//! being written (a page of a guest's file that is written to during write-back) may leave legs different
//! there until it writes again, and `scrub` will report that. The mirror does not grow by itself. A discard
//! is done where all legs can zero natively, and left undone otherwise, because discarded blocks may differ
//! from disk to disk. If the first leg is lost before legs were made the same after a crash, the next one is
//! right: it has every flushed byte; writes under way may be there or not.

mod heal;
#[cfg(test)]
pub(crate) mod tests;

use crate::legs::{self, Legs, Needs, Part, Parts, Role, VERBS, needs_quiesce, refusal};
use lamina_block::{
    Build, Bytes, Command, Config, Consent, Effect, Error, Extent, Finding, Geometry, Growth, Healed,
    Interval, Io, Job, Judge, Layer, Made, Manage, Node, Op, Over, Passthrough, Pending, Place, Result, Step,
    Traits, Zero,
};
use lamina_kit::consent::unless_replaced;
use lamina_kit::fan_out;
use lamina_kit::flaw::flawed;
use lamina_kit::range_locks::RangeLock;
use serde::Deserialize;
use serde_json::Value;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// A leg that would have to seek for a read counts as if it had so many requests more.
const SEEK: u32 = 2;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default)]
    spares: usize,
    #[serde(default = "leg_timeout")]
    leg_timeout: Interval,
    limit: Option<Bytes>,
    region: Option<Bytes>,
}

fn leg_timeout() -> Interval {
    Interval(Duration::from_secs(30))
}

impl Config for Keys {
    const KIND: &'static str = "mirror";
    const SUMMARY: &'static str = "the same bytes on several devices (RAID 1)";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=16;
    const TRAITS: Traits = Traits {
        growth: Growth::EachThen("grow"),
        renamed: &[("patience", "leg-timeout")],
        keeps: true,
        verbs: VERBS,
        figures: legs::FIGURES,
        elsewhere: &["raid1", "raid-1", "raid10", "raid-10", "drbd"],
        ..Traits::NONE
    };

    fn survives(&self, children: usize) -> usize {
        children.saturating_sub(self.spares + 1)
    }

    fn check(&self, over: &Over<'_>) -> Result<()> {
        legs::not_all_spares(over.kinds.len(), self.spares)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            legs::not_all_spares(with.children.len(), self.spares)?;
            let needs = Needs {
                kind: Self::KIND,
                legs: 1,
                spares: self.spares,
                unit: 1,
                region: self.region.map(|region| region.0),
                timeout: self.leg_timeout.0,
                limit: self.limit.map(|limit| limit.0),
                columns: 0,
                tail: 0,
                own: Value::Null,
            };
            let legs = Legs::build(needs, &with).await?;
            let mirror = Rc::new(Mirror {
                tails: legs.nodes.iter().map(|_| Cell::new(0)).collect(),
                next: Cell::new(0),
                legs,
            });
            mirror.legs.start(Rc::downgrade(&mirror) as _);
            mirror.legs.finish_growing().await?;
            Ok(mirror as Made)
        })
    }
}

struct Mirror {
    legs: Rc<Legs>,
    /// The end of the last read of each leg.
    tails: Vec<Cell<u64>>,
    /// The leg that is read first if none is better.
    next: Cell<usize>,
}

impl Mirror {
    fn node(&self, leg: usize) -> &Rc<Node> {
        &self.legs.nodes[leg]
    }

    /// The legs that may be read at `at`, apart from those in `not`.
    fn readable<'a>(&'a self, at: &'a Range<u64>, not: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        let first = if self.legs.needs_resync(at) && !flawed("stale leg read") { 1 } else { usize::MAX };
        let good = move |leg: &usize| match first {
            1 => self.legs.role(*leg) == Role::Sync,
            _ => self.legs.is_good(*leg, at) || flawed("stale leg read"),
        };
        (0..self.legs.nodes.len()).filter(good).take(first).filter(|leg| !not.contains(leg))
    }

    /// The leg to read at `at`: the one with the fewest requests, a seek counted as some.
    fn choose(&self, at: &Range<u64>) -> Option<usize> {
        let (count, next) = (self.legs.nodes.len(), self.next.get());
        let cost = |leg: &usize| {
            let seek = if self.tails[*leg].get() == at.start { 0 } else { SEEK };
            (self.node(*leg).stats().in_flight() + seek, (leg + count - next) % count)
        };
        let leg = self.readable(at, &[]).min_by_key(cost)?;
        self.tails[leg].set(at.end);
        self.next.set((leg + 1) % count);
        Some(leg)
    }

    fn read(self: Rc<Self>, io: Io) -> Step {
        self.legs.asked();
        let Some(leg) = self.choose(&io.at) else {
            return Error::offline("no leg that has these bytes is there").at(io.at).into();
        };
        let mut request = self.node(leg).submit(io.clone());
        match request.ready() {
            Some(Ok(())) => Step::Done(Ok(())),
            Some(Err(e)) => Step::control(self.read_elsewhere(io, leg, e)),
            None => Step::control(async move {
                match request.await {
                    Ok(()) => Ok(()),
                    Err(e) => self.read_elsewhere(io, leg, e).await,
                }
            }),
        }
    }

    /// A write or a zeroing.
    fn change(self: Rc<Self>, io: Io) -> Step {
        let nodes = || self.legs.targets().map(|leg| self.node(leg));
        if let Err(e) = fan_out::refuse_fast_zero(&io, nodes()) {
            return e.into();
        }
        let lock = match self.legs.locks.try_lock(&io.at) {
            Some(lock) if self.legs.intent.covers(&io.at) && self.legs.is_recorded() => lock,
            lock => return Step::control(self.change_later(io, lock)),
        };
        let parts = self.submit_all(&io);
        match parts.are_good() {
            true => Step::Done(Ok(())),
            false => Step::control(async move {
                #[cfg(test)]
                if flawed("ack before all legs") {
                    parts.spawn_rest(&*self.legs.env);
                    return Ok(());
                }
                self.ended(&io.at, lock, parts.all().await).await
            }),
        }
    }

    /// As [`Mirror::change`], if a lock or the intent has to be waited for first.
    async fn change_later(self: Rc<Self>, io: Io, lock: Option<RangeLock>) -> Result<()> {
        let lock = match lock {
            Some(lock) => lock,
            None => self.legs.locks.lock(&io.at).await,
        };
        self.legs.record().await?;
        self.legs.mark(&io.at).await?;
        let parts = self.submit_all(&io);
        self.ended(&io.at, lock, parts.all().await).await
    }

    /// The result of a change of `at`, from its result on each leg.
    async fn ended(&self, at: &Range<u64>, mut lock: RangeLock, mut parts: Vec<Part>) -> Result<()> {
        if parts.iter().any(Part::is_corrupt) {
            lock = self.legs.locks.widen(lock, &self.legs.whole(at)).await;
            self.legs.set_right(at, &mut parts).await;
        }
        let ended = self.legs.ended(at, parts).await;
        drop(lock);
        ended
    }

    /// Submits a change, which is locked and covered by the intent, to all legs that take writes.
    fn submit_all(&self, io: &Io) -> Parts {
        self.legs.begin(&io.at);
        Parts::new(self.legs.targets().map(|leg| (leg, self.node(leg).submit(io.clone()))))
    }
}

impl Layer for Mirror {
    fn geometry(&self) -> Geometry {
        let shapes = || self.legs.targets().map(|leg| self.node(leg).geometry());
        let all = shapes().reduce(Geometry::and).unwrap_or(Geometry::new(0)).with_size(self.legs.size());
        Geometry { block: self.legs.block(), discard: shapes().all(|shape| shape.zero), ..all }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match &io.op {
            Op::Read(_) => self.read(io.take()),
            Op::Write(..) | Op::Zero(_) => self.change(io.take()),
            // A discard may leave different bytes on each leg.
            Op::Discard => {
                let how = Zero { unmap: true, ..Zero::default() };
                self.change(Io::zero(io.at.clone(), how).by(io.client))
            }
            Op::Flush => Step::control(async move { self.legs.flush().await }),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let first = self.readable(&at, &[]).next();
            match first {
                Some(leg) => self.node(leg).extents(at).await,
                None => Err(Error::offline("no leg that has these bytes is there").at(at)),
            }
        })
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        let block = u64::from(self.legs.block());
        let around = at / block * block..(at / block + 1) * block;
        let places = self.readable(&around, &[]).map(|leg| Place::data(self.node(leg), at)).collect();
        Box::pin(async { Ok(places) })
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move { self.put_right(&at, is_right).await })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.legs.close().await })
    }
}

impl Manage for Mirror {
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        unless_replaced(effect, || refusal(child))
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move { self.legs.control(command).await })
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
        Box::pin(async move {
            match self.legs.role(0) {
                Role::Sync => Ok(()),
                Role::Stale | Role::Failed | Role::Spare => {
                    Err(Error::invalid("its first device does not have every byte"))
                }
            }
        })
    }

    fn check(self: Rc<Self>, _repair: bool) -> Pending<Vec<Finding>> {
        Box::pin(async move { Ok(self.legs.check()) })
    }

    fn info(&self) -> Value {
        self.legs.info()
    }
}
