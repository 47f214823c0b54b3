//! Where a sector is: its cylinder, its head, and its angle.
//!
//! Within a zone everything follows from the number of the physical track, counted along the layout: LBNs fill a band
//! of cylinders head by head, every second head backwards, then the next band. Turns are counted from the angle of the
//! zone's first sector as if all of the zone were read, so that a transfer takes the difference of two counts.

use super::seek::SeekTimes;
use super::{HeadOrder, Rotational, Zone};
use crate::check::{Checked, ascends};
use crate::machine::MS;
use crate::phase::fraction;

/// The angle map, ready for use.
#[derive(Clone)]
pub(crate) struct Geometry {
    /// First LBNs of the zones, apart for the search.
    starts: Vec<u64>,
    runs: Vec<Run>,
    corrections: Vec<(u64, f64)>,
    /// The last LBN of the drive.
    last: u64,
    /// Heads, and cylinders of a band.
    heads: f64,
    band: f64,
    /// Whether odd cylinders begin with the last head.
    is_serpentine: bool,
}

/// A zone, ready for use.
#[derive(Clone)]
struct Run {
    first: u64,
    /// How many LBNs it has.
    length: f64,
    /// Sectors of a track, and turns of a sector.
    sectors: f64,
    per_sector: f64,
    angle: f64,
    first_cylinder: f64,
    /// Sectors of a band, without spares.
    band_sectors: f64,
    /// Turns that a change of head or of cylinder adds: the skew, and a whole turn if the skew is too small for it.
    head_turns: f64,
    cylinder_turns: f64,
    /// The least turns between the end of the zone before and the begin of this one.
    switch_turns: f64,
}

/// A place of the medium.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    pub cylinder: f64,
    pub head: f64,
    /// The angle, counted on from the angle of the zone's first sector, without correction.
    turns: f64,
    /// LBNs from the begin of the track to here, and from here to its end.
    before: f64,
    left: f64,
    run: usize,
}

/// Tracks of a band.
fn band_tracks(model: &Rotational) -> f64 {
    f64::from(model.heads) * f64::from(model.band_cylinders)
}

/// Sectors of a band of a zone.
fn band_sectors(model: &Rotational, zone: &Zone) -> f64 {
    band_tracks(model) * zone.sectors_per_track - f64::from(zone.spare_sectors)
}

/// The first cylinder of each zone, and the one behind the last zone, which ends at `sectors`.
fn first_cylinders(model: &Rotational, sectors: u64) -> Vec<f64> {
    let (mut next, mut firsts) = (0.0, Vec::with_capacity(model.zones.len() + 1));
    let ends = model.zones.iter().skip(1).map(|zone| zone.first_lbn).chain([sectors]);
    for (zone, end) in model.zones.iter().zip(ends) {
        let first = zone.first_cylinder.map_or(next, |cylinder| cylinder as f64);
        let bands = (end.saturating_sub(zone.first_lbn) as f64 / band_sectors(model, zone)).ceil();
        next = first + bands * f64::from(model.band_cylinders);
        firsts.push(first);
    }
    firsts.push(next);
    firsts
}

/// How many cylinders a valid model of so many sectors has.
pub(crate) fn cylinders(model: &Rotational, sectors: u64) -> f64 {
    first_cylinders(model, sectors).last().copied().unwrap_or(0.0)
}

/// Zones that say their first cylinders ascend.
pub(crate) fn check_cylinders(model: &Rotational) -> Checked {
    let firsts = first_cylinders(model, u64::MAX);
    for (i, pair) in firsts[..model.zones.len()].windows(2).enumerate() {
        ascends(format_args!("rotational.zones[{}].first-cylinder", i + 1), pair[0], pair[1])?;
    }
    Ok(())
}

/// Turns that a change adds whose skew is `skew` and that takes `switch` turns.
fn change(skew: f64, switch: f64) -> f64 {
    // The margin is what adding up in decimal fractions loses.
    let late = if skew == 0.0 { 0.0 } else { (switch - skew - 1e-9).ceil().max(0.0) };
    skew + late
}

