//! The time of requests to a simulated disk that has a model: they stand in the queue of the model's drive.
//!
//! Invariant: a request ends at the very moment that the drive says, whatever else runs.

use crate::executor::Executor;
use lamina_block::Time;
use lamina_drive::{Drive, Request};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A drive at work on requests that wait for it.
pub(crate) struct Service {
    executor: Rc<Executor>,
    drive: RefCell<Drive>,
    /// Requests that have not ended, by their numbers.
    waiting: RefCell<BTreeMap<u64, Option<Waker>>>,
    next: Cell<u64>,
    /// When the drive is looked at next.
    armed: Cell<Option<Time>>,
}

impl Service {
    pub(crate) fn new(executor: Rc<Executor>, drive: Drive) -> Rc<Service> {
        Rc::new(Service {
            executor,
            drive: RefCell::new(drive),
            waiting: RefCell::default(),
            next: Cell::new(0),
            armed: Cell::new(None),
        })
    }

    /// Completes when the drive has done `request`.
    pub(crate) async fn serve(self: &Rc<Self>, request: Request) {
        let id = self.next.replace(self.next.get() + 1);
        self.waiting.borrow_mut().insert(id, None);
        self.drive.borrow_mut().submit(self.executor.now(), id, request);
        self.arm();
        poll_fn(|cx| match self.waiting.borrow_mut().get_mut(&id) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
        .await;
    }

    /// Looks at the drive when a request ends there, unless that is arranged already.
    fn arm(self: &Rc<Self>) {
        let Some(next) = self.drive.borrow().next() else { return };
        if self.armed.get().is_some_and(|armed| armed <= next) {
            return;
        }
        self.armed.set(Some(next));
        let me = Rc::clone(self);
        self.executor.spawn(Box::pin(async move {
            me.executor.sleep(next.since(me.executor.now())).await;
            // A request that ends earlier may have come meanwhile: another task is armed then, or was.
            if me.armed.get() == Some(next) {
                me.armed.set(None);
            }
            me.harvest();
            me.arm();
        }));
    }

    /// Wakes all requests that the drive has done.
    fn harvest(&self) {
        let now = self.executor.now();
        loop {
            let Some(done) = self.drive.borrow_mut().completed(now) else { return };
            let waker = self.waiting.borrow_mut().remove(&done.id).flatten();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}
