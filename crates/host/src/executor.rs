//! Tasks of one thread.
//!
//! Invariants: a task runs and is dropped on the thread that spawned it, wherever it was woken; tasks that are ready
//! run in the order in which they were woken; a task that ends, or an executor that is cleared, leaves nothing
//! behind.

use crate::remote::Shared;
use async_task::Runnable;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// How often a cleared executor looks again for tasks that another thread is about to hand over.
const CLEAR_TURNS_MAX: usize = 10_000;

thread_local! {
    /// The executor of this thread; 0 when there is none.
    static HERE: Cell<u64> = const { Cell::new(0) };
    /// Its tasks that are ready.
    static READY: RefCell<VecDeque<Runnable>> = const { RefCell::new(VecDeque::new()) };
}

/// A number for an executor, never used twice in this process.
pub(crate) fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Adds a task to this thread's ready ones, if the executor `id` is here; gives it back otherwise.
pub(crate) fn ready_here(id: u64, task: Runnable) -> Result<(), Runnable> {
    if HERE.get() != id {
        return Err(task);
    }
    READY.with(|ready| ready.borrow_mut().push_back(task));
    Ok(())
}

/// The tasks of this thread.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    /// A waker of every task that has not ended, to end them all.
    tasks: Rc<RefCell<Slab<Waker>>>,
}

impl Executor {
    /// The executor of this thread. An error if the thread has one already.
    pub fn new(shared: Arc<Shared>) -> io::Result<Executor> {
        if HERE.get() != 0 {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "this thread has a reactor already"));
        }
        HERE.set(shared.id());
        Ok(Executor { shared, tasks: Rc::default() })
    }

    /// Runs `future` to its end as a task. The task is polled first after the tasks that are ready now. Once the
    /// executor has left, nothing runs any more, and the future is dropped.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        if HERE.get() != self.shared.id() {
            return;
        }
        let mut tasks = self.tasks.borrow_mut();
        let place = tasks.vacant_entry();
        let end = Ended { key: place.key(), tasks: Rc::clone(&self.tasks) };
        let future = async move {
            let _end = end;
            future.await;
        };
        let shared = Arc::clone(&self.shared);
        let schedule = move |runnable| shared.schedule(runnable);
        // SAFETY: the future and the schedule function are 'static, and the latter may be used from any thread. The
        // future stays here: a runnable that another thread gets (by waking the task, or by dropping its last waker)
        // goes at once through `Shared::schedule`, which brings it to this thread's queue or, when this executor has
        // gone, leaks it. `spawn_local` would check the thread at every poll, and Miri objects to how.
        let (runnable, task) = unsafe { async_task::spawn_unchecked(future, schedule) };
        place.insert(runnable.waker());
        drop(tasks);
        task.detach();
        runnable.schedule();
    }

    /// Runs ready tasks, at most `budget`; how many there were.
    pub fn run(&self, budget: usize) -> usize {
        for ran in 0..budget {
            let Some(task) = READY.with(|ready| ready.borrow_mut().pop_front()) else { return ran };
            task.run();
        }
        budget
    }

    /// True if no task is ready.
    pub fn is_idle(&self) -> bool {
        READY.with(|ready| ready.borrow().is_empty())
    }

    /// Drops every task with its resources.
    pub fn clear(&self) {
        for _ in 0..CLEAR_TURNS_MAX {
            let wakers: Vec<Waker> = self.tasks.borrow().iter().map(|(_, waker)| waker.clone()).collect();
            wakers.into_iter().for_each(Waker::wake);
            // Messages of other threads come through here; calls are dropped.
            self.shared.take().into_iter().for_each(|item| item.drop_here());
            while let Some(task) = READY.with(|ready| ready.borrow_mut().pop_front()) {
                drop(task);
            }
            if self.tasks.borrow().is_empty() {
                return;
            }
            std::thread::yield_now();
        }
        tracing::error!("{} tasks could not be ended", self.tasks.borrow().len());
    }
}

