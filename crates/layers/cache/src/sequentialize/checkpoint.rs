//! Checkpoints: the map gets into the log, and recovery does not need what is older.
//!
//! ```text
//!      batches before S have ended ─▶ dirty pages ─▶ rows, places ─▶ flush ─▶ A or B ─▶ flush ─▶ emptied
//!      emptied segments: which?       into the log    as of now                                  segments are free
//! ```
//!
//! A checkpoint that only frees segments has the pages, and the S, of the one before: nothing is written but the rows.
//! Segments with batches from that S on are needed by its recovery, and stay. The others are not: whatever took the
//! place of their blocks is in batches from S on, which the flush has made durable, and which recovery replays in the
//! order in which they were made, before any batch of the segment's next use.
//!
//! Writes go on meanwhile. A page may therefore have batches from S on, which recovery replays as well: a write or a
//! drop that is replayed again is the same, and a copy counts only if its source is where the map says.
//!
//! Invariants:
//! * All that the places, the pages and the rows of a checkpoint refer to is durable before the checkpoint is written.
//! * The older of the two copies is written over; the newer one stays until that is durable.
//! * A segment is free when a checkpoint is durable that was made after the segment had become empty, and whose S is
//!   higher than any serial number in it: no recovery needs the segment then.

use super::batch::Part;
use super::format::{Checkpoint, Entry, Page, SLOT, What};
use super::log::Log;
use crate::ticket::Ticket;
use lamina_block::{Durability, Io, Result};
use lamina_kit::flaw::flawed;
use std::rc::Rc;

/// Bytes of the log between two checkpoints: at least, and at most. They bound what recovery reads.
const INTERVAL: std::ops::RangeInclusive<u64> = 64 << 20..=512 << 20;
/// Between two checkpoints so many times the bytes of the whole map are written, within the bounds.
const MAPS: u64 = 32;
/// Pages that are appended together: they are copies, and take memory.
const PAGES: usize = 256;
/// Bytes of a checkpoint that are written together.
const PIECE: usize = 1 << 20;

/// The last checkpoint that is durable.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saved {
    /// Its number.
    pub sequence: u64,
    /// Which copy has it.
    pub copy: usize,
    /// Segments that had been opened by then.
    pub opened: u64,
    /// All batches with lower serial numbers are in its pages.
    pub serial: u64,
    /// Bytes that had been written when its pages were.
    pub written: u64,
}

impl Log {
    /// Bytes of the log from one checkpoint to the next.
    pub fn interval(&self) -> u64 {
        let shape = &self.shape;
        let all = u64::from(shape.segments) * u64::from(shape.segment_slots) * SLOT as u64;
        let wanted = MAPS * u64::from(shape.pages()) * SLOT as u64;
        wanted.clamp(*INTERVAL.start(), *INTERVAL.end()).min(all / 4)
    }

    /// Segments of the list of free ones that may be opened between two checkpoints.
    pub fn window(&self) -> u32 {
        let in_interval = self.interval().div_ceil(u64::from(self.shape.segment_slots) * SLOT as u64) as u32;
        // The next checkpoint begins at half of it, and each class may have opened one in vain.
        (2 * (in_interval + self.shape.classes() + 1) + self.reserve.copy).min(self.shape.segments)
    }

    /// Segments that have been opened since the last checkpoint that is durable.
    pub fn opened_since_checkpoint(&self) -> u32 {
        (self.segments.borrow().opened() - self.saved.get().opened) as u32
    }

    /// Makes a checkpoint of the map in the background, if none is under way.
    pub fn checkpoint_soon(&self) {
        self.save_soon(true);
    }

    /// Makes a checkpoint in the background, of the map or to free segments, if none is under way.
    fn save_soon(&self, is_whole: bool) {
        if !self.is_closed.get() && !self.is_saving.replace(true) {
            self.spawn(move |me| async move {
                let attempt = me.appended();
                let saved = if is_whole { me.checkpoint().await } else { me.free_emptied().await };
                me.is_saving.set(false);
                me.moved.notify();
                match saved {
                    Ok(()) => me.make_space_soon(),
                    Err(e) => {
                        tracing::warn!(device = %me.name, error = %e, "no checkpoint could be made");
                        if me.fail_waiting(&e, &attempt) {
                            me.pump_all();
                        }
                    }
                }
            });
        }
    }

    /// The same, if the log has grown much since the last one.
    pub fn checkpoint_if_due(&self) {
        let saved = self.saved.get();
        let is_long = self.counters.written() - saved.written >= self.interval();
        let is_stuck = {
            let segments = self.segments.borrow();
            segments.free() <= self.reserve.copy && segments.emptied(self.serial.get()).next().is_some()
        };
        if is_long || self.opened_since_checkpoint() >= self.window() / 2 {
            self.checkpoint_soon();
        } else if is_stuck {
            self.save_soon(false);
        }
    }

