//! Sleeps, ordered by when they end.
//!
//! An idle processor takes tens of microseconds to wake up, in a virtual machine a hundred and more. So the thread is
//! awake somewhat before the end of a sleep that is to be exact, and looks for work until then.
//!
//! A sleep that is given up costs nothing afterwards: long time-outs that hardly ever fire may be set for every
//! request.

use lamina_block::Time;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long before the end of an exact sleep the thread is awake.
const EARLY: Duration = Duration::from_micros(200);

/// The sleeps under way. Timers with the same end fire in the order of their start.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: RefCell<BTreeMap<(Time, u64), Waiting>>,
    next: Cell<u64>,
}

struct Waiting {
    waker: Waker,
    is_exact: bool,
}

/// What is to be woken first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct First {
    /// When the first sleep ends.
    pub end: Time,
    /// When the first exact one ends, if that is so soon after it that the thread is awake for it before.
    exact: Option<Time>,
}

impl First {
    /// When the thread has to be awake.
    pub fn wake(&self) -> Time {
        self.exact.map_or(self.end, |exact| self.end.min(early(exact)))
    }

    /// How long to look for work at `now` rather than to sleep, because the end of an exact sleep is near.
    pub fn watch(&self, now: Time) -> Option<Duration> {
        self.exact.filter(|exact| early(*exact) <= now).map(|_| self.end.since(now))
    }
}

/// When the thread is awake for an exact sleep until `end`.
fn early(end: Time) -> Time {
    Time(end.0.saturating_sub(EARLY.as_nanos() as u64))
}

impl Timers {
    /// The sleep that ends first, and an exact one close behind it.
    pub fn first(&self) -> Option<First> {
        let waiting = self.waiting.borrow();
        let (&(end, _), _) = waiting.first_key_value()?;
        let mut near = waiting.range(..=(end.after(EARLY), u64::MAX));
        let exact = near.find(|(_, sleep)| sleep.is_exact).map(|((end, _), _)| *end);
        Some(First { end, exact })
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
        (first.key().0 <= now).then(|| first.remove().waker)
    }

    /// A sleep until `end`.
    pub fn sleep(self: &Rc<Self>, end: Time) -> Sleep {
        let number = self.next.get();
        self.next.set(number + 1);
        Sleep { timers: Rc::clone(self), key: (end, number), begun: false, is_exact: false }
    }

    /// A sleep until `end`, and hardly any longer.
    pub fn exact(self: &Rc<Self>, end: Time) -> Sleep {
        let mut sleep = self.sleep(end);
        sleep.is_exact = true;
        sleep
    }
}

/// A sleep. The wait ends when the timers fire past its end.
pub(crate) struct Sleep {
    timers: Rc<Timers>,
    key: (Time, u64),
    begun: bool,
    is_exact: bool,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let key = self.key;
        if !self.begun {
            self.begun = true;
            let waiting = Waiting { waker: cx.waker().clone(), is_exact: self.is_exact };
            self.timers.waiting.borrow_mut().insert(key, waiting);
            return Poll::Pending;
        }
        match self.timers.waiting.borrow_mut().get_mut(&key) {
            Some(waiting) => {
                waiting.waker.clone_from(cx.waker());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waiting = self.timers.waiting.borrow_mut().remove(&self.key);
        drop(waiting);
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
        assert_eq!(timers.first().map(|first| first.end), Some(Time(10)));
        assert_eq!(timers.fire(Time(9)), 0);
        assert_eq!(timers.fire(Time(20)), 3);
        assert_eq!(*seen.lock().unwrap(), ["a", "b", "b2"]);
        assert_eq!(timers.first().map(|first| first.end), Some(Time(30)));
        let ready: Vec<_> = sleeps.iter_mut().map(|(s, w)| poll(s, w).is_ready()).collect();
        assert_eq!(ready, [false, true, true, true]);
    }

    #[test]
    fn the_thread_is_awake_before_an_exact_sleep_ends() {
        let timers = Rc::new(Timers::default());
        let (mut exact, mut other) = (timers.exact(Time(1_000_000)), timers.sleep(Time(2_000_000)));
        assert!(poll(&mut exact, Waker::noop()).is_pending() && poll(&mut other, Waker::noop()).is_pending());
        let first = timers.first().expect("a sleep");
        assert_eq!((first.wake(), first.watch(Time(799_999))), (Time(800_000), None));
        assert_eq!(first.watch(Time(900_000)), Some(Duration::from_micros(100)));
        drop(exact);
        let first = timers.first().expect("a sleep");
        assert_eq!((first.wake(), first.watch(Time(1_999_999))), (Time(2_000_000), None));
    }

    #[test]
    fn the_thread_stays_awake_if_another_sleep_ends_shortly_before_an_exact_one() {
        let timers = Rc::new(Timers::default());
        let (mut exact, mut other) = (timers.exact(Time(1_000_000)), timers.sleep(Time(990_000)));
        assert!(poll(&mut exact, Waker::noop()).is_pending() && poll(&mut other, Waker::noop()).is_pending());
        let first = timers.first().expect("a sleep");
        assert_eq!((first.end, first.wake()), (Time(990_000), Time(800_000)));
        assert_eq!(first.watch(Time(950_000)), Some(Duration::from_micros(40)));
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
