//! Transmission: one client's requests, from its socket to the node and back.
//!
//! ```text
//!   socket ─recv─▶ Inbox ─▶ judge ─▶ Node::submit ──at once──▶ Outbox ─send─▶ socket
//!                                        └── later (a task) ──▲
//! ```
//!
//! One receive brings as many requests as the socket holds. A request that the node completes at once is answered
//! without a task, and one call sends all answers that are ready by then. Requests are answered in the order in which
//! they complete.
//!
//! Invariants: memory for a client stays within its [`Budget`](lamina_block::Budget): no request is received while
//! there is no space, so a client that does not read its replies stops being read itself; every request that was read
//! is answered, unless the connection breaks; a client can end only its own connection.
//!
//! Not done here: the protocol's RESIZE extension, which is a client's command to resize the export (8, announced by
//! flag bit 9), a draft of 2017 that no client in use knows; that draft has no announcement, and neither has the rest
//! of the protocol. Connections made after a resize, and `INFO`, see the new size, and older connections may use it
//! too. Also not: holes in replies to reads (clients that care ask for the block status).

use super::bitmap::DIRTY;
use super::handshake::{Agreed, BITMAP_ID, CONTEXT_ID};
use super::outbox::Outbox;
use super::pace::Pace;
use super::request::{Command, Request, Rules};
use super::{ExportInfo, Stop};
use crate::errno;
use crate::inbox::Inbox;
use crate::wire::{self, Descriptor, state};
use futures_util::future::{Either, FutureExt, join, select};
use lamina_block::{Buf, Conn, Durability, Env, Error, ExtentState, Io, Node, PIECE, Result, Signal, Taker};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;
use zerocopy::FromBytes;

/// The cost of a request beside its data, in bytes: its task, its place in lists, its reply.
const OVERHEAD: usize = 512;
/// Memory for one block status, and the most that a cache request reads at a time, in bytes.
const WORK: usize = 1 << 20;
/// The bytes that a client must take in [`STALLED`] while its connection is ended.
const TAKEN_MIN: usize = 256 << 10;
/// How long a client that takes no replies keeps a server from stopping.
const STALLED: Duration = Duration::from_secs(2);
/// The most descriptors in one reply to a block status; the client asks again for the rest.
const DESCRIPTORS: usize = 4096;

/// How long a client that has begun a long write may send nothing of it: others may wait for the memory.
const STALL: Duration = Duration::from_secs(30);

/// A connection in transmission.
pub struct Session {
    env: Rc<dyn Env>,
    conn: Rc<dyn Conn>,
    /// The number of the connection ([`Io::client`]).
    client: u32,
    export: Rc<ExportInfo>,
    agreed: Agreed,
    budget: Taker,
    outbox: RefCell<Outbox>,
    /// Something is in the outbox, or nothing will be any more.
    ready: Signal,
    finished: Cell<bool>,
    /// Requests that were not answered at once.
    tasks: Cell<usize>,
    /// A reply in the outbox waited for the node.
    waited: Cell<bool>,
    /// Replies are on their way into the socket.
    sending: Cell<bool>,
    broken: Cell<bool>,
    /// Requests that failed.
    failed: Cell<u64>,
    stop: Rc<Stop>,
}

/// The received part of the next request.
struct Reader {
    inbox: Inbox,
    /// A request whose payload is being received, and its cost.
    partial: Option<(Request, usize)>,
    /// Bytes of a payload too large that are still to come.
    skip: usize,
    /// The request that they belong to: the answer comes after them, as a client that sends them is not listening yet.
    skipped: Option<(Request, usize)>,
    /// Ends when requests that wait for memory have had their time since the order to stop: others that do not read may
    /// occupy the memory, one after the other.
    late: Pin<Box<dyn Future<Output = ()>>>,
}

impl Reader {
    /// True if part of a request has been received.
    fn is_amid(&self) -> bool {
        self.partial.is_some() || self.skip > 0 || self.inbox.available() > 0
    }
}

