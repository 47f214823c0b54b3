//! A simulated disk with sequential zones. A breach of their rules is a finding, whatever its source.

use super::{Image, Media, Pace, SimDisk};
use crate::options::DiskOptions;
use crate::zones::ZoneMedia;
use lamina_block::{Buf, Error, Geometry, Io, Op, Result, Zones};
use std::ops::Range;

impl SimDisk {
    /// What has to be native for zones to work, and what may not be.
    pub(super) fn shape(&self) -> Geometry {
        let geometry = self.options.get().geometry;
        match self.zones.borrow().is_some() {
            true => Geometry { discard: true, zero: false, ..geometry },
            false => geometry,
        }
    }

    /// A request arrives: the zone that it writes to.
    pub(super) fn enter_zone(&self, io: &Io) -> Result<Option<u32>> {
        let zones = &mut *self.zones.borrow_mut();
        let Some(zones) = zones else { return Ok(None) };
        let entered = match &io.op {
            Op::Write(..) | Op::Zero(_) => zones.begin(&io.at),
            Op::Discard => zones.pointers().discarded(&io.at).map(|_| None),
            Op::Read(_) | Op::Flush => Ok(None),
        };
        entered.inspect_err(|e| self.probe.finding(format!("{}: {e}", self.name)))
    }

    /// Writes to a zone: from its beginning on, so far as it comes.
    pub(super) async fn write_zone(
        &self,
        zone: u32,
        io: &Io,
        is_durable: bool,
        failure: Option<Error>,
        pace: &Pace,
    ) -> Result<()> {
        self.pass(pace).await;
        for part in self.pieces(&io.at) {
            if failure.is_some() && self.rng.borrow_mut().bool() {
                break;
            }
            self.probe.event(&self.name, &part);
            self.append(zone, io, &part);
            self.pause(pace).await;
        }
        let durable = is_durable && failure.is_none();
        if durable {
            self.probe.event(&self.name, &io.at);
        }
        if let Some(zones) = &mut *self.zones.borrow_mut() {
            zones.end(zone, durable);
        }
        failure.map_or(Ok(()), Err)
    }

    fn append(&self, zone: u32, io: &Io, part: &Range<u64>) {
        let bytes = match &io.op {
            Op::Write(from, _) => {
                from.slice((part.start - io.at.start) as usize..(part.end - io.at.start) as usize)
            }
            Op::Zero(_) | Op::Read(_) | Op::Discard | Op::Flush => {
                Buf::zeroed((part.end - part.start) as usize)
            }
        };
        if let Some(zones) = &mut *self.zones.borrow_mut() {
            zones.append(zone, &bytes);
        }
    }

    /// Resets and finishes zones, one after the other. Conventional bytes stay as they are.
    pub(super) async fn discard_zones(
        &self,
        at: &Range<u64>,
        failure: Option<Error>,
        pace: &Pace,
    ) -> Result<()> {
        self.pass(pace).await;
        let changes = self.zones.borrow().as_ref().map(|zones| zones.pointers().discarded(at));
        for (zone, change) in changes.transpose()?.unwrap_or_default() {
            if failure.is_some() && self.rng.borrow_mut().bool() {
                break;
            }
            self.probe.event(&self.name, at);
            if let Some(zones) = &mut *self.zones.borrow_mut() {
                zones.change(zone, change);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// What is there now.
    pub(super) fn contents(&self, at: &Range<u64>, into: &Buf) {
        let zones = self.zones.borrow();
        let Some(zones) = &*zones else { return self.media.borrow().read(at, into) };
        into.fill(0);
        let of = zones.pointers().zones().range();
        for part in [at.start..at.end.min(of.start), at.start.max(of.end)..at.end] {
            if !part.is_empty() {
                let within = (part.start - at.start) as usize..(part.end - at.start) as usize;
                self.media.borrow().read(&part, &into.slice(within));
            }
        }
        zones.read(at, into);
    }
}

impl Image {
    /// A new disk with sequential zones. With junk, some of them are written.
    pub fn zoned(options: DiskOptions, zones: Zones) -> Image {
        let media = Media::new(options.geometry.block, options.junk);
        Image { options, media, zones: Some(ZoneMedia::new(zones, options.junk)), lives: 0 }
    }
}
