//! Where sectors are on the platters.

use crate::spec::{Order, Spec};
use std::collections::HashMap;

/// A track.
#[derive(Clone, Copy, Debug)]
pub struct Track {
    /// Address of its first sector.
    pub first: u64,
    /// Slots around the track.
    pub slots: u32,
    /// The angle at which its first slot begins, in turns.
    pub angle: f64,
    pub cylinder: u32,
    pub head: u32,
}

/// All tracks, in the order of addresses.
pub struct Geometry {
    pub tracks: Vec<Track>,
    /// The slot that no address has, by track.
    defects: HashMap<usize, u32>,
    /// Track and angle of sectors that are not where their addresses are.
    remapped: HashMap<u64, (usize, f64)>,
    /// First address and cylinder of every zone.
    pub zones: Vec<(u64, u32)>,
    pub sectors: u64,
    pub cylinders: u32,
}

impl Geometry {
    pub fn new(spec: &Spec) -> Geometry {
        let mut rng = fastrand::Rng::with_seed(spec.seed ^ 0xdefec7);
        let count: u32 = spec.zones.iter().map(|zone| zone.cylinders * spec.heads).sum();
        let defects: HashMap<usize, u32> =
            (0..spec.defects).map(|_| (rng.usize(..count as usize), rng.u32(1..100))).collect();
        let mut made = Geometry {
            tracks: Vec::new(),
            defects,
            remapped: HashMap::new(),
            zones: Vec::new(),
            sectors: 0,
            cylinders: 0,
        };
        let mut angle = rng.f64();
        for zone in &spec.zones {
            made.zones.push((made.sectors, made.cylinders));
            let tracks = spec.extras.band * spec.heads;
            for n in 0..zone.cylinders * spec.heads {
                let (cylinder, head) = made.arm(spec, n % tracks);
                let (next_cylinder, _) = made.arm(spec, (n + 1) % tracks);
                let last = (n + 1) % tracks == 0;
                let slots = zone.sectors;
                let lost = u32::from(made.defects.contains_key(&made.tracks.len()));
                let kept_free = if last { spec.spares } else { 0 };
                made.tracks.push(Track { first: made.sectors, slots, angle, cylinder, head });
                made.sectors += u64::from(slots - lost - kept_free);
                let skew =
                    if last || next_cylinder != cylinder { zone.cylinder_skew } else { zone.track_skew };
                angle = (angle + f64::from(skew) / f64::from(slots)).fract();
                made.cylinders += if last { spec.extras.band } else { 0 };
            }
        }
        made.remapped = (0..spec.extras.remapped)
            .map(|_| (rng.u64(..made.sectors), (rng.usize(..made.tracks.len()), rng.f64())))
            .collect();
        made
    }

    /// Cylinder and head of a track of the cylinders that are laid out.
    fn arm(&self, spec: &Spec, track: u32) -> (u32, u32) {
        let (head, step) = (track / spec.extras.band, track % spec.extras.band);
        let is_odd = spec.order == Order::Serpentine && self.cylinders % 2 == 1;
        let back = head % 2 == 1 && spec.order == Order::Bands;
        let step = if back { spec.extras.band - 1 - step } else { step };
        (self.cylinders + step, if is_odd { spec.heads - 1 - head } else { head })
    }

    /// The track of a sector, and the angle at which the sector begins.
    pub fn place(&self, lbn: u64) -> (Track, f64) {
        if let Some((track, angle)) = self.remapped.get(&lbn) {
            return (self.tracks[*track], *angle);
        }
        let at = self.tracks.partition_point(|track| track.first <= lbn) - 1;
        let track = self.tracks[at];
        let index = (lbn - track.first) as u32;
        let slot = match self.defects.get(&at) {
            Some(defect) if index >= *defect => index + 1,
            _ => index,
        };
        (track, (track.angle + f64::from(slot) / f64::from(track.slots)).fract())
    }
}
