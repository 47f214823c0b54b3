//! The false environment: everything follows from a seed.

use crate::disk::{Image, SimDisk};
use crate::executor::{Executor, Hang};
use crate::folder::SimFolder;
use crate::media::Loss;
use crate::net::Net;
use crate::options::DiskOptions;
use crate::probe::{Fault, Probe};
use fastrand::Rng;
use lamina_block::{
    Address, Conn, Ending, Env, Error, Folder, Layer, Listener, Manage, OpenDisk, OpenRbd, Passthrough,
    Pending, Pool, Question, Result, Time,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// Memory kept for reuse, in bytes.
const POOL_KEEP: usize = 1 << 20;

/// How far the seeds of two lives are apart: 2^64 over the golden ratio, so that no small seed is another's next life.
const LIFE: u64 = 0x9E37_79B9_7F4A_7C15;

/// The disks of a simulation at one moment.
pub type Images = BTreeMap<PathBuf, Image>;

/// An [`Env`] whose time, randomness, scheduling, disks and connections follow from a seed.
///
/// Tasks, disks and layers refer to each other through it; [`Simulation`] takes it apart at the end.
pub struct SimEnv {
    executor: Rc<Executor>,
    probe: Rc<Probe>,
    random: RefCell<Rng>,
    pool: Pool,
    disks: RefCell<BTreeMap<PathBuf, Rc<SimDisk>>>,
    files: RefCell<BTreeMap<PathBuf, Vec<u8>>>,
    answers: RefCell<VecDeque<Vec<u8>>>,
    asked: RefCell<Vec<Question>>,
    folders: RefCell<BTreeMap<PathBuf, Rc<SimFolder>>>,
    net: Rc<Net>,
    clock: Cell<u64>,
    ending: Rc<Ending>,
    fences: RefCell<Option<Rc<Fences>>>,
}

/// See [`SimEnv::fence_by`].
type Fences = dyn Fn(&str) -> Pending;

/// Owns a simulated environment and frees it at its end.
pub struct Simulation(Rc<SimEnv>);

impl Simulation {
    /// A world without disks.
    pub fn new(seed: u64) -> Simulation {
        let mut rng = Rng::with_seed(seed);
        let executor = Executor::new(Some(rng.u64(..)));
        Simulation::with(rng, executor)
    }

    /// A world without disks, for measuring rather than testing: tasks run in the order in which they become ready,
    /// and a run takes as many steps and as much virtual time as it takes.
    pub fn measuring(seed: u64) -> Simulation {
        Simulation::with(Rng::with_seed(seed), Executor::new(None))
    }

    fn with(mut rng: Rng, executor: Rc<Executor>) -> Simulation {
        Simulation(Rc::new(SimEnv {
            probe: Probe::new(Rc::clone(&executor)),
            net: Net::new(Rc::clone(&executor), rng.u64(..)),
            random: RefCell::new(rng),
            executor,
            pool: Pool::new(POOL_KEEP),
            disks: RefCell::default(),
            files: RefCell::default(),
            answers: RefCell::default(),
            asked: RefCell::default(),
            folders: RefCell::default(),
            clock: Cell::new(0),
            ending: Rc::default(),
            fences: RefCell::default(),
        }))
    }

    /// A world with the disks of another one, after a power loss. The draws from `seed` differ from earlier ones: an
    /// identity that a layer draws anew must never be one that is still on its disks.
    pub fn from_images(seed: u64, images: &Images) -> Simulation {
        let lives = images.values().map(Image::lives).max().unwrap_or(0);
        let world = Simulation::new(seed.wrapping_add(lives.wrapping_mul(LIFE)));
        for (path, image) in images {
            world.0.put_disk(path, image.clone());
        }
        world
    }

    /// The environment.
    pub fn env(&self) -> Rc<SimEnv> {
        Rc::clone(&self.0)
    }

    /// Runs `main` to its end, and other tasks meanwhile.
    pub fn run<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> std::result::Result<T, Hang> {
        self.0.executor.run(main)
    }

    /// Runs what can run now, without moving the clock.
    pub fn settle(&self) {
        self.0.executor.settle();
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.0.probe.observe(None);
        self.0.probe.set_fault(None);
        self.0.executor.shutdown();
        self.0.net.shutdown();
        self.0.disks.take();
    }
}

impl SimEnv {
    /// The disk at `path`.
    pub fn disk(&self, path: impl AsRef<Path>) -> Option<Rc<SimDisk>> {
        self.disks.borrow().get(path.as_ref()).cloned()
    }

    /// Adds a disk with the contents of `image` at `path`, or puts it in the place of the one there.
    pub fn put_disk(&self, path: impl AsRef<Path>, image: Image) -> Rc<SimDisk> {
        let path = path.as_ref();
        let seed = self.random.borrow_mut().u64(..);
        let (executor, probe) = (Rc::clone(&self.executor), Rc::clone(&self.probe));
        let disk = SimDisk::make(&path.to_string_lossy(), executor, probe, image, seed);
        self.disks.borrow_mut().insert(path.into(), Rc::clone(&disk));
        disk
    }

    /// Puts a small file at `path`. A file is no disk: it is never lost, and images do not have it.
    pub fn put_file(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        self.files.borrow_mut().insert(path.as_ref().into(), bytes.to_vec());
    }

    /// Answers the questions of [`Env::ask_secret`] from now on, one each and in this order.
    pub fn put_answers(&self, answers: &[&str]) {
        self.answers.replace(answers.iter().map(|answer| answer.as_bytes().to_vec()).collect());
    }

    /// The questions that were asked since the last call.
    pub fn take_questions(&self) -> Vec<Question> {
        self.asked.take()
    }

    /// The folder at `path`, as another machine has it: it loses nothing.
    pub fn shared_folder(&self, path: impl AsRef<Path>) -> Rc<SimFolder> {
        let mut folders = self.folders.borrow_mut();
        let folder = || SimFolder::new(Rc::clone(&self.executor), self.random.borrow_mut().u64(..));
        Rc::clone(folders.entry(path.as_ref().into()).or_insert_with(folder))
    }

    /// Hosts are fenced by `fences` from now on: see [`Env::fence`].
    pub fn fence_by(&self, fences: impl Fn(&str) -> Pending + 'static) {
        self.fences.replace(Some(Rc::new(fences)));
    }

    /// The contents of all disks after the power loss `loss`; `seed` decides the open points.
    pub fn images(&self, loss: Loss, seed: u64) -> Images {
        let rng = &mut Rng::with_seed(seed);
        self.disks.borrow().iter().map(|(path, disk)| (path.clone(), disk.image(loss, rng.u64(..)))).collect()
    }

    /// Everything that all disks hold, durable or not.
    pub fn twins(&self) -> Images {
        self.disks.borrow().iter().map(|(path, disk)| (path.clone(), disk.twin())).collect()
    }

    /// The contents of all disks for the next process if this one dies now.
    pub fn orphans(&self) -> Images {
        self.disks.borrow().iter().map(|(path, disk)| (path.clone(), disk.orphan())).collect()
    }

    /// The contents after a death: `how` draws one of the process, or a power loss of any kind, and `seed` decides the
    /// open points.
    pub fn after_death(&self, how: u64, seed: u64) -> Images {
        match Loss::ALL.get((how % 5) as usize) {
            Some(loss) => self.images(*loss, seed),
            None => self.orphans(),
        }
    }

    /// Asks this world's core to end ([`Env::ending`]).
    pub fn end_soon(&self) {
        self.ending.ask();
    }

    /// Whether this world's core was asked to end.
    pub fn is_ending(&self) -> bool {
        self.ending.is_asked()
    }

    /// All disks.
    pub fn disks(&self) -> Vec<Rc<SimDisk>> {
        self.disks.borrow().values().cloned().collect()
    }

    /// Makes requests to simulated disks fail as `fault` says.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.probe.set_fault(fault);
    }

    /// Calls `observer` before every change of a disk's contents, or of their durable part.
    pub fn observe(&self, observer: Option<Rc<dyn Fn()>>) {
        self.probe.observe(observer);
    }

    /// Requests that reached a simulated disk so far.
    pub fn disk_requests(&self) -> u64 {
        self.probe.requests()
    }

    /// A breach of the contract that a disk noticed, once.
    pub fn take_finding(&self) -> Option<String> {
        self.probe.take_finding()
    }

    /// The next number of a clock that only orders events.
    pub fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Goes on with the numbers of [`SimEnv::tick`] behind `tick`, that of another life.
    pub(crate) fn skip_to(&self, tick: u64) {
        self.clock.set(self.clock.get().max(tick));
    }

    /// Tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.executor.tasks()
    }

    /// A hash over every scheduling decision and every disk request so far.
    pub fn trace_hash(&self) -> u64 {
        self.executor.hash()
    }

    /// The network, to cut it.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Starts a task whose result can be awaited.
    pub fn start<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Started<T> {
        let state = Rc::new(Ended { value: RefCell::new(None), signal: lamina_block::Signal::new() });
        let theirs = Rc::clone(&state);
        self.executor.spawn(Box::pin(async move {
            let value = work.await;
            *theirs.value.borrow_mut() = Some(value);
            theirs.signal.notify();
        }));
        Started(state)
    }
}

