//! One connection to a server, made anew when it is lost.
//!
//! ```text
//!   connected ──lost─▶ reconnecting (50 ms, 100 ms ... 2 s apart) ─▶ connected: all sent again
//!                            └── longer than `reconnect`: all commands fail, later ones too, until the
//!                                server is back
//! ```
//!
//! Commands are sent in batches and their replies read in batches. Invariant: a command is answered, well or not,
//! within `reconnect` plus twice `timeout` after the first loss of its connection, also if the server accepts
//! connections and loses them again, and whatever the server answers to other commands.
//!
//! Every link is a session of its own ([`crate::wire::Session`]). A server that knows sessions ends the lost connection
//! before it lets the new one go on, so that no command from the old connection is done after one that is sent again. A
//! command is sent again on the link that lost it; the other links go on meanwhile, because requests that are under way
//! together have no order. That ends when a link gives up a change that the server may have received: after the failure
//! the caller may write there again. Until the link has a connection, which fences the lost one, no link takes changes
//! ([`OpenChanges`]).

mod silence;

use super::flight::{Command, Flight, Reply, header};
use super::handshake::{Facts, Handshake, Next, Purpose};
use super::ledger::Ledger;
use super::replies::Replies;
use super::shape::Shape;
use crate::inbox::Inbox;
use crate::wire::{self, Session};
use futures_util::future::{Either, select};
use lamina_block::{Address, Buf, Conn, Env, Error, ReservationKey, Result, Signal, Time};
use lamina_tls::ClientTls;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Time that a server has to accept a connection and negotiate.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Pause before the second attempt to connect, and the longest; the first comes at once.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Time that a server has to take our farewell.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long replies are received from a server that takes no more requests.
const LEFT_OVER: Duration = Duration::from_secs(1);
/// The most segments that are sent by one call; the kernel takes 1024.
const SEGMENTS_MAX: usize = 512;
/// Bytes of zeroes that one call sends instead of memory that cannot be read.
const ZEROES: usize = 64 << 10;

/// Commands that one call sends.
struct Batch {
    bytes: Buf,
    /// The writes among them, and the place of the data of each.
    writes: Vec<(usize, Range<usize>)>,
}

/// How much was sent before memory that cannot be read, and why; nothing if all was.
fn before_bad_memory(sent: Result<()>) -> Result<Option<(usize, Error)>> {
    match sent {
        Ok(()) => Ok(None),
        Err(e) if e.is_of_memory() => Ok(Some((e.range().map_or(0, |sent| sent.end as usize), e))),
        Err(e) => Err(e),
    }
}

/// Links that gave up changes which may yet happen, each counted once, and the latest reason.
#[derive(Default)]
pub struct OpenChanges(RefCell<(usize, Option<Error>)>);

impl OpenChanges {
    fn add(&self, why: Error) {
        let mut open_changes = self.0.borrow_mut();
        *open_changes = (open_changes.0 + 1, Some(why));
    }

    fn resolve(&self) {
        self.0.borrow_mut().0 -= 1;
    }

