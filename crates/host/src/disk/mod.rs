//! Files and block devices as sinks.
//!
//! * *Write*: through to the device without the page cache (`direct`), or into the page cache. `Fua` is RWF_DSYNC: the
//!   kernel then waits for what fdatasync of the range would, with the device's own forced unit access where that is
//!   enough. That works on files and devices, cached or direct, so every disk has native FUA.
//! * *Flush*: fdatasync. The size never changes under a request, so nothing that a file needs is left out; on a block
//!   device it writes the cached pages and flushes the device.
//! * *Discard*: a hole in a file; BLKDISCARD on a device (later reads get the old data or zeroes).
//! * *Zero*: a hole where space may be released, otherwise the file system's or device's zeroing of ranges, and
//!   written zeroes where there is neither.
//!
//! Short transfers with a file of tmpfs are made by calls of this core: the ring would have a thread of the kernel copy
//! them, which costs more than the copy.
//!
//! Invariant: memory for O_DIRECT has the alignment that the kernel wants. Other memory goes through a private copy, at
//! most [`BOUNCE_MAX`] bytes of it for one request at a time.
//!
//! After a failed flush of cached data the kernel forgets what it could not write, and would call the next flush a
//! success. So every later flush and forced write of such a disk fails until it is opened anew. A disk that others made
//! smaller meanwhile fails everything until then (`end.rs`).

mod allocation;
mod end;
mod open;
mod zones;

pub(crate) use zones::open_zoned;

use crate::host::Tools;
use crate::ring::{Fd, Ring, Sync};
use end::End;
use lamina_block::{
    Buf, Command, Durability, Effect, Error, ErrorKind, Extent, Geometry, Io, Layer, Manage, Op, OpenDisk,
    Passthrough, Pending, Result, Step,
};
use open::Facts;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// The most memory that one request takes to align its data, in bytes.
const BOUNCE_MAX: usize = 1 << 20;
/// The longest transfer with a file in memory that this core makes itself, in bytes: others wait for about 10 us.
const COPY_MAX: usize = 64 << 10;

/// A file or block device that is open.
pub(crate) struct Disk {
    tools: Tools,
    facts: Facts,
    /// Gone once the disk is closed, and with it the lock.
    file: RefCell<Option<Fd>>,
    geometry: Cell<Geometry>,
    /// Whether ranges can be zeroed without releasing their space, until tried and found otherwise.
    zero_range: Cell<bool>,
    /// Cached data was lost in a failed flush.
    lost: Cell<bool>,
    end: End,
}

/// Opens a disk. The lock on the file stays until it is closed or dropped.
pub(crate) async fn open(tools: Tools, open: OpenDisk) -> Result<Rc<dyn Layer>> {
    let (file, facts, geometry) = tools.helpers.run(move || open::open(&open)).await??;
    Ok(Rc::new(Disk::new(tools, file, facts, geometry)))
}

impl Disk {
    fn new(tools: Tools, file: OwnedFd, facts: Facts, geometry: Geometry) -> Disk {
        Disk {
            tools,
            facts,
            file: RefCell::new(Some(Rc::new(file))),
            geometry: Cell::new(geometry),
            zero_range: Cell::new(true),
            lost: Cell::new(false),
            end: End::new(geometry.size),
        }
    }
}

impl Layer for Disk {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let Ok(fd) = self.fd() else { return closed().into() };
        if let Err(e) = self.end.check() {
            return e.into();
        }
        let io = io.take();
        Step::control(async move { self.perform(&fd, io).await })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move { self.allocation(at).await })
    }

    fn close(self: Rc<Self>) -> Pending {
        let file = self.file.take();
        drop(file);
        Box::pin(async { Ok(()) })
    }
}

impl Manage for Disk {
    fn effect(&self, command: &Command) -> Effect {
        self.effect_of(command)
    }

    /// `resize`: takes over the size that the file or device has now; with `{"size": "64MiB"}`, gives a file that size
    /// first. The file becomes smaller only with `"force": true`: the data beyond is lost.
    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "resize" => self.resize(command.args).await,
                other => Err(Error::unsupported(format!(
                    "there is no command {other:?} here; there is \"resize\""
                ))),
            }
        })
    }

    fn info(&self) -> Value {
        json!({
            "path": self.facts.path,
            "on": if self.facts.device { "block device" } else { "file" },
            "direct": self.facts.direct.is_some(),
        })
    }
}

