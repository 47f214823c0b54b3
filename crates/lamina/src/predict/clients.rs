//! The clients of a workload at work on a device, in virtual time.
//!
//! Each client is a task that asks the workload what it does next. The first requests to end warm caches and queues up
//! and are not counted. After the last that is counted the run is over: what is in flight then is given up with the
//! simulated world.

use super::figures::{Measured, Response, Service};
use lamina_block::{Buf, Durability, Env, Error, Io, Node, Result, Signal, Time};
use lamina_drive::{Op, Request, SECTOR};
use lamina_sim::SimEnv;
use lamina_workload::{Action, Workload};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The most bytes of one request: what no client of ours sends in one.
const REQUEST_MAX: u64 = 32 << 20;

/// What is counted of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Requests that end before counting begins.
    pub warmup: u64,
    /// Requests that are counted.
    pub requests: u64,
}

/// What is measured, while it is counted.
pub struct Log {
    counted: Counted,
    /// Requests of clients that ended.
    ended: Cell<u64>,
    is_over: Cell<bool>,
    over: Signal,
    failure: RefCell<Option<Error>>,
    measured: RefCell<Measured>,
}

impl Log {
    /// Nothing yet.
    pub fn new(counted: Counted) -> Rc<Log> {
        Rc::new(Log {
            counted,
            ended: Cell::new(0),
            is_over: Cell::new(false),
            over: Signal::new(),
            failure: RefCell::default(),
            measured: RefCell::default(),
        })
    }

    fn is_counting(&self) -> bool {
        self.ended.get() >= self.counted.warmup && !self.is_over.get()
    }

    /// A drive ended a request.
    pub fn served(&self, service: Service) {
        if self.is_counting() {
            self.measured.borrow_mut().services.push(service);
        }
    }

    /// A client's request ended.
    fn responded(&self, response: Response) {
        let is_counted = self.is_counting();
        self.ended.set(self.ended.get() + 1);
        let mut measured = self.measured.borrow_mut();
        if is_counted {
            measured.responses.push(response);
            measured.ended = response.ended;
        } else if self.ended.get() == self.counted.warmup {
            measured.began = response.ended;
        }
        let full = measured.responses.len() as u64 >= self.counted.requests;
        drop(measured);
        if full {
            self.end();
        }
    }

    fn end(&self) {
        self.is_over.set(true);
        self.over.notify();
    }

    fn fail(&self, e: Error) {
        self.failure.borrow_mut().get_or_insert(e);
        self.end();
    }
}

/// A workload on a device.
struct Run {
    env: Rc<SimEnv>,
    node: Rc<Node>,
    workload: RefCell<Box<dyn Workload>>,
    log: Rc<Log>,
    began: Time,
    /// Memory that all requests share, if nobody looks at what they read.
    shared: Option<Buf>,
    /// Clients that have not ended.
    clients: Cell<u32>,
}

/// Lets `workload` work on `node`, until enough was counted or all clients have ended.
///
/// If `data` matters to layers, each request has memory of its own.
pub async fn run(
    env: Rc<SimEnv>,
    node: Rc<Node>,
    workload: Box<dyn Workload>,
    log: Rc<Log>,
    data: bool,
) -> Result<Measured> {
    let clients = workload.clients();
    let began = env.now();
    log.measured.borrow_mut().began = began;
    let run = Rc::new(Run {
        began,
        node,
        workload: RefCell::new(workload),
        log: Rc::clone(&log),
        shared: (!data).then(|| Buf::zeroed(REQUEST_MAX as usize)),
        clients: Cell::new(clients),
        env: Rc::clone(&env),
    });
    for number in 0..clients {
        env.spawn(Box::pin(Rc::clone(&run).client(number)));
    }
    log.over.until(|| log.is_over.get() || run.clients.get() == 0).await;
    match log.failure.borrow_mut().take() {
        Some(e) => Err(e),
        None => Ok(log.measured.take()),
    }
}

/// The requests of a client, numbered from 0.
#[derive(Default)]
struct Requests {
    sent: Cell<u64>,
    /// Those that have not ended.
    open: RefCell<BTreeSet<u64>>,
    ended: Signal,
}

impl Requests {
    fn begin(&self) -> u64 {
        let number = self.sent.replace(self.sent.get() + 1);
        self.open.borrow_mut().insert(number);
        number
    }

    fn end(&self, number: u64) {
        self.open.borrow_mut().remove(&number);
        self.ended.notify();
    }

    /// Waits until the first `count` have ended.
    async fn wait_for(&self, count: u64) {
        self.ended.until(|| self.open.borrow().first().is_none_or(|first| *first >= count)).await;
    }
}

impl Run {
    async fn client(self: Rc<Self>, number: u32) {
        let requests = Rc::new(Requests::default());
        while !self.log.is_over.get() {
            let now = Time(self.env.now().0 - self.began.0);
            let action = self.workload.borrow_mut().next(number, now);
            match action {
                Action::Submit { request, wait } => {
                    let id = requests.begin();
                    let work = Rc::clone(&self).submit(number, request, Rc::clone(&requests), id);
                    if wait {
                        work.await;
                    } else {
                        self.env.spawn(Box::pin(work));
                    }
                }
                Action::Sleep(d) => self.env.sleep(d).await,
                Action::WaitFor(count) => requests.wait_for(count).await,
                Action::Join => requests.wait_for(u64::MAX).await,
                Action::End => break,
            }
        }
        requests.wait_for(u64::MAX).await;
        self.clients.set(self.clients.get() - 1);
        if self.clients.get() == 0 {
            self.log.over.notify();
        }
    }

    async fn submit(self: Rc<Self>, _number: u32, request: Request, requests: Rc<Requests>, id: u64) {
        let io = match self.io(&request) {
            Ok(io) => io,
            Err(e) => return self.log.fail(e),
        };
        let (arrived, bytes) = (self.env.now(), io.len());
        match self.node.submit(io).await {
            Ok(()) => self.log.responded(Response { arrived, ended: self.env.now(), bytes }),
            Err(e) => self.log.fail(e),
        }
        requests.end(id);
    }

    /// The request for the device, in whole blocks of it.
    fn io(&self, request: &Request) -> Result<Io> {
        let block = u64::from(self.node.geometry().block);
        let start = request.lbn.saturating_mul(SECTOR) / block * block;
        let end = request.end().saturating_mul(SECTOR).div_ceil(block).saturating_mul(block);
        let len = end.saturating_sub(start);
        if len > REQUEST_MAX {
            return Err(Error::invalid(format!("a request of {len} bytes: the most is {REQUEST_MAX}")));
        }
        let buf = || match &self.shared {
            Some(shared) => shared.slice(0..len as usize),
            None => self.env.pool().take(len as usize),
        };
        Ok(match request.op {
            Op::Read => Io::read(start, buf()),
            Op::Write => Io::write(start, buf(), Durability::Cached),
            Op::Discard => Io::discard(start..end),
            Op::Flush => Io::flush(),
        })
    }
}
