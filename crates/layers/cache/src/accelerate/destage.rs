//! The destager: brings what was written to the store, batch by batch, in the order of the serial numbers.
//!
//! ```text
//!      staging queue ─▶ batch, each block once ─▶ flash flushed ─▶ part by part: flash read ─▶ store written
//!                                                 store flushed ─▶ checkpoint
//! ```
//!
//! What was written at about the same time lies side by side on the flash, and goes to places far apart on
//! the store: a part of a batch is read in the order of the flash, in stretches, compared with its checksums
//! (`flash/rot.rs`), and written in the order of the store, while the next is read.
//!
//! What a batch has is durable on the flash before the store is changed: after a crash the flash never has an
//! older version of a block than the store.

use super::bad::is_of_blocks;
use super::epoch::Batch;
use super::failure::{SideError, SideResult};
use super::progress::Progress;
use super::{Accelerate, Policy, add};
use crate::flash::{Dirty, Flow, LONG, Pin, RETRY, SLOT, Written};
use futures_util::future::{join, join_all, select};
use futures_util::{StreamExt, stream};
use lamina_block::{Buf, Cause, Durability, Error, ErrorKind, Io, Time, wait, wait_on};
use lamina_kit::flaw::flawed;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Neighbours become one write of so many blocks at most.
const MERGED: usize = 256;
/// Blocks of a batch on their way to the store, at most, and as many on their way from the flash: 16 MiB
/// each, and what lies between them.
const PART: usize = 4096;
/// From one slot to the next that is read together, at most: to read 12 KiB in vain costs less than another request.
const GAP: u32 = 4;
/// Blocks that are read together, at most.
const STRETCH: usize = 128;
/// Stretches that are read at a time, while nobody writes; otherwise one, which is enough for a store that is
/// slower than the flash, and keeps no write waiting for long.
const READS: usize = 8;
/// How long a batch waits for more.
const LINGER: Duration = Duration::from_millis(500);
/// How long a store that fails is left alone.
pub const PAUSE: Duration = Duration::from_millis(100);

/// In the order of the flash.
fn by_slot(dirty: &[Dirty]) -> Vec<Dirty> {
    let mut by_slot = dirty.to_vec();
    by_slot.sort_unstable_by_key(|dirty| dirty.slot);
    by_slot
}

impl Accelerate {
    /// Begins to bring the store up to date, and goes on until the device is closed.
    pub(super) fn destage(&self) {
        self.spawn(|me| async move {
            while !me.closed.get() {
                let moved = me.volume.moved.wait();
                me.linger().await;
                if me.failure.no_batches.get() > 0 {
                    moved.await;
                    continue;
                }
                me.failure.batching.set(true);
                let ended = me.batch().await;
                me.failure.batching.set(false);
                me.moved.notify();
                match ended {
                    Ok(true) => {
                        me.note(None);
                        me.no_strike().await;
                    }
                    Ok(false) if me.failure.stopped().is_some() => me.look_again().await,
                    Ok(false) if me.volume.bad.is_empty() => moved.await,
                    Ok(false) => drop(select(me.env.sleep(RETRY), pin!(moved)).await),
                    Err(SideError::Store(e)) => {
                        me.note(Some(e));
                        me.env.sleep(PAUSE).await;
                    }
                    Err(SideError::Flash(e)) => {
                        me.strike(e).await;
                        me.env.sleep(PAUSE).await;
                    }
                }
            }
        });
    }

    /// Lets a batch become larger, unless somebody waits for it: a batch costs three flushes, and what is written again
    /// soon goes to the store once. A device that destages late waits until space is needed.
    async fn linger(&self) {
        while self.is_lazy() {
            let (moved, hurry) = (self.volume.moved.wait(), self.volume.hurry.wait());
            if self.cache.is_ripe(&self.volume) {
                return;
            }
            select(pin!(moved), pin!(hurry)).await;
        }
        let hurry = self.volume.hurry.wait();
        let len = self.volume.queue.borrow().len();
        if (1..LONG).contains(&len) && self.has_time() {
            select(self.env.sleep(LINGER), pin!(hurry)).await;
        }
    }

