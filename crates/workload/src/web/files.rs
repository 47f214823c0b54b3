//! The files that the web workload reads, and where they lie on the disk.
//!
//! One million files in a two-level directory, half of them erased at random and as many of other sizes written in
//! their place (the paper on CATS, section 5). Sizes are those of Barford and Crovella, *Generating Representative Web
//! Workloads* (SIGMETRICS 1998): lognormal below 133 KB, Pareto above; cut at 100 MB as in the paper.
//!
//! The share of large files: Barford and Crovella have 7%. One million such files need 73 GB and do not fit on the
//! paper's disk of 73.4 GB with any room for a file system; the share that the lognormal distribution itself has above
//! 133 KB, 3.2%, needs 44 GB. So 3.2% is the default here, and the share can be chosen.
//!
//! The paper does not say which file is popular where: here popularity is independent of size and place. A hundred
//! files share a directory. Directories are spread evenly over the block groups, as the Orlov allocator of ext3 does
//! with directories that grow alike, and files follow their directory. The entries of a directory are one block, and
//! inodes are numbered as files were written.

use super::allocator::{BLOCK, Extent, Groups, inode};
use crate::random::{lognormal, pareto};
use fastrand::Rng;
use lamina_block::Bytes;
use lamina_drive::SECTOR;

/// Files of the paper.
pub const FILES: u32 = 1_000_000;
/// Sectors of the paper's disk of 73.4 GB.
pub const SECTORS: u64 = 73_400_000_000 / SECTOR;
/// The share of files above [`CUTOFF`] by default; see the module.
pub const LARGE: f64 = 0.032;
/// Bytes at which the Pareto part of the sizes begins.
const CUTOFF: f64 = 133_000.0;
/// No file has more bytes.
const SIZE_MAX: f64 = 100e6;
/// Files of a directory.
const DIRECTORY: u32 = 100;

/// The files to lay out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// How many files; `None`: one million, or fewer in proportion on a disk below 73.4 GB.
    pub files: Option<u32>,
    /// The share of files that are larger than 133 KB, 0 to 1.
    pub large: f64,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout { files: None, large: LARGE }
    }
}

/// All files of a disk. A million of them take about 30 MB of memory.
#[derive(Debug)]
pub struct Files {
    /// Blocks of each file.
    blocks: Vec<u32>,
    /// Where the extents of each file begin, and at the end how many there are.
    first: Vec<u32>,
    extents: Vec<Extent>,
    /// The file of each rank of popularity.
    by_rank: Vec<u32>,
    /// The block of each directory.
    directories: Vec<u32>,
    /// Block groups of the disk.
    groups: u32,
}

/// The figures of a layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Files.
    pub files: u32,
    /// Bytes of all files in whole blocks.
    pub bytes: u64,
    /// Extents of a file, on average.
    pub extents_mean: f64,
    /// The share of files with more than one extent.
    pub fragmented: f64,
}

impl Files {
    /// Lays files out on a disk of `sectors` sectors. The error says what does not fit.
    pub fn lay_out(layout: &Layout, sectors: u64, seed: u64) -> Result<Files, String> {
        let fitting = (FILES as u64 * sectors.min(SECTORS) / SECTORS) as u32;
        let count = layout.files.unwrap_or(fitting).max(1);
        // Beyond 16 TiB, a disk is used up to there: blocks have numbers of 32 bits.
        let blocks = (sectors * SECTOR / BLOCK).min(u32::MAX as u64) as u32;
        let mut disk = Disk::new(blocks, count, layout.large, Rng::with_seed(seed));
        let (size, free) = (Bytes(sectors * SECTOR), Bytes(disk.groups.free() * BLOCK));
        let full = |file| {
            format!(
                "{count} files do not fit on a disk of {size} ({free} of it for data): file {file} was the first \
                 without room; choose fewer with files=N, or fewer large ones with large=SHARE"
            )
        };
        (0..count).try_for_each(|file| disk.enter(file).and_then(|()| disk.write(file))).map_err(full)?;
        let mut all: Vec<u32> = (0..count).collect();
        disk.random.shuffle(&mut all);
        let erased = &all[..(count / 2) as usize];
        erased.iter().for_each(|file| disk.erase(*file));
        erased.iter().try_for_each(|file| disk.write(*file)).map_err(full)?;
        // Files that were written again are as popular as others.
        disk.random.shuffle(&mut all);
        Ok(disk.finish(all))
    }

    /// How many files there are; at least one.
    pub fn count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks of a file; at least one.
    pub(super) fn blocks(&self, file: u32) -> u32 {
        self.blocks[file as usize]
    }

    /// The file with so many more popular ones.
    pub(super) fn by_rank(&self, rank: u32) -> u32 {
        self.by_rank[rank as usize]
    }

