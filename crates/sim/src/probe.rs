//! The view of a test on all simulated disks of one environment, with its interventions.

use crate::executor::Executor;
use lamina_block::{Error, Io};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Decides whether a request fails: its number among all requests to simulated disks, the disk, the request.
pub type Fault = Box<dyn FnMut(u64, &str, &Io) -> Option<Error>>;

pub(crate) struct Probe {
    executor: Rc<Executor>,
    requests: Cell<u64>,
    fault: RefCell<Option<Fault>>,
    observer: RefCell<Option<Rc<dyn Fn()>>>,
    finding: RefCell<Option<String>>,
}

impl Probe {
    pub(crate) fn new(executor: Rc<Executor>) -> Rc<Probe> {
        Rc::new(Probe {
            executor,
            requests: Cell::new(0),
            fault: RefCell::default(),
            observer: RefCell::default(),
            finding: RefCell::default(),
        })
    }

    /// A request reaches a disk; the error it is to fail with, if any.
    pub(crate) fn arrives(&self, disk: &str, io: &Io) -> Option<Error> {
        let number = self.requests.replace(self.requests.get() + 1);
        self.fault.borrow_mut().as_mut().and_then(|fault| fault(number, disk, io))
    }

    /// Requests that reached a disk so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.get()
    }

    pub(crate) fn set_fault(&self, fault: Option<Fault>) {
        *self.fault.borrow_mut() = fault;
    }

    /// The contents or the durability of a disk are about to change.
    pub(crate) fn event(&self, disk: &str, at: &Range<u64>) {
        self.executor.trace(at.start ^ at.end.rotate_left(17) ^ disk.len() as u64);
        let observer = self.observer.borrow().clone();
        if let Some(observer) = observer {
            observer();
        }
    }

    pub(crate) fn observe(&self, observer: Option<Rc<dyn Fn()>>) {
        *self.observer.borrow_mut() = observer;
    }

    /// Notes a breach of the contract; the first one counts.
    pub(crate) fn finding(&self, what: String) {
        self.finding.borrow_mut().get_or_insert(what);
    }

    pub(crate) fn take_finding(&self) -> Option<String> {
        self.finding.borrow_mut().take()
    }
}
