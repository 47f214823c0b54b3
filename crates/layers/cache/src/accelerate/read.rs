//! Reads: from the flash, or from the store, and then the flash has it.

use super::failure::{SideError, SideResult};
use super::{Accelerate, add, parts};
use crate::flash::{Flow, Pin, Run, SLOT};
use futures_util::future::join_all;
use lamina_block::{Buf, Durability, Error, Extent, ExtentState, Healed, Io, Judge, Result};
use lamina_kit::flaw::flawed;
use lamina_kit::streams::Streams;
use std::ops::Range;
use std::rc::Rc;

/// Streams of reads that are known at a time.
const STREAMS: usize = 16;
/// Shorter reads fill the flash, in whatever order they come, in bytes: the store takes its time for each of
/// them, and small ones side by side often ask for the same block again (docs/benchmarks-hit-rates.md).
const LARGE: u64 = 64 << 10;

/// So many bytes are looked up on the flash at once, when somebody asks what they hold: 1 GiB.
const TOLD: u64 = 1 << 30;

/// Streams of reads, and which of them are long.
pub struct LongStreams {
    known: Streams,
    /// A longer one does not fill the flash, in bytes; 0: all do.
    limit: u64,
}

impl LongStreams {
    pub fn new(limit: u64) -> LongStreams {
        LongStreams { known: Streams::new(STREAMS, 0), limit }
    }

    /// A read of `at`: true if it belongs to a long stream.
    pub fn is_long(&mut self, at: &Range<u64>) -> bool {
        if self.limit == 0 {
            return false;
        }
        self.known.follow(at);
        self.known.len() > self.limit && at.end - at.start >= LARGE
    }
}

/// What a read does beside giving data.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    /// Of these blocks the flash gets those that it does not have.
    pub blocks: Range<u64>,
    /// Blocks that it has were asked for.
    pub counts: bool,
}

impl Run {
    /// True if sectors of `at` are absent.
    fn lacks(&self, at: &Range<u64>) -> bool {
        parts::sectors(self.blocks.start, at) & self.absent != 0
    }
}

impl Fill {
    pub fn of(blocks: Range<u64>) -> Fill {
        Fill { blocks, counts: true }
    }
}

impl Accelerate {
    pub(super) async fn read(&self, at: Range<u64>, into: Buf) -> Result<()> {
        if self.is_doubtful() {
            Box::pin(self.until_no_doubt()).await?;
        }
        let blocks = Accelerate::blocks(&at);
        if let Some(heat) = &self.heat {
            return self.read_tier(heat, at, into).await;
        }
        let fill = match self.streams.borrow_mut().is_long(&at) {
            false => blocks,
            // The next read of the stream begins in the block in which this one ends.
            true if !at.end.is_multiple_of(SLOT as u64) => blocks.end - 1..blocks.end,
            true => 0..0,
        };
        self.read_filling(at, into, Fill::of(fill)).await
    }

    /// Reads `at`, and fills the flash.
    pub(super) async fn read_filling(&self, at: Range<u64>, into: Buf, fill: Fill) -> Result<()> {
        let read = self.read_runs(at.clone(), into.clone(), fill).await;
        let read = match read {
            Ok(()) => self.read_is_at_peers(&at).await,
            failed => failed,
        };
        match read {
            Err(SideError::Flash(e)) => {
                self.without_flash(e).await?;
                self.store.submit(Io::read(at.start, into)).await
            }
            read => read.map_err(Error::from),
        }
    }

    /// Reads without filling the flash.
    pub(super) async fn read_now(&self, at: Range<u64>, into: Buf) -> SideResult<()> {
        self.read_runs(at, into, Fill::of(0..0)).await
    }

    /// Reads a block that becomes a part of a newer version, which would give what is wrong in it a right
    /// checksum. False if that cannot be done, or if the flash does not have it.
    pub(super) async fn read_compared(&self, block: u64, into: &Buf) -> bool {
        let Some(slot) = self.cache.runs(&self.volume, block..block + 1)[0].slot else { return false };
        if self.cache.check_reads().is_err() {
            return false;
        }
        let Ok(data) = self.cache.read_compared(slot).await else { return false };
        self.count_hits(slot..slot + 1, true);
        into.copy_from(&data);
        true
    }

    fn count_hits(&self, slots: Range<u32>, counts: bool) {
        let blocks = u64::from(slots.end - slots.start);
        self.count_read(true, blocks);
        add(&self.tally.hits, blocks);
        if counts {
            self.cache.touch(slots);
        }
    }

