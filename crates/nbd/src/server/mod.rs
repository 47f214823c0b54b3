//! The server: exports nodes to any NBD client.
//!
//! A [`Server`] has named exports and listens wherever [`Server::serve`] is told to, on several listeners if wanted.
//! A connection negotiates (`handshake`), then transmits (`session`).
//!
//! Invariants: a client that breaks the protocol, stalls or floods loses its own connection and nothing else; the
//! number of connections, and the number and the time of those that negotiate, are bounded by [`Settings`], the memory
//! of those that transmit by that of their export ([`Budget`]); no request of a client's lost connection is done after
//! the client goes on over a new one (`fence`).
//!
//! All connections to an export share one node, so a write of one is visible to all others, and a flush on one covers
//! the completed writes of all: the server says CAN_MULTI_CONN.

mod bitmap;
mod fence;
pub mod handshake;
mod option;
mod outbox;
mod pace;
mod ration;
mod register;
pub mod request;
mod session;

use crate::inbox::Inbox;
use crate::wire::{self, flag};
use fence::Claim;
use futures_util::future::{Either, select};
use handshake::{Agreed, Exports, Facts, Handshake, Next};
use lamina_block::{
    Budget, Buf, Conn, Env, Error, Listener, Node, PIECE, Records, ReservationKey, Result, Signal, Taker,
    Time,
};
use lamina_tls::ServerTls;
use ration::Ration;
use session::Session;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Bounds of a server.
#[derive(Clone)]
pub struct Settings {
    /// Encryption; none without it.
    pub tls: Option<ServerTls>,
    /// Bytes of memory for the requests of one connection, data included: those not answered and the answers not sent.
    /// At least 32 MiB, the largest request, are used. Default: 64 MiB.
    pub max_in_flight_bytes: usize,
    /// Connections at the same time. Default: 256.
    pub max_connections: usize,
    /// Connections that negotiate at the same time. When another one comes, the longest negotiation has to go, as soon
    /// as it has had a quarter of a second. Default: 128.
    pub max_handshakes: usize,
    /// Time that a client has to negotiate. Default: 10 s.
    pub handshake_timeout: Duration,
    /// How long a returning client waits for the requests of its lost connection to end, before it is refused and has
    /// to come again. Shorter than `handshake_timeout`. Default: 5 s.
    pub fence_timeout: Duration,
    /// Fences the lost connection of a returning client, if the client asks for that (`x-lamina:session`). Without it
    /// the server is as others, which do not know sessions. Default: true.
    pub sessions: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tls: None,
            max_in_flight_bytes: 64 << 20,
            max_connections: 256,
            max_handshakes: 128,
            handshake_timeout: Duration::from_secs(10),
            fence_timeout: Duration::from_secs(5),
            sessions: true,
        }
    }
}

/// An export: a node under a name.
#[derive(Clone)]
pub struct ExportInfo {
    /// The name that clients ask for; at most 4096 bytes. A client that asks for none gets the only export there is.
    pub name: String,
    /// A line for people; may be empty.
    pub description: String,
    /// The exported node.
    pub node: Rc<Node>,
    /// Refuse everything that changes the node.
    pub read_only: bool,
    /// The memory for requests of its connections. Each connection has its own [`Budget::RESERVE`] of it, so that none
    /// can be starved by others; a connection for which there is no space is refused.
    pub memory: Rc<Budget>,
    /// The records of the hosts that share it: a connection writes that is registered with the newest key.
    pub records: Option<Rc<dyn Records>>,
}

/// The order to end a connection.
#[derive(Default)]
pub struct Stop {
    ordered: Cell<bool>,
    fenced: Cell<bool>,
    signal: Signal,
}

impl Stop {
    /// Takes no more requests; those received already are answered.
    fn order(&self) {
        self.ordered.set(true);
        self.signal.notify();
    }

    /// Begins nothing more, received or not.
    fn fence(&self) {
        self.fenced.set(true);
        self.order();
    }

    fn fenced(&self) -> bool {
        self.fenced.get()
    }

    async fn wait_for_fence(&self) {
        self.signal.until(|| self.fenced()).await;
    }

    fn ordered(&self) -> bool {
        self.ordered.get()
    }

    async fn wait(&self) {
        self.signal.until(|| self.ordered()).await;
    }
}

