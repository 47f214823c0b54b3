//! One save at a time for many tasks: a save serves all tasks that asked before it began.
//!
//! ```text
//!      ask 1 ─▶ save (1) ──────────────▶ done: 1
//!         ask 2, ask 3  wait            save (3) ───────────▶ done: 2, 3
//! ```
//!
//! Invariant: a task returns from a successful save only if it asked before that save began. If a save fails,
//! the task that ran it gets the error, and the others try again.

use lamina_block::{Result, Signal};
use std::cell::Cell;

/// A state that is saved as a whole.
#[derive(Default)]
pub struct SingleFlight {
    /// The number of changes of the state, and the number that is saved.
    changes: Cell<u64>,
    saved: Cell<u64>,
    flying: Cell<bool>,
    landed: Signal,
}

/// A save under way, until it is dropped.
struct Flight<'a>(&'a SingleFlight);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.flying.set(false);
        self.0.landed.notify();
    }
}

impl SingleFlight {
    /// A state, and whether it is saved.
    pub fn new(is_saved: bool) -> SingleFlight {
        SingleFlight { changes: Cell::new(u64::from(!is_saved)), ..SingleFlight::default() }
    }

    /// The state has changed.
    pub fn change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// True if the last save has all changes.
    #[inline]
    pub fn is_saved(&self) -> bool {
        self.saved.get() >= self.changes.get()
    }

    /// Returns when all changes so far are saved: by `save`, or by another task's.
    pub async fn save(&self, save: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        let wanted = self.changes.get();
        self.landed.until(|| self.saved.get() >= wanted || !self.flying.get()).await;
        if self.saved.get() >= wanted {
            return Ok(());
        }
        self.flying.set(true);
        let _flight = Flight(self);
        let now = self.changes.get();
        save().await?;
        self.saved.set(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_once;
    use futures_util::future::join_all;
    use lamina_block::{Env, Error};
    use lamina_sim::{SimEnv, Simulation};
    use std::rc::Rc;
    use std::time::Duration;

    /// A state that is saved, and the number of saves.
    #[derive(Default)]
    struct Saved {
        flight: SingleFlight,
        now: Cell<u64>,
        durable: Cell<u64>,
        saves: Cell<u64>,
    }

    impl Saved {
        /// Changes the state, and saves it; every seventh save fails. True if it was saved.
        async fn change(&self, env: &SimEnv) -> bool {
            env.sleep(Duration::from_micros(env.random() % 200)).await;
            self.now.set(self.now.get() + 1);
            self.flight.change();
            let mine = self.now.get();
            let save = async || {
                self.saves.set(self.saves.get() + 1);
                let now = self.now.get();
                env.sleep(Duration::from_micros(50)).await;
                if env.random().is_multiple_of(7) {
                    return Err(Error::offline("away"));
                }
                self.durable.set(now);
                Ok(())
            };
            let saved = self.flight.save(save).await.is_ok();
            assert!(!saved || self.durable.get() >= mine, "{mine} is not saved");
            saved
        }
    }

    #[test]
    fn one_save_serves_all_who_asked_before_it_began() {
        for seed in 0..100 {
            let world = Simulation::new(seed);
            let env = world.env();
            let run = async move {
                let of = Saved::default();
                let done = join_all((0..64).map(|_| of.change(&env))).await;
                let failed = done.iter().filter(|saved| !*saved).count() as u64;
                (of.saves.get(), failed, of.flight.is_saved())
            };
            let (saves, failed, is_saved) = world.run(run).expect("it ends");
            assert!(saves <= 8 + 2 * failed, "seed {seed}: {saves} saves, {failed} of which failed");
            assert!(is_saved || failed > 0, "seed {seed}");
        }
    }

    #[test]
    fn what_is_saved_is_not_saved_again() {
        let of = SingleFlight::new(true);
        let unasked = async || -> Result<()> { panic!("it is saved") };
        at_once(of.save(unasked)).unwrap();
        of.change();
        assert!(!of.is_saved());
        at_once(of.save(async || Err(Error::offline("away")))).unwrap_err();
        assert!(!of.is_saved());
        at_once(of.save(async || Ok(()))).unwrap();
        assert!(of.is_saved());
        at_once(of.save(unasked)).unwrap();
    }

    #[test]
    fn a_save_that_is_dropped_leaves_it_to_others() {
        let of = Rc::new(SingleFlight::new(false));
        let mut dropped = Box::pin(of.save(async || std::future::pending().await));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        drop(dropped);
        at_once(of.save(async || Ok(()))).unwrap();
        assert!(of.is_saved());
    }
}
