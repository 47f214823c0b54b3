//! The real environment: this machine's clock, disks and sockets.

use crate::executor::Executor;
use crate::folder::HostFolder;
use crate::helper::Helpers;
use crate::ring::Ring;
use crate::timers::{Sleep, Timers};
use crate::{Access, Asker, Event, Fencer, disk, file, net, rbd, secret};
use lamina_block::{
    Address, Conn, Ending, Env, Error, Folder, Layer, Listener, OpenDisk, OpenRbd, Pending, Pool, Question,
    Result, Time,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The context of sinks and sockets.
#[derive(Clone)]
pub(crate) struct Tools {
    pub ring: Rc<Ring>,
    pub pool: Pool,
    pub helpers: Rc<Helpers>,
    pub timers: Rc<Timers>,
    pub clock: Rc<Clock>,
    pub disk_work: Rc<DiskWork>,
}

/// Requests that disks are working on.
#[derive(Default)]
pub(crate) struct DiskWork(Cell<usize>);

impl DiskWork {
    /// True if there are any.
    pub fn is_under_way(&self) -> bool {
        self.0.get() > 0
    }

    /// One more, until the drop.
    pub fn begin(self: &Rc<Self>) -> impl Drop + use<> {
        self.0.update(|n| n + 1);
        Ended(Rc::clone(self))
    }
}

struct Ended(Rc<DiskWork>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.0.update(|n| n - 1);
    }
}

impl Tools {
    /// From the real time, not the turn's: the turn may have lasted, and a sleep is never too short.
    pub fn sleep(&self, d: Duration) -> Sleep {
        self.timers.sleep(self.clock.read().after(d))
    }
}

/// The environment of tasks on a reactor.
pub struct Host {
    tools: Tools,
    pub(crate) executor: Executor,
    random: RefCell<fastrand::Rng>,
    ending: Rc<Ending>,
    fencer: Option<Arc<Fencer>>,
    asker: Option<Arc<Asker>>,
    worked: Cell<Duration>,
}

impl Host {
    pub(crate) fn new(
        ring: Rc<Ring>,
        executor: Executor,
        pool: usize,
        fencer: Option<Arc<Fencer>>,
        asker: Option<Arc<Asker>>,
    ) -> Rc<Host> {
        Rc::new(Host {
            tools: Tools {
                ring,
                pool: Pool::new(pool),
                helpers: Rc::default(),
                timers: Rc::default(),
                clock: Rc::new(Clock::new()),
                disk_work: Rc::default(),
            },
            executor,
            random: RefCell::new(fastrand::Rng::new()),
            ending: Rc::default(),
            fencer,
            asker,
            worked: Cell::default(),
        })
    }

    pub(crate) fn ring(&self) -> &Rc<Ring> {
        &self.tools.ring
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.tools.timers
    }

    pub(crate) fn disk_work(&self) -> &DiskWork {
        &self.tools.disk_work
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.tools.clock
    }

    /// An eventfd whose signals are read through the reactor.
    pub fn event(&self, fd: OwnedFd) -> Rc<Event> {
        Event::new(self.ring(), fd)
    }

    /// The same as [`Env::listen`] for others than this user, too (a TCP address has no such rights), and the core goes
    /// on meanwhile: a name may take long to be found, and a folder to answer.
    pub async fn listen_for(&self, at: Address, access: &Access) -> Result<Rc<dyn Listener>> {
        let access = *access;
        let bound = self.tools.helpers.run(move || net::Bound::bind(&at, &access)).await??;
        Ok(bound.listener(&self.tools))
    }

    /// The core has worked for so long: see [`Env::worked`].
    pub(crate) fn has_worked(&self, time: Duration) {
        self.worked.set(self.worked.get() + time);
    }

    /// Asks the core to end: see [`Env::ending`].
    pub fn end_soon(&self) {
        self.ending.ask();
    }

    /// Runs a task on this core until its end. The same as [`Env::spawn`] without a box around the future.
    ///
    /// Tasks that are ready run in the order in which they were woken, before the kernel is entered again.
    pub fn task(&self, task: impl Future<Output = ()> + 'static) {
        self.executor.spawn(task);
    }
}

