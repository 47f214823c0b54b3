//! Where the latest data of an epoch is on the log.

use std::collections::BTreeMap;
use std::ops::Range;

/// Parts of the store, none of which overlap, and where their data begins.
#[derive(Default)]
pub struct Places(BTreeMap<u64, (u64, u64)>);

impl Places {
    /// The data of `at` begins at `place` from now on.
    pub fn put(&mut self, at: &Range<u64>, place: u64) {
        let over: Vec<(u64, u64, u64)> = self.touched(at).collect();
        for (start, end, from) in over {
            self.0.remove(&start);
            if start < at.start {
                self.0.insert(start, (at.start, from));
            }
            if end > at.end {
                self.0.insert(at.end, (end, from + (at.end - start)));
            }
        }
        self.0.insert(at.start, (at.end, place));
    }

    /// The parts that overlap `at`: start, end, place; the last one comes first.
    fn touched(&self, at: &Range<u64>) -> impl Iterator<Item = (u64, u64, u64)> {
        let start = at.start;
        self.0
            .range(..at.end)
            .rev()
            .map(|(start, (end, place))| (*start, *end, *place))
            .take_while(move |(_, end, _)| *end > start)
    }

    /// True if it has something of `at`.
    pub fn touches(&self, at: &Range<u64>) -> bool {
        self.touched(at).next().is_some()
    }

    /// All of `at` in parts, in order, with where each is on the log.
    pub fn parts(&self, at: &Range<u64>) -> Vec<(Range<u64>, Option<u64>)> {
        let mut found: Vec<_> = self.touched(at).collect();
        found.reverse();
        let (mut parts, mut from) = (Vec::new(), at.start);
        for (start, end, place) in found {
            if from < start {
                parts.push((from..start, None));
            }
            let (first, last) = (start.max(at.start), end.min(at.end));
            parts.push((first..last, Some(place + (first - start))));
            from = last;
        }
        if from < at.end {
            parts.push((from..at.end, None));
        }
        parts
    }

    /// Everything: the parts in order, with where each is on the log.
    pub fn all(&self) -> impl Iterator<Item = (Range<u64>, u64)> {
        self.0.iter().map(|(start, (end, place))| (*start..*end, *place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::xorshift;

    #[test]
    fn it_is_a_map_of_bytes() {
        let mut random = xorshift(3);
        let (mut places, mut model) = (Places::default(), vec![None; 64]);
        for n in 1..2000u64 {
            let start = random() % 64;
            let at = start..64.min(start + 1 + random() % 20);
            places.put(&at, n * 100);
            for byte in at.clone() {
                model[byte as usize] = Some(n * 100 + (byte - at.start));
            }
            let from = random() % 64;
            let parts = places.parts(&(from..64));
            assert_eq!(parts.iter().map(|(at, _)| at.end - at.start).sum::<u64>(), 64 - from);
            for (at, place) in &parts {
                for byte in at.clone() {
                    assert_eq!(place.map(|place| place + (byte - at.start)), model[byte as usize]);
                }
                assert_eq!(places.touches(at), place.is_some());
            }
            let all: u64 = places.all().map(|(at, _)| at.end - at.start).sum();
            assert_eq!(all as usize, model.iter().flatten().count());
        }
    }
}
