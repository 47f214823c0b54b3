//! What is known of the extents of a slow device: how they are used.
//!
//! ```text
//!      page     64 extents that lie one behind the other, made when one of them is first used
//!      extent   64 blocks, 256 KiB: reads, writes, blocks, sequential, milliseconds saved and spent
//! ```
//!
//! Figures age: they halve each time that a number of blocks was used, so that what counts is recent. They are aged
//! when they are looked at, and not before.
//!
//! Invariant: at most so many pages are there as the owner allows; those that were not used for the longest time go.
//! The module decides nothing.

use crate::flash::SLOT;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Blocks of an extent.
pub const EXTENT: u64 = 64;
/// Extents of a page.
const PAGE: u64 = 64;

/// What is known of an extent; figures are aged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extent {
    /// Requests that read and that wrote.
    pub reads: f32,
    /// See `reads`.
    pub writes: f32,
    /// Blocks of these requests; by them the mean size is known.
    pub blocks: f32,
    /// Requests that went on where another one ended.
    pub sequential: f32,
    /// Milliseconds that the slow device was spared, because the fast device had what was read.
    pub saved_ms: f32,
    /// Milliseconds of reads that the slow device served.
    pub spent_ms: f32,
    /// The age to which the figures were aged.
    epoch: u32,
}

/// A use of an extent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    /// Whether it is a write.
    pub is_write: bool,
    /// Whether it goes on where another request ended.
    pub is_sequential: bool,
    /// Blocks of the extent that are used.
    pub blocks: u32,
    /// Milliseconds that the slow device was spared.
    pub saved_ms: f32,
    /// Milliseconds of the slow device.
    pub spent_ms: f32,
}

type Page = [Extent; PAGE as usize];

/// All extents that are known.
pub struct Monitor {
    pages: BTreeMap<u64, Box<Page>>,
    pages_max: usize,
    /// Blocks after whose use figures have halved.
    half_life: u64,
    used: u64,
}

impl Monitor {
    /// Knows at most `extents` extents, rounded up to whole pages. Figures halve with each
    /// `half_life` blocks used, at least one.
    pub fn new(extents: u64, half_life: u64) -> Monitor {
        let pages_max = extents.div_ceil(PAGE).max(1) as usize;
        Monitor { pages: BTreeMap::new(), pages_max, half_life: half_life.max(1), used: 0 }
    }

    /// Bytes of memory that the pages take, without those of the tree over them.
    pub fn memory(&self) -> usize {
        self.pages.len() * size_of::<Page>()
    }

    fn epoch(&self) -> u32 {
        (self.used / self.half_life) as u32
    }

    fn find(&self, extent: u64) -> Option<&Extent> {
        let page = self.pages.get(&(extent / PAGE))?;
        Some(&page[(extent % PAGE) as usize])
    }

    fn entry(&mut self, extent: u64) -> &mut Extent {
        let number = extent / PAGE;
        if self.pages.len() >= self.pages_max && !self.pages.contains_key(&number) {
            self.forget();
        }
        let page = self.pages.entry(number).or_insert_with(|| Box::new([Extent::default(); PAGE as usize]));
        &mut page[(extent % PAGE) as usize]
    }

    /// Forgets an eighth of the pages, those that were used last before all others.
    fn forget(&mut self) {
        let latest = |page: &Page| page.iter().map(|extent| extent.epoch).max().unwrap_or(0);
        let mut ages: Vec<(u32, u64)> =
            self.pages.iter().map(|(number, page)| (latest(page), *number)).collect();
        ages.sort_unstable();
        for (_, number) in ages.into_iter().take((self.pages_max / 8).max(1)) {
            self.pages.remove(&number);
        }
    }

    /// An extent is used.
    pub fn used(&mut self, extent: u64, by: Use) {
        self.used += u64::from(by.blocks);
        let epoch = self.epoch();
        let known = self.entry(extent);
        *known = known.aged(epoch);
        match by.is_write {
            true => known.writes += 1.0,
            false => known.reads += 1.0,
        }
        known.blocks += by.blocks as f32;
        known.sequential += f32::from(u8::from(by.is_sequential));
        known.saved_ms += by.saved_ms;
        known.spent_ms += by.spent_ms;
    }

    /// What is known of an extent now.
    pub fn extent(&self, extent: u64) -> Extent {
        self.find(extent).copied().unwrap_or_default().aged(self.epoch())
    }

