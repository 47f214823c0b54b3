//! Background work, once a second as long as there is any: clears bits of the intent, asks legs that were
//! away whether they answer, puts spares in, copies stale bytes.

use super::roles::is_truncated;
use super::{LegState, Legs};
use lamina_block::Result;
use std::rc::Rc;
use std::time::Duration;

/// The interval of ticks.
const TICK: Duration = Duration::from_secs(1);

impl Legs {
    /// Starts the next tick soon. The task does not keep the device open meanwhile, so that it can be closed.
    pub(super) fn wake(&self) {
        if self.read_only || !self.change(|state| state.ticks.wake()) {
            return;
        }
        let (env, weak) = (Rc::clone(&self.env), self.me.clone());
        self.env.spawn(Box::pin(async move {
            env.sleep(TICK).await;
            let Some(me) = weak.upgrade() else { return };
            if !me.change(|state| state.ticks.begin()) {
                return;
            }
            let working = me.tasks.begin();
            if let Err(e) = me.tick().await {
                tracing::debug!(device = %me.name, error = %e, "the background work will be tried again");
            }
            me.moved.notify();
            drop((me, working));
        }));
    }

    async fn tick(self: &Rc<Self>) -> Result<()> {
        for leg in self.those(LegState::is_away) {
            if let Err(e) = self.bring_back(leg).await {
                if is_truncated(&e) && !self.has_nothing(leg) {
                    self.end_is_gone(leg);
                }
                self.set_why(leg, Some(e));
            }
        }
        self.take_spares();
        self.rebuild();
        if !self.is_busy() {
            return Ok(());
        }
        // Whatever the result of this tick, another one follows.
        self.wake();
        self.record().await?;
        match self.ask(|state| state.ticks.is_sweep()) {
            true => self.sweep().await,
            false => Ok(()),
        }
    }

    /// True if there may be work for the next tick.
    fn is_busy(&self) -> bool {
        let waits = || self.those(LegState::is_away).next().is_some();
        !self.intent.is_empty() || !self.is_recorded() || waits() || self.has_work()
    }

    /// Clears bits of the intent where there were no writes for a while.
    async fn sweep(&self) -> Result<()> {
        let is_clean = |region: &_| self.is_clean(region);
        let quiet = self.intent.quiet(is_clean);
        if quiet.is_empty() {
            return Ok(());
        }
        self.flush().await?;
        self.intent.clear(quiet, self, is_clean).await
    }
}
