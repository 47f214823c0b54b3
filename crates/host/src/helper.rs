//! A few threads for blocking calls without an asynchronous form: opening, names, locks, some ioctls.
//!
//! Threads start when there is work and end after a while without. Work that was given up is done all the same.

use futures_channel::oneshot;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most threads of one reactor.
const THREADS_MAX: usize = 4;
/// How long a thread waits for more work.
const LINGER: Duration = Duration::from_secs(5);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    more: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of one thread.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                work();
                state = self.lock();
            } else if state.closed {
                break;
            } else {
                state.idle += 1;
                let (back, waited) =
                    self.more.wait_timeout(state, LINGER).unwrap_or_else(PoisonError::into_inner);
                state = back;
                state.idle -= 1;
                if waited.timed_out() && state.work.is_empty() {
                    break;
                }
            }
        }
        state.threads -= 1;
    }
}

/// The helper threads of one reactor.
#[derive(Default)]
pub(crate) struct Helpers(Arc<Queue>);

impl Helpers {
    /// Does `work` on a helper thread. Begins at once; an error if no thread can be had, or if the work panicked.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = io::Result<T>> + 'static {
        let (send, receive) = oneshot::channel();
        let begun = self.begin(Box::new(move || {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            if let Ok(done) = done {
                // Perhaps no task waits any more.
                let _ = send.send(done);
            }
        }));
        async move {
            begun?;
            receive.await.map_err(|_| io::Error::other("a helper thread failed"))
        }
    }

    /// Does `work`, which does not panic, on a helper thread. An error if no thread can be had.
    pub fn begin(&self, work: Work) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.idle <= state.work.len() && state.threads < THREADS_MAX {
            let queue = Arc::clone(&self.0);
            let spawned =
                std::thread::Builder::new().name("lamina-helper".into()).spawn(move || queue.serve());
            match spawned {
                Ok(_) => state.threads += 1,
                Err(e) if state.threads == 0 => return Err(e),
                // One of the present threads will take the job.
                Err(_) => {}
            }
        }
        state.work.push_back(work);
        drop(state);
        self.0.more.notify_one();
        Ok(())
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => return done,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    /// Waits for the threads of helpers that are dropped.
    fn end(helpers: Helpers) {
        let queue = Arc::clone(&helpers.0);
        drop(helpers);
        while queue.lock().threads > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn all_work_is_done_with_few_threads() {
        let helpers = Helpers::default();
        let work: Vec<_> = (0..50).map(|i| helpers.run(move || i * 2)).collect();
        assert!(helpers.0.lock().threads <= THREADS_MAX);
        let done: Vec<_> = work.into_iter().map(|w| block_on(w).unwrap()).collect();
        assert_eq!(done, (0..50).map(|i| i * 2).collect::<Vec<_>>());
        end(helpers);
    }

    #[test]
    fn work_that_panics_is_an_error_and_the_thread_lives_on() {
        let helpers = Helpers::default();
        assert!(block_on(helpers.run(|| -> () { std::panic::resume_unwind(Box::new(())) })).is_err());
        assert_eq!(block_on(helpers.run(|| 1)).unwrap(), 1);
        end(helpers);
    }
}
