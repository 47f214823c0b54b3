//! Which physical extents are in use: a bitmap, and a count of free ones for each of its pages.
//!
//! Invariant: an extent is given to one asker only, from [`Pxb::alloc`] until [`Pxb::release`]. What was given and not
//! taken is free again after a restart; what was freed is not given again before the caller says that this is durable.

use crate::format::PAYLOAD;
use crate::{Change, Id, Object, Store};
use lamina_block::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// Extents in one page of the bitmap.
const GROUP: u64 = PAYLOAD as u64 * 8;

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
    bitmap: Object,
    counts: Object,
    physical: u64,
    /// Extents of each group that can be given now. In memory always: two bytes for 32,512 extents.
    free: RefCell<Vec<u16>>,
    /// Given and not taken, or freed and not released.
    held: Rc<RefCell<BTreeSet<u64>>>,
    last: Cell<u64>,
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

    /// The bitmap in the objects `ids`, with the number that it was created with. Reads the counts.
    pub async fn open(store: &Store, ids: [Id; 2], physical: u64) -> Result<Pxb> {
        let (bitmap, counts) = (store.load(ids[0])?, store.load(ids[1])?);
        if (bitmap.len(), counts.len()) != super::pxb_len(physical) {
            let message =
                format!("objects {} and {} are no bitmap of {physical} extents", ids[0].0, ids[1].0);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let mut used = vec![0; counts.len() as usize];
        counts.read(0, &mut used).await?;
        Pxb::over(bitmap, counts, physical, &used)
    }

    fn over(bitmap: Object, counts: Object, physical: u64, used: &[u8]) -> Result<Pxb> {
        let used = used.chunks_exact(2).map(|count| u64::from(u16::from_le_bytes([count[0], count[1]])));
        let in_group = |group: u64| GROUP.min(physical - group * GROUP);
        let free = (0..).zip(used).map(|(group, used)| {
            let free = in_group(group).checked_sub(used);
            free.map(|free| free as u16).ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, format!("{used} extents of group {group} are in use"))
            })
        });
        let free = RefCell::new(free.collect::<Result<_>>()?);
        Ok(Pxb { bitmap, counts, physical, free, held: Rc::default(), last: Cell::new(0) })
    }

    /// Its objects: the bitmap and the counts.
    pub fn ids(&self) -> [Id; 2] {
        [self.bitmap.id(), self.counts.id()]
    }

    /// Extents that can be given now.
    pub fn free_extents(&self) -> u64 {
        self.free.borrow().iter().map(|count| u64::from(*count)).sum()
    }

    /// Bytes of memory that it always takes.
    pub fn memory(&self) -> usize {
        self.free.borrow().len() * 2
    }

    /// Gives a free extent, and nobody else gets it. [`Pxb::take`] makes it last, [`Pxb::release`] gives it back.
    ///
    /// Fails with `NoSpace` if there is none.
    pub async fn alloc(&self, policy: Policy) -> Result<u64> {
        let last = self.last.get();
        loop {
            let found = match policy {
                Policy::FirstAvailable => self.above(0).await?,
                Policy::LogStructured => match self.above(last).await? {
                    Some(next) => Some(next),
                    None => self.above(0).await?,
                },
                Policy::ClosestToLast => self.closest(last).await?,
            };
            let Some(found) = found else {
                return Err(Error::new(ErrorKind::NoSpace, "no extent is free"));
            };
            // Somebody else may have got it while another page was read.
            if self.is_free(found).await? {
                self.held.borrow_mut().insert(found);
                let left = &mut self.free.borrow_mut()[(found / GROUP) as usize];
                *left = left.saturating_sub(1);
                let next = if policy == Policy::LogStructured { found + 1 } else { found };
                self.last.set(next);
                return Ok(found);
            }
        }
    }

    /// Adds to `change`: an extent that was given is in use. The change must be made.
    pub fn take(&self, change: Change, extent: u64) -> Result<Change> {
        match self.held.borrow().contains(&extent) {
            true => Ok(self.mark(change, extent, true)),
            false => Err(Error::invalid(format!("extent {extent} was not given to anybody"))),
        }
    }

    /// Adds to `change`: an extent is no longer in use. The change must be made, and the extent
    /// is not given again before [`Pxb::release`].
    ///
    /// Fails with `Invalid` if it was not in use.
    pub async fn free(&self, change: Change, extent: u64) -> Result<Change> {
        let refused = |what| Err(Error::invalid(format!("extent {extent} {what}")));
        if extent >= self.physical {
            return refused("does not exist");
        }
        let mut byte = [0];
        self.bitmap.read(extent / 8, &mut byte).await?;
        if byte[0] >> (extent % 8) & 1 == 0 {
            return refused("is not in use");
        }
        match self.held.borrow_mut().insert(extent) {
            true => Ok(self.mark(change, extent, false)),
            false => refused("is being freed"),
        }
    }

    /// Extents that were freed, durably, or given and not taken, can be given again.
    pub fn release(&self, extents: &[u64]) {
        let (mut held, mut free) = (self.held.borrow_mut(), self.free.borrow_mut());
        for extent in extents {
            if held.remove(extent) {
                let count = &mut free[(extent / GROUP) as usize];
                *count = count.saturating_add(1);
            }
        }
    }

    fn mark(&self, change: Change, extent: u64, used: bool) -> Change {
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

    fn has_room(&self, group: u64) -> bool {
        self.free.borrow()[group as usize] > 0
    }

    /// The lowest free extent that is not below `from`.
    async fn above(&self, from: u64) -> Result<Option<u64>> {
        for group in from / GROUP..groups(self.physical) {
            if self.has_room(group)
                && let Some(found) = self.free_in(group, from..u64::MAX).await?.next()
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The highest free extent below `to`.
    async fn below(&self, to: u64) -> Result<Option<u64>> {
        for group in (0..to.div_ceil(GROUP)).rev() {
            if self.has_room(group)
                && let Some(found) = self.free_in(group, 0..to).await?.next_back()
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
