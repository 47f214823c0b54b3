//! Flash that is mapped by whole blocks: what a write costs that does not go on where one before it ended.
//!
//! ```text
//!      write ─▶ the log block of its block ─▶ full, in order: it becomes the block, and the old one is erased
//!                     │                       full, or another block needs the place: merged, a copy of a block
//!                     └ there are so many; the one that was written least lately gives way
//! ```
//!
//! A map of whole blocks is small, so that early drives had no other (Kim and others, "A space-efficient flash
//! translation layer", IEEE Transactions on Consumer Electronics 48, 2002). Sequential writes cost such a drive
//! nothing but an erase for each block, random ones a copy of a block each.

use crate::check::{Checked, ms, within};
use crate::machine::{MS, Nanos, US};
use crate::{SECTOR, Ssd};
use lamina_block::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Keys of a drive that maps flash by whole blocks.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BlockMap {
    /// What the map counts in, over all dies: from one page to 1GiB.
    pub block: Bytes,
    /// How many log blocks there are, 1..=4096: so many streams are written side by side without a merge.
    pub log_blocks: u32,
    /// Erasing a block, in milliseconds, 0..=10000.
    pub erase_ms: f64,
}

impl BlockMap {
    pub(super) fn check(&self, page: Bytes) -> Checked {
        within("ssd.block-map.block", self.block, page..=Bytes(1 << 30))?;
        within("ssd.block-map.log-blocks", self.log_blocks, 1..=4096)?;
        ms("ssd.block-map.erase-ms", self.erase_ms)
    }
}

/// A block with a log block.
#[derive(Clone, Copy, Debug)]
struct Open {
    block: u64,
    /// Bytes that were written, and whether that was from the begin of the block on, in order.
    written: u64,
    is_in_order: bool,
}

/// The log blocks.
pub(super) struct LogBlocks {
    size: u64,
    most: usize,
    /// What copying a byte of a block takes, and erasing a block.
    per_byte: Nanos,
    erase: Nanos,
    /// The one that was written last is the last.
    open: VecDeque<Open>,
}

impl LogBlocks {
    pub fn new(keys: &BlockMap, model: &Ssd) -> LogBlocks {
        let page = (model.read_us + model.program_us) * US;
        LogBlocks {
            size: keys.block.0,
            most: keys.log_blocks as usize,
            per_byte: page / (model.page.0 as f64 * f64::from(model.dies)),
            erase: keys.erase_ms * MS,
            open: VecDeque::new(),
        }
    }

    /// What a write of `bytes` from sector `lbn` on takes all dies besides its own pages.
    pub fn write(&mut self, lbn: u64, bytes: u64) -> Nanos {
        let start = u128::from(lbn) * u128::from(SECTOR);
        let (size, end) = (u128::from(self.size), start + u128::from(bytes));
        let (mut at, mut cost) = (start, 0.0);
        while at < end {
            let block = at / size;
            let until = end.min((block + 1) * size);
            // Sectors of 512 bytes: the number of a block is not greater than that of a sector.
            cost += self.write_in(block as u64, (at - block * size) as u64, (until - at) as u64);
            at = until;
        }
        cost
    }

    /// A write within a block.
    fn write_in(&mut self, block: u64, from: u64, bytes: u64) -> Nanos {
        let known = self.open.iter().position(|open| open.block == block);
        let known = known.and_then(|index| self.open.remove(index));
        let mut cost = 0.0;
        let mut open = known.unwrap_or(Open { block, written: 0, is_in_order: true });
        if known.is_none() && self.open.len() >= self.most {
            cost += self.open.pop_front().map_or(0.0, |oldest| self.merge(&oldest));
        }
        if open.written + bytes > self.size {
            cost += self.merge(&open);
            open = Open { block, written: 0, is_in_order: true };
        }
        open.is_in_order &= from == open.written;
        open.written += bytes;
        if open.written == self.size && open.is_in_order {
            return cost + self.erase;
        }
        self.open.push_back(open);
        cost
    }

    /// What it takes to make one block of a block and its log block.
    fn merge(&self, open: &Open) -> Nanos {
        let (copied, erased) = match open.is_in_order {
            true => (self.size - open.written, 1.0),
            false => (self.size, 2.0),
        };
        copied as f64 * self.per_byte + erased * self.erase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 4 pages of 4 KiB, copied at 1 us a byte; an erase takes 1 ms.
    fn blocks(log_blocks: u32) -> LogBlocks {
        let keys = BlockMap { block: Bytes(16_384), log_blocks, erase_ms: 1.0 };
        let model = Ssd { read_us: 96.0, program_us: 4000.0, ..Ssd::default() };
        LogBlocks::new(&keys, &model)
    }

    fn costs(mut of: LogBlocks, writes: &[(u64, u64)]) -> Vec<f64> {
        writes.iter().map(|(page, pages)| of.write(page * 8, pages * 4096) / MS).collect()
    }

    #[test]
    fn what_is_written_in_order_costs_an_erase_for_each_block() {
        assert_eq!(costs(blocks(1), &[(0, 1), (1, 2), (3, 1), (4, 8)]), [0.0, 0.0, 1.0, 2.0]);
        assert_eq!(costs(blocks(2), &[(0, 2), (8, 2), (2, 2), (10, 2)]), [0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn what_is_not_costs_a_copy() {
        // One page of four had been written in order: three are copied.
        assert_eq!(costs(blocks(1), &[(0, 1), (8, 1)]), [0.0, 3.0 * 4.096 + 1.0]);
        // Out of order: all four are, and two blocks are erased.
        assert_eq!(costs(blocks(1), &[(1, 1), (8, 1)]), [0.0, 4.0 * 4.096 + 2.0]);
        // A block that is written more often than it has pages.
        let again = costs(blocks(4), &[(1, 1), (1, 1), (1, 1), (1, 1), (1, 1)]);
        assert_eq!(again, [0.0, 0.0, 0.0, 0.0, 4.0 * 4.096 + 2.0]);
    }
}
