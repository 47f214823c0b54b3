//! One at a time, in the order in which they came.

use super::range_locks::{RangeLock, RangeLocks};
use std::rc::Rc;

/// What one at a time does.
#[derive(Default)]
pub struct Mutex(Rc<RangeLocks>);

impl Mutex {
    /// Waits until it is this one's turn; it is until what this returns is dropped.
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
