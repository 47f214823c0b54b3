//! `accelerate`: flash in front of a slow store. Writes are acknowledged from the flash and get to the store in the
//! background; reads come from the flash when it has them.
//!
//! ```text
//!      write ──▶ lock ──▶ flash ──▶ acknowledged            (write-back)
//!                           │
//!                     staging queue ──▶ destager: a batch ──▶ store ──▶ checkpoint
//!                                                               └─▶ acknowledged  (write-through)
//!      read ───▶ flash, or store ──▶ fills flash
//! ```
//!
//! After FVP (*A Practical Implementation of Clustered Fault Tolerant Write Acceleration in a Virtualized Environment*,
//! FAST '15): the *gatekeeper* gives every write a serial number and serialises those that overlap; the *destager* takes
//! batches in which no two overlap in the order of these numbers; a *checkpoint* says up to which number the store is up to
//! date. After a crash what was written since the last checkpoint is written again, which changes nothing where it had
//! been written before.
//!
//! Invariants:
//! * What is acknowledged is on the flash, as durable as it was asked to be, or on the store.
//! * The flash has a write before the store has it. So what the flash has is never older than the store.
//! * A batch is durable on the flash before any of it is written to the store, and durable on the store before the
//!   checkpoint.
//!
//! Within a batch writes go out in the order of their places, neighbours as one, and of a block that was written several
//! times only the latest: after a batch the store is as it was at one moment, in the middle of one it is not.
//!
//! Over a store of kind `redo` a batch is all that was dirty at one moment, and the store goes there at once: whatever happens,
//! also to the flash, it is exactly what the volume was at that moment (`recovery_point`). In return no more can be dirty than
//! the log of the `redo` holds, and everything is written to it and to the store.
//!
//! Keys:
//! * `over`: the store, then the device of kind `flash`.
//! * `policy` ("write-back"): or "write-through": a write is acknowledged when the store has it too; or "uncached".
//! * `share` (an equal part of what the others leave): percent of the flash. What others do not use is lent.
//! * `bypass` ("1MiB"): a stream of reads that is longer, in requests of 64 KiB or more, does not fill the flash. "0" lets
//!   all of them fill it.
//! * `depth` (32): requests to the store that are under way together, of the destager.
//! * `store-timeout` ("30s"): as long as the store fails, what needs it waits; after this long it fails.
//!
//! Commands: `set-policy` and `set-share` change the policy and the share of the running device, until it is opened again;
//! `drain` waits until the store has everything. From write-back to write-through the store is brought up to date first, and
//! writes wait for it from the beginning on.

mod destage;
mod epoch;
mod flow;
mod read;
mod write;

use crate::command::{args, unknown};
use crate::flash::{self, Log, SLOT, Volume};
use crate::legs::Locks;
use epoch::Epochs;
use flow::Flow;
use lamina_block::{
    Arg, ArgType, Begin, Build, Bytes, Command, Config, Env, Error, Extent, ExtentState, Geometry, Io, Job,
    Layer, Made, Node, Op, Pending, Result, Signal, Span, Step, Verb,
};
use read::Streams;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Policy {
    /// When the flash has it.
    #[default]
    WriteBack,
    /// When the store has it too.
    WriteThrough,
    /// The flash is not used.
    Uncached,
}

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default)]
    policy: Policy,
    share: Option<u32>,
    #[serde(default = "bypass")]
    bypass: Bytes,
    #[serde(default = "depth")]
    depth: usize,
    #[serde(default = "store_timeout")]
    store_timeout: Span,
}

fn bypass() -> Bytes {
    Bytes(1 << 20)
}

fn depth() -> usize {
    32
}

fn store_timeout() -> Span {
    Span(Duration::from_secs(30))
}

/// The argument of `set-policy`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetPolicy {
    policy: Policy,
}

/// The argument of `set-share`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetShare {
    share: u32,
}

/// What is kept with the hierarchy.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Words {
    version: u64,
    /// Of the volume, on the flash.
    uuid: String,
}

const WORDS_VERSION: u64 = 1;

impl Config for Keys {
    const KIND: &'static str = "accelerate";
    const SUMMARY: &'static str = "flash in front of a slow store: write-back, write-through, read cache";
    const CHILDREN: std::ops::RangeInclusive<usize> = 2..=2;
    const KEEPS: bool = true;
    const STORE: bool = false;
    const SHARES: bool = true;
    const VERBS: &'static [Verb] = &[
        Verb::new("set-policy", "changes when writes are acknowledged").with(&[Arg::required(
            "policy",
            ArgType::Text,
            "\"write-back\", \"write-through\" or \"uncached\"",
        )]),
        Verb::new("set-share", "changes its part of the flash").with(&[Arg::required(
            "share",
            ArgType::Count,
            "percent of the flash, from 1 to 100",
        )]),
        Verb::new("drain", "waits until the store has everything"),
    ];

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Accelerate::open(self, with).await? as Made) })
    }
}

