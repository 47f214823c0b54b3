//! Which requests go on where another one ended.

use super::Kind;
use crate::flash::SLOT;
use std::collections::VecDeque;
use std::ops::Range;

/// Streams that are followed at a time: a client reads few files at once, and a drive's cache follows as many.
const STREAMS: usize = 32;
/// A request that begins so many bytes behind the end of another one still goes on: clients skip what they have.
const GAP: u64 = 128 << 10;

/// The ends of streams and their lengths in bytes, the latest first.
#[derive(Default)]
pub struct Streams(VecDeque<(u64, u64)>);

impl Streams {
    /// How a request looks, which is followed from now on.
    pub fn kind(&mut self, bytes: &Range<u64>) -> Kind {
        let known =
            self.0.iter().position(|(end, _)| (*end..=end.saturating_add(GAP)).contains(&bytes.start));
        let before = known.and_then(|known| self.0.remove(known)).map_or(0, |(_, len)| len);
        self.0.truncate(STREAMS - 1);
        self.0.push_front((bytes.end, before + (bytes.end - bytes.start)));
        if known.is_some() { Kind::Sequential } else { Kind::Random }
    }

    /// How many blocks the stream of the latest request has, with it; at least one.
    pub fn blocks(&self) -> u64 {
        self.0.front().map_or(1, |(_, len)| len.div_ceil(SLOT as u64).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(streams: &mut Streams, start: u64, len: u64) -> Kind {
        streams.kind(&(start..start + len))
    }

    #[test]
    fn streams_go_on_side_by_side() {
        let mut streams = Streams::default();
        let starts = [0, 1 << 30, 1 << 40];
        assert!(starts.iter().all(|start| kind(&mut streams, *start, 4096) == Kind::Random));
        let next = |start: &u64| kind(&mut streams, start + 4096, 4096);
        assert_eq!(starts.each_ref().map(next), [Kind::Sequential; 3]);
    }

    #[test]
    fn small_gaps_are_skipped_and_large_ones_are_not() {
        let mut streams = Streams::default();
        kind(&mut streams, 0, 4096);
        assert_eq!(kind(&mut streams, 4096 + GAP, 4096), Kind::Sequential);
        assert_eq!(kind(&mut streams, 8192 + 2 * GAP + 512, 4096), Kind::Random);
        assert_eq!(kind(&mut streams, 0, 4096), Kind::Random, "backwards");
    }

    #[test]
    fn old_streams_are_forgotten() {
        let mut streams = Streams::default();
        for number in 0..=STREAMS as u64 {
            kind(&mut streams, number << 30, 4096);
        }
        assert_eq!(kind(&mut streams, 4096, 4096), Kind::Random);
        assert_eq!(streams.0.len(), STREAMS);
    }
}
