//! Connections in memory: byte streams that arrive in random pieces, after random delays, and that can be cut, or
//! stranded: lost to the end that connected, while the other end notices nothing, and receives the rest much later.
//!
//! Hosts have names: what one of them sends to another can be held back in one direction or in both, as by a network
//! that loses packets which are sent again later. The name of a host is what stands before the port of its address.
//!
//! Each direction holds at most 64 KiB: a sender waits for a receiver that is slow.

use crate::executor::{Executor, give_way};
use crate::memory;
use fastrand::Rng;
use lamina_block::{Address, Buf, Conn, Error, Listener, Pending, Result, Signal};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Bytes under way in one direction.
const WINDOW: usize = 64 << 10;

/// How often a connection is begun again that does not come about.
const RETRY: Duration = Duration::from_millis(100);

/// The host of an address.
fn host_of(address: &Address) -> String {
    match address {
        Address::Tcp(at) => at.rsplit_once(':').map_or(at.as_str(), |(host, _)| host).into(),
        Address::Unix(_) => String::new(),
    }
}

/// All listeners and connections of one environment.
pub struct Net {
    executor: Rc<Executor>,
    rng: RefCell<Rng>,
    listening: RefCell<BTreeMap<String, Rc<Backlog>>>,
    connections: RefCell<Vec<(String, Weak<Wire>)>>,
    /// From which host nothing gets to which.
    blocked: RefCell<BTreeSet<(String, String)>>,
    port: Cell<u16>,
    me: Weak<Net>,
}

#[derive(Default)]
struct Backlog {
    waiting: RefCell<VecDeque<Rc<End>>>,
    arrived: Signal,
    closed: Cell<bool>,
}

/// Both directions of a connection. The end that connected has side 0.
#[derive(Default)]
struct Wire {
    pipes: [Pipe; 2],
    /// The hosts at both ends; and which of them have shut it down, which an end knows of itself whatever is lost.
    hosts: [String; 2],
    is_shut: [Cell<bool>; 2],
    fate: Cell<Fate>,
}

/// The state of a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Whole,
    /// The connection was lost, with the bytes under way.
    Cut,
    /// Side 0 has lost it; side 1 waits for the bytes under way.
    Stranded,
    /// Side 0 has lost it; the bytes under way arrive at side 1, then an error.
    Drifted,
    /// A machine at one end has lost its power: nothing comes any more, and nobody says so.
    Silent,
}

#[derive(Default)]
struct Pipe {
    bytes: RefCell<VecDeque<u8>>,
    /// The sender sends no more.
    ended: Cell<bool>,
    /// Bytes came or went, or the connection ended.
    changed: Signal,
}

struct End {
    wire: Rc<Wire>,
    /// The pipe it sends into.
    side: usize,
    net: Rc<Net>,
    peer: String,
}

impl Net {
    pub(crate) fn new(executor: Rc<Executor>, seed: u64) -> Rc<Net> {
        Rc::new_cyclic(|me| Net {
            executor,
            rng: RefCell::new(Rng::with_seed(seed)),
            listening: RefCell::default(),
            connections: RefCell::default(),
            blocked: RefCell::default(),
            port: Cell::new(40_000),
            me: me.clone(),
        })
    }

    pub(crate) fn shutdown(&self) {
        self.listening.take();
        self.connections.take();
    }

    /// Cuts all connections to `address`; both ends see an error. The address accepts connections again.
    pub fn cut(&self, address: &Address) {
        let key = address.to_string();
        let cut: Vec<_> = self.connections.borrow_mut().extract_if(.., |(to, _)| *to == key).collect();
        for wire in cut.into_iter().filter_map(|(_, wire)| wire.upgrade()) {
            wire.turn(Fate::Cut);
        }
    }

    /// From now on nothing gets from host `from` to host `to`, until [`Net::unblock`]: neither bytes nor the end of a
    /// connection, nor the beginning of one, for which both directions are needed.
    pub fn block(&self, from: &str, to: &str) {
        self.blocked.borrow_mut().insert((from.into(), to.into()));
    }

    /// What was held back from host `from` to host `to` arrives.
    pub fn unblock(&self, from: &str, to: &str) {
        self.blocked.borrow_mut().remove(&(from.into(), to.into()));
        for (_, wire) in &*self.connections.borrow() {
            wire.upgrade().iter().for_each(|wire| wire.pipes.iter().for_each(|pipe| pipe.changed.notify()));
        }
    }

    fn is_blocked(&self, from: &str, to: &str) -> bool {
        let blocked = self.blocked.borrow();
        !blocked.is_empty() && blocked.contains(&(from.into(), to.into()))
    }

    /// The process of a host has died: its connections are cut, where the other end can hear of that.
    pub fn cut_host(&self, host: &str) {
        for (side, wire) in self.wires_of(host) {
            let is_heard = !self.is_blocked(host, &wire.hosts[1 - side]);
            wire.turn(if is_heard { Fate::Cut } else { Fate::Silent });
        }
    }

