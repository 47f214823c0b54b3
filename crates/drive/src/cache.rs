//! The on-board cache of the paper on CATS (section 3): segments, fully associative, replaced first in, first out.
//!
//! An entry is the pair (start, end + prefetch) of a dispatched request, reads, hits and writes alike, as the paper has
//! it: a read after a write of the same sectors is a hit. A span longer than a segment wraps around in it, so that its
//! last sectors stay. A read is a hit if one segment holds all of it; a write never is.
//!
//! The same struct is the cache of a drive and the paper's *shadow cache*, which believes to know that of a drive. It
//! deliberately has no other replacement and no joining of neighbouring segments.

use crate::check::{Checked, within};
use crate::{Op, Request};
use serde::{Deserialize, Serialize};

/// Keys of an on-board cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cache {
    /// How many segments, 1..=65536.
    pub segments: u32,
    /// Sectors of a segment, 1..=16777216.
    pub segment_sectors: u32,
    /// Sectors read ahead behind each request, 0..=16777216.
    pub prefetch_sectors: u32,
}

impl Cache {
    pub(crate) fn check(&self, key: &str) -> Checked {
        within(format_args!("{key}.segments"), self.segments, 1..=65_536)?;
        within(format_args!("{key}.segment-sectors"), self.segment_sectors, 1..=1 << 24)?;
        within(format_args!("{key}.prefetch-sectors"), self.prefetch_sectors, 0..=1 << 24)
    }
}

/// Behind every drive: differences of sectors up to here have a sign.
const FAR: u64 = 1 << 62;

/// What the segments hold: the cache of a drive, or the shadow of one.
#[derive(Clone, Debug)]
pub struct SegmentCache {
    /// First sectors, and first sectors behind.
    starts: Vec<u64>,
    ends: Vec<u64>,
    /// The segments by their first sectors: few of them begin near enough to have all of a request.
    sorted: Vec<(u64, usize)>,
    /// The segment that is overwritten next.
    next: usize,
    segment_sectors: u64,
    prefetch_sectors: u64,
}

impl SegmentCache {
    /// An empty cache.
    pub fn new(keys: &Cache) -> SegmentCache {
        // An empty segment starts behind every request, and ends before.
        let segments = keys.segments as usize;
        SegmentCache {
            starts: vec![FAR; segments],
            ends: vec![0; segments],
            sorted: (0..segments).map(|slot| (FAR, slot)).collect(),
            next: 0,
            segment_sectors: keys.segment_sectors.into(),
            prefetch_sectors: keys.prefetch_sectors.into(),
        }
    }

    /// `request` goes to the drive: its span and the prefetch take the next segment. Flushes and discards change
    /// nothing.
    pub fn dispatched(&mut self, request: &Request) {
        match request.op {
            Op::Read | Op::Write => {
                self.put(request.lbn, request.end().saturating_add(self.prefetch_sectors));
            }
            Op::Flush | Op::Discard => {}
        }
    }

    /// Whether `request` is a read, and one segment has all of it.
    pub fn is_hit(&self, request: &Request) -> bool {
        match request.op {
            Op::Read => self.holds(request.lbn, request.end()),
            Op::Write | Op::Flush | Op::Discard => false,
        }
    }

    /// Whether one segment has all sectors from `start` to before `end`.
    pub fn holds(&self, start: u64, end: u64) -> bool {
        let (start, end) = (start.min(FAR), end.min(FAR));
        // A segment that begins before this does not reach to the end.
        let earliest = end.saturating_sub(self.segment_sectors);
        let up_to = self.sorted.partition_point(|(from, _)| *from <= start);
        let near = self.sorted[..up_to].iter().rev().take_while(|(from, _)| *from >= earliest);
        near.map(|(_, slot)| self.ends[*slot]).any(|to| to >= end)
    }

