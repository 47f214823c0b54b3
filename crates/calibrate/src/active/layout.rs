//! How tracks make up cylinders, and where a sector is.
//!
//! Going up from a zone's begin, every change of head has one skew and every change of cylinder another: the period of
//! that pattern is the number of heads. Sectors that are missing at the end of each cylinder are spares.

use super::bands::{Bands, Flat};
use super::session::Session;
use super::track::{Edge, End, Walk};
use super::zones::Map;
use crate::numbers::{fraction, median_angle, signed};

/// Heads, at most.
const HEADS_MAX: usize = 16;
/// The share of tracks that must follow a pattern: the others have slipped.
const FOLLOW_MIN: f64 = 0.85;

/// Tracks of a zone, in cylinders.
#[derive(Clone, Debug)]
pub(super) struct ZoneLayout {
    pub first: u64,
    pub slots: u32,
    /// Sectors of a band that are missing at its end.
    pub spares: u32,
    /// Turns by which a track begins later after a change of head, and after one of cylinder (spares not counted).
    pub track_skew: f64,
    pub cylinder_skew: f64,
    pub first_cylinder: u64,
    pub cylinders: u64,
    /// The phase of the end of the zone's first sector.
    pub phase: f64,
}

/// Where sectors are.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub heads: u32,
    /// Cylinders over which a head stays before the next goes back over them.
    pub band: u32,
    pub zones: Vec<ZoneLayout>,
    pub cylinders: u64,
    /// Tracks whose phases are known.
    pub tracks: Vec<Track>,
}

/// A track whose phases are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Track {
    pub first: u64,
    pub sectors: u64,
    pub slots: u32,
    /// The phase of the end of its first sector.
    pub phase: f64,
    pub cylinder: u64,
    /// The number of its head.
    pub index: u64,
}

impl Track {
    /// What a sector takes to pass, in microseconds.
    pub(super) fn slot_us(&self, session: &Session) -> f64 {
        session.clock.period_us / f64::from(self.slots)
    }
}

impl ZoneLayout {
    fn band_sectors(&self, heads: u32, band: u32) -> u64 {
        u64::from(self.slots) * u64::from(heads) * u64::from(band) - u64::from(self.spares)
    }
}

impl Layout {
    /// The zone of a sector, how many whole bands are before it there, and the number of its track in its band.
    fn track_in_band(&self, lbn: u64) -> (&ZoneLayout, u64, u64) {
        let at = self.zones.partition_point(|zone| zone.first <= lbn).saturating_sub(1);
        let zone = &self.zones[at];
        let offset = lbn.saturating_sub(zone.first);
        let size = zone.band_sectors(self.heads, self.band);
        (zone, offset / size, (offset % size) / u64::from(zone.slots))
    }

    /// The number of a track from the begin of its head's part of the band, or, the same, of a cylinder from the begin
    /// of the band: every other head goes backwards.
    fn turned(&self, head: u64, step: u64) -> u64 {
        if head % 2 == 1 { u64::from(self.band) - 1 - step } else { step }
    }

    /// The zone, its cylinder and the head of a sector.
    pub(super) fn place(&self, lbn: u64) -> (&ZoneLayout, u64, u64) {
        let (zone, bands, track) = self.track_in_band(lbn);
        let band = u64::from(self.band);
        let head = track / band;
        (zone, bands * band + self.turned(head, track % band), head)
    }

    /// The first sector of a track.
    pub(super) fn first(&self, cylinder: u64, head: u64) -> u64 {
        let at = self.zones.partition_point(|zone| zone.first_cylinder <= cylinder).saturating_sub(1);
        let zone = &self.zones[at];
        let band = u64::from(self.band);
        let within = (cylinder - zone.first_cylinder).min(zone.cylinders - 1);
        let track = head * band + self.turned(head, within % band);
        zone.first + within / band * zone.band_sectors(self.heads, self.band) + track * u64::from(zone.slots)
    }

    /// The phase of the end of a sector, as the zones have it.
    pub(super) fn phase(&self, lbn: u64) -> f64 {
        let (zone, bands, track) = self.track_in_band(lbn);
        let (heads, band) = (u64::from(self.heads), u64::from(self.band));
        let before = bands * zone.band_sectors(self.heads, self.band) + track * u64::from(zone.slots);
        let sector = lbn.saturating_sub(zone.first) - before;
        let heads_changed = bands * (heads - 1) + track / band;
        let tracks_changed = bands * heads * band + track;
        let turns = heads_changed as f64 * zone.track_skew
            + (tracks_changed - heads_changed) as f64 * zone.cylinder_skew;
        fraction(zone.phase + turns + sector as f64 / f64::from(zone.slots))
    }

