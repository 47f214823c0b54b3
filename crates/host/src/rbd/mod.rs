//! Images of Ceph (RADOS block devices) as sinks.
//!
//! * *Read*, *write*, *discard*, *zero*, *flush*: one call of librbd each, whose threads work on it. Data go through
//!   private memory, which the request owns until librbd has ended it.
//! * *Durability*: without librbd's cache a write has ended when all replicas have it durably, so that each has the
//!   effect of a forced one.
//!
//! Calls that wait for the cluster (to open, to close, to list what is allocated, to know whether it answers) have a
//! thread of their own each: they may wait without an end, and nobody else is to wait with them.
//!
//! Deliberately left out: create, resize, copy or snapshot images, which `rbd` does; images within other images' trash,
//! mirrors and groups.

mod image;
mod library;

use futures_channel::oneshot;
use image::{Image, check, failed};
use lamina_block::{
    Command, Effect, Error, Extent, Geometry, Io, Layer, Manage, Op, OpenRbd, Passthrough, Pending, Probe,
    Probes, Result, Step,
};
use library::{Handle, Library, Rbd as Calls, THICK};
use serde_json::{Value, json};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The logical block, in bytes. Images have none.
const BLOCK: u32 = 512;
/// Requests of this many bytes and their multiples need no reading of what they leave out: the usual block of an OSD.
const OPTIMAL: u32 = 4096;

/// An image until the sink is closed.
struct Opened(RefCell<Option<Arc<Image>>>);

/// An open image as a sink.
struct Rbd {
    name: String,
    image: Rc<Opened>,
    /// Ends when the image is closed.
    closed: Cell<Option<oneshot::Receiver<()>>>,
    geometry: Cell<Geometry>,
}

/// Opens an image. Its lock stays until it is closed.
pub(crate) async fn open(open: OpenRbd) -> Result<Rc<dyn Layer>> {
    let (name, read_only) = (open.to_string(), open.read_only);
    let opened = apart(move || {
        let (image, closed) = Image::open(&open)?;
        let size = image.size()?;
        Ok((image, closed, size))
    });
    let named = |e: Error| Error::new(e.kind(), format!("{name}: {}", e.message()));
    let (image, closed, size) = opened.await.map_err(named)?;
    let may = !read_only;
    let geometry = Geometry {
        block: BLOCK,
        optimal: OPTIMAL,
        read_only,
        discard: may,
        zero: may,
        fua: true,
        ..Geometry::new(size)
    };
    let image = Rc::new(Opened(RefCell::new(Some(Arc::new(image)))));
    let rbd = Rbd { name, image, closed: Cell::new(Some(closed)), geometry: Cell::new(geometry) };
    rbd.geometry.set(rbd.with_size(size)?);
    Ok(Rc::new(rbd))
}

/// Does `work` on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (send, receive) = oneshot::channel();
    let work = move || {
        // Perhaps no task waits any more.
        let _ = send.send(work());
    };
    std::thread::Builder::new().name("lamina-rbd".into()).spawn(work)?;
    receive.await.map_err(|_| Error::offline("a thread has failed"))?
}

/// A request under way: its memory, and who waits for it.
struct Request {
    library: Arc<Library>,
    memory: Vec<u8>,
    ended: oneshot::Sender<(isize, Vec<u8>)>,
}

/// The answer of librbd, on a thread of its own making.
extern "C" fn ended(completion: Handle, request: *mut c_void) {
    // SAFETY: `Rbd::ask` has given the box away for this call, which is the only one.
    let Request { library, memory, ended } = *unsafe { Box::from_raw(request.cast::<Request>()) };
    // SAFETY: librbd gives the completion of a request that has ended; it is not used after its release.
    let answer = unsafe {
        let answer = (library.rbd.rbd_aio_get_return_value)(completion);
        (library.rbd.rbd_aio_release)(completion);
        answer
    };
    // Perhaps no task waits any more.
    let _ = ended.send((answer, memory));
}

impl Opened {
    fn get(&self) -> Result<Arc<Image>> {
        self.0.borrow().clone().ok_or_else(|| Error::offline("the image is closed"))
    }
}

impl Probe for Opened {
    fn probe(&self) -> Pending {
        let image = self.get();
        Box::pin(async move {
            let image = image?;
            apart(move || image.probe()).await
        })
    }
}

impl Rbd {
    fn with_size(&self, size: u64) -> Result<Geometry> {
        if !size.is_multiple_of(u64::from(BLOCK)) {
            let whole = size.next_multiple_of(u64::from(BLOCK));
            let message =
                format!("{}: {size} bytes are no multiple of {BLOCK}: rbd resize it to {whole}B", self.name);
            return Err(Error::invalid(message));
        }
        Ok(self.geometry.get().with_size(size))
    }

