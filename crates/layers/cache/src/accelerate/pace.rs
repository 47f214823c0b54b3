//! When the destager gives way to writes.
//!
//! A store that takes thousands of writes a second costs the core, and the flash that is read for it, so much
//! that a guest notices that writes as soon as the write before is there: 4 KiB writes were a third slower.
//! So while a guest writes one block after the other, at once, and there is much space for what it writes, the
//! store gets one write at a time; what is written again meanwhile gets there once. As soon as the guest
//! pauses or has several writes in flight, an eighth of the share is dirty, space is short, or anybody waits
//! for the store, it gets as many as it takes (`depth`).

use super::policy::Destage;
use super::{Accelerate, Policy};
use lamina_block::Time;
use std::cell::Cell;
use std::time::Duration;

/// A guest that lets so long go by between two writes does not wait for the first one.
const PAUSE: Duration = Duration::from_micros(500);
/// A guest that has done so for so long goes on to do so.
const STEADY: Duration = Duration::from_millis(10);

/// What the pace of the destager follows from.
#[derive(Default)]
pub struct Pace {
    /// When the last write was on the flash.
    wrote: Cell<Option<Time>>,
    /// Since when each write has begun as soon as the one before was on the flash, and no sooner.
    since: Cell<Option<Time>>,
    /// The batch that is under way has given way: it does not say how fast the store is.
    gave_way: Cell<bool>,
}

impl Accelerate {
    /// A write begins.
    pub(super) fn begin_write(&self) {
        let now = self.env.now();
        let at_once = self.pace.wrote.get().is_some_and(|wrote| now.since(wrote) < PAUSE);
        if self.volume.putting.get() > 0 || !at_once {
            self.pace.since.set(Some(now));
        }
    }

    /// A write is on the flash.
    pub(super) fn end_write(&self) {
        self.pace.wrote.set(Some(self.env.now()));
    }

    /// A batch begins.
    pub(super) fn full_pace(&self) {
        self.pace.gave_way.set(false);
    }

    /// True if the batch has been as fast as the store since it began.
    pub(super) fn was_full_pace(&self) -> bool {
        !self.pace.gave_way.get()
    }

    /// Nobody waits for the store, and there is space for long.
    pub(super) fn has_time(&self) -> bool {
        self.policy.get() == Policy::WriteBack
            && self.waiting.get() == 0
            && !self.closed.get()
            && self.failure.no_batches.get() == 0
            && !self.cache.is_short()
            && !self.cache.is_much_dirty(&self.volume)
    }

    /// True if what is dirty stays on the flash until its space is needed.
    pub(super) fn is_lazy(&self) -> bool {
        self.keys.destage == Destage::Late
            && self.policy.get() == Policy::WriteBack
            && self.waiting.get() == 0
            && self.epochs.is_none()
            && self.volume.bad.is_empty()
            && !self.closed.get()
            && self.failure.no_batches.get() == 0
            // It goes on when a batch has ended well.
            && self.failure.stopped().is_none()
            && !self.cache.is_much_dirty(&self.volume)
    }

    /// True if the next write to the store goes alone. A store that goes from moment to moment stays at one
    /// as briefly as it can.
    pub(super) fn gives_way(&self) -> bool {
        let now = self.env.now();
        let is_writing = self.volume.putting.get() > 0
            || self.pace.wrote.get().is_some_and(|wrote| now.since(wrote) < PAUSE);
        let is_steady = self.pace.since.get().is_some_and(|since| now.since(since) >= STEADY);
        let gives_way = is_writing && is_steady && self.epochs.is_none() && self.has_time();
        if gives_way {
            self.pace.gave_way.set(true);
            // It is not the store that is late.
            self.volume.batch_since.set(Some(now));
        }
        gives_way
    }
}