    /// The zones if there is one head.
    pub(super) fn flat(&self) -> Vec<Flat> {
        let flat = |zone: &ZoneLayout| Flat {
            first: zone.first,
            slots: zone.slots,
            skew: zone.cylinder_skew,
            phase: zone.phase,
            tracks: zone.cylinders,
            spares: zone.spares,
        };
        self.zones.iter().map(flat).collect()
    }
}

/// A zone's tracks in ascending order: the number of each, from the zone's begin, and its edge. Tracks that begin
/// without a jump have none in the walk, and get one here.
fn ascending(walk: &Walk, first: u64) -> Vec<(usize, Edge)> {
    let mut found: Vec<(usize, Edge)> = Vec::new();
    for edge in walk.edges.iter().rev() {
        let (mut number, mut below) = found.last().map_or((0, first), |(number, edge)| (*number, edge.lbn));
        let tracks = (edge.lbn.saturating_sub(below) as f64 / f64::from(walk.slots)).round() as usize;
        for _ in 1..tracks {
            (number, below) = (number + 1, below + u64::from(walk.slots));
            let behind = (edge.lbn as f64 - below as f64) / f64::from(walk.slots);
            let phase = fraction(edge.phase - edge.jump - behind);
            found.push((number, Edge { lbn: below, phase, jump: 0.0 }));
        }
        number += usize::from(edge.lbn > below);
        found.push((number, *edge));
    }
    found
}

/// The number of heads that the skews of a zone show; `None` if all are the same.
fn heads_of(tracks: &[(usize, Edge)], tolerance: f64) -> Option<u32> {
    let jumps: Vec<(usize, f64)> =
        tracks.iter().filter(|(n, _)| *n > 0).map(|(n, edge)| (*n, edge.jump)).collect();
    (2..=HEADS_MAX.min(jumps.len() / 2)).find_map(|heads| {
        let (cylinder, track): (Vec<_>, Vec<_>) = jumps.iter().partition(|(n, _)| n % heads == 0);
        let (a, b) = (common(&track, tolerance)?, common(&cylinder, tolerance)?);
        (signed(a - b).abs() > 2.0 * tolerance).then_some(heads as u32)
    })
}

/// The jump that nearly all have.
fn common(jumps: &[(usize, f64)], tolerance: f64) -> Option<f64> {
    let values: Vec<f64> = jumps.iter().map(|(_, jump)| *jump).collect();
    let middle = median_angle(&values)?;
    let near = values.iter().filter(|jump| signed(**jump - middle).abs() <= tolerance).count();
    (near as f64 >= FOLLOW_MIN * values.len() as f64).then_some(middle)
}

/// The number that most have; the smallest of several.
fn most_frequent(values: impl Iterator<Item = u32>) -> Option<u32> {
    let mut counts = std::collections::BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_insert(0) += 1);
    counts
        .into_iter()
        .max_by_key(|(value, count)| (*count, std::cmp::Reverse(*value)))
        .map(|(value, _)| value)
}

/// Heads, by the skews of all zones; `None` if they do not tell.
pub(super) fn heads(session: &Session, map: &Map) -> Option<u32> {
    let tolerance = 2.0 * session.tolerance();
    let zones = map.zones.iter().filter_map(|zone| Some((zone.begin.as_ref()?, zone.first)));
    most_frequent(zones.filter_map(|(walk, first)| heads_of(&ascending(walk, first), tolerance)))
}

/// Lays the drive out in bands.
pub(super) fn lay_out_bands(session: &Session, map: &Map, bands: &Bands) -> Layout {
    let Bands { heads, cylinders: band, .. } = *bands;
    let mut layout = lay_out_zones(session, map, 1);
    (layout.heads, layout.band, layout.cylinders) = (heads, band, 0);
    for (zone, seen) in layout.zones.iter_mut().zip(&bands.zones) {
        let tracks = zone.cylinders as f64;
        let (skew, spares) = seen.unwrap_or((0.0, 0));
        zone.track_skew = whole_slots(skew, zone.slots, session.tolerance());
        zone.spares = spares;
        zone.first_cylinder = layout.cylinders;
        let count = tracks * f64::from(zone.slots) / zone.band_sectors(heads, band) as f64;
        zone.cylinders = (count.round().max(1.0) as u64) * u64::from(band);
        layout.cylinders += zone.cylinders;
    }
    finished(layout, session, map)
}

/// Lays the drive out with so many heads.
pub(super) fn lay_out(session: &Session, map: &Map, heads: u32) -> Layout {
    finished(lay_out_zones(session, map, heads), session, map)
}

fn finished(mut layout: Layout, session: &Session, map: &Map) -> Layout {
    add_tracks(&mut layout, map, session.sectors());
    set_phases(&mut layout);
    layout
}

