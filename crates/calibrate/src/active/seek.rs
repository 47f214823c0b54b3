//! Seeks: the least time to a sector that the arm just does not miss.
//!
//! From a sector of one cylinder to a sector of another whose angle is known: [`Arrival`] bisects for the moment when
//! the arm comes. Every pair is a fresh one, so that caches do not matter, and a read whose phase is not that of its
//! target is left out.

use super::arrival::{Access, Arrival};
use super::cache::Cache;
use super::layout::{Layout, Track};
use super::rotation::Rotation;
use super::session::Session;
use crate::numbers::{fraction, signed};

/// Distances up to this one are all measured; the ones above are this many times apart.
const SHORT: u64 = 8;
const RATIO: f64 = 1.12;
/// Up to this distance a change of head may take longer than the seek: pairs without one are looked for.
const HEADS_MATTER: u64 = 64;
/// How often an arrival is looked for again that too few reads agree on.
const ATTEMPTS: usize = 3;
/// A longer read before each target takes too much time.
const FILLING_MAX: u64 = 4096;
/// Between so many pairs the clock is set by an anchor.
const NUDGE_EVERY: usize = 12;
/// Tracks that heads are looked for in, where skews do not tell.
const TRACKS_FOR_HEADS: usize = 34;

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Seeks {
    /// On one track.
    pub none: Option<Access>,
    /// To another head of the cylinder.
    pub head: Option<Access>,
    /// By distance in cylinders.
    pub by_distance: Vec<(u64, Access)>,
}

/// Measures seeks over all distances.
pub(super) fn find(
    session: &mut Session,
    rotation: &Rotation,
    layout: &Layout,
    cache: Option<&Cache>,
) -> Result<Seeks, String> {
    session.say("seeks: none, and another head");
    let seeking = &mut Seeking { session, rotation, pairs: 0 };
    let filled = filling(cache).map(|sectors| same_track(seeking, layout, Some(sectors)));
    let none = least([filled.transpose()?.flatten(), same_track(seeking, layout, None)?]);
    let head = head_switch(seeking, layout)?;
    let mut by_distance = Vec::new();
    let distances = distances(layout.cylinders);
    for (n, distance) in distances.iter().enumerate() {
        if n % 16 == 0 {
            seeking.session.say(&format!("seeks: over {distance} cylinders and more"));
        }
        let mut found = vec![over(seeking, layout, *distance, false)?];
        if *distance <= HEADS_MATTER && layout.heads > 1 {
            found.push(over(seeking, layout, *distance, true)?);
        }
        by_distance.extend(least(found).map(|access| (*distance, access)));
    }
    Ok(Seeks { none, head, by_distance })
}

fn least(found: impl IntoIterator<Item = Option<Access>>) -> Option<Access> {
    found.into_iter().flatten().min_by(|a, b| a.made_us.total_cmp(&b.made_us))
}

/// The distances that are measured.
fn distances(cylinders: u64) -> Vec<u64> {
    let mut all = Vec::new();
    let mut next = 1;
    while next < cylinders {
        all.push(next);
        next = if next < SHORT { next + 1 } else { (next as f64 * RATIO).round() as u64 };
    }
    // The longest seek, from almost the first cylinder with a known track.
    if let Some(last) = all.last_mut() {
        *last = cylinders - 1 - cylinders / 200;
    }
    all.dedup();
    all
}

/// A read to start from, its last sector and how many it has, and the track of the target.
struct Pair {
    source: u64,
    sectors: u32,
    target: Track,
}

/// The measuring of seeks.
struct Seeking<'s, 'a> {
    session: &'s mut Session<'a>,
    rotation: &'s Rotation,
    pairs: usize,
}

