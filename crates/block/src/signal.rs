//! Waiting for something to change, on one core.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Memory for so many who wait is kept from one time to the next.
const KEPT: usize = 8;

/// Wakes all who wait. There is no lost wake-up: a wait that begins before [`Signal::notify`] ends with it.
#[derive(Default)]
pub struct Signal {
    turn: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Signal {
    /// A signal nobody waits for.
    pub const fn new() -> Signal {
        Signal { turn: Cell::new(0), waiting: RefCell::new(Vec::new()) }
    }

    /// Wakes everyone who waits now.
    pub fn notify(&self) {
        self.turn.set(self.turn.get() + 1);
        if self.waiting.borrow().is_empty() {
            return;
        }
        let mut woken = self.waiting.take();
        woken.drain(..).for_each(Waker::wake);
        let mut waiting = self.waiting.borrow_mut();
        if waiting.capacity() == 0 && woken.capacity() <= KEPT {
            *waiting = woken;
        }
    }

    /// Waits for the next [`Signal::notify`]. The wait begins with this call, not with the first poll.
    pub fn wait(&self) -> impl Future<Output = ()> + use<'_> {
        let turn = self.turn.get();
        poll_fn(move |cx| {
            if self.turn.get() != turn {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Waits until `condition` is true; it is evaluated now and after every [`Signal::notify`].
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        while !condition() {
            self.wait().await;
        }
    }
}