fn lay_out_zones(session: &Session, map: &Map, heads: u32) -> Layout {
    let mut layout = Layout { heads, band: 1, zones: Vec::new(), cylinders: 0, tracks: Vec::new() };
    let ends = map.zones.iter().skip(1).map(|zone| zone.first).chain([session.sectors()]);
    for (zone, end) in map.zones.iter().zip(ends) {
        let tracks = zone.begin.as_ref().map_or(Vec::new(), |walk| ascending(walk, zone.first));
        let jump = |is_cylinder: bool| {
            let of = |n: &usize| *n > 0 && n.is_multiple_of(heads as usize) == is_cylinder;
            let jumps: Vec<f64> = tracks.iter().filter(|(n, _)| of(n)).map(|(_, edge)| edge.jump).collect();
            median_angle(&jumps)
        };
        let spares = spares(&tracks, zone.slots, heads);
        let (track_jump, cylinder_jump) = (jump(false), jump(true).unwrap_or(0.0));
        let mut made = ZoneLayout {
            first: zone.first,
            slots: zone.slots,
            spares,
            track_skew: whole_slots(track_jump.unwrap_or(0.0), zone.slots, session.tolerance()),
            cylinder_skew: whole_slots(
                fraction(cylinder_jump - f64::from(spares) / f64::from(zone.slots)),
                zone.slots,
                session.tolerance(),
            ),
            first_cylinder: layout.cylinders,
            cylinders: 1,
            phase: 0.0,
        };
        made.cylinders =
            ((end - zone.first) as f64 / made.band_sectors(heads, 1) as f64).round().max(1.0) as u64;
        layout.cylinders += made.cylinders;
        layout.zones.push(made);
    }
    layout
}

/// How many sectors a cylinder has fewer than its tracks have slots.
fn spares(tracks: &[(usize, Edge)], slots: u32, heads: u32) -> u32 {
    let ends = |pair: &&[(usize, Edge)]| pair[1].0.is_multiple_of(heads as usize);
    let missing = tracks.windows(2).filter(ends).map(|pair| {
        let all = (pair[1].0 - pair[0].0) as u64 * u64::from(slots);
        all.saturating_sub(pair[1].1.lbn - pair[0].1.lbn) as u32
    });
    most_frequent(missing).unwrap_or(0)
}

/// Skews are whole sectors where they look like it: what is exact stays exact over thousands of cylinders.
fn whole_slots(skew: f64, slots: u32, tolerance: f64) -> f64 {
    let exact = skew * f64::from(slots);
    let near = (exact - exact.round()).abs() <= f64::max(0.02, (tolerance * f64::from(slots)).min(0.3));
    if near { fraction(exact.round() / f64::from(slots)) } else { skew }
}

/// Collects the tracks whose both ends were seen, or, without skew, those whose line was.
fn add_tracks(layout: &mut Layout, map: &Map, end: u64) {
    let mut tracks = Vec::new();
    let begins = map.zones.iter().filter_map(|zone| zone.begin.as_ref());
    for walk in map.walks.iter().chain(begins) {
        for pair in walk.edges.windows(2) {
            let (first, end) = (pair[1].lbn, pair[0].lbn);
            let slots = u64::from(layout.place(first).0.slots);
            // Without skew several tracks follow each other up to the next edge.
            for at in (first..end).step_by(slots as usize) {
                tracks.push(track(layout, at, (end - at).min(slots), pair[1].phase));
            }
        }
        if walk.end == End::NoSkew && walk.edges.is_empty() {
            let (zone, within, index) = layout.place(walk.line.lbn);
            let first = layout.first(zone.first_cylinder + within, index);
            tracks.push(track(layout, first, u64::from(zone.slots), walk.line.at(first)));
        }
    }
    tracks.retain(|track| {
        track.first + track.sectors <= end
            && track.sectors <= u64::from(track.slots)
            && track.index < u64::from(layout.heads)
    });
    tracks.sort_by_key(|track| track.first);
    tracks.dedup_by_key(|track| track.first);
    layout.tracks = tracks;
}

fn track(layout: &Layout, first: u64, sectors: u64, phase: f64) -> Track {
    // Slips move the begins of tracks, but hardly by half a track.
    let slots = layout.place(first).0.slots;
    let (zone, within, index) = layout.place(first + u64::from(slots) / 2);
    Track { first, sectors, slots: zone.slots, phase, cylinder: zone.first_cylinder + within, index }
}

/// Gives each zone the phase that most of its known tracks agree on.
fn set_phases(layout: &mut Layout) {
    for at in 0..layout.zones.len() {
        let (first, end) =
            (layout.zones[at].first, layout.zones.get(at + 1).map_or(u64::MAX, |zone| zone.first));
        let inside = layout.tracks.iter().filter(|track| (first..end).contains(&track.first));
        let off: Vec<f64> = inside.map(|track| fraction(track.phase - layout.phase(track.first))).collect();
        let agree = |phase: &f64| off.iter().filter(|other| signed(**other - phase).abs() < 2e-3).count();
        let best = off.iter().copied().max_by_key(agree).unwrap_or(0.0);
        layout.zones[at].phase = best;
    }
}
