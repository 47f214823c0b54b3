//! Memory that one connection may hold.

use lamina_block::Signal;
use std::cell::Cell;

/// Bytes held by requests that are not answered, and by answers that are not sent.
///
/// Invariant: never more than the maximum, unless a single request needs more than that alone.
pub struct Budget {
    used: Cell<usize>,
    max: usize,
    freed: Signal,
}

impl Budget {
    /// Nothing held, at most `max` bytes.
    pub fn new(max: usize) -> Budget {
        Budget { used: Cell::new(0), max, freed: Signal::new() }
    }

    /// Takes `bytes`, when there is room for them beside `also` bytes held elsewhere.
    pub fn take(&self, bytes: usize, also: usize) -> bool {
        let used = self.used.get();
        let fits = used == 0 || used.saturating_add(bytes).saturating_add(also) <= self.max;
        if fits {
            self.used.set(used + bytes);
        }
        fits
    }

    /// Gives back `bytes`.
    pub fn give(&self, bytes: usize) {
        self.used.set(self.used.get() - bytes);
        self.freed.notify();
    }

    /// Waits for the next [`Budget::give`].
    pub fn freed(&self) -> impl Future<Output = ()> + use<'_> {
        self.freed.wait()
    }

    /// Waits until nothing is held.
    pub async fn idle(&self) {
        self.freed.until(|| self.used.get() == 0).await;
    }
}