impl Seeking<'_, '_> {
    /// Tries one pair.
    fn step(&mut self, arrival: &mut Arrival, pair: &Pair) -> Result<(), String> {
        self.pairs += 1;
        if self.pairs.is_multiple_of(NUDGE_EVERY) {
            self.rotation.nudge(self.session, pair.source)?;
        }
        let slot_us = pair.target.slot_us(self.session);
        let aim_us = arrival.aim_us(&mut self.session.rng, slot_us);
        if let Some(took_us) = try_pair(self.session, pair, aim_us)? {
            arrival.learn(took_us, slot_us);
        }
        Ok(())
    }

    /// Bisects with pairs that `choose` gives; `None` if too few of them say anything, or what they say does not agree.
    fn bisect(
        &mut self,
        mut choose: impl FnMut(&mut Session) -> Option<Pair>,
    ) -> Result<Option<Access>, String> {
        for _ in 0..ATTEMPTS {
            let mut arrival = Arrival::new(self.session.clock.period_us);
            let mut slot_us: f64 = 0.0;
            while !arrival.is_over() {
                let Some(pair) = choose(self.session) else { return Ok(None) };
                slot_us = slot_us.max(pair.target.slot_us(self.session));
                self.step(&mut arrival, &pair)?;
            }
            if let Some(access) = arrival.result(slot_us) {
                return Ok(Some(access));
            }
        }
        Ok(None)
    }
}

/// Reads the source, and then the first sector of the track that ends at least `aim_us` later. Returns what that took;
/// `None` if it was not that sector of the medium.
fn try_pair(session: &mut Session, pair: &Pair, aim_us: f64) -> Result<Option<f64>, String> {
    let source = session.read_many(pair.source + 1 - u64::from(pair.sectors), pair.sectors, 0.0)?;
    if pair.sectors == 1 && session.is_hit(&source) {
        return Ok(None);
    }
    let track = &pair.target;
    let slots = f64::from(track.slots);
    let turns = session.clock.turns(source.end_us) + aim_us / session.clock.period_us;
    let index = match (fraction(turns - track.phase) * slots).ceil() as u64 {
        index if index < track.sectors => index,
        _ => 0,
    };
    let phase = fraction(track.phase + index as f64 / slots);
    let target = session.read(track.first + index)?;
    let is_there = signed(session.phase(&target) - phase).abs() <= session.tolerance();
    Ok((is_there && !session.is_hit(&target)).then(|| target.service_us()))
}

/// Any of `tracks` for which `fits` says yes.
fn any(session: &mut Session, tracks: &[Track], fits: impl Fn(&Track) -> bool) -> Option<Track> {
    let first = session.rng.usize(..tracks.len().max(1));
    let around = tracks[first..].iter().chain(&tracks[..first]);
    around.copied().find(|track| fits(track))
}

/// A sector of the first half of a track: the drive reads on behind it, and shall not leave the track doing so.
fn early_sector(session: &mut Session, first: u64, slots: u32) -> u64 {
    first + session.rng.u64(..u64::from(slots) / 2)
}

fn over(
    seeking: &mut Seeking,
    layout: &Layout,
    distance: u64,
    mirrored: bool,
) -> Result<Option<Access>, String> {
    let last = layout.cylinders - 1;
    seeking.bisect(|session| {
        let up = |track: &Track| track.cylinder + distance <= last;
        let down = |track: &Track| track.cylinder >= distance;
        let long = distance > layout.cylinders / 3;
        let target = any(session, &layout.tracks, |track| up(track) || long && down(track))?;
        let cylinder = if up(&target) { target.cylinder + distance } else { target.cylinder - distance };
        let index = if mirrored { u64::from(layout.heads) - 1 - target.index } else { target.index };
        let first = layout.first(cylinder, index);
        let (zone, _, _) = layout.place(first);
        let source = early_sector(session, first, zone.slots).min(session.sectors() - 1);
        Some(Pair { source, sectors: 1, target })
    })
}

