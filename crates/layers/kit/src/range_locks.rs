//! Locks on ranges of addresses: of overlapping locks one is held at a time, and the others follow in the
//! order of arrival.
//!
//! Two changes of the same bytes that are under way together may land in either order, and in another order
//! on another device. Copying, healing and comparing take ranges too. Addresses count any unit of the user's
//! choice: bytes, extents, pages.
//!
//! ```text
//!      held       ├──A──┤        ├──B──┤
//!      waiting        ├──C──┤              1. for A
//!                       ├──D──┤            2. for C: although its range is not held
//!                                 ├─E─┤    3. for B
//! ```
//!
//! Invariants:
//! * Held locks never overlap.
//! * A lock that can be held is held: a waiting lock overlaps a held lock, or one that came before. So no
//!   lock is overtaken by a later one, and none waits for ever while locks are released.
//! * A released lock passes to the next one at once, before another task can ask.
//!
//! A task that holds a lock must not wait for another one that overlaps earlier waiting ones: take two ranges
//! as one, or release the first.

use lamina_block::{Cause, Waits, wait};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The ranges that are locked, and the waiting ones.
#[derive(Default)]
pub struct RangeLocks {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The end of each lock that is held, by its start.
    held: BTreeMap<u64, u64>,
    /// The waiting locks, in the order of arrival.
    waiting: VecDeque<Rc<Waiter>>,
}

struct Waiter {
    at: Range<u64>,
    /// The lock, from when it is held until the task takes it.
    lock: RefCell<Option<RangeLock>>,
    waker: RefCell<Waker>,
    /// Until it is held.
    waits: Cell<Option<Waits>>,
}

/// A range that is locked, until this is dropped.
pub struct RangeLock {
    of: Rc<RangeLocks>,
    start: u64,
}

/// A waiting lock; it does not wait any more when this is dropped.
struct Waiting {
    of: Rc<RangeLocks>,
    waiter: Rc<Waiter>,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl State {
    #[inline]
    fn is_held(&self, at: &Range<u64>) -> bool {
        self.held.range(..at.end).next_back().is_some_and(|(_, end)| *end > at.start)
    }

    /// True if one of the first `count` waiting locks overlaps `at`.
    fn is_wanted(&self, at: &Range<u64>, count: usize) -> bool {
        self.waiting.iter().take(count).any(|waiter| overlap(&waiter.at, at))
    }

    /// Holds `at`, if it is free.
    #[inline]
    fn hold(&mut self, at: &Range<u64>) -> bool {
        let is_free = !self.is_held(at) && (self.waiting.is_empty() || !self.is_wanted(at, usize::MAX));
        if is_free {
            self.held.insert(at.start, at.end);
        }
        is_free
    }

    /// The waiters that can have their locks now that `freed` is not held, or not waited for, any more. The
    /// locks are held.
    fn next(&mut self, freed: &Range<u64>) -> Vec<Rc<Waiter>> {
        let (mut next, mut place) = (Vec::new(), 0);
        while let Some(waiter) = self.waiting.get(place) {
            let at = &waiter.at;
            if !overlap(at, freed) || self.is_held(at) || self.is_wanted(at, place) {
                place += 1;
                continue;
            }
            self.held.insert(at.start, at.end);
            next.extend(self.waiting.remove(place));
        }
        next
    }

    /// The invariants.
    #[cfg(test)]
    fn check(&self) {
        let held: Vec<_> = self.held.iter().collect();
        assert!(held.windows(2).all(|pair| pair[0].1 <= pair[1].0), "locks that overlap: {held:?}");
        for (place, waiter) in self.waiting.iter().enumerate() {
            let waits = self.is_held(&waiter.at) || self.is_wanted(&waiter.at, place);
            assert!(waits, "{:?} waits for nothing", waiter.at);
        }
    }
}

impl RangeLocks {
    /// Locks `at`, which is not empty, if that can be done at once.
    #[inline]
    pub fn try_lock(self: &Rc<Self>, at: &Range<u64>) -> Option<RangeLock> {
        debug_assert!(at.start < at.end, "a lock on nothing");
        let is_held = self.state.borrow_mut().hold(at);
        is_held.then(|| RangeLock { of: Rc::clone(self), start: at.start })
    }

