//! The contents of a simulated disk: per sector, the durable data and the writes since.
//!
//! Invariant: a sector reads as its last applied version, or as its durable contents if there is none. At power loss it
//! becomes its durable contents or any version, whether complete or still under way: a volatile cache writes back what
//! it likes, in any order.

use crate::stamp;
use fastrand::Rng;
use lamina_block::Buf;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The contents of one sector.
#[derive(Clone, Default)]
enum Data {
    /// As the disk came: zeroes, or foreign old data.
    #[default]
    Blank,
    Zero,
    /// A part of a write's data: from this byte on.
    Bytes(Rc<Vec<u8>>, u32),
}

#[derive(Clone)]
struct Version {
    write: Write,
    applied: bool,
    data: Data,
}

#[derive(Clone, Default)]
struct Sector {
    durable: Data,
    /// Versions not yet durable. Those that are applied stand in the order in which they were. Most sectors have one.
    versions: SmallVec<[Version; 1]>,
}

impl Data {
    /// The bytes of a write from `at` on.
    fn of(write: &Rc<Vec<u8>>, at: u64) -> Data {
        Data::Bytes(Rc::clone(write), at.try_into().expect("a write is shorter than 4 GiB"))
    }

    fn is_same(&self, other: &Data) -> bool {
        match (self, other) {
            (Data::Bytes(a, from), Data::Bytes(b, at)) => Rc::ptr_eq(a, b) && from == at,
            (Data::Blank, other) => matches!(other, Data::Blank),
            (Data::Zero, other) => matches!(other, Data::Zero),
            (Data::Bytes(..), _) => false,
        }
    }
}

impl Sector {
    /// Whether both are durable, and hold the same.
    fn is_same(&self, other: &Sector) -> bool {
        self.versions.is_empty() && other.versions.is_empty() && self.durable.is_same(&other.durable)
    }

    fn visible(&self) -> &Data {
        self.versions.iter().rev().find(|v| v.applied).map_or(&self.durable, |v| &v.data)
    }

    /// Makes the last applied version that `covered` says yes to durable; earlier versions are gone.
    fn settle(&mut self, covered: impl Fn(&Version) -> bool) {
        let Some(last) = self.versions.iter().rposition(|v| v.applied && covered(v)) else { return };
        self.durable = self.versions[last].data.clone();
        let mut index = 0;
        self.versions.retain(|v| {
            index += 1;
            index > last + 1 || !v.applied
        });
    }
}

/// A write under way or done: the moment of its completion.
#[derive(Clone)]
pub(crate) struct Write(Rc<Cell<u64>>);

/// The moment at which a flush was submitted.
#[derive(Clone, Copy)]
pub(crate) struct FlushMark(u64);

/// The effect of a power loss on writes that were not made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All are lost.
    All,
    /// None is lost; those under way took effect or not.
    Nothing,
    /// Each sector of each is lost or not: writes tear.
    Torn,
    /// Each write as a whole is lost or not.
    Writes,
}

impl Loss {
    /// All kinds of loss.
    pub const ALL: [Loss; 4] = [Loss::All, Loss::Nothing, Loss::Torn, Loss::Writes];
}

/// The foreign data that a disk is full of. Its bytes follow from their places, and are kept: tests read them again and
/// again.
struct Junk {
    owner: u32,
    pages: RefCell<BTreeMap<u64, Rc<[u8]>>>,
}

impl Junk {
    /// Pages that are kept.
    const PAGES_MAX: usize = 256;

    /// The bytes of a page of sectors of `size` bytes.
    fn page(&self, page: u64, size: usize) -> Rc<[u8]> {
        let kept = &mut *self.pages.borrow_mut();
        if let Some(bytes) = kept.get(&page) {
            return Rc::clone(bytes);
        }
        let mut bytes = Vec::with_capacity(PAGE as usize * size);
        for number in page * PAGE..(page + 1) * PAGE {
            stamp::fill(self.owner, number, size, &mut bytes);
        }
        if kept.len() >= Junk::PAGES_MAX {
            kept.pop_first();
        }
        let bytes = Rc::<[u8]>::from(bytes);
        kept.insert(page, Rc::clone(&bytes));
        bytes
    }
}

/// Sectors in a page.
const PAGE: u64 = 32;
/// Pages in a group.
const GROUP: u64 = 64;

type Page = [Sector; PAGE as usize];
type Group = [Option<Rc<Page>>; GROUP as usize];

/// Pages of neighbouring sectors, and groups of neighbouring pages: shared with the images taken of a disk until one of
/// them changes. Images are many.
#[derive(Clone, Default)]
struct Pages(BTreeMap<u64, Rc<Group>>);

