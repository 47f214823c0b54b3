//! Sleeps, ordered by when they end.
//!
//! A sleep that is given up costs nothing afterwards: long time-outs that hardly ever fire may be set for every
//! request.

use lamina_block::Time;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The sleeps under way. Timers with the same end fire in the order of their start.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: RefCell<BTreeMap<(Time, u64), Waker>>,
    next: Cell<u64>,
}

impl Timers {
    /// When the first sleep ends.
    pub fn first(&self) -> Option<Time> {
        self.waiting.borrow().first_key_value().map(|((end, _), _)| *end)
    }

    /// Wakes all whose sleep has ended by `now`; how many.
    pub fn fire(&self, now: Time) -> usize {
        let mut fired = 0;
        while let Some(waker) = self.pop(now) {
            waker.wake();
            fired += 1;
        }
        fired
    }

    fn pop(&self, now: Time) -> Option<Waker> {
        let mut waiting = self.waiting.borrow_mut();
        let first = waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// A sleep until `end`.
    pub fn sleep(self: &Rc<Self>, end: Time) -> Sleep {
        let number = self.next.get();
        self.next.set(number + 1);
        Sleep { timers: Rc::clone(self), key: (end, number), begun: false }
    }
}

/// A sleep. The wait ends when the timers fire past its end.
pub(crate) struct Sleep {
    timers: Rc<Timers>,
    key: (Time, u64),
    begun: bool,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let key = self.key;
        if !self.begun {
            self.begun = true;
            self.timers.waiting.borrow_mut().insert(key, cx.waker().clone());
            return Poll::Pending;
        }
        match self.timers.waiting.borrow_mut().get_mut(&key) {
            Some(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.timers.waiting.borrow_mut().remove(&self.key);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    struct Note(&'static str, Arc<Mutex<Vec<&'static str>>>);
    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    fn poll(sleep: &mut Sleep, waker: &Waker) -> Poll<()> {
        Pin::new(sleep).poll(&mut Context::from_waker(waker))
    }

    #[test]
    fn sleeps_end_in_order() {
        let timers = Rc::new(Timers::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut sleeps: Vec<_> = [("c", 30), ("a", 10), ("b", 20), ("b2", 20)]
            .map(|(name, end)| {
                (timers.sleep(Time(end)), Waker::from(Arc::new(Note(name, Arc::clone(&seen)))))
            })
            .into();
        for (sleep, waker) in &mut sleeps {
            assert!(poll(sleep, waker).is_pending());
        }
        assert_eq!(timers.first(), Some(Time(10)));
        assert_eq!(timers.fire(Time(9)), 0);
        assert_eq!(timers.fire(Time(20)), 3);
        assert_eq!(*seen.lock().unwrap(), ["a", "b", "b2"]);
        assert_eq!(timers.first(), Some(Time(30)));
        let ready: Vec<_> = sleeps.iter_mut().map(|(s, w)| poll(s, w).is_ready()).collect();
        assert_eq!(ready, [false, true, true, true]);
    }

    #[test]
    fn a_sleep_given_up_is_forgotten() {
        let timers = Rc::new(Timers::default());
        let mut sleep = timers.sleep(Time(5));
        assert!(poll(&mut sleep, Waker::noop()).is_pending());
        drop(sleep);
        assert_eq!(timers.first(), None);
    }
}
