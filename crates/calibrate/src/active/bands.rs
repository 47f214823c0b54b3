//! Surface-serpentine layouts: one head over a band of cylinders, then the next head back over them.
//!
//! Along a band each track begins one change of cylinder later than the one before, and so each angle is known in
//! advance, up to the change of head. From there on all angles are off by the same: bisecting finds the length of a
//! band, and the changes that follow tell how many heads share it. Without skew there is nothing to see.

use super::ask::{Asker, run};
use super::rotation::Rotation;
use super::session::Session;
use super::track::Line;
use super::zones::{Map, Zone};
use crate::numbers::{fraction, signed};

/// Cylinders of a band, at most.
const CYLINDERS_MAX: u64 = 20_000;
/// Heads, at most.
const HEADS_MAX: u64 = 16;
/// Sectors by which an angle is off that no band explains: first, where slips may have moved it, and then, of drives
/// with nearly the same skew for both changes, where none have.
const SLIPS: [f64; 2] = [3.5, 0.5];

/// Bands of a drive.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bands {
    pub heads: u32,
    pub cylinders: u32,
    /// The turns that a change of head adds, and the sectors missing at the end of a band, in each zone where they
    /// were seen.
    pub zones: Vec<Option<(f64, u32)>>,
}

/// A zone as one head would have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flat {
    pub first: u64,
    pub slots: u32,
    /// Turns that each next track adds.
    pub skew: f64,
    /// The phase of its first sector.
    pub phase: f64,
    pub tracks: u64,
    /// Sectors that are missing at the end of each track; in bands at the end of the last one alone.
    pub spares: u32,
}

impl Flat {
    /// The turns by which the middle of a track is later than one head would have it.
    async fn late(&self, ask: &Asker, track: u64) -> f64 {
        let lbn = self.first + track * u64::from(self.slots) + u64::from(self.slots) / 2;
        let within = f64::from(self.slots / 2) / f64::from(self.slots);
        fraction(ask.phase(lbn).await - self.phase - track as f64 * self.skew - within)
    }

    fn differs(&self, a: f64, b: f64, slips: f64) -> bool {
        signed(a - b).abs() > slips / f64::from(self.slots)
    }

    /// The first track from which on tracks are late.
    async fn first_late(&self, ask: &Asker, slips: f64) -> Option<u64> {
        let usual = self.late(ask, 1).await;
        let (mut low, mut high) = (1, 2);
        while !self.differs(self.late(ask, high).await, usual, slips) {
            (low, high) = (high, high * 2);
            if high >= self.tracks.min(CYLINDERS_MAX) {
                return None;
            }
        }
        while high - low > 1 {
            let middle = (low + high) / 2;
            let late = self.late(ask, middle).await;
            if self.differs(late, usual, slips) { high = middle } else { low = middle }
        }
        Some(high)
    }

    /// Heads and cylinders of the zone's bands.
    async fn bands(self, ask: Asker, slips: f64) -> Option<(u32, u32)> {
        let band = self.first_late(&ask, slips).await?;
        let mut late = self.late(&ask, band / 2).await;
        let mut changes = Vec::new();
        // One change more than a band has heads, so that the pattern is seen to begin anew.
        for n in 1..=(HEADS_MAX + 1).min((self.tracks - band / 2 - 1) / band) {
            let next = self.late(&ask, n * band + band / 2).await;
            changes.push(fraction(next - late));
            late = next;
        }
        let head = *changes.first()?;
        let Some(last) = changes.iter().position(|change| self.differs(*change, head, slips)) else {
            // A zone of one band ends with the last head's cylinders.
            let heads = changes.len() as u64 + 1;
            return (self.tracks <= heads * band + 1).then_some((heads as u32, band as u32));
        };
        let heads = last + 1;
        let again = changes.get(heads).is_none_or(|change| !self.differs(*change, head, slips));
        again.then_some((heads as u32, band as u32))
    }

    /// The turns of a change of head, and the sectors that are missing at the end of the first band.
    async fn details(self, ask: Asker, heads: u32, cylinders: u32) -> Option<(f64, u32)> {
        let (heads, band, slots) = (u64::from(heads), u64::from(cylinders), u64::from(self.slots));
        if self.tracks <= heads * band {
            return None;
        }
        let change = signed(self.late(&ask, band).await - self.late(&ask, band - 1).await);
        let skew = fraction(change + self.skew);
        let end = self.first + heads * band * slots;
        let lbn = end - slots / 2;
        let line = Line { lbn, phase: ask.phase(lbn).await, per_sector: 1.0 / slots as f64, error: 0.0 };
        let (mut on, mut off) = (lbn, end);
        while off - on > 1 {
            let middle = (on + off) / 2;
            let fits = signed(ask.phase(middle).await - line.at(middle)).abs() <= ask.tolerance;
            if fits { on = middle } else { off = middle }
        }
        Some((skew, (end - off) as u32))
    }
}

/// Heads and cylinders of the bands of a drive whose zones are `flat` if it had one head; `None` if angles show none.
pub(super) fn find(
    session: &mut Session,
    rotation: &mut Rotation,
    map: &Map,
    flat: &[Flat],
) -> Result<Option<(u32, u32)>, String> {
    session.say("heads: bands of cylinders");
    let is_known = |zone: &Zone| map.skewless || zone.begin.is_some();
    let known = flat.iter().zip(&map.zones).filter(|(_, zone)| is_known(zone)).map(|(flat, _)| *flat);
    let long: Vec<Flat> = known.filter(|flat| flat.tracks > 2 * HEADS_MAX && flat.spares == 0).collect();
    for slips in SLIPS {
        let seen = run(session, rotation, |ask| {
            long.iter().map(|flat| Box::pin(flat.bands(ask.clone(), slips)) as _).collect()
        })?;
        let seen: Vec<(u32, u32)> = seen.into_iter().flatten().collect();
        let count = |bands: &(u32, u32)| seen.iter().filter(|other| *other == bands).count();
        // Slips look like bands, but not like the same in all zones.
        let most = seen.iter().copied().max_by_key(count);
        if let Some(bands) = most.filter(|bands| 2 * count(bands) > long.len()) {
            return Ok(Some(bands));
        }
    }
    Ok(None)
}

/// What each zone has of such bands.
pub(super) fn details(
    session: &mut Session,
    rotation: &mut Rotation,
    flat: &[Flat],
    (heads, cylinders): (u32, u32),
) -> Result<Bands, String> {
    let zones = run(session, rotation, |ask| {
        flat.iter().map(|flat| Box::pin(flat.details(ask.clone(), heads, cylinders)) as _).collect()
    })?;
    Ok(Bands { heads, cylinders, zones })
}
