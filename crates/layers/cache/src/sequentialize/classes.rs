//! Which blocks are written together, and which segment is collected next.
//!
//! Blocks that become garbage at about the same time belong into the same segments, which are then all garbage, and
//! nothing of them has to be copied. SepBIT (Wang et al., FAST '22) infers the time from the past: a block that is
//! overwritten soon after it was written will be again, and a block that has long been left alone will be longer.
//!
//! ```text
//!      class   0   written by users, in place of a block that was younger than the threshold
//!              1   written by users otherwise
//!              2   copied from class 0
//!              3   copied from elsewhere, younger than 4 thresholds
//!              4   copied from elsewhere, younger than 16 thresholds
//!              5   copied from elsewhere, older
//! ```
//!
//! The threshold is the mean life of the segments of class 0 that were last collected. With two classes there are
//! written and copied blocks. The pages of the map have one class more, the last.
//!
//! Where the paper has the time of the last write of each block, here is that of its segment: no memory for each
//! block. Time is counted in blocks that users write.

/// Segments of class 0 whose lives make the threshold (the paper's number).
const RECENT: u32 = 16;
/// Multiples of the threshold between the classes of what was copied (the paper's numbers).
const YOUNG: u64 = 4;
const OLD: u64 = 16;

/// The classes, and the threshold between them.
pub struct Classes {
    count: u8,
    threshold: u64,
    lives: u64,
    collected: u32,
}

/// What is known of a segment that might be collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Blocks that would have to be copied.
    pub live: u32,
    /// When its data were written.
    pub time: u64,
}

impl Classes {
    /// Two classes or six, before anything was collected.
    pub fn new(count: u32) -> Classes {
        Classes { count: if count < 6 { 2 } else { 6 }, threshold: u64::MAX, lives: 0, collected: 0 }
    }

    /// The class of pages of the map.
    pub fn of_pages(&self) -> u8 {
        self.count
    }

    /// The first class of copies.
    pub fn first_of_copies(&self) -> u8 {
        if self.count == 2 { 1 } else { 2 }
    }

    /// The class of a block that a user writes; `age` is that of the block whose place it takes, if there is one.
    pub fn of_user(&self, age: Option<u64>) -> u8 {
        match age {
            Some(age) if age < self.threshold => 0,
            _ if self.count == 2 => 0,
            Some(_) | None => 1,
        }
    }

    /// The class of a block that is copied from a segment of class `from`.
    pub fn of_copy(&self, from: u8, age: u64) -> u8 {
        match self.count {
            2 => 1,
            _ if from == 0 => 2,
            _ if age < self.threshold.saturating_mul(YOUNG) => 3,
            _ if age < self.threshold.saturating_mul(OLD) => 4,
            _ => 5,
        }
    }

    /// A segment of this class is collected at this age.
    pub fn collected(&mut self, class: u8, age: u64) {
        if class != 0 {
            return;
        }
        self.lives += age;
        self.collected += 1;
        if self.collected == RECENT {
            self.threshold = (self.lives / u64::from(RECENT)).max(1);
            (self.lives, self.collected) = (0, 0);
        }
    }

    /// Below this age of what they replace, users' blocks are of class 0.
    pub fn threshold(&self) -> u64 {
        self.threshold
    }
}

/// The candidate to collect: the one with the highest benefit for its cost (Rosenblum and Ousterhout, SOSP '91), which
/// is what becomes free times its age, for what has to be read and written.
pub fn victim(
    candidates: impl Iterator<Item = (u32, Candidate)>,
    segment_slots: u32,
    now: u64,
) -> Option<u32> {
    let score = |of: &Candidate| {
        let (live, all) = (f64::from(of.live), f64::from(segment_slots));
        let age = now.saturating_sub(of.time) as f64 + 1.0;
        (all - live) * age / (all + live)
    };
    // Of those without garbage, which only homes take, the oldest is written least.
    let better = |a: &Candidate, b: &Candidate| score(a).total_cmp(&score(b)).then(b.time.cmp(&a.time));
    candidates.max_by(|(_, a), (_, b)| better(a, b)).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_ages() {
        let mut classes = Classes::new(6);
        assert_eq!(classes.of_user(Some(1 << 40)), 0, "nothing is known yet");
        assert_eq!((classes.of_user(None), classes.of_pages()), (1, 6));
        (0..RECENT).for_each(|_| classes.collected(0, 100));
        classes.collected(3, 5);
        assert_eq!(classes.threshold(), 100);
        for (age, user, copy) in [(0, 0, 3), (99, 0, 3), (100, 1, 3), (400, 1, 4), (1599, 1, 4), (1600, 1, 5)]
        {
            assert_eq!((classes.of_user(Some(age)), classes.of_copy(1, age)), (user, copy), "{age}");
            assert_eq!(classes.of_copy(0, age), 2);
        }
    }

    #[test]
    fn two_classes_are_written_and_copied() {
        let classes = Classes::new(2);
        assert_eq!([classes.of_user(None), classes.of_user(Some(7)), classes.of_copy(0, 3)], [0, 0, 1]);
        assert_eq!((classes.of_pages(), classes.first_of_copies()), (2, 1));
    }

    #[test]
    fn the_victim_is_empty_or_old() {
        let of = |live, time| Candidate { live, time };
        let pick = |list: &[Candidate]| victim((0..).zip(list.iter().copied()), 16, 1000);
        assert_eq!(pick(&[]), None);
        assert_eq!(pick(&[of(8, 500), of(3, 500), of(9, 500)]), Some(1));
        assert_eq!(pick(&[of(8, 900), of(8, 100), of(8, 500)]), Some(1));
    }
}