/// A connection, as the server sees it.
struct Client {
    /// Its number, which no other connection has at the same time.
    number: u32,
    stop: Rc<Stop>,
    /// Its socket.
    conn: Rc<dyn Conn>,
    /// The session it belongs to.
    claim: RefCell<Option<Claim>>,
    /// The export that it registered with, and its key.
    key: RefCell<Option<(String, ReservationKey)>>,
    /// The export, once one was chosen.
    export: RefCell<Option<Rc<ExportInfo>>>,
    /// The start of its negotiation, while that lasts.
    negotiates: Cell<Option<Time>>,
}

/// A connection that has negotiated.
struct Ready {
    conn: Rc<dyn Conn>,
    /// The result of the negotiation.
    inbox: Inbox,
    agreed: Agreed,
    budget: Taker,
}

/// An NBD server.
pub struct Server {
    env: Rc<dyn Env>,
    settings: Settings,
    exports: RefCell<BTreeMap<String, Rc<ExportInfo>>>,
    clients: RefCell<Slab<Rc<Client>>>,
    handshakes: Cell<usize>,
    /// Claims to sessions so far.
    claims: Cell<u64>,
    stop: Stop,
    /// A client has left, or has ended its negotiation.
    left: Signal,
    /// Lines about connections that are refused, and that end with an error.
    refusals: Ration,
    ends: Ration,
}

/// The time for a negotiation that others cannot cut short.
const HANDSHAKE_MIN: Duration = Duration::from_millis(250);

impl Server {
    /// A server without exports.
    pub fn new(env: Rc<dyn Env>, settings: Settings) -> Rc<Server> {
        Rc::new(Server {
            env,
            settings,
            exports: RefCell::default(),
            clients: RefCell::default(),
            handshakes: Cell::new(0),
            claims: Cell::new(0),
            stop: Stop::default(),
            left: Signal::new(),
            refusals: Ration::default(),
            ends: Ration::default(),
        })
    }

    /// Adds an export. Refused if the name is taken or too long.
    pub fn add(&self, export: ExportInfo) -> Result<()> {
        let name = export.name.clone();
        if name.len().max(export.description.len()) > wire::STRING_MAX {
            return Err(Error::invalid("an export's name and description have at most 4096 bytes"));
        }
        let mut exports = self.exports.borrow_mut();
        if exports.contains_key(&name) {
            return Err(Error::invalid(format!("there is an export {name:?} already")));
        }
        exports.insert(name, Rc::new(export));
        Ok(())
    }

    /// Removes an export, and ends the connections to it when the requests under way have been answered.
    pub fn remove(&self, name: &str) {
        let Some(removed) = self.exports.borrow_mut().remove(name) else { return };
        for (_, client) in self.clients.borrow().iter() {
            if client.export.borrow().as_ref().is_some_and(|export| Rc::ptr_eq(export, &removed)) {
                client.stop.order();
            }
        }
    }

    /// The clients of an export: addresses, for people.
    pub fn clients_of(&self, name: &str) -> Vec<String> {
        let exports = self.exports.borrow();
        let Some(asked) = exports.get(name) else { return Vec::new() };
        let uses = |client: &Client| client.export.borrow().as_ref().is_some_and(|e| Rc::ptr_eq(e, asked));
        let clients = self.clients.borrow();
        clients.iter().filter(|(_, client)| uses(client)).map(|(_, client)| client.conn.peer()).collect()
    }

    /// True if the server has no export left.
    pub fn is_empty(&self) -> bool {
        self.exports.borrow().is_empty()
    }

    /// Connections now, those that negotiate included.
    pub fn connections(&self) -> usize {
        self.clients.borrow().len()
    }

    /// Accepts connections until [`Server::shutdown`], or until the listener fails for good.
    pub async fn serve(self: &Rc<Self>, listener: Rc<dyn Listener>) -> Result<()> {
        while !self.stop.ordered() {
            self.make_room().await;
            match select(listener.accept(), pin!(self.stop.wait())).await {
                Either::Left((Ok(conn), _)) => self.accepted(conn),
                Either::Left((Err(e), _)) => {
                    // Usually too many open files: that passes when a client leaves.
                    tracing::warn!(listener = %listener.address(), error = %e, "cannot accept");
                    self.env.sleep(Duration::from_millis(100)).await;
                }
                Either::Right(_) => break,
            }
        }
        Ok(())
    }

