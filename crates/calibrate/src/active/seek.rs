//! Seeks: the least time to a sector that the arm just does not miss.
//!
//! From a sector of one cylinder to a sector of another whose angle is known: if the sector passes after the arm has
//! come, the read ends with it, else a turn later. Bisecting over the target's angle gives the moment of arrival to
//! one sector (the minimum time between request completions of Worthington, Ganger, Patt, Wilkes: "On-line extraction
//! of SCSI disk drive parameters", 1995). Every pair is a fresh one, so that caches do not matter, and a read whose
//! phase is not that of its target is left out.

use super::layout::{Layout, Track};
use super::rotation::Rotation;
use super::session::Session;
use crate::numbers::{fraction, signed};

/// Distances up to this one are all measured; the ones above are this many times apart.
const SHORT: u64 = 8;
const RATIO: f64 = 1.12;
/// Up to this distance a change of head may take longer than the seek: pairs without one are looked for.
const HEADS_MATTER: u64 = 64;
/// Reads of targets for one distance, at most.
const STEPS: usize = 40;
/// An interval this narrow is narrow enough, in microseconds.
const NARROW_US: f64 = 8.0;
/// Between so many pairs the clock is set by an anchor.
const NUDGE_EVERY: usize = 12;
/// Tracks that heads are looked for in, where skews do not tell.
const TRACKS_FOR_HEADS: usize = 34;

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
}

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
pub(super) fn find(session: &mut Session, rotation: &Rotation, layout: &Layout) -> Result<Seeks, String> {
    session.say("seeks: none, and another head");
    let seeking = &mut Seeking { session, rotation, pairs: 0 };
    let none = least([same_track(seeking, layout, 1.0)?, same_track(seeking, layout, 0.4)?]);
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

/// A read to start from, and the track of the target.
struct Pair {
    source: u64,
    target: Track,
}

/// A target that says nothing, because the cache had it, or because the phase is not the one expected.
#[derive(Clone, Copy, PartialEq)]
enum Silent {
    /// Nothing is concluded.
    Ignored,
    /// Sectors that the drive reads ahead pass sooner than one that it could read for the next request.
    TooEarly,
}

/// Where bisecting for an arm's arrival stands.
struct Bisection {
    silent: Silent,
    /// Between these, once a pair said something.
    found: Option<Access>,
    /// How often the earlier of them was confirmed.
    confirmed: u32,
    /// Pairs that may still be tried.
    left: usize,
}

/// The measuring of seeks.
struct Seeking<'s, 'a> {
    session: &'s mut Session<'a>,
    rotation: &'s Rotation,
    pairs: usize,
}

impl Bisection {
    fn new(silent: Silent) -> Bisection {
        Bisection { silent, found: None, confirmed: 0, left: STEPS }
    }

    /// The interval, if it is narrow, and its upper end was confirmed.
    fn result(&self) -> Option<Access> {
        self.found.filter(|_| self.confirmed >= 2)
    }

    fn is_over(&self) -> bool {
        self.confirmed >= 2 || self.left == 0
    }

    fn is_narrow(found: &Access, slot_us: f64) -> bool {
        found.made_us - found.missed_us <= f64::max(NARROW_US, 1.5 * slot_us)
    }

    /// When the next target is to pass, after the source.
    fn aim(&self, session: &mut Session, slot_us: f64) -> f64 {
        match &self.found {
            None => session.rng.f64() * session.clock.period_us,
            Some(found) if Bisection::is_narrow(found, slot_us) => found.made_us - 0.1 * slot_us,
            Some(found) => (found.missed_us + found.made_us) / 2.0,
        }
    }

    /// A target that passed `expected_us` after the source took `took_us`, a turn longer if it was missed.
    fn learn(&mut self, expected_us: f64, took_us: f64, period_us: f64, slot_us: f64) {
        let is_made = took_us < expected_us + period_us / 2.0;
        let Some(found) = &mut self.found else {
            self.found = Some(Access { missed_us: took_us - period_us, made_us: took_us });
            return;
        };
        if is_made && took_us < found.made_us {
            self.confirmed = if took_us < found.made_us - 0.5 { 0 } else { self.confirmed };
            found.made_us = took_us;
            if took_us <= found.missed_us {
                found.missed_us = took_us - period_us;
            }
        } else if !is_made && expected_us < found.made_us {
            found.missed_us = found.missed_us.max(expected_us);
        } else if !is_made && expected_us < found.made_us + 0.5 * slot_us {
            // A sector that was in time before is missed: one of both was a mistake.
            *found = Access { missed_us: expected_us, made_us: expected_us + period_us };
            self.confirmed = 0;
        }
        if is_made && expected_us < found.made_us + slot_us && Bisection::is_narrow(found, slot_us) {
            self.confirmed += 1;
        }
    }

    fn silence(&mut self, aim_us: f64, slot_us: f64) {
        if let Some(found) = self.found.as_mut().filter(|_| self.silent == Silent::TooEarly) {
            found.missed_us = found.missed_us.max(aim_us).min(found.made_us - 0.5 * slot_us);
        }
    }
}

impl Seeking<'_, '_> {
    /// Tries one pair.
    fn step(&mut self, bisection: &mut Bisection, pair: &Pair) -> Result<(), String> {
        bisection.left -= 1;
        self.pairs += 1;
        if self.pairs.is_multiple_of(NUDGE_EVERY) {
            self.rotation.nudge(self.session, pair.source)?;
        }
        let period_us = self.session.clock.period_us;
        let slot_us = period_us / f64::from(pair.target.slots);
        let aim_us = bisection.aim(self.session, slot_us);
        match try_pair(self.session, pair, aim_us)? {
            Some((expected_us, took_us)) => bisection.learn(expected_us, took_us, period_us, slot_us),
            None => bisection.silence(aim_us, slot_us),
        }
        Ok(())
    }

    /// Bisects with pairs that `choose` gives; `None` if too few of them say anything, or what they say does not agree.
    fn bisect(
        &mut self,
        silent: Silent,
        mut choose: impl FnMut(&mut Session) -> Option<Pair>,
    ) -> Result<Option<Access>, String> {
        let mut bisection = Bisection::new(silent);
        while !bisection.is_over() {
            let Some(pair) = choose(self.session) else { return Ok(None) };
            self.step(&mut bisection, &pair)?;
        }
        Ok(bisection.result())
    }
}

/// Reads the source, and then the first sector of the track that ends at least `aim_us` later. Returns what that takes
/// if it is not missed, and what it took.
fn try_pair(session: &mut Session, pair: &Pair, aim_us: f64) -> Result<Option<(f64, f64)>, String> {
    let source = session.read(pair.source)?;
    if session.is_hit(&source) {
        return Ok(None);
    }
    let track = &pair.target;
    let period_us = session.clock.period_us;
    let slots = f64::from(track.slots);
    let turns = session.clock.turns(source.end_us);
    let begin = fraction(turns + aim_us / period_us - track.phase) * slots;
    let index = match begin.ceil() as u64 {
        index if index < track.sectors => index,
        _ => 0,
    };
    let phase = fraction(track.phase + index as f64 / slots);
    let after = fraction(phase - turns - aim_us / period_us + 1e-9) - 1e-9;
    let expected_us = aim_us + after * period_us;
    let target = session.read(track.first + index)?;
    let is_there = signed(session.phase(&target) - phase).abs() <= session.tolerance();
    Ok((is_there && !session.is_hit(&target)).then(|| (expected_us, target.service_us())))
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
    seeking.bisect(Silent::Ignored, |session| {
        let up = |track: &Track| track.cylinder + distance <= last;
        let down = |track: &Track| track.cylinder >= distance;
        let long = distance > layout.cylinders / 3;
        let target = any(session, &layout.tracks, |track| up(track) || long && down(track))?;
        let cylinder = if up(&target) { target.cylinder + distance } else { target.cylinder - distance };
        let index = if mirrored { u64::from(layout.heads) - 1 - target.index } else { target.index };
        let first = layout.first(cylinder, index);
        let (zone, _, _) = layout.place(first);
        let source = early_sector(session, first, zone.slots).min(session.sectors() - 1);
        Some(Pair { source, target })
    })
}

/// Within a track, from a sector `part` of the track's length behind its begin.
fn same_track(seeking: &mut Seeking, layout: &Layout, part: f64) -> Result<Option<Access>, String> {
    seeking.bisect(Silent::TooEarly, |session| {
        let target = any(session, &layout.tracks, |track| track.sectors == u64::from(track.slots))?;
        let source = target.first + ((target.sectors - 1) as f64 * part) as u64;
        Some(Pair { source, target })
    })
}

/// From another head of the same cylinder.
fn head_switch(seeking: &mut Seeking, layout: &Layout) -> Result<Option<Access>, String> {
    if layout.heads < 2 {
        return Ok(None);
    }
    seeking.bisect(Silent::Ignored, |session| {
        let last = u64::from(layout.heads) - 1;
        let target = any(session, &layout.tracks, |track| track.index < last)?;
        let first = target.first + target.sectors;
        // The last track may end early.
        let source = early_sector(session, first, target.slots).min(session.sectors() - 1);
        Some(Pair { source, target })
    })
}

/// Heads by the times between tracks that follow each other: changes of head take one time, changes of cylinder
/// another. `tracks` are numbered from the begin of a zone. 1 if all take the same.
pub(super) fn heads(session: &mut Session, rotation: &Rotation, tracks: &[Track]) -> Result<u32, String> {
    session.say("heads: times from track to track");
    let pairs: Vec<&[Track]> = tracks.windows(2).take(TRACKS_FOR_HEADS).collect();
    let mut seeking = Seeking { session, rotation, pairs: 0 };
    let mut all: Vec<Bisection> = pairs.iter().map(|_| Bisection::new(Silent::Ignored)).collect();
    // All of them in turns, so that a cache has forgotten a pair before its next turn.
    while all.iter().any(|bisection| !bisection.is_over()) {
        for (pair, bisection) in
            pairs.iter().zip(&mut all).rev().filter(|(_, bisection)| !bisection.is_over())
        {
            let source = early_sector(seeking.session, pair[1].first, pair[1].slots);
            seeking.step(bisection, &Pair { source, target: pair[0] })?;
        }
    }
    let times: Vec<Option<f64>> =
        all.iter().map(|bisection| bisection.result().map(|access| access.us())).collect();
    let known = || times.iter().flatten().copied();
    let (least, most) = (known().fold(f64::MAX, f64::min), known().fold(0.0, f64::max));
    let slots = tracks.first().map_or(1.0, |track| f64::from(track.slots));
    if most - least < f64::max(40.0, 4.0 * session.clock.period_us / slots) {
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
