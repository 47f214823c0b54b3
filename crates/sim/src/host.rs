//! A host of several in one world: it can be stopped as by SIGSTOP, or as a whole with its clock, go on, and die as by
//! SIGKILL.
//!
//! Disks and the network are the world's; what makes a host is that its tasks run or do not, its clock, its name in the
//! network, and how it sees folders that others see too. A stopped host has requests under way that go on when it
//! does, however late that is.

use crate::env::SimEnv;
use crate::folder::SimFolder;
use lamina_block::{Address, Conn, Env, Folder, Layer, Listener, OpenDisk, Pending, Pool, Result, Time};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Whether the tasks of a host run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Yes,
    Stopped,
    Dead,
}

/// The environment of a host in a world that others share.
pub struct SimHost {
    world: Rc<SimEnv>,
    name: String,
    gate: Rc<Gate>,
    clock: Rc<Clock>,
    /// Folders as this host sees them.
    folders: RefCell<BTreeMap<PathBuf, Rc<SimFolder>>>,
}

/// The clock of a host. A sleep that has begun is as long as the clock says when it ends.
struct Clock {
    world: Rc<SimEnv>,
    /// At a moment of the world it has shown this; and since then it has run so many thousandths as fast.
    since: Cell<(Time, Time)>,
    rate: Cell<u32>,
}

/// The rate of a clock that is right.
const RIGHT: u32 = 1000;
/// How often a clock that stands still is looked at by whoever sleeps.
const STILL: Duration = Duration::from_millis(100);

impl Clock {
    fn now(&self) -> Time {
        let (world, shown) = self.since.get();
        let passed = u128::from(self.world.now().0 - world.0) * u128::from(self.rate.get());
        Time(shown.0 + (passed / u128::from(RIGHT)) as u64)
    }

    fn set(&self, now: Time, rate: u32) {
        self.since.set((self.world.now(), now));
        self.rate.set(rate);
    }

    /// How long the world takes until this clock shows `until`.
    fn left(&self, until: Time) -> Duration {
        let left = until.since(self.now()).as_nanos() as u64;
        match u64::from(self.rate.get()) {
            0 => STILL,
            rate => Duration::from_nanos((left * u64::from(RIGHT)).div_ceil(rate)),
        }
    }

    async fn sleep(self: Rc<Self>, d: Duration) {
        let until = self.now().after(d);
        while self.now() < until {
            self.world.sleep(self.left(until)).await;
        }
    }
}

struct Gate {
    runs: Cell<Runs>,
    /// How often that has changed.
    changes: Cell<u64>,
    /// The tasks, to be woken when it changes next.
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    fn set(&self, runs: Runs) {
        if self.runs.get() != Runs::Dead {
            self.runs.set(runs);
        }
        self.changes.set(self.changes.get() + 1);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
}

impl SimHost {
    /// A host that runs.
    pub fn new(world: &Rc<SimEnv>, name: &str) -> Rc<SimHost> {
        let gate = Gate { runs: Cell::new(Runs::Yes), changes: Cell::new(0), waiting: RefCell::default() };
        let since = Cell::new((world.now(), world.now()));
        let clock = Clock { world: Rc::clone(world), since, rate: Cell::new(RIGHT) };
        let (name, folders) = (name.into(), RefCell::default());
        Rc::new(SimHost {
            world: Rc::clone(world),
            name,
            gate: Rc::new(gate),
            clock: Rc::new(clock),
            folders,
        })
    }

    /// Its name in the network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder at `path` as this host sees it: its faults are for this host alone.
    pub fn shared_folder(&self, path: impl AsRef<Path>) -> Rc<SimFolder> {
        let view = || self.world.shared_folder(path.as_ref()).view();
        Rc::clone(self.folders.borrow_mut().entry(path.as_ref().into()).or_insert_with(view))
    }

    /// Its clock runs so many thousandths as fast as that of the world from now on.
    pub fn set_clock_rate(&self, thousandths: u32) {
        self.clock.set(self.clock.now(), thousandths);
    }

    /// Its clock jumps ahead. What sleeps has been asked to sleep for a time, and does.
    pub fn jump(&self, by: Duration) {
        self.clock.set(self.clock.now().after(by), self.clock.rate.get());
    }

    /// The world.
    pub fn world(&self) -> &Rc<SimEnv> {
        &self.world
    }

    /// True unless it is stopped or dead.
    pub fn is_running(&self) -> bool {
        self.gate.runs.get() == Runs::Yes
    }

