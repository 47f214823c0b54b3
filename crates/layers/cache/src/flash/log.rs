//! Appending to the logs: batches, their order, and when they count.
//!
//! ```text
//!      put ──▶ reserve ──▶ serial, log ──▶ waiting ┐
//!      put ──▶ …                                ├─▶ batch: head │ data … ──▶ one write ──▶ index ──▶ done
//!      put ──▶ …                                ┘
//! ```
//!
//! What comes while batches are under way waits and goes together with the next one. A batch that fails ends
//! its segment: the summary, which is durable before anybody hears of the failure, is without it, so that
//! what failed never comes back.
//!
//! Invariants:
//! * All versions of a block that count are in one log, the latest last. A new version goes where the block
//!   is; one that is not there has no version that counts. So when the tail of a log goes, nothing older
//!   stays behind.
//! * Two versions of a block are never under way together: who writes holds the lock of the volume, and a copy from the
//!   tail of a log and a new version wait for each other.
//! * The first batch of a segment is written before there is a second one, and durable before anything that follows is
//!   acknowledged as durable, so that this is found.

use super::Cache;
use super::format::{SLOT, What};
use super::segments::{MAIN, SMALL};
use super::space::Space;
use super::volume::Volume;
use crate::ticket::Ticket;
use lamina_block::{Buf, Durability, Result};
use lamina_kit::flaw::flawed;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// What waits to be appended.
pub struct Waiting {
    pub volume: Rc<Volume>,
    pub what: What,
    pub generation: u32,
    pub serial: u64,
    pub block: u64,
    pub count: u32,
    /// The data, whole slots; empty for what is dropped.
    pub data: Buf,
    /// Of a single block: sectors that `data` does not have, a bit each.
    pub absent: u8,
    /// For a copy: the slots that hold it, the first of which is this one.
    pub from: Option<u32>,
    pub durability: Durability,
    pub ticket: Rc<Ticket>,
}

/// One of the two logs.
#[derive(Default)]
pub struct Log {
    pub waiting: RefCell<VecDeque<Waiting>>,
    /// Batches under way.
    pub under_way: Cell<usize>,
    /// The segment that is appended to.
    pub open: Cell<Option<u32>>,
    /// Somebody is about to make batches of what waits.
    scheduled: Cell<bool>,
    /// What waits was only read, and waits for more of its kind.
    pub gathers: Cell<bool>,
}

impl Log {
    /// What a batch has is to be written again, before anything else.
    pub fn put_back(&self, parts: Vec<Waiting>) {
        let mut waiting = self.waiting.borrow_mut();
        parts.into_iter().rev().for_each(|part| waiting.push_front(part));
        self.gathers.set(false);
    }
}

/// What was read waits so long for more that was, and for so many slots of it, in order to share a head with
/// it: one head for each block that is read alone would take half of the space.
const GATHER: Duration = Duration::from_millis(20);
pub const GATHER_SLOTS: u32 = 32;

/// How blocks are put.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// They are not on the store.
    pub dirty: bool,
    pub durability: Durability,
    /// Of a single block: sectors that only the store has, a bit each.
    pub absent: u8,
    /// The number that another host has given them, if one has.
    pub serial: Option<u64>,
}

/// Space for what is about to be put.
pub struct Reservation<'a> {
    of: &'a Cache,
    slots: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.of.change_space(|space| space.release(self.slots));
        self.of.moved.notify();
    }
}

/// Somebody who waits for what is on its way.
pub struct Hurry<'a>(&'a Cache);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurried.set(self.0.hurried.get() - 1);
    }
}

/// Somebody who waits for space.
pub struct SpaceWaiter<'a>(&'a Cache);

impl Drop for SpaceWaiter<'_> {
    fn drop(&mut self) {
        self.0.change_space(Space::waited);
    }
}