    /// Makes a request of `memory` at a range, and waits for its end. Gives the memory back.
    async fn ask(
        &self,
        memory: Vec<u8>,
        at: &Range<u64>,
        call: impl FnOnce(&Calls, Handle, &mut [u8], Handle) -> c_int,
    ) -> Result<Vec<u8>> {
        let image = self.image.get()?;
        let told = |e: std::io::Error| failed(&self.name, &e).at(at.clone());
        let (send, receive) = oneshot::channel();
        let len = memory.len();
        let request =
            Box::into_raw(Box::new(Request { library: Arc::clone(image.library()), memory, ended: send }));
        // SAFETY: the box was just made, and is not touched before the call returns: the memory stays where it is when
        // the box is taken apart meanwhile.
        let bytes = unsafe {
            let memory = (*request).memory.as_mut_ptr();
            std::slice::from_raw_parts_mut(memory, len)
        };
        let begun =
            image.begin(ended, request.cast(), |handle, of| call(&image.library().rbd, handle, bytes, of));
        if let Err(e) = begun {
            // SAFETY: there is no other owner: nobody calls `ended`.
            drop(unsafe { Box::from_raw(request) });
            return Err(told(e));
        }
        drop(image);
        let (answer, memory) = receive.await.map_err(|_| Error::offline("the request was dropped"))?;
        let code = c_int::try_from(answer).unwrap_or(c_int::MAX);
        check(code).map_err(told)?;
        Ok(memory)
    }

    async fn perform(&self, io: Io) -> Result<()> {
        let Io { op, at, .. } = io;
        let (start, len) = (at.start, (at.end - at.start) as usize);
        match op {
            Op::Read(into) => {
                let read = self.ask(vec![0; len], &at, |rbd, image, bytes, of| {
                    // SAFETY: the memory belongs to the request until it has ended.
                    unsafe { (rbd.rbd_aio_read)(image, start, len, bytes.as_mut_ptr().cast(), of) }
                });
                into.write(0, &read.await?);
            }
            Op::Write(from, _) => {
                let written = self.ask(from.to_vec(), &at, |rbd, image, bytes, of| {
                    // SAFETY: as before.
                    unsafe { (rbd.rbd_aio_write)(image, start, len, bytes.as_ptr().cast(), of) }
                });
                written.await?;
            }
            Op::Zero(how) if how.fast && !how.unmap => {
                return Err(Error::unsupported("zeroing is not fast here without releasing the space").at(at));
            }
            Op::Zero(how) => {
                let flags = if how.unmap { 0 } else { THICK };
                let zeroed = self.ask(Vec::new(), &at, |rbd, image, _, of| {
                    // SAFETY: the image is open, and the completion is its own.
                    unsafe { (rbd.rbd_aio_write_zeroes)(image, start, len, of, flags, 0) }
                });
                zeroed.await?;
            }
            Op::Discard => {
                let discarded = self.ask(Vec::new(), &at, |rbd, image, _, of| {
                    // SAFETY: as before.
                    unsafe { (rbd.rbd_aio_discard)(image, start, len as u64, of) }
                });
                discarded.await?;
            }
            Op::Flush => {
                // SAFETY: as before.
                let flushed =
                    self.ask(Vec::new(), &at, |rbd, image, _, of| unsafe { (rbd.rbd_aio_flush)(image, of) });
                flushed.await?;
            }
        }
        Ok(())
    }
}

impl Layer for Rbd {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let io = io.take();
        Step::control(async move { self.perform(io).await })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        let image = self.image.get();
        Box::pin(async move {
            let image = image?;
            apart(move || image.extents(at)).await
        })
    }

    fn close(self: Rc<Self>) -> Pending {
        let (image, closed) = (self.image.0.take(), self.closed.take());
        Box::pin(async move {
            apart(move || {
                drop(image);
                Ok(())
            })
            .await?;
            // A question to the cluster may be under way still, whose thread closes the image then.
            if let Some(closed) = closed {
                let _ = closed.await;
            }
            Ok(())
        })
    }
}

impl Manage for Rbd {
    fn effect(&self, _: &Command) -> Effect {
        Effect::default()
    }

    /// `resize`: takes over the size that the image has now.
    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            if command.name != "resize" {
                let name = command.name;
                return Err(Error::unsupported(format!(
                    "there is no command {name:?} here; there is \"resize\""
                )));
            }
            let image = self.image.get()?;
            let (before, size) = (self.geometry.get().size, apart(move || image.size()).await?);
            if size < before {
                return Err(Error::invalid(format!(
                    "resize: {} has become smaller, {size} bytes instead of {before}: give it its size back (rbd \
                     resize)",
                    self.name
                )));
            }
            self.geometry.set(self.with_size(size)?);
            Ok(json!({ "size": size }))
        })
    }

    fn shared(&self) -> Option<Rc<dyn Any>> {
        Some(Rc::new(Probes(Rc::clone(&self.image) as _)))
    }

    fn info(&self) -> Value {
        json!({ "image": self.name, "on": "Ceph" })
    }
}

impl Drop for Rbd {
    fn drop(&mut self) {
        if let Some(image) = self.image.0.take() {
            // Its end waits. If there is no thread for it, it is left open.
            let kept = std::mem::ManuallyDrop::new(image);
            let close = move || drop(std::mem::ManuallyDrop::into_inner(kept));
            if let Err(e) = std::thread::Builder::new().name("lamina-rbd".into()).spawn(close) {
                tracing::warn!(error = %e, image = self.name, "is not closed");
            }
        }
    }
}
