//! Over a `reservation`: what changes when other hosts may take the volume.
//!
//! ```text
//!      open ──▶ taken: the vault names this host and its flash
//!           ──▶ another host has it ──▶ fenced: every request fails until the device is opened again
//!      close ─▶ the store gets everything, as far as it takes it ──▶ the vault: through ──▶ given back
//! ```
//!
//! Which writes only the flash has the vault is told by the state record (`state_record.rs`).

use super::Accelerate;
use futures_util::future::select;
use lamina_block::Layer;
use lamina_cluster::reservation::LAST;
use std::pin::pin;

impl Accelerate {
    /// Notices when another host has the volume.
    pub(super) fn watch_fence(&self) {
        let (Some(held), me) = (self.kept.held(), self.me.clone()) else { return };
        self.env.spawn(Box::pin(async move {
            let fenced = held.until_fenced().await;
            if let (Some(e), Some(me)) = (fenced, me.upgrade()) {
                me.failure.fence(e.on(&me.name));
                me.moved.notify();
                me.volume.moved.notify();
            }
        }));
    }

    /// True if another host has the volume.
    pub(super) fn is_fenced(&self) -> bool {
        self.kept.fenced().is_some()
    }

    /// Brings everything to the store before the device is closed, for as long as requests wait for a store: until then
    /// the volume is for this host alone.
    pub(super) async fn drain_for_others(&self) {
        let is_ours = self.kept.held().is_some() && self.failure.stopped().is_none() && !self.is_fenced();
        if !is_ours || self.geometry().read_only || self.is_detached() || self.is_drained() {
            return;
        }
        let (drained, waits) = (pin!(self.drained()), pin!(self.env.sleep(self.keys.store_timeout.0)));
        select(drained, waits).await;
        if !self.is_drained() {
            let why = "the store lacks writes that the flash has: only this host can serve the volume";
            tracing::warn!(device = %self.name, "{why}");
        }
    }

    /// The store has everything, if it has: this is kept, and the vault is told.
    pub(super) async fn owes_nothing(&self) {
        let is_so = self.is_drained() && !self.is_detached() && self.failure.stopped().is_none();
        if self.geometry().read_only || !is_so {
            return;
        }
        // If that fails, it may owe something, for all that is known.
        let kept = pin!(self.kept.change(|words| words.owes = false));
        match self.kept.held() {
            Some(_) => drop(select(kept, pin!(self.env.sleep(LAST))).await),
            None => drop(kept.await),
        }
    }
}
