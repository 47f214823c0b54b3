//! The buffer of writes: which sectors wait to be written, as ranges that neither overlap nor touch.

use std::collections::BTreeMap;

/// Sectors that wait to be written.
#[derive(Clone)]
pub(crate) struct Buffer {
    /// Ranges: by the first sector, the first one behind. None is empty.
    ranges: BTreeMap<u64, u64>,
    /// Sectors in all ranges.
    used: u64,
    size: u64,
    /// Where the last range that was taken ended.
    place: u64,
}

impl Buffer {
    /// An empty buffer for so many sectors.
    pub(crate) fn new(size: u64) -> Buffer {
        Buffer { ranges: BTreeMap::new(), used: 0, size, place: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many writes it would take to empty it.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Whether so many sectors could be in it. A buffer of no sectors takes nothing, not even nothing: its drive has
    /// none.
    pub(crate) fn may_take(&self, sectors: u64) -> bool {
        self.size > 0 && sectors <= self.size
    }

    /// Whether there is room for so many now.
    pub(crate) fn has_room(&self, sectors: u64) -> bool {
        self.may_take(self.used + sectors)
    }

    /// The last range that begins at or before `sector`.
    fn before(&self, sector: u64) -> Option<(u64, u64)> {
        self.ranges.range(..=sector).next_back().map(|(from, to)| (*from, *to))
    }

    /// Whether all those sectors wait.
    pub(crate) fn holds(&self, start: u64, end: u64) -> bool {
        self.before(start).is_some_and(|(_, to)| end <= to)
    }

    /// Whether any of those sectors waits.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        start < end && self.before(end - 1).is_some_and(|(_, to)| start < to)
    }

    /// Those sectors wait as well.
    pub(crate) fn put(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut first, mut behind) = (start, end);
        while let Some((from, to)) = self.before(end).filter(|(_, to)| start <= *to) {
            (first, behind) = (first.min(from), behind.max(to));
            self.remove(from);
        }
        self.used += behind - first;
        self.ranges.insert(first, behind);
    }

    /// The range that begins at `from` does not wait any more.
    fn remove(&mut self, from: u64) -> Option<(u64, u64)> {
        let to = self.ranges.remove(&from)?;
        self.used -= to - from;
        Some((from, to))
    }

    /// The range that is written next, which does not wait any more: the first behind the last one, or the first.
    pub(crate) fn take(&mut self) -> Option<(u64, u64)> {
        let next = self.ranges.range(self.place..).chain(&self.ranges).next();
        let taken = next.map(|(from, _)| *from).and_then(|from| self.remove(from))?;
        self.place = taken.1;
        Some(taken)
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

    #[test]
    fn a_drive_without_a_buffer_has_room_for_nothing() {
        let none = Buffer::new(0);
        assert!(!none.may_take(0) && !none.has_room(0) && !none.may_take(1));
        let mut some = Buffer::new(1);
        assert!(some.may_take(0) && some.has_room(1));
        some.put(5, 5);
        assert!(some.is_empty());
    }

    /// The ranges of a bitmap: runs of sectors that are set.
    fn runs(bits: &[bool]) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for at in (0..bits.len() as u64).filter(|at| bits[*at as usize]) {
            match runs.last_mut().filter(|run| run.1 == at) {
                Some(run) => run.1 += 1,
                None => runs.push((at, at + 1)),
            }
        }
        runs
    }

    #[test]
    fn agrees_with_a_bitmap() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut buffer, mut bits, mut place) = (Buffer::new(300), [false; 300], 0);
        for _ in 0..20_000 {
            let start = random.u64(0..300);
            let end = random.u64(start..=300.min(start + 20));
            let span = start as usize..end as usize;
            if end > start {
                let set = bits[span.clone()].iter().filter(|bit| **bit).count();
                assert_eq!(buffer.holds(start, end), set == span.len(), "{span:?}");
                assert_eq!(buffer.overlaps(start, end), set > 0, "{span:?}");
            }
            if random.u8(0..3) > 0 {
                buffer.put(start, end);
                bits[span].fill(true);
            } else {
                let runs = runs(&bits);
                let next = runs.iter().find(|run| run.0 >= place).or(runs.first()).copied();
                assert_eq!(buffer.take(), next);
                let Some((from, to)) = next else { continue };
                bits[from as usize..to as usize].fill(false);
                place = to;
            }
            assert_eq!(buffer.ranges.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>(), runs(&bits));
            assert_eq!(buffer.used, bits.iter().filter(|bit| **bit).count() as u64);
        }
    }
}
