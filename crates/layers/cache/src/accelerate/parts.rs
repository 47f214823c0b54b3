//! Blocks of which the flash has some sectors, and only the store the others: a small write is acknowledged without a
//! read of the store.
//!
//! ```text
//!      block    ▣ ▣ · · · ▣ · ·       ▣ on the flash       · on the store alone: *absent*
//!      read       └───────┘           the store, and what the flash has laid over that
//!      batch    ───       ─           the sectors that the flash has, in two writes
//! ```
//!
//! A block that the flash has in part goes to the store as any other, and leaves the flash with the tail of its log:
//! the next read brings the whole block. A store of kind `redo` gets whole blocks.

use super::failure::{SideError, SideResult};
use super::{Accelerate, add};
use crate::flash::{Dirty, Pin, Run, SLOT};
use lamina_block::Buf;
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

/// Bytes of a sector, the smallest write there is.
const SECTOR: u64 = 512;
/// Sectors of a block.
const SECTORS: u64 = SLOT as u64 / SECTOR;

/// The sectors of a block that `at` touches, a bit each.
pub fn sectors(block: u64, at: &Range<u64>) -> u8 {
    let start = block * SLOT as u64;
    let first = at.start.saturating_sub(start) / SECTOR;
    let end = at.end.saturating_sub(start).div_ceil(SECTOR).min(SECTORS);
    (first..end).fold(0, |mask, sector| mask | 1 << sector)
}

/// Sectors that are there, side by side, as bytes of the block.
fn present(absent: u8) -> impl Iterator<Item = Range<u64>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let is_there = |sector: u64| absent & 1 << sector == 0;
        let first = (at..SECTORS).find(|sector| is_there(*sector))?;
        at = (first..SECTORS).find(|sector| !is_there(*sector)).unwrap_or(SECTORS);
        Some(first * SECTOR..at * SECTOR)
    })
}

/// Runs of blocks that are put alike, where sectors of the first and of the last may be absent: such a block is a run
/// by itself.
pub fn runs(blocks: &Range<u64>, [first, last]: [u8; 2]) -> impl Iterator<Item = (Range<u64>, u8)> {
    let (from, to) = (blocks.start + u64::from(first != 0), blocks.end - u64::from(last != 0));
    let runs = [(blocks.start..from, first), (from..to, 0), (to..blocks.end, last)];
    runs.into_iter().filter(|(blocks, _)| !blocks.is_empty())
}

/// What a run of blocks has for the store: bytes of the device that lie side by side, with their data.
fn pieces(run: &[(Dirty, Buf)]) -> Vec<(Range<u64>, Buf)> {
    let mut pieces: Vec<(Range<u64>, Buf)> = Vec::with_capacity(1);
    for (dirty, data) in run {
        let start = dirty.block * SLOT as u64;
        for part in present(dirty.absent) {
            let bytes = data.slice(part.start as usize..part.end as usize);
            match pieces.last_mut() {
                Some((at, data)) if at.end == start + part.start => {
                    at.end = start + part.end;
                    data.append(bytes);
                }
                Some(_) | None => pieces.push((start + part.start..start + part.end, bytes)),
            }
        }
    }
    pieces
}

impl Accelerate {
    /// Reads into `block` what a write of `at` leaves as it is; gives the sectors that only the store has.
    pub(super) async fn rest_of(&self, number: u64, at: &Range<u64>, block: &Buf) -> SideResult<u8> {
        let left = !sectors(number, at);
        match self.cache.runs(&self.volume, number..number + 1)[0] {
            Run { slot: None, .. } if self.cache.takes_parts() && self.epochs.is_none() => return Ok(left),
            Run { slot: Some(_), absent, .. } if self.read_compared(number, block).await => {
                return Ok(absent & left);
            }
            Run { .. } => {}
        }
        let bytes = self.bytes(&(number..number + 1));
        let len = (bytes.end - bytes.start) as usize;
        self.read_now(bytes, block.slice(0..len)).await.map(|()| 0)
    }