impl Pages {
    /// A page, unless nothing in it was ever written.
    fn get(&self, page: u64) -> Option<&Page> {
        self.0.get(&(page / GROUP))?[(page % GROUP) as usize].as_deref()
    }

    fn get_mut(&mut self, page: u64) -> &mut Page {
        let group = self.0.entry(page / GROUP).or_insert_with(|| Rc::new([const { None }; GROUP as usize]));
        Rc::make_mut(Rc::make_mut(group)[(page % GROUP) as usize].get_or_insert_default())
    }

    /// Whether both hold the same, of disks of which all is durable.
    fn is_same(&self, other: &Pages) -> bool {
        let same_page = |pages: (&Option<Rc<Page>>, &Option<Rc<Page>>)| match pages {
            (Some(a), Some(b)) => Rc::ptr_eq(a, b) || a.iter().zip(b.iter()).all(|(a, b)| a.is_same(b)),
            (a, b) => a.is_none() && b.is_none(),
        };
        let same_group =
            |a: &Rc<Group>, b: &Rc<Group>| Rc::ptr_eq(a, b) || a.iter().zip(b.iter()).all(same_page);
        let mut groups = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && groups.all(|((p, a), (q, b))| p == q && same_group(a, b))
    }
}

#[derive(Clone)]
pub(crate) struct Media {
    sector: u64,
    /// The data that is already there; `None` for zeroes.
    junk: Option<Rc<Junk>>,
    pages: Pages,
    /// All sectors that have versions, and some that no longer have.
    dirty: std::collections::BTreeSet<u64>,
    clock: u64,
}

impl Media {
    /// Empty, or full of another owner's data if `junk` gives a number for it.
    pub(crate) fn new(sector: u32, junk: Option<u32>) -> Media {
        let junk = junk.map(|owner| Rc::new(Junk { owner, pages: RefCell::default() }));
        Media { sector: sector.into(), junk, pages: Pages::default(), dirty: Default::default(), clock: 0 }
    }

