//! Surface-serpentine layouts without skew, by the times between tracks.
//!
//! Without skew no angle tells where a head's part of a band ends. But there the arm goes back: seen from the first
//! track, seeks grow up to the end of the first head's cylinders and shrink behind it, down to a change of heads alone
//! at the end of the second head's. That finds a band roughly. At its exact end the next track is a change of head away
//! and not a seek: where both take the same, the end is not told, and no band is found.

use super::bands::Flat;
use super::heads::{SIGNIFICANT, times};
use super::layout::Track;
use super::rotation::Rotation;
use super::session::Session;
use super::set_phases;
use crate::numbers::median;

/// Tracks of the longest way that is tried, and by how much each way is longer than the one before.
const TRACKS_MAX: u64 = 8192;
const RATIO: f64 = 1.12;
/// The shortest way.
const TRACKS_MIN: u64 = 4;
/// Tracks between which the end of the second head's cylinders is looked for.
const POINTS: u64 = 64;
/// The farthest track is so many sectors' time farther than the nearest one: less may be chance.
const FAR_SLOTS: f64 = 8.0;
/// Tracks on which ways end.
const TARGETS: u64 = 16;
/// Heads, at most.
const HEADS_MAX: u64 = 16;

/// A zone whose tracks are counted from its begin.
struct Folds<'s, 'a, 'r> {
    session: &'s mut Session<'a>,
    rotation: &'r mut Rotation,
    zone: Flat,
}

/// Heads and cylinders of the bands of a drive whose zones are `flat` if it had one head; `None` if times show none.
pub(super) fn find(
    session: &mut Session,
    rotation: &mut Rotation,
    flat: &[Flat],
) -> Result<Option<(u32, u32)>, String> {
    let Some(zone) = flat.iter().max_by_key(|zone| zone.tracks).copied() else { return Ok(None) };
    session.say("heads: where the arm goes back");
    let mut folds = Folds { session, rotation, zone };
    let Some((rough, near_us, far_us)) = folds.second_end()? else { return Ok(None) };
    let Some(band) = folds.first_end(rough)? else { return Ok(None) };
    let heads = folds.heads(band, (near_us + far_us) / 2.0)?;
    Ok(heads.map(|heads| (heads as u32, band as u32)))
}

