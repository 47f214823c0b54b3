//! The journal as a ring: which records are under way, which are durable where they belong, and where the next one goes.
//!
//! A write to a stripe is durable as soon as its record is; its bytes are then written to their places without waiting for
//! the devices. So a record has to stay until a flush that began after that has ended. The ring is a log: sequences are
//! given in order, and the slot of one is its remainder.
//!
//! ```text
//!                said          first              done                next
//!   ───────────────┼─────────────┼───────────────────┼───────────────────┼──────▶ sequences
//!      may be      │ a flush has │ in their places,  │ some under way,   │ free, as far as
//!      overwritten │ ended, but  │ perhaps only in   │ some done         │ the ring goes round
//!                  │ no record   │ the caches of the │                   │
//!                  │ says so yet │ devices           │                   │
//! ```
//!
//! Invariant: **of the records of some bytes, an older one is never carried out without the newer ones.** What is carried
//! out after a crash are the records from the largest `first` on that any of them says. A slot is overwritten only when a
//! durable record says that what it held does not count any more; and that record itself stays until another one does.
//! That the flush has ended is not enough: of two slots that are being overwritten when the power fails, the one with the
//! newer record may be torn, and the one with the older record still be whole.
//!
//! When half of the ring waits for a flush, one is begun; a writer waits only if the ring is full. Then there is nobody to
//! say that the flush has ended, so the last slot is kept for a record that says only this.

use super::Parity;
use lamina_block::{Result, Signal};
use lamina_kit::flaw::flawed;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// What is known of the records of an epoch.
pub struct Ring {
    slots: u64,
    /// Of the next record.
    next: Cell<u64>,
    /// Records that are not yet in their places.
    open: RefCell<BTreeSet<u64>>,
    /// What older ones say is durable in its place.
    first: Cell<u64>,
    /// A durable record says that of older ones.
    said: Cell<u64>,
    /// Somebody is making room.
    tending: Cell<bool>,
    moved: Signal,
}

/// A slot with its sequence, until what is written into it is in its place, and this is dropped.
pub struct Turn<'a> {
    of: &'a Ring,
    pub sequence: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.open.borrow_mut().remove(&self.sequence);
        self.of.moved.notify();
    }
}

/// The turn to make room, until it is dropped.
struct Tending<'a>(&'a Ring);

impl Drop for Tending<'_> {
    fn drop(&mut self) {
        self.0.tending.set(false);
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
            said: Cell::new(1),
            tending: Cell::new(false),
            moved: Signal::new(),
        }
    }

    /// No record counts any more, and nothing is under way.
    pub fn reset(&self) {
        self.open.borrow_mut().clear();
        self.first.set(self.next.get());
        self.said.set(self.next.get());
        self.moved.notify();
    }

    /// The oldest record that may not be durable in its place.
    pub fn first(&self) -> u64 {
        self.first.get()
    }

    /// The oldest record that is not in its place. Those before it are durable when a flush that begins now has ended.
    pub fn done(&self) -> u64 {
        self.open.borrow().first().copied().unwrap_or(self.next.get())
    }

    /// A flush has ended; `done` is what [`Ring::done`] was before it began.
    pub fn flushed(&self, done: u64) {
        self.first.set(self.first.get().max(done));
    }

    /// A record is durable that says `first`.
    pub fn wrote(&self, first: u64) {
        if first > self.said.get() {
            self.said.set(first);
            self.moved.notify();
        }
    }

    fn used(&self) -> u64 {
        let not_flushed = flawed("slot reused before the flush");
        let not_said = flawed("slot reused before it is said");
        let free = match (not_flushed, not_said) {
            (true, _) => self.done(),
            (false, true) => self.first(),
            (false, false) => self.said.get(),
        };
        self.next.get() - free
    }

    fn take_one(&self) -> Turn<'_> {
        let sequence = self.next.get();
        self.next.set(sequence + 1);
        self.open.borrow_mut().insert(sequence);
        Turn { of: self, sequence }
    }

    /// A slot for a record, if there is another one left behind it.
    pub fn take(&self) -> Option<Turn<'_>> {
        (self.used() + 1 < self.slots).then(|| self.take_one())
    }

    /// The last slot, for a record that makes room.
    fn take_last(&self) -> Option<Turn<'_>> {
        (self.used() + 1 == self.slots).then(|| self.take_one())
    }

    /// Nothing could be written into the last slot.
    fn give_back(&self, turn: Turn<'_>) {
        if self.next.get() == turn.sequence + 1 {
            self.next.set(turn.sequence);
        }
    }

    /// True if a flush would make room.
    fn has_waiting(&self) -> bool {
        self.done() > self.first()
    }

    /// True if enough records wait for a flush.
    fn is_half(&self) -> bool {
        !self.tending.get() && self.done() - self.first() >= self.slots / 2
    }

    /// True if records that do not count fill it, and the last slot is free for one that says so.
    fn is_silent(&self) -> bool {
        self.used() + 1 == self.slots && self.first() > self.said.get()
    }
}

impl Parity {
    /// Makes durable what was written; records of it are free.
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
        if ring.tending.get() || !(ring.has_waiting() || ring.is_silent()) {
            moved.await;
            return Ok(());
        }
        self.tend().await
    }

    /// Lets there be room before anybody waits for it.
    pub(super) fn room_ahead(&self) {
        let Some(me) = self.me.upgrade().filter(|_| self.ring.is_half()) else { return };
        self.legs.tasks.spawn(&*self.legs.env, async move {
            if me.ring.is_half()
                && let Err(e) = me.tend().await
            {
                // Who waits for room will try again, and fail.
                tracing::debug!(error = %e, "records cannot be freed");
            }
        });
    }

    /// Flushes, once for all who wait, and says so if nobody else will.
    async fn tend(&self) -> Result<()> {
        let ring = &self.ring;
        ring.tending.set(true);
        let _tending = Tending(ring);
        if !ring.is_silent() {
            self.flush().await?;
        }
        if !ring.is_silent() || !self.legs.is_recorded() || self.epoch.get() == 0 {
            return Ok(());
        }
        let Some(turn) = ring.take_last() else { return Ok(()) };
        let busy = self.busy();
        let said = self.write_down(turn.sequence, &[]).await;
        if said.is_err() {
            ring.give_back(turn);
        }
        drop(busy);
        // Otherwise another epoch begins.
        if self.legs.is_recorded() { said } else { Ok(()) }
    }
}
