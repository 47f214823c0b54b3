//! A device in the graph: the only caller of its layer.
//!
//! A node checks every request, counts and times it, emulates operations that its layer does not do natively, and can
//! be quiesced while layers below are exchanged.
//!
//! ```text
//!   export ──▶ node A ──Forward──▶ node B ──Forward──▶ node C ──Control──▶ future
//!               └─── one walk: counted in A, B and C, one box, one reading of the clock
//! ```

mod questions;
mod quiesced;

use crate::account::{Cause, Here, is_here, wait};
use crate::emulate::{ZEROES_MAX, run, then_flush, writes_of_zeroes};
use crate::users::Users;
use crate::walk::{Deferred, Request, Walk};
use crate::{
    Absent, Account, Command, Consent, Durability, Effect, Env, Error, ErrorKind, Finding, Geometry, Io, Job,
    Layer, Op, OpKind, Result, Signal, Stats, Step, Time, Watch, Zero, Zones,
};
use serde_json::Value;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

pub use quiesced::Quiesced;

/// Whether requests may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// Requests wait: something below is being exchanged.
    Quiesced,
    /// Nothing changes the device any more: another owner has it. Reads pass.
    Fenced,
    /// The device has been shut down.
    Closed,
}

/// A device: a name, a layer, and everything that is the same for all layers.
pub struct Node {
    name: Rc<str>,
    kind: Cell<&'static str>,
    env: Rc<dyn Env>,
    layer: RefCell<Rc<dyn Layer>>,
    geometry: Cell<Geometry>,
    gate: Cell<Gate>,
    /// The gate is open and nobody watches: plain requests may take the short way.
    is_unwatched: Cell<bool>,
    watch: RefCell<Option<Rc<dyn Watch>>>,
    /// The node was fenced, perhaps while it was quiesced: the gate will not open fully again.
    fenced: Cell<bool>,
    /// The gate moved, or the last request in flight ended while the node was quiesced.
    moved: Signal,
    resized: Signal,
    stats: Stats,
    account: Account,
    users: Users,
}

impl Node {
    /// A device called `name` with a layer of `kind`.
    pub fn new(name: &str, kind: &'static str, env: Rc<dyn Env>, layer: Rc<dyn Layer>) -> Rc<Node> {
        let geometry = Cell::new(layer.geometry());
        Rc::new(Node {
            name: name.into(),
            kind: Cell::new(kind),
            env,
            layer: RefCell::new(layer),
            geometry,
            gate: Cell::new(Gate::Open),
            is_unwatched: Cell::new(true),
            watch: RefCell::default(),
            fenced: Cell::new(false),
            moved: Signal::new(),
            resized: Signal::new(),
            stats: Stats::default(),
            account: Account::default(),
            users: Users::default(),
        })
    }

    /// The device called `name`, which is not there: requests fail with `why`. Its size is 0 and it is read-only; the
    /// rest of its shape has no meaning.
    pub fn absent(name: &str, env: Rc<dyn Env>, why: Error) -> Rc<Node> {
        Node::new(name, Absent::KIND, env, Rc::new(Absent::new(why)))
    }

    /// True while the device is not there. When it comes, its node gets its layer ([`Quiesced::replace`]), and callers
    /// that wait in [`Node::resized`] are woken; likewise when a failed device that was not absent comes back.
    pub fn is_absent(&self) -> bool {
        self.kind.get() == Absent::KIND
    }