    /// Where block `block` of a file and those after it lie, up to the end of the extent.
    pub(super) fn place(&self, file: u32, mut block: u32) -> Option<Extent> {
        for extent in self.extents(file) {
            if block < extent.blocks {
                return Some(Extent { start: extent.start + block, blocks: extent.blocks - block });
            }
            block -= extent.blocks;
        }
        None
    }

    /// The blocks that a process reads before the first one of a file, to find it: that of its directory, and that of
    /// its inode.
    pub(super) fn metadata(&self, file: u32) -> [u32; 2] {
        let (directory, group) = (file / DIRECTORY, group_of(file, self.count(), self.groups));
        let first =
            (group as u64 * self.directories.len() as u64).div_ceil(self.groups as u64) as u32 * DIRECTORY;
        [self.directories[directory as usize], inode(group, file.saturating_sub(first))]
    }

    /// The extents of a file, in the order of its blocks.
    fn extents(&self, file: u32) -> &[Extent] {
        let file = file as usize;
        &self.extents[self.first[file] as usize..self.first[file + 1] as usize]
    }

    /// The figures of the layout.
    pub fn summary(&self) -> Summary {
        let fragmented = (0..self.count()).filter(|file| self.extents(*file).len() > 1).count();
        let files = self.count();
        Summary {
            files,
            bytes: self.blocks.iter().map(|blocks| *blocks as u64 * BLOCK).sum(),
            extents_mean: self.extents.len() as f64 / files as f64,
            fragmented: fragmented as f64 / files as f64,
        }
    }
}

/// A disk that is being filled.
struct Disk {
    groups: Groups,
    random: Rng,
    large: f64,
    /// For each file, its extents as a part of `extents`, which has those of erased files too.
    places: Vec<(u32, u32)>,
    extents: Vec<Extent>,
    /// The block of each directory.
    directories: Vec<u32>,
}

impl Disk {
    fn new(blocks: u32, files: u32, large: f64, random: Rng) -> Disk {
        Disk {
            groups: Groups::new(blocks),
            random,
            large,
            places: vec![(0, 0); files as usize],
            extents: Vec::new(),
            directories: Vec::new(),
        }
    }

    /// Makes the directory of a file, if the file is the first one there. The error is the file's number.
    fn enter(&mut self, file: u32) -> Result<(), u32> {
        if !file.is_multiple_of(DIRECTORY) {
            return Ok(());
        }
        let group = group_of(file, self.places.len() as u32, self.groups.count());
        let mut taken = Vec::new();
        if !self.groups.take(group, 1, &mut taken) {
            return Err(file);
        }
        self.directories.extend(taken.iter().map(|extent| extent.start));
        Ok(())
    }

    /// Writes a file of a random size. The error is its number.
    fn write(&mut self, file: u32) -> Result<(), u32> {
        let blocks = (size(&mut self.random, self.large) / BLOCK as f64).ceil() as u32;
        let group = group_of(file, self.places.len() as u32, self.groups.count());
        let first = self.extents.len();
        if !self.groups.take(group, blocks, &mut self.extents) {
            return Err(file);
        }
        self.places[file as usize] = (first as u32, (self.extents.len() - first) as u32);
        Ok(())
    }

    fn erase(&mut self, file: u32) {
        let (first, count) = self.places[file as usize];
        self.extents[first as usize..(first + count) as usize].iter().for_each(|e| self.groups.give(*e));
    }

    /// The files as they are now; `by_rank` says which are popular.
    fn finish(self, by_rank: Vec<u32>) -> Files {
        let mut files = Files {
            blocks: Vec::new(),
            first: vec![0],
            extents: Vec::new(),
            by_rank,
            directories: self.directories,
            groups: self.groups.count(),
        };
        for (first, count) in self.places {
            let extents = &self.extents[first as usize..(first + count) as usize];
            files.blocks.push(extents.iter().map(|extent| extent.blocks).sum());
            files.extents.extend_from_slice(extents);
            files.first.push(files.extents.len() as u32);
        }
        files
    }
}

/// The group of a file's directory.
fn group_of(file: u32, files: u32, groups: u32) -> u32 {
    let (directory, directories) = (file / DIRECTORY, files.div_ceil(DIRECTORY));
    (directory as u64 * groups as u64 / directories as u64) as u32
}