impl Geometry {
    pub(crate) fn new(model: &Rotational, seek: &SeekTimes, sectors: u64) -> Geometry {
        let rotation = model.rotation_ms * MS;
        let head_switch = model.head_switch_ms * MS / rotation;
        let next_cylinder = seek.at(1.0) / rotation;
        let is_serpentine = model.head_order == HeadOrder::Serpentine;
        let stays = model.heads == 1 || is_serpentine;
        let both = if stays { next_cylinder } else { next_cylinder.max(head_switch) };
        let ends = model.zones.iter().skip(1).map(|zone| zone.first_lbn).chain([u64::MAX]);
        let run = |((zone, end), first_cylinder): ((&Zone, u64), f64)| Run {
            first: zone.first_lbn,
            length: (end - zone.first_lbn) as f64,
            sectors: zone.sectors_per_track,
            per_sector: 1.0 / zone.sectors_per_track,
            angle: zone.angle,
            first_cylinder,
            band_sectors: band_sectors(model, zone),
            head_turns: change(zone.track_skew, head_switch),
            cylinder_turns: change(zone.cylinder_skew, both),
            switch_turns: if zone.cylinder_skew == 0.0 { 0.0 } else { both },
        };
        Geometry {
            starts: model.zones.iter().map(|zone| zone.first_lbn).collect(),
            runs: model.zones.iter().zip(ends).zip(first_cylinders(model, sectors)).map(run).collect(),
            corrections: model.corrections.clone(),
            last: sectors - 1,
            heads: model.heads.into(),
            band: model.band_cylinders.into(),
            is_serpentine,
        }
    }

    /// Where `lbn` is; what is behind the drive is taken for its last sector.
    pub(crate) fn place(&self, lbn: u64) -> Place {
        let lbn = lbn.min(self.last);
        let index = self.starts.partition_point(|start| *start <= lbn).saturating_sub(1);
        let run = &self.runs[index];
        let offset = (lbn - run.first) as f64;
        if self.heads == 1.0 && self.band == 1.0 {
            return run.simple(index, offset);
        }
        let band = whole(offset / run.band_sectors);
        let within = offset - band * run.band_sectors;
        let track = whole(within / run.sectors).min(self.heads * self.band - 1.0);
        let head = whole(track / self.band);
        let step = track - head * self.band;
        let backwards = head as u32 % 2 == 1;
        let cylinder = band * self.band + if backwards { self.band - 1.0 - step } else { step };
        let heads_changed = band * (self.heads - 1.0) + head;
        let cylinders_changed =
            band * (self.heads * (self.band - 1.0) + 1.0) + head * (self.band - 1.0) + step;
        let changes = heads_changed * run.head_turns + cylinders_changed * run.cylinder_turns;
        let sector = within - track * run.sectors;
        let tracks = band * self.heads * self.band + track;
        let cylinder = run.first_cylinder + cylinder;
        Place {
            cylinder,
            head: if self.is_serpentine && cylinder as u64 % 2 == 1 { self.heads - 1.0 - head } else { head },
            turns: run.angle + tracks + changes + sector * run.per_sector,
            before: sector,
            left: (run.sectors - sector).min(run.band_sectors - within).min(run.length - offset),
            run: index,
        }
    }

    /// The angle of the sector at `place`, in turns.
    pub(crate) fn angle(&self, place: &Place, lbn: u64) -> f64 {
        place.turns + self.correction(lbn)
    }

    /// The first LBN of the track that `lbn` is on, and the first one behind it.
    pub(crate) fn track(&self, lbn: u64) -> (u64, u64) {
        let lbn = lbn.min(self.last);
        let place = self.place(lbn);
        let end = (lbn + place.left.ceil() as u64).min(self.last + 1);
        (lbn - (place.before as u64).min(lbn), end)
    }

