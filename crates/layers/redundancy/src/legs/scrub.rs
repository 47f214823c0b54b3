//! Comparing the bytes of all legs, while requests go on. Damage is counted in `findings.rs`.
//!
//! A chunk is locked, read from all legs and compared. A range that a leg cannot read is written again from
//! the others; a difference is repaired only if it is known which leg is right. The position is recorded now
//! and then: a scrub goes on after a restart.

use super::Legs;
use lamina_block::{ErrorKind, Job, Result};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

/// Bytes that are compared at once: a region of the intent, within these bounds.
const CHUNK: RangeInclusive<u64> = 16 << 10..=256 << 10;
/// The position is recorded so often.
const KEEP_EVERY: Duration = Duration::from_secs(10);
impl Legs {
    /// Begins a scrub, or goes on where it was interrupted.
    pub(super) fn start_scrub(self: &Rc<Self>, trust: Option<usize>) {
        let may = self.scrub.borrow().is_none() && !self.is_closing();
        let Some(content) = self.content().filter(|_| may) else { return };
        let from = self.change(|state| state.findings.begin());
        let job = Job::new(&self.env, "scrub", self.size(), None);
        job.set_progress(from, self.size());
        self.scrub.replace(Some(Rc::clone(&job)));
        let me = Rc::clone(self);
        self.tasks.spawn(&*self.env, async move {
            while let Err(e) = me.scrub(&content, &job, trust).await {
                if me.is_closing() {
                    break;
                }
                if e.kind() == ErrorKind::Cancelled {
                    me.change(|state| state.findings.cancel());
                    me.changed();
                    break;
                }
                tracing::warn!(device = %me.name, error = %e, "a scrub is paused");
                job.fail(&e);
                let _ = job.turn(0).await;
            }
            me.scrub.replace(None);
            me.moved.notify();
        });
    }

    async fn scrub(&self, content: &Rc<dyn super::Content>, job: &Job, trust: Option<usize>) -> Result<()> {
        let chunk = self.intent.shape().region.clamp(*CHUNK.start(), *CHUNK.end());
        let mut kept = self.env.now();
        let position = || self.ask(|state| state.findings.position()).filter(|from| *from < self.size());
        while let Some(from) = position() {
            let at = from..(from + chunk).min(self.size());
            job.turn(at.end - at.start).await?;
            let before = self.env.now();
            let lock = self.locks.lock(&at).await;
            Rc::clone(content).compare(at.clone(), trust).await?;
            drop(lock);
            self.change(|state| state.findings.advance(at.end));
            job.set_progress(at.end, self.size());
            if self.is_asked() {
                self.env.sleep(self.env.now().since(before)).await;
            }
            if self.env.now().since(kept) >= KEEP_EVERY {
                kept = self.env.now();
                self.recording.change();
                self.record().await?;
            }
        }
        let [healed, different, lost] = self.change(|state| state.findings.end());
        self.changed();
        let [healed_total, different_total, lost_total] = self.ask(|state| state.findings.counts());
        tracing::info!(
            device = %self.name, healed, different, lost, healed_total, different_total, lost_total,
            "a scrub has ended; totals are since the device was opened"
        );
        self.record().await
    }
}
