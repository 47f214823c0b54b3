//! What a tier decides, and what it learns: which reads fill the fast device, and which hits keep a block there.
//!
//! ```text
//!      read ─▶ stream? ─▶ what does a copy of it save? ─▶ fills · counts        (placement)
//!      end  ─▶ how long did it take? ─▶ costs, by kind and length · the monitor of extents
//! ```
//!
//! Everything here is synchronous; no device is known, and time comes with the calls.

use super::Kind;
use super::costs::{Costs, Work};
use super::map::Map;
use super::miniature::{Models, Read};
use super::monitor::{EXTENT, Monitor, Use};
use super::placement::Placement;
use super::worth::Worth;
use crate::flash::SLOT;
use lamina_block::{Result, Time};
use lamina_kit::streams::Streams;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Extents of which something is known: 64 GiB of a volume that are used, in 12 MiB of memory.
const EXTENTS_MAX: u64 = 1 << 18;
/// Figures of extents halve with so many blocks used: 4 GiB.
const HALF_LIFE: u64 = 1 << 20;

/// Streams that are followed at a time: a client reads few files at once, and a drive's cache follows as many.
const STREAMS: usize = 32;
/// A request that begins so many bytes behind the end of another one still goes on: clients skip what they have.
const GAP: u64 = 128 << 10;
/// How much a read counts for the mean of what copies save.
const WEIGHT: f32 = 1.0 / 1024.0;
/// With the placement `heat` a hit is a reason to keep a block if it saves so large a part of the mean: a large request
/// pays for one movement of the arm with many blocks.
const COUNTS: f32 = 1.0 / 4.0;

/// The share of the fast device, which others change, is asked for once in so many reads.
const SHARE_READS: u32 = 1024;

/// Extents that are looked at for some that lack copies: 65,536 blocks, for which others wait.
const LOOKED: usize = 1024;

/// How much may be copied, when a read begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// How full the bucket of the budget of writes is, from 0 to 1.
    pub level: f64,
    /// A copy throws out another one.
    pub is_full: bool,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    kind: Kind,
    began: Time,
    /// Blocks, and those of them that the fast device has.
    blocks: u64,
    hits: u64,
    /// Milliseconds that a copy of one of its blocks saves.
    saves: f32,
    /// Blocks that the fast device does not have are copied.
    pub fills: bool,
    /// They would be, had the budget of writes more left: so many.
    pub refused: u64,
    /// A hit is a reason to keep the block.
    pub counts: bool,
}

/// What is known and decided of a volume.
pub(crate) struct Heat {
    placement: Cell<Placement>,
    streams: RefCell<Streams>,
    costs: RefCell<Costs>,
    monitor: RefCell<Monitor>,
    /// The mean of what copies save for each block, over recent reads.
    mean: Cell<Option<f32>>,
    worth: RefCell<Worth>,
    models: RefCell<Models>,
    reads: Cell<u32>,
    /// Somebody sees to it that what is used gets into pages.
    notes: Cell<bool>,
    /// Milliseconds that the slow device was spared, and that its reads took.
    saved_ms: Cell<f64>,
    spent_ms: Cell<f64>,
}

impl Heat {
    pub fn new(placement: Placement) -> Heat {
        Heat {
            placement: Cell::new(placement),
            streams: RefCell::new(Streams::new(STREAMS, GAP)),
            costs: RefCell::default(),
            monitor: RefCell::new(Monitor::new(EXTENTS_MAX, HALF_LIFE)),
            mean: Cell::new(None),
            worth: RefCell::new(Worth::new()),
            models: RefCell::new(Models::new()),
            reads: Cell::new(0),
            notes: Cell::new(false),
            saved_ms: Cell::new(0.0),
            spent_ms: Cell::new(0.0),
        }
    }

    pub fn placement(&self) -> Placement {
        self.placement.get()
    }

    pub fn place(&self, placement: Placement) {
        self.placement.set(placement);
    }

    /// A read of `at` begins, of which the fast device has so many blocks.
    pub fn begin_read(&self, at: &Range<u64>, hits: u64, room: Room, now: Time) -> Reading {
        let range = blocks(at);
        let count = range.end - range.start;
        let mut streams = self.streams.borrow_mut();
        let kind = if streams.follow(at) > 0 { Kind::Sequential } else { Kind::Random };
        let saves = self.costs.borrow().saved(kind, count, streams.len().div_ceil(SLOT as u64));
        let mean = self.mean.get().unwrap_or(saves);
        self.mean.set(Some(mean + (saves - mean) * WEIGHT));
        let placement = self.placement.get();
        let counts = placement != Placement::Heat || saves >= mean * COUNTS;
        // By what this read costs for each block, and what the blocks of its extent have cost lately.
        let worth = || self.monitor.borrow().extent(range.start / EXTENT).ms() / EXTENT as f32 + saves;
        if placement == Placement::Heat {
            let fast_ms = || self.costs.borrow().fast(count) / count as f32;
            let rank = || self.worth.borrow().rank(worth());
            self.model(&range, || Read { rank: rank(), slow_ms: saves, fast_ms: fast_ms(), counts });
        }
        let part = if room.is_full { self.copied_part() } else { 1.0 };
        let (mut fills, mut refused) = (false, 0);
        if !placement.passes(range.start, kind, count) && hits < count {
            let worth = worth();
            let rank = self.worth.borrow().rank(worth);
            self.worth.borrow_mut().add(worth);
            fills = rank < part.min(room.level);
            refused = if rank < part && !fills { count - hits } else { 0 };
        }
        Reading { kind, began: now, blocks: count, hits, saves, fills, refused, counts }
    }

