//! What a flash has of a volume that was larger.

use super::format::SEGMENTS_AT;
use super::{Cache, Volume};

impl Cache {
    /// True if it has any block of the volume from `first` on. Looks at every slot.
    pub fn has_beyond(&self, volume: &Volume, first: u64) -> bool {
        let index = self.index.borrow();
        let is_beyond = |slot: u32| {
            let word = index.word(slot);
            word.is_used() && word.volume() == volume.number && word.block() >= first
        };
        volume.blocks.get() > 0 && (SEGMENTS_AT..self.shape.slots()).any(is_beyond)
    }
}
