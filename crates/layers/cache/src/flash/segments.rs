//! The segments of a flash: which are free, and in what order the two logs have the others.
//!
//! ```text
//!      small   ▢ ▢ ▣           what came, or was written, for the first time
//!      main    ▢ ▢ ▢ ▢ ▢ ▣     what was asked for again
//!              │         └ open: batches are appended
//!              └ tail: reclaimed next
//!      free    □ □ □
//! ```
//!
//! A log is a FIFO of segments; each has a number higher than all before it. The logs share the segments: a burst of writes
//! makes the small one as long as it has to be.

use super::format::Entry;
use std::collections::VecDeque;

/// The two queues of S3-FIFO (Yang et al., SOSP '23).
pub const SMALL: u8 = 0;
pub const MAIN: u8 = 1;

/// A segment.
#[derive(Default)]
pub struct Segment {
    /// Its number, rising with time; another one each time it is used again.
    pub sequence: u64,
    /// Requests that read from it.
    pub pins: u32,
    /// Blocks in it that count.
    pub live: u32,
    /// Blocks in it that are not on the store.
    pub dirty: u32,
    /// Batches under way: where they begin.
    pub under_way: Vec<u32>,
    /// It says of blocks that they were dropped, or a block of it cannot be copied: it goes as a tail.
    pub stays: bool,
    /// Entries that its batches have, also those under way.
    pub given: usize,
    /// So much from its start has been given to batches, in slots.
    pub end: u32,
    /// So much from its start is durable, in slots.
    pub durable: u32,
    /// What its batches hold, until its summary is written.
    pub entries: Option<Vec<Entry>>,
}

impl Segment {
    /// So much from its start has been written, in slots.
    pub fn written(&self) -> u32 {
        self.under_way.iter().copied().min().unwrap_or(self.end)
    }
}

/// All segments.
pub struct Segments {
    pub list: Vec<Segment>,
    pub logs: [VecDeque<u32>; 2],
    pub free: VecDeque<u32>,
    /// Blocks of each log that count.
    pub live: [u64; 2],
    /// The number that the next one gets.
    pub next: u64,
}

impl Segments {
    /// So many, all of them free.
    pub fn new(count: u32) -> Segments {
        Segments {
            list: (0..count).map(|_| Segment::default()).collect(),
            logs: Default::default(),
            live: [0; 2],
            free: (0..count).collect(),
            next: 1,
        }
    }

    /// A free segment, which is the last one of `log` from now on.
    pub fn open(&mut self, log: u8) -> Option<u32> {
        let number = self.free.pop_front()?;
        debug_assert_eq!(self.list[number as usize].pins, 0, "somebody still needs segment {number}");
        self.list[number as usize] =
            Segment { sequence: self.next, entries: Some(Vec::new()), ..Segment::default() };
        self.next += 1;
        self.logs[log as usize].push_back(number);
        Some(number)
    }

    pub fn get(&mut self, number: u32) -> &mut Segment {
        &mut self.list[number as usize]
    }

    /// The number of the oldest segment of each log, or of the next one there will be.
    pub fn tails(&self) -> [u64; 2] {
        [SMALL, MAIN].map(|log| match self.logs[log as usize].front() {
            Some(number) => self.list[*number as usize].sequence,
            None => self.next,
        })
    }
}
