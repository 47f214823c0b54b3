//! Which blocks are written together, and which segment is collected next.
//!
//! Blocks that become garbage at about the same time belong into the same segments, which are then all garbage, and
//! nothing of them has to be copied. When that will be is inferred from the past, as in SepBIT (Wang et al., FAST
//! '22): a block that was overwritten soon after it was written will be again, and a block that has long been left
//! alone will be longer. Unlike there, a block's *life* is a mean over its last versions, a byte for each block,
//! which is kept in memory only; and classes are multiples of four of it, up to a quarter of the blocks that count:
//! of blocks that are all written as often as each other, hardly any has a shorter one.
//!
//! ```text
//!      class   0   written by users, with lives below n / 16, where n blocks of the log count
//!              1   written by users, below n / 4
//!              2   written by users, longer, or for the first time
//!        3, 4, 5   the same of copies, which live at least as long as they already do
//! ```
//!
//! With two classes there are written and copied blocks. The pages of the map have one class more, the last. Time is
//! counted in blocks that users write; a block's age is that of what its segment holds, on average.

/// Parts of an octave in which lives are counted.
const PARTS: f64 = 8.0;
/// What the newest life of a block counts in the mean: one of so many.
const NEWEST: i32 = 4;
/// Lives that lie between two classes, as octaves below the number of blocks that count.
const BELOW: [f64; 2] = [4.0, 2.0];

/// How long versions of a block have lived, on average: a logarithm. 0: nobody knows.
pub type Life = u8;

/// The classes.
pub struct Classes {
    count: u8,
}

/// What is known of a segment that might be collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Blocks that would have to be copied.
    pub live: u32,
    /// When it was begun.
    pub time: u64,
}

fn logarithm(age: u64) -> Life {
    (((age.max(1) as f64).log2() * PARTS) as u32).clamp(1, u32::from(Life::MAX)) as Life
}

/// The life of a block that is written again at this age; `None` if it is there for the first time.
pub fn life_after(life: Life, age: Option<u64>) -> Life {
    match (life, age.map(logarithm)) {
        (life, None) => life,
        (0, Some(newest)) => newest,
        (life, Some(newest)) => {
            let difference = i32::from(newest) - i32::from(life);
            // Away from zero, so that it gets there.
            let step = (difference + difference.signum() * (NEWEST - 1)) / NEWEST;
            (i32::from(life) + step) as Life
        }
    }
}

impl Classes {
    /// Two classes or six.
    pub fn new(count: u32) -> Classes {
        Classes { count: if count < 6 { 2 } else { 6 } }
    }

    /// The class of pages of the map.
    pub fn of_pages(&self) -> u8 {
        self.count
    }

    /// The class of blocks that nobody has written for a while, and that are put in order: the last of users' classes.
    pub fn of_tidied(&self) -> u8 {
        self.first_of_copies() - 1
    }

    /// The first class of copies.
    pub fn first_of_copies(&self) -> u8 {
        self.count / 2
    }

    fn by_life(&self, life: f64, blocks: u64) -> u8 {
        let limit = (blocks.max(1) as f64).log2();
        let longer = BELOW.iter().filter(|below| life >= (limit - **below) * PARTS).count() as u8;
        longer.min(self.first_of_copies() - 1)
    }

    /// The class of a block of this life that a user writes, where so many blocks count.
    pub fn of_user(&self, life: Life, blocks: u64) -> u8 {
        self.by_life(if life == 0 { f64::INFINITY } else { life.into() }, blocks)
    }

    /// The class of a block that is copied at this age.
    pub fn of_copy(&self, life: Life, age: u64, blocks: u64) -> u8 {
        let life = if life == 0 { Life::MAX } else { life.max(logarithm(age)) };
        self.first_of_copies() + self.of_user(life, blocks)
    }
}

/// The candidate to collect: the one with the highest benefit for its cost (Rosenblum and Ousterhout, SOSP '91):
/// garbage that is gained, times the root of the age, for what has to be read and written. Old segments will hardly
/// have more garbage later; with the age itself, whose blocks are separated by it already, too many of them are
/// collected early.
pub fn victim(
    candidates: impl Iterator<Item = (u32, Candidate)>,
    segment_slots: u32,
    now: u64,
) -> Option<u32> {
    let score = |of: &Candidate| {
        let (live, all) = (f64::from(of.live), f64::from(segment_slots));
        let age = now.saturating_sub(of.time) as f64 + 1.0;
        (all - live) * age.sqrt() / (all + live)
    };
    // Of those without garbage, which only homes take, the oldest is written least.
    let better = |a: &Candidate, b: &Candidate| score(a).total_cmp(&score(b)).then(b.time.cmp(&a.time));
    candidates.max_by(|(_, a), (_, b)| better(a, b)).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_a_mean_of_logarithms() {
        assert_eq!((life_after(0, None), life_after(7, None)), (0, 7));
        assert_eq!(
            (life_after(0, Some(1)), life_after(0, Some(1024)), life_after(0, Some(u64::MAX))),
            (1, 80, 255)
        );
        assert_eq!(
            (life_after(80, Some(1 << 14)), life_after(80, Some(1024)), life_after(80, Some(1))),
            (88, 80, 60)
        );
        let settled = (0..40).fold(200, |life, _| life_after(life, Some(1024)));
        assert_eq!(settled, 80);
    }

    #[test]
    fn classes_follow_lives() {
        let classes = Classes::new(6);
        let blocks = 1 << 13;
        for (age, user) in [(1, 0), (500, 0), (512, 1), (2000, 1), (2048, 2), (1 << 40, 2)] {
            let life = life_after(0, Some(age));
            assert_eq!(
                (classes.of_user(life, blocks), classes.of_copy(life, 1, blocks)),
                (user, 3 + user),
                "{age}"
            );
            assert_eq!(classes.of_copy(1, age, blocks), 3 + user, "it has not been overwritten for so long");
        }
        assert_eq!((classes.of_user(0, blocks), classes.of_copy(0, 1, blocks)), (2, 5), "nothing is known");
        assert_eq!((classes.of_pages(), classes.first_of_copies(), classes.of_tidied()), (6, 3, 2));
    }

    #[test]
    fn two_classes_are_written_and_copied() {
        let classes = Classes::new(2);
        assert_eq!([classes.of_user(0, 9), classes.of_user(7, 9), classes.of_copy(0, 3, 9)], [0, 0, 1]);
        assert_eq!((classes.of_pages(), classes.first_of_copies(), classes.of_tidied()), (2, 1, 0));
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
