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

    /// All that is taken.
    pub fn all(&self) -> Vec<Range<u64>> {
        self.taken.borrow().iter().map(|(start, end)| *start..*end).collect()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.of.taken.borrow_mut().remove(&self.start);
        self.of.freed.notify();
    }
}
