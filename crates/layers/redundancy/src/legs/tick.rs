//! What goes on by itself, once a second as long as there is something: bits of the intent go, legs that were
//! away are asked whether they answer, spares take over, what legs lack is copied.

use super::roles::is_truncated;
use super::{LegState, Legs};
use lamina_block::Result;
use std::rc::Rc;
use std::time::Duration;

/// How often.
const TICK: Duration = Duration::from_secs(1);

impl Legs {
    /// Lets it go on soon. Nobody holds the device meanwhile, so that it can be closed.
    pub(super) fn wake(&self) {
        if self.read_only || !self.change(|state| state.turns.wake()) {
            return;
        }
        let (env, weak) = (Rc::clone(&self.env), self.me.clone());
        self.env.spawn(Box::pin(async move {
            env.sleep(TICK).await;
            let Some(me) = weak.upgrade() else { return };
            if !me.change(|state| state.turns.begin()) {
                return;
            }
            let working = me.tasks.begin();
            if let Err(e) = me.tick().await {
                tracing::debug!(device = %me.name, error = %e, "what goes on by itself will be tried again");
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
        // Whatever comes of this turn, there is another one.
        self.wake();
        self.record().await?;
        match self.ask(|state| state.turns.is_sweep()) {
            true => self.sweep().await,
            false => Ok(()),
        }
    }

    /// True if there may be something to do in the next turn.
    fn is_busy(&self) -> bool {
        let waits = || self.those(LegState::is_away).next().is_some();
        !self.intent.is_empty() || !self.is_recorded() || waits() || self.has_work()
    }

    /// Takes bits out of the intent where nothing happens any more.
    async fn sweep(&self) -> Result<()> {
        let settled = |region: &_| self.is_settled(region);
        let quiet = self.intent.quiet(settled);
        if quiet.is_empty() {
            return Ok(());
        }
        self.flush().await?;
        self.intent.clear(quiet, self, settled).await
    }
}