    /// The same, and says which side failed.
    async fn read_runs(&self, at: Range<u64>, into: Buf, fill: Fill) -> SideResult<()> {
        let runs = self.cache.runs(&self.volume, Accelerate::blocks(&at));
        match &runs[..] {
            [run] => self.read_run(run, None, &at, &into, &fill).await,
            _ => {
                // Many of them do not all begin at once, and until one has nothing else may be written where it is.
                let pinned: Vec<_> = runs.iter().map(|run| (run, self.cache.pin_run(run))).collect();
                let reads = pinned.into_iter().map(|(run, pin)| self.read_run(run, pin, &at, &into, &fill));
                join_all(reads).await.into_iter().collect()
            }
        }
    }

    /// Reads the part of `at` that is in a run, whose segment `pin` keeps until then.
    async fn read_run(
        &self,
        run: &Run,
        pin: Option<Pin>,
        at: &Range<u64>,
        into: &Buf,
        fill: &Fill,
    ) -> SideResult<()> {
        let bytes = self.bytes(&run.blocks);
        let part = bytes.start.max(at.start)..bytes.end.min(at.end);
        let into = into.slice((part.start - at.start) as usize..(part.end - at.start) as usize);
        let blocks = run.blocks.end - run.blocks.start;
        let Fill { blocks: fill, counts } = fill;
        let fill = run.blocks.start.max(fill.start)..run.blocks.end.min(fill.end);
        match run.slot {
            Some(slot) if run.lacks(&part) && !flawed("absent sectors are read from the flash") => {
                self.read_mixed(run, slot, pin, part, into).await
            }
            Some(slot) => {
                self.count_hits(slot..slot + blocks as u32, *counts);
                let within = part.start - bytes.start..part.end - bytes.start;
                // One that was away may have lost what it had.
                let read = match self.cache.check_reads() {
                    Ok(()) => self.cache.read(slot, within, into.clone()).await,
                    failed => failed,
                };
                // What else is done may wait for a write, and the write for space.
                drop(pin);
                match read {
                    Ok(()) => Ok(()),
                    Err(e) if e.is_of_memory() => Err(SideError::Store(e)),
                    Err(_) if blocks > 1 => self.read_alone(part, into).await,
                    Err(e) if self.is_only_copy(run) => Err(self.of_only_copy(e)),
                    // The store has it too. It stays in the index: only so all versions of a block are in one log.
                    Err(_) => {
                        add(&self.tally.unreadable, blocks);
                        self.read_store(part, into).await
                    }
                }
            }
            None if !fill.is_empty() && self.may_fill() && bytes.end <= self.whole_bytes() => {
                self.read_and_fill(&run.blocks, part, into, fill).await
            }
            None => {
                self.count_miss(blocks);
                add(&self.tally.bypassed, blocks);
                self.read_store(part, into).await
            }
        }
    }

    /// True if the store has an older version of a block.
    pub(super) fn is_only_copy(&self, run: &Run) -> bool {
        let is_dirty = self.cache.is_dirty_at(&self.volume, run.blocks.clone());
        is_dirty && !flawed("a flash that fails hides an older state")
    }

    /// Reads block by block what cannot be read at once: some can, or are on the store too.
    async fn read_alone(&self, at: Range<u64>, into: Buf) -> SideResult<()> {
        let mut from = at.start;
        while from < at.end {
            let to = at.end.min((from / SLOT as u64 + 1) * SLOT as u64);
            let part = into.slice((from - at.start) as usize..(to - at.start) as usize);
            Box::pin(self.read_now(from..to, part)).await?;
            from = to;
        }
        Ok(())
    }

    /// True if the store has no older data than what is read from it once: no discard is under way, and there is space.
    fn may_fill(&self) -> bool {
        self.progress.get().is_direct_durable() && self.cache.can_fill()
    }

