//! Memory that the connections of a server may hold: each by itself, and all together.
//!
//! ```text
//!   total  │ reserve │ reserve │ reserve │ ...          │  shared  │
//!              of each connection: one largest request    an eighth, by turns
//! ```
//!
//! Each connection has [`RESERVE`] to itself, which is enough for the largest request, so that none waits for another
//! to get on. What a connection holds beyond it comes from what all share; who does not find room there waits, and
//! has its turn before those who come later.
//!
//! Invariants: all connections together never hold more than the total; one never more than its own maximum, unless a
//! single request needs more than that alone; a connection that holds nothing can always take one largest request. A
//! connection whose reserve does not fit is not let in.

use crate::wire;
use lamina_block::{Bytes, Error, Result, Signal};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// What every connection has to itself, in bytes: the largest request with all that it costs.
pub const RESERVE: usize = wire::PAYLOAD_MAX as usize + (1 << 20);

/// The memory of a server.
pub struct Total {
    max: usize,
    /// Connections, each of which has its reserve.
    connections: Cell<usize>,
    /// What connections hold beyond their reserves.
    extra: Cell<usize>,
    /// Who waits for room beyond the reserve, in order.
    queue: RefCell<VecDeque<Rc<Signal>>>,
}

/// Bytes held by requests of one connection that are not answered, and by its answers that are not sent.
pub struct Budget {
    total: Rc<Total>,
    used: Cell<usize>,
    max: usize,
    /// It waits in the queue.
    queued: Cell<bool>,
    freed: Rc<Signal>,
}

/// What of `used` lies beyond the reserve.
fn beyond(used: usize) -> usize {
    used.saturating_sub(RESERVE)
}

impl Total {
    /// Nothing held, at most `max` bytes.
    pub fn new(max: usize) -> Rc<Total> {
        Rc::new(Total { max, connections: Cell::new(0), extra: Cell::new(0), queue: RefCell::default() })
    }

    /// What no reserve is made of.
    fn shared(&self) -> usize {
        self.max / 8
    }

    /// Lets a connection in that may hold `max` bytes.
    pub fn admit(self: &Rc<Total>, max: usize) -> Result<Budget> {
        if (self.connections.get() + 1) * RESERVE > self.max - self.shared() {
            return Err(Error::offline(format!(
                "the server's memory for clients ({}) is taken by its {} connections: come back later",
                Bytes(self.max as u64),
                self.connections.get()
            )));
        }
        self.connections.set(self.connections.get() + 1);
        Ok(Budget {
            total: Rc::clone(self),
            used: Cell::new(0),
            max,
            queued: Cell::new(false),
            freed: Rc::default(),
        })
    }

    fn give(&self, extra: usize) {
        self.extra.set(self.extra.get() - extra);
        self.wake_first();
    }

    fn wake_first(&self) {
        if let Some(first) = self.queue.borrow().front() {
            first.notify();
        }
    }
}

impl Budget {
    /// Takes `bytes`, when there is room for them beside `also` bytes held elsewhere. Otherwise wait for
    /// [`Budget::freed`], and try again.
    pub fn take(&self, bytes: usize, also: usize) -> bool {
        let used = self.used.get();
        let fits = used == 0 || used.saturating_add(bytes).saturating_add(also) <= self.max;
        let fits = fits && self.take_extra(beyond(used + bytes) - beyond(used));
        if fits {
            self.used.set(used + bytes);
        }
        fits
    }

    fn take_extra(&self, extra: usize) -> bool {
        let total = &self.total;
        if extra > 0 {
            let first = total.queue.borrow().front().is_none_or(|first| Rc::ptr_eq(first, &self.freed));
            if !first || total.extra.get() + extra > total.shared() {
                if !self.queued.replace(true) {
                    total.queue.borrow_mut().push_back(Rc::clone(&self.freed));
                }
                return false;
            }
            total.extra.set(total.extra.get() + extra);
        }
        self.leave_queue();
        true
    }

    fn leave_queue(&self) {
        if self.queued.replace(false) {
            self.total.queue.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, &self.freed));
            self.total.wake_first();
        }
    }

    /// Gives back `bytes`.
    pub fn give(&self, bytes: usize) {
        let (before, now) = (self.used.get(), self.used.get() - bytes);
        self.used.set(now);
        if beyond(before) > 0 {
            self.total.give(beyond(before) - beyond(now));
        }
        self.freed.notify();
    }

    /// Waits until there may be room.
    pub fn freed(&self) -> impl Future<Output = ()> + use<'_> {
        self.freed.wait()
    }

    /// Waits until nothing is held.
    pub async fn idle(&self) {
        self.freed.until(|| self.used.get() == 0).await;
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.leave_queue();
        self.total.connections.set(self.total.connections.get() - 1);
        self.total.give(beyond(self.used.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn admit(total: &Rc<Total>) -> Result<Budget> {
        total.admit(64 * MIB)
    }

    #[test]
    fn everybody_has_room_for_one_largest_request_or_is_not_let_in() {
        let total = Total::new(120 * MIB);
        let all: Vec<_> = (0..3).map(|_| admit(&total).expect("33 MiB each")).collect();
        let e = admit(&total).err().expect("no room");
        assert!(e.message().contains("(120MiB) is taken by its 3 connections"), "{e}");
        for one in &all {
            assert!(one.take(32 * MIB + 512, 0));
            assert!(!one.take(17 * MIB, 0), "15 MiB are for all");
        }
        // The one that waits first has its turn first, and what fits into a reserve waits for nobody.
        all[2].give(32 * MIB + 512);
        assert!(all[2].take(16 * MIB, 0) && all[2].take(16 * MIB, 0));
        assert!(!all[1].take(MIB, 0), "it would fit, but another is first");
        assert!(all[0].take(MIB, 0) && all[1].take(MIB, 0));
        drop(all);
        assert_eq!((total.connections.get(), total.extra.get(), total.queue.borrow().len()), (0, 0, 0));
    }

    #[test]
    fn a_connection_has_its_own_bound() {
        let total = Total::new(1 << 30);
        let one = admit(&total).expect("room");
        assert!(one.take(32 * MIB, 0) && one.take(16 * MIB, 0));
        assert!(!one.take(16 * MIB, MIB) && one.take(16 * MIB, 0));
        one.give(64 * MIB);
        assert_eq!(total.extra.get(), 0);
    }
}
