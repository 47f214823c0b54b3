//! Streams: which requests go on where another one ended.
//!
//! ```text
//!      request at 40 … 48        ends that are known: 8, 40, 900      it goes on; the end is 48 from now on
//! ```
//!
//! Clients read and write few files at once, and interleave them: the ends that were seen last are remembered, and a
//! request that begins at one of them, or a little behind it, belongs to its stream. A stream that is not continued is
//! forgotten when enough others have been.

use std::ops::Range;

/// The ends of streams and their lengths in bytes, the latest first.
pub struct Streams {
    ends: Vec<(u64, u64)>,
    count: usize,
    gap: u64,
}

impl Streams {
    /// Follows `count` streams at a time, at least one. A request that begins up to `gap` bytes behind the end of
    /// another one still goes on: clients skip what they have.
    pub fn new(count: usize, gap: u64) -> Streams {
        Streams { ends: Vec::with_capacity(count), count, gap }
    }

    /// The length of the stream, in bytes, that a request of these bytes goes on with; 0 if there is none. The request
    /// is followed from now on.
    pub fn follow(&mut self, bytes: &Range<u64>) -> u64 {
        let goes_on = |(end, _): &(u64, u64)| (*end..=end.saturating_add(self.gap)).contains(&bytes.start);
        let known = self.ends.iter().position(goes_on);
        let before = known.map_or(0, |known| self.ends.remove(known).1);
        self.ends.truncate(self.count - 1);
        self.ends.insert(0, (bytes.end, before + (bytes.end - bytes.start)));
        before
    }

    /// The length of the stream of the latest request, with it, in bytes.
    pub fn len(&self) -> u64 {
        self.ends.first().map_or(0, |(_, len)| *len)
    }

    /// True before the first request.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: u64 = 128 << 10;

    fn follow(streams: &mut Streams, start: u64, len: u64) -> u64 {
        streams.follow(&(start..start + len))
    }

    #[test]
    fn streams_go_on_side_by_side() {
        let mut streams = Streams::new(4, 0);
        let starts = [0, 1 << 30, 1 << 40];
        assert!(streams.is_empty());
        assert!(starts.iter().all(|start| follow(&mut streams, *start, 4096) == 0));
        assert_eq!(starts.map(|start| follow(&mut streams, start + 4096, 512)), [4096; 3]);
        assert_eq!((follow(&mut streams, 4608, 8), streams.len()), (4608, 4616));
    }

    #[test]
    fn small_gaps_are_skipped_and_large_ones_are_not() {
        let mut streams = Streams::new(4, GAP);
        follow(&mut streams, 0, 4096);
        assert_eq!(follow(&mut streams, 4096 + GAP, 4096), 4096);
        assert_eq!(follow(&mut streams, 8192 + 2 * GAP + 512, 4096), 0);
        assert_eq!(follow(&mut streams, 0, 4096), 0, "backwards");
        let mut exact = Streams::new(4, 0);
        follow(&mut exact, 0, 4096);
        assert_eq!(follow(&mut exact, 4608, 512), 0);
    }

    #[test]
    fn old_streams_are_forgotten() {
        let mut streams = Streams::new(4, 0);
        (0..=4).for_each(|number| _ = follow(&mut streams, number << 30, 4096));
        assert_eq!(follow(&mut streams, 4096, 4096), 0);
        assert_eq!(follow(&mut streams, (4 << 30) + 4096, 4096), 4096);
        assert_eq!(streams.ends.len(), 4);
    }
}
