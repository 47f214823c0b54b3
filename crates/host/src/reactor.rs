//! The loop of one thread: run ready tasks, enter the kernel, sleep, wake tasks with answers.

use crate::executor::Executor;
use crate::remote::{Remote, Shared};
use crate::ring::{Ring, Wait};
use crate::spin::Spin;
use crate::{Asker, Fencer, Host};
use lamina_block::Time;
use rustix::event::{EventfdFlags, eventfd};
use std::cell::Cell;
use std::io;
use std::num::NonZeroU64;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// The most polls of tasks in one turn, so that the kernel and the clock are looked at in between.
const TURN_MAX: usize = 1024;

/// A turn longer than this is told, and how often at most. Nothing else on the core went on meanwhile.
const SLOW: Duration = Duration::from_millis(250);
const TELL_EVERY: Duration = Duration::from_secs(10);

/// See [`Options::spin`].
const SPIN: Duration = Duration::from_micros(40);

/// How a reactor runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the reactor looks for work in memory before it sleeps in the kernel, while most of its time are waits
    /// no longer than that. This shortens the latency of a request that comes alone. An idle reactor sleeps at once,
    /// and zero makes it always do so. Default: 40 us, about what two sleeps, the client's and its own, cost in a
    /// virtual machine.
    pub spin: Duration,
    /// Operations handed to the kernel in one call, 1 to 32768. More may be under way.
    pub entries: u32,
    /// The most unused buffer memory that is kept for reuse, in bytes.
    pub pool: usize,
    /// What fences other hosts. Default: nothing.
    pub fencer: Option<Arc<Fencer>>,
    /// What asks a person for secrets. Default: nothing.
    pub asker: Option<Arc<Asker>>,
}

impl Default for Options {
    fn default() -> Options {
        Options { spin: SPIN, entries: 256, pool: 16 << 20, fencer: None, asker: None }
    }
}

/// The reactor of this thread. Everything in it stays on this thread; others reach it through [`Remote`].
///
/// The drop drops its tasks, cancels the kernel's operations, and waits for the kernel's answers.
pub struct Reactor {
    host: Rc<Host>,
    shared: Arc<Shared>,
    spin: Spin,
    /// When a slow turn was told last.
    told: Cell<Option<Time>>,
}

impl Reactor {
    /// A reactor for this thread. Fails, with what to do, if the kernel has or allows no suitable io_uring, and if
    /// the thread has a reactor already.
    pub fn new(options: Options) -> io::Result<Reactor> {
        let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let heard = wakeup.try_clone()?;
        let shared = Shared::new(move || {
            // Fails only when the counter is full, and then the reactor is awake.
            let _ = rustix::io::write(&*wakeup, &1u64.to_ne_bytes());
        });
        let executor = Executor::new(Arc::clone(&shared))?;
        // Sleeps of microseconds end when they should, not up to 50 us later. A kernel that refuses is as good.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let ring = Ring::new(options.entries.clamp(1, 32768))?;
        let host = Host::new(ring, executor, options.pool, options.fencer, options.asker);
        let wakeups = host.event(heard);
        // The wake-up alone suffices: messages are looked for every turn.
        host.task(async move { while wakeups.wait().await.is_ok() {} });
        Ok(Reactor { host, shared, spin: Spin::new(options.spin), told: Cell::new(None) })
    }

    /// The environment of tasks here.
    pub fn env(&self) -> Rc<Host> {
        Rc::clone(&self.host)
    }

    /// Reaches this reactor from other threads.
    pub fn remote(&self) -> Remote {
        Remote::new(&self.shared)
    }