    /// Sectors from `start` to before `end` take the next segment, whose number is returned.
    pub(crate) fn put(&mut self, start: u64, end: u64) -> usize {
        let slot = self.next;
        self.next = (slot + 1) % self.starts.len();
        self.begin(slot, start.min(FAR));
        self.extend(slot, end);
        slot
    }

    /// A segment now reaches to before `end`; what it holds too many of, it loses at its start.
    pub(crate) fn extend(&mut self, slot: usize, end: u64) {
        let end = end.min(FAR);
        self.ends[slot] = end;
        self.make_room(slot, end);
    }

    /// A segment has room for all sectors before `end`: what that leaves no room for is lost.
    pub(crate) fn make_room(&mut self, slot: usize, end: u64) {
        self.begin(slot, self.starts[slot].max(end.saturating_sub(self.segment_sectors)));
    }

    /// A segment now begins at `start`.
    fn begin(&mut self, slot: usize, start: u64) {
        let before = std::mem::replace(&mut self.starts[slot], start);
        if before == start {
            return;
        }
        let at = |sorted: &[(u64, usize)], start| sorted.partition_point(|other| *other < (start, slot));
        self.sorted.remove(at(&self.sorted, before));
        self.sorted.insert(at(&self.sorted, start), (start, slot));
    }

    /// The first sector of a segment.
    pub(crate) fn start(&self, slot: usize) -> u64 {
        self.starts[slot]
    }

    /// Sectors read ahead.
    pub(crate) fn prefetch(&self) -> u64 {
        self.prefetch_sectors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn read(lbn: u64, sectors: u32) -> Request {
        Request { op: Op::Read, lbn, sectors }
    }

    fn cache(segments: u32, segment_sectors: u32, prefetch_sectors: u32) -> SegmentCache {
        SegmentCache::new(&Cache { segments, segment_sectors, prefetch_sectors })
    }

    #[test]
    fn an_entry_is_the_request_and_its_prefetch() {
        let mut cache = cache(2, 100, 10);
        assert!(!cache.is_hit(&read(0, 1)));
        cache.dispatched(&read(1000, 20));
        for (lbn, sectors, hit) in
            [(1000, 20, true), (1000, 30, true), (1000, 31, false), (999, 2, false), (1029, 1, true)]
        {
            assert_eq!(cache.is_hit(&read(lbn, sectors)), hit, "{lbn} {sectors}");
        }
        // First in, first out: the third entry takes the segment of the first.
        cache.dispatched(&read(2000, 1));
        cache.dispatched(&Request { op: Op::Write, lbn: 3000, sectors: 1 });
        let hits = [1000, 2000, 3000].map(|lbn| cache.is_hit(&read(lbn, 1)));
        assert_eq!(hits, [false, true, true]);
        assert!(!cache.is_hit(&Request { op: Op::Write, lbn: 3000, sectors: 1 }));
    }

    #[test]
    fn a_long_span_wraps_around() {
        let mut cache = cache(2, 221, 64);
        // 157 and 64 just fit.
        cache.dispatched(&read(0, 157));
        assert!(cache.is_hit(&read(0, 221)));
        // Of 200 and 64 the last 221 stay.
        cache.dispatched(&read(10_000, 200));
        assert!(!cache.is_hit(&read(10_042, 1)));
        assert!(cache.is_hit(&read(10_043, 221)));
    }

    #[test]
    fn agrees_with_a_naive_cache() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut fast, mut naive) = (cache(7, 50, 9), VecDeque::new());
        for _ in 0..20_000 {
            let request = read(random.u64(0..400), random.u32(1..70));
            let (start, end) = (request.lbn, request.end());
            let expected = naive.iter().any(|&(from, to): &(u64, u64)| from <= start && end <= to);
            assert_eq!(fast.is_hit(&request), expected, "{request:?}");
            fast.dispatched(&request);
            naive.push_back((start.max((end + 9).saturating_sub(50)), end + 9));
            if naive.len() > 7 {
                naive.pop_front();
            }
        }
    }
}
