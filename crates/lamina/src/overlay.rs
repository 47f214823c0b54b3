//! The machine as it is, but no write reaches its disks.
//!
//! A hierarchy can be opened in it as for serving, with everything that opening does (logs are replayed, members are
//! marked as in use), and afterwards the disks are what they were. Writes are kept in memory, and bounded.
//!
//! A message to a peer cannot be taken back. So the only kind that connects to peers, `nbd`, gets the same overlay: the
//! server is only read ([`kinds`]). It deliberately listens to no client.
//!
//! On other machines' disks, data can be guarded: what would overwrite them fails, and says what is there.

use crate::{files, inspect};
use lamina_block::{
    Address, Buf, Build, Config, Conn, Env, Error, ErrorKind, FarEnd, Folder, Geometry, Io, Kind, Layer,
    Listener, Made, Manage, Node, Op, OpenDisk, OpenRbd, Passthrough, Pending, Pool, Question, Records,
    ReservationKey, Result, SharedStore, Step, Time, Zones, far_end,
};
use lamina_cluster::vault::{FolderVault, StoreRecords};
use lamina_nbd::client;
use serde::Deserialize;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// The most bytes of writes to all disks that are kept; and of writes to each server.
const KEPT_MAX: usize = 256 << 20;

/// Whether data on other machines' disks may be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// They may.
    Open,
    /// They may not, where a known signature says that there are some.
    Guarded,
}

/// Every kind of layer, for use in this world.
pub fn kinds(data: Data) -> Vec<Kind> {
    let mut kinds = files::kinds();
    let asked = match data {
        Data::Open => Kind::of::<Asked<false>>(),
        Data::Guarded => Kind::of::<Asked<true>>(),
    };
    kinds.iter_mut().filter(|kind| kind.name == client::Keys::KIND).for_each(|kind| *kind = asked.clone());
    kinds
}

/// The kind `nbd`, whose server is only asked.
#[derive(Deserialize)]
#[serde(transparent)]
struct Asked<const GUARDED: bool>(client::Keys);

impl<const GUARDED: bool> Config for Asked<GUARDED> {
    const KIND: &'static str = client::Keys::KIND;
    const SUMMARY: &'static str = client::Keys::SUMMARY;
    const CHILDREN: RangeInclusive<usize> = client::Keys::CHILDREN;

    fn build(self, with: Build) -> Pending<Made> {
        let (name, env) = (with.name.clone(), Rc::clone(&with.env));
        Box::pin(async move {
            let made = self.0.build(with).await?;
            if made.geometry().read_only {
                return Ok(made);
            }
            let overlay = over(&name, &env, made, Rc::default());
            Ok(if GUARDED { overlay.guarded().await? as Made } else { overlay as Made })
        })
    }
}

/// Lays an overlay over what can be written to.
fn over(name: &str, env: &Rc<dyn Env>, below: Made, written: Rc<Written>) -> Rc<Overlay> {
    let geometry = Geometry { read_only: false, discard: false, zero: true, fua: true, ..below.geometry() };
    let far_end = far_end(below.shared()).ok().map(|end| Alone::instead_of(&*end, env));
    let below = Node::new(name, "overlay", Rc::clone(env), below);
    Rc::new(Overlay { below, geometry, written, far_end, carries: RefCell::default() })
}

/// The environment.
pub struct Overlaid {
    inner: Rc<dyn Env>,
    /// By the paths of the disks: a disk that is opened again has the earlier writes.
    written: RefCell<BTreeMap<PathBuf, Rc<Written>>>,
    /// Bytes that are kept.
    kept: Rc<Cell<usize>>,
    /// Of images of Ceph.
    data: Data,
}

impl Overlaid {
    /// The world of `inner`, in which disks forget.
    pub fn over(inner: Rc<dyn Env>, data: Data) -> Rc<Overlaid> {
        Rc::new(Overlaid { inner, written: RefCell::default(), kept: Rc::default(), data })
    }

    /// More was written than is kept: a request failed that would not have failed outside.
    pub fn is_full(&self) -> bool {
        self.kept.get() > KEPT_MAX
    }

    fn written(&self, path: &Path) -> Rc<Written> {
        let mut all = self.written.borrow_mut();
        let new = || Rc::new(Written { kept: Rc::clone(&self.kept), ..Written::default() });
        Rc::clone(all.entry(path.to_owned()).or_insert_with(new))
    }
}

/// A folder that other hosts share, as if there were no other host and nothing in it: nobody is told anything.
#[derive(Default)]
struct Apart(RefCell<BTreeMap<String, Vec<u8>>>);

