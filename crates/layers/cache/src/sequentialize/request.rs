//! The requests of users to a log; `home.rs` has what differs beside homes.
//!
//! A write locks its blocks until it has completed, so that overlapping ones follow each other. Where it begins or ends
//! within a block, the rest of the block is read first, under the lock: other sectors stay as they are, exactly.

use super::batch::Part;
use super::classes::life_after;
use super::format::{SLOT, What};
use super::log::{Log, Pin};
use crate::ticket::Ticket;
use lamina_block::{
    Buf, Durability, Extent, ExtentState, Healed, Io, Judge, Place, Request, Result, Zero, all,
};
use lamina_kit::range_locks::RangeLock;
use std::ops::Range;
use std::rc::Rc;

/// Bytes side by side that are on the device side by side, or that are not mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub at: Range<u64>,
    /// Where the first byte is in the log.
    pub place: Option<u64>,
}

/// The blocks that a range of bytes touches.
pub(super) fn touched(at: &Range<u64>) -> Range<u32> {
    (at.start / SLOT as u64) as u32..at.end.div_ceil(SLOT as u64) as u32
}

/// The blocks that are whole within a range of bytes; empty if there are none.
pub(super) fn whole(at: &Range<u64>) -> Range<u32> {
    let start = at.start.div_ceil(SLOT as u64) as u32;
    start..start.max((at.end / SLOT as u64) as u32)
}

pub(super) fn bytes_of(blocks: &Range<u32>) -> Range<u64> {
    u64::from(blocks.start) * SLOT as u64..u64::from(blocks.end) * SLOT as u64
}

impl Log {
    pub async fn lock(&self, blocks: &Range<u32>) -> RangeLock {
        self.locks.lock(&(u64::from(blocks.start)..u64::from(blocks.end))).await
    }

    /// Where bytes are.
    pub fn runs(&self, at: &Range<u64>) -> Vec<Run> {
        let map = self.map.borrow();
        let mut runs: Vec<Run> = Vec::with_capacity(1);
        for block in touched(at) {
            let of = bytes_of(&(block..block + 1));
            let part = of.start.max(at.start)..of.end.min(at.end);
            let place = map.get(block).map(|slot| u64::from(slot) * SLOT as u64 + part.start - of.start);
            if let Some(last) = runs.last_mut() {
                let next = last.place.map(|place| place + (last.at.end - last.at.start));
                // A run has one segment, which is pinned.
                if next == place && place.is_none_or(|place| self.is_same_segment(place, place - 1)) {
                    last.at.end = part.end;
                    continue;
                }
            }
            runs.push(Run { at: part, place });
        }
        runs
    }

    fn segment_at(&self, place: u64) -> u32 {
        self.shape.segment_of((place / SLOT as u64) as u32)
    }

    fn is_same_segment(&self, a: u64, b: u64) -> bool {
        b >= u64::from(self.shape.segments_at) * SLOT as u64 && self.segment_at(a) == self.segment_at(b)
    }

    /// A read of a run of the log.
    pub fn read_run(&self, place: u64, into: Buf) -> Request {
        self.child.submit(Io::read(self.shape.place(0) + place, into))
    }

    /// The segments of runs are not freed while these live.
    pub fn pins(self: &Rc<Log>, runs: &[Run]) -> Vec<Pin> {
        runs.iter().filter_map(|run| run.place.map(|place| self.pin(self.segment_at(place)))).collect()
    }

    /// Reads bytes: zeroes, or what is at home, where nothing is mapped.
    pub async fn read(self: &Rc<Log>, at: Range<u64>, into: Buf) -> Result<()> {
        let runs = self.runs(&at);
        let pins = self.pins(&runs);
        let read = match self.shape.is_home && runs.iter().any(|run| run.place.is_none()) {
            true => self.read_over_homes(&runs, &at, &into).await,
            false => self.read_runs(&runs, &at, &into).await,
        };
        drop(pins);
        read
    }

    async fn read_runs(self: &Rc<Log>, runs: &[Run], at: &Range<u64>, into: &Buf) -> Result<()> {
        let submit = |run: &Run| -> Option<Request> {
            let part = into.slice((run.at.start - at.start) as usize..(run.at.end - at.start) as usize);
            match run.place {
                Some(place) => Some(self.read_run(place, part)),
                None => {
                    part.fill(0);
                    None
                }
            }
        };
        all(runs.iter().filter_map(submit)).await
    }

    /// Writes bytes.
    pub async fn write(self: &Rc<Log>, at: Range<u64>, data: Buf, durability: Durability) -> Result<()> {
        let blocks = touched(&at);
        let is_for_home = self.is_for_home(&at);
        let for_log = match is_for_home {
            true => self.in_log(&blocks).iter().map(|mapped| mapped.end - mapped.start).sum(),
            false => blocks.end - blocks.start,
        };
        self.slow_down(for_log).await;
        let _lock = self.lock(&blocks).await;
        match is_for_home {
            true => self.write_home(&at, data, durability).await,
            false => self.write_log(&at, data, durability).await,
        }
    }

    /// Appends bytes, with the rest of their blocks. The blocks are locked.
    pub async fn write_log(self: &Rc<Log>, at: &Range<u64>, data: Buf, durability: Durability) -> Result<()> {
        let data = self.whole_blocks(at, data).await?;
        self.put(touched(at), data, durability).await
    }