impl Folds<'_, '_, '_> {
    fn track(&self, number: u64) -> Track {
        let sectors = u64::from(self.zone.slots);
        let first = self.zone.first + number * sectors;
        Track { first, sectors, slots: self.zone.slots, phase: self.zone.phase, cylinder: number, index: 0 }
    }

    /// The times to each of `targets` from the track with it.
    fn times(&mut self, targets: &[Track], sources: &[u64]) -> Result<Vec<Option<f64>>, String> {
        let from = sources.iter().map(|source| self.track(*source));
        let pairs: Vec<(Track, Track)> = targets.iter().copied().zip(from).collect();
        times(self.session, self.rotation, &pairs)
    }

    /// The times between tracks that are the same number of tracks before and behind each of `middles`, halves counted,
    /// where they are known: a place where the arm goes back is in the middle of a short way. Ways end on several
    /// tracks, so that a cache does not have all of one.
    fn around(&mut self, middles: impl Iterator<Item = u64>) -> Result<Vec<(u64, f64)>, String> {
        let ways: Vec<(u64, u64)> =
            middles.zip(0..).map(|(both, n): (u64, u64)| (both, (n % TARGETS).min(both / 4))).collect();
        let mut targets: Vec<Track> = (0..TARGETS).map(|n| self.track(n)).collect();
        set_phases(self.session, self.rotation, &mut targets)?;
        let to: Vec<Track> = ways.iter().map(|(_, to)| targets[*to as usize]).collect();
        let from: Vec<u64> = ways.iter().map(|(both, to)| both - to).collect();
        let known = ways.iter().map(|(both, _)| *both).zip(self.times(&to, &from)?);
        Ok(known.filter_map(|(both, time)| Some((both, time?))).collect())
    }

    /// About the track at which the second head's cylinders end, which the first one's begin is below, and what the
    /// nearest and the farthest track take. None if farther tracks never are nearer in time.
    fn second_end(&mut self) -> Result<Option<(u64, f64, f64)>, String> {
        let last = TRACKS_MAX.min(self.zone.tracks.saturating_sub(TARGETS));
        let longer = |way: &u64| Some((*way as f64 * RATIO).ceil() as u64);
        let ways = std::iter::successors(Some(TRACKS_MIN), longer).take_while(|way| *way <= last);
        let known = self.around(ways)?;
        let Some(near_us) = known.iter().map(|(_, us)| *us).min_by(f64::total_cmp) else { return Ok(None) };
        let (mut far_us, enough_us) = (near_us, FAR_SLOTS * self.track(0).slot_us(self.session));
        for (way, us) in known {
            // Half of the way back, in time.
            if us - near_us < (far_us - near_us) / 2.0 && far_us - near_us > enough_us {
                return self.valley(way).map(|end| end.map(|end| (end, near_us, far_us)));
            }
            far_us = far_us.max(us);
        }
        Ok(None)
    }

    /// The middle of the tracks around `about` that are near the first one.
    fn valley(&mut self, about: u64) -> Result<Option<u64>, String> {
        let (low, high) = (about * 4 / 5, (about * 3 / 2).min(self.zone.tracks - 1));
        let step = (high.saturating_sub(low) / POINTS).max(1);
        let known = self.around((low..=high).step_by(step as usize))?;
        let times = || known.iter().map(|(_, us)| *us);
        let (Some(least), Some(most)) = (times().min_by(f64::total_cmp), times().max_by(f64::total_cmp))
        else {
            return Ok(None);
        };
        let near: Vec<u64> = known
            .iter()
            .filter(|(_, us)| us - least < (most - least) / 4.0)
            .map(|(track, _)| *track)
            .collect();
        let ends = near.first().copied().zip(near.last().copied());
        // Without higher ground on both sides it is none.
        let is_valley = |(first, last): &(u64, u64)| *first > low + step && last + step < high;
        Ok(ends.filter(is_valley).map(|(first, last)| (first + last) / 2))
    }

    /// The first track of the second head, of which the last is about `end`: the way to it is not like the others.
    fn first_end(&mut self, end: u64) -> Result<Option<u64>, String> {
        let (middle, around) = (end.div_ceil(2), 3 + end / 32);
        let tracks: Vec<u64> =
            (middle.saturating_sub(around).max(1)..=(middle + around).min(self.zone.tracks - 1)).collect();
        let mut targets: Vec<Track> = tracks.iter().map(|track| self.track(track - 1)).collect();
        set_phases(self.session, self.rotation, &mut targets)?;
        let times = self.times(&targets, &tracks)?;
        let known: Vec<(u64, f64)> =
            tracks.into_iter().zip(times).filter_map(|(track, time)| Some((track, time?))).collect();
        let usual = median(&known.iter().map(|(_, us)| *us).collect::<Vec<f64>>());
        let off = |(_, us): &(u64, f64)| (us - usual).abs();
        let spread = median(&known.iter().map(off).collect::<Vec<f64>>()).max(1.0);
        let most = known.iter().max_by(|a, b| off(a).total_cmp(&off(b)));
        Ok(most.filter(|most| off(most) > SIGNIFICANT * spread).map(|most| most.0))
    }

    /// Heads that share a band: the next band, if the zone has one, is a long way from the first one, whose tracks take
    /// less than `far_us`.
    fn heads(&mut self, band: u64, far_us: f64) -> Result<Option<u64>, String> {
        let middle = band / 2;
        let most = (HEADS_MAX + 1).min(self.zone.tracks.saturating_sub(middle + TARGETS).max(band) / band);
        let step = |part: u64| middle + part % (band / 4).clamp(1, TARGETS);
        let mut targets: Vec<Track> = (1..=most).map(|part| self.track(step(part))).collect();
        set_phases(self.session, self.rotation, &mut targets)?;
        let sources: Vec<u64> = (1..=most).map(|part| step(part) + part * band).collect();
        let times = self.times(&targets, &sources)?;
        let far =
            (1..=most).zip(times).find(|(_, us)| us.is_some_and(|us| us > far_us)).map(|(part, _)| part);
        // A zone of one band ends with the last head's cylinders.
        let all = (self.zone.tracks + band / 2) / band;
        Ok(far.or((all <= HEADS_MAX).then_some(all)))
    }
}
