//! A core: a thread with a reactor, and the hierarchies that live on it.
//!
//! Nodes never leave their thread. The control plane sends closures with [`Handle::ask`]; they find the thread's
//! [`Core`], work on it as a task beside the requests, and send plain data back.

use super::account;
use super::exports::{Exports, Leaving, Terms};
use super::tap::{Asked, Tap};
use crate::api;
use crate::exit::Failure;
use crate::files;
use crate::verbs::{self, Denied};
use lamina_block::{Command, Env, Error, Fate, Node, OpKind, Result, Signal, Steering};
use lamina_graph::{Hierarchy, Plan};
use lamina_host::{Host, Options, Reactor, Remote};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How often background work is looked at while there is any.
const GLANCE: Duration = Duration::from_millis(250);

thread_local! {
    /// The core of this thread: calls from another thread know only the reactor's host.
    static HERE: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// A hierarchy at work, and the file it came from.
pub struct Served {
    pub file: String,
    /// The file with which the daemon was started for it.
    pub started: Option<PathBuf>,
    pub hierarchy: Hierarchy,
}

/// The state of one thread.
pub struct Core {
    index: usize,
    pub(super) host: Rc<Host>,
    pub(super) served: RefCell<Vec<Rc<Served>>>,
    pub(super) exports: RefCell<Exports>,
    terms: Terms,
    closed: Cell<bool>,
    ended: Signal,
    /// A task looks after background work.
    watched: Cell<bool>,
    /// Held while a hierarchy changes, or a command changes data below other devices.
    pub(super) changing: tokio::sync::Mutex<()>,
}

/// A core has ended without an order.
#[derive(Debug)]
pub struct Ended;

/// Reaches a core from the control plane.
#[derive(Clone)]
pub struct Handle {
    remote: Remote,
}

/// A core's thread.
pub struct Thread {
    /// Ends, with an error, when the thread does.
    pub ended: oneshot::Receiver<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Thread {
    /// Waits for the end of a thread that was told to end.
    pub fn join(self) {
        let _ = self.thread.join();
    }
}

/// Starts the thread of a core, empty.
pub async fn start(
    index: usize,
    options: Options,
    terms: Terms,
) -> std::result::Result<(Handle, Thread), Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("core {index} cannot start: {e}"));
    let (started, starting) = oneshot::channel();
    let (alive, ended) = oneshot::channel();
    let work = move || {
        let _alive: oneshot::Sender<()> = alive;
        match Reactor::new(options) {
            Ok(reactor) => {
                let _ = started.send(Ok(reactor.remote()));
                Core::run(index, &reactor, terms);
            }
            Err(e) => {
                let _ = started.send(Err(e));
            }
        }
    };
    let thread = std::thread::Builder::new().name(format!("core-{index}")).spawn(work).map_err(failed)?;
    let lost = || std::io::Error::other("the thread has ended");
    let remote = starting.await.map_err(|_| failed(lost()))?.map_err(failed)?;
    Ok((Handle { remote }, Thread { ended, thread }))
}

impl Handle {
    /// Runs `work` on the core as a task, and gives back its result. The request is sent before this returns.
    pub fn ask<T, F, W>(
        &self,
        work: W,
    ) -> impl Future<Output = std::result::Result<T, Ended>> + Send + use<T, F, W>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        W: FnOnce(Rc<Core>) -> F + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let sent = self.remote.send(move |host| {
            let Some(core) = HERE.with_borrow(Option::clone) else { return };
            host.spawn(Box::pin(async move {
                let _ = answer.send(work(core).await);
            }));
        });
        async move {
            match sent {
                Ok(()) => answered.await.map_err(|_| Ended),
                Err(_) => Err(Ended),
            }
        }
    }
}

impl Core {
    /// The life of a core's thread.
    fn run(index: usize, reactor: &Reactor, terms: Terms) {
        let core = Rc::new(Core {
            index,
            host: reactor.env(),
            served: RefCell::default(),
            exports: RefCell::new(Exports::none(terms)),
            terms,
            closed: Cell::new(false),
            ended: Signal::new(),
            watched: Cell::new(false),
            changing: tokio::sync::Mutex::default(),
        });
        HERE.set(Some(Rc::clone(&core)));
        reactor.run(core.ended.until(|| core.closed.get()));
        HERE.set(None);
    }

    pub(super) fn env(&self) -> Rc<dyn Env> {
        Rc::clone(&self.host) as Rc<dyn Env>
    }