    /// Makes bytes zeroes.
    pub async fn zero(self: &Rc<Log>, at: Range<u64>, how: Zero) -> Result<()> {
        let _lock = self.lock(&touched(&at)).await;
        let whole = whole(&at);
        let ends = if whole.is_empty() {
            vec![at.clone()]
        } else {
            let inner = bytes_of(&whole);
            vec![at.start..inner.start, inner.end..at.end]
        };
        for end in ends.into_iter().filter(|end| !end.is_empty()) {
            let zeroes = Buf::zeroed((end.end - end.start) as usize);
            match self.shape.is_home {
                true => self.write_home(&end, zeroes, how.durability).await?,
                false => self.write_log(&end, zeroes, how.durability).await?,
            }
        }
        match self.shape.is_home {
            true => self.zero_home(whole, how).await,
            false => self.drop_blocks(whole, how.durability).await,
        }
    }

    /// Forgets the blocks that are whole within `at`; others stay as they are.
    pub async fn discard(self: &Rc<Log>, at: Range<u64>) -> Result<()> {
        if self.shape.is_home {
            return self.discard_home(at).await;
        }
        let blocks = whole(&at);
        if blocks.is_empty() {
            return Ok(());
        }
        let _lock = self.lock(&blocks).await;
        self.drop_blocks(blocks, Durability::Cached).await
    }

    /// `data`, which are written at `at`, with the rest of the blocks at both ends. The blocks are locked.
    async fn whole_blocks(self: &Rc<Log>, at: &Range<u64>, data: Buf) -> Result<Buf> {
        let all = bytes_of(&touched(at));
        if all == *at {
            return Ok(data);
        }
        let buf = self.env.pool().take((all.end - all.start) as usize);
        let (before, after) = (all.start..at.start, at.end..all.end);
        for end in [before, after].into_iter().filter(|end| !end.is_empty()) {
            let part = buf.slice((end.start - all.start) as usize..(end.end - all.start) as usize);
            self.read(end, part).await?;
        }
        let from = (at.start - all.start) as usize;
        buf.slice(from..from + data.len()).copy_from(&data);
        Ok(buf)
    }

    /// Appends whole blocks. They are locked.
    async fn put(self: &Rc<Log>, blocks: Range<u32>, data: Buf, durability: Durability) -> Result<()> {
        let ticket = Ticket::of_request(&self.child);
        let mut next = blocks.start;
        for (class, count) in self.classes_of(&blocks) {
            let from = (next - blocks.start) as usize * SLOT;
            let part = Part {
                what: What::Written,
                block: next,
                count,
                data: data.slice(from..from + count as usize * SLOT),
                from: 0,
                durability,
                ticket: Rc::clone(&ticket),
                source: None,
            };
            next += count;
            self.append(class, part);
        }
        self.clock.set(self.clock.get() + u64::from(blocks.end - blocks.start));
        self.wrote(&blocks);
        ticket.wait().await
    }

    /// The classes of blocks that are written, with the numbers of blocks in a row.
    fn classes_of(&self, blocks: &Range<u32>) -> Vec<(u8, u32)> {
        let (mut map, segments, classes) =
            (self.map.borrow_mut(), self.segments.borrow(), self.classes.borrow());
        let now = self.clock.get();
        let mut runs: Vec<(u8, u32)> = Vec::with_capacity(1);
        for block in blocks.clone() {
            let time = map.get(block).map(|slot| segments.get(self.shape.segment_of(slot)).time);
            let life = life_after(map.life(block), time.map(|time| now.saturating_sub(time)));
            map.set_life(block, life);
            let class = classes.of_user(life, segments.live());
            match runs.last_mut() {
                Some((last, count)) if *last == class => *count += 1,
                _ => runs.push((class, 1)),
            }
        }
        runs
    }

    pub async fn drop_blocks(self: &Rc<Log>, blocks: Range<u32>, durability: Durability) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let ticket = Ticket::of_request(&self.child);
        let part = Part {
            what: What::Dropped,
            block: blocks.start,
            count: blocks.end - blocks.start,
            data: Buf::empty(),
            from: 0,
            durability,
            ticket: Rc::clone(&ticket),
            source: None,
        };
        self.append(0, part);
        ticket.wait().await
    }

    /// What is mapped is data; of the rest the device below knows, where that has homes.
    pub async fn extents(&self, at: Range<u64>) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        for run in self.runs(&at) {
            let len = run.at.end - run.at.start;
            match run.place {
                Some(_) => Extent::push(&mut extents, len, ExtentState::Data),
                None if self.shape.is_home => {
                    let below = self.child.extents(run.at).await?;
                    below.iter().for_each(|extent| Extent::push(&mut extents, extent.len, extent.state));
                }
                None => Extent::push(&mut extents, len, ExtentState::Hole),
            }
        }
        Ok(extents)
    }

    /// The place of byte `at`.
    pub fn located(&self, at: u64) -> Vec<Place> {
        let run = self.runs(&(at..at + 1)).into_iter().next();
        let place = match run.and_then(|run| run.place) {
            Some(place) => Some(self.shape.place(0) + place),
            None => self.shape.is_home.then_some(at),
        };
        place.map(|there| Place::data(&self.child, there)).into_iter().collect()
    }

    /// Another copy of bytes that are in one piece on the device. Their segment is pinned, and no slot of data is
    /// written twice in one use of it, so that what is put right there is what these bytes were, whatever is written
    /// meanwhile. What is not mapped stays so: nobody writes there meanwhile.
    pub async fn heal(self: &Rc<Log>, at: Range<u64>, is_right: Judge) -> Result<Option<Healed>> {
        match self.runs(&at)[..] {
            [Run { place: Some(place), .. }] => {
                let _pin = self.pin(self.segment_at(place));
                let place = self.shape.place(0) + place;
                self.child.heal(place..place + (at.end - at.start), is_right).await
            }
            [Run { place: None, .. }] if self.shape.is_home => self.child.heal(at, is_right).await,
            _ => Ok(None),
        }
    }
}
