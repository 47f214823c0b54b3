//! When blocks are used again: learned from a sample of blocks, by class.
//!
//! ```text
//!      use of a block, class k ─────────── age ───────────▶ next use: a read that would have cost so many ms, a write
//!                               └─ still waiting: it has survived that age
//! ```
//!
//! A *life* of a block goes from one use to the next. Its *class* is what is known at its begin. Blocks are sampled by
//! hash (Waldspurger and others, *Efficient MRC Construction with SHARDS*, FAST '15): all lives of a sampled block are
//! seen, whether the fast device has the block or not, so that what is learned does not depend on what was decided.
//!
//! From lives that ended and lives that go on the chance of an end at each age follows (Kaplan and Meier, 1958), and
//! from that the *rank* of a block: the most that keeping it yields, in milliseconds saved for each cell and unit of
//! time, if it is kept until the best age to give up. That is Gittins' index (1979), and hit density (LHD, NSDI '18)
//! with milliseconds for hits.
//!
//! The module deliberately forgets: what was seen counts less and less, so that a change of phase is learned.

use super::cells::{CLASSES, hash};
use rustc_hash::FxHashMap;

/// Buckets of ages, four an octave of units.
pub const AGES: usize = 60;
/// Sampled blocks, at most.
const SAMPLE_MAX: usize = 1 << 16;
/// Lives of all classes that count for a class of which little is known.
const PRIOR: f32 = 8.0;

/// The bucket of an age in units.
pub fn bucket(age: u16) -> usize {
    match age {
        0..4 => usize::from(age),
        _ => {
            let octave = 15 - age.leading_zeros() as usize;
            4 * (octave - 1) + usize::from((age >> (octave - 2)) & 3)
        }
    }
}

/// How many units are in a bucket.
fn width(bucket: usize) -> f32 {
    match bucket {
        0..4 => 1.0,
        _ => (1u32 << (bucket / 4 - 1)) as f32,
    }
}

/// What happened to lives at one age.
#[derive(Clone, Copy, Default)]
struct Ends {
    /// Milliseconds of reads that ended lives.
    read_ms: f32,
    reads: f32,
    writes: f32,
    /// Lives that were lost sight of.
    lost: f32,
}

/// A life under way.
#[derive(Clone, Copy)]
struct Life {
    class: u8,
    stamp: u16,
}

/// The most that keeping a block yields.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Worth {
    /// Milliseconds for each cell and unit of time.
    pub rate: f32,
    /// Milliseconds altogether.
    pub total: f32,
}

/// What was learned.
pub struct Reuse {
    sample: FxHashMap<u64, Life>,
    /// Blocks with a hash up to that are sampled.
    limit: u64,
    ends: Vec<[Ends; AGES]>,
    /// Of a clean copy, and of a dirty one, by class and age.
    worth: [Vec<[Worth; AGES]>; 2],
}

impl Default for Reuse {
    fn default() -> Reuse {
        let worth = || vec![[Worth::default(); AGES]; CLASSES];
        Reuse {
            sample: FxHashMap::default(),
            limit: u64::MAX,
            ends: vec![[Ends::default(); AGES]; CLASSES],
            worth: [worth(), worth()],
        }
    }
}

impl Reuse {
    /// A block is used at `now`, which begins a life of that class. `read_ms` is what a read costs without a copy; a
    /// write has none.
    pub fn used(&mut self, block: u64, now: u16, class: u8, read_ms: Option<f32>) {
        if hash(block) > self.limit {
            return;
        }
        if let Some(life) = self.sample.insert(block, Life { class, stamp: now }) {
            let ends = &mut self.ends[usize::from(life.class)][bucket(now.wrapping_sub(life.stamp))];
            match read_ms {
                Some(ms) => {
                    ends.read_ms += ms;
                    ends.reads += 1.0;
                }
                None => ends.writes += 1.0,
            }
        } else if self.sample.len() > SAMPLE_MAX {
            self.limit /= 2;
            let limit = self.limit;
            self.sample.retain(|block, _| hash(*block) <= limit);
        }
    }

    /// Learns from what was seen until `now`; all that was seen counts `decay` as much from now on, below 1, and `fade`
    /// after each unit of time. `destage` is what writing a block home costs, in milliseconds.
    pub fn learn(&mut self, now: u16, decay: f32, fade: f32, destage: f32) {
        let mut waiting = vec![[0.0f32; AGES]; CLASSES];
        let ends = &mut self.ends;
        self.sample.retain(|_, life| {
            let (class, age) = (usize::from(life.class), now.wrapping_sub(life.stamp));
            let is_kept = age < u16::MAX / 2;
            match is_kept {
                true => waiting[class][bucket(age)] += 1.0,
                false => ends[class][AGES - 1].lost += 1.0,
            }
            is_kept
        });
        let mut all = [Ends::default(); AGES];
        for (ends, waiting) in self.ends.iter().zip(&waiting) {
            for age in 0..AGES {
                all[age].add(&ends[age], 1.0);
                all[age].lost += waiting[age];
            }
        }
        let total: f32 = all.iter().map(Ends::lives).sum();
        for (class, waiting) in waiting.iter().enumerate() {
            let mut ends = self.ends[class];
            for age in 0..AGES {
                ends[age].lost += waiting[age];
                ends[age].add(&all[age], PRIOR / total.max(PRIOR));
            }
            for (worth, destage) in self.worth.iter_mut().zip([0.0, destage]) {
                worth[class] = worths(&ends, destage, fade);
            }
        }
        for ends in self.ends.iter_mut().flatten() {
            *ends = Ends::default().plus(ends, decay);
        }
    }

