//! A batch: made of what waits, written at once, and then in the index; and the end of a segment.

use super::Cache;
use super::format::{ENTRIES_MAX, Entry, Head, SLOT, Summary, What, checksum};
use super::index::Word;
use super::log::{GATHER_SLOTS, Log, Waiting};
use super::state::Pin;
use super::volume::Volume;
use futures_util::future::select;
use lamina_block::{Buf, Durability, Error, Io, Result};
use lamina_kit::flaw::flawed;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Batches of a log that are under way together, at most.
const BATCHES: usize = 4;
/// Slots of a batch, at most: 1 MiB.
const BATCH_SLOTS: u32 = 256;
/// Slots of an entry, at most: they share a checksum, and are read together to be compared with it.
const ENTRY_SLOTS: u32 = 16;

/// How long a full segment waits for somebody to flush the device before it does that for itself.
const LEISURE: Duration = Duration::from_millis(500);

/// A batch on its way.
pub struct Batch {
    log: u8,
    segment: u32,
    head: Head,
    parts: Vec<Waiting>,
}

/// Slots that something takes beside a head.
fn slots_of(what: What, count: u32) -> u32 {
    match what {
        What::Written | What::Clean | What::Lost => count,
        What::Dropped => 0,
    }
}

/// Takes what fits into a batch, in order; what comes last may be cut. Where it will be is in the entries.
fn take(waiting: &mut VecDeque<Waiting>, at: u32, slots: u32, entries: usize) -> (Vec<Waiting>, Vec<Entry>) {
    let most = waiting.len().min(entries);
    let (mut parts, mut heads, mut used) = (Vec::with_capacity(most), Vec::with_capacity(most), 1);
    while heads.len() < entries
        && let Some(next) = waiting.front_mut()
    {
        let space = (slots - used).min(ENTRY_SLOTS);
        let part = match slots_of(next.what, next.count) {
            wanted if wanted <= space => waiting.pop_front().expect("it is the first"),
            _ if space == 0 => break,
            _ => next.cut(space),
        };
        let len = slots_of(part.what, part.count);
        heads.push(Entry {
            volume: part.volume.number,
            what: part.what,
            generation: part.generation,
            serial: part.serial,
            block: part.block,
            count: part.count,
            slot: if len > 0 { at + used } else { 0 },
            checksum: 0,
            absent: part.absent,
        });
        parts.push(part);
        used += len;
    }
    (parts, heads)
}

impl Waiting {
    /// Takes the first `count` blocks off.
    fn cut(&mut self, count: u32) -> Waiting {
        let bytes = count as usize * SLOT;
        let first = Waiting {
            volume: Rc::clone(&self.volume),
            count,
            data: self.data.slice(0..bytes),
            ticket: Rc::clone(&self.ticket),
            ..*self
        };
        first.ticket.one_more();
        self.block += u64::from(count);
        self.count -= count;
        self.data = self.data.slice(bytes..self.data.len());
        self.from = self.from.map(|from| from + count);
        first
    }
}

impl Cache {
    /// Makes batches of what waits, and sends them.
    pub fn pump(self: &Rc<Cache>, log: u8) {
        if let Err(e) = self.check() {
            return self.refuse(log, &e);
        }
        while let Some(batch) = self.next_batch(log) {
            self.spawn(move |me| async move { me.write_batch(batch).await });
        }
    }

    /// The same, and stays with one of them, which then needs no task of its own.
    pub(super) async fn pump_here(self: &Rc<Cache>, log: u8) {
        if let Err(e) = self.check() {
            return self.refuse(log, &e);
        }
        let Some(batch) = self.next_batch(log) else { return };
        self.pump(log);
        self.write_batch(batch).await;
    }

    /// What waits is not written. A device that fails may never be repaired, and each batch that is tried there ends a
    /// segment, until none is left for those behind it.
    pub(super) fn refuse(&self, log: u8, e: &Error) {
        if flawed("what waits behind a failure waits on") {
            return;
        }
        let waiting = self.logs[log as usize].waiting.take();
        self.will_not_come(waiting.iter());
        waiting.iter().for_each(|part| part.ticket.end(&Err(e.clone())));
    }