    /// A machine has lost its power: its connections fall silent.
    pub fn silence_host(&self, host: &str) {
        self.wires_of(host).into_iter().for_each(|(_, wire)| wire.turn(Fate::Silent));
    }

    /// Connections of a host, each with its side.
    fn wires_of(&self, host: &str) -> Vec<(usize, Rc<Wire>)> {
        let connections = self.connections.borrow();
        let wires = connections.iter().filter_map(|(_, wire)| wire.upgrade());
        wires.filter_map(|wire| Some((wire.hosts.iter().position(|of| of == host)?, wire))).collect()
    }

    /// Strands about half of the connections to `address`: the end that connected sees an error, the other end nothing,
    /// until [`Net::heal`]. The address accepts connections again.
    pub fn strand(&self, address: &Address) {
        for wire in self.whole(address) {
            if self.rng.borrow_mut().bool() {
                wire.turn(Fate::Stranded);
            }
        }
    }

    /// The bytes under way on stranded connections to `address` arrive now, and then their end.
    pub fn heal(&self, address: &Address) {
        for wire in self.wires(address).into_iter().filter(|wire| wire.fate.get() == Fate::Stranded) {
            wire.turn(Fate::Drifted);
        }
    }

    /// Connections to `address` that are whole: neither cut nor shut down at either end.
    pub fn connections(&self, address: &Address) -> usize {
        self.whole(address).len()
    }

    fn whole(&self, address: &Address) -> Vec<Rc<Wire>> {
        let mut wires = self.wires(address);
        wires
            .retain(|wire| wire.fate.get() == Fate::Whole && wire.pipes.iter().all(|pipe| !pipe.ended.get()));
        wires
    }

    fn wires(&self, address: &Address) -> Vec<Rc<Wire>> {
        let key = address.to_string();
        let connections = self.connections.borrow();
        connections.iter().filter(|(to, _)| *to == key).filter_map(|(_, wire)| wire.upgrade()).collect()
    }

    /// Connects from the host `from`.
    pub(crate) fn connect(&self, from: &str, to: Address) -> Pending<Rc<dyn Conn>> {
        let Some(net) = self.me.upgrade() else { return Box::pin(std::future::pending()) };
        let (from, host) = (from.to_owned(), host_of(&to));
        Box::pin(async move {
            net.delay().await;
            while net.is_blocked(&from, &host) || net.is_blocked(&host, &from) {
                net.executor.sleep(RETRY).await;
            }
            let key = to.to_string();
            let backlog = net.listening.borrow().get(&key).cloned();
            let backlog =
                backlog.ok_or_else(|| Error::offline(format!("no listener at {to}: connection refused")))?;
            let wire = Rc::new(Wire { hosts: [from, host], ..Wire::default() });
            net.connections.borrow_mut().retain(|(_, wire)| wire.strong_count() > 0);
            net.connections.borrow_mut().push((key.clone(), Rc::downgrade(&wire)));
            let end = |side, peer: &str| {
                Rc::new(End { wire: Rc::clone(&wire), side, net: Rc::clone(&net), peer: peer.into() })
            };
            backlog.waiting.borrow_mut().push_back(end(1, "simulated client"));
            backlog.arrived.notify();
            Ok(end(0, &key) as Rc<dyn Conn>)
        })
    }

    pub(crate) fn listen(&self, at: Address) -> Result<Rc<dyn Listener>> {
        let address = match at {
            Address::Tcp(host) if host.ends_with(":0") => {
                self.port.set(self.port.get() + 1);
                Address::Tcp(format!("{}{}", &host[..host.len() - 1], self.port.get()))
            }
            other => other,
        };
        let key = address.to_string();
        if self.listening.borrow().contains_key(&key) {
            return Err(Error::busy(format!("{address} is in use")));
        }
        let backlog = Rc::new(Backlog::default());
        self.listening.borrow_mut().insert(key, Rc::clone(&backlog));
        let net = self.me.clone();
        Ok(Rc::new(Listening { address, backlog, net }))
    }

    /// Sometimes waits.
    async fn delay(&self) {
        let (sleep, ns) = {
            let mut rng = self.rng.borrow_mut();
            (rng.bool(), rng.u64(0..50_000))
        };
        match sleep {
            true => self.executor.sleep(Duration::from_nanos(ns)).await,
            false => give_way().await,
        }
    }

    /// A random part of `n`, at least 1; often all.
    fn piece(&self, n: usize) -> usize {
        let mut rng = self.rng.borrow_mut();
        if rng.bool() { n } else { rng.usize(1..=n) }
    }
}

struct Listening {
    address: Address,
    backlog: Rc<Backlog>,
    net: Weak<Net>,
}

impl Listener for Listening {
    fn accept(&self) -> Pending<Rc<dyn Conn>> {
        let backlog = Rc::clone(&self.backlog);
        Box::pin(async move {
            loop {
                let next = backlog.waiting.borrow_mut().pop_front();
                match next {
                    Some(end) => return Ok(end as Rc<dyn Conn>),
                    None if backlog.closed.get() => return Err(Error::offline("the listener is closed")),
                    None => backlog.arrived.wait().await,
                }
            }
        })
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(net) = self.net.upgrade() {
            net.listening.borrow_mut().remove(&self.address.to_string());
        }
        self.backlog.closed.set(true);
        self.backlog.waiting.take();
        self.backlog.arrived.notify();
    }
}