    /// True if it has died.
    pub fn is_dead(&self) -> bool {
        self.gate.runs.get() == Runs::Dead
    }

    /// Nothing of it runs any more, until it goes on.
    pub fn stop(&self) {
        self.gate.set(Runs::Stopped);
    }

    /// The machine stops: nothing of it runs, and its clock stands still.
    pub fn stop_with_clock(&self) {
        self.set_clock_rate(0);
        self.stop();
    }

    /// It goes on where it was stopped.
    pub fn go_on(&self) {
        if self.clock.rate.get() == 0 {
            self.set_clock_rate(RIGHT);
        }
        self.gate.set(Runs::Yes);
    }

    /// Its tasks end where they are. What they have begun on disks is done or not.
    pub fn kill(&self) {
        self.gate.set(Runs::Dead);
    }
}

impl Env for SimHost {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn sleep(&self, d: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(Rc::clone(&self.clock).sleep(d))
    }

    fn ending(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.world.ending()
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        let (gate, mut task, mut waits) = (Rc::clone(&self.gate), Some(task), None);
        self.world.spawn(Box::pin(std::future::poll_fn(move |cx| {
            if gate.runs.get() == Runs::Dead {
                task = None;
            }
            let Some(running) = &mut task else { return Poll::Ready(()) };
            if gate.runs.get() == Runs::Yes && running.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            // What it waits for wakes it, and so does the end of a stop. The waker of a task is always the same one.
            let changes = gate.changes.get();
            if waits.replace(changes) != Some(changes) {
                gate.waiting.borrow_mut().push(cx.waker().clone());
            }
            Poll::Pending
        })));
    }

    fn random(&self) -> u64 {
        self.world.random()
    }

    fn pool(&self) -> &Pool {
        self.world.pool()
    }

    fn open_disk(&self, open: OpenDisk) -> Pending<Rc<dyn Layer>> {
        self.world.open_disk(open)
    }

    fn connect(&self, to: Address) -> Pending<Rc<dyn Conn>> {
        self.world.net().connect(&self.name, to)
    }

    fn listen(&self, at: Address) -> Result<Rc<dyn Listener>> {
        self.world.listen(at)
    }

    fn read_file(&self, path: PathBuf, max: usize) -> Pending<Vec<u8>> {
        self.world.read_file(path, max)
    }

    fn folder(&self, path: PathBuf) -> Result<Rc<dyn Folder>> {
        Ok(self.shared_folder(path))
    }

    fn secret(&self, into: &mut [u8]) -> Result<()> {
        self.world.secret(into)
    }

