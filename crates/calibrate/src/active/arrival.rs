//! When the arm arrives, from sectors that were read in time or a turn late.
//!
//! A read of one sector ends when the sector passes for the first time after the arm has come. So each read says that
//! the least time of such a read lies in an interval a turn long, which ends at what the read took: the interval
//! between a sector that was just missed and one that was just made (the minimum time between request completions of
//! Worthington, Ganger, Patt, Wilkes: "On-line extraction of SCSI disk drive parameters", 1995). Bisecting over the
//! angle of the target narrows what all intervals have in common. Single reads that are wrong, and arms that arrive a
//! little early or late, leave no such place: the one that most intervals have in common counts then.

/// Reads of targets for one arrival, at most.
const STEPS: usize = 48;
/// An interval this narrow is narrow enough, in microseconds.
const NARROW_US: f64 = 8.0;
/// Reads around a narrow interval that confirm it.
const CONFIRMED: usize = 8;
/// The share of all reads that must agree.
const AGREEING_MIN: f64 = 0.7;

/// The time from the end of a read to the earliest possible end of a read of one sector elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Access {
    /// Microseconds; the truth is between, at most the sector and its distance to the next away.
    pub missed_us: f64,
    pub made_us: f64,
}

impl Access {
    pub(super) fn us(&self) -> f64 {
        (self.missed_us + self.made_us) / 2.0
    }

    fn width_us(&self) -> f64 {
        self.made_us - self.missed_us
    }
}

/// What reads said so far.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    period_us: f64,
    /// What each read took, in microseconds.
    took_us: Vec<f64>,
    confirmed: usize,
    /// Reads that may still be made.
    left: usize,
}

impl Arrival {
    pub(super) fn new(period_us: f64) -> Arrival {
        Arrival { period_us, took_us: Vec::new(), confirmed: 0, left: STEPS }
    }

    /// What most reads agree on, and how many do.
    fn most(&self) -> Option<(Access, usize)> {
        let agreeing = |at: f64| {
            let around = move |took: &&f64| at <= **took && **took < at + self.period_us;
            self.took_us.iter().filter(around)
        };
        let best = self.took_us.iter().copied().max_by(|a, b| {
            let counts = agreeing(*a).count().cmp(&agreeing(*b).count());
            counts.then(b.total_cmp(a))
        })?;
        let last = agreeing(best).copied().fold(best, f64::max);
        Some((Access { missed_us: last - self.period_us, made_us: best }, agreeing(best).count()))
    }

    fn is_narrow(access: &Access, slot_us: f64) -> bool {
        access.width_us() <= f64::max(NARROW_US, 1.5 * slot_us)
    }

    pub(super) fn is_over(&self) -> bool {
        self.left == 0 || self.confirmed >= CONFIRMED
    }

    /// When the next target is to pass, after the source.
    pub(super) fn aim_us(&mut self, rng: &mut fastrand::Rng, slot_us: f64) -> f64 {
        self.left = self.left.saturating_sub(1);
        match self.most() {
            None => rng.f64() * self.period_us,
            Some((found, _)) if Arrival::is_narrow(&found, slot_us) => {
                (found.missed_us + (3.0 * rng.f64() - 1.0) * found.width_us() - slot_us / 2.0).max(0.0)
            }
            Some((found, _)) => ((found.missed_us + found.made_us) / 2.0).max(0.0),
        }
    }

    /// A target took so long.
    pub(super) fn learn(&mut self, took_us: f64, slot_us: f64) {
        if self.most().is_some_and(|(found, _)| Arrival::is_narrow(&found, slot_us)) {
            self.confirmed += 1;
        }
        self.took_us.push(took_us);
    }

    /// The interval, if it is narrow, nearly all reads agree, and no single read made an end of it.
    pub(super) fn result(&self, slot_us: f64) -> Option<Access> {
        let (found, agreeing) = self.most()?;
        let is_sure = agreeing as f64 >= AGREEING_MIN * self.took_us.len() as f64;
        let near_us = 3.0 * f64::max(found.width_us(), NARROW_US);
        let near = |us: f64| self.took_us.iter().filter(|took| (**took - us).abs() <= near_us).count();
        let is_seen = near(found.made_us) > 1 && near(found.missed_us + self.period_us) > 1;
        (is_sure && is_seen && Arrival::is_narrow(&found, slot_us)).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds an arrival of `least_us` to `jitter_us` more on a track of slots of 8 us, a tenth of the reads wrong.
    fn found(least_us: f64, jitter_us: f64, wrong: f64, seed: u64) -> Option<Access> {
        let (period_us, slot_us) = (6000.0, 8.0);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut arrival = Arrival::new(period_us);
        while !arrival.is_over() {
            let aim = arrival.aim_us(&mut rng, slot_us) + rng.f64() * slot_us;
            let least = least_us + jitter_us * rng.f64();
            let late = if rng.f64() < wrong { 1.0 } else { ((least - aim) / period_us).ceil() };
            arrival.learn(aim + late * period_us, slot_us);
        }
        arrival.result(slot_us)
    }

    #[test]
    fn arrivals_are_found_through_jitter_and_mistakes() {
        for (jitter_us, wrong) in [(0.0, 0.0), (20.0, 0.0), (0.0, 0.1), (20.0, 0.05)] {
            let mut seen = 0;
            for seed in 0..50 {
                let least_us = 100.0 + 200.0 * seed as f64;
                let Some(found) = found(least_us, jitter_us, wrong, seed) else { continue };
                let off = found.us() - least_us - jitter_us / 2.0;
                // A mistake at an end of the interval is not told from an arm that came there.
                let most = if wrong > 0.0 { 100.0 } else { 25.0 };
                assert!(off.abs() < most, "{off} at {least_us}, {jitter_us}, {wrong}, {seed}");
                seen += 1;
            }
            assert!(seen >= 30, "{seen} of 50 at {jitter_us}, {wrong}");
        }
    }
}