struct Ended<T> {
    value: RefCell<Option<T>>,
    signal: lamina_block::Signal,
}

/// A started task, which runs whether it is awaited or not.
pub struct Started<T>(Rc<Ended<T>>);

impl<T> Started<T> {
    /// Waits for its end.
    pub async fn ended(self) -> T {
        loop {
            if let Some(value) = self.0.value.borrow_mut().take() {
                return value;
            }
            self.0.signal.wait().await;
        }
    }
}

impl Env for SimEnv {
    fn now(&self) -> Time {
        self.executor.now()
    }

    fn sleep(&self, d: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(self.executor.sleep(d))
    }

    fn ending(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.ending.wait()
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.executor.spawn(task);
    }

    fn random(&self) -> u64 {
        self.random.borrow_mut().u64(..)
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn open_disk(&self, open: OpenDisk) -> Pending<Rc<dyn Layer>> {
        let opened = self.open(&open);
        Box::pin(async move { opened })
    }

    fn open_zoned(&self, path: PathBuf) -> Pending<Rc<dyn Layer>> {
        let found = match self.disk(&path) {
            Some(disk) if disk.zones().is_some() => Ok(disk as Rc<dyn Layer>),
            Some(_) => Err(Error::unsupported(format!("{} has no sequential zones", path.display()))),
            None => Err(Error::offline(format!("there is no simulated disk {}", path.display()))),
        };
        Box::pin(async move { found })
    }

    /// The disk that has the image's name, in any pool.
    fn open_rbd(&self, open: OpenRbd) -> Pending<Rc<dyn Layer>> {
        let path = open.image.into();
        self.open_disk(OpenDisk { path, read_only: open.read_only, direct: true, create: None, block: None })
    }

    fn connect(&self, to: Address) -> Pending<Rc<dyn Conn>> {
        self.net.connect("", to)
    }

    fn listen(&self, at: Address) -> Result<Rc<dyn Listener>> {
        self.net.listen(at)
    }

    fn read_file(&self, path: PathBuf, max: usize) -> Pending<Vec<u8>> {
        let found = self.files.borrow().get(&path).cloned();
        Box::pin(async move {
            let bytes =
                found.ok_or_else(|| Error::offline(format!("there is no file {}", path.display())))?;
            let fits = bytes.len() <= max;
            fits.then_some(bytes).ok_or_else(|| Error::invalid(format!("{} is too long", path.display())))
        })
    }

    fn ask_secret(&self, question: Question) -> Pending<Vec<u8>> {
        let none = Error::unsupported(format!("there is no person to ask for the {}", question.of));
        self.asked.borrow_mut().push(question);
        let answer = self.answers.borrow_mut().pop_front().ok_or(none);
        Box::pin(async move { answer })
    }

    fn read_text(&self, path: PathBuf, max: usize) -> Pending<String> {
        let read = self.read_file(path.clone(), max);
        Box::pin(async move {
            let no_text = |_| Error::invalid(format!("{} is no text", path.display()));
            String::from_utf8(read.await?).map_err(no_text)
        })
    }

    fn folder(&self, path: PathBuf) -> Result<Rc<dyn Folder>> {
        Ok(self.shared_folder(path))
    }

    fn fence(&self, host: &str) -> Pending {
        let fences = self.fences.borrow().clone();
        match fences {
            Some(fences) => fences(host),
            None => Box::pin(async { Err(Error::unsupported("no host is fenced here")) }),
        }
    }

    /// From the seed, as everything here: no secret at all.
    fn secret(&self, into: &mut [u8]) -> Result<()> {
        self.random.borrow_mut().fill(into);
        Ok(())
    }
}

impl SimEnv {
    fn open(&self, open: &OpenDisk) -> Result<Rc<dyn Layer>> {
        let mut disk = self.disk(&open.path);
        if let (None, Some(size), false) = (&disk, open.create, open.read_only) {
            let mut options = DiskOptions::new(size);
            options.geometry.block = open.block.unwrap_or(512);
            disk = Some(self.put_disk(&open.path, Image::blank(options)));
        }
        let disk = disk
            .ok_or_else(|| Error::offline(format!("there is no simulated disk {}", open.path.display())))?;
        match disk.geometry().block == open.block.unwrap_or(disk.geometry().block) {
            true if open.read_only => Ok(Rc::new(ReadOnly(disk))),
            true => Ok(disk),
            false => Err(Error::invalid(format!("its blocks have {} bytes", disk.geometry().block))),
        }
    }
}

/// A disk opened for reading only.
struct ReadOnly(Rc<SimDisk>);

impl Layer for ReadOnly {
    fn geometry(&self) -> lamina_block::Geometry {
        lamina_block::Geometry { read_only: true, ..self.0.geometry() }
    }

    fn submit(self: Rc<Self>, io: &mut lamina_block::Io) -> lamina_block::Step {
        Rc::clone(&self.0).submit(io)
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: std::ops::Range<u64>) -> Pending<Vec<lamina_block::Extent>> {
        Rc::clone(&self.0).extents(at)
    }
}

impl Manage for ReadOnly {}