impl Disk {
    async fn perform(&self, fd: &Fd, io: Io) -> Result<()> {
        let _work = self.tools.disk_work.begin();
        let begun = self.begin(fd, &io).await?;
        let Io { op, at, .. } = io;
        let result = match op {
            Op::Read(into) => self.read(fd, into, at.start).await,
            Op::Write(from, durability) => self.write(fd, from, at.start, durability).await,
            // Boxed, so that reads and writes do not pay for their size.
            Op::Zero(how) => Box::pin(self.zero(fd, at, how)).await,
            Op::Discard => Box::pin(self.discard(fd, at)).await,
            Op::Flush => self.flush(fd).await,
        };
        self.ended(fd, begun, result).await
    }

    fn fd(&self) -> Result<Fd> {
        self.file.borrow().clone().ok_or_else(closed)
    }

    /// True if the kernel takes this memory directly.
    fn fits(&self, buf: &Buf) -> bool {
        self.facts.direct.is_none_or(|needs| needs.fit(buf))
    }

    async fn read(&self, fd: &Fd, into: Buf, at: u64) -> Result<()> {
        if self.fits(&into) {
            return self.read_all(fd, into, at).await;
        }
        let bounce = self.tools.pool.take(into.len().min(BOUNCE_MAX));
        let mut done = 0;
        while done < into.len() {
            let part = into.slice(done..into.len().min(done + bounce.len()));
            let private = bounce.slice(0..part.len());
            self.read_all(fd, private.clone(), at + done as u64).await?;
            part.copy_from(&private);
            done += part.len();
        }
        Ok(())
    }

    async fn read_all(&self, fd: &Fd, into: Buf, at: u64) -> Result<()> {
        let read = async |part: Buf, at| match self.is_short_copy(&part) {
            true => Ring::read_now(fd, &part, at),
            false => self.tools.ring.read(fd, part, at).await.result,
        };
        self.all(into, at, read).await
    }

    async fn write(&self, fd: &Fd, from: Buf, at: u64, durability: Durability) -> Result<()> {
        let sync = match durability {
            Durability::Cached => Sync::No,
            Durability::Fua if self.lost.get() => return Err(lost()),
            Durability::Fua => Sync::Data,
        };
        if self.fits(&from) {
            return self.write_all(fd, from, at, sync).await;
        }
        let bounce = self.tools.pool.take(from.len().min(BOUNCE_MAX));
        let mut done = 0;
        while done < from.len() {
            let part = from.slice(done..from.len().min(done + bounce.len()));
            let private = bounce.slice(0..part.len());
            private.copy_from(&part);
            self.write_all(fd, private, at + done as u64, sync).await?;
            done += part.len();
        }
        Ok(())
    }

    async fn write_all(&self, fd: &Fd, from: Buf, at: u64, sync: Sync) -> Result<()> {
        let write = async |part: Buf, at| match self.is_short_copy(&part) {
            true => Ring::write_now(fd, &part, at, sync),
            false => self.tools.ring.write(fd, part, at, sync).await.result,
        };
        self.all(from, at, write).await
    }

    /// True if the transfer is made sooner than it is handed to the kernel's threads, which make it where the file
    /// system cannot say that it would wait.
    fn is_short_copy(&self, part: &Buf) -> bool {
        self.facts.in_memory && part.len() <= COPY_MAX
    }

    /// Transfers a whole buffer, in as many operations as the kernel makes of it.
    async fn all(
        &self,
        buf: Buf,
        at: u64,
        operation: impl AsyncFn(Buf, u64) -> io::Result<u32>,
    ) -> Result<()> {
        let range = at..at + buf.len() as u64;
        let (mut rest, mut at) = (buf, at);
        loop {
            match operation(rest.clone(), at).await {
                Ok(n) if n as usize == rest.len() => return Ok(()),
                Ok(0) if at < self.end.served.get() => return Err(self.lose(at).at(range)),
                Ok(0) => {
                    let message = "the file or device ends here: was it made smaller by another program?";
                    return Err(Error::media(message).at(range));
                }
                Ok(n) => {
                    rest = rest.slice(n as usize..rest.len());
                    at += n as u64;
                }
                Err(e) if is_again(&e) => {}
                Err(e) => return Err(Error::from(e).at(range)),
            }
        }
    }

    async fn flush(&self, fd: &Fd) -> Result<()> {
        if self.lost.get() {
            return Err(lost());
        }
        loop {
            match self.tools.ring.datasync(fd).await.result {
                Ok(_) => return Ok(()),
                Err(e) if is_again(&e) => {}
                Err(e) => {
                    self.lost.set(self.facts.direct.is_none());
                    return Err(e.into());
                }
            }
        }
    }
}

/// The operation was not begun and can be asked for again.
fn is_again(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

fn closed() -> Error {
    Error::offline("the disk is closed")
}

fn lost() -> Error {
    let message =
        "an earlier flush failed, and data written before it may be lost: check the disk, then open it anew";
    Error::new(ErrorKind::Media, message)
}
