//! Rot: a slot that has something else than what was written there, though the device says that it could read it.
//!
//! ```text
//!      entry   ▣ ▣ ▣ ▣ ── checksum         ◆ is to leave the flash: the whole entry is read, and compared
//!                ◆
//! ```
//!
//! What only the flash has is compared with its checksum before it goes anywhere else: to the store, to the
//! end of its log, or into a newer version that covers only a part of it. A checksum is of an entry, so all
//! blocks of one are bad together; that is why entries are short. A read of a guest is not compared: the
//! checksums are on the flash, and not in memory.

use super::Cache;
use super::access::Dirty;
use super::format::{Entry, SLOT, What};
use super::heads::is_latent;
use lamina_block::{Buf, Error, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::rc::Rc;

/// What was written as one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub slots: Range<u32>,
    pub checksum: u64,
}

impl Written {
    /// The one that an entry of the segment that begins at `base` says.
    pub fn of(entry: &Entry, base: u32) -> Written {
        Written { slots: base + entry.slot..base + entry.slot + entry.count, checksum: entry.checksum }
    }
}

/// Those of `written`, which are in order, that have any of `slots`.
fn with<'a>(written: &'a [Written], slots: &Range<u32>) -> &'a [Written] {
    let from = written.partition_point(|one| one.slots.end <= slots.start);
    let len = written[from..].partition_point(|one| one.slots.start < slots.end);
    &written[from..from + len]
}

impl Cache {
    /// What has these slots, which are in order, and whose segments are pinned. Nothing is said of slots
    /// whose entry cannot be read: neither the summary of their segment nor their head.
    pub async fn written_with(&self, slots: &[Dirty]) -> Result<Vec<Written>> {
        let mut written = Vec::new();
        for of in slots.chunk_by(|a, b| self.is_same_segment(a.slot, b.slot)) {
            let number = self.shape.segment_of(of[0].slot);
            let base = self.shape.segment(number).start;
            let add = |entries: &[Entry]| {
                let all = entries.iter().filter(|entry| entry.what != What::Dropped);
                let is_meant = |one: &Written| {
                    let first = of.partition_point(|dirty| dirty.slot < one.slots.start);
                    of.get(first).is_some_and(|dirty| dirty.slot < one.slots.end)
                };
                all.map(|entry| Written::of(entry, base)).filter(is_meant).collect::<Vec<_>>()
            };
            let known = self.segments.borrow().list[number as usize].entries.as_deref().map(&add);
            written.extend(match known {
                Some(known) => known,
                None => add(&self.entries_by_all_means(number).await?),
            });
        }
        written.sort_unstable_by_key(|one: &Written| one.slots.start);
        Ok(written)
    }

    /// What a segment holds: where its summary cannot be read, what its heads say.
    async fn entries_by_all_means(&self, number: u32) -> Result<Vec<Entry>> {
        match self.entries(number).await {
            Err(e) if is_latent(&e) => self.entries_of_heads(number).await,
            read => read,
        }
    }

    /// True if `data`, which begins with slot `first`, has what was written.
    pub(super) fn is_sound(&self, written: &Written, first: u32, data: &Buf) -> bool {
        let at = |slot: u32| (slot - first) as usize * SLOT;
        let is_same =
            || self.sum(&data.slice(at(written.slots.start)..at(written.slots.end))) == written.checksum;
        flawed("rot is not noticed") || is_same()
    }

    /// Reads slots of one segment that is pinned, lowest first, by one request: what lies between them comes
    /// along, and what was written with them. Fails if any of it is not what was written.
    pub async fn read_stretch(&self, slots: &[Dirty], written: &[Written]) -> Result<Vec<Buf>> {
        slots.iter().try_for_each(|dirty| self.is_there(dirty.slot..dirty.slot + 1))?;
        let asked = slots[0].slot..slots[slots.len() - 1].slot + 1;
        let written = with(written, &asked);
        let first = written.first().map_or(asked.start, |one| one.slots.start.min(asked.start));
        let end = written.last().map_or(asked.end, |one| one.slots.end.max(asked.end));
        let data = self.read_slots(first..end).await?;
        if !written.iter().all(|one| self.is_sound(one, first, &data)) {
            return Err(rotten());
        }
        let part = |dirty: &Dirty| (dirty.slot - first) as usize * SLOT;
        Ok(slots.iter().map(|dirty| data.slice(part(dirty)..part(dirty) + SLOT)).collect())
    }

    /// Reads one slot of a segment that is pinned. It fails from now on if it is not what was written. What
    /// cannot be compared, because a slot that was written with it cannot be read, is taken for what it is.
    pub async fn read_slot(&self, slot: u32, written: &[Written]) -> Result<Buf> {
        self.is_there(slot..slot + 1)?;
        let Some(one) = with(written, &(slot..slot + 1)).first() else {
            return self.read_slots(slot..slot + 1).await;
        };
        // What was wrong only on its way is right the second time.
        for _ in 0..2 {
            let data = match self.read_slots(one.slots.clone()).await {
                Ok(data) => data,
                Err(_) if one.slots.len() > 1 => return self.read_slots(slot..slot + 1).await,
                failed => return failed,
            };
            if self.is_sound(one, one.slots.start, &data) {
                let at = (slot - one.slots.start) as usize * SLOT;
                return Ok(data.slice(at..at + SLOT));
            }
        }
        tracing::error!(flash = %self.name, slot, "a slot of the cache has something else than what was written there");
        // Another version may have come meanwhile, and this slot is nobody's.
        if self.index.borrow().word(slot).is_used() {
            self.unreadable.borrow_mut().insert(slot);
        }
        Err(rotten())
    }

    /// Reads one slot, as [`Cache::read_slot`] does.
    pub async fn read_compared(self: &Rc<Cache>, slot: u32) -> Result<Buf> {
        let _pin = self.pin(self.shape.segment_of(slot));
        let written = self.written_with(&[Dirty { block: 0, slot, absent: 0 }]).await?;
        self.read_slot(slot, &written).await
    }
}

/// Why it is not used.
pub(super) fn rotten() -> Error {
    Error::media("the flash has something else there than what was written")
}
