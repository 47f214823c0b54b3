//! `flash`: the cache of several volumes on one fast device. The layers of kind `accelerate` stand on it.
//!
//! ```text
//!      accelerate vm1 ─┐                       ┌─ small  ▢ ▢ ▣ ◀─ new blocks
//!      accelerate vm2 ─┼──▶  flash: one index ─┤
//!      accelerate vm3 ─┘                       └─ main   ▢ ▢ ▢ ▢ ▣ ◀─ blocks that were asked for again
//!                                                        │
//!                                                 tail: kept, or forgotten
//! ```
//!
//! Everything is appended, and nothing is written in place: many small writes of guests are one write of the
//! device. A block may be there in part: then only the store has its other sectors. Each batch describes its own
//! contents, so that after a crash the index is rebuilt from heads and summaries, without reading data that is known to
//! be durable.
//!
//! S3-FIFO (Yang et al., SOSP '23) decides which blocks stay: a new block is in a small queue, and moves to the
//! main queue if it was asked for before its segment is needed; a block that comes again soon after it went goes
//! to the main queue at once. A scan passes through the small queue, and does no harm. Dirty blocks never go.
//!
//! Keys:
//! * `over`: the device. Everything on it belongs to the cache.
//!
//! The layer shows the contents of the device, read-only. It deliberately knows nothing of stores: `accelerate`
//! decides when data gets to a store. The format is in `docs/formats/flash.md`.
//!
//! After a failed write of unknown outcome the device takes no more writes until the outcome is certain
//! (`failed`). If the device has meanwhile lost data that was not durable, it takes no writes until it is opened
//! again, so that the volumes notice the loss. A device whose cache cannot be opened is there all the same,
//! empty: each volume decides what that means.
//!
//! Commands: `forget` removes a volume that is not open.

// Design notes. They stand below the head because the head is printed as a page for users.
//
// Space. F is the number of free segments, R is `low_water()`. "If it fits": the blocks fit, with their heads,
// into F - 4 segments less the slots that are reserved (`available`).
//
//      state           write (`reserve`)  fill (`fill`)  reclaim                       clean copy from a tail
//      F > R           if it fits         what fits      ends                          made
//      F = R           if it fits         what fits      goes on, does not start       made
//      3/4 R < F < R   if it fits         what fits      starts: compacts, then tails  made
//      4 < F <= 3/4 R  if it fits         what fits      tails, then compacts, then    made
//                                                        rotates late tails
//      F = 3, 4        waits              nothing        the same                      made
//      F = 2           waits              nothing        the same, no compaction       made
//      F = 0, 1        waits              nothing        the same, no compaction       none: forgotten
//      a write waits   if it fits         nothing        as F says                     as F says
//      failed          fails              fails, or none  tails alone                   none: forgotten
//
// With the smallest R, which is 6, the fourth row is empty. A closed cache neither starts nor goes on with
// reclaim. No clean copy is made either while `is_hopeless`.
//
// Invariants of space:
// * A reservation lives until its batches have ended. Slots on their way are counted twice, as reserved and
//   as no longer free, rather than not at all.
// * A write that waits for space has no reservation. Waiting writes have no order: a smaller one may be
//   admitted first.
// * Copies have no reservation: they take what is free, also of the 4 segments that no write is given.
// * A segment becomes free when a durable state says that it does not count, and no request reads from it.
// * A tail that is emptied has no batch on its way, and nothing dirty unless its stores are late.
//
// The device. Reads are refused by `check_reads`, which lets those of a full device pass.
//
//      state      put      `break_down`                  repair, tried again after a pause
//      works      taken    failed, and repair begins     -
//      failed     fails    the first cause stays         works; or lost, if what was not durable is gone
//      lost       fails    the cause stays               none: the device has to be opened again
//      missing    fails    the cause stays               none: as lost

mod access;
mod bad;
mod batch;
mod beyond;
mod budget;
mod compact;
mod fair;
mod format;
mod ghosts;
mod heads;
mod health;
mod index;
mod late;
mod log;
mod next;
mod quarantine;
mod reclaim;
mod recover;
mod repair;
mod replica;
mod ripe;
mod rot;
mod segments;
mod share;
mod space;
mod state;
mod volume;

pub(crate) use access::{Dirty, Quiet, Run};
pub(crate) use bad::{RETRY, Side};
pub(crate) use beyond::NOTES;
pub(crate) use fair::{Flow, Permit};
pub(crate) use format::{LARGEST, SLOT};
pub(crate) use log::{How, Reservation};
pub(crate) use next::Move;
pub(crate) use rot::Written;
pub(crate) use state::Pin;
pub(crate) use volume::{LONG, Record, Tap, Volume};