    /// Removes an export, and waits until its clients have left.
    pub async fn close_export(&self, name: &str) {
        let Some(export) = self.exports.borrow().get(name).cloned() else { return };
        self.remove(name);
        let uses = |client: &Client| client.export.borrow().as_ref().is_some_and(|e| Rc::ptr_eq(e, &export));
        self.left.until(|| !self.clients.borrow().iter().any(|(_, client)| uses(client))).await;
    }

    /// Waits until another one may negotiate. The longest negotiation has to go when it has had its time: clients that
    /// occupy all places shut no other out.
    async fn make_room(&self) {
        while self.handshakes.get() >= self.settings.max_handshakes && !self.stop.ordered() {
            let begun = |client: &Rc<Client>| client.negotiates.get().map(|since| (since, Rc::clone(client)));
            let oldest =
                self.clients.borrow().iter().filter_map(|(_, c)| begun(c)).min_by_key(|(since, _)| *since);
            let Some((since, oldest)) = oldest else { return };
            let age = self.env.now().since(since);
            let left = HANDSHAKE_MIN.checked_sub(age).filter(|left| !left.is_zero());
            if left.is_none() {
                oldest.stop.order();
            }
            let wait = self.env.sleep(left.unwrap_or(HANDSHAKE_MIN));
            select(wait, pin!(self.left.wait())).await;
        }
    }

    /// Accepts no more, answers all requests under way, and closes all connections.
    pub async fn shutdown(&self) {
        self.stop.order();
        for (_, client) in self.clients.borrow().iter() {
            client.stop.order();
        }
        self.left.until(|| self.clients.borrow().is_empty()).await;
    }

    fn accepted(self: &Rc<Self>, conn: Rc<dyn Conn>) {
        if self.stop.ordered() {
            return conn.shutdown();
        }
        let connections = self.connections();
        if connections >= self.settings.max_connections {
            if let Some(left_out) = self.refusals.left_out(self.env.now()) {
                tracing::warn!(peer = conn.peer(), connections, left_out, "too many connections: refused");
            }
            return conn.shutdown();
        }
        self.handshakes.set(self.handshakes.get() + 1);
        let key = self.clients.borrow().vacant_key();
        let client = Rc::new(Client {
            // 0 is the guest of the same export over vhost-user.
            number: key as u32 + 1,
            stop: Rc::default(),
            conn: Rc::clone(&conn),
            claim: RefCell::default(),
            key: RefCell::default(),
            export: RefCell::default(),
            negotiates: Cell::new(Some(self.env.now())),
        });
        self.clients.borrow_mut().insert(Rc::clone(&client));
        let server = Rc::clone(self);
        self.env.spawn(Box::pin(async move {
            let peer = conn.peer();
            if let Err(e) = server.converse(&client, conn).await
                && let Some(left_out) = server.ends.left_out(server.env.now())
            {
                tracing::info!(peer, error = %e, left_out, "connection ended");
            }
            server.clients.borrow_mut().remove(key);
            server.left.notify();
        }));
    }

    /// A connection from its first byte to its last.
    async fn converse(&self, client: &Client, conn: Rc<dyn Conn>) -> Result<()> {
        let agreed = self.negotiate_in_time(client, Rc::clone(&conn)).await;
        client.negotiates.set(None);
        self.handshakes.set(self.handshakes.get() - 1);
        self.left.notify();
        let Ready { conn, inbox, agreed, budget } = match agreed {
            Ok(Some(ready)) => ready,
            Ok(None) => {
                conn.shutdown();
                return Ok(());
            }
            Err(e) => {
                conn.shutdown();
                return Err(e);
            }
        };
        let Some(export) = self.exports.borrow().get(&agreed.export).cloned() else {
            conn.shutdown();
            return Err(Error::offline("the export was removed during negotiation"));
        };
        *client.export.borrow_mut() = Some(Rc::clone(&export));
        if agreed.session.is_none() {
            client.claim.take();
        }
        tracing::debug!(peer = conn.peer(), export = %export.name, "connected");
        let stop = Rc::clone(&client.stop);
        let session = Session::new(&self.env, Rc::clone(&conn), client.number, export, agreed, budget, stop);
        let end = session.run(inbox).await;
        conn.shutdown();
        end
    }

    /// Lets a connection to an export in, if there is memory for it.
    fn admit(&self, export: &str, max: usize) -> Result<Taker> {
        let exports = self.exports.borrow();
        let export = exports.get(export).ok_or_else(|| Error::offline("the export was removed"))?;
        Ok(export.memory.part(Budget::RESERVE, max)?.taker())
    }

