//! Memory for requests: those of one taker, of its export, and of all exports together.
//!
//! ```text
//!   total ──┬── export ──┬── connection     half of an account is for the reserves below,
//!           │            └── connection     half is shared by turns
//!           └── export ───── guest's queues
//! ```
//!
//! Every taker of memory has its own reserve, enough for one request of the usual length, so that it never waits for
//! others. Memory beyond the reserve comes from the shares of its export and of all exports; a taker that finds no
//! space there waits, and has its turn before later ones. A request that is larger than all that is shared gets it
//! alone.
//!
//! Invariants: reserves never exceed half of an account, unless it is a [`Budget::child`]'s; memory beyond them exceeds
//! the other half only by one request; a taker without memory can always take as much as the reserve.
//!
//! The data of requests under way is counted, once. Layers that copy them (encryption, parity) hold as much again, and
//! no more, because exports pass long requests on [in pieces](Node::submit_in_pieces).

use crate::{Bytes, Error, Io, Node, Op, Result, Signal};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

/// The longest part of a request that layers are given at once, in bytes.
pub const PIECE: u64 = 1 << 20;
/// The cost of a request beside its data, in bytes: its task, its place in lists, its answer.
const OVERHEAD: usize = 512;

/// An account of memory.
pub struct Budget {
    parent: Option<Rc<Budget>>,
    /// In bytes.
    max: Cell<usize>,
    reserve: usize,
    /// The reserves of accounts and takers below.
    reserved: Cell<usize>,
    /// The memory of accounts and takers below beyond their reserves.
    extra: Cell<usize>,
    /// The memory taken here.
    used: Cell<usize>,
    /// The takers that wait for space here, in order.
    queue: RefCell<VecDeque<Rc<Signal>>>,
}

/// A taker of memory, which waits for it.
pub struct Taker {
    budget: Rc<Budget>,
    freed: Rc<Signal>,
}

impl Budget {
    /// The reserve of a taker: a request of [`PIECE`] with all its costs. In bytes.
    pub const RESERVE: usize = PIECE as usize + (64 << 10);
    /// The default limit of an export, in bytes.
    pub const EXPORT: usize = 64 << 20;
    /// The smallest limit of an export, in bytes.
    pub const EXPORT_MIN: usize = 16 << 20;
    /// The default limit of all exports together, in bytes.
    pub const TOTAL: usize = 256 << 20;

    /// An account that belongs to no other.
    pub fn new(max: usize) -> Rc<Budget> {
        Rc::new(Budget::under(None, 0, max))
    }

    fn under(parent: Option<Rc<Budget>>, reserve: usize, max: usize) -> Budget {
        Budget {
            parent,
            max: Cell::new(max),
            reserve,
            reserved: Cell::new(0),
            extra: Cell::new(0),
            used: Cell::new(0),
            queue: RefCell::default(),
        }
    }

    /// An account under this one that has `reserve` bytes of it to itself, in any case: this one is enlarged if need
    /// be.
    pub fn child(self: &Rc<Budget>, reserve: usize, max: usize) -> Rc<Budget> {
        self.reserve(reserve);
        self.max.set(self.max.get().max(2 * self.reserved.get()));
        Rc::new(Budget::under(Some(Rc::clone(self)), reserve, max))
    }

    /// The same; an error if there is no space for the reserve.
    pub fn part(self: &Rc<Budget>, reserve: usize, max: usize) -> Result<Rc<Budget>> {
        if !self.has_room_to_reserve(reserve) {
            let max = Bytes(self.max.get() as u64);
            return Err(Error::offline(format!(
                "the memory for clients ({max}) is taken by others: come back later, or allow more (`memory`)"
            )));
        }
        Ok(self.child(reserve, max))
    }

    /// The bytes that would be beyond the own reserve, if so much more were in reserves.
    fn beyond(&self, before: usize, now: usize) -> usize {
        now.saturating_sub(self.reserve) - before.saturating_sub(self.reserve)
    }

    fn has_room_to_reserve(&self, reserve: usize) -> bool {
        let (before, now) = (self.reserved.get(), self.reserved.get() + reserve);
        now <= self.max.get() / 2
            && self.parent.as_ref().is_none_or(|parent| match self.beyond(before, now) {
                0 => true,
                more => parent.has_room_to_reserve(more),
            })
    }

    fn reserve(&self, reserve: usize) {
        let (before, now) = (self.reserved.get(), self.reserved.get() + reserve);
        self.reserved.set(now);
        self.parent.iter().for_each(|parent| parent.reserve(self.beyond(before, now)));
    }

    fn return_reserve(&self, reserve: usize) {
        let (before, now) = (self.reserved.get(), self.reserved.get() - reserve);
        self.reserved.set(now);
        self.parent.iter().for_each(|parent| parent.return_reserve(self.beyond(now, before)));
    }

    /// A taker of memory from this account.
    pub fn taker(self: &Rc<Budget>) -> Taker {
        Taker { budget: Rc::clone(self), freed: Rc::default() }
    }

    /// Bytes that are taken here.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// The most bytes that may be taken.
    pub fn max(&self) -> usize {
        self.max.get()
    }

    /// The bytes that a request counts for: its data, of which layers get a piece at a time, and itself.
    #[inline]
    pub fn cost(io: &Io) -> usize {
        let (len, segments) = match &io.op {
            Op::Read(buf) | Op::Write(buf, _) => (io.len(), buf.segments().len()),
            // Zeroes may have to be written.
            Op::Zero(_) => (io.len(), 0),
            Op::Discard | Op::Flush => (0, 0),
        };
        len.min(PIECE) as usize + OVERHEAD + segments * size_of::<crate::Segment>()
    }

