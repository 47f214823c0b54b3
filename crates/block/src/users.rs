//! Whether somebody uses a device: clients of its own, and those of the devices that stand on it.

use crate::Node;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// The users of a device.
#[derive(Default)]
pub(crate) struct Users {
    clients: Cell<usize>,
    above: RefCell<Vec<Weak<Node>>>,
}

/// A client that uses a device while this lives: a guest whose queues run, a connection.
pub struct InUse(Rc<Node>);

impl Drop for InUse {
    fn drop(&mut self) {
        let users = self.0.users();
        users.clients.set(users.clients.get() - 1);
    }
}

impl Node {
    /// A client uses the device as long as what this gives lives.
    pub fn use_it(self: &Rc<Node>) -> InUse {
        let users = self.users();
        users.clients.set(users.clients.get() + 1);
        InUse(Rc::clone(self))
    }

    /// These nodes stand on it, and no others.
    pub fn set_above(&self, above: Vec<Weak<Node>>) {
        self.users().above.replace(above);
    }

    /// True if a client uses the device, or one that stands on it.
    pub fn is_in_use(&self) -> bool {
        let users = self.users();
        let is_used = |above: &Weak<Node>| above.upgrade().is_some_and(|above| above.is_in_use());
        users.clients.get() > 0 || users.above.borrow().iter().any(is_used)
    }
}