use fair::FairQueues;
use format::Super;
use health::Health;
use index::Index;
use lamina_block::{
    Arg, ArgType, Begin, Build, Command, Config, Consent, Effect, Env, Error, ErrorKind, Fate, Figure,
    Geometry, Io, Layer, Made, Manage, Node, Notice, Op, Passthrough, Pending, Result, Signal, Signature,
    Step, Traits, Unit, Verb,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::tasks::Tasks;
use log::Log;
use segments::Segments;
use serde::Deserialize;
use serde_json::{Value, json};
use space::Space;
use state::Saving;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {}

impl Config for Keys {
    const KIND: &'static str = "flash";
    const SUMMARY: &'static str = "a cache on a fast device, for layers of kind accelerate";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
        elsewhere: &["ssd", "nvme"],
        signature: Some(Signature {
            name: "Lamina cache on flash",
            magic: &format::SUPER_MAGIC,
            details: format::details,
        }),
        figures: FIGURES,
        notices: &[
            Notice::new("/failed", "{device} takes nothing: {}"),
            Notice::new(
                "/alerts/stalled",
                "{device} has no space: writes have waited for {/stalled_seconds}",
            ),
        ],
        verbs: &[Verb::new("forget", "forgets a volume that is no longer in use").with(&[
            Arg::required("uuid", ArgType::Text, "which one, as it is shown"),
            Arg::optional("accept-loss", ArgType::Flag, "also if it has what its store does not have"),
        ])],
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let child = with.child();
            if with.begin != Begin::Open {
                Cache::format(&with.env, &child).await?;
            }
            let cache = match Cache::open(&with.name, &with.env, Rc::clone(&child)).await {
                Err(e) if with.begin == Begin::Open && is_loss(&e) => {
                    tracing::error!(flash = %with.name, error = %e, "the cache cannot be used");
                    Cache::missing(&with.name, &with.env, child, e)
                }
                opened => opened?,
            };
            Ok(Rc::new(Flash { cache }) as Made)
        })
    }
}

/// What is shown, in the order of the columns.
const FIGURES: &[Figure] = {
    use Unit::{Bytes, Count, Made, Pieces, Seconds};
    const SEGMENTS: Unit = Pieces("/segment_bytes");
    &[
        Figure::gauge("segments", "/segments", SEGMENTS, "Segments of the flash.").column("SIZE"),
        Figure::gauge("free_segments", "/free_segments", SEGMENTS, "Segments that are free.").column("FREE"),
        Figure::gauge("small_segments", "/small_segments", SEGMENTS, "Segments in the log of what is new.")
            .column("SMALL"),
        Figure::gauge(
            "main_segments",
            "/main_segments",
            SEGMENTS,
            "Segments in the log of what was asked for again.",
        )
        .column("MAIN"),
        Figure::gauge("segment_bytes", "/segment_bytes", Bytes, "Size of a segment."),
        Figure::shown("/volumes", Made(open_of_all), "Volumes that are open, of all.").column("OPEN"),
        Figure::gauge("cached_bytes", "/cached_bytes", Bytes, "Data of all volumes on it.").column("CACHED"),
        Figure::gauge("dirty_bytes", "/dirty_bytes", Bytes, "Data on it that the stores lack.")
            .column("DIRTY"),
        Figure::counter("written_bytes_total", "/written_bytes", Bytes, "Written to the device: its wear.")
            .column("WRITTEN"),
        Figure::counter("stalls_total", "/stalls", Count, "Writes that had to waits for space.")
            .column("STALLS"),
        Figure::gauge(
            "stalled_seconds",
            "/stalled_seconds",
            Seconds,
            "How long writes have waited for space now.",
        ),
        Figure::gauge("memory_bytes", "/memory", Bytes, "Memory of its index."),
    ]
};

fn open_of_all(volumes: &Value) -> Option<String> {
    let volumes = volumes.as_array()?;
    let open = volumes.iter().filter(|volume| volume["open"] == true).count();
    Some(format!("{open}/{}", volumes.len()))
}

/// The cache on a device, as volumes share it.
pub(crate) struct Cache {
    me: Weak<Cache>,
    name: String,
    pub env: Rc<dyn Env>,
    child: Rc<Node>,
    shape: Super,
    index: RefCell<Index>,
    segments: RefCell<Segments>,
    /// Which log each segment belongs to.
    log_of: Vec<Cell<u8>>,
    /// By their numbers.
    volumes: RefCell<Vec<Option<Rc<Volume>>>>,
    /// The highest generation of any volume there was.
    generations: Cell<u32>,
    logs: [Log; 2],
    saving: Saving,
    space: RefCell<Space>,
    reclaiming: Cell<bool>,
    /// Reclaim waits for what is dirty, wherever that is.
    wants_clean: Cell<bool>,
    /// How often a store was brought up to date.
    checkpoints: Cell<u64>,
    /// Of each log: segments up to this one are freed before any other.
    first: [Cell<u64>; 2],
    /// Something has moved that others may wait for.
    moved: Signal,
    health: RefCell<Health>,
    /// Slots that have something else than what was put there: the device has lost power alone.
    lost: RefCell<HashSet<u32>>,
    /// Slots of which is known that what should be there cannot be read, or is something else.
    unreadable: RefCell<HashSet<u32>>,
    closed: Cell<bool>,
    /// What goes on in the background.
    tasks: Rc<Tasks>,
    scratch: RefCell<Vec<u8>>,
    /// Bytes written to the device, but for the state.
    written: Cell<u64>,
    /// Flushes of the device that have begun, and the last of them that ended.
    flushes: Cell<(u64, u64)>,
    /// So often in a row the device has not been flushed.
    strikes: Cell<u32>,
    /// Requests that have failed, and how many of them had when what was not durable was found to be there.
    failures: Cell<(u64, u64)>,
    /// Somebody waits for the summary of a segment.
    hasty: Cell<bool>,
    /// One of the two has changed. Not each write, which is what `moved` tells.
    flushed: Signal,
    /// How many wait for what is on its way.
    hurried: Cell<usize>,
    /// Whose request each slow device takes next.
    pub fair: FairQueues,
}