    fn ancestors(&self) -> impl Iterator<Item = &Budget> {
        std::iter::successors(self.parent.as_deref(), |budget| budget.parent.as_deref())
    }

    fn is_turn_of(&self, taker: &Rc<Signal>) -> bool {
        self.queue.borrow().front().is_none_or(|first| Rc::ptr_eq(first, taker))
    }

    fn leave(&self, taker: &Rc<Signal>) {
        let mut queue = self.queue.borrow_mut();
        if !queue.is_empty() {
            queue.retain(|waiting| !Rc::ptr_eq(waiting, taker));
            drop(queue);
            self.wake_first();
        }
    }

    fn wake_first(&self) {
        let first = self.queue.borrow().front().cloned();
        first.iter().for_each(|first| first.notify());
    }

    /// True if `bytes` more may be taken here.
    fn fits(&self, bytes: usize) -> bool {
        self.used.get() == 0 || self.used.get().saturating_add(bytes) <= self.max.get()
    }

    /// True if accounts and takers below may take `bytes` more beyond their reserves.
    fn shares(&self, bytes: usize) -> bool {
        let (extra, shared) = (self.extra.get(), self.max.get() - self.max.get() / 2);
        extra == 0 || extra.saturating_add(bytes) <= shared
    }

    #[cold]
    fn give_extra(&self, bytes: usize) {
        for budget in self.ancestors() {
            budget.extra.set(budget.extra.get() - bytes);
            budget.wake_first();
        }
    }

    fn give(&self, bytes: usize) {
        let (before, now) = (self.used.get(), self.used.get() - bytes);
        self.used.set(now);
        if before > self.reserve {
            self.give_extra(self.beyond(now, before));
        }
        self.wake_first();
    }
}

impl Default for Budget {
    /// An account of an export by itself.
    fn default() -> Budget {
        Budget::under(None, 0, Budget::EXPORT)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let beyond = self.used.get().saturating_sub(self.reserve);
        if beyond > 0 {
            self.give_extra(beyond);
        }
        self.parent.iter().for_each(|parent| parent.return_reserve(self.reserve));
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", Bytes(self.used.get() as u64), Bytes(self.max.get() as u64))
    }
}

impl Taker {
    /// Takes `bytes`, when there is space for them beside `also` bytes taken elsewhere. Otherwise wait for
    /// [`Taker::freed`], and try again.
    #[inline]
    pub fn take(&self, bytes: usize, also: usize) -> bool {
        let budget = &*self.budget;
        let now = budget.used.get() + bytes;
        let is_plain = budget.queue.borrow().is_empty() && now <= budget.reserve;
        if is_plain && now + also <= budget.max.get() {
            budget.used.set(now);
            return true;
        }
        self.take_slowly(bytes, also)
    }

    fn take_slowly(&self, bytes: usize, also: usize) -> bool {
        let budget = &*self.budget;
        let (before, now) = (budget.used.get(), budget.used.get() + bytes);
        let beyond = budget.beyond(before, now);
        if !budget.is_turn_of(&self.freed) || !budget.fits(bytes + also) {
            return self.wait_at(budget);
        }
        for shared in budget.ancestors().filter(|_| beyond > 0) {
            if !shared.is_turn_of(&self.freed) || !shared.shares(beyond) {
                return self.wait_at(shared);
            }
        }
        budget.used.set(now);
        budget.ancestors().for_each(|shared| shared.extra.set(shared.extra.get() + beyond));
        self.leave_but(None);
        true
    }

    /// Stands in one queue: where there was no space.
    fn wait_at(&self, budget: &Budget) -> bool {
        let is_in = budget.queue.borrow().iter().any(|waiting| Rc::ptr_eq(waiting, &self.freed));
        if !is_in {
            budget.queue.borrow_mut().push_back(Rc::clone(&self.freed));
        }
        self.leave_but(Some(budget));
        false
    }

    fn leave_but(&self, stay: Option<&Budget>) {
        let is_other = |budget: &&Budget| stay.is_none_or(|stay| !std::ptr::eq(stay, *budget));
        let here = std::iter::once(&*self.budget);
        here.chain(self.budget.ancestors()).filter(is_other).for_each(|budget| budget.leave(&self.freed));
    }

    /// Gives back `bytes`.
    #[inline]
    pub fn give(&self, bytes: usize) {
        self.budget.give(bytes);
        self.freed.notify();
    }

    /// Waits until there may be space.
    pub fn freed(&self) -> impl Future<Output = ()> + use<'_> {
        self.freed.wait()
    }

    /// Ends a wait, whether there is space or not.
    pub fn wake(&self) {
        self.freed.notify();
    }

    /// Waits until all memory is given back.
    pub async fn idle(&self) {
        self.freed.until(|| self.budget.used.get() == 0).await;
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.leave_but(None);
    }
}

impl Node {
    /// Submits a request, one that is longer than [`PIECE`] a piece after the other, so that layers get no more of it
    /// at once, and others have their turn in between. Ends with the first error.
    pub async fn submit_in_pieces(self: Rc<Node>, io: Io) -> Result<()> {
        let mut start = io.at.start;
        while start < io.at.end {
            // Cut where pieces of the device begin: stripes are whole then, as far as they can be.
            let end = io.at.end.min((start / PIECE + 1) * PIECE);
            self.submit(io.part(start..end, start)).await?;
            start = end;
            yield_now().await;
        }
        Ok(())
    }

    /// True if a request is to be [submitted in pieces](Node::submit_in_pieces).
    #[inline]
    pub fn is_long(io: &Io) -> bool {
        match io.op {
            Op::Read(_) | Op::Write(..) => io.len() > PIECE,
            Op::Zero(_) | Op::Discard | Op::Flush => false,
        }
    }
}

/// Lets other tasks of the core go on.
async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests;
