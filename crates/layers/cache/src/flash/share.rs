//! The part of the flash that a volume has beside the others: what its key says, or by its weight.

use super::volume::Volume;
use super::{Cache, SLOT};
use std::rc::Rc;

impl Cache {
    /// Blocks of the flash that are a volume's share.
    pub fn share(&self, volume: &Volume) -> u64 {
        self.part_of(volume, self.capacity_for_data())
    }

    /// The part of `all` that is a volume's share.
    pub(super) fn part_of(&self, volume: &Volume, all: u64) -> u64 {
        let volumes = self.volumes.borrow();
        let weight = |volume: &Volume| u64::from(volume.weight.get());
        let (mut given, mut weights) = (0, 0);
        for open in volumes.iter().flatten().filter(|volume| volume.is_open.get()) {
            match open.share.get() {
                Some(share) => given += u64::from(share),
                None => weights += weight(open),
            }
        }
        let (part, of) = match volume.share.get() {
            Some(share) => (u64::from(share), 1),
            None => (1000u64.saturating_sub(given) * weight(volume), weights.max(weight(volume))),
        };
        // More than all is given: everybody gets less.
        all * part / of / given.max(1000)
    }

    /// Blocks that the flash has space for, if batches are not small.
    pub fn capacity_for_data(&self) -> u64 {
        u64::from(self.shape.segments.saturating_sub(self.low_water() as u32))
            * u64::from(self.shape.batch_slots())
    }

    /// Bytes of the flash that hold nothing which a store lacks.
    pub fn room(&self) -> u64 {
        let dirty: u64 = self.volumes.borrow().iter().flatten().map(|volume| volume.dirty.get()).sum();
        self.capacity_for_data().saturating_sub(dirty) * SLOT as u64
    }

    /// True if others have more than their share, and this one has not.
    pub(super) fn is_owed(&self, volume: &Volume) -> bool {
        let others: Vec<_> = self
            .volumes
            .borrow()
            .iter()
            .flatten()
            .filter(|other| other.number != volume.number)
            .cloned()
            .collect();
        let is_beyond = |other: &Rc<Volume>| other.is_open.get() && other.blocks.get() > self.share(other);
        volume.is_open.get() && volume.blocks.get() <= self.share(volume) && others.iter().any(is_beyond)
    }
}