    /// Makes a checkpoint that has all that is in the map now; durable when this returns.
    pub async fn checkpoint(self: &Rc<Log>) -> Result<()> {
        self.is_whole.set(true);
        self.saving.change();
        self.saving.save(|| self.checkpoint_alone()).await
    }

    /// Frees segments in which nothing counts: without the map, if half of them at least are older than its pages.
    pub async fn free_emptied(self: &Rc<Log>) -> Result<()> {
        let (old, all) = {
            let segments = self.segments.borrow();
            let count = |serial| segments.emptied(serial).count();
            (count(self.saved.get().serial), count(self.serial.get()))
        };
        if 2 * old < all || old == 0 {
            return self.checkpoint().await;
        }
        self.saving.change();
        self.saving.save(|| self.checkpoint_alone()).await
    }

    async fn checkpoint_alone(self: &Rc<Log>) -> Result<()> {
        let is_whole = self.is_whole.replace(false);
        let serial = if is_whole { self.serial.get() } else { self.saved.get().serial };
        let is_under_way = || self.under_way.borrow().first().is_some_and(|first| *first < serial);
        self.moved.until(|| !is_under_way()).await;
        let freeing: Vec<u32> = self.segments.borrow().emptied(serial).collect();
        self.segments.borrow_mut().begin_freeing(&freeing);
        if flawed("a segment is used again before the checkpoint") {
            self.segments.borrow_mut().end_freeing(&freeing, true);
            return self.save(serial, is_whole, &[]).await;
        }
        let saved = self.save(serial, is_whole, &freeing).await;
        self.segments.borrow_mut().end_freeing(&freeing, saved.is_ok());
        self.moved.notify();
        self.pump_all();
        saved
    }

    async fn save(self: &Rc<Log>, serial: u64, is_whole: bool, freeing: &[u32]) -> Result<()> {
        if is_whole {
            self.write_pages().await?;
        }
        let before = self.saved.get();
        let opened = self.segments.borrow().opened();
        let written = if is_whole { self.counters.written() } else { before.written };
        let (next_segment, rows, free) = self.segments.borrow().rows(serial, freeing);
        let made = Checkpoint {
            sequence: before.sequence + 1,
            serial,
            next_segment,
            clock: self.clock.get(),
            pages: self.map.borrow().places().to_vec(),
            rows,
            free,
            window: self.window(),
        };
        if !flawed("a checkpoint before its pages") {
            self.flush().await?;
        }
        let copy = 1 - before.copy;
        self.write_checkpoint(copy, &made.encode(self.shape.key)).await?;
        self.saved.set(Saved { sequence: made.sequence, copy, opened, serial, written });
        self.counters.checkpoint(self.env.now());
        Ok(())
    }

    /// Erases the copy that is not the last checkpoint, durably.
    pub async fn erase_torn(&self) -> Result<()> {
        let bytes = vec![0; self.shape.checkpoint_slots as usize * SLOT];
        self.write_checkpoint(1 - self.saved.get().copy, &bytes).await
    }

    async fn write_checkpoint(&self, copy: usize, bytes: &[u8]) -> Result<()> {
        let mut place = self.shape.place(self.shape.checkpoint_at(copy));
        self.counters.saved(bytes.len() as u64);
        for piece in bytes.chunks(PIECE) {
            let buf = self.env.pool().take(piece.len());
            buf.write(0, piece);
            self.child.submit(Io::write(place, buf, Durability::Cached)).await?;
            place += piece.len() as u64;
        }
        self.flush().await
    }

    /// Appends the pages of the map that differ from what is in the log.
    async fn write_pages(self: &Rc<Log>) -> Result<()> {
        let dirty: Vec<u32> = self.map.borrow().dirty().collect();
        for pages in dirty.chunks(PAGES) {
            let ticket = Ticket::new();
            pages.iter().for_each(|page| self.append_page(*page, &ticket));
            if let Err(e) = ticket.wait().await {
                pages.iter().for_each(|page| self.map.borrow_mut().soil(*page));
                return Err(e);
            }
        }
        Ok(())
    }

    fn append_page(self: &Rc<Log>, page: u32, ticket: &Rc<Ticket>) {
        let bytes = self.map.borrow_mut().clean(page);
        let Some(bytes) = bytes else {
            let before = self.map.borrow_mut().place(page, Page { slot: 0, checksum: 0 });
            if let Some(slot) = before {
                let segment = self.shape.segment_of(slot);
                self.segments.borrow_mut().left(segment, slot - self.shape.start(segment));
            }
            return;
        };
        let data = self.env.pool().take(SLOT);
        data.write(0, &bytes);
        let part = Part {
            what: What::Written,
            block: self.map.borrow().address_of(page),
            count: 1,
            data,
            from: 0,
            durability: Durability::Cached,
            ticket: Rc::clone(ticket),
            source: None,
        };
        self.append(self.page_class(), part);
    }

    /// True for entries about pages of the map: where these are only a checkpoint says.
    pub fn is_of_map(&self, entry: &Entry) -> bool {
        self.map.borrow().is_page(entry.block)
    }
}
