//! `lamina serve`: from files to exports, until a signal.
//!
//! Either all hierarchies are served or none. The first SIGTERM or SIGINT drains: exports take no more clients,
//! requests under way are answered, devices are flushed and closed from the top down, sockets are removed. A second
//! signal, or the end of the time allowed, ends the process at once with exit code 1. SIGHUP is logged and ignored.
//!
//! A daemon that is killed leaves sockets behind; the next one replaces them.

mod account;
mod change;
mod core_change;
mod core_thread;
mod cores;
mod descriptors;
mod exports;
mod groups;
mod placement;
mod tap;
mod usage;

pub use groups::check as check_groups;
pub use placement::check_together;
pub use tap::Asked;
pub use usage::{cpu_ns, thread_cpu_ns};

use crate::assemble::{self, Folder};
use crate::cli::{Serve, ServeOptions};
use crate::control::server::{self, Daemon};
use crate::control::socket::ControlSocket;
use crate::events::{Journal, Keeper};
use crate::exit::Failure;
use crate::files;
use crate::web::Web;
use core_thread::Thread;
use cores::Cores;
use exports::Terms;
use lamina_graph::Plan;
use lamina_host::{Asker, Fencer};
use placement::Placement;
use sd_notify::NotifyState;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Runs `lamina serve`.
pub fn run(args: &Serve, journal: &Arc<Journal>) -> Result<(), Failure> {
    let mut plans = if args.files.is_empty() { Vec::new() } else { files::load(&args.files)? };
    let mut first = args.files.first().cloned();
    if !args.from_members.is_empty() {
        let (file, plan) = assemble::carried(&args.from_members, &args.options, Folder::OfMembers)?;
        plans.push(plan);
        first.get_or_insert(file);
    }
    serve_plans(plans, &first.unwrap_or_default(), &args.options, journal)
}

/// Serves `plans`, the first of which is from `file`, until a signal.
pub fn serve_plans(
    plans: Vec<Plan>,
    file: &Path,
    options: &ServeOptions,
    journal: &Arc<Journal>,
) -> Result<(), Failure> {
    crate::images::look(&plans)?;
    let placement = placement::place(plans, options.cores.map(usize::from))?;
    descriptors::prepare(&placement)?;
    let mut keeper = Keeper::open(journal, options.events.as_deref(), options.on_event.as_deref())?;
    let web = Web::claim(options)?;
    let socket = ControlSocket::claim(&options.control.clone().unwrap_or_else(|| beside(file)))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let served = runtime.block_on(async {
        tokio::select! {
            served = serve(options, placement, (&socket, web), journal) => served,
            never = keeper.go_on() => match never {},
        }
    });
    keeper.keep();
    // A task that still waits for a client of the control socket has no one to answer.
    runtime.shutdown_background();
    served
}

/// The control socket of a daemon that serves `file` first.
fn beside(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".ctl.sock");
    path.into()
}

async fn serve(
    options: &ServeOptions,
    placement: Placement,
    (socket, web): (&ControlSocket, Option<Web>),
    journal: &Arc<Journal>,
) -> Result<(), Failure> {
    let mut signals = Signals::install()?;
    let terms = Terms { memory: options.memory.0 as usize, samples: options.samples };
    let fencer = options.fence.clone().map(Fencer::new);
    let asker = Asker::at_terminal();
    let spin = options.spin.0;
    let reactor =
        lamina_host::Options { spin, fencer, asker: Some(Arc::clone(&asker)), ..Default::default() };
    let (cores, mut threads) = Cores::start(placement.len(), reactor, terms).await?;
    let cores = Arc::new(cores);
    let control = (socket, web, journal);
    let served = tokio::select! {
        served = serve_until_signal(&cores, placement, options.degraded, &asker, control, &mut threads) => served,
        () = signals.stop() => Ok(()),
    };
    // Also after a failure: opened devices are closed, and clients of cores that are well lose nothing.
    match &served {
        Ok(()) => tracing::info!("draining"),
        // A start that was refused has no clients; the error itself is printed last.
        Err(_) => tracing::debug!("closing the opened devices"),
    }
    let drained = drain(&cores, &mut signals, options.drain.0).await;
    if drained.is_ok() {
        threads.into_iter().for_each(Thread::join);
    }
    served.and(drained)
}