impl Session {
    /// A connection that has agreed on everything.
    pub fn new(
        env: &Rc<dyn Env>,
        conn: Rc<dyn Conn>,
        client: u32,
        export: Rc<ExportInfo>,
        agreed: Agreed,
        budget: Taker,
        stop: Rc<Stop>,
    ) -> Rc<Session> {
        Rc::new(Session {
            env: Rc::clone(env),
            conn,
            client,
            export,
            agreed,
            budget,
            outbox: RefCell::new(Outbox::new(env.pool())),
            ready: Signal::new(),
            finished: Cell::new(false),
            tasks: Cell::new(0),
            waited: Cell::new(false),
            sending: Cell::new(false),
            broken: Cell::new(false),
            failed: Cell::new(0),
            stop,
        })
    }

    /// Serves until the client leaves, the connection breaks, or the order to stop comes; then answers the requests
    /// under way. `inbox` may hold requests already.
    pub async fn run(self: Rc<Self>, inbox: Inbox) -> Result<()> {
        let _uses = self.export.node.use_it();
        let receive = async {
            let late = Box::pin(self.late());
            let mut reader = Reader { inbox, partial: None, skip: 0, skipped: None, late };
            let end = self.receive(&mut reader).await;
            for (_, cost) in reader.partial.into_iter().chain(reader.skipped) {
                self.budget.give(cost);
            }
            self.budget.idle().await;
            self.finished.set(true);
            self.ready.notify();
            end
        };
        join(receive, self.send()).await.0
    }

    async fn receive(self: &Rc<Self>, reader: &mut Reader) -> Result<()> {
        let mut pace = Pace::default();
        loop {
            while let Some((request, payload, cost)) = self.next(reader).await? {
                pace.request();
                // Received requests of a connection that was fenced, or takes no replies, are not done.
                let is_in_vain = self.stop.fenced() || self.broken.get();
                if is_in_vain || request.command == Ok(Command::Disconnect) {
                    self.budget.give(cost);
                    return Ok(());
                }
                self.start(request, payload, cost);
            }
            if self.stop.ordered() {
                return Ok(());
            }
            // While the node is at work, or half a request is here, nothing is gained by resting.
            if let Some(rest) = pace.rest(self.tasks.get() == 0 && !reader.is_amid()) {
                self.env.sleep(rest).await;
            }
            let (stop, stall) = (pin!(self.stop.wait()), pin!(self.stall(reader.partial.is_some())));
            let received = match select(self.conn.recv(reader.inbox.target()), select(stop, stall)).await {
                Either::Left((received, _)) => received?,
                Either::Right((Either::Left(_), _)) => return Ok(()),
                Either::Right((Either::Right(_), _)) => {
                    return Err(Error::offline("the client does not send the rest of a write"));
                }
            };
            match received {
                0 if self.broken.get() => return Err(Error::offline("the client does not take replies")),
                0 => return Ok(()),
                n => {
                    pace.received(self.sending.get());
                    reader.inbox.received(n);
                }
            }
        }
    }

