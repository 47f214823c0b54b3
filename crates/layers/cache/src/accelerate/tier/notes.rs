//! The notes of a tier's monitor: on the flash, as blocks that no volume has.
//!
//! ```text
//!      blocks of the volume          none         notes, 64 at most
//!      0 ─────────────── size ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ 2^40 - 65 ── 2^40 - 1
//! ```
//!
//! For the flash a note is a clean block like any other: its log makes the note whole, a later note takes its place,
//! and the note goes when its space is needed. A flash that has no notes, cannot read them or takes none leaves the
//! monitor cold, and is never an error. Notes are written some minutes after something was used, and when the device is
//! closed, so that a tier that nobody uses writes nothing.

use crate::accelerate::{Accelerate, Policy};
use crate::flash::{NOTES, SLOT};
use crate::tier::Heat;
use futures_util::future::select;
use lamina_block::Buf;
use std::pin::pin;
use std::time::Duration;

/// How long after a use that is in no note there is one: what a crash forgets of the monitor.
const EVERY: Duration = Duration::from_secs(300);
/// Notes take so large a part of the volume's share at most, as a divisor.
const PART: u64 = 128;

impl Accelerate {
    /// Something was used: what is known is noted in a while.
    pub(in crate::accelerate) fn note_soon(&self, heat: &Heat) {
        if !heat.begins_to_note() {
            return;
        }
        self.spawn(|me| async move {
            select(me.env.sleep(EVERY), pin!(me.moved.until(|| me.closed.get()))).await;
            if let Some(heat) = &me.heat {
                me.write_notes(heat).await;
                heat.ends_to_note();
            }
        });
    }

    /// True if what the flash has of the volume counts, and the volume does not reach as far as notes do.
    fn has_notes(&self) -> bool {
        self.volume.is_somewhere()
            && self.policy.get() != Policy::Uncached
            && !self.is_detached()
            && self.failure.stopped().is_none()
            && self.whole_bytes() / SLOT as u64 <= NOTES.start
    }

    /// So that the notes of another volume are none of this one.
    fn notes_key(&self) -> u64 {
        self.volume.uuid.get() as u64
    }

    /// Writes what is known now, as far as there is space.
    async fn write_notes(&self, heat: &Heat) {
        if !self.has_notes() || !self.cache.can_fill() {
            return;
        }
        let most = (self.cache.share(&self.volume) / PART).clamp(1, NOTES.end - NOTES.start);
        let pages = Buf::from_vec(heat.pages(most as usize, self.notes_key()));
        let _hurry = self.cache.hurry();
        let longest = self.longest() as usize * SLOT;
        for start in (0..pages.len()).step_by(longest) {
            let part = pages.slice(start..pages.len().min(start + longest));
            let first = NOTES.start + (start / SLOT) as u64;
            let Ok(noted) = self.cache.fill(&self.volume, first, &part).await else { return };
            self.volume.budget.borrow_mut().charge(noted * SLOT as u64, self.env.now());
        }
    }

    /// The monitor knows what was noted, as far as that can be read.
    pub(super) async fn recall(&self, heat: &Heat) {
        if !self.has_notes() || self.cache.check_reads().is_err() {
            return;
        }
        let mut pages = Vec::new();
        for run in self.cache.runs(&self.volume, NOTES) {
            let len = (run.blocks.end - run.blocks.start) as usize * SLOT;
            let into = self.env.pool().take(len);
            if let Some(slot) = run.slot
                && self.cache.read(slot, 0..len as u64, into.clone()).await.is_ok()
            {
                pages.extend(into.to_vec());
            }
        }
        heat.recall(&pages, self.notes_key());
    }
}
