//! Which physical extents are in use: a bitmap, and a count of free ones for each of its pages.
//!
//! Invariant: an extent is given to one asker only, from [`Pxb::alloc`] until [`Pxb::release`]. Extents that were given
//! and not taken are free again after a restart; freed extents are not given again before the caller reports that the
//! free is durable.

use crate::format::PAYLOAD;
use crate::{Change, Id, Object, Store};
use lamina_block::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// Extents in one page of the bitmap.
pub(super) const GROUP: u64 = PAYLOAD as u64 * 8;

/// Groups whose counts lie in one page.
pub(super) const COUNTS: u64 = PAYLOAD as u64 / 2;

/// Extents of a group.
pub(super) fn in_group(physical: u64, group: u64) -> u64 {
    GROUP.min(physical - group * GROUP)
}

pub(crate) fn groups(physical: u64) -> u64 {
    physical.div_ceil(GROUP)
}

/// Which free extent is given (the paper's three).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The lowest.
    #[default]
    FirstAvailable,
    /// The next one after the one given last; after the end, from the start on.
    LogStructured,
    /// The nearest to the one given last, on either side.
    ClosestToLast,
}

/// A bitmap of physical extents, in two objects.
pub struct Pxb {
    pub(super) bitmap: Object,
    pub(super) counts: Object,
    pub(super) physical: u64,
    pub(super) free: Rc<RefCell<Free>>,
    /// Given and not taken, or freed and not released.
    held: Rc<RefCell<BTreeSet<u64>>>,
    last: Cell<u64>,
    /// No extent below can be given; and how often extents were released.
    lowest: Cell<(u64, u64)>,
    marks: RefCell<Option<Marks>>,
    /// Groups of which the bits or the count cannot be read: none of their extents is given or freed.
    pub(super) lost: Rc<RefCell<BTreeSet<u64>>>,
}

/// Extents that can be given now. In memory always: two bytes for 32,512 extents.
pub(super) struct Free {
    groups: Vec<u16>,
    total: u64,
}

impl Free {
    fn less(&mut self, group: u64, by: u16) {
        let left = &mut self.groups[group as usize];
        let by = by.min(*left);
        *left -= by;
        self.total -= u64::from(by);
    }

    pub(super) fn set(&mut self, group: u64, to: u16) {
        let left = &mut self.groups[group as usize];
        self.total = self.total - u64::from(*left) + u64::from(to);
        *left = to;
    }
}

/// Which extents of a window somebody needs.
struct Marks {
    window: Range<u64>,
    bits: Vec<u64>,
}

impl Marks {
    fn add(&mut self, extent: u64) {
        if self.window.contains(&extent) {
            let at = extent - self.window.start;
            self.bits[(at / 64) as usize] |= 1 << (at % 64);
        }
    }

    fn add_all(&mut self, extents: Range<u64>) {
        let (from, to) = (extents.start.max(self.window.start), extents.end.min(self.window.end));
        let mut at = from;
        while at < to {
            let within = at - self.window.start;
            if within.is_multiple_of(64) && to - at >= 64 {
                self.bits[(within / 64) as usize] = u64::MAX;
                at += 64;
            } else {
                self.add(at);
                at += 1;
            }
        }
    }

    fn has(&self, extent: u64) -> bool {
        let at = extent.wrapping_sub(self.window.start);
        !self.window.contains(&extent) || self.bits[(at / 64) as usize] >> (at % 64) & 1 == 1
    }
}

impl Pxb {
    /// A new bitmap of `physical` extents, all free. `tags` find its two objects again.
    pub async fn create(store: &Store, physical: u64, tags: [u64; 2]) -> Result<Pxb> {
        let (bitmap_len, counts_len) = super::pxb_len(physical);
        let bitmap = store.alloc(bitmap_len, tags[0]).await?;
        let counts = store.alloc(counts_len, tags[1]).await?;
        // Zeroes say that nothing is used, so the counts are of used extents.
        Pxb::over(bitmap, counts, physical, &vec![0; counts_len as usize])
    }