impl Executor {
    /// Makes space for another executor on this thread.
    pub fn leave(&self) {
        if HERE.get() == self.shared.id() {
            HERE.set(0);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Forgets a task when its future is dropped.
struct Ended {
    key: usize,
    tasks: Rc<RefCell<Slab<Waker>>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let waker = self.tasks.borrow_mut().try_remove(self.key);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, poll_fn};
    use std::task::Poll;

    fn executor() -> Executor {
        Executor::new(Shared::new(|| {})).unwrap()
    }

    /// Ready after `turns` polls, waking itself.
    async fn turns(mut turns: usize) {
        poll_fn(|cx| {
            if turns == 0 {
                return Poll::Ready(());
            }
            turns -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    #[test]
    fn tasks_run_in_the_order_they_were_woken() {
        let executor = executor();
        let seen = Rc::new(RefCell::new(Vec::new()));
        for (name, polls) in [("a", 2), ("b", 0), ("c", 1)] {
            let seen = Rc::clone(&seen);
            executor.spawn(async move {
                turns(polls).await;
                seen.borrow_mut().push(name);
            });
        }
        assert_eq!(executor.run(2), 2);
        assert!(!executor.is_idle());
        executor.run(100);
        assert_eq!(*seen.borrow(), ["b", "c", "a"]);
        assert!(executor.is_idle() && executor.tasks.borrow().is_empty());
    }

    #[test]
    fn a_thread_has_one_executor_at_a_time() {
        let first = executor();
        assert!(Executor::new(Shared::new(|| {})).is_err());
        drop(first);
        drop(executor());
    }

    #[test]
    fn another_thread_wakes_a_task_here() {
        let executor = executor();
        let (give, take) = std::sync::mpsc::channel::<Waker>();
        let done = Rc::new(Cell::new(false));
        let (set, mut given) = (Rc::clone(&done), false);
        executor.spawn(async move {
            poll_fn(|cx| {
                if given {
                    return Poll::Ready(());
                }
                given = true;
                give.send(cx.waker().clone()).unwrap();
                Poll::Pending
            })
            .await;
            set.set(true);
        });
        executor.run(1);
        let other = std::thread::spawn(move || take.recv().unwrap().wake());
        other.join().unwrap();
        assert!(executor.is_idle(), "it is handed over, not run there");
        for item in executor.shared.take() {
            item.run_here(|_| unreachable!("no call was sent"));
        }
        executor.run(1);
        assert!(done.get());
    }

    #[test]
    fn clearing_drops_every_task_and_late_wakers_do_nothing() {
        let executor = executor();
        let kept = Rc::new(());
        let waker = Rc::new(RefCell::new(None));
        for _ in 0..3 {
            let (kept, waker) = (Rc::clone(&kept), Rc::clone(&waker));
            executor.spawn(async move {
                let _kept = kept;
                poll_fn(|cx| {
                    waker.replace(Some(cx.waker().clone()));
                    Poll::Ready(())
                })
                .await;
                pending::<()>().await;
            });
        }
        executor.run(2);
        assert_eq!(Rc::strong_count(&kept), 4);
        executor.clear();
        assert_eq!(Rc::strong_count(&kept), 1);
        let late = waker.take().unwrap();
        drop(executor);
        std::thread::spawn(move || late.wake()).join().unwrap();
    }

    #[test]
    fn a_task_may_spawn_and_end_tasks_while_it_is_dropped() {
        struct Spawns(Rc<Executor>);
        impl Drop for Spawns {
            fn drop(&mut self) {
                self.0.spawn(async {});
            }
        }
        let executor = Rc::new(executor());
        let spawns = Spawns(Rc::clone(&executor));
        executor.spawn(async move {
            let _spawns = spawns;
            pending::<()>().await;
        });
        executor.run(10);
        executor.clear();
        assert!(executor.tasks.borrow().is_empty());
    }
}
