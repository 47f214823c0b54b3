//! The decisions of a tier: which blocks have a copy on the fast device. With the placement `heat` those that save the
//! most milliseconds; others in the same structures.
//!
//! ```text
//!      read   ─▶ a copy? served fast ─┬▶ the use is learned from: class, age, milliseconds
//!                none? served slow ───┤
//!                 └▶ worth more than the worst copy of its set, and than its move? copied
//!      write  ─▶ served fast, dirty ──┘   room: the worst copy goes; if it is dirty, it is written home first,
//!                                         with its extent and others in one sweep over the slow device
//! ```
//!
//! What a copy is worth is learned ([`Reuse`]): a clean copy what reads of it will save, a dirty one also what
//! writes of it will save, because they are written home once instead of twice. So dirty and clean copies compete by
//! milliseconds, and nothing has a share of its own. A copy that was written home stays as a clean one as long as it is
//! worth its cell.
//!
//! Costs are measured ([`Costs`]): a sequential read saves little, because the slow device is fast at it.

use super::cells::{Cell, Cells};
use super::costs::Costs;
use super::monitor::{EXTENT, Extent, Monitor, Use};
use super::placement::Placement;
use super::reuse::Reuse;
use super::streams::Streams;
use super::{Ask, Kind, Plan, Policy, Work, push};
use std::ops::Range;
use std::time::Duration;

/// Blocks that are written home together, so that the arm goes from one to the next.
const GROUP: usize = 256;
/// Extents that are looked at for a group.
const LOOKED: usize = 4 * GROUP;
/// What was learned counts so much after as many uses as the fast device has blocks: half after four times as many.
const DECAY: f32 = 0.84;
/// A read is copied if the copy saves so many times what copying takes the fast device.
const PRICE: f32 = 1.0;
/// Dirty copies are written home with others that are worth up to so many times what the ones that go are worth.
const EDGE: f32 = 1.0;
/// How much a copy that goes counts for the mean rank of those that go.
const EDGE_WEIGHT: f32 = 1.0 / 64.0;
/// Parts of the fast device's blocks that are a unit of time.
const UNITS: u64 = 128;
/// Parts of the fast device's blocks after whose use the next is learned, and the least such number of blocks.
const LESSONS: u64 = 4;
const LESSON_MIN: u64 = 256;
/// Extents of which something is known, besides those with dirty blocks.
const EXTENTS_MAX: u64 = 1 << 18;

/// The history of a block, in the low bits of its class: never seen, or a ghost.
const HISTORY: u8 = 7;
const RETURNED: u8 = 1;
/// Used again, soon; the next two later; three more if that was so before, too.
const SOON: u8 = 2;
const AGAIN: u8 = 3;
/// The other bits of a class: the last request was sequential, it was a write, and the extent's blocks are used again
/// more often than others are.
const SEQUENTIAL: u8 = 1 << 3;
const WRITTEN: u8 = 1 << 4;
const REPUTED: u8 = 1 << 5;

/// The state of a tier.
pub struct Tier {
    placement: Placement,
    cells: Cells,
    monitor: Monitor,
    reuse: Reuse,
    costs: Costs,
    streams: Streams,
    /// Blocks that were used, in all requests.
    clock: u64,
    /// Uses of blocks in a unit of time.
    unit: u64,
    /// At which uses was learned last, and will be next.
    lessons: [u64; 2],
    /// The part of uses that are of blocks used before.
    reused: f32,
    /// The rank of copies that go.
    edge: f32,
    /// The extent at which writing home goes on.
    sweep: u64,
    /// Blocks of the current request that have no copy yet, and their classes.
    absent: Vec<(u64, u8)>,
}

/// How a block stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// What its copy is worth: milliseconds saved for each cell and unit of time. `None`: there is no copy.
    pub rank: Option<f32>,
    /// Whether the copy is newer than the block's home.
    pub is_dirty: bool,
    /// What a block has to be worth for a copy in the place of another one; `None`: a cell is free.
    pub least: Option<f32>,
    /// What is known of its extent.
    pub extent: Extent,
}

/// A copy, where it is, and its rank.
#[derive(Clone, Copy)]
struct Ranked {
    place: usize,
    cell: Cell,
    rank: f32,
}

/// What the blocks of a request have in common.
struct Asked {
    kind: Kind,
    is_write: bool,
    blocks: u64,
    /// Milliseconds that a copy of one of its blocks saves if all are read.
    saved: f32,
}

impl Tier {
    /// For a fast device of so many blocks.
    pub fn new(blocks: usize, placement: Placement) -> Tier {
        Tier {
            placement,
            cells: Cells::new(blocks),
            monitor: Monitor::new(EXTENTS_MAX, 4 * blocks as u64),
            reuse: Reuse::default(),
            costs: Costs::default(),
            streams: Streams::default(),
            clock: 0,
            unit: (blocks as u64 / UNITS).max(1),
            lessons: [0, LESSON_MIN],
            reused: 0.0,
            edge: 0.0,
            sweep: 0,
            absent: Vec::new(),
        }
    }