    fn correction(&self, lbn: u64) -> f64 {
        let above = self.corrections.partition_point(|point| point.0 <= lbn);
        match (
            above.checked_sub(1).and_then(|below| self.corrections.get(below)),
            self.corrections.get(above),
        ) {
            (Some((from, low)), Some((to, high))) => {
                low + (high - low) * ((lbn - from) as f64 / (to - from) as f64)
            }
            (Some((_, end)), None) | (None, Some((_, end))) => *end,
            (None, None) => 0.0,
        }
    }

    /// The turns from the begin of the sector `lbn`, at `from`, to the end of the last of `sectors`, and where that is.
    pub(crate) fn transfer(&self, from: &Place, lbn: u64, sectors: u64) -> (f64, Place) {
        let run = &self.runs[from.run];
        if sectors as f64 <= from.left {
            return (sectors as f64 * run.per_sector, *from);
        }
        let last = self.place(lbn.saturating_add(sectors - 1));
        let mut turns = last.turns + self.runs[last.run].per_sector - from.turns;
        // The count of turns begins anew at each zone.
        for next in from.run + 1..=last.run {
            let (before, run) = (&self.runs[next - 1], &self.runs[next]);
            let end = self.place(run.first - 1).turns + before.per_sector;
            let gap = fraction(run.angle - end);
            let late = (run.switch_turns - gap - 1e-9).ceil().max(0.0);
            turns += end - run.angle + gap + late;
        }
        (turns, last)
    }
}

impl Run {
    /// The place in a layout of one head, where every track is a cylinder of its own.
    fn simple(&self, run: usize, offset: f64) -> Place {
        let track = whole(offset / self.band_sectors);
        let sector = offset - track * self.band_sectors;
        Place {
            cylinder: self.first_cylinder + track,
            head: 0.0,
            turns: self.angle + track + track * self.cylinder_turns + sector * self.per_sector,
            before: sector,
            left: (self.band_sectors - sector).min(self.length - offset),
            run,
        }
    }
}

/// The whole part of a number that is not negative: much faster than `floor` without SSE 4.1.
fn whole(number: f64) -> f64 {
    number as u64 as f64
}

#[cfg(test)]
mod tests {
    use super::super::{Curve, Seek};
    use super::*;

    /// A disk of 10 ms a rotation with 2 zones, seeks of 1 ms and changes of heads of 0.5 ms.
    fn geometry(heads: u32, band_cylinders: u32, zones: Vec<Zone>) -> Geometry {
        ordered(heads, band_cylinders, HeadOrder::Ascending, zones)
    }

    fn ordered(heads: u32, band_cylinders: u32, head_order: HeadOrder, zones: Vec<Zone>) -> Geometry {
        let model = Rotational {
            head_order,
            rotation_ms: 10.0,
            heads,
            band_cylinders,
            head_switch_ms: 0.5,
            seek: Seek::Curve(Curve { alpha_ms: 1.0, beta_ms: 0.0, gamma_ms: 0.0 }),
            zones,
            ..Rotational::default()
        };
        Geometry::new(&model, &SeekTimes::new(&model.seek), 1_000_000)
    }

