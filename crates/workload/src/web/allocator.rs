//! An allocator of blocks as ext2 and ext3 have: block groups with a bitmap each.
//!
//! ```text
//!      group 0                 group 1                 …
//!      ┌──────────┬───────────┬──────────┬───────────┬──
//!      │ metadata │ blocks    │ metadata │ blocks    │
//!      └──────────┴───────────┴──────────┴───────────┴──
//! ```
//!
//! A file's blocks come from the group of its directory, from its start: the first run of free blocks that holds eight
//! (or all that is missing) is taken; a group without such a run gives what it has; then the next group is tried. This
//! is `find_next_usable_block` of Linux 2.6's ext3 (fs/ext3/balloc.c: a free byte of the bitmap, then any bit) for one
//! process that writes alone. Blocks of indirection are deliberately left out: they belong to metadata, which the
//! workload does not read.

use std::ops::Range;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Blocks of a group: as many as one block has bits.
const GROUP: u32 = 8 * BLOCK as u32;
/// Blocks of a group before its inodes: two bitmaps.
const BITMAPS: u32 = 2;
/// Inodes of a block, of 128 bytes each.
const INODES: u32 = BLOCK as u32 / 128;
/// Blocks of a group that hold metadata: its bitmaps, and an inode for each 16 KiB.
const METADATA: u32 = BITMAPS + GROUP / 4 / INODES;
/// A run of so many blocks is preferred to smaller ones: a byte of the bitmap.
const PREFERRED: u32 = 8;

/// Consecutive blocks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block.
    pub start: u32,
    /// How many.
    pub blocks: u32,
}

/// The block with the inode number `number` of a group. A group that has more files than inodes uses them again.
pub(super) const fn inode(group: u32, number: u32) -> u32 {
    group * GROUP + BITMAPS + number / INODES % (METADATA - BITMAPS)
}

/// The blocks of a disk, free and in use.
pub(super) struct Groups {
    /// A bit for each block, set while in use.
    used: Vec<u64>,
    /// Free blocks of each group.
    free: Vec<u32>,
    /// And of all.
    all_free: u64,
}

impl Groups {
    /// An empty file system over a disk of `blocks` blocks. A last group that is not whole stays unused.
    pub(super) fn new(blocks: u32) -> Groups {
        let count = blocks / GROUP;
        let mut groups = Groups {
            used: vec![0; (count * GROUP / 64) as usize],
            free: vec![GROUP; count as usize],
            all_free: count as u64 * GROUP as u64,
        };
        (0..count).for_each(|group| groups.mark(Extent { start: group * GROUP, blocks: METADATA }, true));
        groups
    }

    /// How many groups there are.
    pub(super) fn count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks that are free.
    pub(super) fn free(&self) -> u64 {
        self.all_free
    }

    /// Takes `blocks` blocks, from `group` on, and appends them as extents. `false` if there are fewer: none is taken.
    pub(super) fn take(&mut self, group: u32, blocks: u32, extents: &mut Vec<Extent>) -> bool {
        if self.free() < blocks as u64 {
            return false;
        }
        let first = extents.len();
        let mut missing = blocks;
        for group in (group..self.count()).chain(0..group) {
            missing = self.take_in_group(group, missing, extents, first);
            if missing == 0 {
                break;
            }
        }
        true
    }

    /// Takes up to `missing` blocks of one group. Returns how many are missing still.
    fn take_in_group(
        &mut self,
        group: u32,
        mut missing: u32,
        extents: &mut Vec<Extent>,
        first: usize,
    ) -> u32 {
        let all = group * GROUP..(group + 1) * GROUP;
        let mut preferred = PREFERRED;
        let mut from = all.start;
        while missing > 0 && self.free[group as usize] > 0 {
            let Some(run) = self.run(from..all.end, preferred.min(missing)) else {
                // No such run behind the last one: any block of the group, from its start.
                preferred = 1;
                from = all.start;
                continue;
            };
            let taken = Extent { start: run.start, blocks: missing.min(run.blocks) };
            self.mark(taken, true);
            append(extents, first, taken);
            missing -= taken.blocks;
            from = taken.start + taken.blocks;
        }
        missing
    }

    /// Gives blocks back.
    pub(super) fn give(&mut self, extent: Extent) {
        self.mark(extent, false);
    }

    /// The first run in `at` of at least `wanted` free blocks, as long as it is within `at`.
    fn run(&self, at: Range<u32>, wanted: u32) -> Option<Extent> {
        let mut from = at.start;
        while let Some(start) = self.next(from, at.end, false) {
            let end = self.next(start, at.end, true).unwrap_or(at.end);
            if end - start >= wanted {
                return Some(Extent { start, blocks: end - start });
            }
            from = end;
        }
        None
    }