/// Opens everything, for which `asker` may ask a person, and answers the control socket. Ends only with a failure.
async fn serve_until_signal(
    cores: &Arc<Cores>,
    placement: Placement,
    degraded: bool,
    asker: &Asker,
    (socket, web, journal): (&ControlSocket, Option<Web>, &Arc<Journal>),
    threads: &mut [Thread],
) -> Result<(), Failure> {
    cores.open(placement, degraded).await?;
    asker.close();
    let listener = socket.listener().map_err(Failure::failed)?;
    let api =
        axum::serve(listener, server::router(Arc::clone(cores) as Arc<dyn Daemon>, Arc::clone(journal)));
    // A task of its own: it answers while the cores drain.
    tokio::spawn(api.into_future());
    let page = web.as_ref().map(Web::url);
    if let Some(web) = web {
        web.answer(Arc::clone(cores) as Arc<dyn Daemon>, Arc::clone(journal))?;
    }
    announce(cores, socket, page).await;
    if let Some(limit) = sd_notify::watchdog_enabled() {
        // A task of its own: it goes on while the cores drain.
        tokio::spawn(feed_watchdog(Arc::clone(cores), limit));
    }
    cores.go_on();
    let index = first_end(threads).await;
    Err(Failure::failed(format!("core {index} has ended; the log says why")))
}

/// Says on standard output and to the service manager what is served where. Output without a reader is no failure.
async fn announce(cores: &Cores, socket: &ControlSocket, page: Option<String>) {
    let mut lines = String::new();
    let mut exports = 0;
    for export in cores.snapshot().await.exports() {
        exports += 1;
        for endpoint in &export.endpoints {
            lines += &format!("export {} {} {}\n", export.name, endpoint.protocol, endpoint.address);
        }
    }
    if let Some(page) = page {
        lines += &format!("web {page}\n");
    }
    lines += &format!("control {}\nready\n", socket.path().display());
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    notify(&[NotifyState::Ready, NotifyState::Status(&format!("serving {exports} exports"))]);
}

/// Tells systemd twice within `limit` that all cores answer. While one hangs it says nothing, and systemd restarts the
/// daemon.
async fn feed_watchdog(cores: Arc<Cores>, limit: Duration) {
    while cores.answer().await {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(limit / 2).await;
    }
}

/// Tells systemd, if it listens.
fn notify(states: &[NotifyState]) {
    if let Err(e) = sd_notify::notify(states) {
        tracing::warn!(error = %e, "the service manager cannot be told");
    }
}

/// Closes everything within `limit`, or until the next signal.
async fn drain(cores: &Cores, signals: &mut Signals, limit: Duration) -> Result<(), Failure> {
    notify(&[NotifyState::Stopping]);
    tokio::select! {
        closed = tokio::time::timeout(limit, cores.close()) => match closed {
            Ok(0) => Ok(()),
            Ok(n) => Err(Failure::failed(format!("{n} hierarchies were not closed cleanly; the log says why"))),
            Err(_) => Err(Failure::failed("draining took too long: requests under way are abandoned")),
        },
        () = signals.stop() => Err(Failure::failed("a second signal: requests under way are abandoned")),
    }
}

/// The number of the first core whose thread ends.
async fn first_end(threads: &mut [Thread]) -> usize {
    let ends = threads.iter_mut().map(|thread| &mut thread.ended);
    futures_util::future::select_all(ends).await.1
}

/// The signals that a daemon listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn install() -> Result<Signals, Failure> {
        let listen =
            |kind| signal(kind).map_err(|e| Failure::failed(format!("cannot listen to signals: {e}")));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The next signal to stop.
    async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    tracing::info!("SIGHUP: the files are not read again while serving");
                }
            }
        }
    }
}