    /// How the last batch ended.
    fn note(&self, e: Option<Error>) {
        let before =
            self.trouble.replace(e.clone().map(|e| (self.progress.get().batch(), e))).map(|(_, e)| e);
        match (before, e) {
            (None, Some(e)) => {
                tracing::warn!(device = %self.name, error = %e, "the store takes no batch; it is tried again")
            }
            (Some(_), None) => tracing::info!(device = %self.name, "the store takes writes again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.moved.notify();
    }

    /// Brings a batch to the store; false if there is none.
    async fn batch(&self) -> SideResult<bool> {
        let Some(batch) = self.next_batch().await else { return Ok(false) };
        let upto = batch.upto;
        self.proceed(Progress::begin_batch);
        let began = self.env.now();
        self.volume.batch_since.set(self.volume.batch_since.get().or(Some(began)));
        self.full_pace();
        if flawed("checkpoint before the store") {
            self.cache.checkpoint(&self.volume, upto, &[]).await.map_err(SideError::Flash)?;
        }
        let slowest = Cell::new(Duration::ZERO);
        self.report.sent.set(0);
        let stored = self.store_batch(&batch, &slowest).await;
        self.end_epoch(&batch, stored.is_ok());
        if stored.is_err() {
            // For all that is known the store has lost what it took.
            self.proceed(Progress::fail);
        }
        stored?;
        let brought = self.brought_of(&batch);
        self.cache.checkpoint(&self.volume, upto, &brought).await.map_err(SideError::Flash)?;
        self.has_been_given(&batch);
        self.proceed(|progress| progress.make_durable(upto));
        self.volume.batch_since.set(None);
        add(&self.tally.batches, 1);
        add(&self.tally.destaged, brought.len() as u64);
        self.report.sent.set(0);
        let took = self.env.now().since(began);
        if self.was_full_pace() {
            self.flow.borrow_mut().measured((brought.len() * SLOT) as u64, took, slowest.get());
        }
        Ok(true)
    }

    /// Brings a batch to the store, durably. The longest that a write took is in `slowest` then.
    async fn store_batch(&self, batch: &Batch, slowest: &Cell<Duration>) -> SideResult<()> {
        let pins = self.cache.pin_all(&batch.dirty);
        if self.failure.stopped().is_some() && !self.is_fenced() {
            self.works_again(batch).await?;
        }
        // Whatever is read has to be durable there before the store is changed.
        let (here, there) = join(self.cache.flush(), self.durable_at_peers()).await;
        here.map_err(SideError::Flash).and(there)?;
        let failed = self.failure.flushes.get();
        self.begin_epoch(batch).await?;
        self.bring(&batch.dirty, pins, slowest).await?;
        // Before anybody is told.
        self.brought_of(batch).iter().for_each(|dirty| self.volume.bad.heal(dirty.block));
        self.proceed(|progress| progress.store(batch.upto));
        self.moved.notify();
        self.flush_store().await?;
        match self.failure.flushes.get() == failed {
            true => Ok(()),
            false => Err(Error::media("the store has failed a flush meanwhile").on(self.store.name()).into()),
        }
    }

    /// The flash has failed, and has everything that is to be brought: the device goes on. As long as it has stopped,
    /// the vault names lost peers, for which a batch waits.
    async fn works_again(&self, batch: &Batch) -> SideResult<()> {
        self.cache.flush().await.map_err(SideError::Flash)?;
        for part in by_slot(&batch.dirty).chunks(PART) {
            self.fetch(part).await?;
        }
        self.no_strike().await;
        self.failure.stopped().map_or(Ok(()), |why| Err(SideError::Flash(why)))
    }

    /// Part by part: one is written while the next is read.
    async fn bring(&self, dirty: &[Dirty], pins: Vec<Pin>, slowest: &Cell<Duration>) -> SideResult<()> {
        let mut pins = Some(pins);
        let mut fetched = Vec::new();
        for part in by_slot(dirty).chunks(PART).map(Some).chain([None]) {
            // All is read: nobody has to wait for the store.
            pins = pins.filter(|_| part.is_some());
            let next = self.fetch(part.unwrap_or_default());
            // Whatever comes of one of them, the other one ends, too.
            let (written, next) = join(self.write_part(&fetched, slowest), next).await;
            written?;
            fetched = next?;
        }
        Ok(())
    }

    /// Reads blocks, which are in the order of the flash, and gives them in the order of the store.
    async fn fetch(&self, part: &[Dirty]) -> SideResult<Vec<(Dirty, Buf)>> {
        let is_near =
            |a: &Dirty, b: &Dirty| b.slot - a.slot <= GAP && self.cache.is_same_segment(a.slot, b.slot);
        let stretches = part.chunk_by(is_near).flat_map(|near| near.chunks(STRETCH));
        let written = &self.cache.written_with(part).await.map_err(SideError::Flash)?[..];
        let reads = stretches.map(|stretch| async move {
            if let Ok(data) = self.cache.read_stretch(stretch, written).await {
                return Ok(stretch.iter().copied().zip(data).collect::<Vec<_>>());
            }
            // What cannot be read may lie between.
            let alone = join_all(stretch.iter().map(|dirty| self.cache.read_slot(dirty.slot, written))).await;
            // One that was away may have lost what it had, which is more than some blocks.
            self.cache.check_reads().map_err(SideError::Flash)?;
            let mut fetched = Vec::new();
            for (dirty, data) in stretch.iter().zip(alone) {
                match data {
                    Ok(data) => fetched.push((*dirty, data)),
                    Err(e) => self.leave_unread(dirty, e)?,
                }
            }
            Ok(fetched)
        });
        let at_a_time = if self.volume.putting.get() > 0 { 1 } else { READS };
        let mut fetched: Vec<(Dirty, Buf)> =
            together(at_a_time, reads).await?.into_iter().flatten().collect();
        // One that was away may have lost what it had.
        self.cache.check_reads().map_err(SideError::Flash)?;
        fetched.sort_unstable_by_key(|(dirty, _)| dirty.block);
        Ok(fetched)
    }

    /// Writes blocks, which are in the order of the store, neighbours together.
    async fn write_part(&self, part: &[(Dirty, Buf)], slowest: &Cell<Duration>) -> SideResult<()> {
        let mut runs = merge(part, |(dirty, _)| dirty.block);
        while self.gives_way()
            && let Some(run) = runs.next()
        {
            self.write_run(run, slowest).await?;
        }
        let writes = runs.map(|run| self.write_run(run, slowest));
        together(self.keys.depth, writes).await?;
        Ok(())
    }

    async fn read_dirty(&self, run: &[Dirty], written: &[Written]) -> Result<Buf, Error> {
        // What was written side by side is side by side on the flash.
        let parts = run.chunk_by(|a, b| b.slot == a.slot + 1 && self.cache.is_same_segment(a.slot, b.slot));
        let read = join_all(parts.map(|part| self.cache.read_stretch(part, written))).await;
        let mut data = Buf::empty();
        for part in read {
            part?.into_iter().for_each(|block| data.append(block));
        }
        Ok(data)
    }

    pub(super) async fn write_store(
        &self,
        at: Range<u64>,
        data: Buf,
        slowest: &Cell<Duration>,
    ) -> SideResult<()> {
        let blocks = Accelerate::blocks(&at);
        self.is_on_store(&blocks)?;
        let at = at.start..at.end.min(self.store.geometry().size);
        let _permit = self.permit(Flow::Home).await;
        let began = self.env.now();
        let data = data.slice(0..(at.end - at.start) as usize);
        match &self.epochs {
            Some(epochs) => epochs.write(at, data).await?,
            None => self.store.submit(Io::write(at.start, data, Durability::Cached)).await?,
        }
        slowest.set(slowest.get().max(self.env.now().since(began)));
        add(&self.report.sent, blocks.end - blocks.start);
        Ok(())
    }

    /// Brings to the store what is not on it and can be, with everything else at rest; gives the blocks that cannot.
    pub(super) async fn bring_readable(&self) -> Result<BTreeSet<u64>, Error> {
        let dirty = self.cache.everything(&self.volume).map_or(Vec::new(), |(dirty, _)| dirty);
        let _pins = self.cache.pin_all(&dirty);
        let unverified = self.cache.unverified().await;
        let is_sure = |run: &[Dirty]| !run.iter().any(|dirty| unverified.contains(&dirty.slot));
        let mut by_slot = dirty.clone();
        by_slot.sort_unstable_by_key(|dirty| dirty.slot);
        // Where nobody knows what was written there is nothing to compare with, and what can be read is
        // better than nothing.
        let written = self.cache.written_with(&by_slot).await.unwrap_or_default();
        let (mut unreadable, slowest) = (BTreeSet::new(), Cell::default());
        for run in merge(&dirty, |dirty| dirty.block) {
            if is_sure(run)
                && let Ok(data) = self.read_dirty(run, &written).await
                && self.is_taken(run, data, &slowest).await?
            {
                continue;
            }
            for one in run.chunks(1) {
                let is_brought = match self.cache.read_slot(one[0].slot, &written).await {
                    Ok(data) if is_sure(one) => self.is_taken(one, data, &slowest).await?,
                    Ok(_) | Err(_) => false,
                };
                if !is_brought {
                    unreadable.insert(one[0].block);
                }
            }
        }
        if !unreadable.is_empty() && self.abandon_epoch() {
            // The store stays at its moment: a part of what came later is no moment.
            unreadable = dirty.iter().map(|dirty| dirty.block).collect();
        }
        Ok(unreadable)
    }

    /// Writes blocks side by side to the store; false if it does not take them.
    async fn is_taken(&self, run: &[Dirty], data: Buf, slowest: &Cell<Duration>) -> Result<bool, Error> {
        let block = |n: usize| data.slice(n * SLOT..(n + 1) * SLOT);
        let run: Vec<_> = run.iter().enumerate().map(|(n, dirty)| (*dirty, block(n))).collect();
        match self.write_blocks(&run, slowest).await.map_err(Error::from) {
            Err(e) if is_of_blocks(&e) => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// The serial number of the last write that the store may lack. Fills have numbers, too.
    pub(super) fn last_dirty(&self) -> u64 {
        self.volume.queue.borrow().back().map_or(0, |last| last.serial)
    }

    /// The store has everything, durably.
    pub(super) fn is_drained(&self) -> bool {
        self.volume.queue.borrow().is_empty()
    }

    /// Waits until the destager has done something. Fails if the store takes nothing for too long.
    pub(super) async fn wait_for(&self, done: impl Fn(&Accelerate) -> bool) -> SideResult<()> {
        self.waiting.set(self.waiting.get() + 1);
        let (_waits, _on) = (Waits(&self.waiting), wait_on(&self.store));
        self.volume.hurry.notify();
        self.wait_until(done).await
    }

    pub(super) async fn wait_until(&self, done: impl Fn(&Accelerate) -> bool) -> SideResult<()> {
        let (asked, mut since, mut batches) =
            (self.progress.get().batch(), self.env.now(), self.tally.batches.get());
        loop {
            let moved = self.moved.wait();
            if done(self) {
                return Ok(());
            }
            if self.closed.get() {
                return Err(Error::offline("the device is closed").on(&self.name).into());
            }
            if let Some(why) = self.failure.hopeless() {
                return Err(SideError::Flash(why));
            }
            if self.is_detached() {
                return Err(SideError::Flash(
                    Error::offline("the flash is not used any more").on(&self.name),
                ));
            }
            if self.tally.batches.get() != batches {
                (batches, since) = (self.tally.batches.get(), self.env.now());
            }
            // What failed before somebody asked is tried again.
            match &*self.trouble.borrow() {
                Some((attempt, e)) if *attempt > asked && !self.is_patient(e, since) => {
                    return Err(e.clone().into());
                }
                Some(_) | None => {}
            }
            moved.await;
        }
    }

    /// True if `e` says that the store may be back soon, and it has not been away for too long.
    pub(super) fn is_patient(&self, e: &Error, since: Time) -> bool {
        let may_return = matches!(e.kind(), ErrorKind::Offline | ErrorKind::TimedOut);
        may_return && !self.closed.get() && self.env.now().since(since) < self.keys.store_timeout.0
    }

    /// Holds an acknowledgement back if too much waits for the store.
    pub(super) async fn hold_back(&self, began: Time) {
        let (writes, bytes, share) = self.backlog();
        let delay = self.flow.borrow_mut().delay(writes, bytes, share);
        let left = delay.saturating_sub(self.env.now().since(began));
        if !left.is_zero() && self.policy.get() == Policy::WriteBack {
            let _waits = wait(Cause::FlowControl);
            self.env.sleep(left).await;
        }
    }

    /// Brings the store up to date before the device is there, and forgets the flash.
    pub(super) async fn drain_first(self: &Rc<Self>) -> Result<(), Error> {
        while self.batch().await? {}
        if let Some((side, e)) = self.volume.bad.first(None) {
            return Err(self.bad_block(side, e).into());
        }
        self.cache.forget(&self.volume).await
    }
}

/// Somebody who waits for the store.
struct Waits<'a>(&'a Cell<usize>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Does all of `work`, so many at a time, also when one fails: a started request completes.
async fn together<T>(
    depth: usize,
    work: impl Iterator<Item: Future<Output = SideResult<T>>>,
) -> SideResult<Vec<T>> {
    stream::iter(work).buffered(depth).collect::<Vec<_>>().await.into_iter().collect()
}

/// Neighbours together.
fn merge<T>(blocks: &[T], number: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    blocks.chunk_by(move |a, b| number(b) == number(a) + 1).flat_map(|run| run.chunks(MERGED))
}