    /// The first block from `from` on and before `end` that is in use, or free.
    fn next(&self, from: u32, end: u32, in_use: bool) -> Option<u32> {
        let mut at = from;
        while at < end {
            let word = self.used[(at / 64) as usize];
            let wanted = if in_use { word } else { !word } >> (at % 64);
            if wanted != 0 {
                return Some(at + wanted.trailing_zeros()).filter(|found| *found < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    fn mark(&mut self, extent: Extent, in_use: bool) {
        let end = extent.start + extent.blocks;
        let mut at = extent.start;
        while at < end {
            let upto = end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (upto - at))) << (at % 64);
            let word = &mut self.used[(at / 64) as usize];
            *word = if in_use { *word | mask } else { *word & !mask };
            at = upto;
        }
        // An extent lies in one group.
        let (free, blocks) = (&mut self.free[(extent.start / GROUP) as usize], extent.blocks);
        *free = if in_use { *free - blocks } else { *free + blocks };
        let blocks = blocks as u64;
        self.all_free = if in_use { self.all_free - blocks } else { self.all_free + blocks };
    }
}

/// Appends to the extents from `first` on, as part of the last of them if it continues that.
fn append(extents: &mut Vec<Extent>, first: usize, taken: Extent) {
    match extents[first..].last_mut() {
        Some(last) if last.start + last.blocks == taken.start => last.blocks += taken.blocks,
        _ => extents.push(taken),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(groups: &mut Groups, group: u32, blocks: u32) -> Vec<(u32, u32)> {
        let mut extents = Vec::new();
        assert!(groups.take(group, blocks, &mut extents));
        extents.iter().map(|e| (e.start, e.blocks)).collect()
    }

    #[test]
    fn files_are_first_fit_in_the_group_of_their_directory() {
        let mut groups = Groups::new(3 * GROUP + 1);
        assert_eq!((groups.count(), groups.free()), (3, 3 * (GROUP - METADATA) as u64));
        let one = GROUP + METADATA;
        assert_eq!(take(&mut groups, 1, 10), [(one, 10)]);
        assert_eq!(take(&mut groups, 1, 100), [(one + 10, 100)]);
        assert_eq!(take(&mut groups, 1, 3), [(one + 110, 3)]);
        groups.give(Extent { start: one, blocks: 10 });
        groups.give(Extent { start: one + 20, blocks: 4 });
        // A hole of four is too small for a file of nine, and right for one of four.
        assert_eq!(take(&mut groups, 1, 9), [(one, 9)]);
        assert_eq!(take(&mut groups, 1, 9), [(one + 113, 9)]);
        assert_eq!(take(&mut groups, 1, 4), [(one + 20, 4)]);
    }

    #[test]
    fn a_hole_of_eight_begins_a_long_file() {
        let mut groups = Groups::new(GROUP);
        take(&mut groups, 0, 100);
        groups.give(Extent { start: METADATA + 16, blocks: 8 });
        assert_eq!(take(&mut groups, 0, 30), [(METADATA + 16, 8), (METADATA + 100, 22)]);
    }

    #[test]
    fn full_groups_use_what_is_left_and_then_the_next() {
        let mut groups = Groups::new(2 * GROUP);
        let all = GROUP - METADATA;
        take(&mut groups, 1, all);
        groups.give(Extent { start: GROUP + METADATA + 1, blocks: 1 });
        groups.give(Extent { start: GROUP + METADATA + 5, blocks: 2 });
        let wanted = [(GROUP + METADATA + 1, 1), (GROUP + METADATA + 5, 2), (METADATA, 9)];
        assert_eq!(take(&mut groups, 1, 12), wanted);
        let mut extents = Vec::new();
        assert!(!groups.take(0, all, &mut extents), "nine are taken");
        assert!(extents.is_empty());
        assert_eq!(take(&mut groups, 0, all - 9), [(METADATA + 9, all - 9)]);
        assert_eq!(groups.free(), 0);
    }

    #[test]
    fn no_block_has_two_owners() {
        let mut groups = Groups::new(2 * GROUP);
        let mut random = fastrand::Rng::with_seed(3);
        let mut files: Vec<Vec<Extent>> = Vec::new();
        let mut owned = vec![false; 2 * GROUP as usize];
        for _ in 0..400 {
            if files.len() > 60 && random.bool() {
                for extent in files.swap_remove(random.usize(0..files.len())) {
                    groups.give(extent);
                    (extent.start..extent.start + extent.blocks).for_each(|b| owned[b as usize] = false);
                }
                continue;
            }
            let (mut extents, blocks) = (Vec::new(), random.u32(1..1000));
            if !groups.take(random.u32(0..2), blocks, &mut extents) {
                continue;
            }
            assert_eq!(extents.iter().map(|e| e.blocks).sum::<u32>(), blocks);
            for block in extents.iter().flat_map(|e| e.start..e.start + e.blocks) {
                assert!(block % GROUP >= METADATA && !std::mem::replace(&mut owned[block as usize], true));
            }
            files.push(extents);
        }
        let used = owned.iter().filter(|is| **is).count() as u64;
        assert_eq!(groups.free(), 2 * (GROUP - METADATA) as u64 - used);
    }
}
