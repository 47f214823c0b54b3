//! Seeks: the least time to a sector that the arm just does not miss.
//!
//! From a sector of one cylinder to a sector of another whose angle is known: [`Arrival`] bisects for the moment when
//! the arm comes. Every pair is a fresh one, so that caches do not matter, and a read whose phase is not that of its
//! target is left out.

use super::arrival::{Access, Arrival};
use super::cache::Cache;
use super::heads::{SIGNIFICANT, Sample};
use super::layout::{Layout, Track};
use super::rotation::Rotation;
use super::session::Session;
use crate::numbers::{fraction, signed};
use lamina_drive::HeadOrder;

/// Distances up to this one are all measured; the ones above are this many times apart.
const SHORT: u64 = 8;
const RATIO: f64 = 1.12;
/// Up to this distance a change of head may take longer than the seek: pairs without one are looked for.
const HEADS_MATTER: u64 = 64;
/// How often an arrival is looked for again that too few reads agree on.
const ATTEMPTS: usize = 3;
/// How often each of two times is measured that tell the order of heads.
const ORDER_TIMES: usize = 5;
/// A longer read before each target takes too much time.
const FILLING_MAX: u64 = 4096;
/// Between so many pairs the clock is set by an anchor.
const NUDGE_EVERY: usize = 12;

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Seeks {
    /// On one track.
    pub none: Option<Access>,
    /// To another head of the cylinder.
    pub head: Option<Access>,
    /// In which order heads follow each other in cylinders; `None` if times do not tell.
    pub order: Option<HeadOrder>,
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
    let seeking = &mut Seeking::new(session, rotation);
    let filled = filling(cache).map(|sectors| same_track(seeking, layout, Some(sectors)));
    let none = least([filled.transpose()?.flatten(), same_track(seeking, layout, None)?]);
    let head = head_switch(seeking, layout)?;
    let order = order(seeking, layout)?;
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
    Ok(Seeks { none, head, order, by_distance })
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
pub(super) struct Pair {
    pub source: u64,
    pub sectors: u32,
    pub target: Track,
}

/// The measuring of seeks.
pub(super) struct Seeking<'s, 'a> {
    pub session: &'s mut Session<'a>,
    rotation: &'s Rotation,
    pairs: usize,
    /// If targets are written, not read: by how much of a turn writes end later than reads.
    pub writes: Option<f64>,
}

impl<'s, 'a> Seeking<'s, 'a> {
    pub(super) fn new(session: &'s mut Session<'a>, rotation: &'s Rotation) -> Seeking<'s, 'a> {
        Seeking { session, rotation, pairs: 0, writes: None }
    }

    /// Tries one pair.
    pub(super) fn step(&mut self, arrival: &mut Arrival, pair: &Pair) -> Result<(), String> {
        self.pairs += 1;
        if self.pairs.is_multiple_of(NUDGE_EVERY) {
            self.rotation.nudge(self.session, pair.source)?;
        }
        let slot_us = pair.target.slot_us(self.session);
        let aim_us = arrival.aim_us(&mut self.session.rng, slot_us);
        if let Some(took_us) = try_pair(self.session, pair, aim_us, self.writes)? {
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

/// Reads the source, and reads or writes then the first sector of the track that ends at least `aim_us` later. Returns
/// what that took; `None` if it did not end with that sector, and so was a hit.
fn try_pair(
    session: &mut Session,
    pair: &Pair,
    aim_us: f64,
    writes: Option<f64>,
) -> Result<Option<f64>, String> {
    let source = session.read_many(pair.source + 1 - u64::from(pair.sectors), pair.sectors, 0.0)?;
    if pair.sectors == 1 && session.is_hit(&source) {
        return Ok(None);
    }
    let track = &pair.target;
    let slots = f64::from(track.slots);
    // The request comes anywhere in a sector's time: angles that are whole sectors apart would say no more than that.
    let think_us = (session.rng.f64() * track.slot_us(session)).round();
    let turns = session.clock.turns(source.end_us + think_us) + aim_us / session.clock.period_us;
    let index = match (fraction(turns - track.phase) * slots).ceil() as u64 {
        index if index < track.sectors => index,
        _ => 0,
    };
    let phase = fraction(track.phase + index as f64 / slots);
    let lbn = track.first + index;
    let target = if writes.is_some() {
        session.write_many(lbn, 1, think_us)?
    } else {
        session.read_many(lbn, 1, think_us)?
    };
    let is_there =
        signed(session.phase(&target) - phase - writes.unwrap_or(0.0)).abs() <= session.tolerance();
    Ok(is_there.then(|| target.service_us()))
}

/// Any of `tracks` for which `fits` says yes.
fn any(session: &mut Session, tracks: &[Track], fits: impl Fn(&Track) -> bool) -> Option<Track> {
    let first = session.rng.usize(..tracks.len().max(1));
    let around = tracks[first..].iter().chain(&tracks[..first]);
    around.copied().find(|track| fits(track))
}

/// A sector of the first half of a track: the drive reads on behind it, and shall not leave the track doing so.
pub(super) fn early_sector(session: &mut Session, first: u64, slots: u32) -> u64 {
    first + session.rng.u64(..u64::from(slots) / 2)
}

/// The time of a seek over `distance` cylinders.
pub(super) fn over(
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
        Some(from(session, layout, cylinder, mirrored, target))
    })
}

/// A read to start from of the track in another cylinder that has the target's place there, or its place from the end.
fn from(session: &mut Session, layout: &Layout, cylinder: u64, mirrored: bool, target: Track) -> Pair {
    let index = if mirrored { u64::from(layout.heads) - 1 - target.index } else { target.index };
    let first = layout.first(cylinder, index);
    let (zone, _, _) = layout.place(first);
    let source = early_sector(session, first, zone.slots).min(session.sectors() - 1);
    Pair { source, sectors: 1, target }
}

/// In which order heads follow each other, if changing them takes longer than the seek to the next cylinder: tracks at
/// the same place of both cylinders are then nearer, or those at mirrored places.
fn order(seeking: &mut Seeking, layout: &Layout) -> Result<Option<HeadOrder>, String> {
    if layout.heads < 2 || layout.band > 1 {
        return Ok(None);
    }
    let (last, heads) = (layout.cylinders - 1, u64::from(layout.heads));
    let mut times = |mirrored: bool| -> Result<Sample, String> {
        let mut known = Vec::new();
        for _ in 0..ORDER_TIMES {
            let found = seeking.bisect(|session| {
                // The middle one of an odd number of heads is its own mirror.
                let tells = |track: &Track| track.cylinder < last && 2 * track.index + 1 != heads;
                let target = any(session, &layout.tracks, tells)?;
                Some(from(session, layout, target.cylinder + 1, mirrored, target))
            })?;
            known.extend(found.map(|access| access.us()));
        }
        Ok(Sample::of(&known))
    };
    let (same, mirrored) = (times(false)?, times(true)?);
    let nearer = if same.mean < mirrored.mean { HeadOrder::Ascending } else { HeadOrder::Serpentine };
    Ok((same.differs(&mirrored) > SIGNIFICANT).then_some(nearer))
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
        let first = layout.first(target.cylinder, target.index + 1);
        // The last track may end early.
        let source = early_sector(session, first, target.slots).min(session.sectors() - 1);
        Some(Pair { source, sectors: 1, target })
    })
}
