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
//! A log is a FIFO of segments; each has a number higher than all before it. The logs share the segments: a
//! burst of writes makes the small one as long as it has to be.

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
    /// Its first batch was not written: those behind it would not be found, and are written again elsewhere.
    pub is_headless: bool,
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
        debug_assert_eq!(self.check(), Ok(()), "segment {number} is open");
        Some(number)
    }

    pub fn get(&mut self, number: u32) -> &mut Segment {
        &mut self.list[number as usize]
    }

    /// A block of a segment, which `log` has, counts from now on.
    pub fn came(&mut self, log: u8, number: u32, is_dirty: bool) {
        self.live[log as usize] += 1;
        let segment = self.get(number);
        segment.live += 1;
        segment.dirty += u32::from(is_dirty);
    }

    /// A block of a segment does not count any more.
    pub fn left(&mut self, log: u8, number: u32, was_dirty: bool) {
        self.live[log as usize] -= 1;
        let segment = self.get(number);
        segment.live -= 1;
        segment.dirty -= u32::from(was_dirty);
    }

    /// The store has a block of a segment.
    pub fn cleaned(&mut self, number: u32) {
        self.get(number).dirty -= 1;
    }

    /// A segment that nothing counts of, and nobody reads from, can be used again.
    pub fn give_back(&mut self, number: u32) {
        self.free.push_back(number);
        debug_assert_eq!(self.check(), Ok(()), "segment {number} is free");
    }

    /// The invariants. A segment that has just left its log, and is not free yet, is nowhere.
    pub fn check(&self) -> Result<(), String> {
        let mut is_known = vec![false; self.list.len()];
        for number in self.logs.iter().flatten().chain(&self.free) {
            if std::mem::replace(&mut is_known[*number as usize], true) {
                return Err(format!("segment {number} is in two places"));
            }
        }
        for number in &self.free {
            let segment = &self.list[*number as usize];
            if segment.live > 0 || segment.pins > 0 || !segment.under_way.is_empty() {
                return Err(format!("segment {number} is free and in use"));
            }
        }
        for (log, live) in self.logs.iter().zip(self.live) {
            let of_log = || log.iter().map(|number| &self.list[*number as usize]);
            if !of_log().is_sorted_by_key(|segment| segment.sequence) {
                return Err(format!("{log:?} are not in the order of their sequence numbers"));
            }
            let sum: u64 = of_log().map(|segment| u64::from(segment.live)).sum();
            if sum != live {
                return Err(format!("{live} blocks of a log count, and {sum} of its segments"));
            }
        }
        match self.list.iter().position(|segment| segment.dirty > segment.live) {
            Some(number) => Err(format!("segment {number} has more dirty blocks than blocks")),
            None => Ok(()),
        }
    }

    /// The number of the oldest segment of each log, or of the next one there will be.
    pub fn tails(&self) -> [u64; 2] {
        [SMALL, MAIN].map(|log| match self.logs[log as usize].front() {
            Some(number) => self.list[*number as usize].sequence,
            None => self.next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_free_or_in_one_log_and_its_blocks_are_counted() {
        let mut random = crate::testing::xorshift(5);
        let mut segments = Segments::new(6);
        for _ in 0..5000 {
            let log = (random() % 2) as u8;
            let of_log = &segments.logs[log as usize];
            let one = (!of_log.is_empty()).then(|| of_log[random() as usize % of_log.len()]);
            let is_dirty = random().is_multiple_of(2);
            match (random() % 5, one) {
                (0, _) => drop(segments.open(log)),
                (1, Some(number)) => segments.came(log, number, is_dirty),
                (2, Some(number)) => {
                    let Segment { live, dirty, .. } = segments.list[number as usize];
                    if live > 0 {
                        segments.left(log, number, dirty > 0 && (is_dirty || dirty == live));
                    }
                }
                (3, Some(number)) if segments.list[number as usize].dirty > 0 => segments.cleaned(number),
                (4, Some(number)) if segments.list[number as usize].live == 0 => {
                    segments.logs[log as usize].retain(|other| *other != number);
                    segments.give_back(number);
                }
                _ => {}
            }
            assert_eq!(segments.check(), Ok(()));
        }
        assert!(segments.next > 50, "{} segments were opened", segments.next);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let made = |spoil: fn(&mut Segments)| {
            let mut segments = Segments::new(4);
            for log in [SMALL, MAIN] {
                let number = segments.open(log).expect("free");
                segments.came(log, number, true);
            }
            assert_eq!(segments.check(), Ok(()));
            spoil(&mut segments);
            segments.check().expect_err("wrong")
        };
        assert!(made(|segments| segments.free.push_back(0)).contains("in two places"));
        assert!(made(|segments| segments.list[3].pins = 1).contains("free and in use"));
        assert!(made(|segments| segments.live[0] = 2).contains("blocks of a log"));
        assert!(made(|segments| segments.list[1].dirty = 2).contains("more dirty blocks"));
        let out_of_order = made(|segments| {
            segments.open(SMALL);
            segments.logs[0].swap(0, 1);
        });
        assert!(out_of_order.contains("order"), "{out_of_order}");
    }
}
