//! The time of a rotation, from sectors that are read again.
//!
//! Sectors spread over the whole drive, the *anchors*, are read in one order again and again, with random pauses. The
//! times between two readings of an anchor are whole turns, and nothing but the right period (and its parts) makes all
//! of them that: Yu, Gum, Chen, Wang, Krishnamurthy, Anderson: "Trading Capacity for Performance in a Disk Array", OSDI
//! 2000. Many anchors, because a cache would answer a sector that was read lately: between two readings of an anchor
//! all others are read, more of them in each round until the answers are whole turns.
//!
//! Later the anchors say how the drive's rotation drifts against the clock.

use super::session::{Answer, Clock, Session};
use crate::numbers::{median, signed};
use std::f64::consts::TAU;

/// A turn takes between these: 30,000 and 3,000 turns a minute.
const PERIODS_US: (f64, f64) = (2_000.0, 20_000.0);
/// How many anchors: at first, and if a cache has them all.
const ANCHORS: [usize; 3] = [97, 397, 1597];
/// Anchors that a check of the clock reads.
const CHECKED: usize = 12;
/// The least agreement of all times that counts as a rotation.
const AGREEMENT_MIN: f64 = 0.5;

/// Far reads that take less than this have no arm to wait for: no cache can have them all the first time.
const ARM_US: f64 = 1_000.0;

/// Phases are not believed to be more exact than that, in turns: answers are rounded.
const SPREAD_MIN: f64 = 1e-5;

/// A sector whose phase is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    pub lbn: u64,
    /// The phase of its end, in turns.
    pub phase: f64,
}

/// A rotation that was found.
#[derive(Clone, Debug)]
pub(super) struct Rotation {
    pub anchors: Vec<Anchor>,
    /// What the period may be off by: one standard deviation.
    pub uncertainty_us: f64,
    /// When the clock was last set.
    checked_us: f64,
}

/// Periods that are tried, at most: readings of a sector that are minutes apart are no answers of a disk.
const COARSE_MAX: usize = 4_000_000;

/// Times between readings of one sector, and which reading began them.
struct Gaps(Vec<f64>);

impl Gaps {
    /// How well all gaps are whole periods: 1 if all are.
    fn agreement(&self, per_us: f64) -> f64 {
        self.0.iter().map(|gap| (TAU * gap * per_us).cos()).sum::<f64>() / self.0.len().max(1) as f64
    }

    /// The period that agrees best, or a multiple of it that agrees nearly as well: parts of a turn agree as well.
    fn coarse(&self) -> Option<f64> {
        let longest = self.0.iter().copied().fold(1.0, f64::max);
        let (first, last) = (1.0 / PERIODS_US.1, 1.0 / PERIODS_US.0);
        let step = 0.05 / longest;
        let steps = ((last - first) / step) as usize;
        if steps > COARSE_MAX {
            return None;
        }
        let all = (0..steps).map(|n| first + n as f64 * step).map(|per_us| (self.agreement(per_us), per_us));
        let (_, best) = all.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|best| best.0 > AGREEMENT_MIN)?;
        let part = |parts: u32| best / f64::from(parts);
        let fits = |per_us: &f64| *per_us >= first && self.agreement(*per_us) > 0.9 * self.agreement(best);
        (2..=8).rev().map(part).find(fits).or(Some(best)).map(|per_us| 1.0 / per_us)
    }

    /// The period near `period_us` by least squares, its standard deviation, and that of a gap in turns.
    fn refined(&self, mut period_us: f64) -> (f64, f64, f64) {
        // The count of whole turns settles with the first correction.
        for _ in 0..3 {
            period_us = self.sum(|gap, turns| gap * turns, period_us) / self.weight(period_us);
        }
        let squares = self.sum(|gap, turns| (gap - turns * period_us).powi(2), period_us);
        let spread = (squares / self.0.len().max(1) as f64).sqrt();
        (period_us, spread / self.weight(period_us).sqrt(), spread / period_us)
    }

    fn sum(&self, of: impl Fn(f64, f64) -> f64, period_us: f64) -> f64 {
        self.0.iter().map(|gap| of(*gap, (gap / period_us).round())).sum()
    }

    fn weight(&self, period_us: f64) -> f64 {
        f64::max(self.sum(|_, turns| turns * turns, period_us), 1.0)
    }
}

