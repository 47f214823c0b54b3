//! What was found, as a model of the crate `drive`.

use super::{Buffer, Found, FoundZone, linear};
use crate::numbers::bus_rate;
use lamina_block::Bytes;
use lamina_drive::{Cache, Linear, Mechanism, Model, Rotational, SECTOR, Seek, WriteBuffer, Zone};

/// What the model says of a hit where none was seen, in milliseconds: the paper's.
const HIT_MS: f64 = 0.25;

impl Found {
    /// The model of this disk of `sectors`.
    pub fn model(&self, name: &str, sectors: u64) -> Model {
        let sectors_mean = self.zones.iter().map(|zone| f64::from(zone.sectors_per_track)).sum::<f64>()
            / self.zones.len().max(1) as f64;
        let sector_us = self.turn_us.value / sectors_mean.max(1.0);
        let access_us = self.access_us.map_or(sector_us, |access| access.value);
        let cache = self.cache.as_ref().map(|cache| Cache {
            segments: cache.segments.0 as u32,
            // No size that was tried filled a segment: what was read ahead and more goes into it.
            segment_sectors: cache.segment_sectors.map_or(1 << 14, |(sectors, _)| sectors as u32),
            prefetch_sectors: cache.prefetch.0 as u32,
        });
        let rotational = Rotational {
            rotation_ms: self.turn_us.value / 1e3,
            heads: self.heads,
            band_cylinders: self.band_cylinders,
            head_order: self.head_order.unwrap_or_default(),
            overhead_ms: (access_us - sector_us).max(0.0) / 1e3,
            head_switch_ms: self.head_switch_us.map_or(0.0, |switch| switch.value) / 1e3,
            hit_ms: self
                .cache
                .as_ref()
                .map_or(HIT_MS, |cache| (cache.hit_us - cache.sector_us).max(0.0) / 1e3),
            bus_rate: self.cache.as_ref().and_then(|cache| bus_rate(cache.sector_us)),
            seek: self.seek(),
            cache,
            zones: self.zones.iter().map(FoundZone::model).collect(),
            write_settle_ms: self.write_settle_us() / 1e3,
            write_buffer: self.writes.as_ref().and_then(|writes| writes.buffer).map(write_buffer),
            ..Rotational::default()
        };
        let mechanism = Mechanism::Rotational(Box::new(rotational));
        Model { name: name.to_owned(), size: Bytes(sectors * SECTOR), mechanism }
    }

    fn write_settle_us(&self) -> f64 {
        self.writes.as_ref().and_then(|writes| writes.settle_us).map_or(0.0, |settle| settle.value)
    }

    /// The measured seeks, none shorter than one over a smaller distance.
    fn seek(&self) -> Seek {
        let mut points: Vec<[f64; 2]> = Vec::new();
        for (distance, seek) in &self.seeks_us {
            let before = points.last().map_or(0.0, |point| point[1]);
            points.push([*distance as f64, f64::max(seek.value / 1e3, before)]);
        }
        if points.is_empty() {
            points.push([1.0, 0.0]);
        }
        Seek::Points(points)
    }
}

fn write_buffer(found: Buffer) -> WriteBuffer {
    WriteBuffer {
        size: Bytes(found.sectors.0 * SECTOR),
        hit_ms: Some((found.write_us - found.sector_us).max(0.0) / 1e3),
    }
}

impl FoundZone {
    fn model(&self) -> Zone {
        Zone {
            first_lbn: self.first_lbn,
            sectors_per_track: self.sectors_per_track.into(),
            // Models count from the begin of a sector.
            angle: self.angle - 1.0 / f64::from(self.sectors_per_track),
            track_skew: self.track_skew,
            cylinder_skew: self.cylinder_skew,
            spare_sectors: self.spare_sectors,
            first_cylinder: Some(self.first_cylinder),
        }
    }
}

impl linear::Line {
    /// The paper's model of this line. A line that was fitted to noise may begin below nothing, or fall, which no drive
    /// does.
    pub fn model(&self, name: &str, sectors: u64, hit_us: Option<f64>) -> Model {
        let linear = Linear {
            constant_ms: self.constant_us.max(0.0) / 1e3,
            slope_ms: self.slope_us.max(0.0) / 1e3,
            hit_ms: hit_us.map_or(HIT_MS, |us| us / 1e3),
            ..Linear::default()
        };
        Model { name: name.to_owned(), size: Bytes(sectors * SECTOR), mechanism: Mechanism::Linear(linear) }
    }
}