    /// A program that has begun goes on without its host.
    fn fence(&self, host: &str) -> Pending {
        self.world.fence(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fate, Simulation};
    use lamina_block::Buf;

    #[test]
    fn a_stopped_host_goes_on_and_a_dead_one_does_not() {
        let world = Simulation::new(1);
        let env = world.env();
        let run = async move {
            let host = SimHost::new(&env, "a");
            let count = Rc::new(Cell::new(0));
            let (counts, clock) = (Rc::clone(&count), Rc::clone(&host));
            host.spawn(Box::pin(async move {
                loop {
                    clock.sleep(Duration::from_secs(1)).await;
                    counts.set(counts.get() + 1);
                }
            }));
            env.sleep(Duration::from_millis(3500)).await;
            assert_eq!(count.get(), 3);
            host.stop();
            env.sleep(Duration::from_secs(60)).await;
            assert_eq!(count.get(), 3);
            host.go_on();
            env.sleep(Duration::from_millis(1500)).await;
            assert_eq!(count.get(), 5, "the sleep that was over, and another one");
            host.kill();
            host.go_on();
            env.sleep(Duration::from_secs(60)).await;
            assert_eq!((count.get(), Rc::strong_count(&count)), (5, 1), "its tasks are gone");
        };
        world.run(run).expect("it ends");
    }

    #[test]
    fn a_machine_that_is_stopped_has_a_clock_that_stands_still() {
        let world = Simulation::new(1);
        let env = world.env();
        let run = async move {
            let host = SimHost::new(&env, "a");
            let woken = Rc::new(Cell::new(false));
            let (wakes, clock) = (Rc::clone(&woken), Rc::clone(&host));
            host.spawn(Box::pin(async move {
                clock.sleep(Duration::from_secs(10)).await;
                wakes.set(true);
            }));
            env.sleep(Duration::from_secs(4)).await;
            host.stop_with_clock();
            env.sleep(Duration::from_secs(60)).await;
            assert_eq!(host.now(), Time(4_000_000_000));
            host.go_on();
            env.sleep(Duration::from_millis(5800)).await;
            assert!(!woken.get(), "it has slept 9.8 s of its own");
            env.sleep(Duration::from_millis(400)).await;
            assert!(woken.get());
            host.set_clock_rate(900);
            let (began, world) = (host.now(), env.now());
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(
                (host.now().since(began), env.now().since(world).as_secs()),
                (Duration::from_secs(9), 10)
            );
            host.jump(Duration::from_secs(5));
            assert_eq!(host.now().since(began), Duration::from_secs(14));
        };
        world.run(run).expect("it ends");
    }

    #[test]
    fn a_folder_fails_for_one_host_and_not_for_another() {
        let world = Simulation::new(1);
        let env = world.env();
        let run = async move {
            let [a, b] = ["a", "b"].map(|name| SimHost::new(&env, name));
            let folder = |host: &Rc<SimHost>| host.folder("/f".into()).expect("a folder");
            let seen = Rc::new(Cell::new(0));
            let count = Rc::clone(&seen);
            let watcher = move |name: &str, bytes: &[u8]| {
                assert_eq!((name, bytes), ("x", &[7][..]));
                count.set(count.get() + 1);
            };
            env.shared_folder("/f").watch(Some(Rc::new(watcher)));
            for (fate, is_done) in [(Fate::Lost, false), (Fate::Late, false), (Fate::Unanswered, true)] {
                a.shared_folder("/f").set_fate(fate);
                assert!(folder(&a).replace("x", vec![7]).await.is_err());
                let found = folder(&b).read("x", 9).await.expect("b reaches it");
                assert_eq!(found.is_some(), is_done, "{fate:?}");
                env.sleep(Duration::from_secs(3)).await;
                let found = folder(&b).read("x", 9).await.expect("b reaches it");
                assert_eq!(found.is_some(), fate != Fate::Lost, "{fate:?} and some time");
                folder(&b).remove("x").await.expect("removed");
            }
            assert_eq!(seen.get(), 2);
            a.shared_folder("/f").set_fate(Fate::Done);
            a.shared_folder("/f").set_fate_of_changes(Fate::Unanswered);
            assert!(folder(&a).create("x", vec![7]).await.is_err());
            assert_eq!(folder(&a).read("x", 9).await, Ok(Some(vec![7])), "it can be read that it was done");
        };
        world.run(run).expect("it ends");
    }

    #[test]
    fn what_a_host_sends_is_held_back_in_one_direction() {
        let world = Simulation::new(1);
        let env = world.env();
        let run = async move {
            let [a, b] = ["a", "b"].map(|name| SimHost::new(&env, name));
            let at = Address::Tcp("b:1".into());
            let listener = b.listen(at.clone()).expect("it listens");
            let here = a.connect(at.clone()).await.expect("connected");
            let there = listener.accept().await.expect("accepted");
            env.net().block("a", "b");
            here.send(Buf::from_vec(vec![1])).await.expect("sent");
            there.send(Buf::from_vec(vec![2])).await.expect("sent");
            let into = Buf::zeroed(1);
            assert_eq!(here.recv(into.clone()).await, Ok(1), "the other direction is whole");
            let (heard, hears) = (Rc::new(Cell::new(None)), Rc::clone(&there));
            let told = Rc::clone(&heard);
            env.spawn(Box::pin(async move { told.set(hears.recv(Buf::zeroed(1)).await.ok()) }));
            env.sleep(Duration::from_secs(60)).await;
            assert_eq!(heard.get(), None);
            env.net().unblock("a", "b");
            env.sleep(Duration::from_secs(1)).await;
            assert_eq!(heard.get(), Some(1));
            env.net().cut_host("b");
            assert!(here.recv(into.clone()).await.is_err());
            let again = a.connect(at).await.expect("connected");
            env.net().silence_host("b");
            let is_silent = Rc::new(Cell::new(true));
            let (told, hears) = (Rc::clone(&is_silent), Rc::clone(&again));
            env.spawn(Box::pin(async move {
                let _whatever = hears.recv(into).await;
                told.set(false);
            }));
            env.sleep(Duration::from_secs(600)).await;
            assert!(is_silent.get(), "nobody says anything");
            again.shutdown();
            env.sleep(Duration::from_secs(1)).await;
            assert!(!is_silent.get(), "an end knows that it has shut the connection down");
        };
        world.run(run).expect("it ends");
    }
}
