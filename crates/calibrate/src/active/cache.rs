//! The on-board cache: whether there is one, what hits take, how many segments, how long, how much is read ahead.
//!
//! Nothing of the geometry is needed for this. Each test is made on sectors that were not read before, far from all
//! others; a number is found by doubling and bisecting, and believed when it is confirmed on fresh sectors.

use super::session::{HitTime, Session};
use crate::numbers::{median, signed};

/// Reads that say whether sectors are answered from a cache at all.
const REREADS: usize = 15;
/// A cache with more segments than this is said to have this many.
const SEGMENTS_MAX: u64 = 1024;
/// Sectors that a segment is tried for.
const SECTORS_MAX: u64 = 16_384;
/// A drive has read ahead after this pause.
const READ_AHEAD_US: f64 = 150_000.0;
/// How often a number that is not confirmed is looked for again.
const ATTEMPTS: usize = 3;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    /// Microseconds of a hit of one sector, and what hits differ by.
    pub hit_us: f64,
    /// Microseconds that each further sector of a hit takes.
    pub sector_us: f64,
    /// How many segments, and whether the number was confirmed.
    pub segments: (u64, bool),
    /// Sectors of a segment, and whether the number was confirmed; `None` if none of the sizes tried filled one.
    pub segment_sectors: Option<(u64, bool)>,
    /// Sectors that are read ahead behind a request, and whether the number was confirmed.
    pub prefetch: (u64, bool),
}

/// Measures the cache; `None` if sectors that were just read are read from the medium again.
pub(super) fn find(session: &mut Session) -> Result<Option<Cache>, String> {
    session.say("cache: the time of a hit");
    let Some(hit) = hit_time(session)? else { return Ok(None) };
    session.hit = Some(hit);
    let sector_us = sector_time(session, hit)?;
    let mut test = Test { session, hit };
    test.session.say("cache: segments");
    let segments = test.greatest(1, SEGMENTS_MAX, Test::keeps)?;
    test.session.say("cache: read-ahead");
    let prefetch = test.greatest(0, SECTORS_MAX, |test, n| test.has_ahead(1, n))?;
    test.session.say("cache: sectors of a segment");
    let segment_sectors = test.segment(prefetch.0)?;
    Ok(Some(Cache { hit_us: hit.us, sector_us, segments, segment_sectors, prefetch }))
}

/// What it takes to read a sector again, if the times between are not whole turns.
fn hit_time(session: &mut Session) -> Result<Option<HitTime>, String> {
    let mut times = Vec::new();
    for _ in 0..REREADS {
        let lbn = session.anywhere();
        let first = session.read(lbn)?;
        let again = session.read(lbn)?;
        let turns = session.clock.turns(again.end_us) - session.clock.turns(first.end_us);
        if signed(turns).abs() > f64::max(0.004, session.tolerance()) {
            times.push(again.service_us());
        }
    }
    if times.len() < REREADS / 2 {
        return Ok(None);
    }
    let us = median(&times);
    let off: Vec<f64> = times.iter().map(|time| (time - us).abs()).collect();
    let spread = median(&off);
    Ok(Some(HitTime { us, tolerance_us: (5.0 * spread).clamp(2.0, us / 2.0) }))
}

/// What each sector of a hit takes beyond the first.
fn sector_time(session: &mut Session, hit: HitTime) -> Result<f64, String> {
    const SECTORS: u32 = 32;
    let mut times = Vec::new();
    for _ in 0..REREADS / 2 {
        let lbn = session.anywhere().min(session.sectors() - u64::from(SECTORS));
        session.read_many(lbn, SECTORS, 0.0)?;
        times.push(session.read_many(lbn, SECTORS, 0.0)?.service_us());
    }
    let sector_us = ((median(&times) - hit.us) / f64::from(SECTORS - 1)).max(0.0);
    // A segment with fewer sectors is no hit: nothing is known then.
    Ok(if sector_us * f64::from(SECTORS) > session.clock.period_us / 8.0 { 0.0 } else { sector_us })
}

