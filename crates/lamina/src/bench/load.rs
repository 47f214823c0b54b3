//! The load itself: workers that each have one request in flight.

use super::cpu;
use super::report::{Latencies, Report};
use crate::cli::Mix;
use crate::clients::let_others_run;
use lamina_block::{Buf, Durability, Env, Error, Io, Node, Signal, Time};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// After so many requests that were complete at once a worker lets the others run.
const UNBROKEN_MAX: u32 = 64;

/// What a request takes in virtual time if nothing else does: a load that only memory answers must end, too.
const ANSWERED: Duration = Duration::from_micros(1);

/// The time of a load.
pub enum Clock {
    /// The machine's, since a moment.
    Machine(Instant),
    /// That of a simulated world.
    Virtual(Rc<dyn Env>),
}

impl Clock {
    /// The present moment.
    pub fn now(&self) -> Time {
        match self {
            Clock::Machine(begin) => Time(0).after(begin.elapsed()),
            Clock::Virtual(env) => env.now(),
        }
    }
}

/// The parameters of the load.
pub struct Load {
    pub mix: Mix,
    /// Of 100 requests of a mixed load, so many are reads.
    pub reads: u8,
    /// Bytes of a request.
    pub block: u64,
    /// Requests in flight.
    pub depth: u32,
    pub sequential: bool,
    /// A worker flushes after so many of its writes.
    pub flush_every: Option<u32>,
    /// Bytes of the device that are used; a multiple of `block`.
    pub size: u64,
    pub ramp: Duration,
    pub time: Duration,
    pub seed: u64,
    /// The process whose CPU time is reported too.
    pub server: Option<u32>,
}

/// The state that workers share.
struct Run {
    load: Load,
    node: Rc<Node>,
    clock: Clock,
    /// When the ramp ends.
    begin: Time,
    /// CPU times at the first request that was complete after that: the measured time begins with it, so that there is
    /// something to report however slow the machine is.
    before: Cell<Option<Used>>,
    random: RefCell<fastrand::Rng>,
    /// The next block of a sequential load.
    next: Cell<u64>,
    reads: RefCell<Latencies>,
    writes: RefCell<Latencies>,
    errors: Cell<u64>,
    first_error: RefCell<Option<Error>>,
    working: Cell<u32>,
    idle: Signal,
}

/// CPU time used so far, in nanoseconds.
#[derive(Clone, Copy)]
struct Used {
    at: Time,
    own: u64,
    server: Option<u64>,
}

impl Load {
    /// Loads `node` and waits until the last request is complete.
    pub async fn run(self, env: Rc<dyn Env>, clock: Clock, node: Rc<Node>) -> Report {
        let (begin, depth) = (clock.now().after(self.ramp), self.depth);
        let run = Rc::new(Run {
            random: RefCell::new(fastrand::Rng::with_seed(self.seed)),
            load: self,
            node,
            clock,
            begin,
            before: Cell::new(None),
            next: Cell::new(0),
            reads: RefCell::default(),
            writes: RefCell::default(),
            errors: Cell::new(0),
            first_error: RefCell::new(None),
            working: Cell::new(depth),
            idle: Signal::new(),
        });
        for _ in 0..depth {
            let buf = env.pool().take(run.load.block as usize);
            run.fill(&buf);
            let run = Rc::clone(&run);
            env.spawn(Box::pin(async move {
                run.work(buf).await;
                run.working.set(run.working.get() - 1);
                run.idle.notify();
            }));
        }
        run.idle.until(|| run.working.get() == 0).await;
        run.report()
    }
}

impl Run {
    /// Bytes that do not compress, so that no layer gets off lightly.
    fn fill(&self, buf: &Buf) {
        let mut bytes = vec![0; buf.len()];
        self.random.borrow_mut().fill(&mut bytes);
        buf.write(0, &bytes);
    }

    /// One request after the other, until the time is over or one fails.
    async fn work(&self, buf: Buf) {
        let (mut unbroken, mut unflushed) = (0, 0);
        loop {
            let started = self.clock.now();
            if self.end().is_some_and(|end| started >= end) {
                return;
            }
            let write = match self.load.mix {
                Mix::Read => false,
                Mix::Write => true,
                Mix::Mixed => self.random.borrow_mut().u8(0..100) >= self.load.reads,
            };
            let mut request = self.node.submit(self.io(&buf, write));
            let mut result = match request.ready() {
                Some(result) => {
                    unbroken += 1;
                    if unbroken >= UNBROKEN_MAX {
                        unbroken = 0;
                        let_others_run().await;
                    }
                    result
                }
                None => {
                    unbroken = 0;
                    request.await
                }
            };
            unflushed += write as u32;
            if result.is_ok() && self.load.flush_every.is_some_and(|every| unflushed >= every) {
                unflushed = 0;
                result = self.node.submit(Io::flush()).await;
            }
            if let Err(e) = result {
                self.errors.set(self.errors.get() + 1);
                self.first_error.borrow_mut().get_or_insert(e);
                return;
            }
            self.let_time_pass(started).await;
            self.count(write, started);
        }
    }

    /// In virtual time, a request takes some.
    async fn let_time_pass(&self, started: Time) {
        match &self.clock {
            Clock::Virtual(env) if env.now() == started => env.sleep(ANSWERED).await,
            Clock::Virtual(_) | Clock::Machine(_) => {}
        }
    }

    fn io(&self, buf: &Buf, write: bool) -> Io {
        let blocks = self.load.size / self.load.block;
        let index = if self.load.sequential {
            let index = self.next.get();
            self.next.set((index + 1) % blocks);
            index
        } else {
            self.random.borrow_mut().u64(0..blocks)
        };
        let at = index * self.load.block;
        if write { Io::write(at, buf.clone(), Durability::Cached) } else { Io::read(at, buf.clone()) }
    }

    /// Counts a request that was complete inside of the measured time.
    fn count(&self, write: bool, started: Time) {
        let now = self.clock.now();
        if now < self.begin || self.end().is_some_and(|end| now > end) {
            return;
        }
        if self.before.get().is_none() {
            self.before.set(Some(self.used()));
        }
        let latencies = if write { &self.writes } else { &self.reads };
        latencies.borrow_mut().record(now.since(started));
    }

    /// When the measured time ends, if it has begun.
    fn end(&self) -> Option<Time> {
        self.before.get().map(|before| before.at.after(self.load.time))
    }

    fn used(&self) -> Used {
        let server = self.load.server.and_then(cpu::of_process);
        Used { at: self.clock.now(), own: crate::daemon::cpu_ns(), server }
    }

    fn report(&self) -> Report {
        let after = self.used();
        let before = self.before.get().unwrap_or(after);
        let server = after.server.zip(before.server).map(|(after, before)| after.saturating_sub(before));
        // What ended later was not counted, and so its time is not.
        let seconds = after.at.since(before.at).min(self.load.time).as_secs_f64();
        let mut report = Report::new(&self.reads.borrow(), &self.writes.borrow(), self.load.block, seconds);
        report.cpu(after.own.saturating_sub(before.own), server);
        report.errors = self.errors.get();
        report.first_error = self.first_error.borrow().as_ref().map(Error::to_string);
        report
    }
}