/// True if a cache that cannot be opened because of `e` is lost, as far as anybody knows: its volumes decide what that
/// means for them.
fn is_loss(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Media | ErrorKind::Offline | ErrorKind::TimedOut)
}

/// The arguments of `forget`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Forget {
    uuid: String,
    #[serde(default)]
    accept_loss: bool,
}

impl Cache {
    /// For so long there has always been somebody who waits for space.
    fn stalled(&self) -> Duration {
        self.space.borrow().stalled(self.env.now())
    }
}

/// Writes should not have to wait for so long: flow control keeps that from happening.
const STALLED: Duration = Duration::from_secs(1);

struct Flash {
    cache: Rc<Cache>,
}

impl Layer for Flash {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.cache.child.geometry() }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op {
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard | Op::Flush => {
                Step::Forward(Rc::clone(&self.cache.child))
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.cache.close().await })
    }
}

impl Manage for Flash {
    /// What is on it is no volume's: who stands on it has nothing to prepare.
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        match effect.bytes {
            Fate::Stay | Fate::Captured => Consent::Untouched,
            Fate::Replaced => Consent::Refuses(format!(
                "it finds on {} what the stores of its volumes do not have",
                child.name()
            )),
        }
    }

    fn shared(&self) -> Option<Rc<dyn Any>> {
        Some(Rc::clone(&self.cache) as Rc<dyn Any>)
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            if command.name != "forget" {
                return Err(unknown(&command, Keys::TRAITS.verbs));
            }
            let Forget { uuid, accept_loss } = args(command)?;
            let number = u128::from_str_radix(&uuid, 16)
                .map_err(|_| Error::invalid(format!("uuid: {uuid:?} is no hexadecimal number")))?;
            self.cache.drop_volume(number, accept_loss).await
        })
    }

    fn info(&self) -> Value {
        let cache = &self.cache;
        let volume = |volume: &Rc<Volume>| {
            json!({
                "uuid": format!("{:032x}", volume.uuid.get()),
                "open": volume.is_open.get(),
                "bytes": volume.blocks.get() * SLOT as u64,
                "dirty_bytes": volume.dirty.get() * SLOT as u64,
                "generation": volume.generation.get(),
                "serial": volume.serial.get(),
                "checkpoint": volume.checkpoint.get(),
            })
        };
        let segments = cache.segments.borrow();
        let sum = |of: fn(&Volume) -> &Cell<u64>| {
            cache.volumes.borrow().iter().flatten().map(|volume| of(volume).get()).sum::<u64>() * SLOT as u64
        };
        json!({
            "uuid": format!("{:032x}", cache.shape.uuid),
            "segment_bytes": u64::from(cache.shape.segment_slots) * SLOT as u64,
            "segments": cache.shape.segments,
            "free_segments": segments.free.len(),
            "small_segments": segments.logs[0].len(),
            "main_segments": segments.logs[1].len(),
            "cached_bytes": sum(|volume| &volume.blocks),
            "dirty_bytes": sum(|volume| &volume.dirty),
            "written_bytes": cache.written.get(),
            "stalls": cache.space.borrow().stalls(),
            "memory": cache.index.borrow().memory(),
            "stalled_seconds": cache.stalled().as_secs_f64(),
            "alerts": { "failed": !cache.health.borrow().works(), "stalled": cache.stalled() >= STALLED },
            "failed": cache.health.borrow().cause().map(Error::to_string),
            "volumes": cache.volumes.borrow().iter().flatten().map(volume).collect::<Vec<_>>(),
        })
    }
}

/// The device of a node of kind `flash`.
pub(crate) fn cache_of(node: &Rc<Node>, env: &Rc<dyn Env>) -> Result<Rc<Cache>> {
    if node.is_absent() {
        let why = node.info()["absent"].as_str().unwrap_or("it is absent").to_owned();
        return Ok(Cache::missing(node.name(), env, Rc::clone(node), Error::offline(why).on(node.name())));
    }
    let shared = node.shared().and_then(|shared| shared.downcast::<Cache>().ok());
    shared.ok_or_else(|| {
        Error::invalid("over: the second device is to be one of kind \"flash\"").on(node.name())
    })
}

#[cfg(test)]
pub(crate) mod tests;