    /// Whether both hold the same, all of it durable: told by where data lies in memory, so that the same bytes written
    /// twice count as different.
    pub(crate) fn is_same(&self, other: &Media) -> bool {
        self.junk.as_ref().map(Rc::as_ptr) == other.junk.as_ref().map(Rc::as_ptr)
            && self.dirty.is_empty()
            && other.dirty.is_empty()
            && self.pages.is_same(&other.pages)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A sector, unless nothing near it was ever written.
    fn sector(&self, number: u64) -> Option<&Sector> {
        self.pages.get(number / PAGE).map(|page| &page[(number % PAGE) as usize])
    }

    fn sector_mut(&mut self, number: u64) -> &mut Sector {
        &mut self.pages.get_mut(number / PAGE)[(number % PAGE) as usize]
    }

    fn numbers(&self, at: &Range<u64>) -> Range<u64> {
        at.start / self.sector..at.end.div_ceil(self.sector)
    }

    /// A write arrives. From now on it may survive a power loss.
    pub(crate) fn begin(&mut self, at: &Range<u64>, from: Option<&Buf>) -> Write {
        let write = Write(Rc::new(Cell::new(u64::MAX)));
        let bytes = from.map(|buf| Rc::new(buf.to_vec()));
        for number in self.numbers(at) {
            let data = match &bytes {
                Some(all) => Data::of(all, number * self.sector - at.start),
                None => Data::Zero,
            };
            let version = Version { write: write.clone(), applied: false, data };
            self.sector_mut(number).versions.push(version);
            self.dirty.insert(number);
        }
        write
    }

    /// A part of a write takes effect, with the bytes its buffer holds now.
    pub(crate) fn apply(&mut self, write: &Write, part: &Range<u64>, from: Option<&Buf>) {
        let bytes = from.map(|buf| Rc::new(buf.to_vec()));
        let size = self.sector;
        for number in self.numbers(part) {
            let versions = &mut self.sector_mut(number).versions;
            let Some(index) = versions.iter().position(|v| Rc::ptr_eq(&v.write.0, &write.0)) else {
                continue;
            };
            let mut version = versions.remove(index);
            version.applied = true;
            if let Some(all) = &bytes {
                version.data = Data::of(all, number * size - part.start);
            }
            versions.push(version);
        }
    }

    /// A write completes, durable at once or not. Parts that were never applied, because the write failed, are gone.
    pub(crate) fn complete(&mut self, write: &Write, at: &Range<u64>, durable: bool) {
        write.0.set(self.tick());
        for number in self.numbers(at) {
            self.sector_mut(number).versions.retain(|v| v.applied || !Rc::ptr_eq(&v.write.0, &write.0));
        }
        if durable {
            for number in self.numbers(at) {
                self.settle(number, |v| Rc::ptr_eq(&v.write.0, &write.0));
            }
        }
    }

    fn settle(&mut self, number: u64, covered: impl Fn(&Version) -> bool) {
        let sector = self.sector_mut(number);
        sector.settle(covered);
        if sector.versions.is_empty() {
            self.dirty.remove(&number);
        }
    }

    pub(crate) fn flush_begins(&mut self) -> FlushMark {
        FlushMark(self.tick())
    }

    /// Makes every write durable that was complete at `mark`.
    pub(crate) fn flush(&mut self, mark: FlushMark) {
        for number in self.dirty.clone() {
            self.settle(number, |v| v.write.0.get() < mark.0);
        }
    }

    pub(crate) fn read(&self, at: &Range<u64>, into: &Buf) {
        let size = self.sector as usize;
        let numbers = self.numbers(at);
        let first = numbers.start;
        let place = |number: u64| (number - first) as usize * size;
        // Neighbours that are all zeroes, or were written together, are read at once: tests read much.
        let mut number = first;
        while number < numbers.end {
            let page = self.pages.get(number / PAGE);
            let end = numbers.end.min((number / PAGE + 1) * PAGE);
            let data =
                |number: u64| page.map_or(&Data::Blank, |page| page[(number % PAGE) as usize].visible());
            let begin = number;
            number += 1;
            match (data(begin), &self.junk) {
                (Data::Bytes(all, from), _) => {
                    let from = *from as usize;
                    let follows = |next: u64| match data(next) {
                        Data::Bytes(same, at) => {
                            Rc::ptr_eq(same, all) && *at as usize == from + place(next) - place(begin)
                        }
                        Data::Zero | Data::Blank => false,
                    };
                    while number < end && follows(number) {
                        number += 1;
                    }
                    into.write(place(begin), &all[from..from + place(number) - place(begin)]);
                }
                (Data::Blank, Some(junk)) => {
                    while number < end && matches!(data(number), Data::Blank) {
                        number += 1;
                    }
                    let within = |number: u64| (number - begin / PAGE * PAGE) as usize * size;
                    into.write(place(begin), &junk.page(begin / PAGE, size)[within(begin)..within(number)]);
                }
                (Data::Zero | Data::Blank, junk) => {
                    let is_zero = |next: u64| match data(next) {
                        Data::Zero => true,
                        Data::Blank => junk.is_none(),
                        Data::Bytes(..) => false,
                    };
                    while number < end && is_zero(number) {
                        number += 1;
                    }
                    into.slice(place(begin)..place(number)).fill(0);
                }
            }
        }
    }

    /// True if the sector at `offset` is known to read as zeroes.
    pub(crate) fn is_zero(&self, offset: u64) -> bool {
        match self.sector(offset / self.sector).map_or(&Data::Blank, Sector::visible) {
            Data::Zero => true,
            Data::Blank => self.junk.is_none(),
            Data::Bytes(..) => false,
        }
    }

    /// The contents after the death of the writing process: a write under way is done in part, and a later flush covers
    /// it.
    pub(crate) fn orphan(&self) -> Media {
        let mut after = self.clone();
        let now = after.tick();
        for number in &self.dirty {
            let sector = after.sector_mut(*number);
            sector.versions.retain(|version| version.applied);
            for version in &mut sector.versions {
                version.write = Write(Rc::new(Cell::new(version.write.0.get().min(now))));
            }
        }
        after
    }

    /// The contents after a power loss.
    pub(crate) fn survive(&self, loss: Loss, rng: &mut Rng) -> Media {
        // Writes are told apart by where their state lies, but drawn for in the order in which they are met: the
        // same seed must lead to the same loss wherever memory happens to be.
        let mut kept: Vec<(*const Cell<u64>, bool)> = Vec::new();
        let mut after =
            Media { junk: self.junk.clone(), pages: self.pages.clone(), dirty: Default::default(), ..*self };
        for number in &self.dirty {
            let sector = after.sector_mut(*number);
            let versions = std::mem::take(&mut sector.versions);
            if versions.is_empty() {
                continue;
            }
            let survivor = match loss {
                Loss::All => None,
                Loss::Nothing => versions.iter().rev().find(|v| v.applied || rng.bool()),
                Loss::Torn => {
                    let n = rng.usize(0..=versions.len());
                    versions.get(n)
                }
                Loss::Writes => versions.iter().rev().find(|v| {
                    let id = Rc::as_ptr(&v.write.0);
                    if let Some((_, keep)) = kept.iter().find(|(known, _)| *known == id) {
                        return *keep;
                    }
                    kept.push((id, rng.bool()));
                    kept[kept.len() - 1].1
                }),
            };
            if let Some(version) = survivor {
                sector.durable = version.data.clone();
            }
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(media: &mut Media, at: Range<u64>, value: u8) -> Write {
        let buf = Buf::from_vec(vec![value; (at.end - at.start) as usize]);
        let write = media.begin(&at, Some(&buf));
        media.apply(&write, &at, Some(&buf));
        media.complete(&write, &at, false);
        write
    }

    fn get(media: &Media, at: Range<u64>) -> Vec<u8> {
        let buf = Buf::zeroed((at.end - at.start) as usize);
        media.read(&at, &buf);
        buf.to_vec().into_iter().step_by(512).collect()
    }

    #[test]
    fn only_a_flush_makes_durable() {
        let mut media = Media::new(512, None);
        put(&mut media, 0..1024, 1);
        let mark = media.flush_begins();
        put(&mut media, 512..1024, 2);
        media.flush(mark);
        let rng = &mut Rng::with_seed(1);
        assert_eq!(get(&media, 0..1536), [1, 2, 0]);
        assert_eq!(get(&media.survive(Loss::All, rng), 0..1536), [1, 1, 0]);
        assert_eq!(get(&media.survive(Loss::Nothing, rng), 0..1536), [1, 2, 0]);
    }

    #[test]
    fn the_same_losses_are_told_from_others() {
        let mut media = Media::new(512, Some(7));
        put(&mut media, 0..1024, 1);
        let lost = |media: &Media| media.survive(Loss::All, &mut Rng::with_seed(1));
        let first = lost(&media);
        put(&mut media, 512..1024, 2);
        assert!(lost(&media).is_same(&first), "nothing was made durable between");
        assert!(!media.is_same(&first), "there are writes that are not durable");
        let mark = media.flush_begins();
        media.flush(mark);
        assert!(!lost(&media).is_same(&first));
        assert!(!Media::new(512, None).is_same(&Media::new(512, Some(7))));
    }

    #[test]
    fn a_write_under_way_is_invisible_but_may_survive() {
        let mut media = Media::new(512, None);
        media.begin(&(0..512), Some(&Buf::from_vec(vec![9; 512])));
        assert_eq!(get(&media, 0..512), [0]);
        let survived: Vec<u8> =
            (0..64).map(|s| get(&media.survive(Loss::Torn, &mut Rng::with_seed(s)), 0..512)[0]).collect();
        assert!(survived.contains(&0) && survived.contains(&9));
    }

    #[test]
    fn what_a_dead_writer_left_can_be_flushed() {
        let mut media = Media::new(512, None);
        let (at, buf) = (0..1024, Buf::from_vec(vec![9; 1024]));
        let write = media.begin(&at, Some(&buf));
        media.apply(&write, &(0..512), Some(&buf.slice(0..512)));
        let mut after = media.orphan();
        assert_eq!(get(&after, 0..1024), [9, 0]);
        assert_eq!(get(&after.survive(Loss::All, &mut Rng::with_seed(1)), 0..1024), [0, 0]);
        let mark = after.flush_begins();
        after.flush(mark);
        for seed in 0..20 {
            assert_eq!(get(&after.survive(Loss::Torn, &mut Rng::with_seed(seed)), 0..1024), [9, 0]);
        }
    }

    #[test]
    fn writes_tear_at_sectors_or_not_at_all() {
        let mut media = Media::new(512, None);
        put(&mut media, 0..4096, 7);
        let (mut torn, mut whole) = (0, 0);
        for seed in 0..100 {
            let rng = &mut Rng::with_seed(seed);
            let sum = |v: Vec<u8>| v.into_iter().filter(|b| *b == 7).count();
            torn += usize::from(!matches!(sum(get(&media.survive(Loss::Torn, rng), 0..4096)), 0 | 8));
            whole += usize::from(matches!(sum(get(&media.survive(Loss::Writes, rng), 0..4096)), 0 | 8));
        }
        assert!(torn > 50 && whole == 100);
    }

    #[test]
    fn a_durable_write_hides_what_was_applied_before_it() {
        let mut media = Media::new(512, None);
        put(&mut media, 0..512, 1);
        let fua = put(&mut media, 0..512, 2);
        media.complete(&fua, &(0..512), true);
        for seed in 0..20 {
            assert_eq!(get(&media.survive(Loss::Torn, &mut Rng::with_seed(seed)), 0..512), [2]);
        }
    }
}
