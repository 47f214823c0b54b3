//! Tasks and the clock: the next task is drawn from the seed, and time moves only when nothing can run.
//!
//! Every decision goes into a hash, so that two runs can be compared. A hang is found: if no task can run and no timer
//! is set, the run ends with [`Hang::Deadlock`]; if it takes too many steps, with [`Hang::Livelock`]. Runs that measure
//! rather than test may take as long as they like, and their tasks run in the order in which they became ready.

use async_task::{Builder, Runnable, Task};
use fastrand::Rng;
use lamina_block::Time;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The most steps of one run, and the most time that may pass in it: far more than any healthy run needs.
const STEPS_MAX: u64 = 2_000_000;
const TIME_MAX: u64 = 3_600_000_000_000;

/// Tasks that can run, shared with their wakers. A mutex because wakers are `Send`; it is never contended.
type Ready = Arc<Mutex<VecDeque<Runnable<u64>>>>;

/// Why a run did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// Nothing can run and no timer is set.
    Deadlock {
        /// Tasks that wait for ever.
        tasks: usize,
    },
    /// Two million steps, or an hour of simulated time, without an end.
    Livelock,
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hang::Deadlock { tasks } => {
                write!(f, "the run hangs: {tasks} tasks wait, nothing can run and no timer is set")
            }
            Hang::Livelock => {
                f.write_str("the run never ends: 2,000,000 steps or an hour of simulated time passed")
            }
        }
    }
}

pub(crate) struct Executor {
    ready: Ready,
    /// Tasks that have not ended; dropping one cancels it.
    tasks: RefCell<BTreeMap<u64, Task<(), u64>>>,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    /// Picks the next task; without it they take turns, and no run is too long.
    rng: Option<RefCell<Rng>>,
    now: Cell<u64>,
    /// Numbers tasks and timers.
    next: Cell<u64>,
    steps: Cell<u64>,
    /// When the clock has gone too far for this run.
    deadline: Cell<u64>,
    hash: Cell<u64>,
}

impl Executor {
    /// One whose tasks run in an order drawn from `seed`, or in that in which they became ready.
    pub(crate) fn new(seed: Option<u64>) -> Rc<Executor> {
        Rc::new(Executor {
            ready: Ready::default(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            rng: seed.map(|seed| RefCell::new(Rng::with_seed(seed))),
            now: Cell::new(0),
            next: Cell::new(0),
            steps: Cell::new(0),
            deadline: Cell::new(TIME_MAX),
            hash: Cell::new(0),
        })
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.now.get())
    }

    /// Tasks that have not ended.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// A hash over every decision so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// Adds something that happened to the hash.
    pub(crate) fn trace(&self, what: u64) {
        let mixed = (self.hash.get().rotate_left(5) ^ what).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.hash.set(mixed);
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    pub(crate) fn spawn(self: &Rc<Self>, work: Pin<Box<dyn Future<Output = ()>>>) {
        let id = self.number();
        let executor = Rc::downgrade(self);
        let work = async move {
            work.await;
            if let Some(executor) = executor.upgrade() {
                // Removed by its own end: there is nothing left to cancel.
                let ended = executor.tasks.borrow_mut().remove(&id);
                if let Some(task) = ended {
                    task.detach();
                }
            }
        };
        let ready = Arc::clone(&self.ready);
        let schedule = move |task| lock(&ready).push_back(task);
        let (runnable, task) = Builder::new().metadata(id).spawn_local(move |_| work, schedule);
        self.tasks.borrow_mut().insert(id, task);
        runnable.schedule();
    }

    /// Runs until `main` has ended. Other tasks stay as they are, for the next call.
    pub(crate) fn run<T: 'static>(
        self: &Rc<Self>,
        main: impl Future<Output = T> + 'static,
    ) -> Result<T, Hang> {
        let slot = Rc::new(RefCell::new(None));
        let result = Rc::clone(&slot);
        self.spawn(Box::pin(async move {
            let value = main.await;
            *result.borrow_mut() = Some(value);
        }));
        self.begin();
        loop {
            if let Some(value) = slot.borrow_mut().take() {
                return Ok(value);
            }
            self.step()?;
        }
    }

    /// Runs what can run, without moving the clock.
    pub(crate) fn settle(&self) {
        self.begin();
        while !lock(&self.ready).is_empty() {
            if self.step().is_err() {
                return;
            }
        }
    }

    /// Each run has steps and time of its own.
    fn begin(&self) {
        self.steps.set(0);
        // The clock may stand at the end of time, where a request without an end was waited for.
        self.deadline.set(self.now.get().saturating_add(TIME_MAX));
    }

    fn step(&self) -> Result<(), Hang> {
        match self.pick() {
            Some(task) => {
                self.steps.set(self.steps.get() + 1);
                self.trace(*task.metadata());
                task.run();
            }
            None => self.advance()?,
        }
        let too_long = self.steps.get() >= STEPS_MAX || self.now.get() >= self.deadline.get();
        if too_long && self.rng.is_some() { Err(Hang::Livelock) } else { Ok(()) }
    }

    fn pick(&self) -> Option<Runnable<u64>> {
        let mut ready = lock(&self.ready);
        let n = ready.len();
        match &self.rng {
            Some(rng) if n > 0 => ready.swap_remove_back(rng.borrow_mut().usize(0..n)),
            Some(_) | None => ready.pop_front(),
        }
    }

    /// Jumps to the next timer and wakes all that are due then.
    fn advance(&self) -> Result<(), Hang> {
        let Some(due) = self.timers.borrow().keys().next().map(|(at, _)| *at) else {
            return Err(Hang::Deadlock { tasks: self.tasks() });
        };
        self.now.set(due);
        // The waker may drop a sleep, which takes its timer away: no borrow while it is called.
        while let Some(waker) = self.take_due(due) {
            waker.wake();
        }
        Ok(())
    }

    fn take_due(&self, due: u64) -> Option<Waker> {
        let mut timers = self.timers.borrow_mut();
        let first = timers.first_entry()?;
        (first.key().0 <= due).then(|| first.remove())
    }

    pub(crate) fn sleep(self: &Rc<Self>, d: Duration) -> Sleep {
        Sleep { executor: Rc::clone(self), at: self.now().after(d), timer: None }
    }

    /// Drops all tasks. They hold the environment that holds this executor: without it, nothing is ever freed.
    pub(crate) fn shutdown(&self) {
        loop {
            drop(self.tasks.take());
            self.timers.take();
            let ready = std::mem::take(&mut *lock(&self.ready));
            if ready.is_empty() && self.tasks() == 0 {
                return;
            }
        }
    }
}

fn lock(ready: &Ready) -> std::sync::MutexGuard<'_, VecDeque<Runnable<u64>>> {
    ready.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets others run before the caller goes on.
pub(crate) async fn give_way() {
    let mut given = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

pub(crate) struct Sleep {
    executor: Rc<Executor>,
    at: Time,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.executor.now() >= self.at {
            return Poll::Ready(());
        }
        let key = match self.timer {
            Some(key) => key,
            None => (self.at.0, self.executor.number()),
        };
        self.timer = Some(key);
        self.executor.timers.borrow_mut().insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer {
            self.executor.timers.borrow_mut().remove(&key);
        }
    }
}
