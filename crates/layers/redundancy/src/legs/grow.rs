//! Legs whose devices have become larger: the intent moves to the new ends.
//!
//! ```text
//!   before:  │ 0 ────── size │ i │ own │ ........... what is new ........... │
//!   then:    │ 0 ────── size │ i │ own │ ........................ │ i' │     │    i' is durable
//!   kept:    │ 0 ──────────────────────────────────── size' ───── │ i' │ own │    with the new size: it counts
//! ```
//!
//! Invariant: **at every moment the intent of the recorded size is whole on disk**, so the new bytes begin
//! after the old intent. In the new intent all of the new bytes count as written: whatever lies there, after
//! a crash it is made the same on all legs. The layer's own bytes after the intent do not move: they mean
//! nothing while all legs are in sync.
//!
//! If it is not known whether the new size is recorded, the larger device goes on, and no write passes until
//! it is: a state that is not durable is handled the same everywhere here ([`Legs::record`]).

use super::build::{ZERO_MAX, usable};
use super::{Legs, Role};
use lamina_block::{Bytes, Error, ErrorKind, Io, Result, Zero};
use lamina_kit::flaw::flawed;
use lamina_kit::intent::{Area, Intent};
use serde_json::Value;
use std::ops::Range;
use std::rc::Rc;

impl Legs {
    /// Uses the space by which all devices have grown, if that is enough for anything. The device is quiesced
    /// and flushed.
    pub(super) async fn grow(&self) -> Result<Value> {
        self.can_grow()?;
        // The bytes of an earlier journal may be overwritten from now on.
        self.record().await?;
        let (before, size) = (self.size(), self.larger());
        let next = match size > before {
            true => self.intent.longer(size)?,
            false => return Ok(self.info()),
        };
        let start = self.intent_start(size);
        if start < self.tail() {
            return Ok(self.info());
        }
        self.fits(start + next.area() + self.tail)?;
        let new = before..size;
        let lock = self.locks.lock(&new).await;
        self.write_intent(&next, start).await?;
        self.can_grow()?;
        self.intent.grow(next, || self.change(|state| state.become_larger(size, start))).await;
        tracing::info!(device = %self.name, before, size, "the device has become larger");
        self.changed();
        self.record().await?;
        self.zero_new(&new).await;
        drop(lock);
        self.record().await?;
        Ok(self.info())
    }

    /// Ends a [`Legs::grow`] that a crash interrupted. No client writes to the new bytes until that is done.
    pub async fn finish_growing(&self) -> Result<()> {
        let may = !self.read_only && !flawed("zeroing is not taken up again");
        let Some(new) = self.ask(|state| state.to_zero()).filter(|_| may) else { return Ok(()) };
        let lock = self.locks.lock(&new).await;
        self.zero_new(&new).await;
        drop(lock);
        self.record().await
    }

    /// Fails unless every leg is there and in sync. Then the old places are not needed: no journal counts.
    fn can_grow(&self) -> Result<()> {
        for (leg, node) in self.nodes.iter().enumerate() {
            let name = node.name();
            let message = match self.role(leg) {
                _ if node.is_absent() => format!("{name} is not there"),
                Role::Sync | Role::Spare => continue,
                Role::Stale => {
                    format!("{name} is out of sync: wait for its rebuild, or let it fail and take it out")
                }
                Role::Failed => {
                    format!("{name} has failed: let it rejoin and be rebuilt, or take it out")
                }
            };
            return Err(Error::invalid(message));
        }
        match self.is_degraded() {
            true => {
                Err(Error::invalid("one of its devices is missing: let another one take its place first"))
            }
            false => Ok(()),
        }
    }

    /// The size that the devices allow now.
    fn larger(&self) -> u64 {
        let smallest = self.nodes.iter().map(|node| node.geometry().size).min().unwrap_or(0);
        usable(smallest, self.tail, u64::from(self.block).max(4096).max(self.unit))
    }

    /// Where the intent begins after `size` bytes.
    pub(super) fn intent_start(&self, size: u64) -> u64 {
        size.next_multiple_of(u64::from(self.block).max(4096))
    }

    fn fits(&self, end: u64) -> Result<()> {
        match self.nodes.iter().find(|node| node.geometry().size < end) {
            None => Ok(()),
            Some(node) => Err(Error::new(
                ErrorKind::NoSpace,
                format!("{} has no room for the intent: {}", node.name(), Bytes(end)),
            )),
        }
    }

    /// Writes all of `next` at byte `start` of every leg, durably.
    async fn write_intent(&self, next: &Intent, start: u64) -> Result<()> {
        for leg in self.targets() {
            next.write_all(&Area(Rc::clone(&self.nodes[leg]), start)).await?;
        }
        Ok(())
    }

    /// Zeroes the new bytes, if that can be done at once. They are locked, and clients wait until the state
    /// is recorded.
    async fn zero_new(&self, new: &Range<u64>) {
        if let Err(e) = self.zero_all(new).await {
            tracing::info!(device = %self.name, error = %e, "the new bytes are not zeroed: they are made the \
                same on all legs");
        }
        self.change(|state| state.set_to_zero(None));
        self.changed();
    }

    /// Zeroes `new` on all legs, if all of them can at once; then nothing is left to do.
    async fn zero_all(&self, new: &Range<u64>) -> Result<()> {
        let how = Zero { unmap: true, fast: true, ..Zero::default() };
        self.writes(new);
        for leg in self.targets().collect::<Vec<_>>() {
            for start in (new.start..new.end).step_by(ZERO_MAX as usize) {
                let at = start..new.end.min(start + ZERO_MAX);
                self.nodes[leg].submit(Io::zero(at, how)).await?;
            }
        }
        self.flush().await?;
        self.resynced(new);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
