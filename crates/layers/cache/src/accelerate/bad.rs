//! Bad blocks (`flash::bad`): what a batch does with them, what is said of them, and how they are given up.
//!
//! A block that the flash cannot read was acknowledged, and nothing else has it: reads of it fail, until it
//! is written again or the loss is accepted. One that the store does not take is read from the flash as any
//! other; a write that waits for the store fails.

use super::epoch::Batch;
use super::failure::{SideError, SideResult};
use super::{Accelerate, Policy};
use crate::flash::{Dirty, SLOT, Side};
use lamina_block::{Buf, Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::Duration;

/// A store that does not take more blocks than these takes nothing.
const MOST: usize = 64;

/// True if `e` may be of some blocks alone: what is away, or has lost its end, is that for all.
pub(super) fn is_of_blocks(e: &Error) -> bool {
    match e.kind() {
        ErrorKind::Media
        | ErrorKind::NoSpace
        | ErrorKind::Invalid
        | ErrorKind::Unsupported
        | ErrorKind::Corrupt => true,
        ErrorKind::ReadOnly
        | ErrorKind::Fenced
        | ErrorKind::Offline
        | ErrorKind::TimedOut
        | ErrorKind::Busy
        | ErrorKind::Cancelled
        | ErrorKind::BadMemory
        | ErrorKind::Truncated => false,
    }
}

impl Accelerate {
    /// Notes a bad block; false if nobody has relied on it, as its write is still waiting for the store.
    fn note_bad(&self, dirty: &Dirty, side: Side, e: Error) -> bool {
        let batch = (self.progress.get().batch(), self.env.now());
        let is_owed = self.policy.get() == Policy::WriteBack || self.is_unprotected();
        if !self.volume.bad.has(dirty.block) {
            let at = dirty.block * SLOT as u64;
            match side {
                Side::Flash => {
                    let what = "a block that only the flash has cannot be read";
                    tracing::error!(device = %self.name, at, error = %e, "{what}")
                }
                Side::Store => {
                    tracing::error!(device = %self.name, at, error = %e, "a block cannot be written to the store")
                }
            }
        }
        self.volume.bad.note((dirty.block, dirty.slot), is_owed, (side, e), batch);
        is_owed
    }

    /// The flash cannot read a block. Fails if no block can be left out, or need be, as the device can do
    /// without the flash.
    pub(super) fn leave_unread(&self, dirty: &Dirty, e: Error) -> SideResult<()> {
        if !is_of_blocks(&e) {
            return Err(SideError::Flash(e));
        }
        let is_owed = self.note_bad(dirty, Side::Flash, e.clone());
        if is_owed && self.epochs.is_none() { Ok(()) } else { Err(SideError::Flash(e)) }
    }

    /// Writes blocks to the store, side by side; each alone if it does not take them together.
    pub(super) async fn write_run(&self, run: &[(Dirty, Buf)], slowest: &Cell<Duration>) -> SideResult<()> {
        match self.write_blocks(run, slowest).await {
            Err(SideError::Store(e)) if is_of_blocks(&e) && self.epochs.is_none() => {}
            written => return written,
        }
        for one in run.chunks(1) {
            match self.write_blocks(one, slowest).await {
                Err(SideError::Store(e)) if is_of_blocks(&e) => {
                    self.note_bad(&one[0].0, Side::Store, e.clone());
                    if self.volume.bad.count(Side::Store) > MOST {
                        return Err(SideError::Store(e));
                    }
                }
                written => written?,
            }
        }
        Ok(())
    }

    /// What the store has of a batch that has ended.
    pub(super) fn brought_of(&self, batch: &Batch) -> Vec<Dirty> {
        let stays = |dirty: &&Dirty| self.is_bad(dirty) || self.volume.quarantine.has(dirty.block);
        batch.dirty.iter().filter(|dirty| !stays(dirty)).copied().collect()
    }

    /// True if the batch under way has found this block bad.
    fn is_bad(&self, dirty: &Dirty) -> bool {
        self.volume.bad.was_met(dirty.block, self.progress.get().batch())
    }

    /// The store has a batch, durably: peers are told, and blocks in quarantine rest.
    pub(super) fn has_been_given(&self, batch: &Batch) {
        if !self.volume.quarantine.is_empty() {
            let given = batch.dirty.iter().filter(|dirty| !self.is_bad(dirty));
            given.for_each(|dirty| self.volume.quarantine.given(dirty.block, dirty.slot));
        }
        if let Some(peers) = &self.peers {
            peers.stored(self.volume.checkpoint.get());
        }
    }

    /// The store has everything but bad blocks.
    pub(super) fn is_all_bad(&self) -> bool {
        let queue = self.volume.queue.borrow();
        queue.back().is_some_and(|last| last.serial <= self.progress.get().durable())
    }

    /// Somebody needs a bad block.
    pub(super) fn bad_block(&self, side: Side, e: Error) -> SideError {
        match side {
            Side::Flash => SideError::Flash(self.only_copy(e)),
            Side::Store => SideError::Store(e),
        }
    }

    /// A read has failed of what only the flash has.
    pub(super) fn of_only_copy(&self, e: Error) -> SideError {
        SideError::Flash(if is_of_blocks(&e) { self.only_copy(e) } else { e })
    }

    /// A block cannot be read that only the flash has.
    pub(super) fn only_copy(&self, e: Error) -> Error {
        let message = format!(
            "{}: the flash had the only copy of this block on this host: write the block again, or {}",
            e.message(),
            self.way_on()
        );
        Error::new(e.kind(), message).on(&self.name)
    }

    fn bad_words(&self, side: Side, what: &str) -> Option<String> {
        let (_, e) = self.volume.bad.first(Some(side))?;
        Some(format!("{} blocks {what}: {e}", self.volume.bad.count(side)))
    }

    pub(super) fn store_trouble(&self) -> Option<String> {
        let trouble = self.trouble.borrow().as_ref().map(|(_, e)| e.to_string());
        trouble.or_else(|| self.bad_words(Side::Store, "cannot be written to the store"))
    }

    /// Why the flash is not used, or why it is stopped.
    pub(super) fn flash_trouble(&self) -> Option<String> {
        if self.is_fenced() {
            return None;
        }
        let trouble = self.failure.trouble.borrow().as_ref().map(Error::to_string);
        self.failure.hopeless().map(|e| e.message().to_owned()).or(trouble).or_else(|| self.unread())
    }

    /// What is wrong with the flash, as far as it concerns blocks.
    pub(super) fn unread(&self) -> Option<String> {
        self.bad_words(Side::Flash, "that only the flash has cannot be read")
    }

    /// Gives up what the flash cannot read: the store's older blocks are there from now on. Nothing if there are none.
    pub(super) async fn give_up_unread(&self) -> Result<Option<Value>> {
        if self.volume.bad.count(Side::Flash) == 0 {
            return Ok(None);
        }
        let _all = self.lock(&(0..u64::MAX)).await;
        let _none = self.no_batches().await;
        let is_dirty = |block: &u64| self.cache.is_dirty_at(&self.volume, *block..*block + 1);
        let blocks: Vec<u64> = self.volume.bad.of(Side::Flash).into_iter().filter(is_dirty).collect();
        let lost = self.loss(|block| blocks.contains(&block)).json();
        for block in blocks {
            let space = self.reserve(4).await?;
            self.cache.drop_blocks(space, &self.volume, block..block + 1).await?;
            self.volume.bad.heal(block);
        }
        self.volume.moved.notify();
        tracing::warn!(device = %self.name, %lost, "the loss was accepted");
        Ok(Some(json!({ "lost": lost })))
    }
}