    /// The blocks stay where they are.
    fn will_not_come<'a>(&self, parts: impl Iterator<Item = &'a Waiting>) {
        let mut index = self.index.borrow_mut();
        for part in parts {
            for block in part.block..part.block + u64::from(part.count) {
                if let Some(slot) = index.find(part.volume.number, block) {
                    index.set_pending(slot, false);
                }
            }
        }
    }

    fn next_batch(self: &Rc<Cache>, log: u8) -> Option<Batch> {
        let this = &self.logs[log as usize];
        if this.under_way.get() >= BATCHES || this.waiting.borrow().is_empty() {
            return None;
        }
        let gathered = || this.waiting.borrow().iter().map(|part| part.count).sum::<u32>();
        if this.gathers.get() && gathered() < GATHER_SLOTS.min(self.shape.batch_slots() / 4) {
            return None;
        }
        let segment = self.segment_for(log, this)?;
        let mut segments = self.segments.borrow_mut();
        let open = segments.get(segment);
        let at = open.end;
        let space = (self.shape.batch_slots() - at).min(BATCH_SLOTS);
        let room_for = ENTRIES_MAX.min(self.shape.summary_entries() - open.given);
        let (parts, entries) = take(&mut this.waiting.borrow_mut(), at, space, room_for);
        let slots = 1 + entries.iter().map(|entry| slots_of(entry.what, entry.count)).sum::<u32>();
        open.under_way.push(at);
        open.end += slots;
        open.given += entries.len();
        open.stays |= entries.iter().any(|entry| entry.what == What::Dropped);
        this.under_way.set(this.under_way.get() + 1);
        let head = Head { segment: open.sequence, log, at, slots, durable: open.durable, entries };
        Some(Batch { log, segment, head, parts })
    }

    /// The segment that the next batch goes to, which has space for one block at least.
    fn segment_for(self: &Rc<Cache>, log: u8, this: &Log) -> Option<u32> {
        if let Some(number) = this.open.get() {
            let mut segments = self.segments.borrow_mut();
            let open = segments.get(number);
            if open.end + 2 <= self.shape.batch_slots() && open.given < self.shape.summary_entries() {
                return Some(number);
            }
            this.open.set(None);
            drop(segments);
            // Before anybody else can look for segments that nobody needs.
            let pin = self.pin(number);
            self.spawn(move |me| async move {
                if let Err(e) = me.finish_at_leisure(number, pin).await {
                    // What it holds stays in memory too; it is looked through when the flash is opened again.
                    tracing::warn!(flash = %me.name, error = %e, "a segment was left without its summary");
                }
            });
        }
        let number = self.segments.borrow_mut().open(log)?;
        self.log_of[number as usize].set(log);
        this.open.set(Some(number));
        self.reclaim_soon();
        self.ripen();
        Some(number)
    }

    async fn write_batch(self: &Rc<Cache>, mut batch: Batch) {
        let this = &self.logs[batch.log as usize];
        let at = batch.head.at;
        // Guests may change their memory at any time: what is summed is what is written.
        let mut bytes = self.env.pool().fresh(batch.head.slots as usize * SLOT);
        for (part, entry) in batch.parts.iter().zip(&mut batch.head.entries) {
            let from = (entry.slot.max(at) - at) as usize * SLOT;
            let data = &mut bytes[from..from + part.data.len()];
            part.data.read(0, data);
            entry.checksum = checksum(data);
        }
        batch.head.encode_into(&mut bytes[..SLOT], self.shape.key);
        let bytes = Buf::from(bytes);
        let wants = |part: &Waiting| {
            part.durability == Durability::Fua && !flawed("acknowledged before it is durable")
        };
        let is_durable = batch.parts.iter().any(wants);
        let durability = if is_durable { Durability::Fua } else { Durability::Cached };
        let place = u64::from(self.shape.segment(batch.segment).start + at) * SLOT as u64;
        self.written.set(self.written.get() + bytes.len() as u64);
        self.charge_head(&batch.parts);
        let mut result = self.child.submit(Io::write(place, bytes, durability)).await;
        self.suspect(&result);
        let is_behind = result.is_ok() && at != 0;
        let comes_again = is_behind && !self.has_first(batch.segment).await;
        if is_behind && !comes_again && is_durable && !self.is_first_durable(batch.segment) {
            result = self.flush().await;
        }
        {
            let segments = &mut self.segments.borrow_mut();
            let segment = segments.get(batch.segment);
            segment.under_way.retain(|begin| *begin != at);
            segment.is_headless |= at == 0 && result.is_err();
        }
        this.under_way.set(this.under_way.get() - 1);
        match &result {
            Ok(()) if comes_again => self.end_without(&batch).await,
            Ok(()) => {
                self.commit(&batch);
                if at == 0 && durability == Durability::Fua {
                    let segments = &mut self.segments.borrow_mut();
                    let segment = segments.get(batch.segment);
                    segment.durable = segment.durable.max(batch.head.slots);
                }
            }
            Err(_) => {
                self.end_without(&batch).await;
                self.will_not_come(batch.parts.iter());
            }
        }
        let log = batch.log;
        match comes_again {
            true => this.put_back(batch.parts),
            false => batch.parts.iter().for_each(|part| part.ticket.end(&result)),
        }
        self.moved.notify();
        self.pump(log);
    }

    /// Waits until the first batch of a segment has ended; false if it failed. Nothing of the segment is found without
    /// that batch.
    async fn has_first(&self, number: u32) -> bool {
        if !flawed("acknowledged before the first batch") {
            self.moved.until(|| !self.segments.borrow_mut().get(number).under_way.contains(&0)).await;
        }
        !self.segments.borrow_mut().get(number).is_headless
    }

    fn is_first_durable(&self, number: u32) -> bool {
        self.segments.borrow_mut().get(number).durable > 0 || flawed("durable before the first batch")
    }

    /// What a batch holds counts.
    fn commit(&self, batch: &Batch) {
        let base = self.shape.segment(batch.segment).start;
        for (part, entry) in batch.parts.iter().zip(&batch.head.entries) {
            for i in 0..part.count {
                let block = part.block + u64::from(i);
                match part.what {
                    What::Dropped => self.unmap(&part.volume, block),
                    What::Written | What::Clean | What::Lost => {
                        self.map(part, block, base + entry.slot + i, part.from.map(|from| from + i))
                    }
                }
            }
        }
        let mut segments = self.segments.borrow_mut();
        if let Some(entries) = &mut segments.get(batch.segment).entries {
            entries.extend(&batch.head.entries);
        }
    }

    /// The block is in `slot` from now on; a copy only if it is still what was copied.
    fn map(&self, part: &Waiting, block: u64, slot: u32, from: Option<u32>) {
        let mut index = self.index.borrow_mut();
        let mut word =
            Word::new(part.volume.number, block, part.what == What::Written).with_absent(part.absent);
        if let Some(from) = from {
            let before = index.word(from);
            if index.find(part.volume.number, block) != Some(from) {
                return;
            }
            // It may be on its store by now.
            word = before.copied();
        }
        match index.put(slot, word) {
            Some((old, before)) => {
                if part.from.is_none() {
                    // Who writes it again asks for it, too.
                    index.set_frequency(slot, before.frequency() + 1);
                }
                self.left(&part.volume, old, before)
            }
            None => part.volume.blocks.set(part.volume.blocks.get() + 1),
        }
        if part.what == What::Lost {
            self.unreadable.borrow_mut().insert(slot);
        }
        self.came(&part.volume, slot, word);
    }

    /// A slot has something from now on.
    pub fn came(&self, volume: &Volume, slot: u32, word: Word) {
        let number = self.shape.segment_of(slot);
        self.segments.borrow_mut().came(self.log_of(slot), number, word.is_dirty());
        if word.is_dirty() {
            volume.dirty.set(volume.dirty.get() + 1);
        }
    }

    /// A slot has nothing any more; `before` is what it had.
    pub fn left(&self, volume: &Volume, slot: u32, before: Word) {
        let number = self.shape.segment_of(slot);
        self.segments.borrow_mut().left(self.log_of(slot), number, before.is_dirty());
        let mut unreadable = self.unreadable.borrow_mut();
        if !unreadable.is_empty() {
            unreadable.remove(&slot);
        }
        if before.is_dirty() {
            volume.dirty.set(volume.dirty.get() - 1);
        }
    }

    /// The block is nowhere from now on.
    pub fn unmap(&self, volume: &Volume, block: u64) {
        let gone = self.index.borrow_mut().remove(volume.number, block);
        if let Some((slot, before)) = gone {
            volume.blocks.set(volume.blocks.get() - 1);
            self.left(volume, slot, before);
        }
    }

    /// A batch has not been written, or cannot be found. What comes of it must never be: its segment ends here.
    async fn end_without(self: &Rc<Cache>, batch: &Batch) {
        let this = &self.logs[batch.log as usize];
        // It is not used again before its head is gone.
        let _pin = (!flawed("zeroed after it is used again")).then(|| self.pin(batch.segment));
        if this.open.get() == Some(batch.segment) {
            this.open.set(None);
        }
        self.moved.notify();
        if flawed("a failed write stays there") {
            return;
        }
        if let Err(also) = self.finish(batch.segment).await {
            tracing::error!(flash = %self.name, error = %also, "a failed write cannot be made to stay failed");
            self.break_down(&also);
        } else if let Err(also) = self.zero(self.shape.segment(batch.segment).start + batch.head.at).await {
            // Only if the summary becomes unreadable heads count again.
            tracing::debug!(flash = %self.name, error = %also, "the head of a failed write stays where it is");
        }
    }

    /// Waits until no batch is on its way to a segment.
    pub(super) async fn settled(&self, number: u32) {
        self.moved.until(|| self.segments.borrow_mut().get(number).under_way.is_empty()).await;
    }

    /// Writes the summary of a segment to which nothing is appended any more. It is durable when this returns.
    pub async fn finish(self: &Rc<Cache>, number: u32) -> Result<()> {
        let _pin = self.pin(number);
        self.settled(number).await;
        // All that the summary names is durable when it is there.
        if !flawed("summary before the flush") {
            self.flush().await?;
        }
        self.write_summary(number, Durability::Fua).await?;
        self.segments.borrow_mut().get(number).entries = None;
        self.moved.notify();
        Ok(())
    }

    /// The same, with the flushes that others need anyway. Until the summary is durable, what it says stays
    /// in memory, and the segment is looked through after a crash.
    async fn finish_at_leisure(self: &Rc<Cache>, number: u32, _pin: Pin) -> Result<()> {
        self.settled(number).await;
        if !flawed("summary before the flush") {
            self.flushed().await?;
        }
        self.write_summary(number, Durability::Cached).await?;
        self.flushed().await?;
        self.segments.borrow_mut().get(number).entries = None;
        self.moved.notify();
        Ok(())
    }

    /// Waits for a flush that begins from now on, and makes it if nobody else does.
    async fn flushed(&self) -> Result<()> {
        let wanted = self.flushes.get().0 + 1;
        let is_urgent = || self.closed.get() || self.hasty.get();
        let flushed = pin!(self.flushed.until(|| self.flushes.get().1 >= wanted || is_urgent()));
        select(self.env.sleep(LEISURE), flushed).await;
        if self.flushes.get().1 < wanted { self.flush().await } else { Ok(()) }
    }

    async fn write_summary(&self, number: u32, durability: Durability) -> Result<()> {
        let summary = {
            let mut segments = self.segments.borrow_mut();
            let segment = segments.get(number);
            let Some(entries) = segment.entries.clone() else { return Ok(()) };
            Summary { segment: segment.sequence, log: self.log_of[number as usize].get(), entries }
        };
        let bytes = summary.encode(self.shape.key);
        let buf = self.env.pool().take(bytes.len());
        buf.write(0, &bytes);
        let place = u64::from(self.shape.segment(number).start + self.shape.batch_slots()) * SLOT as u64;
        self.written.set(self.written.get() + bytes.len() as u64);
        self.child.submit(Io::write(place, buf, durability)).await
    }

    /// Makes durable what was put before.
    pub async fn flush(&self) -> Result<()> {
        let written: Vec<(u32, u64, u32)> = {
            let segments = self.segments.borrow();
            let numbers = segments.logs.iter().flatten();
            let open = numbers.filter(|number| segments.list[**number as usize].entries.is_some());
            let facts = |number: &u32| {
                let segment = &segments.list[*number as usize];
                (*number, segment.sequence, segment.written())
            };
            open.map(facts).collect()
        };
        let (begun, _) = self.flushes.get();
        self.flushes.set((begun + 1, self.flushes.get().1));
        let flushed = self.child.submit(Io::flush()).await;
        self.suspect(&flushed);
        flushed?;
        self.verify().await?;
        let (now, ended) = self.flushes.get();
        self.flushes.set((now, ended.max(begun + 1)));
        let mut segments = self.segments.borrow_mut();
        for (number, sequence, written) in written {
            let segment = segments.get(number);
            if segment.sequence == sequence {
                segment.durable = segment.durable.max(written);
            }
        }
        drop(segments);
        self.flushed.notify();
        self.moved.notify();
        Ok(())
    }

    pub(super) fn sum(&self, data: &Buf) -> u64 {
        match data.segments() {
            [] => checksum(&[]),
            _ => {
                let scratch = &mut *self.scratch.borrow_mut();
                scratch.resize(data.len(), 0);
                data.read(0, scratch);
                checksum(scratch)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket::Ticket;

    /// So that not much is lost with a block that has rotted.
    #[test]
    fn entries_are_short() {
        let whole = Waiting {
            volume: Rc::new(Volume::nowhere(1, 64)),
            what: What::Written,
            generation: 1,
            serial: 1,
            block: 10,
            count: 40,
            data: Buf::zeroed(40 * SLOT),
            absent: 0,
            from: None,
            durability: Durability::Cached,
            ticket: Ticket::new(),
        };
        let mut waiting = VecDeque::from([whole]);
        let (parts, entries) = take(&mut waiting, 5, 200, ENTRIES_MAX);
        let places: Vec<_> = entries.iter().map(|entry| (entry.block, entry.count, entry.slot)).collect();
        assert_eq!(places, [(10, 16, 6), (26, 16, 22), (42, 8, 38)]);
        assert!(
            parts.iter().zip(&entries).all(|(part, entry)| part.data.len() == entry.count as usize * SLOT)
        );
        assert!(waiting.is_empty());
    }
}
