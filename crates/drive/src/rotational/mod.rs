//! A hard disk: an arm, platters that turn, a cache that reads ahead, and a buffer that takes writes.
//!
//! ```text
//!  request ─▶ cache: a hit ────────────────────────────────────────────────▶ hit, bus
//!          ─▶ buffer: a write ─────────────────────────────────────────────▶ hit, bus      written later
//!          ─▶ overhead ─▶ seek, settle ─▶ rotation to the first sector ─▶ transfer ─▶ completion
//! ```
//!
//! The platters turn in absolute time: a sector is under its head at moments that are one rotation apart, so that the
//! end of a request is b + R·⌈(a − b)/R⌉, where a is the moment when the arm is there, and b one at which the sector
//! was (Ruemmler and Wilkes, "An introduction to disk drive modeling", 1994; Worthington, Ganger and others on
//! extracting it, 1995). The angle of a sector comes from a map over the LBNs, which a data sheet's geometry and a
//! calibration can both give: see [`Zone`] and [`Rotational::corrections`].
//!
//! Reads go on behind their end into the cache until it has the prefetch, or the arm is needed. Buffered writes, joined
//! where they touch, are written in the order of their LBNs whenever the arm has nothing else to do; a request waits
//! for the end of such a write, and a flush for all of them. The model deliberately knows no defects except by
//! corrections, no retries, no thermal recalibration, and no power management.

mod buffer;
mod geometry;
mod machine;
mod residuals;
mod seek;

pub(crate) use machine::Machine;
pub use residuals::Residuals;

use crate::Cache;
use crate::check::{Checked, MS_MAX, ascends, entries, ms, within, wrong};
use lamina_block::Bytes;
use serde::{Deserialize, Serialize};

/// Keys of a hard disk. Times are milliseconds, 0..=10000 unless another range is said.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rotational {
    /// R, one rotation, 0.1..=1000.
    pub rotation_ms: f64,
    /// Heads, 1..=256. A calibration that cannot tell heads apart says 1: its cylinders are then tracks.
    #[serde(default = "one")]
    pub heads: u32,
    /// How many cylinders a head stays before the next head goes back over them, 1..=100000. 1, the default, is the
    /// layout by cylinders; more is the serpentine one.
    #[serde(default = "one")]
    pub band_cylinders: u32,
    /// In which order the heads of a cylinder follow each other; with bands only the default.
    #[serde(default, skip_serializing_if = "HeadOrder::is_ascending")]
    pub head_order: HeadOrder,
    /// From the begin of a request to the begin of the seek.
    #[serde(default)]
    pub overhead_ms: f64,
    /// From the last sector to the end of the request.
    #[serde(default)]
    pub completion_ms: f64,
    /// What each sector of a read from the medium takes to the host, counted from when the first one passes: a bus
    /// slower than the medium ends the read, at the earliest after all of its sectors. 0, the default: the medium ends
    /// it.
    #[serde(default)]
    pub read_sector_ms: f64,
    /// Changing heads within a cylinder; the least time of a seek that ends on another head.
    #[serde(default)]
    pub head_switch_ms: f64,
    /// What positioning takes longer before a write.
    #[serde(default)]
    pub write_settle_ms: f64,
    /// The scale of the logistic distribution by which the arm arrives early or late. A sector that passes as the arm
    /// arrives is then missed in half of all cases, and a turn is lost. 0, the default: never.
    #[serde(default)]
    pub arrival_spread_ms: f64,
    /// What a hit takes, apart from the bus; flushes of nothing and discards as well.
    #[serde(default)]
    pub hit_ms: f64,
    /// Bytes a second over the bus, 1KiB..=1TiB; without it the bus takes no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_rate: Option<Bytes>,
    /// Among how many waiting requests the drive chooses, 1..=1024.
    #[serde(default = "one")]
    pub depth: u32,
    /// How the drive chooses.
    #[serde(default)]
    pub order: Order,
    /// With `shortest`: a request that waited longer is next, 0..=3600000.
    #[serde(default = "an_age")]
    pub age_limit_ms: f64,
    /// What the angle map is off: points `[LBN, turns]`, LBNs ascending, joined by lines and constant outside. Slips,
    /// spares and what a calibration sees of them. At most 100000 points; turns within ±1e9.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub corrections: Vec<(u64, f64)>,
    /// The time of a seek.
    pub seek: Seek,
    /// The on-board cache; without it nothing hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// A read of the medium takes the whole track of its last sector into the cache, the sectors in front of it as
    /// well, instead of the prefetch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_tracks: bool,
    /// The buffer of writes; without it a write ends on the medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_buffer: Option<WriteBuffer>,
    /// What real times are off.
    #[serde(default, skip_serializing_if = "Residuals::is_empty")]
    pub residuals: Residuals,
    /// The zones, from LBN 0, 1 to 4096.
    pub zones: Vec<Zone>,
}

/// How a hard disk chooses among the requests that wait in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// In the order of their arrival.
    #[default]
    Fifo,
    /// The one that is expected to end first.
    Shortest,
}

