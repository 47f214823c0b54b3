//! What a flash has behind the end of a volume: blocks of one that was larger, and notes of the layer above.

use super::format::SEGMENTS_AT;
use super::{Cache, LARGEST, SLOT, Volume};
use std::ops::Range;

/// Blocks that are no volume's, unless it has nearly 4 PiB: what a layer notes there is kept like any clean block.
pub const NOTES: Range<u64> = LARGEST / SLOT as u64 - 64..LARGEST / SLOT as u64;

impl Cache {
    /// True if it has any block of the volume from `first` on but for notes. Looks at every slot.
    pub fn has_beyond(&self, volume: &Volume, first: u64) -> bool {
        let index = self.index.borrow();
        let is_beyond = |slot: u32| {
            let word = index.word(slot);
            let is_note = first <= NOTES.start && NOTES.contains(&word.block());
            word.is_used() && word.volume() == volume.number && word.block() >= first && !is_note
        };
        volume.blocks.get() > 0 && (SEGMENTS_AT..self.shape.slots()).any(is_beyond)
    }
}
