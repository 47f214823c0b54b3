//! What would move next: the tail that is reclaimed first, and what would become of its blocks now.

use super::Cache;
use super::index::Word;
use super::volume::Volume;
use std::fmt;

/// What would become of a block at the tail of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// It is written to its store, and goes if it is not worth keeping.
    Home,
    /// It is copied to the end of the main log.
    Kept,
    /// It goes: its store has it.
    Forgotten,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Move::Home => "home",
            Move::Kept => "kept",
            Move::Forgotten => "forgotten",
        })
    }
}

impl Cache {
    /// The blocks of a volume that lie in the tail that is reclaimed first, in order, and what would become of them if
    /// space was made now. There is none while nothing has ever left the logs' open segments.
    pub fn next_to_move(&self, volume: &Volume) -> Vec<(u64, Move)> {
        let Some((log, number)) = self.next_tail(&[], |_| true) else { return Vec::new() };
        let fate = |word: Word| match word.is_dirty() {
            true => Move::Home,
            false if self.is_worth(word, log, volume) => Move::Kept,
            false => Move::Forgotten,
        };
        let blocks = self.words_in(number, volume).into_iter().map(|word| (word.block(), fate(word)));
        let mut blocks: Vec<_> = blocks.collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        blocks
    }
}