impl Cache {
    /// Somebody waits for space while what this gives lives.
    pub fn space_waiter(&self) -> SpaceWaiter<'_> {
        self.change_space(|space| space.wait(self.env.now()));
        SpaceWaiter(self)
    }

    /// Blocks that are put at once, at most.
    pub fn chunk(&self) -> u64 {
        u64::from((self.shape.batch_slots() / 4).max(1))
    }

    /// Changes what is known of space.
    pub(super) fn change_space<R>(&self, change: impl FnOnce(&mut Space) -> R) -> R {
        let mut space = self.space.borrow_mut();
        let changed = change(&mut space);
        debug_assert_eq!(space.check(), Ok(()), "{}: space", self.name);
        changed
    }

    pub(super) fn free_segments(&self) -> usize {
        self.segments.borrow().free.len()
    }

    /// Space for `blocks` blocks, one at least, if there is any without waiting.
    pub fn try_reserve(&self, blocks: u64) -> Option<Reservation<'_>> {
        let slots = self.change_space(|space| space.reserve(blocks, self.free_segments()))?;
        Some(Reservation { of: self, slots })
    }

    /// Space, if there is any without waiting, as [`Cache::reserve`] gives it.
    pub fn reserve_now(&self, blocks: u64) -> Result<Option<Reservation<'_>>> {
        self.check()?;
        self.reclaim_soon();
        Ok(self.try_reserve(blocks))
    }

    /// Waits for space, which there is when stores take what is dirty.
    pub async fn reserve(&self, blocks: u64) -> Result<Reservation<'_>> {
        let mut short = None;
        loop {
            let moved = self.moved.wait();
            if let Some(space) = self.reserve_now(blocks)? {
                return Ok(space);
            }
            short.get_or_insert_with(|| self.space_waiter());
            moved.await;
        }
    }

    /// Puts `data`, no more than a chunk, on the flash as the blocks from `block` on, where there is
    /// `_space`. Nobody else puts these blocks meanwhile. When it returns, reads find it. Gives its serial
    /// number.
    pub async fn put(
        &self,
        _space: Reservation<'_>,
        volume: &Rc<Volume>,
        block: u64,
        data: &Buf,
        how: How,
    ) -> Result<u64> {
        let count = (data.len() / SLOT) as u64;
        let at = block..block + count;
        self.moved.until(|| !self.is_moving(volume, &at) && !volume.is_held.get()).await;
        self.check()?;
        volume.putting.set(volume.putting.get() + 1);
        let serial = match how.serial {
            None => volume.next_serial(),
            Some(given) => volume.has_come(given),
        };
        if how.dirty {
            volume.stage(serial, block, count as u32);
            if let Some(tap) = &*volume.tap.borrow() {
                tap.put(serial, block, data, how.absent);
            }
        }
        let ticket = Ticket::of_request(&self.child);
        let what = if how.dirty { What::Written } else { What::Clean };
        for (log, part) in self.logs_of(volume, &at) {
            let bytes = (part.start - block) as usize * SLOT..(part.end - block) as usize * SLOT;
            self.append(
                log,
                Waiting {
                    volume: Rc::clone(volume),
                    what,
                    generation: volume.generation.get(),
                    serial,
                    block: part.start,
                    count: (part.end - part.start) as u32,
                    data: data.slice(bytes),
                    absent: how.absent,
                    from: None,
                    durability: how.durability,
                    ticket: Rc::clone(&ticket),
                },
            );
        }
        let result = ticket.wait().await;
        if how.dirty {
            volume.staged(serial, result.is_ok());
            if self.is_much_dirty(volume) {
                volume.hurry.notify();
            }
        }
        volume.putting.set(volume.putting.get() - 1);
        self.moved.notify();
        result.map(|()| serial)
    }

    /// The blocks of `at` are not on the flash any more; durable when it returns. There is `_space` for the
    /// heads of both logs. Nobody puts them meanwhile.
    pub async fn drop_blocks(
        &self,
        _space: Reservation<'_>,
        volume: &Rc<Volume>,
        at: Range<u64>,
    ) -> Result<()> {
        self.at_rest(volume, &at).await;
        self.check()?;
        let ticket = Ticket::new();
        let serial = volume.next_serial();
        let there = self.logs_with(volume, &at);
        // What is just being forgotten may come back from either.
        let logs = if self.reclaiming.get() { [true; 2] } else { there };
        for log in [SMALL, MAIN].into_iter().filter(|log| logs[*log as usize]) {
            self.append(
                log,
                Waiting {
                    volume: Rc::clone(volume),
                    what: What::Dropped,
                    generation: volume.generation.get(),
                    serial,
                    block: at.start,
                    count: (at.end - at.start) as u32,
                    data: Buf::empty(),
                    absent: 0,
                    from: None,
                    durability: Durability::Fua,
                    ticket: Rc::clone(&ticket),
                },
            );
        }
        ticket.wait().await
    }

    pub(super) fn is_moving(&self, volume: &Volume, at: &Range<u64>) -> bool {
        let index = self.index.borrow();
        at.clone()
            .any(|block| index.find(volume.number, block).is_some_and(|slot| index.word(slot).is_moving()))
    }

    /// Which log has a slot.
    pub fn log_of(&self, slot: u32) -> u8 {
        self.log_of[self.shape.segment_of(slot) as usize].get()
    }

    /// The runs of `at` by the log that they go to.
    fn logs_of(&self, volume: &Volume, at: &Range<u64>) -> SmallVec<[(u8, Range<u64>); 2]> {
        let mut index = self.index.borrow_mut();
        let mut runs = SmallVec::<[(u8, Range<u64>); 2]>::new();
        for block in at.clone() {
            let log = match index.find(volume.number, block) {
                Some(slot) => {
                    index.set_pending(slot, true);
                    if flawed("versions in both logs") { MAIN } else { self.log_of(slot) }
                }
                None => index.ghosts.recall(volume.number, block),
            };
            match runs.last_mut() {
                Some((last, run)) if *last == log => run.end += 1,
                _ => runs.push((log, block..block + 1)),
            }
        }
        runs
    }

    /// Which logs have blocks of `at`.
    fn logs_with(&self, volume: &Volume, at: &Range<u64>) -> [bool; 2] {
        let mut index = self.index.borrow_mut();
        let mut logs = [false; 2];
        for block in at.clone() {
            if let Some(slot) = index.find(volume.number, block) {
                index.set_pending(slot, true);
                logs[self.log_of(slot) as usize] = true;
            }
        }
        logs
    }

    /// Appends something for which there is space.
    pub fn append(&self, log: u8, waiting: Waiting) {
        let this = &self.logs[log as usize];
        let was_read = waiting.what == What::Clean && waiting.from.is_none() && self.hurried.get() == 0;
        let gathers = was_read && (this.waiting.borrow().is_empty() || this.gathers.get());
        waiting.ticket.one_more();
        this.waiting.borrow_mut().push_back(waiting);
        if gathers && !this.gathers.replace(true) {
            self.spawn(move |me| async move {
                me.env.sleep(GATHER).await;
                me.send(log);
            });
        }
        this.gathers.set(gathers);
        if !this.scheduled.replace(true) {
            // What others put in this turn goes along.
            self.spawn(move |me| async move {
                me.logs[log as usize].scheduled.set(false);
                me.pump_here(log).await;
            });
        }
    }

    /// What was read does not wait for more of its kind while what this gives lives: somebody needs its blocks.
    pub fn hurry(&self) -> Hurry<'_> {
        self.hurried.set(self.hurried.get() + 1);
        [SMALL, MAIN].into_iter().for_each(|log| self.send(log));
        Hurry(self)
    }

    fn send(&self, log: u8) {
        if self.logs[log as usize].gathers.replace(false) {
            self.spawn(move |me| async move { me.pump(log) });
        }
    }
}