    /// What a copy is worth that was last used `age` units ago.
    pub fn worth(&self, class: u8, age: u16, dirty: bool) -> Worth {
        self.worth[usize::from(dirty)][usize::from(class)][bucket(age)]
    }
}

impl Ends {
    fn lives(&self) -> f32 {
        self.reads + self.writes + self.lost
    }

    fn add(&mut self, other: &Ends, weight: f32) {
        *self = self.plus(other, weight);
    }

    fn plus(&self, other: &Ends, weight: f32) -> Ends {
        Ends {
            read_ms: self.read_ms + weight * other.read_ms,
            reads: self.reads + weight * other.reads,
            writes: self.writes + weight * other.writes,
            lost: self.lost + weight * other.lost,
        }
    }
}

/// What a copy is worth at each age; a write saves `destage` milliseconds.
///
/// A life that is older now was at an age the longer ago, and counts less there, by `fade` for each unit: ends at
/// that age from then count less as well.
fn worths(ends: &[Ends; AGES], destage: f32, fade: f32) -> [Worth; AGES] {
    let (mut at_risk, mut risks) = (0.0f32, [0.0f32; AGES]);
    for age in (0..AGES).rev() {
        at_risk = at_risk * fade.powf(width(age)) + ends[age].lives();
        risks[age] = at_risk;
    }
    let mut worths = [Worth::default(); AGES];
    for (from, worth) in worths.iter_mut().enumerate() {
        let (mut alive, mut value, mut time) = (1.0f32, 0.0f32, 0.0f32);
        for age in from..AGES {
            if risks[age] <= 0.0 || alive < 1e-3 {
                break;
            }
            let Ends { read_ms, reads, writes, .. } = ends[age];
            value += alive * (read_ms + writes * destage) / risks[age];
            let end = alive * (reads + writes) / risks[age];
            time += (alive - end / 2.0) * width(age);
            alive -= end;
            if value / time > worth.rate {
                *worth = Worth { rate: value / time, total: value };
            }
        }
    }
    worths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_without_gaps() {
        let mut age = 0u32;
        for number in 0..AGES {
            let width = width(number) as u32;
            assert_eq!((bucket(age as u16), bucket((age + width - 1) as u16)), (number, number), "{age}");
            age += width;
        }
        assert_eq!(age, 1 << 16, "each age has a bucket");
    }

    /// Blocks of class 1 are read each 8 units, those of class 2 are written each 8, those of class 3 never again.
    fn learned() -> Reuse {
        let mut reuse = Reuse::default();
        for now in 0..64u16 {
            for block in (0..100).filter(|block| block % 8 == u64::from(now) % 8) {
                reuse.used(block, now, 1, Some(4.0));
                reuse.used(1000 + block, now, 2, None);
                reuse.used(10_000 + block + 100 * u64::from(now), now, 3, Some(4.0));
            }
        }
        reuse.learn(64, 0.5, 0.999, 2.0);
        reuse
    }

    #[test]
    fn what_is_read_again_is_worth_its_milliseconds() {
        let reuse = learned();
        let worth = reuse.worth(1, 0, false);
        assert!((3.0..4.1).contains(&worth.total), "{worth:?}");
        assert!((0.35..0.55).contains(&worth.rate), "4 ms for 8 or 9 units: {worth:?}");
        assert!(reuse.worth(1, 7, false).rate > 2.0 * worth.rate, "the wait is nearly over");
        assert!(reuse.worth(3, 0, false).rate < 0.1 * worth.rate);
    }

    #[test]
    fn what_is_written_again_is_worth_something_while_dirty() {
        let reuse = learned();
        assert!(reuse.worth(2, 0, false).rate < 0.1 * reuse.worth(2, 0, true).rate);
        let (read, written) = (reuse.worth(1, 0, false).rate, reuse.worth(2, 0, true).rate);
        assert!((0.4..0.6).contains(&(written / read)), "2 ms instead of 4: {written} {read}");
    }

    #[test]
    fn nothing_known_is_worth_nothing() {
        let mut reuse = Reuse::default();
        assert_eq!(reuse.worth(5, 100, true), Worth::default());
        reuse.learn(9, 0.5, 0.999, 1.0);
        assert_eq!(reuse.worth(5, u16::MAX, false), Worth::default());
    }

    #[test]
    fn the_sample_is_bounded() {
        let mut reuse = Reuse::default();
        (0..300_000).for_each(|block| reuse.used(block, 0, 0, Some(1.0)));
        assert!((SAMPLE_MAX / 3..=SAMPLE_MAX).contains(&reuse.sample.len()), "{}", reuse.sample.len());
    }
}
