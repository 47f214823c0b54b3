//! The journal as a ring: the records that are under way, those that are durable in place, and the next free
//! slot.
//!
//! A write to a stripe is durable as soon as its record is; its bytes are then written in place without
//! waiting for the devices. So a record has to stay until a flush that began after that has ended. The ring
//! is a log: sequences are given in order, and the slot of a sequence is its remainder.
//!
//! ```text
//!           announced          first              done                next
//!   ───────────────┼─────────────┼───────────────────┼───────────────────┼──────▶ sequences
//!      may be      │ a flush has │ in their places,  │ some under way,   │ free, as far as
//!      overwritten │ ended, but  │ perhaps only in   │ some done         │ the ring goes round
//!                  │ no record   │ the caches of the │                   │
//!                  │ says so yet │ devices           │                   │
//! ```
//!
//! Invariant: **of the records of some bytes, an older one is never carried out without the newer ones.**
//! After a crash the records are carried out from the largest `first` on that any of them announces. A slot
//! is overwritten only when a durable record announces that the old record in it does not count any more; and
//! that record itself stays until another one does. The end of the flush is not enough: of two slots that are
//! being overwritten when the power fails, the one with the newer record may be torn, and the one with the
//! older record still be whole.
//!
//! When half of the ring waits for a flush, a flush begins; a writer waits only if the ring is full. Then no
//! other record can announce the flush, so the last slot is kept for a record that only does this.

use super::Parity;
use lamina_block::{Result, Signal};
use lamina_kit::flaw::flawed;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// The records of an epoch.
pub struct Ring {
    slots: u64,
    /// The sequence of the next record.
    next: Cell<u64>,
    /// Records that are not yet in place.
    open: RefCell<BTreeSet<u64>>,
    /// Older records are durable in place.
    first: Cell<u64>,
    /// A durable record announces that older ones do not count.
    announced: Cell<u64>,
    /// A task is making room.
    reclaiming: Cell<bool>,
    moved: Signal,
}

/// A slot with its sequence, until its writes are in place, and this is dropped.
pub struct Slot<'a> {
    of: &'a Ring,
    pub sequence: u64,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.of.open.borrow_mut().remove(&self.sequence);
        self.of.moved.notify();
    }
}

/// The right to make room, until it is dropped.
struct Reclaiming<'a>(&'a Ring);

impl Drop for Reclaiming<'_> {
    fn drop(&mut self) {
        self.0.reclaiming.set(false);
        self.0.moved.notify();
    }
}

impl Ring {
    /// A ring of so many slots, at least two.
    pub fn new(slots: u64) -> Ring {
        Ring {
            slots,
            next: Cell::new(1),
            open: RefCell::default(),
            first: Cell::new(1),
            announced: Cell::new(1),
            reclaiming: Cell::new(false),
            moved: Signal::new(),
        }
    }

    /// No record counts any more, and none is under way.
    pub fn reset(&self) {
        self.open.borrow_mut().clear();
        self.first.set(self.next.get());
        self.announced.set(self.next.get());
        self.moved.notify();
    }

    /// The oldest record that may not be durable in place.
    pub fn first(&self) -> u64 {
        self.first.get()
    }

    /// The oldest record that is not in place. Older ones are durable when a flush that begins now has ended.
    pub fn done(&self) -> u64 {
        self.open.borrow().first().copied().unwrap_or(self.next.get())
    }

    /// A flush has ended; `done` is what [`Ring::done`] was before it began.
    pub fn flushed(&self, done: u64) {
        self.first.set(self.first.get().max(done));
    }

    /// A record that announces `first` is durable.
    pub fn wrote(&self, first: u64) {
        if first > self.announced.get() {
            self.announced.set(first);
            self.moved.notify();
        }
    }

    fn used(&self) -> u64 {
        let not_flushed = flawed("slot reused before the flush");
        let not_announced = flawed("slot reused before it is said");
        let free = match (not_flushed, not_announced) {
            (true, _) => self.done(),
            (false, true) => self.first(),
            (false, false) => self.announced.get(),
        };
        self.next.get() - free
    }

    fn take_one(&self) -> Slot<'_> {
        let sequence = self.next.get();
        self.next.set(sequence + 1);
        self.open.borrow_mut().insert(sequence);
        Slot { of: self, sequence }
    }

    /// A slot for a record, if another one is free after it.
    pub fn take(&self) -> Option<Slot<'_>> {
        (self.used() + 1 < self.slots).then(|| self.take_one())
    }

    /// The last slot, for a record that makes room.
    fn take_last(&self) -> Option<Slot<'_>> {
        (self.used() + 1 == self.slots).then(|| self.take_one())
    }

    /// The last slot could not be written.
    fn give_back(&self, slot: Slot<'_>) {
        if self.next.get() == slot.sequence + 1 {
            self.next.set(slot.sequence);
        }
    }

    /// True if a flush would make room.
    fn has_waiting(&self) -> bool {
        self.done() > self.first()
    }

    /// True if enough records wait for a flush.
    fn is_half(&self) -> bool {
        !self.reclaiming.get() && self.done() - self.first() >= self.slots / 2
    }

    /// True if records that do not count fill the ring, and the last slot is free for a record that announces
    /// so.
    fn needs_announcement(&self) -> bool {
        self.used() + 1 == self.slots && self.first() > self.announced.get()
    }
}

impl Parity {
    /// Makes all earlier writes durable; their records are free.
    pub(super) async fn flush(&self) -> Result<()> {
        let done = self.ring.done();
        self.legs.flush().await?;
        self.ring.flushed(done);
        Ok(())
    }

    /// Waits until there may be a slot.
    pub(super) async fn room(&self) -> Result<()> {
        let ring = &self.ring;
        let moved = ring.moved.wait();
        if ring.reclaiming.get() || !(ring.has_waiting() || ring.needs_announcement()) {
            moved.await;
            return Ok(());
        }
        self.reclaim().await
    }

    /// Makes room before a writer waits for it.
    pub(super) fn room_ahead(&self) {
        let Some(me) = self.me.upgrade().filter(|_| self.ring.is_half()) else { return };
        self.legs.tasks.spawn(&*self.legs.env, async move {
            if me.ring.is_half()
                && let Err(e) = me.reclaim().await
            {
                // A writer that waits for room will try again, and fail.
                tracing::debug!(error = %e, "records cannot be freed");
            }
        });
    }

    /// Flushes, once for all writers that wait, and announces it if no other record will.
    async fn reclaim(&self) -> Result<()> {
        let ring = &self.ring;
        ring.reclaiming.set(true);
        let _tending = Reclaiming(ring);
        if !ring.needs_announcement() {
            self.flush().await?;
        }
        if !ring.needs_announcement() || !self.legs.is_recorded() || self.epoch.get() == 0 {
            return Ok(());
        }
        let Some(slot) = ring.take_last() else { return Ok(()) };
        let busy = self.busy();
        let announced = self.write_down(slot.sequence, &[]).await;
        if announced.is_err() {
            ring.give_back(slot);
        }
        drop(busy);
        // Otherwise another epoch begins.
        if self.legs.is_recorded() { announced } else { Ok(()) }
    }
}
