//! Stores that are late: their volumes' dirty blocks go from the tail of a log to its end, and have a limit,
//! so that no store stops another volume.
//!
//! ```text
//!      tail  ▣▢◆▢  ▣▣…  …▣  end        ◆ dirty, of a store that is late
//!              └──────────▶ ◆          ▢ forgotten, as in any tail
//! ```
//!
//! A copy is the same version at another place, with the same serial number: after a crash it does not matter
//! which is found. Where a batch on its way has it, it is known by its word in the index, which says so and
//! is copied with it.

use super::Cache;
use super::format::SLOT;
use super::reclaim::{Leaves, Run};
use super::space::Space;
use super::volume::Volume;
use lamina_block::{Buf, ErrorKind};
use std::rc::Rc;

impl Cache {
    /// Frees a tail, what is dirty of which goes to the end of its log.
    pub(super) async fn rotate(self: &Rc<Cache>, (log, number): (u8, u32)) {
        let emptied = self.empty_segment(log, number, Leaves::Late).await;
        let freed = match emptied {
            Ok(()) => self.free(vec![(log, number)]).await,
            failed => failed,
        };
        self.change_space(Space::rotated);
        if let Err(e) = freed {
            tracing::debug!(flash = %self.name, error = %e, "a segment cannot be freed; it is tried again");
            self.strike().await;
        }
    }

    /// The tail that goes next though it has something dirty, as all its stores are late; none if nothing
    /// else is there.
    pub(super) fn late_tail(&self) -> Option<(u8, u32)> {
        let dirty: u64 = self.volumes.borrow().iter().flatten().map(|volume| volume.dirty.get()).sum();
        if !self.is_urgent() || !self.health.borrow().works() || dirty > self.capacity_for_dirty() {
            return None;
        }
        let (segments, live) = {
            let segments = self.segments.borrow();
            (segments.logs.iter().map(|log| log.len()).sum(), segments.live.iter().sum())
        };
        if !self.change_space(|space| space.may_rotate([dirty, live], segments)) {
            return None;
        }
        self.next_tail(&[], |number| self.is_late(number))
    }

    /// True if all stores are late that lack something of a segment.
    fn is_late(&self, number: u32) -> bool {
        let (index, volumes, now) = (self.index.borrow(), self.volumes.borrow(), self.env.now());
        let mut words = self.shape.segment(number).map(|slot| index.word(slot));
        words.all(|word| {
            let volume = || volumes.get(usize::from(word.volume())).and_then(Option::as_ref);
            !word.is_dirty() || volume().is_none_or(|volume| volume.is_late(now))
        })
    }

    /// Reads dirty blocks one by one. One that batches could not read either is lost, and that is what is
    /// copied: otherwise it would keep its segment for ever, and with it all behind that.
    pub(super) async fn read_alone(&self, run: &Run, copies: &mut Vec<(Run, Buf)>) {
        for i in 0..run.count {
            let (slot, block) = (run.slot + i, run.block + u64::from(i));
            let volume = Rc::clone(&run.volume);
            let may_go = !volume.is_open.get() || volume.bad.has(block);
            let one = Run { volume, slot, block, count: 1, written: run.written.clone(), ..*run };
            match self.read_slot(slot, std::slice::from_ref(&run.written)).await {
                Ok(data) => copies.push((one, data)),
                Err(e) if e.kind() == ErrorKind::Media && may_go => {
                    copies.push((Run { is_lost: true, ..one }, Buf::zeroed(SLOT)));
                }
                Err(e) => {
                    tracing::warn!(flash = %self.name, error = %e, "a block cannot be read, nor copied")
                }
            }
        }
    }

    /// Blocks of a volume that may be dirty: so many that its neighbours have space whatever becomes of its store.
    pub fn dirty_share(&self, volume: &Volume) -> u64 {
        let volumes = self.volumes.borrow();
        let unopened = volumes.iter().flatten().filter(|volume| !volume.is_open.get());
        let kept: u64 = unopened.map(|volume| volume.dirty.get()).sum();
        drop(volumes);
        self.part_of(volume, self.capacity_for_dirty().saturating_sub(kept)).max(self.chunk())
    }

    /// Blocks that there is space for when they are copied again and again: with heads, and what is left at the ends of
    /// segments.
    fn capacity_for_dirty(&self) -> u64 {
        let segments = u64::from(self.shape.segments.saturating_sub(self.low_water() as u32));
        let slots = segments * u64::from(self.shape.batch_slots()).saturating_sub(2);
        let run = self.space.borrow().run();
        slots * run / (run + 1)
    }
}
