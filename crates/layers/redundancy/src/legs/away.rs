//! Legs that fail, that answer again, and that are in sync again: carries out, logs and records the decisions
//! of [`State`](super::state::State).

use super::roles::end_is_gone;
use super::{Legs, is_corrupt};
use lamina_block::{Error, Io, Result};
use lamina_kit::flaw::flawed;
use lamina_kit::intent::Area;

impl Legs {
    /// A leg has failed: it is stale from now on. Not if it is the last one in sync; then its errors are the
    /// device's.
    pub fn put_out(&self, leg: usize, e: &Error) {
        let now = self.env.now();
        if self.change(|state| state.put_out(leg, e, now)) {
            let leg = self.nodes[leg].name();
            tracing::warn!(device = %self.name, %leg, error = %e, "a leg has failed");
            self.changed();
        }
    }

    /// No byte of leg `leg` is trusted any more.
    pub(super) fn end_is_gone(&self, leg: usize) {
        if self.change(|state| state.of_roles(|roles| roles.end_is_gone(leg))) {
            self.changed();
        }
    }

    /// Lets a stale leg take writes again, if it answers.
    pub(super) async fn bring_back(&self, leg: usize) -> Result<()> {
        let node = &self.nodes[leg];
        let answers = Io::read(0, self.env.pool().take(node.geometry().block as usize));
        if node.is_absent() {
            return Err(Error::offline("the device is not there").on(node.name()));
        }
        match node.submit(answers).await {
            // It does answer.
            Err(e) if is_corrupt(&e) => {}
            answered => answered?,
        }
        let (shape, ours) = (node.geometry(), self.block);
        if shape.size < self.size() || shape.block > ours || shape.read_only {
            return Err(Error::invalid(format!(
                "the device is too small, read-only, or its blocks are larger than {ours} bytes"
            ))
            .on(node.name()));
        }
        let area = self.area(leg);
        if let Some(area) = area.as_ref().filter(|_| !self.has_nothing(leg))
            && self.is_cut(area).await?
        {
            let e = end_is_gone();
            tracing::warn!(device = %self.name, leg = %node.name(), error = %e, "a leg is back");
            self.end_is_gone(leg);
            self.record().await?;
        }
        if !self.change(|state| state.of_roles(|roles| roles.answers(leg))) {
            return Ok(());
        }
        if let Some(area) = area {
            let written = self.intent.write_all(&area).await;
            if let Err(e) = &written {
                self.put_out(leg, e);
            }
            written?;
        }
        let name = node.name();
        tracing::info!(device = %self.name, leg = %name, "a leg takes writes again, and its stale bytes are copied");
        self.set_why(leg, None);
        self.unstick();
        Ok(())
    }

    /// True if all bytes of leg `leg` are stale.
    pub(super) fn has_nothing(&self, leg: usize) -> bool {
        self.ask(|state| state.roles().leg(leg).copied) == Some(0)
    }

    /// Why leg `leg` is not in sync.
    pub(super) fn set_why(&self, leg: usize, why: Option<Error>) {
        self.change(|state| state.of_roles(|roles| roles.leg_mut(leg).why = why));
    }

    /// True if the intent of a leg that was away is gone.
    async fn is_cut(&self, area: &Area) -> Result<bool> {
        match self.intent.is_gone(area).await {
            Err(e) if is_corrupt(&e) => Ok(false),
            found => found.map(|gone| gone && !flawed("a leg without its end is trusted")),
        }
    }

    /// A stale leg is in sync again.
    pub(super) async fn complete(&self, leg: usize) -> Result<()> {
        let node = &self.nodes[leg];
        node.submit(Io::flush()).await.inspect_err(|e| self.put_out(leg, e))?;
        if self.change(|state| state.of_roles(|roles| roles.complete(leg))) {
            tracing::info!(device = %self.name, leg = %node.name(), "a leg is in sync again");
            self.changed();
        }
        self.record().await
    }

    /// Spares replace legs that are failed, or away for too long.
    pub(super) fn take_spares(&self) {
        let (now, is_there) = (self.env.now(), |leg: usize| !self.nodes[leg].is_absent());
        let taken = self.change(|state| state.of_roles(|roles| roles.take_spares(now, is_there)));
        for spare in taken {
            let leg = self.nodes[spare].name();
            tracing::warn!(device = %self.name, %leg, "a spare takes the place of a leg");
            self.changed();
        }
    }
}