    fn zone(first_lbn: u64, sectors_per_track: f64) -> Zone {
        Zone { first_lbn, sectors_per_track, track_skew: 0.1, cylinder_skew: 0.2, ..Zone::default() }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn sectors_by_cylinders() {
        // Two heads, 100 sectors: cylinder, head, angle.
        let map = geometry(2, 1, vec![zone(0, 100.0), Zone { angle: 0.25, ..zone(1000, 50.0) }]);
        for (lbn, cylinder, head, turns) in [
            (0, 0.0, 0.0, 0.0),
            (99, 0.0, 0.0, 0.99),
            (100, 0.0, 1.0, 1.1),
            (200, 1.0, 0.0, 2.3),
            (450, 2.0, 0.0, 4.6 + 0.5),
            (1000, 5.0, 0.0, 0.25),
            (1175, 6.0, 1.0, 0.25 + 3.4 + 0.5),
        ] {
            let place = map.place(lbn);
            assert!(
                place.cylinder == cylinder && place.head == head && close(map.angle(&place, lbn), turns),
                "{lbn}: {place:?}"
            );
        }
    }

    #[test]
    fn sectors_by_bands_go_back_and_forth() {
        // Two heads, bands of 3 cylinders: 6 tracks of 100 sectors, 2 of them spare.
        let map = geometry(2, 3, vec![Zone { spare_sectors: 2, ..zone(0, 100.0) }]);
        for (lbn, cylinder, head, turns) in [
            (0, 0.0, 0.0, 0.0),
            (250, 2.0, 0.0, 2.4 + 0.5),
            (300, 2.0, 1.0, 3.5),
            (500, 0.0, 1.0, 5.9),
            (597, 0.0, 1.0, 5.9 + 0.97),
            (598, 3.0, 0.0, 6.0 + 5.0 * 0.2 + 0.1),
            (700, 4.0, 0.0, 8.3 + 0.02),
        ] {
            let place = map.place(lbn);
            assert!(
                place.cylinder == cylinder && place.head == head && close(map.angle(&place, lbn), turns),
                "{lbn}: {place:?}"
            );
        }
    }

    #[test]
    fn tracks_end_with_their_sectors_their_band_their_zone_and_the_drive() {
        let map = geometry(2, 3, vec![Zone { spare_sectors: 2, ..zone(0, 100.0) }, zone(1000, 50.5)]);
        for (lbn, track) in [
            (0, (0, 100)),
            (99, (0, 100)),
            (597, (500, 598)),
            (898, (898, 998)),
            (999, (998, 1000)),
            (1050, (1000, 1051)),
            (1051, (1051, 1101)),
        ] {
            assert_eq!(map.track(lbn), track, "{lbn}");
        }
        let end = map.track(999_999);
        assert!(end.0 < 999_999 && end.1 == 1_000_000, "{end:?}");
    }

    #[test]
    fn transfers_pay_for_skew_and_for_skew_that_is_too_small() {
        let turns = |map: &Geometry, lbn, sectors| map.transfer(&map.place(lbn), lbn, sectors).0;
        let map = geometry(2, 1, vec![zone(0, 100.0), Zone { angle: 0.0, ..zone(1000, 50.0) }]);
        for (lbn, sectors, expected) in [
            (0, 1, 0.01),
            (0, 100, 1.0),
            (50, 51, 0.5 + 0.1 + 0.01),
            (0, 400, 4.0 + 0.1 + 0.2 + 0.1),
            // Zone 0 ends at the angle 0.3 of its tenth track (5 heads, 4 cylinders): the next turn begins zone 1.
            (990, 20, 0.1 + 0.7 + 0.2),
        ] {
            assert!(
                close(turns(&map, lbn, sectors), expected),
                "{lbn}+{sectors}: {}",
                turns(&map, lbn, sectors)
            );
        }
        // A change of head takes 0.05 turns: with a skew of 0.04 it is missed.
        let late = geometry(2, 1, vec![Zone { track_skew: 0.04, ..zone(0, 100.0) }]);
        assert!(close(turns(&late, 0, 200), 2.0 + 1.04));
        // Skews of 0 are part of a mean number of sectors.
        let mean = geometry(1, 1, vec![Zone { sectors_per_track: 87.3, ..Zone::default() }]);
        assert!(close(turns(&mean, 10, 873), 10.0));
    }

    #[test]
    fn corrections_are_joined_by_lines() {
        let model =
            Rotational { corrections: vec![(100, 0.1), (200, 0.3), (201, 0.0)], ..Rotational::default() };
        let map = Geometry::new(&model, &SeekTimes::new(&model.seek), 1000);
        for (lbn, turns) in [(0, 0.1), (100, 0.1), (150, 0.2), (200, 0.3), (201, 0.0), (999, 0.0)] {
            assert!(close(map.correction(lbn), turns), "{lbn}");
        }
    }

    /// A sector as one walks to it: cylinder, head, angle.
    type Walked = (f64, f64, f64);

    /// All sectors of a disk, walked through track by track.
    fn walk(model: &Rotational, sectors: u64) -> Vec<Walked> {
        let (mut walked, mut cylinder) = (Vec::new(), 0);
        for (i, zone) in model.zones.iter().enumerate() {
            let end = model.zones.get(i + 1).map_or(sectors, |zone| zone.first_lbn) as usize;
            let mut angle = zone.angle;
            while walked.len() < end {
                for nth in 0..model.heads {
                    let is_back = model.head_order == HeadOrder::Serpentine && cylinder % 2 == 1;
                    let head = if is_back { model.heads - 1 - nth } else { nth };
                    for step in 0..model.band_cylinders {
                        let back = model.band_cylinders - 1 - step;
                        let at = cylinder + if nth % 2 == 0 { step } else { back };
                        let is_last = nth == model.heads - 1 && step == model.band_cylinders - 1;
                        let spare = if is_last { zone.spare_sectors } else { 0 };
                        for sector in 0..zone.sectors_per_track as u32 - spare {
                            let turns = angle + f64::from(sector) / zone.sectors_per_track;
                            walked.push((f64::from(at), f64::from(head), turns));
                        }
                        let is_head = step == model.band_cylinders - 1 && nth != model.heads - 1;
                        angle += 1.0 + if is_head { zone.track_skew } else { zone.cylinder_skew };
                    }
                }
                cylinder += model.band_cylinders;
            }
            walked.truncate(end);
        }
        walked
    }

    #[test]
    fn agrees_with_a_walk_through_random_disks() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let sectors = 3000;
            let mut zone = |first_lbn| Zone {
                first_lbn,
                sectors_per_track: f64::from(random.u32(5..30)),
                angle: random.f64(),
                track_skew: 0.06 + random.f64() / 4.0,
                cylinder_skew: 0.11 + random.f64() / 4.0,
                spare_sectors: random.u32(0..3),
                first_cylinder: None,
            };
            let zones = vec![zone(0), zone(1003), zone(2222)];
            let (heads, band_cylinders) = (random.u32(1..5), random.u32(1..4));
            let is_serpentine = band_cylinders == 1 && random.bool();
            let head_order = if is_serpentine { HeadOrder::Serpentine } else { HeadOrder::Ascending };
            let model = Rotational {
                heads,
                band_cylinders,
                head_order,
                zones: zones.clone(),
                ..Rotational::default()
            };
            let (map, walked) = (ordered(heads, band_cylinders, head_order, zones), walk(&model, sectors));
            for _ in 0..100 {
                let lbn = random.u64(0..sectors - 200);
                let (place, expected) = (map.place(lbn), walked[lbn as usize]);
                assert_eq!((place.cylinder, place.head), (expected.0, expected.1), "{lbn} {model:?}");
                assert!(close(map.angle(&place, lbn), expected.2), "{lbn} {model:?}");
                // A transfer waits for each next sector: not at all, or for what the change of track leaves.
                let count = random.u64(1..200);
                let per_sector = |lbn: u64| 1.0 / model.zones[map.place(lbn).run].sectors_per_track;
                let mut turns = per_sector(lbn);
                for next in lbn + 1..lbn + count {
                    let end = walked[next as usize - 1].2 + per_sector(next - 1);
                    let changes_zone = model.zones.iter().any(|zone| zone.first_lbn == next);
                    let gap = fraction(walked[next as usize].2 - end + 1e-9) - 1e-9;
                    turns += gap + per_sector(next) + if changes_zone && gap < 0.1 { 1.0 } else { 0.0 };
                }
                let found = map.transfer(&place, lbn, count).0;
                assert!((found - turns).abs() < 1e-6, "{lbn}+{count}: {found} {turns} {model:?}");
            }
        }
    }
}
