//! The check of a [`Pxb`], and its repair by a caller that knows which extents are in use.
//!
//! No caller may ask for extents or give any back meanwhile.

use super::Pxb;
use super::pxb::{COUNTS, GROUP, groups, in_group};
use crate::Change;
use crate::format::PAYLOAD;
use lamina_block::{ErrorKind, Result};

/// The state of the extents whose bits lie in one page of the bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bits {
    /// These are in use.
    Used(Vec<u64>),
    /// The page is damaged.
    Damaged,
}

/// The state of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The count is the number of extents in use.
    Right,
    /// The count is another number.
    Wrong,
    /// The count cannot be read, and neither can any of those beside it: [`Pxb::restore_counts`].
    Damaged,
}

impl Pxb {
    /// Groups (each of 32,512 extents) of which something was found damaged so far. None of their extents is given.
    pub fn lost(&self) -> usize {
        self.lost.borrow().len()
    }

    /// Nothing is given or freed in this group from now on.
    pub(super) fn lose(&self, group: u64) {
        if self.lost.borrow_mut().insert(group) {
            tracing::warn!(
                "metadata about the use of {} extents from {} on is damaged: these extents are not allocated; check \
                 and repair it",
                in_group(self.physical, group),
                group * GROUP
            );
        }
        self.free.borrow_mut().set(group, 0);
    }

    /// The state in the page with the bit of `from`, and the start of the next page.
    pub async fn bits(&self, from: u64) -> Result<(Bits, u64)> {
        let group = from / GROUP;
        let (_, next) = Pxb::page_of(from);
        let next = next.min(self.physical);
        if self.bitmap.is_damaged(group).await? {
            return Ok((Bits::Damaged, next));
        }
        match self.used(group * GROUP).await {
            Ok((used, _)) => Ok((Bits::Used(used), next)),
            Err(e) if e.kind() == ErrorKind::Corrupt => Ok((Bits::Damaged, next)),
            Err(e) => Err(e),
        }
    }

    /// Whether the count of the extents that [`Pxb::bits`] looks at is `used`.
    pub async fn count(&self, from: u64, used: u64) -> Result<Count> {
        let group = from / GROUP;
        if self.counts.is_damaged(group / COUNTS).await? {
            return Ok(Count::Damaged);
        }
        let mut count = [0; 2];
        match self.counts.read(group * 2, &mut count).await {
            Ok(()) if u64::from(u16::from_le_bytes(count)) == used => Ok(Count::Right),
            Ok(()) => Ok(Count::Wrong),
            Err(e) if e.kind() == ErrorKind::Corrupt => Ok(Count::Damaged),
            Err(e) => Err(e),
        }
    }

    /// Rebuilds the damaged page with the bit of `from`, durably, from `is_used`. Its count is to be corrected
    /// afterwards ([`Pxb::recount`]).
    pub async fn restore_bits(&self, from: u64, is_used: impl Fn(u64) -> bool) -> Result<()> {
        let group = from / GROUP;
        let mut bytes = vec![0; PAYLOAD];
        for within in (0..in_group(self.physical, group)).filter(|within| is_used(group * GROUP + within)) {
            bytes[(within / 8) as usize] |= 1 << (within % 8);
        }
        self.bitmap.restore(group, &bytes).await
    }

    /// Makes the damaged page with the count of `from` anew, durably, from the bitmap. Groups whose bits are damaged
    /// count as full.
    pub async fn restore_counts(&self, from: u64) -> Result<()> {
        let first = from / GROUP / COUNTS * COUNTS;
        let end = (first + COUNTS).min(groups(self.physical));
        let mut bytes = Vec::with_capacity(PAYLOAD);
        let mut free = Vec::new();
        for group in first..end {
            let all = in_group(self.physical, group);
            let used = match self.bits(group * GROUP).await?.0 {
                Bits::Used(used) => used.len() as u64,
                Bits::Damaged => all,
            };
            bytes.extend((used as u16).to_le_bytes());
            free.push((all - used) as u16);
        }
        self.counts.restore(first / COUNTS, &bytes).await?;
        for (group, free) in (first..).zip(free) {
            self.lost.borrow_mut().remove(&group);
            self.look_from_the_start();
            self.free.borrow_mut().set(group, free);
        }
        Ok(())
    }

    /// Adds to `change`: the count of the extents that [`Pxb::used`] gives is that of the bitmap, after a crash that
    /// may have kept either without the other. A damaged page is left alone. Where the next page of the bitmap begins.
    pub async fn recount(&self, change: Change, from: u64) -> Result<(Change, u64)> {
        let group = from / GROUP;
        let (used, next) = match self.used(group * GROUP).await {
            Ok((used, next)) => (used.len() as u16, next),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                self.lose(group);
                return Ok((change, Pxb::page_of(from).1.min(self.physical)));
            }
            Err(e) => return Err(e),
        };
        let mut count = [0; 2];
        match self.counts.read(group * 2, &mut count).await {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                self.lose(group);
                return Ok((change, next));
            }
            Err(e) => return Err(e),
        }
        self.lost.borrow_mut().remove(&group);
        self.look_from_the_start();
        self.free.borrow_mut().set(group, in_group(self.physical, group) as u16 - used);
        Ok((change.write(self.counts.id(), group * 2, used.to_le_bytes()), next))
    }
}
