//! Legs whose devices have become larger: the intent moves to the new ends.
//!
//! ```text
//!   before:  │ 0 ────── size │ i │ own │ ........... what is new ........... │
//!   then:    │ 0 ────── size │ i │ own │ ........................ │ i' │     │    i' is durable
//!   kept:    │ 0 ──────────────────────────────────── size' ───── │ i' │ own │    with the new size: it counts
//! ```
//!
//! Invariant: **at every moment the intent of the size that is kept is whole on disk**, so what is new begins behind the old
//! intent. In the new one all of what is new counts as written: whatever lies there, a crash leaves nothing that is not made
//! the same on all legs. What the layer has behind the intent does not move: it means nothing while no leg lacks anything.
//!
//! If it is not known whether the new size is kept, the larger device goes on, and no write passes until it is: a state that
//! is not durable is the same everywhere here ([`Legs::record`]).

use super::build::{ZERO_MAX, usable};
use super::{Legs, Role};
use lamina_block::{Bytes, Error, ErrorKind, Io, Result, Zero};
use lamina_kit::flaw::flawed;
use lamina_kit::intent::{Area, Intent};
use serde_json::Value;
use std::ops::Range;
use std::rc::Rc;

impl Legs {
    /// Uses what all devices have become larger by, if that is enough for anything. The device is held and flushed.
    pub(super) async fn grow(&self) -> Result<Value> {
        self.can_grow()?;
        // What was a journal a moment ago may be written over from now on.
        self.record().await?;
        let (before, size) = (self.size(), self.larger());
        let next = match size > before {
            true => self.intent.longer(size)?,
            false => return Ok(self.info()),
        };
        let start = self.behind(size);
        if start < self.tail() {
            return Ok(self.info());
        }
        self.fits(start + next.area() + self.tail)?;
        let new = before..size;
        let lock = self.locks.lock(&new).await;
        self.write_intent(&next, start).await?;
        self.can_grow()?;
        self.intent.grow(next, || self.change(|state| state.become_larger(size, start))).await;
        tracing::info!(device = %self.name, before, size, "it has become larger");
        self.changed();
        self.record().await?;
        self.zero_new(&new).await;
        drop(lock);
        self.record().await?;
        Ok(self.info())
    }

    /// Does what is left of [`Legs::grow`] after a crash. Nobody has written to what is new until it is done.
    pub async fn finish_growing(&self) -> Result<()> {
        let may = !self.read_only && !flawed("zeroing is not taken up again");
        let Some(new) = self.ask(|state| state.to_zero()).filter(|_| may) else { return Ok(()) };
        let lock = self.locks.lock(&new).await;
        self.zero_new(&new).await;
        drop(lock);
        self.record().await
    }

    /// Fails unless every leg is there and has every byte. So what is in the old places is not needed: no journal counts.
    fn can_grow(&self) -> Result<()> {
        for (leg, node) in self.nodes.iter().enumerate() {
            let name = node.name();
            let message = match self.role(leg) {
                _ if node.is_absent() => format!("{name} is not there"),
                Role::Sync | Role::Spare => continue,
                Role::Behind => {
                    format!("{name} lacks bytes: wait until it has them, or let it fail and take it away")
                }
                Role::Failed => {
                    format!("{name} has failed: let it rejoin and get what it lacks, or take it away")
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

    /// Where the intent lies behind `size` bytes.
    pub(super) fn behind(&self, size: u64) -> u64 {
        size.next_multiple_of(u64::from(self.block).max(4096))
    }

    fn fits(&self, end: u64) -> Result<()> {
        match self.nodes.iter().find(|node| node.geometry().size < end) {
            None => Ok(()),
            Some(node) => Err(Error::new(
                ErrorKind::NoSpace,
                format!("{} has no room for what is remembered: {}", node.name(), Bytes(end)),
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

    /// Zeroes what is new, if that can be done at once. It is locked, and its clients wait until the state is kept.
    async fn zero_new(&self, new: &Range<u64>) {
        if let Err(e) = self.zero_all(new).await {
            tracing::info!(device = %self.name, error = %e, "what is new is not zeroed: it is made the same everywhere");
        }
        self.change(|state| state.set_to_zero(None));
        self.changed();
    }

    /// Zeroes `new` on all legs, if all of them can at once; then there is nothing left to be done about it.
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