    /// Runs `future` on this thread, and all tasks beside it, until it is complete. Tasks that are left go on in the
    /// next call.
    ///
    /// # Panics
    /// If the kernel refuses to serve the ring any more; and when a task panics.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let root = Arc::new(Root { woken: AtomicBool::new(true), shared: Arc::clone(&self.shared) });
        let waker = Waker::from(Arc::clone(&root));
        let mut future = pin!(future);
        loop {
            if root.woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return done;
            }
            self.turn(&root);
        }
    }

    /// One round of the loop.
    fn turn(&self, root: &Root) {
        let begun = self.host.clock().read();
        self.host.executor.run(TURN_MAX);
        if self.shared.is_pending() {
            for item in self.shared.take() {
                item.run_here(|call| call(&self.host));
            }
        }
        let worked = self.watch(begun);
        let busy = !self.host.executor.is_idle() || root.woken.load(Ordering::Acquire);
        let entered = if !busy {
            self.wait()
        } else if self.host.ring().wants_enter() {
            self.host.ring().enter(Wait::No)
        } else {
            Ok(())
        };
        if let Err(e) = entered {
            panic!("the kernel does not serve io_uring any more: {e}");
        }
        self.host.ring().harvest();
        let now = self.host.clock().turn();
        if busy {
            self.host.has_worked(now.since(worked));
        }
        self.host.timers().fire(now);
    }

    /// Counts the time of the tasks of a turn, and tells of a turn that kept the core from everything else. When the
    /// tasks have ended.
    fn watch(&self, begun: Time) -> Time {
        let now = self.host.clock().read();
        let took = now.since(begun);
        self.host.has_worked(took);
        if took < SLOW || self.told.get().is_some_and(|told| now.since(told) < TELL_EVERY) {
            return now;
        }
        self.told.set(Some(now));
        let thread = std::thread::current();
        tracing::warn!(
            core = thread.name().unwrap_or_default(),
            milliseconds = took.as_millis() as u64,
            "a task has blocked its core: everything on the core had to wait"
        );
        now
    }

    /// Waits until there is something to do: for a while in memory, where that pays, then in the kernel.
    fn wait(&self) -> io::Result<()> {
        let ring = self.host.ring();
        let begun = self.host.clock().read();
        let first = self.host.timers().first();
        let left = first.map(|first| first.end.since(begun));
        let disk = self.host.disk_work().is_under_way();
        let watch = first.and_then(|first| first.watch(begun));
        let limit = watch.unwrap_or_else(|| if disk { Duration::ZERO } else { self.spin.allowed(left) });
        let ready = self.spin_until_ready(begun, limit, disk)?;
        if ready || watch.is_some() || left == Some(Duration::ZERO) || !self.shared.fall_asleep() {
            return ring.enter(Wait::No);
        }
        let first = self.host.timers().first();
        let wake = first.map(|first| first.wake().since(self.host.clock().read()));
        let entered = ring.enter(Wait::Until(wake));
        self.shared.awake();
        let now = self.host.clock().read();
        let by_timer = !ring.is_ready() || first.is_some_and(|first| now >= first.end);
        match disk {
            true => self.spin.waited_for_disk(now),
            false => self.spin.slept(begun, now, by_timer, !limit.is_zero()),
        }
        entered
    }

    /// Looks for work in memory for at most `limit`; true if there is some. `disk`: it may be that of a disk.
    fn spin_until_ready(&self, begun: Time, limit: Duration, disk: bool) -> io::Result<bool> {
        if limit.is_zero() {
            return Ok(false);
        }
        let ring = self.host.ring();
        if ring.wants_enter() {
            ring.enter(Wait::No)?;
        }
        loop {
            let ready = ring.is_ready() || self.shared.is_pending();
            let now = self.host.clock().read();
            match ready {
                true if disk => self.spin.waited_for_disk(now),
                true => self.spin.waited(begun, now),
                false => {}
            }
            if ready || now.since(begun) >= limit {
                return Ok(ready);
            }
            std::hint::spin_loop();
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.host.executor.clear();
        self.shared.close().into_iter().for_each(|item| item.drop_here());
        self.host.executor.leave();
    }
}

/// Wakes the future given to [`Reactor::run`].
struct Root {
    woken: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.shared.wake();
        }
    }
}