    /// The device's name in its hierarchy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of its layer.
    pub fn kind(&self) -> &'static str {
        self.kind.get()
    }

    /// Its shape.
    pub fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    /// Its sequential zones, if it is a zoned device.
    pub fn zones(&self) -> Option<Zones> {
        self.layer.borrow().zones()
    }

    /// Its counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Where the time of its clients' requests goes.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Its requests fail because something could not be reached: see [`Stats::is_unreached`].
    pub fn is_unreached(&self) -> bool {
        self.stats.is_unreached(self.now())
    }

    pub(crate) fn shared_name(&self) -> Rc<str> {
        Rc::clone(&self.name)
    }

    pub(crate) fn env(&self) -> &Rc<dyn Env> {
        &self.env
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// The time of its environment.
    pub(crate) fn now(&self) -> Time {
        self.env.now()
    }

    /// The info of its layer.
    pub fn info(&self) -> Value {
        self.layer.borrow().info()
    }

    /// The state that its layer shares with layers above: see [`Manage::shared`].
    pub fn shared(&self) -> Option<Rc<dyn Any>> {
        self.layer.borrow().shared()
    }

    /// Submits a request. Poll what comes back at once: futures are lazy.
    #[inline]
    pub fn submit(self: &Rc<Self>, mut io: Io) -> Request {
        if self.account.is_due() || is_here() {
            return self.submit_looked_at(&mut io);
        }
        self.walk(&mut io)
    }

    /// Submits a request, and accounts for its time.
    #[cold]
    fn submit_looked_at(self: &Rc<Self>, io: &mut Io) -> Request {
        let Some(here) = Here::begin(self, io) else { return self.walk(io) };
        let entered = here.enter();
        let request = self.walk(io);
        drop(entered);
        request.looked_at(here)
    }

    #[inline(never)]
    fn walk(self: &Rc<Self>, io: &mut Io) -> Request {
        let mut walk = Walk::new(io);
        let mut node = Rc::clone(self);
        loop {
            let step = if node.is_plain(io) {
                node.layer().submit(io)
            } else {
                match node.admit(io) {
                    Ok(Admitted::Pass) => {
                        node.seen(io);
                        node.emulate(io)
                    }
                    Ok(Admitted::Nothing) => return walk.end(Ok(())),
                    Ok(Admitted::Wait) => return walk.begin(Deferred::new(node.wait_and_submit(io.take()))),
                    Err(e) => return walk.end(Err(e)),
                }
            };
            match step {
                Step::Forward(next) if walk.is_full() => {
                    walk.pass(node);
                    return go_on(walk, next.submit(io.take()));
                }
                Step::Forward(next) => walk.pass(std::mem::replace(&mut node, next)),
                Step::Done(result) => {
                    walk.pass(node);
                    return walk.end(result);
                }
                Step::Control(work) => {
                    walk.pass(node);
                    return walk.begin(work);
                }
            }
        }
    }

    /// True for nearly all requests: reads and writes that [`Node::admit`] and [`Node::emulate`] would let through
    /// unchanged, decided in few instructions.
    #[inline]
    fn is_plain(&self, io: &Io) -> bool {
        let g = self.geometry.get();
        let (buf, allowed) = match &io.op {
            Op::Read(buf) => (buf, true),
            Op::Write(buf, Durability::Cached) => (buf, !g.read_only),
            Op::Write(buf, Durability::Fua) => (buf, !g.read_only && g.fua),
            Op::Zero(_) | Op::Discard | Op::Flush => return false,
        };
        let Range { start, end } = io.at;
        self.is_unwatched.get()
            && allowed
            && start < end
            && end <= g.size
            && (start | end) & (g.block as u64 - 1) == 0
            && end - start == buf.len() as u64
    }

    fn set_gate(&self, gate: Gate) -> Gate {
        let before = self.gate.replace(gate);
        self.is_unwatched.set(gate == Gate::Open && self.watch.borrow().is_none());
        before
    }

    /// Has `watch` see every request from now on, or nobody. While nobody watches, that costs nothing.
    pub fn watch(&self, watch: Option<Rc<dyn Watch>>) {
        // The old one is dropped when the node is not borrowed any more.
        let _before = self.watch.replace(watch);
        self.set_gate(self.gate.get());
    }

    /// True while somebody watches.
    pub fn is_watched(&self) -> bool {
        self.watch.borrow().is_some()
    }

    fn seen(&self, io: &Io) {
        let watch = self.watch.borrow().clone();
        watch.iter().for_each(|watch| watch.asked(self.now(), io));
    }

    #[inline]
    pub(crate) fn layer(&self) -> Rc<dyn Layer> {
        Rc::clone(&*self.layer.borrow())
    }

    /// The contract, checked in one place.
    #[inline(never)]
    fn admit(&self, io: &Io) -> Result<Admitted> {
        let gate = self.gate.get();
        if gate != Gate::Open {
            match gate {
                Gate::Closed => return Err(self.error(ErrorKind::Offline, "the device is closed", io)),
                Gate::Fenced if io.op.kind() != OpKind::Read => {
                    return Err(self.error(
                        ErrorKind::Fenced,
                        "the device has another owner: nothing may change it",
                        io,
                    ));
                }
                Gate::Quiesced => return Ok(Admitted::Wait),
                Gate::Fenced | Gate::Open => {}
            }
        }
        if self.is_absent() {
            return Ok(Admitted::Pass);
        }
        let g = self.geometry.get();
        let buf_len = match &io.op {
            Op::Flush => return Ok(Admitted::Pass),
            Op::Read(buf) | Op::Write(buf, _) => buf.len() as u64,
            Op::Zero(_) | Op::Discard => io.len(),
        };
        if io.at.start > io.at.end || io.at.end > g.size {
            let message = format!("out of range: the device has {} bytes", g.size);
            return Err(self.error(ErrorKind::Invalid, message, io));
        }
        if (io.at.start | io.at.end) & (g.block as u64 - 1) != 0 {
            let message = format!("misaligned: requests are multiples of {} bytes", g.block);
            return Err(self.error(ErrorKind::Invalid, message, io));
        }
        if buf_len != io.len() {
            return Err(self.error(ErrorKind::Invalid, format!("the buffer has {buf_len} bytes"), io));
        }
        match &io.op {
            Op::Write(..) | Op::Zero(_) | Op::Discard if g.read_only => {
                Err(self.error(ErrorKind::ReadOnly, "the device is read-only", io))
            }
            Op::Discard if !g.discard => Ok(Admitted::Nothing),
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard if io.is_empty() => Ok(Admitted::Nothing),
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard | Op::Flush => Ok(Admitted::Pass),
        }
    }

    fn error(&self, kind: ErrorKind, message: impl Into<String>, io: &Io) -> Error {
        Error::new(kind, message).at(io.at.clone()).on(&self.name)
    }

    /// Asks the layer, and emulates what it does not do natively.
    #[inline(never)]
    fn emulate(&self, io: &mut Io) -> Step {
        let (layer, g) = (self.layer(), self.geometry.get());
        match &io.op {
            Op::Write(buf, Durability::Fua) if !g.fua => {
                let op = Op::Write(buf.clone(), Durability::Cached);
                let write = Io { op, at: io.at.clone(), client: io.client };
                Step::control(then_flush(layer, vec![write], true))
            }
            Op::Zero(how) if !g.zero => {
                if how.fast {
                    return self.error(ErrorKind::Unsupported, "zeroing is not fast here", io).into();
                }
                let writes = writes_of_zeroes(self.env.pool().take(io.len().min(ZEROES_MAX) as usize), io);
                Step::control(then_flush(layer, writes, how.durability == Durability::Fua))
            }
            Op::Zero(Zero { durability: Durability::Fua, unmap, fast }) if !g.fua => {
                let zero = Zero { durability: Durability::Cached, unmap: *unmap, fast: *fast };
                Step::control(then_flush(layer, vec![Io::zero(io.at.clone(), zero).by(io.client)], true))
            }
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard | Op::Flush => layer.submit(io),
        }
    }

    async fn wait_and_submit(self: Rc<Self>, io: Io) -> Result<()> {
        let waits = wait(Cause::Change);
        self.moved.until(|| self.gate.get() != Gate::Quiesced).await;
        drop(waits);
        self.submit(io).await
    }

    /// Sends a command to the layer, and takes over what it changed about the device's shape.
    pub async fn control(self: &Rc<Self>, command: Command) -> Result<Value> {
        // While the node is quiesced its layer may be exchanged: the command is for the new one.
        self.moved.until(|| self.gate.get() != Gate::Quiesced).await;
        if !self.layer().needs_quiesce(&command) {
            let answer = self.layer().control(command).await.map_err(|e| e.on(&self.name));
            self.refresh();
            return answer;
        }
        // Clients wait while the device is quiesced, so most is flushed before.
        if !self.geometry().read_only {
            self.submit(Io::flush()).await?;
        }
        let quiesced = self.quiesce().await;
        if quiesced.before == Gate::Closed {
            return Err(Error::offline("the device is closed").on(&self.name));
        }
        quiesced.flush().await?;
        let answer = quiesced.layer().control(command).await.map_err(|e| e.on(&self.name));
        self.refresh();
        answer
    }

    /// The effects of a command: see [`Manage::effect`].
    pub fn effect(&self, command: &Command) -> Effect {
        self.layer().effect(command)
    }

    /// Its layer's consent to an effect on a device below: see [`Manage::consent`].
    pub fn consent(&self, child: &Rc<Node>, effect: &Effect) -> Consent {
        self.layer().consent(child, effect)
    }

    /// Another address space of its layer: see [`Manage::view`].
    pub async fn view(&self, name: &str) -> Result<Rc<dyn Layer>> {
        self.layer().view(name.to_owned()).await.map_err(|e| e.on(&self.name))
    }

    /// The background work of its layer.
    pub fn jobs(&self) -> Vec<Rc<Job>> {
        self.layer().jobs()
    }

    /// Moves what is the device's away from children: see [`Manage::evacuate`]. The node is quiesced while that begins.
    pub async fn evacuate(self: &Rc<Self>, names: Vec<String>) -> Result<()> {
        let quiesced = self.quiesce().await;
        if quiesced.before == Gate::Closed {
            return Err(Error::offline("the device is closed").on(&self.name));
        }
        let moved = quiesced.layer().evacuate(names);
        drop(quiesced);
        moved.await.map_err(|e| e.on(&self.name))
    }

    /// Whether the device's data could be moved away from children: see [`Manage::can_evacuate`].
    pub fn can_evacuate(&self, gone: &[String], joining: &[Rc<Node>]) -> Result<()> {
        self.layer().can_evacuate(gone, joining).map_err(|e| e.on(&self.name))
    }

    /// Lets the layer verify its metadata: see [`Manage::check`]. The node is quiesced meanwhile.
    pub async fn check(self: &Rc<Self>, repair: bool) -> Result<Vec<Finding>> {
        let quiesced = self.quiesce().await;
        if quiesced.before == Gate::Closed {
            return Err(Error::offline("the device is closed").on(&self.name));
        }
        let found = quiesced.layer().check(repair).await.map_err(|e| e.on(&self.name));
        self.refresh();
        found
    }

    /// Takes over the layer's geometry, and wakes callers that wait in [`Node::resized`] if it changed.
    pub fn refresh(&self) {
        let now = self.layer.borrow().geometry();
        if self.geometry.replace(now) != now {
            self.resized.notify();
        }
    }

    /// Wakes who waits in [`Node::resized`] although the shape is the same: something below it that had failed is there
    /// again.
    pub fn came_back(&self) {
        self.resized.notify();
    }

    /// Waits for the next change of the geometry, or until the device [has come back](Node::came_back).
    pub fn resized(&self) -> impl Future<Output = ()> + use<'_> {
        self.resized.wait()
    }

    /// Lets no new request pass and waits until none is in flight. Requests that come meanwhile wait for the guard
    /// to be dropped.
    pub async fn quiesce(self: &Rc<Self>) -> Quiesced {
        self.moved.until(|| self.gate.get() != Gate::Quiesced).await;
        let quiesced = Quiesced { before: self.set_gate(Gate::Quiesced), node: Rc::clone(self) };
        self.moved.until(|| self.stats.in_flight() == 0).await;
        quiesced
    }

    /// From now on nothing but reads passes: the device belongs to another host or generation. The node stays quiesced
    /// until the guard is dropped.
    pub fn fence(&self) {
        self.fenced.set(true);
        if self.gate.get() == Gate::Open {
            self.set_gate(Gate::Fenced);
        }
    }

    /// Quiesces, flushes (unless the device is read-only or fenced), and closes the layer. Later requests fail with
    /// `Offline`.
    pub async fn close(self: &Rc<Self>) -> Result<()> {
        let mut quiesced = self.quiesce().await;
        if quiesced.before == Gate::Closed {
            return Ok(());
        }
        quiesced.before = Gate::Closed;
        let layer = self.layer();
        let untouchable = self.geometry().read_only || self.fenced.get();
        let flushed = if untouchable { Ok(()) } else { run(&layer, Io::flush()).await };
        let closed = layer.close().await;
        flushed.and(closed).map_err(|e| e.on(&self.name))
    }

    /// One request less; wakes callers that wait for the last.
    #[inline]
    pub(crate) fn left(&self) {
        if self.stats.abandon() == 0 && self.gate.get() == Gate::Quiesced {
            self.moved.notify();
        }
    }
}

enum Admitted {
    Pass,
    /// There is nothing to do: complete.
    Nothing,
    /// The node is quiesced.
    Wait,
}

/// Ends or begins a walk that had no space for more nodes as the request below it did.
#[cold]
fn go_on(mut walk: Walk, mut below: Request) -> Request {
    match below.ready() {
        Some(result) => walk.end(result),
        None => walk.begin(Deferred::new(below)),
    }
}

/// A request counted as in flight in one node without a walk.
struct Busy(Rc<Node>);

impl Busy {
    fn new(node: &Rc<Node>) -> Busy {
        node.stats.begin();
        Busy(Rc::clone(node))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.left();
    }
}
