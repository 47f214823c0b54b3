//! The entries of the log, and their order.
//!
//! ```text
//!      completed ──▶ unflushed ──flush, forced write, mark, buffer full──▶ queue ──writer──▶ log
//! ```
//!
//! Invariant: two changes of the same sector are logged in the order in which they completed.

use super::format::{Head, flag};
use lamina_block::Buf;
use std::collections::VecDeque;
use std::ops::Range;

/// The content of an entry.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// These bytes.
    Data(Buf),
    /// Zeroes, which need no memory.
    Zeroes,
    /// Nothing.
    None,
    /// The name of a mark.
    Name(String),
}

/// One entry of the log, not written yet.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The range on the device, in bytes.
    pub at: Range<u64>,
    pub flags: u64,
    pub content: Content,
}

impl Entry {
    pub(super) fn flush() -> Entry {
        Entry { at: 0..0, flags: flag::FLUSH, content: Content::None }
    }

    pub(super) fn mark(name: String) -> Entry {
        Entry { at: 0..0, flags: flag::MARK, content: Content::Name(name) }
    }

    pub(super) fn head(&self, sector: u32) -> Head {
        let sector = sector as u64;
        Head {
            sector: self.at.start / sector,
            sectors: (self.at.end - self.at.start) / sector,
            flags: self.flags,
        }
    }

    /// The memory of the entry.
    pub(super) fn memory(&self) -> u64 {
        match &self.content {
            Content::Data(bytes) => bytes.len() as u64,
            Content::Zeroes | Content::None | Content::Name(_) => 0,
        }
    }

    fn touches(&self, at: &Range<u64>) -> bool {
        self.at.start < at.end && at.start < self.at.end
    }
}

/// The entries that are not in the log yet.
#[derive(Default)]
pub(super) struct Journal {
    /// Completed and not flushed, in order of completion.
    unflushed: VecDeque<Entry>,
    /// The number of the first of them, counted from the beginning.
    first: u64,
    /// Entries to be written, in order.
    queue: VecDeque<Entry>,
    /// How many entries ever went into the queue, and how many of these are in the log.
    queued: u64,
    logged: u64,
}

impl Journal {
    /// A change has completed that may still be lost.
    pub(super) fn completed(&mut self, entry: Entry) {
        self.unflushed.push_back(entry);
    }

    /// The end of the entries that a flush which begins now covers; for [`Journal::flushed`].
    pub(super) fn flush_begins(&self) -> u64 {
        self.first + self.unflushed.len() as u64
    }

    /// A flush has completed. Returns the number of entries in the log after it.
    pub(super) fn flushed(&mut self, covers: u64) -> u64 {
        self.release(covers.saturating_sub(self.first) as usize);
        self.append(Entry::flush())
    }

    /// A durable change has completed. Earlier changes of its sectors go before it, with everything older, so
    /// that the order on each sector stays.
    pub(super) fn durable(&mut self, entry: Entry) -> u64 {
        let older = self.unflushed.iter().rposition(|other| other.touches(&entry.at));
        self.release(older.map_or(0, |last| last + 1));
        self.append(entry)
    }

    /// Appends an entry without an address.
    pub(super) fn append(&mut self, entry: Entry) -> u64 {
        self.queue.push_back(entry);
        self.queued += 1;
        self.queued
    }

    /// Queues all entries.
    pub(super) fn release_all(&mut self) -> u64 {
        self.release(self.unflushed.len());
        self.queued
    }

    fn release(&mut self, count: usize) {
        let count = count.min(self.unflushed.len());
        self.queue.extend(self.unflushed.drain(..count));
        self.first += count as u64;
        self.queued += count as u64;
    }

    /// The next entries to be written; they stay until [`Journal::written`].
    pub(super) fn batch(&self, max: usize) -> Vec<Entry> {
        self.queue.iter().take(max).cloned().collect()
    }

    /// The first `count` of the queue are in the log. Returns their memory.
    pub(super) fn written(&mut self, count: usize) -> u64 {
        self.logged += count as u64;
        self.queue.drain(..count).map(|entry| entry.memory()).sum()
    }

    /// How many entries were logged since the log was opened.
    pub(super) fn logged(&self) -> u64 {
        self.logged
    }
}