    /// True for one read in many: the share of the volume is asked for then (`set_share`).
    pub fn asks_for_share(&self) -> bool {
        let reads = self.reads.get();
        self.reads.set(reads.wrapping_add(1));
        reads.is_multiple_of(SHARE_READS)
    }

    /// So many blocks of the fast device are the volume's.
    pub fn set_share(&self, blocks: u64) {
        self.models.borrow_mut().set_share(blocks);
    }

    /// Models learn of a read of some blocks.
    fn model(&self, blocks: &Range<u64>, read: impl Fn() -> Read) {
        let sampled = self.models.borrow().sampled(blocks.clone());
        sampled.for_each(|part| self.models.borrow_mut().read(&part, read()));
    }

    /// A read has ended.
    pub fn end_read(&self, read: Reading, at: &Range<u64>, now: Time) {
        let took = now.since(read.began);
        let work = match read.hits {
            0 => Some(Work::Read(read.kind)),
            hits if hits == read.blocks => Some(Work::Fast),
            _ => None,
        };
        work.into_iter().for_each(|work| self.costs.borrow_mut().measured(work, read.blocks, took));
        let is_hit = read.hits == read.blocks;
        let ms = if is_hit { read.saves * read.blocks as f32 } else { took.as_secs_f32() * 1e3 };
        let total = if is_hit { &self.saved_ms } else { &self.spent_ms };
        total.set(total.get() + f64::from(ms));
        let [saved_ms, spent_ms] = if is_hit { [ms, 0.0] } else { [0.0, ms] };
        self.observe(
            at,
            Use { is_sequential: read.kind == Kind::Sequential, saved_ms, spent_ms, ..Use::default() },
        );
    }

    /// A write of `at` begins.
    pub fn write(&self, at: &Range<u64>) {
        let is_sequential = self.streams.borrow_mut().follow(at) > 0;
        if self.placement.get() == Placement::Heat {
            let mut models = self.models.borrow_mut();
            models.sampled(blocks(at)).for_each(|part| models.write(&part));
        }
        self.observe(at, Use { is_write: true, is_sequential, ..Use::default() });
    }

    /// The monitor learns of a request: each extent has its part of the time.
    fn observe(&self, at: &Range<u64>, by: Use) {
        let range = blocks(at);
        let all = (range.end - range.start).max(1) as f32;
        let mut first = range.start;
        while first < range.end {
            let end = ((first / EXTENT + 1) * EXTENT).min(range.end);
            let part = (end - first) as f32 / all;
            let (saved_ms, spent_ms) = (by.saved_ms * part, by.spent_ms * part);
            let by = Use { blocks: (end - first) as u32, saved_ms, spent_ms, ..by };
            self.monitor.borrow_mut().used(first / EXTENT, by);
            first = end;
        }
    }

    /// The extents that cost the slow device the most time, or would.
    pub fn top(&self, count: usize) -> Value {
        let top = self.monitor.borrow().top(count);
        json!(top.into_iter().map(|(number, extent)| extent.json(number)).collect::<Vec<_>>())
    }

    /// The extents that cost the slow device the most time, or would, and get copies when they are read next, in small
    /// requests: at most `count`, each with the blocks that have none. `missing` counts those of a part of the volume.
    pub fn wanted(&self, count: usize, missing: impl Fn(Range<u64>) -> u64) -> Vec<(Range<u64>, u64)> {
        let placement = self.placement.get();
        let top = self.monitor.borrow().top(LOOKED);
        let extents = top.into_iter().map(|(number, _)| number * EXTENT..(number + 1) * EXTENT);
        extents
            .filter(|extent| !placement.passes(extent.start, Kind::Random, 1))
            .map(|extent| (extent.clone(), missing(extent)))
            .filter(|(_, missing)| *missing > 0)
            .take(count)
            .collect()
    }

    /// What is known of the extent of a block.
    pub fn extent(&self, block: u64) -> Value {
        self.monitor.borrow().extent(block / EXTENT).json(block / EXTENT)
    }

    /// The heat map of a volume of so many blocks, but for what is on the fast device; see [`Map::new`].
    pub fn map(&self, blocks: u64, cells: Option<u64>) -> Result<Map> {
        let mut map = Map::new(blocks, cells)?;
        self.monitor.borrow().all().for_each(|(number, extent)| map.add(number, &extent));
        Ok(map)
    }

    /// At most so many pages of what the monitor knows now, sealed with the key of the volume.
    pub fn pages(&self, most: usize, key: u64) -> Vec<u8> {
        self.monitor.borrow().pages(most, key)
    }

    /// The monitor knows what pages say. Bytes that are no page of the volume with this key say nothing.
    pub fn recall(&self, pages: &[u8], key: u64) {
        self.monitor.borrow_mut().recall(pages, key);
    }

    /// True unless somebody sees to it already that what is used gets into pages.
    pub fn begins_to_note(&self) -> bool {
        !self.notes.replace(true)
    }

    /// Pages have been written.
    pub fn ends_to_note(&self) {
        self.notes.set(false);
    }

    /// The part of recent misses that gets copies while a copy throws out another one, from 0 to 1.
    fn copied_part(&self) -> f64 {
        if self.placement.get() == Placement::Heat { self.models.borrow().part() } else { 1.0 }
    }

    /// What is shown.
    pub fn info(&self) -> Value {
        json!({
            "placement": self.placement.get().to_string(),
            "saved_seconds": self.saved_ms.get() / 1e3,
            "spent_seconds": self.spent_ms.get() / 1e3,
            "copied_part": self.copied_part(),
            "monitor_memory": self.monitor.borrow().memory() + self.models.borrow().memory(),
        })
    }
}

fn blocks(at: &Range<u64>) -> Range<u64> {
    at.start / SLOT as u64..at.end.div_ceil(SLOT as u64)
}
