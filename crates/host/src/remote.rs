//! Messages of other threads to a reactor: woken tasks, and calls.
//!
//! A sleeping reactor is woken once; a running one looks at a flag every turn. No wake-up is lost: a reactor falls
//! asleep only under the lock, and only when nothing was handed over.

use crate::Host;
use crate::executor::{new_id, ready_here};
use async_task::Runnable;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

type Call = Box<dyn FnOnce(&Rc<Host>) + Send>;

/// Something for the reactor's thread.
pub(crate) enum Item {
    /// A task that another thread woke.
    Task(Runnable),
    /// A call that another thread sent.
    Call(Call),
}

impl Item {
    /// Makes a task ready, or lets `call` do a call.
    pub fn run_here(self, call: impl FnOnce(Call)) {
        match self {
            Item::Task(task) => task.schedule(),
            Item::Call(f) => call(f),
        }
    }

    /// Ends it. On the reactor's thread only.
    pub fn drop_here(self) {
        drop(self);
    }
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    asleep: bool,
    closed: bool,
}

/// The part of a reactor that other threads see.
pub(crate) struct Shared {
    id: u64,
    state: Mutex<State>,
    /// Something was handed over, or the reactor should look around for another reason.
    pending: AtomicBool,
    /// Ends the reactor's sleep.
    rouse: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    /// `rouse` ends a sleep that has begun or is about to begin.
    pub fn new(rouse: impl Fn() + Send + Sync + 'static) -> Arc<Shared> {
        Arc::new(Shared {
            id: new_id(),
            state: Mutex::default(),
            pending: AtomicBool::new(false),
            rouse: Box::new(rouse),
        })
    }

    /// The number of the reactor's executor.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a task ready, from any thread.
    pub fn schedule(&self, task: Runnable) {
        if let Err(task) = ready_here(self.id, task)
            && let Err(item) = self.hand_over(Item::Task(task))
        {
            // The reactor is gone and has dropped its tasks' resources. Only its thread may drop the rest.
            std::mem::forget(item);
        }
    }

    /// Gives something to the reactor; gives it back if the reactor is gone.
    fn hand_over(&self, item: Item) -> Result<(), Item> {
        let mut state = self.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push(item);
        self.notify(state);
        Ok(())
    }

    /// Makes the reactor look around.
    pub fn wake(&self) {
        self.notify(self.lock());
    }

    fn notify(&self, mut state: MutexGuard<'_, State>) {
        self.pending.store(true, Ordering::Release);
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            (self.rouse)();
        }
    }

    /// True if the reactor should look around.
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// The messages since the last time.
    pub fn take(&self) -> Vec<Item> {
        let mut state = self.lock();
        self.pending.store(false, Ordering::Release);
        std::mem::take(&mut state.items)
    }

    /// From now until [`Shared::awake`], every message wakes the reactor. False if something was handed over already.
    pub fn fall_asleep(&self) -> bool {
        let mut state = self.lock();
        state.asleep = !self.is_pending();
        state.asleep
    }

    /// The reactor runs again.
    pub fn awake(&self) {
        self.lock().asleep = false;
    }

    /// No message is taken any more; returns the last ones.
    pub fn close(&self) -> Vec<Item> {
        let mut state = self.lock();
        state.closed = true;
        std::mem::take(&mut state.items)
    }
}

/// Reaches a reactor from other threads.
#[derive(Clone)]
pub struct Remote(Weak<Shared>);

/// The reactor has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reactor has ended")
    }
}

impl std::error::Error for Gone {}

impl Remote {
    pub(crate) fn new(shared: &Arc<Shared>) -> Remote {
        Remote(Arc::downgrade(shared))
    }

    /// Calls `f` on the reactor's thread, soon, and wakes the reactor for it. Calls from one thread are made in
    /// order. An error if the reactor has ended; a call that was taken is dropped unmade if the reactor ends first.
    pub fn send(&self, f: impl FnOnce(&Rc<Host>) + Send + 'static) -> Result<(), Gone> {
        let shared = self.0.upgrade().ok_or(Gone)?;
        shared.hand_over(Item::Call(Box::new(f))).map_err(|_| Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_sleeper_is_roused_once_and_one_awake_never() {
        let roused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&roused);
        let shared = Shared::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let remote = Remote::new(&shared);
        remote.send(|_| {}).unwrap();
        assert_eq!(roused.load(Ordering::SeqCst), 0);
        assert!(!shared.fall_asleep());
        assert_eq!(shared.take().len(), 1);
        assert!(shared.fall_asleep());
        remote.send(|_| {}).unwrap();
        remote.send(|_| {}).unwrap();
        assert_eq!(roused.load(Ordering::SeqCst), 1);
        shared.awake();
        assert_eq!(shared.take().len(), 2);
    }

    #[test]
    fn a_closed_reactor_takes_nothing() {
        let shared = Shared::new(|| {});
        let remote = Remote::new(&shared);
        remote.send(|_| {}).unwrap();
        assert_eq!(shared.close().len(), 1);
        assert_eq!(remote.send(|_| {}), Err(Gone));
        drop(shared);
        assert_eq!(remote.send(|_| {}), Err(Gone));
    }
}