struct Accelerate {
    me: Weak<Accelerate>,
    name: String,
    env: Rc<dyn Env>,
    store: Rc<Node>,
    /// If the store is always to be what the volume was at one moment.
    epochs: Option<Epochs>,
    log: Rc<Log>,
    volume: Rc<Volume>,
    keys: Keys,
    policy: Cell<Policy>,
    /// Bytes that are being written, or filled.
    locks: Rc<Locks>,
    /// Streams of reads, to know the long ones.
    streams: RefCell<Streams>,
    flow: RefCell<Flow>,
    /// The store has what was written up to this serial number, perhaps only in its cache.
    stored: Cell<u64>,
    /// Discards that were begun and that ended, and how many of these the store has durably.
    discards: Cell<u64>,
    flushed: Cell<u64>,
    /// Who waits for the store.
    waiting: Cell<usize>,
    /// Batches that were begun.
    attempts: Cell<u64>,
    /// Why the last batch failed, and which it was, until one succeeds.
    trouble: RefCell<Option<(u64, Error)>>,
    /// The destager has ended a batch, well or not.
    moved: Signal,
    jobs: RefCell<Vec<Rc<Job>>>,
    /// What goes on in the background.
    tasks: Cell<usize>,
    closed: Cell<bool>,
    tally: Tally,
}

/// What is counted, in blocks.
#[derive(Default)]
struct Tally {
    hits: Cell<u64>,
    misses: Cell<u64>,
    bypassed: Cell<u64>,
    filled: Cell<u64>,
    written: Cell<u64>,
    destaged: Cell<u64>,
    batches: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

impl Accelerate {
    async fn open(keys: Keys, with: Build) -> Result<Rc<Accelerate>> {
        let [store, flash] = [Rc::clone(&with.children[0]), Rc::clone(&with.children[1])];
        if keys.depth == 0 {
            return Err(Error::invalid("depth: at least one request is under way"));
        }
        let share = keys.share.map(permille).transpose()?;
        if store.geometry().block as usize > SLOT {
            return Err(
                Error::unsupported("a store with blocks above 4 KiB cannot be accelerated").on(store.name())
            );
        }
        let log = flash::log_of(&flash)?;
        let size = store.geometry().size.div_ceil(SLOT as u64);
        let epochs = Epochs::of(&store)?;
        let volume = volume(&with, &log, size).await?;
        volume.share.set(share);
        let me = Rc::new_cyclic(|me| Accelerate {
            me: me.clone(),
            name: with.name.clone(),
            env: Rc::clone(&with.env),
            policy: Cell::new(keys.policy),
            streams: RefCell::new(Streams::new(keys.bypass.0)),
            keys,
            epochs,
            store,
            stored: Cell::new(volume.checkpoint.get()),
            log,
            volume,
            locks: Rc::default(),
            flow: RefCell::default(),
            discards: Cell::new(0),
            flushed: Cell::new(0),
            waiting: Cell::new(0),
            attempts: Cell::new(0),
            trouble: RefCell::default(),
            moved: Signal::new(),
            jobs: RefCell::default(),
            tasks: Cell::new(0),
            closed: Cell::new(false),
            tally: Tally::default(),
        });
        if !me.geometry().read_only {
            if me.policy.get() == Policy::Uncached {
                me.drain_first().await?;
            }
            me.destage();
        }
        Ok(me)
    }

    /// The blocks that `at` touches.
    fn blocks(at: &Range<u64>) -> Range<u64> {
        at.start / SLOT as u64..at.end.div_ceil(SLOT as u64)
    }

    /// The bytes of blocks; the last may be cut off by the end of the device.
    fn bytes(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * SLOT as u64..(blocks.end * SLOT as u64).min(self.store.geometry().size)
    }