/// Finds the rotation and sets the session's clock; `None` if the drive shows none.
pub(super) fn find(session: &mut Session) -> Result<Option<Rotation>, String> {
    for count in ANCHORS {
        session.say(&format!("rotation: {count} sectors, again and again"));
        let lbns: Vec<u64> = spread(session, count);
        let rounds: Vec<Vec<Answer>> =
            (0..3).map(|_| round(session, &lbns)).collect::<Result<_, String>>()?;
        let pairs = |a: usize, b: usize| {
            let both = rounds[a].iter().zip(&rounds[b]);
            both.map(|(a, b)| b.end_us - a.end_us).collect::<Vec<f64>>()
        };
        let near = Gaps([pairs(0, 1), pairs(1, 2)].concat());
        let Some(coarse) = near.coarse() else {
            let first: Vec<f64> = rounds[0].iter().map(Answer::service_us).collect();
            if median(&first) < ARM_US {
                return Ok(None);
            }
            continue;
        };
        let (period_us, _, noise) = near.refined(coarse);
        let (period_us, uncertainty_us, _) = Gaps(pairs(0, 2)).refined(period_us);
        session.clock = Clock::new(period_us);
        session.noise = noise;
        let anchor = |(lbn, answer): (&u64, &Answer)| Anchor { lbn: *lbn, phase: session.phase(answer) };
        let mut anchors: Vec<Anchor> = lbns.iter().zip(&rounds[2]).map(anchor).collect();
        anchors.sort_by_key(|anchor| anchor.lbn);
        return Ok(Some(Rotation { anchors, uncertainty_us, checked_us: session.now_us }));
    }
    Ok(None)
}

/// Sectors all over the drive, in random order.
fn spread(session: &mut Session, count: usize) -> Vec<u64> {
    let last = session.sectors() - 1;
    let step = session.sectors() as f64 / count as f64;
    let place = |n: usize, rng: &mut fastrand::Rng| (((n as f64 + rng.f64()) * step) as u64).min(last);
    let mut lbns: Vec<u64> = (0..count).map(|n| place(n, &mut session.rng)).collect();
    session.rng.shuffle(&mut lbns);
    lbns
}

/// Reads all of `lbns`, and gives the answers in their order. Each quarter is read in an order of its own: times that
/// are all about the same would be whole turns of many a period.
fn round(session: &mut Session, lbns: &[u64]) -> Result<Vec<Answer>, String> {
    let mut order: Vec<usize> = (0..lbns.len()).collect();
    order.chunks_mut(lbns.len() / 4).for_each(|quarter| session.rng.shuffle(quarter));
    let mut answers = Vec::new();
    for at in order {
        let think_us = session.rng.f64() * PERIODS_US.1 / 2.0;
        answers.push((at, session.read_many(lbns[at], 1, think_us)?));
    }
    answers.sort_by_key(|(at, _)| *at);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

impl Rotation {
    /// Sets the clock by the anchor nearest to `lbn`, without a change of speed: answers are rounded, and what they
    /// lose adds up.
    pub(super) fn nudge(&self, session: &mut Session, lbn: u64) -> Result<(), String> {
        let above = self.anchors.partition_point(|anchor| anchor.lbn < lbn).min(self.anchors.len() - 1);
        let anchor = self.anchors[above];
        let answer = session.read(anchor.lbn)?;
        let ahead = signed(anchor.phase - session.phase(&answer));
        if !session.is_hit(&answer) && ahead.abs() < 0.05 {
            session.noise += (ahead.abs() - session.noise) / 16.0;
            let period_us = session.clock.period_us;
            session.clock.set(session.now_us, ahead / 2.0, period_us);
        }
        Ok(())
    }

    /// Sets the clock by anchors, if the last time was more than `after_us` ago.
    pub(super) fn check(&mut self, session: &mut Session, after_us: f64) -> Result<(), String> {
        if session.now_us - self.checked_us < after_us {
            return Ok(());
        }
        let step = (self.anchors.len() / CHECKED).max(1);
        let first = session.rng.usize(..step);
        let mut ahead: Vec<f64> = Vec::new();
        for anchor in self.anchors.iter().skip(first).step_by(step) {
            let answer = session.read(anchor.lbn)?;
            if !session.is_hit(&answer) {
                ahead.push(signed(anchor.phase - session.phase(&answer)));
            }
        }
        if ahead.is_empty() {
            return Ok(());
        }
        let drift = median(&ahead);
        let from_median: Vec<f64> = ahead.iter().map(|a| (a - drift).abs()).collect();
        let spread = median(&from_median);
        let turns = (session.now_us - self.checked_us) / session.clock.period_us;
        // The platters were ahead of the clock by this many turns of so many: the period was too long.
        let error =
            spread.max(SPREAD_MIN) * 1.5 / (ahead.len() as f64).sqrt() / turns * session.clock.period_us;
        let correction = -drift / turns * session.clock.period_us;
        // Both estimates by their weights: the old one is from the time before.
        let (old, new) = (self.uncertainty_us.max(1e-12).powi(-2), error.powi(-2));
        let period_us = session.clock.period_us + correction * new / (old + new);
        self.uncertainty_us = (old + new).powf(-0.5);
        session.clock.set(session.now_us, drift, period_us);
        self.checked_us = session.now_us;
        Ok(())
    }
}