impl Env for Host {
    fn now(&self) -> Time {
        self.tools.clock.now()
    }

    fn worked(&self) -> Duration {
        self.worked.get()
    }

    fn unix_time(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn sleep(&self, d: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(self.tools.sleep(d))
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(self.tools.timers.exact(at))
    }

    fn ending(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.ending.wait()
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.executor.spawn(task);
    }

    /// From a generator seeded by the system; not for secrets.
    fn random(&self) -> u64 {
        self.random.borrow_mut().u64(..)
    }

    fn pool(&self) -> &Pool {
        &self.tools.pool
    }

    fn open_disk(&self, open: OpenDisk) -> Pending<Rc<dyn Layer>> {
        Box::pin(disk::open(self.tools.clone(), open))
    }

    fn open_zoned(&self, path: PathBuf) -> Pending<Rc<dyn Layer>> {
        Box::pin(disk::open_zoned(self.tools.clone(), path))
    }

    fn open_rbd(&self, open: OpenRbd) -> Pending<Rc<dyn Layer>> {
        Box::pin(rbd::open(open))
    }

    fn connect(&self, to: Address) -> Pending<Rc<dyn Conn>> {
        Box::pin(net::connect(self.tools.clone(), to))
    }

    fn listen(&self, at: Address) -> Result<Rc<dyn Listener>> {
        Ok(net::Bound::bind(&at, &Access::default())?.listener(&self.tools))
    }

    fn fence(&self, host: &str) -> Pending {
        match &self.fencer {
            Some(fencer) => Box::pin(Arc::clone(fencer).fence(host.into())),
            None => {
                let message =
                    "`lamina serve --fence PROGRAM` names a program that fences hosts, and there is none";
                Box::pin(async move { Err(Error::unsupported(message)) })
            }
        }
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> Pending {
        let done = self.tools.helpers.run(work);
        Box::pin(async move { Ok(done.await?) })
    }

    fn read_file(&self, path: PathBuf, max: usize) -> Pending<Vec<u8>> {
        let read = self.tools.helpers.run(move || file::read_key(&path, max));
        Box::pin(async move { read.await? })
    }

    fn ask_secret(&self, question: Question) -> Pending<Vec<u8>> {
        match &self.asker {
            Some(asker) => Box::pin(Arc::clone(asker).ask(Rc::clone(&self.tools.helpers), question)),
            None => {
                let message = format!("this program asks for no secrets, such as the {}", question.of);
                Box::pin(async move { Err(Error::unsupported(message)) })
            }
        }
    }

    fn read_text(&self, path: PathBuf, max: usize) -> Pending<String> {
        let read = self.tools.helpers.run(move || file::read_text(&path, max));
        Box::pin(async move { read.await? })
    }

    fn folder(&self, path: PathBuf) -> Result<Rc<dyn Folder>> {
        Ok(Rc::new(HostFolder::new(path, Rc::clone(&self.tools.helpers))))
    }

    fn guard_key(&self, path: &Path) {
        // The read reports a wrong file.
        if let Ok(meta) = std::fs::metadata(path) {
            secret::guard(path, &meta);
        }
    }

    fn secret(&self, into: &mut [u8]) -> Result<()> {
        let mut rest = into;
        while !rest.is_empty() {
            let got = getrandom(&mut *rest, GetRandomFlags::empty()).map_err(std::io::Error::from)?;
            rest = &mut rest[got..];
        }
        Ok(())
    }
}

/// The monotonic clock, with the time of this turn.
pub(crate) struct Clock {
    start: Instant,
    now: Cell<Time>,
}

impl Clock {
    fn new() -> Clock {
        Clock { start: Instant::now(), now: Cell::default() }
    }

    /// The real time.
    pub fn read(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// The time of this turn.
    pub fn now(&self) -> Time {
        self.now.get()
    }

    /// A turn begins: its time.
    pub fn turn(&self) -> Time {
        self.now.set(self.read());
        self.now.get()
    }
}