    fn check(&self) -> Result<()> {
        match &*self.0.borrow() {
            (1.., Some(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }
}

/// The common state of all connections of a client.
pub struct Common {
    /// The world.
    pub env: Rc<dyn Env>,
    /// Where the server is.
    pub address: Address,
    /// The name of the export.
    pub export: String,
    /// Encryption.
    pub tls: Option<ClientTls>,
    /// How long unanswered commands wait for a lost server to come back.
    pub reconnect: Duration,
    /// How long a server may be silent while commands wait; zero: for ever.
    pub timeout: Duration,
    /// The shape that the export must keep.
    pub shape: Shape,
    /// Unflushed writes.
    pub ledger: Ledger,
    /// Whether changes may be sent.
    pub open_changes: OpenChanges,
    /// This process ends.
    pub ending: Cell<bool>,
    /// The reason why no command is sent any more: the client ends, and the server was silent.
    pub given_up: RefCell<Option<Error>>,
    /// What connections are registered with, if this host has a volume that the server keeps records of.
    pub key: Cell<Option<ReservationKey>>,
}

/// A connection that has negotiated.
pub struct Connected {
    conn: Rc<dyn Conn>,
    inbox: Inbox,
    /// The server's description of the export.
    pub facts: Facts,
    /// What it has answered to a question.
    pub answer: Option<Vec<u8>>,
    /// What the connection is registered with.
    key: Option<ReservationKey>,
}

impl Common {
    /// Connects to use the export, as the connection of `session`. The shape must not change.
    pub async fn go(&self, session: Session) -> Result<Connected> {
        let must = self.shape.get().is_some_and(|able| able.fence);
        let key = self.key.get();
        let mut connected = self.connect(Purpose::Go { session, must, key }).await?;
        connected.key = key.filter(|_| connected.facts.registered);
        if key.is_some() && key == self.key.get() && !connected.facts.registered {
            let generation = key.map(|key| key.generation);
            let server = &self.address;
            tracing::info!(%server, generation, "this host does not have the volume any more, and reads");
            self.key.set(None);
        }
        self.shape.check(connected)
    }

    /// A unique session.
    pub fn session(&self) -> Session {
        Session(u128::from(self.env.random()) << 64 | u128::from(self.env.random()))
    }

    /// Connects and negotiates, within a bounded time.
    pub async fn connect(&self, purpose: Purpose) -> Result<Connected> {
        let attempt = pin!(self.negotiate(purpose));
        match select(attempt, self.env.sleep(ATTEMPT)).await {
            Either::Left((connected, _)) => connected,
            Either::Right(_) => Err(Error::offline("the server does not negotiate")),
        }
        .map_err(|e| Error::new(e.kind(), format!("{}: {}", self.address, e.message())))
    }

    async fn negotiate(&self, purpose: Purpose) -> Result<Connected> {
        let mut conn = self.env.connect(self.address.clone()).await?;
        let mut inbox = Inbox::new(self.env.pool());
        let mut handshake = Handshake::new(&self.export, purpose, self.tls.is_some());
        loop {
            let mut input = vec![0; inbox.available()];
            inbox.peek(&mut input);
            let mut out = Vec::new();
            let (used, next) = handshake.step(&input, &mut out)?;
            inbox.consume(used);
            if next == Next::StartTls {
                let Some(tls) = self.tls.as_ref().filter(|_| inbox.available() == 0) else {
                    return Err(Error::offline("the server sent more before TLS had begun"));
                };
                conn = lamina_tls::connect(&self.env, conn, tls).await?;
                handshake.encrypted(&mut out);
            }
            if !out.is_empty() {
                conn.send(Buf::from_vec(out)).await?;
            }
            match next {
                Next::Answered | Next::StartTls => {}
                Next::Receive => match conn.recv(inbox.target()).await? {
                    0 => return Err(Error::offline("the server closed the connection while negotiating")),
                    n => inbox.received(n),
                },
                Next::Ready(facts) => {
                    return Ok(Connected { conn, inbox, facts, answer: handshake.answer(), key: None });
                }
            }
        }
    }
}

impl Connected {
    /// Ends the connection.
    pub fn close(self) {
        self.conn.shutdown();
    }
}

/// One of a client's connections.
pub struct Link {
    common: Rc<Common>,
    session: Session,
    flight: Rc<Flight>,
    /// There is something to send, or the link is closing.
    wake: Signal,
    closing: Cell<bool>,
    ended: Cell<bool>,
    end: Signal,
    /// Since when the server has not answered, once the connection was lost.
    lost: Cell<Option<Time>>,
    /// How long to wait before the next attempt to connect. Grows until the server answers something.
    pause: Cell<Duration>,
    /// The reason why all requests fail, while they do.
    failure: RefCell<Option<Error>>,
    /// The link gave up changes that may yet be done.
    has_open_changes: Cell<bool>,
    heard: Cell<Time>,
    reconnects: Cell<u64>,
    /// The connection that is up.
    up: RefCell<Option<Rc<dyn Conn>>>,
    /// The connection is to be made anew, with another key.
    renews: Cell<bool>,
}

impl Link {
    /// Works on `connected`, which is of `session`, and on the connections that replace it.
    pub fn start(common: &Rc<Common>, session: Session, connected: Connected) -> Rc<Link> {
        let link = Rc::new(Link {
            common: Rc::clone(common),
            session,
            flight: Rc::default(),
            wake: Signal::new(),
            closing: Cell::new(false),
            ended: Cell::new(false),
            end: Signal::new(),
            lost: Cell::new(None),
            pause: Cell::new(Duration::ZERO),
            failure: RefCell::new(None),
            has_open_changes: Cell::new(false),
            heard: Cell::new(common.env.now()),
            reconnects: Cell::new(0),
            up: RefCell::new(None),
            renews: Cell::new(false),
        });
        common.env.spawn(Box::pin(Rc::clone(&link).run(connected)));
        common.env.spawn(Box::pin(Rc::clone(&link).watch()));
        link
    }

    /// Sends a command. The command is queued at once; it is sent even if the reply is not awaited.
    pub fn submit(&self, command: Command) -> Result<Reply> {
        if let Some(failure) = self.common.given_up.borrow().as_ref().or(self.failure.borrow().as_ref()) {
            return Err(failure.clone());
        }
        if command.changes() {
            self.common.open_changes.check()?;
        }
        let key = self.flight.add(command);
        self.wake.notify();
        Ok(Reply { flight: Rc::clone(&self.flight), key })
    }

    /// Commands without an answer.
    pub fn waiting(&self) -> usize {
        self.flight.waiting()
    }

    /// True while there is a connection.
    pub fn is_up(&self) -> bool {
        self.up.borrow().is_some()
    }

    /// How often the connection was made anew.
    pub fn reconnects(&self) -> u64 {
        self.reconnects.get()
    }

    /// Makes the connection anew, as it has another key; what is under way is sent again.
    pub fn renew(&self) {
        self.renews.set(true);
        self.up.borrow().iter().for_each(|conn| conn.abort());
    }

    /// Waits until it is.
    pub async fn renewed(&self) {
        self.end.until(|| !self.renews.get() || self.ended.get()).await;
    }

    /// Begins to end: queued commands are sent, then the goodbye.
    pub fn leave(&self) {
        self.closing.set(true);
        self.wake.notify();
    }

    /// Says goodbye to the server, and ends.
    pub async fn close(&self) {
        self.leave();
        let ended = pin!(self.end.until(|| self.ended.get()));
        if let Either::Right(_) = select(ended, self.common.env.sleep(FAREWELL)).await
            && let Some(conn) = self.up.take()
        {
            conn.shutdown();
        }
    }

    async fn run(self: Rc<Self>, mut connected: Connected) {
        loop {
            let why = self.converse(connected).await;
            if self.closing.get() {
                break;
            }
            self.common.ledger.lost();
            if !self.renews.get() {
                tracing::warn!(server = %self.common.address, error = %why, "connection lost");
            }
            if self.lost.get().is_none() {
                self.lost.set(Some(self.common.env.now()));
            }
            let failure = self.failure(&why);
            if self.flight.rewind(self.common.env.now(), self.common.reconnect, &failure) {
                self.note_open_changes(failure);
            }
            match self.reconnect(why).await {
                Some(again) => connected = again,
                None => break,
            }
            self.reconnects.set(self.reconnects.get() + 1);
            if self.flight.waiting() == 0 {
                self.lost.set(None);
            }
        }
        self.flight.fail_all(&Error::offline("the client is closed"));
        self.ended.set(true);
        self.end.notify();
    }

    /// Tries until there is a connection, or the link is closed.
    async fn reconnect(&self, mut why: Error) -> Option<Connected> {
        let env = &self.common.env;
        let mut told = false;
        loop {
            let pause = self.pause.get();
            self.pause.set((pause * 2).clamp(PAUSE.0, PAUSE.1));
            if !pause.is_zero() {
                env.sleep(self.time_left().map_or(pause, |left| left.min(pause))).await;
            }
            self.give_up_in_time(&why);
            if self.closing.get() {
                return None;
            }
            // The attempt is given up when the time of waiting requests is over.
            let attempt = pin!(self.common.go(self.session));
            let late = env.sleep(self.time_left().unwrap_or(ATTEMPT));
            let connected = match select(attempt, late).await {
                Either::Left((connected, _)) => connected,
                // The error of an earlier attempt tells more.
                Either::Right(_) if told => continue,
                Either::Right(_) => Err(Error::offline("the server does not negotiate")),
            };
            told = true;
            match connected {
                // Another key was chosen meanwhile.
                Ok(connected) if connected.key != self.common.key.get() => connected.close(),
                Ok(connected) => {
                    tracing::info!(server = %self.common.address, "connected again");
                    self.renews.set(false);
                    self.end.notify();
                    self.failure.take();
                    if self.has_open_changes.replace(false) {
                        self.common.open_changes.resolve();
                    }
                    return Some(connected);
                }
                Err(e) => why = e,
            }
        }
    }

    /// How long commands may still wait for the server; `None` if they do not wait any more.
    fn time_left(&self) -> Option<Duration> {
        let lost = self.lost.get()?;
        let left = self.common.reconnect.saturating_sub(self.common.env.now().since(lost));
        (!left.is_zero()).then_some(left)
    }

    /// Fails everything that has waited too long.
    fn give_up_in_time(&self, why: &Error) {
        if self.time_left().is_some() {
            return;
        }
        let failure = self.failure(why);
        if self.flight.fail_all(&failure) {
            self.note_open_changes(failure.clone());
        }
        *self.failure.borrow_mut() = Some(failure);
    }

    /// Changes were given up, and the server may yet do them.
    fn note_open_changes(&self, why: Error) {
        if !self.has_open_changes.replace(true) {
            self.common.open_changes.add(why);
        }
    }

    fn failure(&self, why: &Error) -> Error {
        let reconnect = lamina_block::Interval(self.common.reconnect);
        Error::offline(format!("the NBD server was not back within {reconnect}: {}", why.message()))
    }

    /// Works on a connection until it is lost or the link is closed.
    async fn converse(&self, connected: Connected) -> Error {
        let Connected { conn, inbox, facts, .. } = connected;
        *self.up.borrow_mut() = Some(Rc::clone(&conn));
        self.heard.set(self.common.env.now());
        let replies = Replies::new(inbox, self.common.env.pool(), facts.structured, facts.context);
        let end = {
            let receive = pin!(self.receive(&conn, replies));
            match select(pin!(self.send(&conn)), receive).await {
                // After the goodbye the server closes when it has answered.
                Either::Left((Ok(()), receive)) => receive.await,
                Either::Left((Err(e), receive)) => {
                    // A server that leaves takes no more requests, and has answered others.
                    select(receive, self.common.env.sleep(LEFT_OVER)).await;
                    Err(e)
                }
                Either::Right((Err(e), _)) => Err(e),
                Either::Right((Ok(()), _)) => Ok(()),
            }
        };
        self.up.take();
        if self.closing.get() {
            conn.shutdown();
        } else {
            conn.abort();
        }
        end.err().unwrap_or_else(|| Error::offline("the server closed the connection"))
    }

    async fn send(&self, conn: &Rc<dyn Conn>) -> Result<()> {
        loop {
            self.wake.until(|| !self.flight.is_sent() || self.closing.get()).await;
            let batch = self.batch();
            if !batch.bytes.is_empty() {
                self.send_batch(conn, &batch).await?;
                batch.writes.iter().for_each(|(key, _)| self.flight.sent(*key));
            } else if self.closing.get() {
                return conn.send(Buf::from_vec(farewell())).await;
            }
        }
    }

    /// Sends a batch. A write whose memory cannot be read is sent with zeroes, and fails: the connection, with the
    /// requests of others, goes on.
    async fn send_batch(&self, conn: &Rc<dyn Conn>, batch: &Batch) -> Result<()> {
        let Some((mut sent, _)) = before_bad_memory(conn.send(batch.bytes.clone()).await)? else {
            return Ok(());
        };
        for (key, payload) in &batch.writes {
            if payload.end <= sent {
                continue;
            }
            // Sent alone, with the headers before it, so that the failed write is known.
            let part = batch.bytes.slice(sent..payload.end);
            if let Some((there, e)) = before_bad_memory(conn.send(part).await)? {
                self.flight.spoil(*key, &e);
                sent += there;
                if sent < payload.start {
                    conn.send(batch.bytes.slice(sent..payload.start)).await?;
                    sent = payload.start;
                }
                self.send_zeroes(conn, payload.end - sent).await?;
            }
            sent = payload.end;
        }
        match sent < batch.bytes.len() {
            true => conn.send(batch.bytes.slice(sent..batch.bytes.len())).await,
            false => Ok(()),
        }
    }

    async fn send_zeroes(&self, conn: &Rc<dyn Conn>, len: usize) -> Result<()> {
        let zeroes = self.common.env.pool().take(len.min(ZEROES));
        zeroes.fill(0);
        for start in (0..len).step_by(ZEROES) {
            conn.send(zeroes.slice(0..ZEROES.min(len - start))).await?;
        }
        Ok(())
    }

    /// The commands that are to be sent, as many as one call takes.
    fn batch(&self) -> Batch {
        let (mut batch, mut writes) = (Buf::empty(), Vec::new());
        let mut headers = Vec::new();
        let mut payloads = Vec::new();
        while payloads.len() * 2 < SEGMENTS_MAX
            && let Some((key, command)) = self.flight.next_unsent()
        {
            headers.extend(header(key, &command).as_bytes());
            if command.command == wire::cmd::WRITE {
                writes.push((key, payloads.len()));
                payloads.push(command.data);
            } else {
                payloads.push(Buf::empty());
            }
        }
        let (headers, mut writes) = (Buf::from_vec(headers), writes.into_iter().peekable());
        let mut parts = Vec::new();
        for (i, payload) in payloads.into_iter().enumerate() {
            batch.append(headers.slice(i * wire::Request::LEN..(i + 1) * wire::Request::LEN));
            let start = batch.len();
            batch.append(payload);
            let write = writes.next_if(|(_, number)| *number == i);
            parts.extend(write.map(|(key, _)| (key, start..batch.len())));
        }
        Batch { bytes: batch, writes: parts }
    }

    async fn receive(&self, conn: &Rc<dyn Conn>, mut replies: Replies) -> Result<()> {
        loop {
            let before = self.flight.answered();
            while replies.step(&self.flight)? {}
            if self.flight.answered() != before {
                // The server works.
                self.lost.set(None);
                self.pause.set(Duration::ZERO);
            }
            let n = match conn.recv(replies.inbox().target()).await {
                Err(e) if e.is_of_memory() => {
                    replies.divert(&self.flight, e)?;
                    continue;
                }
                received => received?,
            };
            if n == 0 {
                return Ok(());
            }
            replies.inbox().received(n);
            self.heard.set(self.common.env.now());
        }
    }
}

fn farewell() -> Vec<u8> {
    let command = Command { command: wire::cmd::DISC, flags: 0, offset: 0, len: 0, data: Buf::empty() };
    header(0, &command).as_bytes().to_vec()
}