/// Bytes of a file, of which a share of `large` is above the cut-off; at least 1.
fn size(random: &mut Rng, large: f64) -> f64 {
    if random.f64() < large {
        return pareto(random, 1.1, CUTOFF).min(SIZE_MAX);
    }
    loop {
        // All but 3.2% of the draws lie below the cut-off.
        let size = lognormal(random, 9.357, 1.318);
        if size < CUTOFF {
            return size.max(1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lay_out(gigabytes: u64, layout: Layout, seed: u64) -> Files {
        Files::lay_out(&layout, gigabytes * 1_000_000_000 / SECTOR, seed).expect("they fit")
    }

    #[test]
    fn sizes_are_those_of_the_paper() {
        let mut random = Rng::with_seed(1);
        let mut sizes: Vec<f64> = (0..100_000).map(|_| size(&mut random, LARGE)).collect();
        sizes.sort_by(f64::total_cmp);
        let large = sizes.iter().filter(|size| **size >= CUTOFF).count() as f64 / 1e5;
        assert!((large - LARGE).abs() < 0.003, "{large}");
        assert!(sizes[0] >= 1.0 && *sizes.last().expect("one") == SIZE_MAX);
        let mean = sizes.iter().sum::<f64>() / 1e5;
        assert!((38e3..50e3).contains(&mean), "{mean}");
        // The median of the whole is near that of the lognormal, e^9.357.
        assert!((10e3..13e3).contains(&sizes[50_000]), "{}", sizes[50_000]);
        // With the 7% of Barford and Crovella, a million files are as large as the paper's disk.
        let sum: f64 = (0..100_000).map(|_| size(&mut random, 0.07)).sum();
        assert!((66e9..80e9).contains(&(sum * 10.0)), "{sum}");
    }

    #[test]
    fn a_disk_is_filled_and_fragmented() {
        let files = lay_out(2, Layout::default(), 7);
        let summary = files.summary();
        assert_eq!(summary.files, 27_247);
        assert!((0.8e9..1.8e9).contains(&(summary.bytes as f64)), "{summary:?}");
        assert!(summary.fragmented > 0.02 && summary.extents_mean > 1.05, "{summary:?}");
        let directories = files.directories.iter().map(|start| Extent { start: *start, blocks: 1 });
        let mut blocks: Vec<Extent> = files.extents.iter().copied().chain(directories).collect();
        blocks.sort_by_key(|extent| extent.start);
        assert!(blocks.windows(2).all(|pair| pair[0].start + pair[0].blocks <= pair[1].start));
        let mut ranks = files.by_rank.clone();
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..files.count()));
    }

    /// Files that were written again have the ends of the groups, and more extents: they are not the popular ones.
    #[test]
    fn popularity_is_independent_of_place() {
        let files = lay_out(2, Layout::default(), 7);
        let fragmented = |ranks: std::ops::Range<u32>| {
            let is = |rank: &u32| files.extents(files.by_rank(*rank)).len() > 1;
            ranks.clone().filter(is).count() as f64 / ranks.len() as f64
        };
        let (first, second) =
            (fragmented(0..files.count() / 2), fragmented(files.count() / 2..files.count()));
        assert!((first / second - 1.0).abs() < 0.2, "{first} and {second}");
    }

    #[test]
    fn places_continue_across_extents() {
        let files = lay_out(2, Layout::default(), 7);
        let file = (0..files.count()).find(|file| files.extents(*file).len() > 2).expect("a fragmented file");
        let mut block = 0;
        for extent in files.extents(file) {
            assert_eq!(files.place(file, block), Some(*extent));
            let last = Extent { start: extent.start + extent.blocks - 1, blocks: 1 };
            assert_eq!(files.place(file, block + extent.blocks - 1), Some(last));
            block += extent.blocks;
        }
        assert_eq!(block, files.blocks(file));
        assert_eq!(files.place(file, block), None);
    }

    #[test]
    fn metadata_lie_in_the_group_of_the_directory() {
        let files = lay_out(2, Layout::default(), 7);
        let [(directory, inode), (same, next), (other, _)] =
            [0, 32, 100].map(|file| files.metadata(file).into());
        assert!(same == directory && other != directory);
        assert_eq!((inode, next), (2, 3), "32 inodes are a block, behind two bitmaps");
        // A group begins with a directory of its own, and counts its inodes from there.
        let group = |file: u32| group_of(file, files.count(), files.groups);
        let first = (1..files.count()).find(|file| group(*file) == 1).expect("a second group");
        assert_eq!((first % DIRECTORY, files.metadata(first)[1]), (0, 32_768 + 2));
        assert!(files.metadata(first)[0] >= 32_768);
    }

    #[test]
    fn a_seed_gives_one_layout() {
        let layout = Layout { files: Some(500), large: 0.01 };
        let (one, same, other) = (lay_out(1, layout, 1), lay_out(1, layout, 1), lay_out(1, layout, 2));
        assert_eq!((one.extents.clone(), one.by_rank.clone()), (same.extents, same.by_rank));
        assert_ne!(one.extents, other.extents);
    }

    #[test]
    fn files_that_do_not_fit_are_refused_with_advice() {
        let layout = Layout { files: Some(100_000), large: 0.07 };
        let refused = Files::lay_out(&layout, 2_000_000, 1).expect_err("it is too much");
        assert!(refused.contains("fewer with files=N") && refused.contains("100000 files"), "{refused}");
        assert!(Files::lay_out(&Layout::default(), 0, 1).is_err());
    }
}