    /// All extents of which anything is known, in the order of their places.
    pub fn all(&self) -> impl Iterator<Item = (u64, Extent)> {
        let epoch = self.epoch();
        let all = self.pages.iter().flat_map(|(page, extents)| (page * PAGE..).zip(extents.iter()));
        all.map(move |(number, extent)| (number, extent.aged(epoch)))
            .filter(|(_, extent)| extent.blocks > 0.0)
    }

    /// The `most` extents that cost or would cost the slow device the most time, the first one the most.
    pub fn top(&self, most: usize) -> Vec<(u64, Extent)> {
        let mut all: Vec<(u64, Extent)> = self.all().filter(|(_, extent)| extent.ms() > 0.0).collect();
        all.sort_by(|a, b| b.1.ms().total_cmp(&a.1.ms()).then(a.0.cmp(&b.0)));
        all.truncate(most);
        all
    }

    /// The same, and behind them those that cost nothing and are used the most; in no order.
    pub fn most_used(&self, most: usize) -> Vec<(u64, Extent)> {
        let mut all: Vec<(u64, Extent)> = self.all().collect();
        if all.len() > most {
            let by = |(_, extent): &(u64, Extent)| (extent.ms(), extent.blocks);
            all.select_nth_unstable_by(most, |a, b| by(b).partial_cmp(&by(a)).unwrap_or(Ordering::Equal));
            all.truncate(most);
        }
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    }

    /// Blocks that were used, by which figures age.
    pub fn used_blocks(&self) -> u64 {
        self.used
    }

    /// So an extent was known when so many blocks had been used.
    pub fn put(&mut self, number: u64, extent: Extent, used: u64) {
        self.used = self.used.max(used);
        let epoch = (used / self.half_life) as u32;
        *self.entry(number) = Extent { epoch, ..extent };
    }
}

impl Extent {
    /// Milliseconds of the slow device, spent and saved.
    pub fn ms(&self) -> f32 {
        self.saved_ms + self.spent_ms
    }

    /// What is shown of extent `number`.
    pub fn json(&self, number: u64) -> Value {
        let bytes = EXTENT * SLOT as u64;
        json!({
            "offset": number * bytes,
            "bytes": bytes,
            "reads": self.reads,
            "writes": self.writes,
            "mean_bytes": self.blocks / (self.reads + self.writes).max(1.0) * SLOT as f32,
            "sequential_ratio": self.sequential / (self.reads + self.writes).max(1.0),
            "saved_ms": self.saved_ms,
            "spent_ms": self.spent_ms,
        })
    }

    /// All that ages, in the order of the fields.
    pub fn figures(&self) -> [f32; 6] {
        [self.reads, self.writes, self.blocks, self.sequential, self.saved_ms, self.spent_ms]
    }

    /// An extent with these figures, in the order of the fields.
    pub fn of([reads, writes, blocks, sequential, saved_ms, spent_ms]: [f32; 6]) -> Extent {
        Extent { reads, writes, blocks, sequential, saved_ms, spent_ms, epoch: 0 }
    }

    fn aged(self, epoch: u32) -> Extent {
        let factor = 0.5f32.powi(epoch.wrapping_sub(self.epoch).min(64) as i32);
        Extent { epoch, ..Extent::of(self.figures().map(|figure| figure * factor)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(blocks: u32, spent_ms: f32) -> Use {
        Use { blocks, spent_ms, ..Use::default() }
    }

    #[test]
    fn figures_halve_with_their_half_life() {
        let mut monitor = Monitor::new(1000, 100);
        monitor.used(7, read(50, 8.0));
        monitor.used(7, Use { is_write: true, is_sequential: true, blocks: 50, ..Use::default() });
        let known = monitor.extent(7);
        assert_eq!((known.reads, known.writes, known.sequential, known.spent_ms), (0.5, 1.0, 1.0, 4.0));
        monitor.used(9, read(200, 1.0));
        assert_eq!((monitor.extent(7).writes, monitor.extent(7).ms()), (0.25, 1.0));
        assert_eq!(monitor.extent(8), Extent { epoch: 3, ..Extent::default() });
        let top: Vec<u64> = monitor.top(1).into_iter().map(|(number, _)| number).collect();
        assert_eq!(top, [7], "equal ones by number");
        assert_eq!(monitor.all().map(|(number, _)| number).collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut monitor = Monitor::new(16 * PAGE, 10);
        (0..10_000).for_each(|extent| monitor.used(extent * PAGE, read(1, 1.0)));
        assert!(monitor.memory() <= 16 * size_of::<Page>());
        assert!(monitor.extent(9_999 * PAGE).ms() > 0.0 && monitor.extent(PAGE).ms() == 0.0);
    }
}