/// In which order LBNs take the heads of a cylinder.
///
/// Which head a track is under shows only where changing heads takes longer than the seek: elsewhere both orders have
/// the same times, and a calibration does not tell them apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadOrder {
    /// From the first to the last in every cylinder.
    #[default]
    Ascending,
    /// From the first to the last in even cylinders, and back in odd ones: the next cylinder begins under the same
    /// head.
    Serpentine,
}

impl HeadOrder {
    fn is_ascending(&self) -> bool {
        *self == HeadOrder::Ascending
    }
}

/// Tracks with the same number of sectors.
///
/// The first sector of the zone is at `angle`. Each further track of sectors is one more turn, and each change of head
/// or cylinder adds its skew. In a band of cylinders the LBNs fill the tracks of one head, then those of the next.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Zone {
    /// Its first LBN: 0 in the first zone, then ascending, inside the drive.
    pub first_lbn: u64,
    /// Sectors of a track, 1..=100000. A fraction is a mean: what a calibration found that cannot tell skew apart.
    pub sectors_per_track: f64,
    /// The angle of its first sector, in turns, -1e9..=1e9.
    #[serde(default)]
    pub angle: f64,
    /// By how much of a turn the next track begins later after a change of head, 0..=1. A skew that is too small for
    /// the change costs a further turn; 0 says that changes are free, or within a mean of sectors.
    #[serde(default)]
    pub track_skew: f64,
    /// The same after a change of cylinder.
    #[serde(default)]
    pub cylinder_skew: f64,
    /// Sectors at the end of each band (with `band-cylinders` 1: each cylinder) that hold no LBN, fewer than a track.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spare_sectors: u32,
    /// Its first cylinder, ascending, 0..=1e12; by default the one behind the zone before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_cylinder: Option<u64>,
}

/// The time of a seek by its distance in cylinders; no distance takes no time.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seek {
    /// α + β√d + γd.
    Curve(Curve),
    /// A monotone spline, over √d, through points `[cylinders, ms]`, ascending, 1 to 1000 of them. Shorter distances
    /// take what the first does; beyond the last the slope stays.
    Points(Vec<[f64; 2]>),
}

/// Keys of a curve of seeks, each -10000..=10000; the curve does not descend below 0 on the drive.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Curve {
    /// α: what every seek takes.
    pub alpha_ms: f64,
    /// β, with the root of the distance.
    pub beta_ms: f64,
    /// γ, with the distance.
    pub gamma_ms: f64,
}

/// Keys of a buffer of writes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct WriteBuffer {
    /// How much it holds, 512B..=1GiB. A longer write goes to the medium at once.
    pub size: Bytes,
    /// What a write takes that finds room, apart from the bus; by default what a hit takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_ms: Option<f64>,
}

fn one() -> u32 {
    1
}

fn an_age() -> f64 {
    1000.0
}

fn is_zero(sectors: &u32) -> bool {
    *sectors == 0
}

/// The most points of corrections.
const CORRECTIONS_MAX: usize = 100_000;

/// The most turns of an angle: beyond them fractions of a turn are lost.
const TURNS_MAX: f64 = 1e9;

impl Default for Rotational {
    /// A disk of one zone with nothing but its rotation of 7200 a minute: all that is needed to be valid.
    fn default() -> Rotational {
        Rotational {
            rotation_ms: 60_000.0 / 7200.0,
            heads: 1,
            band_cylinders: 1,
            head_order: HeadOrder::Ascending,
            overhead_ms: 0.0,
            completion_ms: 0.0,
            read_sector_ms: 0.0,
            head_switch_ms: 0.0,
            write_settle_ms: 0.0,
            arrival_spread_ms: 0.0,
            hit_ms: 0.0,
            bus_rate: None,
            depth: 1,
            order: Order::Fifo,
            age_limit_ms: an_age(),
            corrections: Vec::new(),
            seek: Seek::Curve(Curve { alpha_ms: 0.0, beta_ms: 0.0, gamma_ms: 0.0 }),
            cache: None,
            whole_tracks: false,
            write_buffer: None,
            residuals: Residuals::default(),
            zones: vec![Zone { sectors_per_track: 1000.0, ..Zone::default() }],
        }
    }
}