    async fn negotiate_in_time(&self, client: &Client, conn: Rc<dyn Conn>) -> Result<Option<Ready>> {
        let negotiation = pin!(self.negotiate(client, conn));
        let stopped = pin!(client.stop.wait());
        let late = select(self.env.sleep(self.settings.handshake_timeout), stopped);
        match select(negotiation, late).await {
            Either::Left((agreed, _)) => agreed,
            Either::Right((Either::Left(_), _)) => Err(Error::offline("the negotiation took too long")),
            Either::Right((Either::Right(_), _)) => Ok(None),
        }
    }

    /// Negotiates; `None` if the client only wanted to know something.
    async fn negotiate(&self, client: &Client, mut conn: Rc<dyn Conn>) -> Result<Option<Ready>> {
        let tls = match &self.settings.tls {
            None => handshake::Tls::Unavailable,
            Some(tls) if tls.required => handshake::Tls::Required,
            Some(_) => handshake::Tls::Offered,
        };
        let mut handshake = Handshake::new(tls, self.settings.sessions);
        let max = self.settings.max_in_flight_bytes.max(wire::PAYLOAD_MAX as usize);
        conn.send(Buf::from_vec(Handshake::greeting())).await?;
        let mut inbox = Inbox::new(self.env.pool());
        loop {
            let mut input = vec![0; inbox.available()];
            inbox.peek(&mut input);
            let mut out = Vec::new();
            let (used, next) =
                handshake.step(&input, self, &mut out).map_err(|refused| Error::invalid(refused.0))?;
            inbox.consume(used);
            let granted = match &next {
                Next::Identify(identity) => self.identify(client, identity).await.map(|key| {
                    handshake.identified(key, &mut out);
                    None
                }),
                Next::Ask(export, question) => self.ask(export, question.clone()).await.map(|bytes| {
                    handshake::answer(&bytes, &mut out);
                    None
                }),
                Next::Transmission(agreed) => self.admit(&agreed.export, max).map(Some),
                Next::Answered | Next::Receive | Next::StartTls | Next::Close => Ok(None),
            };
            let budget = match granted {
                Ok(budget) => budget,
                Err(e) => {
                    conn.send(Buf::from_vec(next.refuse(e.message()))).await?;
                    return Err(e);
                }
            };
            if !out.is_empty() {
                conn.send(Buf::from_vec(out)).await?;
            }
            match next {
                Next::Answered | Next::Identify(_) | Next::Ask(..) => {}
                Next::Receive => match conn.recv(inbox.target()).await? {
                    0 => return Ok(None),
                    n => inbox.received(n),
                },
                Next::StartTls => {
                    if inbox.available() > 0 {
                        return Err(Error::invalid("the client sent more before TLS had begun"));
                    }
                    let Some(tls) = &self.settings.tls else { return Ok(None) };
                    conn = lamina_tls::accept(&self.env, conn, tls).await?;
                    handshake = Handshake::encrypted(&handshake);
                }
                Next::Transmission(agreed) => {
                    return Ok(budget.map(|budget| Ready { conn, inbox, agreed, budget }));
                }
                Next::Close => return Ok(None),
            }
        }
    }
}

impl Exports for Server {
    fn list(&self) -> Vec<Facts> {
        self.exports.borrow().values().map(|export| export.facts()).collect()
    }

    fn find(&self, name: &str) -> Option<Facts> {
        let exports = self.exports.borrow();
        let only = || exports.values().next().filter(|_| name.is_empty() && exports.len() == 1);
        exports.get(name).or_else(only).map(|export| export.facts())
    }

    fn snapshots(&self, name: &str) -> Vec<String> {
        self.exports.borrow().get(name).map_or_else(Vec::new, |export| export.node.snapshots())
    }
}

impl ExportInfo {
    fn facts(&self) -> Facts {
        let geometry = self.node.geometry();
        let mut flags =
            flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        if self.read_only || geometry.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_WRITE_ZEROES;
            // Elsewhere zeroes are written, and every such request would fail.
            if geometry.zero {
                flags |= flag::SEND_FAST_ZERO;
            }
            if geometry.discard {
                flags |= flag::SEND_TRIM;
            }
        }
        Facts {
            name: self.name.clone(),
            description: self.description.clone(),
            size: geometry.size,
            flags,
            minimum: geometry.block,
            preferred: geometry.optimal.max(geometry.block).min(PIECE as u32),
            records: self.records.is_some(),
        }
    }
}
