//! The clients of a workload at work on a device: they ask the workload what they do next, and do it.
//!
//! ```text
//!      Workload::next(client, now) ──▶ submit · sleep · wait for earlier requests · end
//!                                        └─▶ Node ──▶ Observer::ended
//! ```
//!
//! A client is a task. Requests that it does not wait for are tasks of their own, which begin before the client goes
//! on. The run is over when all clients have ended and their requests as well, or when the observer has seen enough:
//! clients then do nothing more, and what is under way is waited for.
//!
//! The caller says what time it is. The data of writes is not compressible; the data of reads is not looked at.

use lamina_block::{Buf, Durability, Env, Error, Io, Node, Result, Signal, Time};
use lamina_drive::{Op, Request, SECTOR};
use lamina_workload::{Action, Workload};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// The most bytes of one request.
pub const REQUEST_MAX: u64 = 32 << 20;
/// After so many actions a client lets the others run, whether it has waited or not: none of them may have.
const UNBROKEN_MAX: u32 = 64;
/// Bytes of the data that writes carry, again and again.
const PATTERN: usize = 1 << 20;

/// A request of a client that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The request, as the workload made it.
    pub request: Request,
    /// Bytes of it, in whole blocks of the device.
    pub bytes: u64,
    /// When it was sent, and when it ended.
    pub sent: Time,
    pub at: Time,
    /// How it ended.
    pub result: Result<()>,
}

/// Sees what the clients do.
pub trait Observer {
    /// A request has ended.
    fn ended(&self, ended: Ended);
    /// A client woke up so long after the end of its sleep.
    fn late(&self, by: Duration);
    /// Enough was seen: clients end.
    fn is_over(&self) -> bool;
}

/// A run that is under way.
struct Run<O> {
    env: Rc<dyn Env>,
    now: Box<dyn Fn() -> Time>,
    nodes: Vec<Rc<Node>>,
    workload: RefCell<Box<dyn Workload>>,
    observer: Rc<O>,
    began: Time,
    pattern: Buf,
    /// Clients that have not ended.
    working: Cell<u32>,
    idle: Signal,
}

/// Lets the clients of `workload` work on a device to the end. `nodes` are ways to it, at least one, that the clients
/// share evenly. `now` is the time of `env`, as exact as is wanted; `seed` decides what writes carry.
pub async fn run<O: Observer + 'static>(
    env: Rc<dyn Env>,
    now: Box<dyn Fn() -> Time>,
    nodes: Vec<Rc<Node>>,
    workload: Box<dyn Workload>,
    observer: Rc<O>,
    seed: u64,
) {
    let clients = workload.clients();
    let mut bytes = vec![0; PATTERN];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    let run = Rc::new(Run {
        began: now(),
        now,
        nodes,
        workload: RefCell::new(workload),
        observer,
        pattern: env.pool().take(PATTERN),
        working: Cell::new(clients),
        idle: Signal::new(),
        env,
    });
    run.pattern.write(0, &bytes);
    for number in 0..clients {
        let client = Rc::clone(&run).client(number);
        run.env.spawn(Box::pin(client));
    }
    run.idle.until(|| run.working.get() == 0).await;
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
        let number = self.sent.get();
        self.sent.set(number + 1);
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

impl<O: Observer + 'static> Run<O> {
    async fn client(self: Rc<Self>, number: u32) {
        let requests = Rc::new(Requests::default());
        let mut unbroken = 0;
        while !self.observer.is_over() {
            let began = (self.now)();
            let action = self.workload.borrow_mut().next(number, Time(began.0.saturating_sub(self.began.0)));
            match action {
                Action::Submit { request, wait } => {
                    let submitted = self.submit(number, request, &requests);
                    if wait {
                        submitted.await;
                    } else {
                        self.env.spawn(Box::pin(submitted));
                        let_others_run().await;
                    }
                }
                Action::Sleep(time) => {
                    self.env.sleep_until(self.env.now().after(time)).await;
                    self.observer.late((self.now)().since(began.after(time)));
                }
                Action::WaitFor(count) => requests.wait_for(count).await,
                Action::Join => requests.wait_for(u64::MAX).await,
                Action::End => break,
            }
            unbroken += 1;
            if unbroken >= UNBROKEN_MAX {
                unbroken = 0;
                let_others_run().await;
            }
        }
        requests.wait_for(u64::MAX).await;
        self.working.set(self.working.get() - 1);
        self.idle.notify();
    }

    /// Sends a request of a client, which layers know by a number from 1: the future has to be polled, and may outlive
    /// its client.
    fn submit(
        self: &Rc<Self>,
        client: u32,
        request: Request,
        requests: &Rc<Requests>,
    ) -> impl Future<Output = ()> + use<O> + 'static {
        let (run, requests) = (Rc::clone(self), Rc::clone(requests));
        let number = requests.begin();
        async move {
            let (sent, node) = ((run.now)(), &run.nodes[client as usize % run.nodes.len()]);
            let (bytes, result) = match io(&request, node.geometry().block, |len| run.buf(&request, len)) {
                // 0 is nobody's.
                Ok(io) => (io.len(), node.submit(io.by(client + 1)).await),
                Err(e) => (0, Err(e)),
            };
            run.observer.ended(Ended { request, bytes, sent, at: (run.now)(), result });
            requests.end(number);
        }
    }

    /// Memory for a request.
    fn buf(&self, request: &Request, len: usize) -> Buf {
        match request.op {
            Op::Write => {
                let mut buf = self.pattern.slice(0..len.min(PATTERN));
                while buf.len() < len {
                    buf.append(self.pattern.slice(0..PATTERN.min(len - buf.len())));
                }
                buf
            }
            Op::Read | Op::Flush | Op::Discard => self.env.pool().take(len),
        }
    }
}

/// A request for a device with blocks of `block` bytes, rounded outwards to whole ones, with memory from `buf`.
pub fn io(request: &Request, block: u32, buf: impl Fn(usize) -> Buf) -> Result<Io> {
    let block = block as u64;
    let start = request.lbn.saturating_mul(SECTOR) / block * block;
    let end = request.end().saturating_mul(SECTOR).div_ceil(block).saturating_mul(block);
    let len = end.saturating_sub(start);
    match request.op {
        Op::Flush => Ok(Io::flush()),
        Op::Discard => Ok(Io::discard(start..end)),
        Op::Read | Op::Write if len > REQUEST_MAX => {
            let message = format!("a request of {len} bytes: the most that is sent in one is {REQUEST_MAX}");
            Err(Error::invalid(message))
        }
        Op::Read => Ok(Io::read(start, buf(len as usize))),
        Op::Write => Ok(Io::write(start, buf(len as usize), Durability::Cached)),
    }
}

/// Gives way to all other tasks once.
pub async fn let_others_run() {
    let mut first = true;
    poll_fn(|cx| {
        if !std::mem::take(&mut first) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