impl Rotational {
    /// Checks all keys of a drive of so many sectors.
    pub(crate) fn check(&self, sectors: u64) -> Checked {
        within("rotational.rotation-ms", self.rotation_ms, 0.1..=1000.0)?;
        within("rotational.heads", self.heads, 1..=256)?;
        within("rotational.band-cylinders", self.band_cylinders, 1..=100_000)?;
        if self.head_order == HeadOrder::Serpentine && self.band_cylinders > 1 {
            let message = format_args!("serpentine is for band-cylinders of 1, not {}", self.band_cylinders);
            return Err(wrong("rotational.head-order", message));
        }
        ms("rotational.overhead-ms", self.overhead_ms)?;
        ms("rotational.completion-ms", self.completion_ms)?;
        ms("rotational.read-sector-ms", self.read_sector_ms)?;
        ms("rotational.head-switch-ms", self.head_switch_ms)?;
        ms("rotational.write-settle-ms", self.write_settle_ms)?;
        ms("rotational.arrival-spread-ms", self.arrival_spread_ms)?;
        ms("rotational.hit-ms", self.hit_ms)?;
        within("rotational.depth", self.depth, 1..=1024)?;
        within("rotational.age-limit-ms", self.age_limit_ms, 0.0..=3_600_000.0)?;
        if let Some(rate) = self.bus_rate {
            within("rotational.bus-rate", rate, Bytes(1 << 10)..=Bytes(1 << 40))?;
        }
        self.check_corrections()?;
        self.cache.as_ref().map_or(Ok(()), |cache| cache.check("rotational.cache"))?;
        if let Some(buffer) = &self.write_buffer {
            within("rotational.write-buffer.size", buffer.size, Bytes(512)..=Bytes(1 << 30))?;
            ms("rotational.write-buffer.hit-ms", buffer.hit_ms.unwrap_or(0.0))?;
        }
        self.residuals.check()?;
        self.check_zones(sectors)?;
        self.seek.check(geometry::cylinders(self, sectors))
    }

    fn check_corrections(&self) -> Checked {
        entries("rotational.corrections", self.corrections.len(), 0..=CORRECTIONS_MAX)?;
        for (i, (lbn, turns)) in self.corrections.iter().enumerate() {
            within(format_args!("rotational.corrections[{i}][0]"), *lbn, 0..=1 << 51)?;
            within(format_args!("rotational.corrections[{i}][1]"), *turns, -TURNS_MAX..=TURNS_MAX)?;
        }
        for (i, pair) in self.corrections.windows(2).enumerate() {
            ascends(format_args!("rotational.corrections[{}][0]", i + 1), pair[0].0, pair[1].0)?;
        }
        Ok(())
    }

    fn check_zones(&self, sectors: u64) -> Checked {
        entries("rotational.zones", self.zones.len(), 1..=4096)?;
        for (i, zone) in self.zones.iter().enumerate() {
            let key = |name: &str| format!("rotational.zones[{i}].{name}");
            // The first zone begins the drive, and every other one is inside it.
            within(key("first-lbn"), zone.first_lbn, 0..=if i == 0 { 0 } else { sectors - 1 })?;
            within(key("sectors-per-track"), zone.sectors_per_track, 1.0..=100_000.0)?;
            within(key("angle"), zone.angle, -TURNS_MAX..=TURNS_MAX)?;
            within(key("track-skew"), zone.track_skew, 0.0..=1.0)?;
            within(key("cylinder-skew"), zone.cylinder_skew, 0.0..=1.0)?;
            if f64::from(zone.spare_sectors) >= zone.sectors_per_track {
                let message = format_args!("{} are not fewer than those of a track", zone.spare_sectors);
                return Err(wrong(key("spare-sectors"), message));
            }
            within(key("first-cylinder"), zone.first_cylinder.unwrap_or(0), 0..=1_000_000_000_000)?;
        }
        for (i, pair) in self.zones.windows(2).enumerate() {
            ascends(
                format_args!("rotational.zones[{}].first-lbn", i + 1),
                pair[0].first_lbn,
                pair[1].first_lbn,
            )?;
        }
        geometry::check_cylinders(self)
    }
}

impl Seek {
    /// Checks all keys of a drive of so many cylinders.
    fn check(&self, cylinders: f64) -> Checked {
        match self {
            Seek::Curve(curve) => {
                for (name, value) in
                    [("alpha-ms", curve.alpha_ms), ("beta-ms", curve.beta_ms), ("gamma-ms", curve.gamma_ms)]
                {
                    within(format_args!("rotational.seek.curve.{name}"), value, -MS_MAX..=MS_MAX)?;
                }
                // Between its ends the curve is lowest where its derivative is 0, if anywhere.
                let lowest = (-curve.beta_ms / (2.0 * curve.gamma_ms)).powi(2);
                for distance in [1.0, cylinders.max(1.0), if lowest.is_finite() { lowest } else { 1.0 }] {
                    let distance = distance.clamp(1.0, cylinders.max(1.0));
                    let key = format_args!("rotational.seek.curve at {distance} cylinders");
                    within(key, curve.at(distance), 0.0..=MS_MAX)?;
                }
                Ok(())
            }
            Seek::Points(points) => {
                let key = "rotational.seek.points";
                entries(key, points.len(), 1..=1000)?;
                let mut before = [0.0, 0.0];
                for (i, point) in points.iter().enumerate() {
                    within(format_args!("{key}[{i}][0]"), point[0], 1.0..=1e12)?;
                    within(format_args!("{key}[{i}][1]"), point[1], before[1]..=MS_MAX)?;
                    ascends(format_args!("{key}[{i}][0]"), before[0], point[0])?;
                    before = *point;
                }
                Ok(())
            }
        }
    }
}

impl Curve {
    /// Milliseconds of a distance in cylinders.
    pub(crate) fn at(&self, distance: f64) -> f64 {
        self.alpha_ms + self.beta_ms * distance.sqrt() + self.gamma_ms * distance
    }
}
