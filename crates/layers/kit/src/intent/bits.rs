//! A set of parts of a device: a bit for each unit of its bytes.

use std::ops::Range;

/// A set of units of a device. Ranges are bytes; a unit is touched as soon as one of its bytes is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// log2 of a unit's bytes.
    shift: u32,
    /// Bytes of the device.
    size: u64,
    words: Vec<u64>,
}

impl Bits {
    /// No unit of a device of `size` bytes. `unit` is a power of two.
    pub fn none(size: u64, unit: u64) -> Bits {
        debug_assert!(unit.is_power_of_two());
        let words = vec![0; size.div_ceil(unit).div_ceil(64) as usize];
        Bits { shift: unit.trailing_zeros(), size, words }
    }

    /// Bytes of the device.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of a unit.
    pub fn unit(&self) -> u64 {
        1 << self.shift
    }

    /// How many units there are.
    pub fn len(&self) -> u64 {
        self.size.div_ceil(self.unit())
    }

    /// The bytes of unit `number`.
    pub fn unit_at(&self, number: u64) -> Range<u64> {
        let start = number << self.shift;
        start..(start + self.unit()).min(self.size)
    }

    /// Calls `f` with every word that `at` touches, and its bits that lie in `at`, until it returns false.
    #[inline]
    fn each(&self, at: &Range<u64>, mut f: impl FnMut(usize, u64) -> bool) -> bool {
        if at.start >= at.end {
            return true;
        }
        let (first, last) = (at.start >> self.shift, (at.end.min(self.size) - 1) >> self.shift);
        let (begin, end) = ((first / 64) as usize, (last / 64) as usize);
        (begin..=end).all(|word| {
            let from = if word == begin { !0 << (first % 64) } else { !0 };
            let to = if word == end { !0 >> (63 - last % 64) } else { !0 };
            f(word, from & to)
        })
    }

    /// Adds every unit that `at` touches.
    #[inline]
    pub fn add(&mut self, at: &Range<u64>) {
        let mut words = std::mem::take(&mut self.words);
        self.each(at, |word, mask| {
            words[word] |= mask;
            true
        });
        self.words = words;
    }

    /// Removes every unit that `at` touches.
    pub fn remove(&mut self, at: &Range<u64>) {
        let mut words = std::mem::take(&mut self.words);
        self.each(at, |word, mask| {
            words[word] &= !mask;
            true
        });
        self.words = words;
    }

    /// Removes all units.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// True if every unit that `at` touches is in the set.
    #[inline]
    pub fn has(&self, at: &Range<u64>) -> bool {
        self.each(at, |word, mask| self.words[word] & mask == mask)
    }

    /// True if any unit that `at` touches is in the set.
    #[inline]
    pub fn touches(&self, at: &Range<u64>) -> bool {
        !self.each(at, |word, mask| self.words[word] & mask == 0)
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Bytes of all units in the set.
    pub fn bytes(&self) -> u64 {
        let units: u64 = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        let last = self.unit_at(self.len().saturating_sub(1));
        let short = if self.has(&last) { self.unit() - (last.end - last.start) } else { 0 };
        (units << self.shift) - if self.size == 0 { 0 } else { short }
    }

    /// The first unit at or after byte `from` that is in the set.
    pub fn next(&self, from: u64) -> Option<Range<u64>> {
        if from >= self.size {
            return None;
        }
        let first = from >> self.shift;
        let begin = (first / 64) as usize;
        let found = self.words[begin..].iter().enumerate().find_map(|(i, word)| {
            let word = if i == 0 { word & (!0 << (first % 64)) } else { *word };
            (word != 0).then(|| (begin + i) as u64 * 64 + u64::from(word.trailing_zeros()))
        });
        found.map(|number| self.unit_at(number))
    }

    /// The units at or after byte `from` that are in the set, in order.
    pub fn units_from(&self, from: u64) -> impl Iterator<Item = Range<u64>> {
        std::iter::successors(self.next(from), |unit| self.next(unit.end))
    }

    /// The units in the set, in order.
    pub fn units(&self) -> impl Iterator<Item = Range<u64>> {
        self.units_from(0)
    }

    /// The runs of units in the set, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let mut run = self.next(from)?;
            while let Some(more) = self.next(run.end).filter(|more| more.start == run.end) {
                run.end = more.end;
            }
            from = run.end;
            Some(run)
        })
    }

    /// Adds all of `other`, which may have other units.
    pub fn join(&mut self, other: &Bits) {
        match self.shift == other.shift && self.size == other.size {
            true => self.words.iter_mut().zip(&other.words).for_each(|(word, more)| *word |= more),
            false => other.runs().for_each(|run| self.add(&run)),
        }
    }

    /// Keeps only units that are in `other` too, which has the same units.
    pub fn meet(&mut self, other: &Bits) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::xorshift;

    #[test]
    fn it_is_what_a_list_of_flags_would_be() {
        let (size, unit, mut random) = (200 * 512 - 100, 512, xorshift(7));
        let (mut bits, mut flags) = (Bits::none(size, unit), vec![false; 200]);
        for _ in 0..3000 {
            let start = random() % size;
            let at = start..(start + 1 + random() % 20_000).min(size);
            let touched = (at.start / unit) as usize..=((at.end - 1) / unit) as usize;
            match random() % 3 {
                0 => (bits.add(&at), flags[touched].fill(true)).0,
                1 => (bits.remove(&at), flags[touched].fill(false)).0,
                _ => {
                    assert_eq!(bits.has(&at), flags[touched.clone()].iter().all(|flag| *flag));
                    assert_eq!(bits.touches(&at), flags[touched].iter().any(|flag| *flag));
                }
            }
            let all = bits.runs().flat_map(|run| run.start / unit..run.end.div_ceil(unit));
            let set = (0..200).filter(|i| flags[*i as usize]);
            assert!(all.eq(set));
            assert_eq!(bits.bytes(), bits.runs().map(|run| run.end - run.start).sum::<u64>());
        }
        bits.clear();
        assert!(bits.is_empty() && bits.next(0).is_none());
    }

    #[test]
    fn sets_with_other_units_meet() {
        let (mut coarse, mut fine) = (Bits::none(1 << 20, 64 << 10), Bits::none(1 << 20, 4096));
        fine.add(&(4096..8192));
        fine.add(&(130_000..140_000));
        coarse.join(&fine);
        assert_eq!(
            coarse.runs().collect::<Vec<_>>(),
            [0..65536, 65536..196_608].map(|r| r).into_iter().fold(
                Vec::new(),
                |mut all: Vec<Range<u64>>, run| {
                    match all.last_mut() {
                        Some(last) if last.end == run.start => last.end = run.end,
                        _ => all.push(run),
                    }
                    all
                }
            )
        );
        assert!(Bits::none(0, 4096).is_empty());
        assert_eq!(Bits::none(0, 4096).bytes(), 0);
    }
}