    /// Locks `at`, which is not empty, when its turn comes.
    pub async fn lock(self: &Rc<Self>, at: &Range<u64>) -> RangeLock {
        match self.try_lock(at) {
            Some(lock) => lock,
            None => self.queue(at).await,
        }
    }

    /// The same. Its turn is after all that was asked for before this call, whenever what it gives is awaited.
    pub fn lock_in_turn(self: &Rc<Self>, at: &Range<u64>) -> impl Future<Output = RangeLock> + use<> {
        let lock = self.try_lock(at).ok_or_else(|| self.queue(at));
        async move {
            match lock {
                Ok(lock) => lock,
                Err(waiting) => waiting.await,
            }
        }
    }

    /// Locks all of `to`, which contains the range of `lock`. Others may hold that in between; it is in use
    /// all the time.
    pub async fn widen(self: &Rc<Self>, lock: RangeLock, to: &Range<u64>) -> RangeLock {
        let waiting = self.queue(to);
        drop(lock);
        waiting.await
    }

    /// Queues a waiting lock for `at`, which is not free.
    #[cold]
    fn queue(self: &Rc<Self>, at: &Range<u64>) -> Waiting {
        let waiter = Rc::new(Waiter {
            at: at.clone(),
            lock: RefCell::new(None),
            waker: RefCell::new(Waker::noop().clone()),
            waits: Cell::new(Some(wait(Cause::Lock))),
        });
        self.state.borrow_mut().waiting.push_back(Rc::clone(&waiter));
        Waiting { of: Rc::clone(self), waiter }
    }

    /// Passes locks to waiters of a lock that held `freed`, or waited for it.
    fn pass_on(self: &Rc<Self>, freed: &Range<u64>) {
        let next = self.state.borrow_mut().next(freed);
        for waiter in next {
            waiter.waits.take();
            waiter.lock.replace(Some(RangeLock { of: Rc::clone(self), start: waiter.at.start }));
            waiter.waker.borrow().wake_by_ref();
        }
    }

    /// True if a part of `at` is locked.
    #[inline]
    pub fn is_locked(&self, at: &Range<u64>) -> bool {
        let state = self.state.borrow();
        !state.held.is_empty() && state.is_held(at)
    }

    /// True if a part of `at` is locked, or waited for.
    pub fn is_in_use(&self, at: &Range<u64>) -> bool {
        let state = self.state.borrow();
        state.is_held(at) || state.is_wanted(at, usize::MAX)
    }

    /// All ranges that are locked, or waited for.
    pub fn in_use(&self) -> Vec<Range<u64>> {
        let state = self.state.borrow();
        let held = state.held.iter().map(|(start, end)| *start..*end);
        held.chain(state.waiting.iter().map(|waiter| waiter.at.clone())).collect()
    }
}

impl Drop for RangeLock {
    #[inline]
    fn drop(&mut self) {
        let mut state = self.of.state.borrow_mut();
        let end = state.held.remove(&self.start);
        if state.waiting.is_empty() {
            return;
        }
        drop(state);
        self.of.pass_on(&(self.start..end.unwrap_or(self.start)));
    }
}

impl Future for Waiting {
    type Output = RangeLock;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeLock> {
        match self.waiter.lock.take() {
            Some(lock) => Poll::Ready(lock),
            None => {
                self.waiter.waker.borrow_mut().clone_from(cx.waker());
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A lock that the waiter has, and no task has taken, is released with it.
        let mut state = self.of.state.borrow_mut();
        let is_this = |waiter: &Rc<Waiter>| Rc::ptr_eq(waiter, &self.waiter);
        let Some(place) = state.waiting.iter().position(is_this) else { return };
        state.waiting.remove(place);
        drop(state);
        self.of.pass_on(&self.waiter.at);
    }
}

#[cfg(test)]
mod tests;
