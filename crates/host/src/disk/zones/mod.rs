//! Host-managed zoned block devices as sinks.
//!
//! * *Write* to a sequential zone: at the write pointer, which is kept here, one at a time for each zone.
//! * *Discard*: BLKRESETZONE for whole zones, BLKFINISHZONE for what is left of one ([`Zones`]); nothing otherwise.
//! * *Read* behind a write pointer: zeroes, without asking the device, which may fail such a read.
//!
//! Invariant: where a write has failed, the device is asked where the write pointer is.
//!
//! The page cache is deliberately not used: it writes back in an order of its own.

mod report;

use super::open::{failed, open};
use super::{Disk, Facts};
use crate::host::Tools;
use crate::ring::Fd;
use lamina_block::{
    Buf, Error, Extent, Geometry, Io, Layer, Manage, Op, OpenDisk, Passthrough, Pending, Result, Step,
    WritePointers, ZoneChange, Zones,
};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::rc::Rc;

/// A zoned block device that is open.
struct ZonedDisk {
    disk: Rc<Disk>,
    pointers: RefCell<WritePointers>,
}

/// Opens a zoned block device. The lock on it stays until it is closed or dropped.
pub(crate) async fn open_zoned(tools: Tools, path: PathBuf) -> Result<Rc<dyn Layer>> {
    let (file, facts, geometry, pointers) = tools.helpers.run(move || look(path)).await??;
    let disk = Rc::new(Disk::new(tools, file, facts, geometry));
    Ok(Rc::new(ZonedDisk { disk, pointers: RefCell::new(pointers) }))
}

/// Opens the device and asks for its zones. May block.
fn look(path: PathBuf) -> Result<(OwnedFd, Facts, Geometry, WritePointers)> {
    let named = |e: Error| Error::new(e.kind(), format!("{}: {}", path.display(), e.message()));
    // Opening a file may fail with advice about keys that only the type "file" has.
    let meta = std::fs::metadata(&path).map_err(|e| failed(&path, "opened", e))?;
    if !meta.file_type().is_block_device() {
        return Err(named(report::not_zoned()));
    }
    let how = OpenDisk { path: path.clone(), read_only: false, direct: true, create: None, block: None };
    let (file, facts, geometry) = open(&how)?;
    let pointers = report::zones(&file).map_err(named)?;
    Ok((file, facts, Geometry { discard: true, zero: false, ..geometry }, pointers))
}

impl Layer for ZonedDisk {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn zones(&self) -> Option<Zones> {
        Some(self.pointers.borrow().zones())
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let Ok(fd) = self.disk.fd() else { return super::closed().into() };
        if let Err(e) = self.disk.end.check() {
            return e.into();
        }
        let zone = match &io.op {
            Op::Write(..) => match self.pointers.borrow_mut().begin(&io.at) {
                Ok(zone) => zone,
                Err(e) => return e.into(),
            },
            Op::Read(_) | Op::Zero(_) | Op::Discard | Op::Flush => None,
        };
        let io = io.take();
        Step::control(async move {
            if let Some(zone) = zone {
                return self.write(&fd, zone, io).await;
            }
            match &io.op {
                Op::Read(into) => self.read(&fd, &io.at, into).await,
                Op::Discard => self.discard(&fd, &io.at).await,
                Op::Zero(_) => Err(Error::unsupported("zones are not zeroed natively").at(io.at)),
                Op::Write(..) | Op::Flush => self.disk.perform(&fd, io).await,
            }
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        let extents = self.pointers.borrow().extents(&at);
        Box::pin(async { Ok(extents) })
    }

    fn close(self: Rc<Self>) -> Pending {
        Rc::clone(&self.disk).close()
    }
}

impl Manage for ZonedDisk {
    fn info(&self) -> Value {
        let (pointers, mut info) = (self.pointers.borrow(), self.disk.info());
        let zones = pointers.zones();
        let written = pointers.written(&zones.range());
        info["zones"] = json!({
            "conventional_bytes": zones.first,
            "sequential": zones.count,
            "zone_bytes": zones.size,
            "capacity_bytes": zones.capacity,
            "written_bytes": written.iter().map(|part| part.end - part.start).sum::<u64>(),
            "open": pointers.open(),
            "open_max": (zones.open_max > 0).then_some(zones.open_max),
        });
        info
    }
}

impl ZonedDisk {
    async fn write(&self, fd: &Fd, zone: u32, io: Io) -> Result<()> {
        let (before, start) = {
            let pointers = self.pointers.borrow();
            (pointers.get(zone), pointers.zones().start(zone))
        };
        let end = io.at.end - start;
        let result = self.disk.perform(fd, io).await;
        let pointer = match &result {
            Ok(()) => end,
            // If the device does not tell, the next write finds out.
            Err(_) => self.ask(fd, zone).await.unwrap_or(before),
        };
        self.pointers.borrow_mut().end(zone, pointer);
        result
    }

    /// Where the write pointer is, as the device says.
    async fn ask(&self, fd: &Fd, zone: u32) -> Result<u64> {
        let (fd, zones) = (fd.try_clone()?, self.pointers.borrow().zones());
        self.disk.tools.helpers.run(move || report::pointer(&fd, &zones, zone)).await?
    }

    async fn read(&self, fd: &Fd, at: &Range<u64>, into: &Buf) -> Result<()> {
        let parts = self.pointers.borrow().written(at);
        if parts[..] != [at.clone()] {
            into.fill(0);
        }
        for part in parts {
            let into = into.slice((part.start - at.start) as usize..(part.end - at.start) as usize);
            self.disk.perform(fd, Io::read(part.start, into)).await?;
        }
        Ok(())
    }

    async fn discard(&self, fd: &Fd, at: &Range<u64>) -> Result<()> {
        let changes = self.pointers.borrow().discarded(at)?;
        let zones = self.pointers.borrow().zones();
        for (zone, change) in changes {
            let fd = fd.try_clone()?;
            self.disk.tools.helpers.run(move || report::change(&fd, &zones, zone, change)).await??;
            let pointer = match change {
                ZoneChange::Reset => 0,
                ZoneChange::Finish => zones.capacity,
            };
            self.pointers.borrow_mut().end(zone, pointer);
        }
        Ok(())
    }
}
