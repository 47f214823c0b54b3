//! Calibration by questions that are chosen as answers come in.
//!
//! ```text
//!   rotation ─▶ cache ─▶ tracks, zones, skews ─▶ seeks
//!   anchors     hits     phases of sectors       the least time to a sector that just is not missed
//! ```
//!
//! Everything after the rotation rests on one fact: a read that the cache does not answer ends when its last sector
//! has passed under the head, so that the moment of the answer, modulo a turn, is the sector's angle. Only the seeks
//! need to know how long anything took.
//!
//! Questions are reads, and nothing is written, unless [`Options::writes`] asks for it. Answers are believed only if
//! they are confirmed, and what was not confirmed says so. The calibration deliberately asks one question at a time.

mod arrival;
mod ask;
mod bands;
mod blocks;
mod cache;
mod ends;
mod folds;
mod heads;
mod layout;
pub mod linear;
mod model;
mod rotation;
mod seek;
mod session;
mod track;
mod writes;
mod zones;

pub use cache::Cache;
pub use writes::{Buffer, Writes};

use crate::{Probe, Sample, numbers};
use arrival::Access;
use blocks::Blocks;
use lamina_drive::HeadOrder;
use layout::{Layout, lay_out};
use rotation::Rotation;
use seek::Seeks;
use session::Session;

/// A drive with fewer sectors has no room for far reads.
const SECTORS_MIN: u64 = 1 << 16;

/// Pages that are read of a drive in which nothing turns, at most. Ten of them are above the 99.9th percentile, the
/// farthest one that anything tells; and as nothing depends on the distance there, the mean is known to a hundredth of
/// what single reads differ by.
const PAGES_STILL: usize = 10_000;

/// How to calibrate.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Decides where questions are asked.
    pub seed: u64,
    /// Seconds of the drive's time, thinking included, after which nothing is asked that could be left out.
    pub budget_s: f64,
    /// Random pages that are read at the end, at most: the paper's 100,000. Of a drive in which nothing turns 10,000
    /// are enough, and no more are read unless only the line is looked for.
    pub pages: usize,
    /// Whether the parts of a hard disk are looked for, or only the line of random pages.
    pub parts: bool,
    /// Whether a hard disk is also written to, at random places: its data are lost.
    pub writes: bool,
}

/// All that questions gave.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Whether something turns in the drive.
    pub turns: bool,
    /// The hard disk; `None` if nothing turns in it, or its parts were not found or not looked for.
    pub disk: Option<Found>,
    /// The random pages, in the order in which they were read.
    pub readings: Vec<Sample>,
    /// Requests that were made.
    pub requests: u64,
    /// How many of them were writes.
    pub writes: u64,
    /// The drive's time that they took, thinking included, in microseconds.
    pub time_us: f64,
}

/// A number that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The number.
    pub value: f64,
    /// What it may be off by.
    pub uncertainty: f64,
}

/// A zone that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundZone {
    /// Its first sector.
    pub first_lbn: u64,
    /// Sectors around a track.
    pub sectors_per_track: u32,
    /// Sectors at the end of each band (of one cylinder, or more) that have no address.
    pub spare_sectors: u32,
    /// Turns by which a track begins later after a change of head.
    pub track_skew: f64,
    /// Turns by which a track begins later after a change of cylinder.
    pub cylinder_skew: f64,
    /// Its first cylinder.
    pub first_cylinder: u64,
    /// The angle at which its first sector ends, in turns.
    pub angle: f64,
    /// Whether its first track was seen with those around it.
    pub is_confirmed: bool,
}

/// A hard disk, as far as questions found it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Microseconds of a turn.
    pub turn_us: Measured,
    /// The cache, if there is one.
    pub cache: Option<Cache>,
    /// Heads; 1 if nothing tells heads from cylinders.
    pub heads: u32,
    /// In which order heads follow each other in a cylinder; `None` if no time depends on that.
    pub head_order: Option<HeadOrder>,
    /// Cylinders over which a head stays before the next goes back over them; 1 in layouts by cylinders.
    pub band_cylinders: u32,
    /// Cylinders.
    pub cylinders: u64,
    /// The zones, ascending.
    pub zones: Vec<FoundZone>,
    /// The least time of a read of a sector on the track of the arm, in microseconds.
    pub access_us: Option<Measured>,
    /// What a change of head adds to that.
    pub head_switch_us: Option<Measured>,
    /// What seeks add to that, by distance in cylinders.
    pub seeks_us: Vec<(u64, Measured)>,
    /// What writes told, if there were any.
    pub writes: Option<Writes>,
}

/// Asks `probe` all that makes a model of a drive. `progress` is given a line now and then.
pub fn find(
    probe: &mut dyn Probe,
    options: &Options,
    progress: &mut dyn FnMut(&str),
) -> Result<Answers, String> {
    if probe.sectors() < SECTORS_MIN {
        return Err(format!(
            "{} sectors are too few to tell anything: {SECTORS_MIN} at least",
            probe.sectors()
        ));
    }
    let blocks = Blocks::new(probe)?;
    let mut session = Session::new(blocks, progress, options.seed, options.budget_s * 1e6);
    let mut rotation = rotation::find(&mut session)?;
    let turns = rotation.is_some();
    let disk = match rotation
        .as_mut()
        .filter(|_| options.parts)
        .map(|of| hard_disk(&mut session, of, options.writes))
    {
        Some(Ok(disk)) => Some(disk.in_sectors(session.probe.size)),
        // The line of random pages needs no parts.
        Some(Err(e)) => {
            session.say(&format!("the disk's parts are not found: {e}"));
            None
        }
        None => None,
    };
    let is_still = options.parts && !turns;
    let pages = if is_still { options.pages.min(PAGES_STILL) } else { options.pages };
    let readings = linear::read(&mut session, pages)?;
    session.say("done");
    let Session { requests, writes, now_us: time_us, .. } = session;
    Ok(Answers { turns, disk, readings, requests, writes, time_us })
}

