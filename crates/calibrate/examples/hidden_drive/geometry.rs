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
        let mut made = Geometry { tracks: Vec::new(), defects, zones: Vec::new(), sectors: 0, cylinders: 0 };
        let mut angle = rng.f64();
        for zone in &spec.zones {
            made.zones.push((made.sectors, made.cylinders));
            for _ in 0..zone.cylinders {
                for n in 0..spec.heads {
                    let last = n + 1 == spec.heads;
                    let odd = spec.order == Order::Serpentine && made.cylinders % 2 == 1;
                    let head = if odd { spec.heads - 1 - n } else { n };
                    let slots = zone.sectors;
                    let track = Track { first: made.sectors, slots, angle, cylinder: made.cylinders, head };
                    let lost = u32::from(made.defects.contains_key(&made.tracks.len()));
                    let kept_free = if last { spec.spares } else { 0 };
                    made.tracks.push(track);
                    made.sectors += u64::from(slots - lost - kept_free);
                    let skew = if last { zone.cylinder_skew } else { zone.track_skew };
                    angle = (angle + f64::from(skew) / f64::from(slots)).fract();
                }
                made.cylinders += 1;
            }
        }
        made
    }

    /// The track of a sector, and the angle at which the sector begins.
    pub fn place(&self, lbn: u64) -> (Track, f64) {
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
