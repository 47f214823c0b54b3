//! The buffer of writes: which sectors wait to be written, as ranges that neither overlap nor touch.

/// Sectors that wait to be written.
#[derive(Clone)]
pub(crate) struct Buffer {
    /// Ranges (first sector, first behind), ascending.
    ranges: Vec<(u64, u64)>,
    /// Sectors in all ranges.
    used: u64,
    size: u64,
    /// Where the last range that was taken ended.
    place: u64,
}

impl Buffer {
    /// An empty buffer for so many sectors.
    pub(crate) fn new(size: u64) -> Buffer {
        Buffer { ranges: Vec::new(), used: 0, size, place: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many writes it would take to empty it.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Whether so many sectors could be in it.
    pub(crate) fn may_take(&self, sectors: u64) -> bool {
        sectors <= self.size
    }

    /// Whether there is room for so many now.
    pub(crate) fn has_room(&self, sectors: u64) -> bool {
        self.used + sectors <= self.size
    }

    /// The ranges that overlap or touch the sectors from `start` to before `end`.
    fn touching(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let first = self.ranges.partition_point(|range| range.1 < start);
        let last = self.ranges.partition_point(|range| range.0 <= end);
        first..last.max(first)
    }

    /// Whether all those sectors wait.
    pub(crate) fn holds(&self, start: u64, end: u64) -> bool {
        let range = self.touching(start, end);
        self.ranges[range].iter().any(|range| range.0 <= start && end <= range.1)
    }

    /// Whether any of those sectors waits.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        let range = self.touching(start, end);
        self.ranges[range].iter().any(|range| range.0 < end && start < range.1)
    }

    /// Those sectors wait as well.
    pub(crate) fn put(&mut self, start: u64, end: u64) {
        let joined = self.touching(start, end);
        let (mut from, mut to) = (start, end);
        for range in &self.ranges[joined.clone()] {
            (from, to) = (from.min(range.0), to.max(range.1));
            self.used -= range.1 - range.0;
        }
        self.used += to - from;
        self.ranges.splice(joined, [(from, to)]);
    }

    /// The range that is written next, which does not wait any more: the first behind the last one, or the first.
    pub(crate) fn take(&mut self) -> Option<(u64, u64)> {
        let next = self.ranges.partition_point(|range| range.0 < self.place);
        let next = if next == self.ranges.len() { 0 } else { next };
        let range = (next < self.ranges.len()).then(|| self.ranges.remove(next))?;
        self.used -= range.1 - range.0;
        self.place = range.1;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_are_taken_in_one_direction() {
        let mut buffer = Buffer::new(100);
        for (start, end) in [(50, 60), (10, 20), (60, 70), (5, 8), (15, 25)] {
            buffer.put(start, end);
        }
        assert_eq!((buffer.ranges(), buffer.used), (3, 20 + 15 + 3));
        assert!(
            buffer.holds(50, 70)
                && !buffer.holds(24, 26)
                && buffer.overlaps(24, 26)
                && !buffer.overlaps(25, 50)
        );
        assert!(buffer.has_room(62) && !buffer.has_room(63) && buffer.may_take(100) && !buffer.may_take(101));
        assert_eq!(buffer.take(), Some((5, 8)));
        assert_eq!(buffer.take(), Some((10, 25)));
        buffer.put(0, 2);
        assert_eq!(buffer.take(), Some((50, 70)));
        assert_eq!(buffer.take(), Some((0, 2)));
        assert_eq!(buffer.take(), None);
        assert!(buffer.is_empty() && buffer.used == 0);
    }
}