    /// Another placement from now on; copies stay until others need their cells.
    pub fn place(&mut self, placement: Placement) {
        self.placement = placement;
    }

    /// Bytes of memory: of the cells, and of what is known of extents, in pages.
    pub fn memory(&self) -> [usize; 2] {
        [self.cells.memory(), self.monitor.memory()]
    }

    /// The `most` extents that cost, or would cost, the slow device the most time, and what is known of each.
    pub fn top(&self, most: usize) -> Vec<(u64, Extent)> {
        self.monitor.top(most)
    }

    /// Why a block has a copy, or has none.
    pub fn explain(&self, block: u64) -> Standing {
        let cell = self.cells.find(block).and_then(|place| self.cells.at(place));
        let is_full = self.cells.free(block).is_none();
        Standing {
            rank: cell.map(|cell| self.rank(cell)),
            is_dirty: cell.is_some_and(Cell::is_dirty),
            least: self.worst(block).filter(|_| is_full).map(|worst| worst.rank),
            extent: self.monitor.extent(block / EXTENT),
        }
    }

    fn stamp(&self) -> u16 {
        (self.clock / self.unit) as u16
    }

    fn age(&self, cell: Cell) -> u16 {
        self.stamp().wrapping_sub(cell.stamp())
    }

    fn learn(&mut self) {
        let [last, next] = self.lessons;
        if self.clock < next {
            return;
        }
        let blocks = self.cells.count() as f32;
        let decay = DECAY.powf((self.clock - last) as f32 / blocks);
        let fade = DECAY.powf(self.unit as f32 / blocks);
        self.reuse.learn(self.stamp(), decay, fade, self.costs.destage());
        // At the begin there is more to learn.
        let pause = (self.clock / 8).min(self.cells.count() as u64 / LESSONS).max(LESSON_MIN);
        self.lessons = [self.clock, self.clock + pause];
    }

    /// What the use of a block says of the next one.
    fn class(&mut self, block: u64, found: Option<Cell>, kind: Kind, is_write: bool) -> u8 {
        let history = match found {
            Some(cell) => {
                let (age, blocks) = (u64::from(self.age(cell)) * self.unit, self.cells.count() as u64);
                let again = if cell.class() & HISTORY >= SOON { AGAIN } else { 0 };
                SOON + again + u8::from(age >= blocks / 8) + u8::from(age >= blocks)
            }
            None if self.cells.recall(block) => RETURNED,
            None => 0,
        };
        let known = self.monitor.extent(block / EXTENT);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        history
            | flag(kind == Kind::Sequential, SEQUENTIAL)
            | flag(is_write, WRITTEN)
            | flag(known.reused > known.blocks * self.reused, REPUTED)
    }

    /// The monitor learns of a use.
    fn observe(&mut self, block: u64, class: u8, found: Option<Cell>, ms: f32) {
        let (is_reused, is_write) = (class & HISTORY > 0, class & WRITTEN != 0);
        let weight = 1.0 / (4 * self.cells.count()) as f32;
        self.reused += (f32::from(u8::from(is_reused)) - self.reused) * weight;
        let ms = if is_write { 0.0 } else { ms };
        let [saved_ms, spent_ms] = if found.is_some() { [ms, 0.0] } else { [0.0, ms] };
        let is_sequential = class & SEQUENTIAL != 0;
        let by = Use { is_write, is_sequential, blocks: 1, reused: u32::from(is_reused), saved_ms, spent_ms };
        self.monitor.used(block / EXTENT, by);
    }

    fn rank(&self, cell: Cell) -> f32 {
        match self.placement.weighs() {
            true => self.reuse.worth(cell.class(), self.age(cell), cell.is_dirty()).rate,
            false => 1.0 / (1.0 + f32::from(self.age(cell))),
        }
    }

    /// The copy of the block's set that is worth least; of equal ones the oldest.
    fn worst(&self, block: u64) -> Option<Ranked> {
        let cells = self.cells.set(block).filter_map(|place| Some((place, self.cells.at(place)?)));
        let ranked = cells.map(|(place, cell)| Ranked { place, cell, rank: self.rank(cell) });
        let age = |ranked: &Ranked| self.age(ranked.cell);
        ranked.min_by(|a, b| a.rank.total_cmp(&b.rank).then(age(b).cmp(&age(a))))
    }

    /// The rank that a block has to have for a copy: of a read, what it is worth, if that pays for the move; a write
    /// has to go somewhere.
    fn claim(&self, class: u8) -> f32 {
        let worth = self.reuse.worth(class, 0, false);
        match class & WRITTEN != 0 || !self.placement.weighs() {
            true => f32::INFINITY,
            false if worth.total < PRICE * self.costs.fast(1) => f32::NEG_INFINITY,
            false => worth.rate,
        }
    }