    /// The bitmap in the objects `ids`, with the number that it was created with. Reads the counts. Extents whose count
    /// cannot be read or is impossible are not given to anybody: [`Pxb::lost`] tells how many groups of them there are.
    pub async fn open(store: &Store, ids: [Id; 2], physical: u64) -> Result<Pxb> {
        let (bitmap, counts) = (store.load(ids[0])?, store.load(ids[1])?);
        if (bitmap.len(), counts.len()) != super::pxb_len(physical) {
            let message =
                format!("objects {} and {} are no bitmap of {physical} extents", ids[0].0, ids[1].0);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let mut used = vec![0; counts.len() as usize];
        let mut lost = BTreeSet::new();
        for (first, part) in (0..).step_by(COUNTS as usize).zip(used.chunks_mut(PAYLOAD)) {
            match counts.read(first * 2, part).await {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Corrupt => lost.extend(first..first + part.len() as u64 / 2),
                Err(e) => return Err(e),
            }
        }
        let pxb = Pxb::over(bitmap, counts, physical, &used)?;
        lost.into_iter().for_each(|group| pxb.lose(group));
        Ok(pxb)
    }

    fn over(bitmap: Object, counts: Object, physical: u64, used: &[u8]) -> Result<Pxb> {
        let used = used.chunks_exact(2).map(|count| u64::from(u16::from_le_bytes([count[0], count[1]])));
        let mut lost = BTreeSet::new();
        let free = (0..).zip(used).map(|(group, used)| {
            in_group(physical, group).checked_sub(used).unwrap_or_else(|| {
                lost.insert(group);
                0
            }) as u16
        });
        let groups: Vec<u16> = free.collect();
        let total = groups.iter().map(|count| u64::from(*count)).sum();
        let free = Rc::new(RefCell::new(Free { groups, total }));
        let (held, last, lowest, marks) = (Rc::default(), Cell::new(0), Cell::default(), RefCell::default());
        let lost = Rc::new(RefCell::new(lost));
        Ok(Pxb { bitmap, counts, physical, free, held, last, lowest, marks, lost })
    }

    /// Its objects: the bitmap and the counts.
    pub fn ids(&self) -> [Id; 2] {
        [self.bitmap.id(), self.counts.id()]
    }

    /// Extents that can be given now.
    pub fn free_extents(&self) -> u64 {
        self.free.borrow().total
    }

    /// The bytes of memory that the bitmap always takes.
    pub fn memory(&self) -> usize {
        self.free.borrow().groups.len() * 2
    }

    /// Gives a free extent to one caller only. [`Pxb::take`] makes it last, [`Pxb::release`] gives it back.
    ///
    /// Fails with `NoSpace` if there is none.
    pub async fn alloc(&self, policy: Policy) -> Result<u64> {
        let last = self.last.get();
        loop {
            let (lowest, releases) = self.lowest.get();
            let found = match policy {
                Policy::FirstAvailable => self.above(lowest).await?,
                Policy::LogStructured => match self.above(last).await? {
                    Some(next) => Some(next),
                    None => self.above(0).await?,
                },
                Policy::ClosestToLast => self.closest(last).await?,
            };
            let Some(found) = found else {
                return Err(Error::new(ErrorKind::NoSpace, "no extent is free"));
            };
            // Another caller may have got it while a page was read.
            if self.is_free(found).await? {
                self.held.borrow_mut().insert(found);
                self.free.borrow_mut().less(found / GROUP, 1);
                if let Some(marks) = &mut *self.marks.borrow_mut() {
                    marks.add(found);
                }
                // Unless some below were released while pages were read.
                if policy == Policy::FirstAvailable && self.lowest.get() == (lowest, releases) {
                    self.lowest.set((found + 1, releases));
                }
                let next = if policy == Policy::LogStructured { found + 1 } else { found };
                self.last.set(next);
                return Ok(found);
            }
        }
    }

    /// Adds to `change`: an extent that was given is in use. The change must be made.
    pub fn take(&self, change: Change, extent: u64) -> Result<Change> {
        match self.held.borrow().contains(&extent) {
            true => Ok(self.set(change, extent, true)),
            false => Err(Error::invalid(format!("extent {extent} was not given to anybody"))),
        }
    }

    /// Adds to `change`: an extent is no longer in use. The change must be made, and the extent
    /// is not given again before [`Pxb::release`].
    ///
    /// Fails with `Invalid` if the extent was not in use, with `Corrupt` if its state is unknown.
    pub async fn free(&self, change: Change, extent: u64) -> Result<Change> {
        let refused = |what| Err(Error::invalid(format!("extent {extent} {what}")));
        if extent >= self.physical {
            return refused("does not exist");
        }
        if self.lost.borrow().contains(&(extent / GROUP)) {
            let message = format!("the metadata of extent {extent} and its neighbours is damaged");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let mut byte = [0];
        self.bitmap.read(extent / 8, &mut byte).await?;
        if byte[0] >> (extent % 8) & 1 == 0 {
            return refused("is not in use");
        }
        match self.held.borrow_mut().insert(extent) {
            true => Ok(self.set(change, extent, false)),
            false => refused("is being freed"),
        }
    }

    /// Extents that were freed, durably, or given and not taken, can be given again.
    pub fn release(&self, extents: &[u64]) {
        let (lowest, releases) = self.lowest.get();
        self.lowest.set((extents.iter().copied().fold(lowest, u64::min), releases + 1));
        let (mut held, mut free) = (self.held.borrow_mut(), self.free.borrow_mut());
        for extent in extents {
            let group = extent / GROUP;
            if held.remove(extent) && !self.lost.borrow().contains(&group) {
                let more = free.groups[group as usize].saturating_add(1);
                free.set(group, more);
            }
        }
    }

    /// Extents may be free that were not.
    pub(super) fn look_from_the_start(&self) {
        self.lowest.set((0, self.lowest.get().1 + 1));
    }

    /// Extents that were freed stay in use after all: the change was not made.
    pub fn keep(&self, extents: &[u64]) {
        let mut held = self.held.borrow_mut();
        extents.iter().for_each(|extent| {
            held.remove(extent);
        });
    }

    /// Physical extents in all.
    pub fn physical(&self) -> u64 {
        self.physical
    }

    /// Begins to find the extents of `window` that are not needed: until [`Pxb::end_marking`], extents that are given
    /// or held count as marked. Takes a bit for each.
    pub fn begin_marking(&self, window: Range<u64>) {
        let window = window.start.min(self.physical)..window.end.min(self.physical);
        let words = (window.end - window.start).div_ceil(64) as usize;
        let mut marks = Marks { window, bits: vec![0; words] };
        for extent in self.held.borrow().iter() {
            marks.add(*extent);
        }
        *self.marks.borrow_mut() = Some(marks);
    }

    /// These extents are needed.
    pub fn mark(&self, extents: Range<u64>) {
        if let Some(marks) = &mut *self.marks.borrow_mut() {
            marks.add_all(extents);
        }
    }

    /// The extents of [`Pxb::used`] in the window that are not marked.
    pub async fn unmarked(&self, from: u64) -> Result<(Vec<u64>, u64)> {
        let (mut used, next) = self.used(from).await?;
        let marks = self.marks.borrow();
        used.retain(|extent| marks.as_ref().is_some_and(|marks| !marks.has(*extent)));
        Ok((used, next))
    }

    /// Ends what [`Pxb::begin_marking`] began.
    pub fn end_marking(&self) {
        *self.marks.borrow_mut() = None;
    }

    /// The page of the bitmap and the place of the count that say whether an extent is in use: which of them a change
    /// touches.
    pub fn places(extent: u64) -> (u64, u64) {
        (extent / GROUP, extent / GROUP * 2 / PAYLOAD as u64)
    }

    /// The extents whose bits lie in one page with that of `extent`: where they begin and end.
    pub fn page_of(extent: u64) -> (u64, u64) {
        let first = extent / GROUP * GROUP;
        (first, first.saturating_add(GROUP))
    }

    /// The extents in use, from `from` on, of those whose bits lie in one page together with it; where the next page
    /// begins.
    pub async fn used(&self, from: u64) -> Result<(Vec<u64>, u64)> {
        let (group, end) = (from / GROUP, (from / GROUP + 1).saturating_mul(GROUP).min(self.physical));
        let bytes = self.page(group).await?;
        let bit = |extent: &u64| {
            let within = extent - group * GROUP;
            bytes[(within / 8) as usize] >> (within % 8) & 1 == 1
        };
        Ok(((from..end).filter(bit).collect(), end))
    }

    /// Adds to `change`: extents are in use that were never given, such as those of earlier data. No caller may ask for
    /// extents until the change is made. They lie in one page of the bitmap, as `used` gives them.
    pub fn claim(&self, change: Change, extents: Range<u64>) -> Result<Change> {
        let (first, group) = (extents.start, extents.start / GROUP);
        let in_one = !extents.is_empty() && (extents.end - 1) / GROUP == group;
        if !in_one || extents.end > self.physical {
            return Err(Error::invalid(format!("extents {extents:?} are not of one page")));
        }
        let (len, from) = ((extents.end - 1) / 8 - first / 8 + 1, first / 8 * 8);
        let claimed = Rc::new(Cell::new(0u16));
        let counted = Rc::clone(&claimed);
        let mark = move |bytes: &mut [u8]| {
            for extent in extents.clone() {
                let (byte, bit) = (((extent - from) / 8) as usize, 1u8 << (extent % 8));
                claimed.set(claimed.get() + u16::from(bytes[byte] & bit == 0));
                bytes[byte] |= bit;
            }
        };
        let free = Rc::clone(&self.free);
        let count = move |count: &mut [u8]| {
            let now = u16::from_le_bytes([count[0], count[1]]).saturating_add(counted.get());
            count.copy_from_slice(&now.to_le_bytes());
            free.borrow_mut().less(group, counted.get());
        };
        let change = change.update(self.bitmap.id(), first / 8, len as usize, mark);
        Ok(change.update(self.counts.id(), group * 2, 2, count))
    }

    fn set(&self, change: Change, extent: u64, used: bool) -> Change {
        let bit = 1 << (extent % 8);
        let held = Rc::clone(&self.held);
        let mark = move |byte: &mut [u8]| match used {
            // From this moment on the bitmap itself keeps others away.
            true => {
                byte[0] |= bit;
                held.borrow_mut().remove(&extent);
            }
            false => byte[0] &= !bit,
        };
        let count = move |count: &mut [u8]| {
            let now = u16::from_le_bytes([count[0], count[1]]);
            let next = if used { now.saturating_add(1) } else { now.saturating_sub(1) };
            count.copy_from_slice(&next.to_le_bytes());
        };
        change.update(self.bitmap.id(), extent / 8, 1, mark).update(
            self.counts.id(),
            extent / GROUP * 2,
            2,
            count,
        )
    }

    /// The bytes of a group's page. There is no pause between the last one that is read and the return.
    async fn page(&self, group: u64) -> Result<Vec<u8>> {
        let start = group * PAYLOAD as u64;
        let mut bytes = vec![0; PAYLOAD.min((self.bitmap.len() - start) as usize)];
        self.bitmap.read(start, &mut bytes).await?;
        Ok(bytes)
    }

    async fn is_free(&self, extent: u64) -> Result<bool> {
        let mut byte = [0];
        self.bitmap.read(extent / 8, &mut byte).await?;
        Ok(byte[0] >> (extent % 8) & 1 == 0 && !self.held.borrow().contains(&extent))
    }

    /// The extents of `group` and of `range` that can be given.
    async fn free_in(
        &self,
        group: u64,
        range: Range<u64>,
    ) -> Result<impl DoubleEndedIterator<Item = u64> + use<'_>> {
        let bytes = self.page(group).await?;
        let first = group * GROUP;
        let range = range.start.max(first)..range.end.min(self.physical).min(first + GROUP);
        let places = (range.start - first) / 8..range.end.saturating_sub(first).div_ceil(8);
        let with_room = places.map(move |at| (at, bytes[at as usize])).filter(|(_, byte)| *byte != 0xFF);
        let free = with_room.flat_map(move |(at, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 0).map(move |bit| first + 8 * at + bit)
        });
        Ok(free.filter(move |extent| range.contains(extent) && !self.held.borrow().contains(extent)))
    }

