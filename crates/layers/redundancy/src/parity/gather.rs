//! Writes to parts of the same stripe are done one after the other, and those that wait together are done as one: a stream
//! of small writes becomes whole stripes, and needs nothing to be read.

use super::Parity;
use lamina_block::{Io, Result, Signal};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// Stripes of which parts are being written.
#[derive(Default)]
pub struct Queues(RefCell<BTreeMap<u64, Rc<Queue>>>);

#[derive(Default)]
struct Queue {
    busy: Cell<bool>,
    waiting: RefCell<Vec<Rc<Waiter>>>,
    moved: Signal,
}

/// A write that waits for its turn.
struct Waiter {
    /// At its place within the stripe.
    io: RefCell<Option<Io>>,
    result: RefCell<Option<Result<()>>>,
}

/// The turn to write a stripe.
struct Turn<'a> {
    of: &'a Queues,
    stripe: u64,
    queue: Rc<Queue>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.busy.set(false);
        if self.queue.waiting.borrow().is_empty() {
            self.of.0.borrow_mut().remove(&self.stripe);
        }
        self.queue.moved.notify();
    }
}

impl Parity {
    /// Writes to a part of `stripe`, together with what else waits for it. `io` is at its place within the stripe.
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
            let _turn = Turn { of: &self.queues, stripe, queue: Rc::clone(&queue) };
            // Those who came at the same time join.
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

/// Lets everybody else who can go on do so first.
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
