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
use super::state_record::VolumeRecord;
use futures_util::future::select;
use lamina_block::{Layer, Result};
use lamina_cluster::host::Held;
use lamina_cluster::reservation::{LAST, reservation_of};
use lamina_cluster::vault::Record;
use lamina_kit::flaw::flawed;
use std::pin::pin;
use std::rc::Rc;

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
                me.peers.iter().for_each(|peers| peers.wake());
            }
        }));
    }

    /// Late writes of the host that had the volume before, or of an earlier process of this one, may come: what is
    /// dirty now stays until none can.
    pub(super) fn quarantine(&self) {
        // The volume may have been open in this process before.
        self.volume.quarantine.lift();
        let Some(held) = self.kept.held() else { return };
        // What an earlier process of this host has begun may come as well, as long as the store needs for that, also
        // while those of another host are awaited. A host that has given the volume away has nothing under way.
        let Record { unfenced, previous, holder, generation, .. } = held.record();
        let is_own =
            previous.is_some_and(|previous| holder.is_some_and(|holder| holder.host == previous.host));
        let is_past_alone = unfenced.is_none();
        // An earlier process of this host has taken it from the other one, which may have ended since this one did.
        let is_again = held.is_again() || unfenced.is_some_and(|unfenced| unfenced + 1 < generation);
        let settles = reservation_of(&self.store)
            .and_then(|reservation| reservation.settles())
            .filter(|_| is_own || is_again);
        let is_known = settles.is_some() && !flawed("the past of a host is forgotten");
        if is_past_alone && (!is_known || self.volume.queue.borrow().is_empty()) {
            return;
        }
        if flawed("quarantine is forgotten") {
            return;
        }
        let blocks: Vec<u64> = self.volume.queue.borrow().iter().flat_map(|write| write.blocks()).collect();
        let count = blocks.len();
        let whose = if is_past_alone { "this host's past" } else { "another host" };
        tracing::warn!(device = %self.name, blocks = count, "late writes of {whose} may come: blocks stay here");
        self.volume.quarantine.hold(blocks.into_iter());
        let me = self.me.clone();
        let has_settled = self.env.sleep(settles.unwrap_or_default());
        self.env.spawn(Box::pin(async move {
            has_settled.await;
            held.until_alone().await;
            if let (None, Some(me)) = (held.fenced(), me.upgrade()) {
                // A batch under way may have been written before the last of them came.
                let _none = me.no_batches().await;
                tracing::info!(device = %me.name, "no late writes of another host come any more");
                // They may have come over what the store was given, and what the flash alone has now is to be written
                // once more: until then it is lost with the flash.
                if !me.is_drained() && !flawed("late writes are over nothing") {
                    let (checkpoint, last) = (me.volume.checkpoint.get(), me.last_dirty());
                    me.proceed(|progress| progress.begin_again(checkpoint, last));
                }
                me.volume.quarantine.lift();
                me.volume.moved.notify();
                me.peers.iter().for_each(|peers| peers.wake());
            }
        }));
    }

    /// True if another host has the volume.
    pub(super) fn is_fenced(&self) -> bool {
        self.kept.fenced().is_some()
    }

    /// True if another host may have the volume by now, and have written what this flash has older: the store has
    /// everything, and a vault that it keeps gives the volume away without a word about this host.
    pub(super) fn is_doubtful(&self) -> bool {
        self.may_be_followed.as_ref().is_some_and(|reservation| !reservation.is_safe()) && !self.kept.owes()
    }

    /// Waits until that is known, as long as requests wait for a store.
    pub(super) async fn until_no_doubt(&self) -> Result<()> {
        let Some(reservation) = &self.may_be_followed else { return Ok(()) };
        reservation.until_safe(self.keys.store_timeout.0).await.map_err(|e| e.on(&self.name))
    }

    /// Brings everything to the store before the device is closed, for as long as requests wait for a store: until then
    /// the volume is for this host alone.
    pub(super) async fn drain_for_others(&self) {
        let is_ours = self.kept.held().is_some() && self.failure.stopped().is_none() && !self.is_fenced();
        // Those of this host's past come soon, or not at all.
        let is_awaited =
            |held: Rc<Held>| held.record().unfenced.is_some() && !self.volume.quarantine.is_empty();
        let is_over = self.is_detached() || self.is_drained() || self.kept.held().is_some_and(is_awaited);
        let is_there = self.gives_to.get().is_some_and(|flash| self.is_at(flash));
        if !is_ours || self.geometry().read_only || is_over || is_there {
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
        let has_all = self.is_drained() || flawed("given back before the store has everything");
        let is_so = has_all && !self.is_detached() && self.failure.stopped().is_none();
        if self.geometry().read_only || !is_so {
            return;
        }
        // Nothing on the flash counts that could be older than the store, and so nothing has to be said of it.
        let is_behind = self.kept.words().behind && self.cache.forget(&self.volume).await.is_err();
        // If that fails, it may owe something, for all that is known.
        let change =
            |words: &mut VolumeRecord| (words.owes, words.behind) = (false, words.behind && is_behind);
        let kept = pin!(self.kept.change(change));
        match self.kept.held() {
            Some(_) => drop(select(kept, pin!(self.env.sleep(LAST))).await),
            None => drop(kept.await),
        }
    }
}
