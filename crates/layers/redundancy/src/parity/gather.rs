//! Writes to parts of the same stripe are done one after the other, and writes that wait together are done as
//! one: a stream of small writes becomes whole stripes, and no reads are needed.

use super::Parity;
use lamina_block::{Io, Result, Signal};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// The stripes that are being written in part.
#[derive(Default)]
pub struct Queues(RefCell<BTreeMap<u64, Rc<Queue>>>);

#[derive(Default)]
struct Queue {
    busy: Cell<bool>,
    waiting: RefCell<Vec<Rc<Waiter>>>,
    moved: Signal,
}

/// A write that waits for its stripe.
struct Waiter {
    /// The write, with an address within the stripe.
    io: RefCell<Option<Io>>,
    result: RefCell<Option<Result<()>>>,
}

/// The lock of a stripe, until it is dropped.
struct StripeLock<'a> {
    of: &'a Queues,
    stripe: u64,
    queue: Rc<Queue>,
}

impl Drop for StripeLock<'_> {
    fn drop(&mut self) {
        self.queue.busy.set(false);
        if self.queue.waiting.borrow().is_empty() {
            self.of.0.borrow_mut().remove(&self.stripe);
        }
        self.queue.moved.notify();
    }
}

impl Parity {
    /// Writes to a part of `stripe`, together with other writes that wait for it. The address of `io` is
    /// within the stripe.
    pub(super) async fn gather(&self, stripe: u64, io: Io) -> Result<()> {
        let queue = Rc::clone(self.queues.0.borrow_mut().entry(stripe).or_default());
        let mine = Rc::new(Waiter { io: RefCell::new(Some(io)), result: RefCell::default() });
        queue.waiting.borrow_mut().push(Rc::clone(&mine));
        loop {
            let moved = queue.moved.wait();
            if let Some(result) = mine.result.take() {
                return result;
            }
            if queue.busy.replace(true) {
                moved.await;
                continue;
            }
            let _stripe_lock = StripeLock { of: &self.queues, stripe, queue: Rc::clone(&queue) };
            // Writes that came at the same time join.
            once_more().await;
            let batch = queue.waiting.take();
            let ios: Vec<Io> = batch.iter().filter_map(|waiter| waiter.io.take()).collect();
            let result = self.write_part(stripe, ios).await;
            for waiter in batch {
                waiter.result.replace(Some(result.clone()));
            }
        }
    }
}

/// Lets all other tasks that can go on do so first.
async fn once_more() {
    let mut asked = false;
    poll_fn(|cx| match std::mem::replace(&mut asked, true) {
        true => Poll::Ready(()),
        false => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}
