//! The machine as it is, but nothing that is written to its disks gets there.
//!
//! A hierarchy can be opened in it as for serving, with everything that opening does (logs are replayed, members are
//! marked as in use), and afterwards the disks are what they were. What was written is kept in memory, and bounded.
//!
//! What is sent to a peer cannot be taken back. So the one kind that connects to any, `nbd`, is exchanged for one over which
//! the same is laid: the server is only asked ([`kinds`]). It deliberately does not listen to anybody.

use crate::files;
use lamina_block::{
    Address, Buf, Build, Config, Conn, Env, Error, ErrorKind, Geometry, Io, Kind, Layer, Listener, Made,
    Node, Op, OpenDisk, Pending, Pool, Result, Step, Time,
};
use lamina_nbd::client;
use serde::Deserialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// The most bytes that are kept of what is written to all disks; and to each server.
const KEPT_MAX: usize = 256 << 20;

/// Every kind of layer, for use in this world.
pub fn kinds() -> Vec<Kind> {
    let mut kinds = files::kinds();
    kinds.iter_mut().filter(|kind| kind.name == Asked::KIND).for_each(|kind| *kind = Kind::of::<Asked>());
    kinds
}

/// The kind `nbd`, whose server is only asked.
#[derive(Deserialize)]
#[serde(transparent)]
struct Asked(client::Keys);

impl Config for Asked {
    const KIND: &'static str = client::Keys::KIND;
    const SUMMARY: &'static str = client::Keys::SUMMARY;
    const CHILDREN: RangeInclusive<usize> = client::Keys::CHILDREN;

    fn build(self, with: Build) -> Pending<Made> {
        let (name, env) = (with.name.clone(), Rc::clone(&with.env));
        Box::pin(async move {
            let made = self.0.build(with).await?;
            Ok(if made.geometry().read_only { made } else { over(&name, &env, made, Rc::default()) })
        })
    }
}

/// Lays an overlay over what can be written to.
fn over(name: &str, env: &Rc<dyn Env>, below: Made, kept: Rc<Cell<usize>>) -> Made {
    let geometry = Geometry { read_only: false, discard: false, zero: false, fua: true, ..below.geometry() };
    let below = Node::new(name, "overlay", Rc::clone(env), below);
    Rc::new(Overlay { below, geometry, blocks: RefCell::default(), kept })
}

/// The environment.
pub struct Overlaid {
    inner: Rc<dyn Env>,
    /// Bytes that are kept.
    kept: Rc<Cell<usize>>,
}

impl Overlaid {
    /// The world of `inner`, in which disks forget.
    pub fn over(inner: Rc<dyn Env>) -> Rc<dyn Env> {
        Rc::new(Overlaid { inner, kept: Rc::default() })
    }
}

impl Env for Overlaid {
    fn now(&self) -> Time {
        self.inner.now()
    }

    fn sleep(&self, d: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        self.inner.sleep(d)
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.inner.spawn(task);
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }

    fn pool(&self) -> &Pool {
        self.inner.pool()
    }

    fn open_disk(&self, open: OpenDisk) -> Pending<Rc<dyn Layer>> {
        let (inner, kept) = (Rc::clone(&self.inner), Rc::clone(&self.kept));
        Box::pin(async move {
            let name = open.path.display().to_string();
            let writable = !open.read_only;
            let disk = inner.open_disk(OpenDisk { read_only: true, create: None, ..open }).await?;
            if !writable {
                return Ok(disk);
            }
            Ok(over(&name, &inner, disk, kept))
        })
    }

    fn connect(&self, to: Address) -> Pending<Rc<dyn Conn>> {
        self.inner.connect(to)
    }

    fn listen(&self, at: Address) -> Result<Rc<dyn Listener>> {
        Err(Error::unsupported(format!("nobody listens at {at} while disks are checked")))
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> Pending {
        self.inner.compute(work)
    }

    fn read_file(&self, path: PathBuf, max: usize) -> Pending<Vec<u8>> {
        self.inner.read_file(path, max)
    }

    fn secret(&self, into: &mut [u8]) -> Result<()> {
        self.inner.secret(into)
    }
}

/// A disk and what was written over it.
struct Overlay {
    below: Rc<Node>,
    geometry: Geometry,
    /// By number.
    blocks: RefCell<BTreeMap<u64, Box<[u8]>>>,
    kept: Rc<Cell<usize>>,
}

impl Overlay {
    fn write(&self, at: u64, from: &Buf) -> Result<()> {
        let block = self.geometry.block as usize;
        let bytes = from.to_vec();
        let mut blocks = self.blocks.borrow_mut();
        for (number, bytes) in (at / block as u64..).zip(bytes.chunks_exact(block)) {
            if blocks.insert(number, bytes.into()).is_none() {
                self.kept.set(self.kept.get() + block);
            }
        }
        match self.kept.get() > KEPT_MAX {
            true => Err(Error::new(ErrorKind::NoSpace, "too much would be written for a check in memory")),
            false => Ok(()),
        }
    }

    /// Puts what was written over what was read.
    fn cover(&self, at: u64, into: &Buf) {
        let block = u64::from(self.geometry.block);
        let numbers = at / block..(at + into.len() as u64) / block;
        for (number, bytes) in self.blocks.borrow().range(numbers) {
            into.write((number * block - at) as usize, bytes);
        }
    }
}

impl Layer for Overlay {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let at = io.at.start;
        match &io.op {
            Op::Read(into) => {
                let into = into.clone();
                Step::control(async move {
                    self.below.submit(Io::read(at, into.clone())).await?;
                    self.cover(at, &into);
                    Ok(())
                })
            }
            Op::Write(from, _) => Step::Done(self.write(at, from)),
            // Its shape says that these are written, left out, or of no meaning.
            Op::Zero(_) => Error::unsupported("zeroes are written here").into(),
            Op::Discard | Op::Flush => Step::Done(Ok(())),
        }
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.below.close().await })
    }
}