    /// Ends some time after the order to stop.
    fn late(&self) -> impl Future<Output = ()> + 'static {
        let (env, stop) = (Rc::clone(&self.env), Rc::clone(&self.stop));
        async move {
            stop.wait().await;
            env.sleep(STALLED).await;
        }
    }

    /// Ends when a client that is `amid` a write should have gone on with it.
    async fn stall(&self, amid: bool) {
        match amid {
            true => self.env.sleep(STALL).await,
            false => std::future::pending().await,
        }
    }

    /// The next request that has arrived whole, its payload, and the memory that it was charged with.
    async fn next(&self, reader: &mut Reader) -> Result<Option<(Request, Buf, usize)>> {
        let inbox = &mut reader.inbox;
        if let Some(payload) = inbox.filled() {
            return Ok(reader.partial.take().map(|(request, cost)| (request, payload, cost)));
        }
        if inbox.is_filling() {
            return Ok(None);
        }
        let skipped = reader.skip.min(inbox.available());
        inbox.consume(skipped);
        reader.skip -= skipped;
        if reader.skip > 0 {
            return Ok(None);
        }
        if let Some((request, cost)) = reader.skipped.take() {
            return Ok(Some((request, Buf::empty(), cost)));
        }
        if inbox.available() < wire::Request::LEN {
            return Ok(None);
        }
        let request = self.judge(inbox)?;
        let cost = OVERHEAD + memory(&request);
        while !self.budget.take(cost, inbox.retired()) {
            let fence = pin!(self.stop.wait_for_fence());
            let end = select(fence, &mut reader.late);
            if let Either::Right(((), _)) = select(pin!(self.budget.freed()), end.map(drop)).await {
                return Err(Error::offline(
                    "the end of the connection comes before the memory for its next request",
                ));
            }
        }
        inbox.consume(wire::Request::LEN);
        let payload = request.payload as usize;
        if payload > wire::PAYLOAD_MAX as usize {
            reader.skip = payload;
            reader.skipped = Some((request, cost));
            return Ok(None);
        }
        if payload > inbox.available() {
            inbox.direct(self.env.pool().take(payload));
            reader.partial = Some((request, cost));
            return Ok(None);
        }
        let payload = inbox.take(payload);
        Ok(Some((request, payload, cost)))
    }

    fn judge(&self, inbox: &Inbox) -> Result<Request> {
        let mut bytes = [0; wire::Request::LEN];
        inbox.peek(&mut bytes);
        let message = wire::Request::read_from_bytes(&bytes)
            .map_err(|_| Error::invalid("a request of the wrong length"))?;
        let geometry = self.export.node.geometry();
        let read_only = match (&self.export.records, self.agreed.key) {
            _ if self.export.read_only || geometry.read_only => Some("the export is read-only"),
            (Some(_), None) => Some("the export is written by the host alone that its records name"),
            (Some(_), Some(_)) | (None, _) => None,
        };
        let rules = Rules {
            read_only,
            structured: self.agreed.structured,
            block_status: self.agreed.block_status || self.agreed.changed_since.is_some(),
            size: geometry.size,
        };
        Request::judge(&message, &rules)
            .map_err(|bad| Error::invalid(format!("the client sent {:#010x} instead of a request", bad.0)))
    }

    /// Hands a request to the node, and answers it now or when it completes.
    fn start(self: &Rc<Self>, request: Request, payload: Buf, cost: usize) {
        let node = &self.export.node;
        let cookie = request.cookie;
        let command = match request.command {
            Ok(command) => command,
            Err(refusal) => return self.fail(cookie, refusal.error, refusal.why, cost),
        };
        match command {
            Command::Read => {
                let data = self.env.pool().take(request.bytes());
                self.submit(request, command, Io::read, data, cost);
            }
            Command::Write(durability) => {
                self.submit(request, command, |at, data| Io::write(at, data, durability), payload, cost);
            }
            Command::Zero(how) => {
                let at = request.at.clone();
                self.submit(request, command, |_, _| Io::zero(at, how), Buf::empty(), cost);
            }
            Command::Flush => self.submit(request, command, |_, _| Io::flush(), Buf::empty(), cost),
            Command::Trim(Durability::Cached) => {
                let at = request.at.clone();
                self.submit(request, command, |_, _| Io::discard(at), Buf::empty(), cost);
            }
            Command::Trim(Durability::Fua) => {
                let (trim, node) = (node.submit(Io::discard(request.at.clone())), Rc::clone(node));
                self.later(request, command, cost, async move {
                    trim.await?;
                    node.submit(Io::flush()).await
                });
            }
            Command::Cache => self.cache(request, cost),
            Command::BlockStatus { one } => self.block_status(request, one, cost),
            // The receive loop ends before this point.
            Command::Disconnect => self.budget.give(cost),
        }
    }

    fn submit(
        self: &Rc<Self>,
        request: Request,
        command: Command,
        io: impl FnOnce(u64, Buf) -> Io,
        data: Buf,
        cost: usize,
    ) {
        let reply = if command == Command::Read { data.clone() } else { Buf::empty() };
        let io = io(request.at.start, data).by(self.client);
        if Node::is_long(&io) {
            let submitted = Rc::clone(&self.export.node).submit_in_pieces(io);
            return self.task(async move |session| {
                let result = submitted.await;
                session.answer(&request, command, reply, result, cost);
            });
        }
        let mut submitted = self.export.node.submit(io);
        if let Some(result) = submitted.ready() {
            return self.answer(&request, command, reply, result, cost);
        }
        self.task(async move |session| {
            let result = submitted.await;
            session.answer(&request, command, reply, result, cost);
        });
    }

    /// Works on a request beside others.
    fn task(self: &Rc<Self>, work: impl AsyncFnOnce(&Rc<Session>) + 'static) {
        let session = Rc::clone(self);
        self.tasks.update(|n| n + 1);
        self.env.spawn(Box::pin(async move {
            work(&session).await;
            session.waited.set(true);
            session.tasks.update(|n| n - 1);
        }));
    }

    /// Answers a request when `work` is done.
    fn later(
        self: &Rc<Self>,
        request: Request,
        command: Command,
        cost: usize,
        work: impl Future<Output = Result<()>> + 'static,
    ) {
        self.task(async move |session| {
            let result = work.await;
            session.answer(&request, command, Buf::empty(), result, cost);
        });
    }

    fn answer(&self, request: &Request, command: Command, data: Buf, result: Result<()>, cost: usize) {
        let cookie = request.cookie;
        if let Err(e) = result {
            let fast = matches!(command, Command::Zero(how) if how.fast);
            self.complain(&e);
            return self.fail(cookie, errno::of(e.kind(), fast), &e.to_string(), cost);
        }
        let mut outbox = self.outbox.borrow_mut();
        match command {
            Command::Read if self.agreed.structured && data.is_empty() => outbox.none(cookie, cost),
            Command::Read if self.agreed.structured => outbox.data(cookie, request.at.start, data, cost),
            _ => outbox.simple(cookie, 0, data, cost),
        }
        drop(outbox);
        self.ready.notify();
    }

    fn fail(&self, cookie: u64, error: u32, message: &str, cost: usize) {
        let mut outbox = self.outbox.borrow_mut();
        if self.agreed.structured {
            outbox.error(cookie, error, message, cost);
        } else {
            outbox.simple(cookie, error, Buf::empty(), cost);
        }
        drop(outbox);
        self.ready.notify();
    }

    /// Logs the first error of a connection, and then ever fewer; the client hears of all.
    fn complain(&self, e: &Error) {
        let failed = self.failed.get() + 1;
        self.failed.set(failed);
        if failed.is_power_of_two() {
            let (export, peer) = (&self.export.name, self.conn.peer());
            tracing::warn!(%export, %peer, error = %e, "a request failed, the {failed}. of this connection");
        }
    }

    /// Reads the range and drops it: a cache below has it then.
    fn cache(self: &Rc<Self>, request: Request, cost: usize) {
        let (node, pool) = (Rc::clone(&self.export.node), self.env.pool().clone());
        let at = request.at.clone();
        self.later(request, Command::Cache, cost, async move {
            for start in at.clone().step_by(WORK) {
                let len = (at.end - start).min(WORK as u64) as usize;
                node.submit(Io::read(start, pool.take(len))).await?;
            }
            Ok(())
        });
    }

    fn block_status(self: &Rc<Self>, request: Request, one: bool, cost: usize) {
        self.task(async move |session| {
            let (cookie, block) = (request.cookie, u64::from(session.export.node.geometry().block));
            let at = request.at;
            if at.is_empty() || !at.start.is_multiple_of(block) || !at.end.is_multiple_of(block) {
                let message = format!("misaligned: requests are multiples of {block} bytes");
                return session.fail(cookie, errno::EINVAL, &message, cost);
            }
            match session.status(&at, if one { 1 } else { DESCRIPTORS }).await {
                Ok(contexts) => {
                    session.outbox.borrow_mut().status(cookie, &contexts, cost);
                    session.ready.notify();
                }
                Err(e) => {
                    session.complain(&e);
                    session.fail(cookie, errno::of(e.kind(), false), &e.to_string(), cost);
                }
            }
        });
    }

    /// Of each agreed context, at most `max` runs from the start of `at`.
    async fn status(&self, at: &Range<u64>, max: usize) -> Result<Vec<(u32, Vec<Descriptor>)>> {
        let (node, mut contexts) = (&self.export.node, Vec::new());
        if self.agreed.block_status {
            let ask = async |part| {
                let runs = node.extents(part).await?;
                Ok(runs.into_iter().map(|run| (run.len, allocation(run.state))).collect())
            };
            contexts.push((CONTEXT_ID, runs(at, max, ask).await?));
        }
        if let Some(since) = &self.agreed.changed_since {
            let ask = async |part| {
                let runs = node.changed(since.clone(), part).await?;
                Ok(runs.into_iter().map(|run| (run.len, if run.changed { DIRTY } else { 0 })).collect())
            };
            contexts.push((BITMAP_ID, runs(at, max, ask).await?));
        }
        Ok(contexts)
    }

    /// Sends in pieces, so that a dead client can be told from a slow one: a dead client does not keep the server from
    /// stopping.
    async fn send_all(&self, bytes: Buf) -> Result<()> {
        // A client that has waited for the node goes on at once. Replies to what has just come gather with what comes.
        let mut sent = if self.waited.take() { self.conn.send_at_once(&bytes) } else { 0 };
        while sent < bytes.len() {
            let end = bytes.len().min(sent + TAKEN_MIN);
            let piece = self.conn.send(bytes.slice(sent..end));
            match select(piece, pin!(self.late())).await {
                Either::Left((done, _)) => done?,
                Either::Right(_) => return Err(Error::offline("the client does not take its replies")),
            }
            sent = end;
        }
        Ok(())
    }

    async fn send(&self) {
        loop {
            self.ready.until(|| self.finished.get() || !self.outbox.borrow().is_empty()).await;
            let Some(batch) = self.outbox.borrow_mut().take() else { return };
            if !self.broken.get() {
                self.sending.set(true);
                let sent = self.send_all(batch.bytes).await;
                self.sending.set(false);
                if let Err(e) = sent {
                    tracing::debug!(export = %self.export.name, error = %e, "a reply could not be sent");
                    self.broken.set(true);
                    self.conn.shutdown();
                }
            }
            self.budget.give(batch.cost);
        }
    }
}