/// Tests of the cache, each of which says yes up to a number and no beyond.
struct Test<'s, 'a> {
    session: &'s mut Session<'a>,
    hit: HitTime,
}

impl Test<'_, '_> {
    /// Whether a sector is still in the cache when `segments` - 1 others were read.
    fn keeps(&mut self, segments: u64) -> Result<bool, String> {
        let lbn = self.fresh(1);
        self.session.read(lbn)?;
        let step = self.session.sectors() / (2 * SEGMENTS_MAX);
        let first = self.session.rng.u64(step..2 * step);
        // Others follow in short steps, downwards, round the end of the drive, and never near the first.
        for n in 1..segments {
            let sectors = self.session.sectors();
            let other = (lbn + sectors - (first + n * step) % sectors) % sectors;
            self.session.read(other)?;
        }
        let again = self.session.read(lbn)?;
        Ok(self.hit.fits(again.service_us()))
    }

    /// Whether the sector `ahead` behind a read of `sectors` is in the cache.
    fn has_ahead(&mut self, sectors: u64, ahead: u64) -> Result<bool, String> {
        if ahead == 0 {
            return Ok(true);
        }
        let lbn = self.fresh(sectors + ahead);
        self.session.read_many(lbn, sectors as u32, 0.0)?;
        let answer = self.session.read_many(lbn + sectors + ahead - 1, 1, READ_AHEAD_US)?;
        Ok(self.hit.fits(answer.service_us()))
    }

    /// Whether the first sector of a read of `sectors` stays in the cache.
    fn has_first(&mut self, sectors: u64) -> Result<bool, String> {
        let lbn = self.fresh(sectors);
        self.session.read_many(lbn, sectors as u32, 0.0)?;
        let answer = self.session.read_many(lbn, 1, READ_AHEAD_US)?;
        Ok(self.hit.fits(answer.service_us()))
    }

    /// Sectors of a segment. A read that is too long for one has either less read ahead, or loses its first sectors.
    fn segment(&mut self, prefetch: u64) -> Result<Option<(u64, bool)>, String> {
        if prefetch > 0 {
            let cut = self.greatest(1, SECTORS_MAX, |test, n| test.has_ahead(n, prefetch))?;
            if cut.0 < SECTORS_MAX {
                return Ok(Some((cut.0 + prefetch, cut.1)));
            }
        }
        let kept = self.greatest(1, SECTORS_MAX, Test::has_first)?;
        Ok((kept.0 < SECTORS_MAX).then_some((kept.0 + prefetch, kept.1)))
    }

    /// A sector far from all that were read lately, with room for `sectors` behind it.
    fn fresh(&mut self, sectors: u64) -> u64 {
        let last = self.session.sectors().saturating_sub(sectors + 1);
        self.session.anywhere().min(last)
    }

    /// The greatest number from `least` to `most` for which `test` says yes, and whether that was confirmed. `least` is
    /// taken for granted.
    fn greatest(
        &mut self,
        least: u64,
        most: u64,
        mut test: impl FnMut(&mut Self, u64) -> Result<bool, String>,
    ) -> Result<(u64, bool), String> {
        let mut found = least;
        for _ in 0..ATTEMPTS {
            let (mut yes, mut no) = (least, least.max(1) * 2);
            while no <= most && test(self, no)? {
                (yes, no) = (no, no * 2);
            }
            if no > most {
                return Ok((most, false));
            }
            if yes == 0 && test(self, 1)? {
                yes = 1;
            } else if yes == 0 {
                no = 1;
            }
            while no - yes > 1 {
                let middle = (yes + no) / 2;
                if test(self, middle)? { yes = middle } else { no = middle }
            }
            found = yes;
            let confirmed =
                (yes == least || test(self, yes)?) && !test(self, yes + 1)? && !test(self, yes + 1)?;
            if confirmed {
                return Ok((found, true));
            }
        }
        Ok((found, false))
    }
}