impl Folder for Apart {
    fn list(&self) -> Pending<Vec<String>> {
        let names = self.0.borrow().keys().cloned().collect();
        Box::pin(async { Ok(names) })
    }

    fn read(&self, name: &str, max: usize) -> Pending<Option<Vec<u8>>> {
        let bytes = self.0.borrow().get(name).filter(|bytes| bytes.len() <= max).cloned();
        Box::pin(async { Ok(bytes) })
    }

    fn create(&self, name: &str, bytes: Vec<u8>) -> Pending<bool> {
        let is_new = !self.0.borrow().contains_key(name);
        if is_new {
            self.0.borrow_mut().insert(name.into(), bytes);
        }
        Box::pin(async move { Ok(is_new) })
    }

    fn replace(&self, name: &str, bytes: Vec<u8>) -> Pending {
        self.0.borrow_mut().insert(name.into(), bytes);
        Box::pin(async { Ok(()) })
    }

    fn remove(&self, name: &str) -> Pending {
        self.0.borrow_mut().remove(name);
        Box::pin(async { Ok(()) })
    }
}

/// A store that hosts share, as if no other host had ever asked: it is told nothing.
struct Alone {
    place: String,
    records: Rc<StoreRecords>,
}

impl Alone {
    fn instead_of(end: &dyn SharedStore, env: &Rc<dyn Env>) -> Rc<FarEnd> {
        let vault = FolderVault::new(Rc::clone(env), Rc::new(Apart::default()));
        let records = StoreRecords::new(Rc::new(vault));
        Rc::new(FarEnd(Rc::new(Alone { place: end.place(), records })))
    }
}

impl SharedStore for Alone {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn ask(&self, question: Vec<u8>) -> Pending<Vec<u8>> {
        let answer = self.records.answer(question);
        Box::pin(async { answer.await.map(|answer| answer.bytes) })
    }

    fn register(&self, _: ReservationKey) -> Pending {
        Box::pin(async { Ok(()) })
    }
}

impl Env for Overlaid {
    fn now(&self) -> Time {
        self.inner.now()
    }

