//! Blocks that are wrong on a leg while the rest of it is right: they are copied from the others.
//!
//! A layer `integrity` below refuses to change a part of a corrupt block, since it would have to vouch for
//! the rest. So a leg gets whole blocks here ([`Legs::whole`]), and only those that it cannot read: the
//! others may be newer than the copy.

use super::{Found, Legs, Part, Role, is_away};
use lamina_block::{Buf, Durability, Error, ErrorKind, Io, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::rc::Rc;

/// Bytes that are right or wrong together, unless a logical block is longer.
const BLOCK: u64 = 4096;
/// The most bytes that are copied at once.
const COPY: u64 = 512 << 10;

/// True if a leg answers that its bytes are not those that were written.
pub fn is_corrupt(e: &Error) -> bool {
    e.kind() == ErrorKind::Corrupt
}

impl Legs {
    /// The whole blocks that `at` touches.
    pub fn whole(&self, at: &Range<u64>) -> Range<u64> {
        let block = BLOCK.max(self.block.into());
        at.start / block * block..at.end.next_multiple_of(block).min(self.size().max(at.end))
    }

    /// `at`, cut where blocks begin.
    pub fn pieces(&self, at: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        cut(at, BLOCK.max(self.block.into()))
    }

    /// True if `at` lies in one block.
    pub fn is_piece(&self, at: &Range<u64>) -> bool {
        self.pieces(at).nth(1).is_none()
    }

    /// Leg `leg` failed a read of `at`: copies to it from the others the blocks that it cannot read.
    pub async fn heal(&self, at: &Range<u64>, leg: usize) {
        for piece in self.pieces(&self.whole(at)) {
            let _lock = self.locks.lock(&piece).await;
            self.heal_piece(&piece, leg).await;
        }
    }

    /// As [`Legs::heal`], for one whole block that is locked.
    pub async fn heal_piece(&self, at: &Range<u64>, leg: usize) {
        let (node, content) = (&self.nodes[leg], self.content());
        let Some(content) = content.filter(|_| !self.read_only && self.is_good(leg, at)) else { return };
        let buf = self.env.pool().take((at.end - at.start) as usize);
        let Err(e) = node.submit(Io::read(at.start, buf)).await else { return };
        if is_away(&e) {
            return self.put_out(leg, &e);
        }
        let right = content.right(at.clone(), leg, Vec::new()).await;
        let leg = if flawed("wrong leg healed") { (leg + 1) % self.nodes.len() } else { leg };
        match right {
            Ok(bytes) => {
                self.repair(at, leg, bytes, &format!("healed from the others: {e}")).await;
            }
            Err(others) => {
                self.found(Found::Lost);
                self.note(
                    leg,
                    at,
                    &format!("the block cannot be read ({e}), and the others do not have it: {others}"),
                );
            }
        }
    }

    /// Writes the right bytes to leg `leg` at `at`, which is locked. True if the leg has them now.
    ///
    /// The intent is not marked. If the power fails meanwhile the leg is as wrong as before, and the others,
    /// which had the right bytes, have not changed; a mark would say that legs may differ, and the right ones
    /// might be made like this leg.
    pub async fn repair(&self, at: &Range<u64>, leg: usize, bytes: Buf, why: &str) -> bool {
        if self.read_only {
            return false;
        }
        self.writes(at);
        match self.nodes[leg].submit(Io::write(at.start, bytes, Durability::Cached)).await {
            Ok(()) => {
                self.found(Found::Healed);
                self.note(leg, at, why);
                return true;
            }
            // The leg finds more damage than that, and will say so when it is read.
            Err(e) if is_corrupt(&e) => self.note(leg, at, &format!("could not be healed: {e}")),
            Err(e) => self.put_out(leg, &e),
        }
        false
    }

    /// Copies whole blocks to legs that refused a change of `at` because they find the rest of a block
    /// corrupt; from legs that took the change. [`Legs::whole`] of `at` is locked.
    pub async fn set_right(&self, at: &Range<u64>, parts: &mut [Part]) {
        let failed: Vec<usize> =
            parts.iter().filter(|part| part.result.is_err()).map(|part| part.leg).collect();
        if failed.len() == parts.len() {
            return;
        }
        let whole = self.whole(at);
        for part in parts.iter_mut().filter(|part| part.is_corrupt()) {
            match self.role(part.leg) {
                Role::Sync => match self.copy(&whole, part.leg, &failed).await {
                    Ok(true) => part.result = Ok(()),
                    Ok(false) => {}
                    Err(e) => part.result = Err(e),
                },
                // These bytes are copied with the other stale bytes of the leg.
                Role::Stale | Role::Failed | Role::Spare => {
                    self.mark_stale(part.leg, &whole);
                    part.result = Ok(());
                }
            }
        }
    }

    /// Copies `at` to leg `leg`, durably, without asking the legs in `not`; false if no other leg has it.
    async fn copy(&self, at: &Range<u64>, leg: usize, not: &[usize]) -> Result<bool> {
        let Some(content) = self.content() else { return Ok(false) };
        self.writes(at);
        for part in cut(at, COPY) {
            let right = Rc::clone(&content).right(part.clone(), leg, not.to_vec()).await;
            let Ok(bytes) = right else { return Ok(false) };
            self.nodes[leg].submit(Io::write(part.start, bytes, Durability::Fua)).await?;
        }
        self.found(Found::Healed);
        self.note(leg, at, "healed from the others when a part of it was written");
        Ok(true)
    }
}

/// `at`, cut at multiples of `len`.
pub fn cut(at: &Range<u64>, len: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut from, end) = (at.start, at.end);
    std::iter::from_fn(move || {
        let start = from;
        from = ((start / len + 1) * len).min(end);
        (start < end).then_some(start..from)
    })
}