    /// Reads a part of a block of which sectors are absent: the store, and what the flash has laid over that.
    pub(super) async fn read_mixed(
        &self,
        run: &Run,
        slot: u32,
        pin: Option<Pin>,
        part: Range<u64>,
        into: Buf,
    ) -> SideResult<()> {
        let _pin = pin.or_else(|| self.cache.pin_run(run));
        self.count_miss(1);
        self.read_store(part.clone(), into.clone()).await?;
        let start = run.blocks.start * SLOT as u64;
        for there in present(run.absent) {
            let (from, to) = (part.start.max(start + there.start), part.end.min(start + there.end));
            if from >= to {
                continue;
            }
            let place = into.slice((from - part.start) as usize..(to - part.start) as usize);
            let read = match self.cache.check_reads() {
                Ok(()) => self.cache.read(slot, from - start..to - start, place).await,
                failed => failed,
            };
            match read {
                Ok(()) => {}
                Err(e) if e.is_of_memory() => return Err(SideError::Store(e)),
                Err(e) if self.is_only_copy(run) => return Err(self.of_only_copy(e)),
                // The store has these sectors, too, and they have been read from there.
                Err(_) => add(&self.tally.unreadable, 1),
            }
        }
        Ok(())
    }

    /// Writes blocks to the store that lie side by side, as far as the flash has them.
    pub(super) async fn write_blocks(
        &self,
        run: &[(Dirty, Buf)],
        slowest: &Cell<Duration>,
    ) -> SideResult<()> {
        for (at, data) in pieces(run) {
            self.write_store(at, data, slowest).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_of_a_block_are_bits() {
        let base = 7 * SLOT as u64;
        let rows = [(0..4096, 0xFF), (0..512, 1), (512..1536, 0b110), (3584..9000, 0x80), (4096..8192, 0)];
        for (at, expected) in rows {
            assert_eq!(sectors(7, &(base + at.start..base + at.end)), expected, "{at:?}");
        }
        assert_eq!(sectors(7, &(base - 512..base + 513)), 0b11);
    }

    #[test]
    fn what_is_there_lies_in_pieces() {
        let ends = |range: Range<u64>| (range.start, range.end);
        let there = |absent: u8| present(absent).map(ends).collect::<Vec<_>>();
        assert_eq!(there(0), [(0, 4096)]);
        assert_eq!(there(0b1110_0001), [(512, 2560)]);
        assert_eq!(there(0b0101_1010), [(0, 512), (1024, 1536), (2560, 3072), (3584, 4096)]);
        let block = |block: u64, absent: u8| (Dirty { block, slot: 0, absent }, Buf::zeroed(SLOT));
        let places = |run: &[(Dirty, Buf)]| {
            let pieces = pieces(run);
            assert!(pieces.iter().all(|(at, data)| at.end - at.start == data.len() as u64));
            pieces.into_iter().map(|(at, _)| ends(at)).collect::<Vec<_>>()
        };
        assert_eq!(places(&[block(1, 0), block(2, 0)]), [(4096, 12288)]);
        assert_eq!(places(&[block(1, 0x0F), block(2, 0), block(3, 0xF8)]), [(6144, 13824)]);
        assert_eq!(places(&[block(1, 0xF0), block(2, 0x0F)]), [(4096, 6144), (10240, 12288)]);
    }

    #[test]
    fn blocks_with_absent_sectors_are_put_alone() {
        let put = |absent| runs(&(10..14), absent).collect::<Vec<_>>();
        assert_eq!(put([0, 0]), [(10..14, 0)]);
        assert_eq!(put([1, 0]), [(10..11, 1), (11..14, 0)]);
        assert_eq!(put([1, 2]), [(10..11, 1), (11..13, 0), (13..14, 2)]);
        assert_eq!(runs(&(5..6), [3, 0]).collect::<Vec<_>>(), [(5..6, 3)]);
    }
}