impl Wire {
    fn turn(&self, fate: Fate) {
        self.fate.set(fate);
        self.pipes.iter().for_each(|pipe| pipe.changed.notify());
    }

    /// Whether `side` has lost the connection.
    fn is_lost(&self, side: usize) -> bool {
        match self.fate.get() {
            Fate::Whole | Fate::Silent => false,
            Fate::Cut => true,
            Fate::Stranded | Fate::Drifted => side == 0,
        }
    }

    fn check(&self, side: usize) -> Result<()> {
        match self.is_lost(side) {
            true => Err(Error::offline("connection reset by peer")),
            false => Ok(()),
        }
    }

    async fn recv(&self, side: usize, net: &Net, into: Buf) -> Result<usize> {
        net.delay().await;
        // Bytes before the missing memory can be received.
        let into = match memory::check(&into) {
            Err(e) if e.range().is_some_and(|there| there.is_empty()) => return Err(e),
            Err(e) => into.slice(0..e.range().map_or(0, |there| there.end as usize)),
            Ok(()) => into,
        };
        let pipe = &self.pipes[1 - side];
        loop {
            self.check(side)?;
            let is_held_back = matches!(self.fate.get(), Fate::Stranded | Fate::Silent)
                || net.is_blocked(&self.hosts[1 - side], &self.hosts[side]);
            if is_held_back && self.fate.get() != Fate::Stranded && !self.is_shut[side].get() {
                pipe.changed.wait().await;
                continue;
            }
            let waiting = if is_held_back { 0 } else { pipe.bytes.borrow().len() };
            if waiting > 0 && !into.is_empty() {
                let n = net.piece(waiting.min(into.len()));
                let rest = pipe.bytes.borrow_mut().split_off(n);
                into.write(0, pipe.bytes.replace(rest).make_contiguous());
                pipe.changed.notify();
                return Ok(n);
            }
            if pipe.ended.get() || into.is_empty() {
                return Ok(0);
            }
            if self.fate.get() == Fate::Drifted {
                return Err(Error::offline("connection timed out"));
            }
            pipe.changed.wait().await;
        }
    }

    async fn send(&self, side: usize, net: &Net, from: Buf) -> Result<()> {
        let pipe = &self.pipes[side];
        let mut sent = 0;
        let bad = memory::check(&from).err();
        // The kernel may notice some bytes before those that cannot be read.
        let good = bad
            .as_ref()
            .and_then(|e| e.range())
            .map_or(from.len(), |there| net.piece(there.end as usize + 1) - 1);
        while sent < from.len() {
            self.check(side)?;
            if let Some(e) = bad.as_ref().filter(|_| sent == good) {
                return Err(Error::new(e.kind(), e.message()).at(0..sent as u64));
            }
            if pipe.ended.get() {
                return Err(Error::offline("the connection is shut down"));
            }
            let space = WINDOW - pipe.bytes.borrow().len();
            if space == 0 {
                pipe.changed.wait().await;
                continue;
            }
            let n = net.piece(space.min(good - sent));
            let bytes = from.slice(sent..sent + n).to_vec();
            pipe.bytes.borrow_mut().extend(bytes);
            sent += n;
            pipe.changed.notify();
            net.delay().await;
        }
        self.check(side)
    }

    fn send_at_once(&self, side: usize, net: &Net, from: &Buf) -> usize {
        let pipe = &self.pipes[side];
        let space = WINDOW - pipe.bytes.borrow().len();
        if self.check(side).is_err() || pipe.ended.get() || memory::check(from).is_err() {
            return 0;
        }
        let n = net.piece(space.min(from.len()) + 1) - 1;
        let bytes = from.slice(0..n).to_vec();
        pipe.bytes.borrow_mut().extend(bytes);
        pipe.changed.notify();
        n
    }
}

impl Conn for End {
    fn recv(&self, into: Buf) -> Pending<usize> {
        let (wire, net, side) = (Rc::clone(&self.wire), Rc::clone(&self.net), self.side);
        Box::pin(async move { wire.recv(side, &net, into).await })
    }

    fn send(&self, from: Buf) -> Pending {
        let (wire, net, side) = (Rc::clone(&self.wire), Rc::clone(&self.net), self.side);
        Box::pin(async move { wire.send(side, &net, from).await })
    }

    fn send_at_once(&self, from: &Buf) -> usize {
        self.wire.send_at_once(self.side, &self.net, from)
    }

    fn shutdown(&self) {
        if self.wire.is_lost(self.side) {
            return;
        }
        self.wire.is_shut[self.side].set(true);
        for pipe in &self.wire.pipes {
            pipe.ended.set(true);
            pipe.changed.notify();
        }
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }
}

impl Drop for End {
    /// The peer sees the end of the stream, once it has received what was sent.
    fn drop(&mut self) {
        self.shutdown();
    }
}