    fn sleep(&self, d: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        self.inner.sleep(d)
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()>>> {
        self.inner.sleep_until(at)
    }

    fn ending(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.inner.ending()
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
        let (inner, written) = (Rc::clone(&self.inner), self.written(&open.path));
        Box::pin(async move {
            let name = open.path.display().to_string();
            if let Some(size) = would_be_made(&open) {
                let block = open.block.unwrap_or(512);
                written.made.set(Some(Geometry { block, read_only: true, ..Geometry::new(size) }));
            }
            if let Some(geometry) = written.made.get() {
                return Ok(over(&name, &inner, Rc::new(Blank(geometry)), written) as Rc<dyn Layer>);
            }
            let writable = !open.read_only;
            let disk = inner.open_disk(OpenDisk { read_only: true, create: None, ..open }).await?;
            if !writable {
                return Ok(disk);
            }
            Ok(over(&name, &inner, disk, written) as Rc<dyn Layer>)
        })
    }

    fn folder(&self, _path: PathBuf) -> Result<Rc<dyn Folder>> {
        Ok(Rc::new(Apart::default()))
    }

    fn open_zoned(&self, path: PathBuf) -> Pending<Rc<dyn Layer>> {
        let (inner, written) = (Rc::clone(&self.inner), self.written(&path));
        Box::pin(async move {
            let disk = inner.open_zoned(path.clone()).await?;
            Ok(over(&path.display().to_string(), &inner, disk, written) as Rc<dyn Layer>)
        })
    }

    fn open_rbd(&self, open: OpenRbd) -> Pending<Rc<dyn Layer>> {
        let name = open.to_string();
        let (inner, written, data) = (Rc::clone(&self.inner), self.written(Path::new(&name)), self.data);
        Box::pin(async move {
            let image = inner.open_rbd(OpenRbd { read_only: true, ..open }).await?;
            let overlay = over(&name, &inner, image, written);
            Ok(if data == Data::Guarded { overlay.guarded().await? } else { overlay as Rc<dyn Layer> })
        })
    }

    fn connect(&self, to: Address) -> Pending<Rc<dyn Conn>> {
        self.inner.connect(to)
    }

    fn listen(&self, at: Address) -> Result<Rc<dyn Listener>> {
        Err(Error::unsupported(format!("no server listens at {at} while disks are checked")))
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> Pending {
        self.inner.compute(work)
    }

    fn read_file(&self, path: PathBuf, max: usize) -> Pending<Vec<u8>> {
        self.inner.read_file(path, max)
    }

    fn read_text(&self, path: PathBuf, max: usize) -> Pending<String> {
        self.inner.read_text(path, max)
    }

    fn ask_secret(&self, question: Question) -> Pending<Vec<u8>> {
        self.inner.ask_secret(question)
    }

    fn guard_key(&self, path: &Path) {
        self.inner.guard_key(path);
    }

    fn secret(&self, into: &mut [u8]) -> Result<()> {
        self.inner.secret(into)
    }
}

/// The size of the file that the open would make: there is none yet, and its folder is there.
fn would_be_made(open: &OpenDisk) -> Option<u64> {
    let size = open.create.filter(|_| !open.read_only && !open.path.exists())?;
    let folder = open.path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.is_none_or(Path::is_dir).then_some(size)
}

/// A new file.
struct Blank(Geometry);

impl Layer for Blank {
    fn geometry(&self) -> Geometry {
        self.0
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match &io.op {
            Op::Read(into) => {
                into.fill(0);
                Step::Done(Ok(()))
            }
            Op::Write(..) | Op::Zero(_) | Op::Discard | Op::Flush => {
                Error::unsupported("writes stay in memory").into()
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Blank {}

/// The writes to a disk.
#[derive(Default)]
struct Written {
    /// The shape of a file that is made here, and is not there outside.
    made: Cell<Option<Geometry>>,
    /// By number.
    blocks: RefCell<BTreeMap<u64, Box<[u8]>>>,
    /// Ranges of bytes that were zeroed, below what was written as blocks.
    zeroed: RefCell<Vec<Range<u64>>>,
    /// Bytes that are kept of all disks.
    kept: Rc<Cell<usize>>,
}

impl Written {
    fn write(&self, block: usize, at: u64, from: &Buf) -> Result<()> {
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

    fn zero(&self, block: usize, at: Range<u64>) {
        let mut blocks = self.blocks.borrow_mut();
        let numbers = at.start / block as u64..at.end / block as u64;
        let gone: Vec<u64> = blocks.range(numbers).map(|(number, _)| *number).collect();
        for number in &gone {
            blocks.remove(number);
        }
        self.kept.set(self.kept.get() - gone.len() * block);
        let mut zeroed = self.zeroed.borrow_mut();
        match zeroed.last_mut().filter(|last| last.end == at.start) {
            Some(last) => last.end = at.end,
            None => zeroed.push(at),
        }
    }

    /// Puts what was written over what was read.
    fn cover(&self, block: usize, at: u64, into: &Buf) {
        let end = at + into.len() as u64;
        for range in self.zeroed.borrow().iter() {
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from < to {
                into.slice((from - at) as usize..(to - at) as usize).fill(0);
            }
        }
        for (number, bytes) in self.blocks.borrow().range(at / block as u64..end / block as u64) {
            into.write((number * block as u64 - at) as usize, bytes);
        }
    }
}

/// A disk and the writes over it.
struct Overlay {
    below: Rc<Node>,
    geometry: Geometry,
    written: Rc<Written>,
    /// What is asked about other hosts, if the server is a store of several.
    far_end: Option<Rc<FarEnd>>,
    /// The data that no write may be over.
    carries: RefCell<Option<String>>,
}

impl Overlay {
    /// Guards the data on the device.
    async fn guarded(self: Rc<Self>) -> Result<Rc<Overlay>> {
        let found = inspect::scan_device(&self.below).await?;
        self.carries.replace(found.first().map(inspect::Found::as_text));
        Ok(self)
    }

    /// Fails if there are data that a write would be over.
    fn may_write(&self) -> Result<()> {
        match &*self.carries.borrow() {
            Some(carries) => Err(Error::invalid(format!(
                "carries {carries}: --force overwrites it, and the data there is lost"
            ))),
            None => Ok(()),
        }
    }
}

impl Layer for Overlay {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Those of the device. All of them look written, and are written anew in memory anywhere.
    fn zones(&self) -> Option<Zones> {
        self.below.zones()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let (at, block) = (io.at.clone(), self.geometry.block as usize);
        match &io.op {
            Op::Read(into) => {
                let into = into.clone();
                Step::control(async move {
                    self.below.submit(Io::read(at.start, into.clone())).await?;
                    self.written.cover(block, at.start, &into);
                    Ok(())
                })
            }
            Op::Write(from, _) => {
                Step::Done(self.may_write().and_then(|()| self.written.write(block, at.start, from)))
            }
            Op::Zero(_) => Step::Done(self.may_write().map(|()| self.written.zero(block, at))),
            Op::Discard | Op::Flush => Step::Done(Ok(())),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.below.close().await })
    }
}

impl Manage for Overlay {
    fn shared(&self) -> Option<Rc<dyn Any>> {
        self.far_end.clone().map(|end| end as Rc<dyn Any>)
    }
}
