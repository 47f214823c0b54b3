//! The drive's own cache: segments, each with sectors that follow each other.

use std::ops::Range;

/// A segment.
#[derive(Clone)]
struct Segment {
    held: Range<u64>,
}

/// The segments, oldest first.
#[derive(Clone)]
pub struct Cache {
    segments: Vec<Segment>,
    count: usize,
    sectors: u64,
    lru: bool,
}

impl Cache {
    pub fn new(count: usize, sectors: u64, lru: bool) -> Cache {
        Cache { segments: Vec::new(), count, sectors, lru }
    }

    /// Whether all of `wanted` is there.
    pub fn has(&mut self, wanted: &Range<u64>) -> bool {
        let held = |s: &Segment| s.held.start <= wanted.start && wanted.end <= s.held.end;
        let Some(at) = self.segments.iter().position(held) else { return false };
        if self.lru {
            let young = self.segments.remove(at);
            self.segments.push(young);
        }
        true
    }

    /// A segment takes what was read. A longer request keeps its end.
    pub fn insert(&mut self, read: Range<u64>) {
        if self.segments.len() == self.count {
            self.segments.remove(0);
        }
        let start = read.start.max(read.end.saturating_sub(self.sectors));
        self.segments.push(Segment { held: start..read.end });
    }

    /// The youngest segment that begins before `from`, and has what is before it, grows up to `end`.
    pub fn grow(&mut self, from: u64, end: u64) {
        let grows = |s: &&mut Segment| s.held.start < from && from <= s.held.end;
        if let Some(segment) = self.segments.iter_mut().rev().find(grows) {
            segment.held.end = segment.held.end.max(end.min(segment.held.start + self.sectors));
        }
    }

    /// What was written is not there any more.
    pub fn forget(&mut self, written: &Range<u64>) {
        self.segments.retain(|s| s.held.end <= written.start || written.end <= s.held.start);
    }
}