    /// Runs `work` in the background; closing waits for it.
    fn spawn<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Rc<Accelerate>) -> F) {
        let Some(me) = self.me.upgrade() else { return };
        me.tasks.set(me.tasks.get() + 1);
        let work = work(Rc::clone(&me));
        self.env.spawn(Box::pin(async move {
            work.await;
            me.tasks.set(me.tasks.get() - 1);
            me.moved.notify();
        }));
    }

    async fn flush(&self) -> Result<()> {
        let discards = self.discards.get();
        // Over a `redo` what is discarded is part of an epoch, and visible when that is durable.
        if discards != self.flushed.get() && self.epochs.is_none() {
            self.store.submit(Io::flush()).await?;
            self.flushed.set(discards);
        }
        match self.policy.get() {
            Policy::WriteBack => self.log.flush().await,
            Policy::WriteThrough => {
                let serial = self.volume.serial.get();
                self.log.flush().await?;
                self.wait_for(|me| me.volume.checkpoint.get() >= serial || me.is_drained()).await
            }
            Policy::Uncached => self.store.submit(Io::flush()).await,
        }
    }

    async fn discard(&self, at: Range<u64>) -> Result<()> {
        if self.policy.get() == Policy::Uncached {
            return self.store.submit(Io::discard(at)).await;
        }
        // Only whole blocks, so that no part of one is kept that is not what the store has.
        let size = self.store.geometry().size;
        let inner = at.start.div_ceil(SLOT as u64)..if at.end == size {
            at.end.div_ceil(SLOT as u64)
        } else {
            at.end / SLOT as u64
        };
        let mut from = inner.start;
        while from < inner.end {
            let to = inner.end.min(from + DISCARD_BLOCKS);
            self.discard_blocks(from..to).await?;
            from = to;
        }
        Ok(())
    }

    async fn discard_blocks(&self, blocks: Range<u64>) -> Result<()> {
        let at = self.bytes(&blocks);
        let _lock = self.locks.take(&at).await;
        if self.log.is_dirty_at(&self.volume, blocks.clone()) {
            // What the store has there is older than what was discarded: it stays until the newer has got there.
            return Ok(());
        }
        if self.log.may_return(&self.volume, blocks.clone()) {
            self.log.drop_blocks(&self.volume, blocks).await?;
        }
        if let Some(epochs) = &self.epochs {
            return self.discard_in_epoch(epochs, at).await;
        }
        // What is read there from now on is not durable on the store: it is not to be on the flash.
        add(&self.discards, 1);
        let discarded = self.store.submit(Io::discard(at)).await;
        add(&self.discards, 1);
        discarded
    }

    /// The store has everything, and the flash nothing that counts.
    async fn forget(&self) -> Result<()> {
        // What has been read is still being put on the flash: it would be there afterwards.
        let _all = self.locks.take(&(0..u64::MAX)).await;
        self.drained().await?;
        self.log.forget(&self.volume).await
    }

    async fn set_policy(&self, policy: Policy) -> Result<Value> {
        let before = self.policy.get();
        match (before, policy) {
            (Policy::Uncached, Policy::WriteBack | Policy::WriteThrough) => {
                // Over a `redo`: what was written directly is no part of the next epoch.
                self.store.submit(Io::flush()).await?;
                self.policy.set(policy);
            }
            (_, Policy::WriteBack) => self.policy.set(policy),
            (_, Policy::WriteThrough) => {
                // From now on every write waits for the store.
                self.policy.set(policy);
                let drained = self.drained().await;
                if self.policy.get() == Policy::WriteThrough {
                    drained?;
                    self.log.settle(&self.volume).await?;
                }
            }
            (_, Policy::Uncached) => {
                self.forget().await?;
                self.policy.set(policy);
            }
        }
        tracing::info!(device = %self.name, ?before, ?policy, "the policy has changed");
        Ok(json!({ "policy": self.policy.get(), "before": before }))
    }
}

/// Blocks that are discarded at once: 1 GiB.
const DISCARD_BLOCKS: u64 = (1 << 30) / SLOT as u64;

/// Percent of the flash, as thousandths.
fn permille(share: u32) -> Result<u32> {
    match share {
        1..=100 => Ok(share * 10),
        _ => Err(Error::invalid("share: is from 1 to 100 percent")),
    }
}

/// The volume of the flash that it is, of `size` blocks.
async fn volume(with: &Build, log: &Log, size: u64) -> Result<Rc<Volume>> {
    let Some(keep) = &with.keep else {
        return Err(Error::invalid("it has to be known again: give the file a [hierarchy] table"));
    };
    match (with.begin, keep.get()) {
        (Begin::Open, Some(words)) => {
            let words: Words = crate::kept::read(&words, WORDS_VERSION, "volume")?;
            match u128::from_str_radix(&words.uuid, 16).map_err(|e| crate::kept::corrupt("volume", e))? {
                0 => Err(crate::kept::corrupt("volume", "no volume has this number")),
                uuid => log.known(uuid, size),
            }
        }
        (Begin::Open, None) => Err(crate::kept::corrupt("volume", "nothing is kept")),
        (Begin::Format | Begin::Adopt, _) => {
            let uuid = u128::from(with.env.random()) << 64 | u128::from(with.env.random());
            // The flash first: what is kept is known there.
            let volume = log.volume(uuid, size).await?;
            keep.set(json!(Words { version: WORDS_VERSION, uuid: format!("{uuid:032x}") })).await?;
            Ok(volume)
        }
    }
}

