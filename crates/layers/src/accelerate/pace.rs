//! When the destager gives way to writes.
//!
//! A store that takes thousands of writes a second costs the core, and the flash that is read for it, so much that a guest
//! notices: 4 KiB writes, one at a time, were a third slower. So while a guest writes, and there is much room for what it
//! writes, the store gets one write at a time; what is written again meanwhile gets there once. As soon as the guest pauses,
//! an eighth of the share is dirty, room is short, or anybody waits for the store, it gets as many as it takes (`depth`).

use super::{Accelerate, Policy};
use lamina_block::Time;
use std::cell::Cell;
use std::time::Duration;

/// A guest that has not written for so long has paused.
const PAUSED: Duration = Duration::from_millis(10);

/// What the pace of the destager follows from.
#[derive(Default)]
pub struct Pace {
    /// When the last write began.
    wrote: Cell<Option<Time>>,
    /// The batch that is under way has given way: it does not say how fast the store is.
    gave_way: Cell<bool>,
}

impl Accelerate {
    /// A write begins.
    pub(super) fn note_pace(&self) {
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

    /// Nobody waits for the store, and there is room for long.
    pub(super) fn has_time(&self) -> bool {
        self.policy.get() == Policy::WriteBack
            && self.waiting.get() == 0
            && !self.closed.get()
            && !self.failure.no_batches.get()
            && !self.log.is_short()
            && !self.log.is_much_dirty(&self.volume)
    }

    /// True if the next write to the store goes alone. A store that goes from moment to moment stays at one as briefly as it can.
    pub(super) fn gives_way(&self) -> bool {
        let now = self.env.now();
        let is_writing = self.pace.wrote.get().is_some_and(|wrote| now.since(wrote) < PAUSED);
        let gives_way = is_writing && self.epochs.is_none() && self.has_time();
        if gives_way {
            self.pace.gave_way.set(true);
            // It is not the store that is late.
            self.volume.batch_since.set(Some(now));
        }
        gives_way
    }
}