    /// A cell for the block: free, or of a copy that is not worth more than `claim`.
    fn room(&mut self, block: u64, claim: f32, plan: &mut Plan) -> Option<usize> {
        if let Some(free) = self.cells.free(block) {
            return Some(free);
        }
        let mut worst = self.worst(block).filter(|worst| worst.rank <= claim)?;
        while worst.cell.is_dirty() {
            self.destage(worst.cell.block(), plan);
            worst = self.worst(block)?;
        }
        self.edge += (worst.rank - self.edge) * EDGE_WEIGHT;
        self.cells.remember(worst.cell.block());
        self.cells.put(worst.place, None);
        Some(worst.place)
    }

    /// Writes home a dirty block, its extent, and others that are hardly worth more, in one sweep over the device.
    fn destage(&mut self, block: u64, plan: &mut Plan) {
        let mut extents = vec![block / EXTENT];
        let mut count = self.monitor.dirty(block / EXTENT).count();
        let mut swept = Vec::new();
        while count < GROUP
            && swept.len() < LOOKED
            && let Some(extent) = self.monitor.next_dirty(self.sweep).or_else(|| self.monitor.next_dirty(0))
            && swept.first() != Some(&extent)
        {
            swept.push(extent);
            self.sweep = extent + 1;
            if extent != extents[0] && self.is_due(extent) {
                count += self.monitor.dirty(extent).count();
                extents.push(extent);
            }
        }
        extents.sort_unstable();
        for extent in extents {
            for block in self.monitor.dirty(extent) {
                push(&mut plan.destage, block);
                self.clean(block);
            }
        }
    }

    /// Whether a dirty copy of the extent will go soon.
    fn is_due(&self, extent: u64) -> bool {
        let cells = self.monitor.dirty(extent).filter_map(|block| self.cells.at(self.cells.find(block)?));
        cells.map(|cell| self.rank(cell)).any(|rank| rank <= self.edge * EDGE)
    }

    fn clean(&mut self, block: u64) {
        self.monitor.set_dirty(block, false);
        if let Some(place) = self.cells.find(block)
            && let Some(cell) = self.cells.at(place)
        {
            self.cells.put(place, Some(Cell::new(block, cell.class(), cell.stamp(), false)));
        }
    }

    /// A block is used.
    fn used(&mut self, block: u64, ask: &Asked, plan: &mut Plan) {
        let Asked { kind, is_write, blocks, saved } = *ask;
        self.clock += 1;
        self.learn();
        let place = self.cells.find(block);
        let found = place.and_then(|place| self.cells.at(place));
        let class = self.class(block, found, kind, is_write);
        self.observe(block, class, found, saved);
        self.reuse.used(block, self.stamp(), class, (!is_write).then_some(saved));
        let passes = self.placement.passes(block, kind, blocks);
        let is_fast = found.is_some() || (is_write && !passes);
        push(if is_fast { &mut plan.fast } else { &mut plan.slow }, block);
        match place {
            Some(place) => {
                let is_dirty = is_write || found.is_some_and(Cell::is_dirty);
                self.put(place, Cell::new(block, class, self.stamp(), is_dirty));
            }
            None if passes => self.cells.remember(block),
            None => self.absent.push((block, class)),
        }
    }

    /// A block without a copy gets one, if it is worth it.
    fn come(&mut self, block: u64, class: u8, plan: &mut Plan) {
        let Some(place) = self.room(block, self.claim(class), plan) else {
            return self.cells.remember(block);
        };
        let is_write = class & WRITTEN != 0;
        if !is_write {
            push(&mut plan.fill, block);
        }
        self.put(place, Cell::new(block, class, self.stamp(), is_write));
    }

    fn put(&mut self, place: usize, cell: Cell) {
        if cell.is_dirty() {
            self.monitor.set_dirty(cell.block(), true);
        }
        self.cells.put(place, Some(cell));
    }
}

impl Policy for Tier {
    fn ask(&mut self, ask: &Ask, plan: &mut Plan) {
        let (kind, blocks) = (self.streams.kind(ask), ask.blocks());
        let saved = self.costs.saved(kind, blocks.end - blocks.start, self.streams.blocks());
        plan.kind = kind;
        let asked = Asked { kind, is_write: ask.is_write, blocks: blocks.end - blocks.start, saved };
        for block in blocks {
            self.used(block, &asked, plan);
        }
        // Room is made after copies have changed, so that a block that is written home does not change afterwards.
        let mut absent = std::mem::take(&mut self.absent);
        absent.drain(..).for_each(|(block, class)| self.come(block, class, plan));
        self.absent = absent;
    }

    fn measured(&mut self, work: Work, blocks: u64, took: Duration) {
        self.costs.measured(work, blocks, took);
    }

    fn dirty(&self) -> Vec<Range<u64>> {
        self.monitor.dirty_ranges()
    }

    fn resident(&self) -> usize {
        self.cells.used()
    }
}