/// Measures a hard disk whose rotation is known.
fn hard_disk(session: &mut Session, rotation: &mut Rotation, writes: bool) -> Result<Found, String> {
    blocks::look(session, rotation)?;
    let cache = cache::find(session)?;
    rotation.check(session, 0.0)?;
    let ahead = cache.as_ref().map_or(0, |cache| cache.prefetch.0);
    let map = zones::find(session, rotation, ahead)?;
    rotation.check(session, 0.0)?;
    let layout = laid_out(session, rotation, &map)?;
    let seeks = seek::find(session, rotation, &layout, cache.as_ref())?;
    rotation.check(session, 0.0)?;
    let writes = if writes { Some(writes::find(session, rotation, &layout)?) } else { None };
    Ok(Found { writes, ..found(session, rotation, cache, &layout, &map, &seeks) })
}

/// Where sectors are, by skews, by bands, or by times.
fn laid_out(session: &mut Session, rotation: &mut Rotation, map: &zones::Map) -> Result<Layout, String> {
    if let Some(heads) = layout::heads(session, map) {
        return Ok(lay_out(session, map, heads));
    }
    let flat = lay_out(session, map, 1);
    let mut seen = bands::find(session, rotation, map, &flat.flat())?;
    if seen.is_none() && map.skewless {
        seen = folds::find(session, rotation, &flat.flat())?;
    }
    if let Some(seen) = seen {
        let bands = bands::details(session, rotation, &flat.flat(), seen)?;
        return Ok(layout::lay_out_bands(session, map, &bands));
    }
    let mut tracks = first_tracks(&flat, map.skewless);
    if map.skewless {
        set_phases(session, rotation, &mut tracks)?;
    }
    let heads = heads::find(session, rotation, &tracks)?;
    Ok(lay_out(session, map, heads))
}

/// Asks for the phases of tracks: slips before them may have moved them against those of the zone.
fn set_phases(
    session: &mut Session,
    rotation: &mut Rotation,
    tracks: &mut [layout::Track],
) -> Result<(), String> {
    let phases = ask::run(session, rotation, |ask| {
        let phase = |track: &layout::Track| {
            let (ask, middle) = (ask.clone(), track.first + track.sectors / 2);
            Box::pin(async move { ask.phase(middle).await }) as _
        };
        tracks.iter().map(phase).collect()
    })?;
    for (track, phase) in tracks.iter_mut().zip(phases) {
        track.phase = numbers::fraction(phase - (track.sectors / 2) as f64 / f64::from(track.slots));
    }
    Ok(())
}

/// Consecutive tracks from the begin of a zone, of a drive laid out as if it had one head.
fn first_tracks(flat: &Layout, skewless: bool) -> Vec<layout::Track> {
    const TRACKS: u64 = 64;
    let Some(zone) = flat.zones.iter().max_by_key(|zone| zone.cylinders) else { return Vec::new() };
    let sectors = u64::from(zone.slots);
    if skewless {
        let track = |n: u64| layout::Track {
            first: zone.first + n * sectors,
            sectors,
            slots: zone.slots,
            phase: zone.phase,
            cylinder: zone.first_cylinder + n,
            index: 0,
        };
        return (0..TRACKS.min(zone.cylinders)).map(track).collect();
    }
    let inside = flat.tracks.iter().filter(|track| track.first >= zone.first);
    let known: Vec<layout::Track> = inside.copied().take(TRACKS as usize).collect();
    let ends = known.windows(2).position(|pair| pair[1].first != pair[0].first + pair[0].sectors);
    known[..ends.map_or(known.len(), |at| at + 1)].to_vec()
}

fn found(
    session: &Session,
    rotation: &Rotation,
    cache: Option<Cache>,
    layout: &Layout,
    map: &zones::Map,
    seeks: &Seeks,
) -> Found {
    let slot_us = session.clock.period_us / f64::from(layout.zones[0].slots);
    let measured = |access: &Access| Measured {
        value: access.us(),
        uncertainty: (access.made_us - access.missed_us) / 2.0,
    };
    let none = seeks.none.as_ref().map(measured);
    let base = none.map_or(slot_us, |none| none.value);
    let beyond = |access: &Access| {
        let all = measured(access);
        Measured { value: (all.value - base).max(0.0), ..all }
    };
    let zone = |(laid, seen): (&layout::ZoneLayout, &zones::Zone)| FoundZone {
        first_lbn: laid.first,
        sectors_per_track: laid.slots,
        spare_sectors: laid.spares,
        track_skew: laid.track_skew,
        cylinder_skew: laid.cylinder_skew,
        first_cylinder: laid.first_cylinder,
        angle: laid.phase,
        is_confirmed: seen.begin.is_some(),
    };
    Found {
        turn_us: Measured { value: session.clock.period_us, uncertainty: rotation.uncertainty_us },
        cache,
        heads: layout.heads,
        head_order: seeks.order,
        band_cylinders: layout.band,
        cylinders: layout.cylinders,
        zones: layout.zones.iter().zip(&map.zones).map(zone).collect(),
        access_us: none,
        head_switch_us: seeks.head.as_ref().map(beyond),
        seeks_us: seeks.by_distance.iter().map(|(d, access)| (*d, beyond(access))).collect(),
        writes: None,
    }
}