    /// Opens the devices of all plans, if `degraded` also without members that are missing. Returns the problems, for
    /// standard error; opened devices stay open until [`Core::close`].
    pub async fn build(self: Rc<Self>, plans: Vec<Plan>, degraded: bool) -> std::result::Result<(), String> {
        let mut wrong = String::new();
        for plan in plans {
            let (file, started) = (plan.file().to_owned(), plan.path().map(PathBuf::from));
            let built = match degraded {
                true => Hierarchy::build_degraded(plan, self.env()).await,
                false => Hierarchy::build(plan, self.env()).await,
            };
            match built {
                Ok(hierarchy) => {
                    eprint!("{}", files::shown(hierarchy.warnings()));
                    self.served.borrow_mut().push(Rc::new(Served { file, started, hierarchy }));
                }
                Err(report) => wrong.push_str(&files::shown(&report)),
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Lets clients in.
    pub async fn open(self: Rc<Self>) -> Result<()> {
        let served = self.served.borrow().clone();
        let opened = Exports::open(&self.host, served.iter().map(|s| &s.hierarchy), self.terms).await?;
        self.exports.replace(opened);
        self.watch_jobs();
        Ok(())
    }

    /// A copy of everything here.
    pub fn snapshot(&self) -> Vec<api::Hierarchy> {
        let exports = self.exports.borrow();
        let copy = |served: &Rc<Served>| {
            let hierarchy = &served.hierarchy;
            api::Hierarchy {
                file: served.file.clone(),
                core: self.index,
                devices: hierarchy.nodes().iter().map(|n| device(n, hierarchy.children(n.name()))).collect(),
                exports: exports.of(hierarchy),
            }
        };
        self.served.borrow().iter().map(copy).collect()
    }

    /// Sends a command to a device, and lets the devices above it take over what it changed; `None` if there is no
    /// such device here.
    pub async fn control(
        self: Rc<Self>,
        device: String,
        command: Command,
    ) -> Option<std::result::Result<Value, Denied>> {
        let (_, served) = self.find(&device).ok()?;
        let node = served.hierarchy.node(&device)?;
        let args = verbs::loggable(node.kind(), &command);
        match verbs::asks(node.kind(), &command.name) {
            true => tracing::debug!(device, command = command.name, %args, "command"),
            false => tracing::info!(device, command = command.name, %args, "command"),
        }
        let answer = match verbs::check(node.kind(), &command) {
            // An absent device says itself why it is absent.
            _ if node.is_absent() => node.control(command).await.map_err(Denied::from),
            Ok(()) => self.carry_out(&node, command).await,
            Err(e) => Err(e.on(&device).into()),
        };
        self.refresh();
        self.watch_jobs();
        match &answer {
            Ok(_) => {}
            // Nothing was done, and whoever has asked is asked.
            Err(Denied::Unconfirmed(why)) => {
                tracing::debug!(device, why, "the command waits for a confirmation")
            }
            Err(e) => tracing::warn!(device, error = e.message(), "the command failed"),
        }
        Some(answer)
    }

    /// Carries out a command that `node` understands, if a loss of data is confirmed.
    async fn carry_out(&self, node: &Rc<Node>, command: Command) -> std::result::Result<Value, Denied> {
        let effect = node.effect(&command);
        verbs::confirm(node.name(), &command, effect.loses.as_deref())?;
        if effect.bytes == Fate::Stay {
            return Ok(node.control(command).await?);
        }
        // Devices above are asked, and do not change meanwhile.
        let _alone = self.changing.lock().await;
        let (_, served) = self.find(node.name())?;
        match served.hierarchy.control(node.name(), command).await {
            Some(answer) => Ok(answer?),
            None => Err(Error::offline("the device is gone").on(node.name()).into()),
        }
    }

    fn hierarchies(&self) -> Vec<Rc<Served>> {
        self.served.borrow().clone()
    }

    /// Takes over changed sizes.
    fn refresh(&self) {
        self.hierarchies().iter().for_each(|served| served.hierarchy.refresh());
    }

    /// The end of background work may change a size without a notice: polls while there is any work.
    pub(super) fn watch_jobs(self: &Rc<Self>) {
        if self.watched.replace(true) {
            return;
        }
        let core = Rc::clone(self);
        self.host.spawn(Box::pin(async move {
            let mut works = true;
            while works && !core.closed.get() {
                core.host.sleep(GLANCE).await;
                let busy =
                    |served: &Rc<Served>| served.hierarchy.nodes().iter().any(|n| !n.jobs().is_empty());
                works = core.hierarchies().iter().any(busy);
                core.refresh();
            }
            core.watched.set(false);
        }));
    }

    /// Steers a job of a device, if possible; `None` if there is no such job here.
    pub fn steer(&self, device: &str, job: &str, steer: &api::Steer) -> Option<Result<api::Job>> {
        let node = self.served.borrow().iter().find_map(|s| s.hierarchy.node(device))?;
        let found = node.jobs().into_iter().find(|known| known.name() == job)?;
        let wanted = match steer {
            api::Steer::Cancel => Steering::Cancel,
            api::Steer::Pause | api::Steer::Resume | api::Steer::Limit { .. } => Steering::All,
        };
        if let Err(e) = found.check(wanted) {
            return Some(Err(e.on(device)));
        }
        tracing::info!(device, job, ?steer, "a job is steered");
        match steer {
            api::Steer::Pause => found.pause(),
            api::Steer::Resume => found.resume(),
            api::Steer::Cancel => found.cancel(),
            api::Steer::Limit { limit } => found.set_limit(*limit),
        }
        Some(Ok(api::Job::of(device, &found)))
    }

    /// Sends what a device, or an export, is asked from now on; `None` if there is no such device here.
    pub fn trace(&self, name: &str, asked: mpsc::Sender<Asked>) -> Option<Result<()>> {
        let node = self.named(name)?;
        if node.is_watched() {
            return Some(Err(Error::busy("its requests are being traced already").on(name)));
        }
        node.watch(Some(Rc::new(Tap::new(asked, self.host.now()))));
        Some(Ok(()))
    }

    /// Ends what [`Core::trace`] began.
    pub fn end_trace(&self, name: &str) {
        if let Some(node) = self.named(name) {
            node.watch(None);
        }
    }

    /// Where the time of an export's requests goes; `None` if there is no such export here.
    pub fn why(&self, export: &str) -> Option<api::Why> {
        let served = self.served.borrow();
        let (hierarchy, of) = served.iter().find_map(|served| {
            let of = served.hierarchy.exports().iter().find(|of| of.name == export)?;
            Some((&served.hierarchy, of))
        })?;
        let node = hierarchy.export_node(export)?;
        let (account, now) = (node.account(), self.host.now());
        let kind = |device: &str| hierarchy.node(device).map_or("export", |node| node.kind()).to_owned();
        let mut why = account::of(&account.samples(), &account.slowest(now), now, kind);
        (why.export, why.device, why.samples) = (export.into(), of.device.clone(), self.terms.samples);
        why.jobs = account::jobs(hierarchy, &why);
        (why.core.number, why.core.computing) = (self.index, account::computing(hierarchy, &of.device));
        Some(why)
    }

    /// Where byte `at` of a device, or of an export, lies; `None` if there is no such device here.
    pub async fn map(&self, name: &str, at: u64) -> Option<Result<api::ByteMap>> {
        let located = self.named(name)?.locate(at).await;
        Some(match located.below {
            Err(e) => Err(e),
            Ok(_) => Ok(located.into()),
        })
    }

    /// The device, or else the export, with this name.
    fn named(&self, name: &str) -> Option<Rc<Node>> {
        let found =
            |served: &Rc<Served>| served.hierarchy.node(name).or_else(|| served.hierarchy.export_node(name));
        self.served.borrow().iter().find_map(found)
    }

    /// The hierarchy that has `device`, and its place.
    pub(super) fn find(&self, device: &str) -> Result<(usize, Rc<Served>)> {
        let served = self.served.borrow();
        let found = served.iter().enumerate().find(|(_, s)| s.hierarchy.node(device).is_some());
        found.map(|(at, s)| (at, Rc::clone(s))).ok_or_else(|| Error::offline("the daemon is closing"))
    }

    /// Sends all clients away when their requests are answered, flushes and closes all devices, and ends the thread.
    /// Returns the failures, one message for each hierarchy.
    pub async fn close(self: Rc<Self>) -> Vec<Error> {
        let mut exports = self.exports.replace(Exports::none(Terms { memory: 0, samples: 0 }));
        let served = self.served.take();
        self.host.end_soon();
        // Each by itself: a client or a disk that keeps one hierarchy waiting keeps no other from being closed in
        // order.
        let closing = served.into_iter().map(|served| {
            let leaving = exports.take(&served.hierarchy);
            async move {
                futures_util::future::join_all(leaving.into_iter().map(Leaving::close)).await;
                let closed = served.hierarchy.close().await;
                closed
                    .inspect_err(|e| tracing::error!(file = served.file, error = %e, "closing failed"))
                    .err()
            }
        });
        let closing: Vec<_> = closing.collect();
        let wrong = futures_util::future::join_all(closing).await.into_iter().flatten().collect();
        exports.close().await;
        self.closed.set(true);
        self.ended.notify();
        wrong
    }
}

/// A copy of a device's facts and counters.
fn device(node: &Rc<Node>, over: &[String]) -> api::Device {
    let operation = |kind: OpKind| (kind.name().to_owned(), api::Operation::from(node.stats().of(kind)));
    api::Device {
        name: node.name().into(),
        kind: node.kind().into(),
        over: over.to_vec(),
        geometry: node.geometry().into(),
        in_flight: node.stats().in_flight(),
        unreachable: node.is_unreached(),
        operations: OpKind::ALL.map(operation).into(),
        info: node.info(),
        jobs: node.jobs().iter().map(|job| api::Job::of(node.name(), job)).collect(),
    }
}