    /// Reads blocks from the store that the flash did not have, and puts those of them there that are in `fill`.
    async fn read_and_fill(
        &self,
        blocks: &Range<u64>,
        part: Range<u64>,
        into: Buf,
        fill: Range<u64>,
    ) -> SideResult<()> {
        let bytes = self.bytes(blocks);
        // Nothing is written there between the read and the fill, so that the flash gets nothing that is old.
        let lock = self.lock(&bytes).await;
        if !self.may_fill() || self.cache.has_any(&self.volume, blocks.clone()) {
            drop(lock);
            // What has come meanwhile is there; the rest is still to be filled.
            return Box::pin(self.read_runs(part, into, Fill::of(fill))).await;
        }
        let count = blocks.end - blocks.start;
        self.count_miss(count);
        let data = self.env.pool().take(count as usize * SLOT);
        let len = (bytes.end - bytes.start) as usize;
        data.slice(len..data.len()).fill(0);
        if !self.read_before(&bytes, &data.slice(0..len)).await {
            self.read_store(bytes.clone(), data.slice(0..len)).await?;
        }
        into.copy_from(&data.slice((part.start - bytes.start) as usize..(part.end - bytes.start) as usize));
        let bytes = |block: u64| (block - blocks.start) as usize * SLOT;
        let (start, data) = (fill.start, data.slice(bytes(fill.start)..bytes(fill.end)));
        if !self.volume.budget.borrow_mut().take(data.len() as u64, self.env.now()) {
            add(&self.tally.bypassed, count);
            return Ok(());
        }
        add(&self.tally.bypassed, count - (fill.end - fill.start));
        self.spawn(move |me| async move {
            let _lock = lock;
            // It has been read: whether the flash has it too is nobody's concern.
            let filled = me.cache.fill(&me.volume, start, &data).await.unwrap_or(0);
            add(&me.tally.filled, filled);
            let left = data.len() as u64 - filled * SLOT as u64;
            me.volume.budget.borrow_mut().give_back(left, me.env.now());
        });
        Ok(())
    }

    /// Reads from the store, which may be away for a while.
    pub(super) async fn read_store(&self, at: Range<u64>, into: Buf) -> SideResult<()> {
        let began = self.env.now();
        loop {
            let permit = self.permit(Flow::Read).await;
            let read = self.store.submit(Io::read(at.start, into.clone())).await;
            drop(permit);
            match read {
                Err(e) if self.is_patient(&e, began) => self.env.sleep(super::destage::PAUSE).await,
                result => return result.map_err(SideError::Store),
            }
        }
    }

    /// Another copy of `at`: from below the flash, if that has it, or from the store, if that is up to date.
    pub(super) async fn healed(&self, at: Range<u64>, is_right: Judge) -> Result<Option<Healed>> {
        let blocks = Accelerate::blocks(&at);
        // What was read and is wrong may just be on its way to the flash.
        let lock = self.lock(&self.bytes(&blocks)).await;
        self.cache.at_rest(&self.volume, &blocks).await;
        let is_dirty = self.cache.is_dirty_at(&self.volume, blocks.clone());
        match &self.cache.runs(&self.volume, blocks)[..] {
            [Run { slot: None, .. }] => return self.store.heal(at, is_right).await,
            [Run { absent, blocks, .. }] if parts::sectors(blocks.start, &at) & !absent == 0 => {
                return self.store.heal(at, is_right).await;
            }
            [Run { slot: Some(slot), blocks, absent: 0 }] => {
                let first = self.bytes(blocks).start;
                let within = at.start - first..at.end - first;
                // A flash that fails has no copy.
                let healed = self.cache.heal(*slot, within, Rc::clone(&is_right)).await.unwrap_or(None);
                if healed.is_some() || is_dirty {
                    return Ok(healed);
                }
            }
            _ if is_dirty => return Ok(None),
            _ => {}
        }
        let bytes = self.env.pool().take((at.end - at.start) as usize);
        self.store.submit(Io::read(at.start, bytes.clone())).await?;
        let healed = match is_right(&bytes) {
            true => Some(Healed { bytes, copies: 0 }),
            false => self.store.heal(at.clone(), is_right).await?,
        };
        drop(lock);
        let Some(Healed { bytes, copies }) = healed else { return Ok(None) };
        // A newer version takes the place of what is wrong on the flash.
        self.write_to_end(at, bytes.clone(), Durability::Cached).await?;
        Ok(Some(Healed { bytes, copies: copies + 1 }))
    }

    /// What the bytes of `at` hold: what is on the flash, and the rest as the store says.
    pub(super) async fn extents_of(&self, at: Range<u64>) -> Result<Vec<Extent>> {
        let (mut told, mut from) = (Vec::new(), at.start);
        while from < at.end {
            let part = from..at.end.min(from + TOLD);
            from = part.end;
            // The flash first: what it has may get to the store, and go, before that has answered.
            let cached = self.cache.runs(&self.volume, Accelerate::blocks(&part)).into_iter();
            let mut cached =
                cached.filter(|run| run.slot.is_some()).map(|run| self.bytes(&run.blocks)).peekable();
            let mut at = part.start;
            for below in self.store.extents(part.clone()).await? {
                let end = at + below.len;
                while at < end {
                    while cached.next_if(|run| run.end <= at).is_some() {}
                    let (upto, state) = match cached.peek() {
                        Some(run) if run.start <= at => (run.end, ExtentState::Data),
                        Some(run) => (run.start, below.state),
                        None => (end, below.state),
                    };
                    let upto = upto.min(end);
                    Extent::push(&mut told, upto - at, state);
                    at = upto;
                }
            }
        }
        Ok(told)
    }
}
