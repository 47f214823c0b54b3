//! Which reads are worth a copy while a budget of writes is short.
//!
//! ```text
//!      recent misses, by what their blocks cost the slow device
//!      least ░░░░░░░░░░░░░░░░░░▒▒▒▒▒▒ most        ▒ as large a part as the bucket is full: these are copied
//! ```
//!
//! The rule has no unit and no threshold of its own: as tokens run out a copy has to save more, and where tokens come
//! and go alike, copies are made of the best part of all misses that the budget has space for.

/// Misses that a new one is compared with.
const RECENT: usize = 256;

/// What the blocks of recent misses cost the slow device, in milliseconds each.
pub struct Worth {
    recent: Vec<f32>,
    next: usize,
}

impl Worth {
    pub fn new() -> Worth {
        Worth { recent: Vec::with_capacity(RECENT), next: 0 }
    }

    /// Which part of recent misses is worth more than one whose blocks cost so many milliseconds each: from 0, less
    /// than 1. It is copied if that is less than the part that is to be copied.
    pub fn rank(&self, ms: f32) -> f64 {
        let better = self.recent.iter().filter(|other| **other > ms).count();
        better as f64 / (self.recent.len() + 1) as f64
    }

    /// A miss, with which others are compared from now on.
    pub fn add(&mut self, ms: f32) {
        match self.recent.get_mut(self.next) {
            Some(oldest) => *oldest = ms,
            None => self.recent.push(ms),
        }
        self.next = (self.next + 1) % RECENT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_among(worth: &mut Worth, ms: f32, level: f64) -> bool {
        let rank = worth.rank(ms);
        worth.add(ms);
        rank < level
    }

    /// How many of 1000 misses that cost 0 to 99 ms are copied at a level, and the least of them.
    fn copied(level: f64) -> (usize, f32) {
        let mut worth = Worth::new();
        let costs = || (0..1000).map(|n| (n * 37 % 100) as f32);
        assert!(costs().all(|ms| is_among(&mut worth, ms, 1.0)));
        let copied: Vec<f32> = costs().filter(|ms| is_among(&mut worth, *ms, level)).collect();
        (copied.len(), copied.into_iter().fold(f32::INFINITY, f32::min))
    }

    #[test]
    fn the_best_part_is_as_large_as_the_bucket_is_full() {
        assert_eq!(copied(1.0), (1000, 0.0));
        assert_eq!(copied(0.0), (0, f32::INFINITY));
        for (level, part, least) in [(0.5, 500, 50.0), (0.1, 100, 90.0)] {
            let (count, from) = copied(level);
            assert!(count.abs_diff(part) <= 20 && (from - least).abs() <= 2.0, "{count} from {from}");
        }
    }

    #[test]
    fn equals_are_all_copied_or_none() {
        let mut worth = Worth::new();
        assert!((0..1000).all(|_| is_among(&mut worth, 3.0, 0.01)));
        assert!(!is_among(&mut worth, 3.0, 0.0));
    }
}
