//! Ranges that are being changed: what overlaps waits.
//!
//! Two changes of the same bytes that are under way together may land in either order, and in another order on another
//! leg: then the legs would differ, and nothing would say so. Copying, healing and comparing take ranges too.

use lamina_block::Signal;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The ranges that are taken. They never overlap.
#[derive(Default)]
pub struct Locks {
    taken: RefCell<BTreeMap<u64, u64>>,
    /// What is to be taken again soon, and is in use until then.
    claims: RefCell<Vec<Range<u64>>>,
    freed: Signal,
}

/// A range that is taken, until this is dropped.
pub struct Lock {
    of: Rc<Locks>,
    start: u64,
}

impl Locks {
    /// True if something in `at` is taken.
    #[inline]
    pub fn touches(&self, at: &Range<u64>) -> bool {
        self.taken.borrow().range(..at.end).next_back().is_some_and(|(_, end)| *end > at.start)
    }

    /// Takes `at`, which is not empty, if nothing of it is taken.
    #[inline]
    pub fn try_take(self: &Rc<Self>, at: &Range<u64>) -> Option<Lock> {
        if self.touches(at) {
            return None;
        }
        self.taken.borrow_mut().insert(at.start, at.end);
        Some(Lock { of: Rc::clone(self), start: at.start })
    }

    /// Takes `at`, which is not empty, when nothing of it is taken any more.
    pub async fn take(self: &Rc<Self>, at: &Range<u64>) -> Lock {
        loop {
            let freed = self.freed.wait();
            match self.try_take(at) {
                Some(lock) => return lock,
                None => freed.await,
            }
        }
    }

    /// Takes all of `to`, which holds what `lock` has taken. That may be taken by others in between; nobody takes it to be
    /// at rest.
    pub async fn widen(self: &Rc<Self>, lock: Lock, to: &Range<u64>) -> Lock {
        let claim = Claim { of: Rc::clone(self), at: to.clone() };
        self.claims.borrow_mut().push(to.clone());
        drop(lock);
        let lock = self.take(to).await;
        drop(claim);
        lock
    }

    /// True if something in `at` is taken, or about to be taken again.
    pub fn are_used(&self, at: &Range<u64>) -> bool {
        self.touches(at)
            || self.claims.borrow().iter().any(|claim| claim.start < at.end && at.start < claim.end)
    }

    /// All that is taken, or about to be taken again.
    pub fn all(&self) -> Vec<Range<u64>> {
        let claims = self.claims.borrow();
        self.taken.borrow().iter().map(|(start, end)| *start..*end).chain(claims.iter().cloned()).collect()
    }
}

/// What is to be taken again, until this is dropped.
struct Claim {
    of: Rc<Locks>,
    at: Range<u64>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.of.claims.borrow_mut();
        if let Some(place) = claims.iter().position(|claim| *claim == self.at) {
            claims.swap_remove(place);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.of.taken.borrow_mut().remove(&self.start);
        self.of.freed.notify();
    }
}