/// Within a track. Reading ahead must not have the target, nor move the arm: the source fills a segment of the cache,
/// or is the last sector of the track.
fn same_track(
    seeking: &mut Seeking,
    layout: &Layout,
    filling: Option<u32>,
) -> Result<Option<Access>, String> {
    let sectors = filling.unwrap_or(1);
    seeking.bisect(|session| {
        let target = any(session, &layout.tracks, |track| track.first >= u64::from(sectors))?;
        let part = if filling.is_some() { 0.3 * session.rng.f64() } else { 1.0 };
        let source = target.first + ((target.sectors - 1) as f64 * part) as u64;
        Some(Pair { source, sectors, target })
    })
}

/// Sectors of a read after which nothing is read ahead, if that is known and short.
fn filling(cache: Option<&Cache>) -> Option<u32> {
    let Some(cache) = cache else { return Some(1) };
    match cache.segment_sectors {
        _ if cache.prefetch.0 == 0 => Some(1),
        Some((sectors, _)) if sectors <= FILLING_MAX => Some(sectors as u32),
        Some(_) | None => None,
    }
}

/// From another head of the same cylinder.
fn head_switch(seeking: &mut Seeking, layout: &Layout) -> Result<Option<Access>, String> {
    if layout.heads < 2 {
        return Ok(None);
    }
    seeking.bisect(|session| {
        let last = u64::from(layout.heads) - 1;
        let target = any(session, &layout.tracks, |track| track.index < last)?;
        let first = target.first + target.sectors;
        // The last track may end early.
        let source = early_sector(session, first, target.slots).min(session.sectors() - 1);
        Some(Pair { source, sectors: 1, target })
    })
}

/// Heads by the times between tracks that follow each other: changes of head take one time, changes of cylinder
/// another. `tracks` are numbered from the begin of a zone. 1 if all take the same.
pub(super) fn heads(session: &mut Session, rotation: &Rotation, tracks: &[Track]) -> Result<u32, String> {
    session.say("heads: times from track to track");
    let pairs: Vec<&[Track]> = tracks.windows(2).take(TRACKS_FOR_HEADS).collect();
    let mut seeking = Seeking { session, rotation, pairs: 0 };
    let mut all: Vec<Arrival> = pairs.iter().map(|_| Arrival::new(seeking.session.clock.period_us)).collect();
    // All of them in turns, so that a cache has forgotten a pair before its next turn.
    while all.iter().any(|arrival| !arrival.is_over()) {
        for (pair, arrival) in pairs.iter().zip(&mut all).rev().filter(|(_, arrival)| !arrival.is_over()) {
            let source = early_sector(seeking.session, pair[1].first, pair[1].slots);
            seeking.step(arrival, &Pair { source, sectors: 1, target: pair[0] })?;
        }
    }
    let slot_us = tracks.first().map_or(1.0, |track| track.slot_us(session));
    let times: Vec<Option<f64>> =
        all.iter().map(|arrival| arrival.result(slot_us).map(|access| access.us())).collect();
    let known = || times.iter().flatten().copied();
    let (least, most) = (known().fold(f64::MAX, f64::min), known().fold(0.0, f64::max));
    if most - least < f64::max(40.0, 4.0 * slot_us) {
        return Ok(1);
    }
    let middle = (least + most) / 2.0;
    let known: Vec<(usize, bool)> =
        times.iter().enumerate().filter_map(|(n, time)| Some((n, (*time)? > middle))).collect();
    // The change of cylinder is the last of every so many.
    let fits = |heads: usize| {
        let (cylinder, head): (Vec<_>, Vec<_>) =
            known.iter().partition(|(n, _)| (n + 1).is_multiple_of(heads));
        let share = |some: &[(usize, bool)]| {
            some.iter().filter(|(_, long)| *long).count() as f64 / some.len().max(1) as f64
        };
        (share(&cylinder) - share(&head)).abs()
    };
    Ok((2..=times.len() / 2).find(|heads| fits(*heads) > 0.8).map_or(1, |heads| heads as u32))
}