impl Layer for Accelerate {
    fn geometry(&self) -> Geometry {
        let store = self.store.geometry();
        Geometry {
            optimal: store.optimal.max(SLOT as u32),
            read_only: store.read_only || self.log.is_read_only(),
            zero: false,
            fua: true,
            ..store
        }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if self.policy.get() == Policy::Uncached {
            return Step::Forward(Rc::clone(&self.store));
        }
        let Io { op, at } = io.take();
        match op {
            Op::Read(into) => Step::control(async move { self.read(at, into).await }),
            Op::Write(from, durability) => {
                Step::control(async move { self.write(at, from, durability).await })
            }
            Op::Discard => Step::control(async move { self.discard(at).await }),
            Op::Flush => Step::control(async move { self.flush().await }),
            // The node writes zeroes instead: the geometry says that it is not done here.
            Op::Zero(_) => Error::unsupported("zeroes are written").into(),
        }
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let below = self.store.extents(at.clone()).await?;
            let (mut runs, mut from) = (Vec::new(), at.start);
            for run in below {
                let end = from + run.len;
                if run.state == ExtentState::Data {
                    Extent::push(&mut runs, run.len, run.state);
                    from = end;
                    continue;
                }
                for part in self.log.runs(&self.volume, Accelerate::blocks(&(from..end))) {
                    let part_end = (part.blocks.end * SLOT as u64).min(end);
                    let state = if part.slot.is_some() { ExtentState::Data } else { run.state };
                    Extent::push(&mut runs, part_end - from, state);
                    from = part_end;
                }
            }
            Ok(runs)
        })
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "set-policy" => self.set_policy(args::<SetPolicy>(command)?.policy).await,
                "set-share" => {
                    let share = args::<SetShare>(command)?.share;
                    self.volume.share.set(Some(permille(share)?));
                    Ok(json!({ "share_bytes": self.log.share(&self.volume) * SLOT as u64 }))
                }
                "drain" => {
                    self.drained().await?;
                    Ok(json!({ "dirty_bytes": self.volume.dirty.get() * SLOT as u64 }))
                }
                _ => Err(unknown(&command, Keys::VERBS)),
            }
        })
    }

    /// To or from a device that does not look at its flash, nothing may be under way that does not either.
    fn needs_hold(&self, command: &Command) -> bool {
        let to_uncached = args::<SetPolicy>(command.clone()).is_ok_and(|set| set.policy == Policy::Uncached);
        command.name == "set-policy" && (to_uncached || self.policy.get() == Policy::Uncached)
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.jobs.borrow().clone()
    }

    /// The store is to be the device by itself.
    fn leave(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            self.forget().await?;
            self.policy.set(Policy::Uncached);
            Ok(())
        })
    }

    fn info(&self) -> Value {
        let bytes = |blocks: u64| blocks * SLOT as u64;
        let (hits, misses) = (self.tally.hits.get(), self.tally.misses.get());
        json!({
            "policy": self.policy.get(),
            "cached_bytes": bytes(self.volume.blocks.get()),
            "share_bytes": bytes(self.log.share(&self.volume)),
            "dirty_bytes": bytes(self.volume.dirty.get()),
            "dirty_writes": self.volume.queue.borrow().len(),
            "hit_rate": hits as f64 / (hits + misses).max(1) as f64,
            "hit_bytes": bytes(hits),
            "missed_bytes": bytes(misses),
            "bypassed_bytes": bytes(self.tally.bypassed.get()),
            "filled_bytes": bytes(self.tally.filled.get()),
            "written_bytes": bytes(self.tally.written.get()),
            "destaged_bytes": bytes(self.tally.destaged.get()),
            "batches": self.tally.batches.get(),
            "generation": self.volume.generation.get(),
            "serial": self.volume.serial.get(),
            "checkpoint": self.volume.checkpoint.get(),
            "store_trouble": self.trouble.borrow().as_ref().map(|(_, e)| e.to_string()),
            "flow": self.flow.borrow().info(),
            "recovery_point": self.recovery_point(),
        })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            self.closed.set(true);
            self.volume.moved.notify();
            self.volume.hurry.notify();
            self.moved.until(|| self.tasks.get() == 0).await;
            self.volume.is_open.set(false);
            Ok(())
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