    /// As [`Pxb::free_in`]; `None` if the group has none, or if nothing says which.
    async fn room_in(
        &self,
        group: u64,
        range: Range<u64>,
    ) -> Result<Option<impl DoubleEndedIterator<Item = u64> + use<'_>>> {
        if self.free.borrow().groups[group as usize] == 0 {
            return Ok(None);
        }
        match self.free_in(group, range).await {
            Ok(free) => Ok(Some(free)),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                self.lose(group);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// The lowest free extent that is not below `from`.
    async fn above(&self, from: u64) -> Result<Option<u64>> {
        for group in from / GROUP..groups(self.physical) {
            if let Some(mut free) = self.room_in(group, from..u64::MAX).await?
                && let Some(found) = free.next()
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The highest free extent below `to`.
    async fn below(&self, to: u64) -> Result<Option<u64>> {
        for group in (0..to.div_ceil(GROUP)).rev() {
            if let Some(mut free) = self.room_in(group, 0..to).await?
                && let Some(found) = free.next_back()
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn closest(&self, to: u64) -> Result<Option<u64>> {
        let (above, below) = (self.above(to).await?, self.below(to).await?);
        Ok(match (above, below) {
            (Some(above), Some(below)) if to - below < above - to => Some(below),
            (Some(above), _) => Some(above),
            (None, below) => below,
        })
    }
}
