//! A ticket: the result of something that is appended to a log in several parts.

use lamina_block::{Node, Result, Signal, Waits, wait_on};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The parts that are still under way, and the result of those that have ended.
pub struct Ticket {
    left: Cell<usize>,
    result: RefCell<Result<()>>,
    ended: Signal,
    /// A request waits for it.
    waits: Cell<Option<Waits>>,
}

impl Ticket {
    /// Counts a part that has begun.
    pub fn one_more(&self) {
        self.left.set(self.left.get() + 1);
    }

    /// A ticket without parts.
    pub fn new() -> Rc<Ticket> {
        Rc::new(Ticket {
            left: Cell::new(0),
            result: RefCell::new(Ok(())),
            ended: Signal::new(),
            waits: Cell::new(None),
        })
    }

    /// The same, for the request that is being polled, which waits for `device`.
    pub fn of_request(device: &Node) -> Rc<Ticket> {
        let ticket = Ticket::new();
        ticket.waits.set(Some(wait_on(device)));
        ticket
    }

    /// A part has ended.
    pub fn end(&self, result: &Result<()>) {
        if let Err(e) = result {
            *self.result.borrow_mut() = Err(e.clone());
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.waits.take();
            self.ended.notify();
        }
    }

    /// Waits until all parts have ended: an error if one of them failed.
    pub async fn wait(&self) -> Result<()> {
        self.ended.until(|| self.left.get() == 0).await;
        self.result.replace(Ok(()))
    }
}
