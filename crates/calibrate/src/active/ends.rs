//! Ends of tracks that phases do not show: without skew, a read over the end of a track takes a turn longer.
//!
//! Changing the track takes less than a turn, and the next sector is missed by it. A read that waits for its first
//! sector for a good part of a turn, so that the arm is there in time, therefore says by its whole turns whether a
//! track ends in it, and bisecting finds where. The reads begin lower each time, so that a cache has none of them
//! whole.

use super::session::Session;
use crate::numbers::fraction;

/// Sectors by which each read begins lower than the one before.
const LOWER: u64 = 4;
/// The part of a turn from the end of the read before to the begin of a read, if tracks have no skew.
const LEAD: f64 = 0.7;
/// Parts of a turn in which the arm is there, and after which it may have been there a turn before.
const IN_TIME: std::ops::Range<f64> = 0.5..0.9;

/// Looks for an end of a track.
struct Search {
    /// Sectors around a track.
    slots: u64,
    /// Sectors behind a read that may be in the cache.
    ahead: u64,
    /// How many reads there were.
    reads: u64,
}

/// The first sector of the track that begins above `low`, to which the tracks of `slots` sectors below have no skew;
/// `None` if reads do not tell. The drive reads at most `ahead` sectors ahead.
pub(super) fn next_track(
    session: &mut Session,
    low: u64,
    slots: u32,
    ahead: u64,
) -> Result<Option<u64>, String> {
    let slots = u64::from(slots);
    let mut search = Search { slots, ahead, reads: 0 };
    let half = low + slots / 2;
    // All reads begin at the low end: what the first one had read ahead would answer one from above.
    let (mut last, mut first) = match search.crosses(session, low, half)? {
        Some(true) => (low, half),
        Some(false) => (half, low + slots + LOWER),
        None => return Ok(None),
    };
    while first - last > 1 {
        let middle = (last + first) / 2;
        match search.crosses(session, low, middle)? {
            Some(true) => first = middle,
            Some(false) => last = middle,
            None => return Ok(None),
        }
    }
    // A track that is nowhere: the last half may have had no end.
    Ok(search.crosses(session, low, first)?.filter(|ends| *ends).map(|_| first))
}

impl Search {
    /// Whether a track begins behind `from`, at `to` at the latest.
    fn crosses(&mut self, session: &mut Session, from: u64, to: u64) -> Result<Option<bool>, String> {
        const ATTEMPTS: u64 = 6;
        for attempt in 0..ATTEMPTS {
            self.reads += 1;
            let Some(first) = from.checked_sub(LOWER * self.reads) else { return Ok(None) };
            // Of the sectors that pass a part of a turn earlier, one of the tracks below, each time a lower one, so
            // that none was read ahead; above a zone may begin.
            let tracks = 2 + self.reads * (1 + self.ahead / self.slots);
            let within = ((1.0 - LEAD) * self.slots as f64) as u64 + attempt * self.slots / 3;
            let Some(before) = (first + within).checked_sub(tracks * self.slots) else { return Ok(None) };
            if to >= session.sectors() {
                return Ok(None);
            }
            let sectors = to + 1 - first;
            let start = session.read(before)?;
            let read = session.read_many(first, sectors as u32, 0.0)?;
            let turns = (read.end_us - start.end_us) / session.clock.period_us;
            let before = turns - sectors as f64 / self.slots as f64;
            if session.is_hit(&start) || !IN_TIME.contains(&fraction(before)) {
                continue;
            }
            match before.floor() as i64 {
                0 => return Ok(Some(false)),
                1 => return Ok(Some(true)),
                _ => {}
            }
        }
        Ok(None)
    }
}
