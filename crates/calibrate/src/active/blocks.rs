//! Drives whose medium has blocks of several sectors: the rest of the calibration sees blocks as sectors.
//!
//! Some answer only for whole blocks (4Kn). Others answer for each sector, of which all of a block end with the block
//! (512e): sectors 0 and 7 of a block are at one angle then, and sector 8 a block later. Blocks are taken to begin with
//! sector 0 of the drive, and tracks to be whole blocks, as they are where blocks are what the medium has.

use super::rotation::Rotation;
use super::session::Session;
use super::{Buffer, Cache, Found, Measured, Writes};
use crate::Probe;
use crate::numbers::signed;
use lamina_drive::{Op, Request};

/// Sectors of the blocks that are tried: disks have sectors of 512 bytes or of 4 KiB.
const SIZES: [u32; 2] = [1, 8];

/// A drive whose sectors are blocks.
pub(super) struct Blocks<'a> {
    probe: &'a mut dyn Probe,
    /// Sectors of a block.
    pub size: u32,
}

impl<'a> Blocks<'a> {
    /// The drive behind `probe`, with the shortest blocks that the drive answers for.
    pub(super) fn new(probe: &'a mut dyn Probe) -> Result<Blocks<'a>, String> {
        let mut refused = String::new();
        for size in SIZES {
            // Block 1: block 0 is aligned to everything.
            let request = Request { op: Op::Read, lbn: size.into(), sectors: size };
            match probe.ask(request, 0.0) {
                Ok(_) => return Ok(Blocks { probe, size }),
                Err(e) => refused = e,
            }
        }
        Err(refused)
    }
}

/// Looks for blocks behind a drive that answers for sectors: from here on, the session sees these.
pub(super) fn look(session: &mut Session, rotation: &mut Rotation) -> Result<(), String> {
    let size = SIZES[SIZES.len() - 1];
    if session.probe.size == size {
        return Ok(());
    }
    session.say("sectors: whether the medium has longer ones");
    let (step, last) = (u64::from(size), session.sectors() - 2 * u64::from(size));
    let firsts: Vec<u64> = rotation.anchors.iter().map(|a| a.lbn.min(last) / step * step).collect();
    let mut phases = |offset: u64| -> Result<Vec<f64>, String> {
        // Downwards, so that nothing is read ahead; all places before one again, so that no cache has it.
        let ends = firsts.iter().rev().map(|first| {
            let answer = session.read(first + offset)?;
            Ok(session.phase(&answer))
        });
        ends.collect()
    };
    let (next, end, begin) = (phases(step)?, phases(step - 1)?, phases(0)?);
    let is_block = |n: &usize| {
        let (within, behind) = (signed(end[*n] - begin[*n]), signed(next[*n] - end[*n]));
        within.abs() < behind / 2.0
    };
    if 2 * (0..firsts.len()).filter(is_block).count() > firsts.len() {
        session.probe.size = size;
        rotation.anchors.iter_mut().for_each(|anchor| anchor.lbn /= step);
    }
    Ok(())
}

impl Probe for Blocks<'_> {
    fn ask(&mut self, request: Request, think_us: f64) -> Result<f64, String> {
        let (lbn, sectors) = (request.lbn * u64::from(self.size), request.sectors * self.size);
        self.probe.ask(Request { lbn, sectors, ..request }, think_us)
    }

    fn sectors(&self) -> u64 {
        self.probe.sectors() / u64::from(self.size)
    }
}

impl Found {
    /// What was found in blocks of `size` sectors, in sectors.
    pub(super) fn in_sectors(mut self, size: u32) -> Found {
        if size == 1 {
            return self;
        }
        let blocks = f64::from(self.zones.first().map_or(1, |zone| zone.sectors_per_track));
        // A read of one sector passes by the others of its block no more.
        let others_us = self.turn_us.value / blocks * f64::from(size - 1) / f64::from(size);
        let shorter = |all: Measured| Measured { value: (all.value - others_us).max(0.0), ..all };
        self.access_us = self.access_us.map(shorter);
        for zone in &mut self.zones {
            let others = f64::from(size - 1) / f64::from(size) / f64::from(zone.sectors_per_track);
            zone.angle -= others;
            zone.first_lbn *= u64::from(size);
            zone.sectors_per_track *= size;
            zone.spare_sectors *= size;
        }
        self.cache = self.cache.map(|cache| cache.in_sectors(size));
        let buffer = |writes: Writes| Writes { buffer: writes.buffer.map(|b| b.in_sectors(size)), ..writes };
        self.writes = self.writes.map(buffer);
        self
    }
}

impl Cache {
    fn in_sectors(self, size: u32) -> Cache {
        let sectors = |(blocks, is_confirmed): (u64, bool)| (blocks * u64::from(size), is_confirmed);
        let sector_us = self.sector_us / f64::from(size);
        Cache {
            hit_us: self.hit_us - sector_us * f64::from(size - 1),
            sector_us,
            segments: self.segments,
            segment_sectors: self.segment_sectors.map(sectors),
            prefetch: sectors(self.prefetch),
        }
    }
}

impl Buffer {
    fn in_sectors(self, size: u32) -> Buffer {
        let sector_us = self.sector_us / f64::from(size);
        Buffer {
            sectors: (self.sectors.0 * u64::from(size), self.sectors.1),
            write_us: self.write_us - sector_us * f64::from(size - 1),
            sector_us,
        }
    }
}
