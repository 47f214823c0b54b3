//! One task at a time, in the order of arrival.

use super::range_locks::{RangeLock, RangeLocks};
use std::rc::Rc;

/// A lock for one task at a time.
#[derive(Default)]
pub struct Mutex(Rc<RangeLocks>);

impl Mutex {
    /// Waits until the lock is free; it is held until the result is dropped.
    pub async fn lock(&self) -> RangeLock {
        self.0.lock(&(0..1)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_once;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn one_at_a_time() {
        let mutex = Mutex::default();
        let first = at_once(mutex.lock());
        let mut second = pin!(mutex.lock());
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(first);
        at_once(second);
    }
}
