//! What a segment holds by its heads: it has no summary yet, or none that can be read.
//!
//! ```text
//!      head │ data … │ head │ data ▒ │ head │ data …          ▒ cannot be read, or has rotted: that entry is lost
//! ```
//!
//! A block that was written is lost as such, so that nothing older counts in its place; one that the store
//! has too is dropped. Where there may be a head that cannot be read nobody knows what is lost, and of which
//! volume: the flash is not opened.

use super::Cache;
use super::format::{Entry, Head, SLOT, What, checksum};
use super::recover::Found;
use lamina_block::{Error, ErrorKind, Result};
use std::collections::HashSet;
use std::ops::Range;

/// True if `e` is of the bytes that were asked for: others may be read.
pub(super) fn is_latent(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Media | ErrorKind::Corrupt)
}

/// The head at `at` of the segment with this number, if there is one.
fn head_at(cache: &Cache, bytes: &[u8], at: u32, number: u64) -> Option<Head> {
    let slot = &bytes[at as usize * SLOT..(at as usize + 1) * SLOT];
    Head::decode(slot, &cache.shape).filter(|head| head.at == at && head.segment == number)
}

impl Cache {
    /// Reads slots: zeroes where that cannot be, and which of them these are.
    pub(super) async fn read_what_can_be(&self, slots: Range<u32>) -> Result<(Vec<u8>, HashSet<u32>)> {
        match self.read_slots(slots.clone()).await {
            Ok(all) => return Ok((all.to_vec(), HashSet::new())),
            Err(e) if is_latent(&e) => {}
            Err(e) => return Err(e),
        }
        let (mut bytes, mut unread) = (Vec::new(), HashSet::new());
        for (i, slot) in slots.enumerate() {
            match self.read_slots(slot..slot + 1).await {
                Ok(one) => bytes.extend_from_slice(&one.to_vec()),
                Err(e) if is_latent(&e) => {
                    tracing::error!(flash = %self.name, slot, error = %e, "a slot of the cache cannot be read");
                    bytes.resize(bytes.len() + SLOT, 0);
                    unread.insert(i as u32);
                }
                Err(e) => return Err(e),
            }
        }
        Ok((bytes, unread))
    }

    /// Reads a segment without a summary from end to end.
    pub(super) async fn read_through(&self, number: u32, first: &Head) -> Result<Found> {
        let (start, len) = (self.shape.segment(number).start, self.shape.batch_slots());
        let (bytes, unread) = self.read_what_can_be(start..start + len).await?;
        let (mut entries, mut at, mut durable, mut end) = (Vec::new(), 0, 0, 0);
        // Heads that are not there, and entries whose data are not what was written: where, and in which batch.
        let (mut missing, mut torn) = (None, Vec::new());
        while at < len {
            if unread.contains(&at) {
                return Err(self.unknown(number, at));
            }
            let Some(head) = head_at(self, &bytes, at, first.segment) else {
                missing = missing.or(Some(at));
                at += 1;
                continue;
            };
            durable = durable.max(head.durable);
            for entry in &head.entries {
                let slots = match entry.what {
                    What::Written | What::Clean | What::Lost => entry.slot..entry.slot + entry.count,
                    What::Dropped => 0..0,
                };
                let data = slots.start as usize * SLOT..slots.end as usize * SLOT;
                match slots.clone().any(|slot| unread.contains(&slot)) {
                    true => entries.push(lost_entry(entry)),
                    false if checksum(&bytes[data]) == entry.checksum => entries.push(*entry),
                    false => torn.push((at, lost_entry(entry))),
                }
            }
            at += head.slots;
            end = at;
        }
        // Those of a batch that was durable are rot.
        entries.extend(torn.into_iter().filter(|(at, _)| *at < durable).map(|(_, entry)| entry));
        match missing {
            _ if entries.len() > self.shape.summary_entries() => {
                Err(self.damaged(format!("segment {number} has more entries than there can be")))
            }
            Some(at) if at < durable => {
                Err(self
                    .damaged(format!("slot {at} of segment {number} was durable, and is something else now")))
            }
            _ => Ok(Found {
                number,
                sequence: first.segment,
                log: first.log,
                entries,
                is_unfinished: true,
                end,
            }),
        }
    }

    /// A head may be in this slot of a segment, and what that says is not known otherwise.
    pub(super) fn unknown(&self, number: u32, at: u32) -> Error {
        let message = format!(
            "slot {at} of segment {number} of the cache cannot be read: the block and the volume of that slot are \
             unknown"
        );
        Error::media(message).on(self.child.name())
    }

    /// What a tail holds. The index knows what of it counts: where its summary cannot be read, its heads are
    /// enough, and a block that they say nothing of is forgotten.
    pub(super) async fn entries_of_tail(&self, number: u32) -> Result<Vec<Entry>> {
        match self.entries(number).await {
            Err(e) if is_latent(&e) => {
                let segment = number;
                tracing::error!(flash = %self.name, segment, error = %e, "a summary cannot be read: heads are");
            }
            read => return read,
        }
        let (start, len) = (self.shape.segment(number).start, self.shape.batch_slots());
        let (entries, mut known) = (self.entries_of_heads(number).await?, HashSet::new());
        for entry in entries.iter().filter(|entry| entry.what != What::Dropped) {
            known.extend(start + entry.slot..start + entry.slot + entry.count);
        }
        for slot in (start..start + len).filter(|slot| !known.contains(slot)) {
            let word = self.index.borrow().word(slot);
            let volume = self.volumes.borrow().get(usize::from(word.volume())).cloned().flatten();
            match volume.filter(|_| word.is_used()) {
                Some(_) if word.is_dirty() => return Err(self.unknown(number, slot - start)),
                Some(volume) => self.unmap(&volume, word.block()),
                None => {}
            }
        }
        Ok(entries)
    }

    /// What those heads of a segment say that can be read.
    pub(super) async fn entries_of_heads(&self, number: u32) -> Result<Vec<Entry>> {
        let sequence = self.segments.borrow_mut().get(number).sequence;
        let (start, len) = (self.shape.segment(number).start, self.shape.batch_slots());
        let (bytes, _) = self.read_what_can_be(start..start + len).await?;
        let (mut entries, mut at) = (Vec::new(), 0);
        while at < len {
            let head = head_at(self, &bytes, at, sequence);
            at += head.as_ref().map_or(1, |head| head.slots);
            entries.extend(head.into_iter().flat_map(|head| head.entries));
        }
        Ok(entries)
    }
}

/// What is said of blocks whose data cannot be read, or are not what was written.
fn lost_entry(entry: &Entry) -> Entry {
    match entry.what {
        What::Written | What::Lost => Entry { what: What::Lost, absent: 0, ..*entry },
        What::Clean | What::Dropped => {
            Entry { what: What::Dropped, slot: 0, checksum: 0, absent: 0, ..*entry }
        }
    }
}