/// Bytes of memory for a request until its answer, beside [`OVERHEAD`].
fn memory(request: &Request) -> usize {
    match &request.command {
        Ok(Command::Read) => request.bytes(),
        Ok(Command::Cache) => request.bytes().min(WORK),
        Ok(Command::BlockStatus { .. }) => WORK,
        Ok(Command::Write(_)) => request.payload as usize,
        // They may have to be written.
        Ok(Command::Zero(_)) => request.bytes().min(PIECE as usize),
        Ok(Command::Disconnect | Command::Flush | Command::Trim(_)) => 0,
        // Received, unless it is skipped, and thrown away.
        Err(_) if request.payload > wire::PAYLOAD_MAX => 0,
        Err(_) => request.payload as usize,
    }
}

/// At most `max` runs from the start of `at`, as lengths and states. Asks for parts that grow while runs are long, so
/// that neither a fragmented nor a large device makes long lists or many questions.
async fn runs(
    at: &Range<u64>,
    max: usize,
    ask: impl AsyncFn(Range<u64>) -> Result<Vec<(u64, u32)>>,
) -> Result<Vec<Descriptor>> {
    let (mut list, mut start, mut step) = (Vec::<Descriptor>::new(), at.start, (WORK as u64) << 4);
    while start < at.end && list.len() <= max {
        let end = at.end.min(start.saturating_add(step));
        let part = ask(start..end).await?;
        if part.len() <= 16 {
            step = step.saturating_mul(4);
        }
        for (len, status) in part {
            // A run is never longer than the request, whose length has 32 bits.
            match list.last_mut() {
                Some(last) if last.status.get() == status => last.len += len as u32,
                _ => list.push(Descriptor { len: (len as u32).into(), status: status.into() }),
            }
        }
        start = end;
    }
    list.truncate(max);
    Ok(list)
}

/// The state of a run in the context `base:allocation`.
fn allocation(state: ExtentState) -> u32 {
    match state {
        ExtentState::Data => 0,
        ExtentState::Zero => state::ZERO,
        ExtentState::Hole => state::HOLE | state::ZERO,
    }
}
