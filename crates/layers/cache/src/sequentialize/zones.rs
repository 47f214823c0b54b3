//! Segments that are zones of a zoned device.
//!
//! ```text
//!      superblock, checkpoints │ segment 0  │ segment 1  │ …
//!      conventional zones      │ zone 0     │ zone 1     │ …
//! ```
//!
//! Invariants:
//! * A batch begins at the write pointer of its zone: one batch of a class is under way at a time, and the first one of
//!   a segment follows a reset.
//! * The last batch of a zone fills it, and a zone that is closed early is finished. So no more zones are written in
//!   part than there are classes, which the device must allow.
//! * After a batch that failed, and at opening, the device says where the pointers are, not the log. A segment goes on
//!   behind a torn batch.
//!
//! Devices without conventional zones are deliberately left out: superblock and checkpoints are written in place.

use super::format::{
    Checkpoint, PAGE_BLOCKS, SEGMENT_SLOTS, SEGMENT_SLOTS_MAX, SEGMENTS_MIN, SLOT, SLOTS_MAX, Super,
};
use super::log::Log;
use super::segments::{Segment, State};
use lamina_block::{Buf, Durability, Error, ExtentState, Io, Node, Result, Zones};
use lamina_kit::flaw::flawed;
use lamina_kit::range_locks::{RangeLock, RangeLocks};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// Classes of data, at the least, and one of pages of the map: each has an open zone.
const OPEN_MIN: u32 = 3;

/// The zones of the device below, segment by segment.
pub(super) struct ZonedSegments {
    zones: Zones,
    /// Zones that were closed early, and could not be finished yet.
    unfinished: RefCell<BTreeSet<u32>>,
    /// On segments: a zone is not finished while it is reset to be used again.
    locks: Rc<RangeLocks>,
}

/// Slots up to a write pointer.
fn slots_of(pointer: u64) -> u32 {
    pointer.div_ceil(SLOT as u64) as u32
}

/// The layout of a log on zones. Its blocks are as many as fit.
pub(super) fn shape(zones: &Zones, uuid: u128, key: u64) -> Result<Super> {
    let slots = |bytes: u64| {
        let slots = u32::try_from(bytes / SLOT as u64).ok().filter(|slots| *slots < SLOTS_MAX);
        slots.filter(|_| bytes.is_multiple_of(SLOT as u64)).ok_or_else(|| {
            Error::unsupported(format!("{bytes} bytes in its zones are no multiple of {SLOT}, or too many"))
        })
    };
    let (segments_at, segment_slots, stride) =
        (slots(zones.first)?, slots(zones.capacity)?, slots(zones.size)?);
    if !(*SEGMENT_SLOTS.start()..=SEGMENT_SLOTS_MAX).contains(&segment_slots) {
        let bytes = zones.capacity;
        return Err(Error::unsupported(format!("its zones of {bytes} bytes are too small or too large")));
    }
    if zones.open_max > 0 && zones.open_max < OPEN_MIN {
        let limit = zones.open_max;
        return Err(Error::unsupported(format!(
            "its limit of {limit} open zones is below the {OPEN_MIN} of a log"
        )));
    }
    // So many have addresses.
    let segments = zones.count.min((SLOTS_MAX - segments_at) / stride);
    let checkpoint_slots = Checkpoint::slots((segments * segment_slots).div_ceil(PAGE_BLOCKS), segments);
    if segments < SEGMENTS_MIN || 2 * checkpoint_slots >= segments_at {
        let needed = (1 + 2 * u64::from(checkpoint_slots)) * SLOT as u64;
        return Err(Error::invalid(format!(
            "{segments} sequential zones behind {} conventional bytes are too few for a log: at least \
             {SEGMENTS_MIN} behind {needed} are needed",
            zones.first
        )));
    }
    let class_limit = if zones.open_max == 0 { 0 } else { zones.open_max - 1 };
    let mut of = Super {
        segment_slots,
        segments,
        segments_at,
        blocks: 0,
        checkpoint_slots,
        uuid,
        key,
        is_home: false,
        stride,
        class_limit,
    };
    of.blocks = of.blocks_max();
    Ok(of)
}

/// Makes all zones empty, whatever is there.
pub(super) async fn empty(child: &Rc<Node>) -> Result<()> {
    match child.zones() {
        Some(zones) => child.submit(Io::discard(zones.range())).await,
        None => Ok(()),
    }
}

impl ZonedSegments {
    /// The zones of a device with a log, if it has any. A log that was made for zones can also be on another device.
    pub fn of(child: &Node, of: &Super) -> Result<Option<ZonedSegments>> {
        let Some(zones) = child.zones() else { return Ok(None) };
        let place = |slot: u32| u64::from(slot) * SLOT as u64;
        let is_same = (place(of.segments_at), place(of.stride), place(of.segment_slots))
            == (zones.first, zones.size, zones.capacity);
        if !is_same || of.segments > zones.count {
            return Err(Error::unsupported("its log was made for a device with other zones"));
        }
        let needed = of.classes() + 1;
        if zones.open_max > 0 && needed > zones.open_max {
            let limit = zones.open_max;
            return Err(Error::unsupported(format!(
                "its limit of {limit} open zones is below the {needed} of its log"
            )));
        }
        Ok(Some(ZonedSegments { zones, unfinished: RefCell::default(), locks: Rc::default() }))
    }

    async fn lock(&self, segment: u32) -> RangeLock {
        self.locks.lock(&(u64::from(segment)..u64::from(segment) + 1)).await
    }
}

impl Log {
    /// Batches of a class that are under way together, at most.
    pub fn batches(&self, otherwise: usize) -> usize {
        let is_ordered = self.zoned.is_some() && !flawed("two batches of a zone out of order");
        if is_ordered { 1 } else { otherwise }
    }

    /// The length of a batch of so many slots: the last one of a zone goes to its end.
    pub fn padded(&self, at: u32, slots: u32) -> u32 {
        let is_last = at + slots + 2 > self.shape.segment_slots;
        if self.zoned.is_some() && is_last { self.shape.segment_slots - at } else { slots }
    }

    /// Writes a batch to its segment.
    pub async fn put_batch(&self, segment: u32, at: u32, bytes: Buf, durability: Durability) -> Result<()> {
        if at == 0
            && let Some(of) = &self.zoned
            && !flawed("a zone is not reset")
        {
            self.finish_left(of).await;
            let _lock = of.lock(segment).await;
            self.child.submit(Io::discard(of.zones.usable(segment))).await?;
        }
        let place = self.shape.place(self.shape.start(segment) + at);
        self.child.submit(Io::write(place, bytes, durability)).await
    }

    /// A batch in a segment has failed: the next one begins where the device says, if the segment stays open.
    pub async fn zone_failed(&self, segment: u32) {
        let Some(of) = &self.zoned else { return };
        let pointer = self.pointers(of.zones.usable(segment)).await.map(|pointers| pointers[0]);
        let is_open = self.segments.borrow().get(segment).state == State::Open;
        match pointer {
            Ok(pointer) if is_open && self.fill_slot(of, segment, pointer).await.is_ok() => {
                self.segments.borrow_mut().get_mut(segment).end = slots_of(pointer);
            }
            Ok(_) | Err(_) => {
                self.close_segment(segment);
                of.unfinished.borrow_mut().insert(segment);
                self.finish_left(of).await;
            }
        }
    }

    fn close_segment(&self, segment: u32) {
        let mut segments = self.segments.borrow_mut();
        segments.close(segment);
        for stream in self.streams.iter().filter(|stream| stream.open.get() == Some(segment)) {
            stream.open.set(None);
        }
    }

    /// Finishes the zones that were closed early: the device counts them as open until then. What fails is tried again
    /// before another zone is opened.
    async fn finish_left(&self, of: &ZonedSegments) {
        let left: Vec<u32> = of.unfinished.borrow().iter().copied().collect();
        for segment in left {
            let _lock = of.lock(segment).await;
            // A zone that is in use again has been reset.
            let is_open = self.segments.borrow().get(segment).state == State::Open;
            if let Err(e) = if is_open { Ok(()) } else { self.finish_at_pointer(of, segment).await } {
                tracing::warn!(device = %self.name, segment, error = %e, "a zone cannot be finished");
                continue;
            }
            of.unfinished.borrow_mut().remove(&segment);
        }
    }

    async fn finish_at_pointer(&self, of: &ZonedSegments, segment: u32) -> Result<()> {
        let pointers = self.pointers(of.zones.usable(segment)).await?;
        self.finish(of, segment, pointers[0]).await
    }

    /// Finishes a zone that is written up to `pointer`, if it is written in part.
    async fn finish(&self, of: &ZonedSegments, segment: u32, pointer: u64) -> Result<()> {
        let Range { start, end } = of.zones.usable(segment);
        if pointer == 0 || pointer >= of.zones.capacity {
            return Ok(());
        }
        self.child.submit(Io::discard(start + pointer..end)).await
    }

    /// Brings a write pointer that is within a slot to its end.
    async fn fill_slot(&self, of: &ZonedSegments, segment: u32, pointer: u64) -> Result<()> {
        let rest = pointer.next_multiple_of(SLOT as u64) - pointer;
        if rest == 0 {
            return Ok(());
        }
        let place = of.zones.start(segment) + pointer;
        self.child.submit(Io::write(place, Buf::zeroed(rest as usize), Durability::Cached)).await
    }

    /// The write pointers of the zones that begin in a range, in bytes from their beginnings.
    async fn pointers(&self, at: Range<u64>) -> Result<Vec<u64>> {
        let Some(of) = &self.zoned else { return Ok(Vec::new()) };
        let mut pointers = Vec::new();
        let mut from = at.start;
        let mut holes = Vec::new();
        for extent in self.child.extents(at.clone()).await? {
            if extent.state == ExtentState::Hole {
                holes.push(from..from + extent.len);
            }
            from += extent.len;
        }
        let mut holes = holes.into_iter().peekable();
        for start in (at.start..at.end).step_by(of.zones.size as usize) {
            while holes.next_if(|hole| hole.end <= start).is_some() {}
            let written = holes.peek().map_or(of.zones.capacity, |hole| hole.start.saturating_sub(start));
            pointers.push(written.min(of.zones.capacity));
        }
        Ok(pointers)
    }

    /// Recovery: slots of a segment that are written, or may be.
    pub async fn written(&self, segment: u32) -> Result<u32> {
        let Some(of) = &self.zoned else { return Ok(self.shape.segment_slots) };
        let pointers = self.pointers(of.zones.usable(segment)).await?;
        Ok((pointers[0] / SLOT as u64) as u32)
    }

    /// Recovery: segments end where the write pointers are. All pointers, segment by segment; none without zones.
    ///
    /// Segments of pages in which nothing counts are free at once: no recovery looks for pages. Otherwise a crash while
    /// the map is written would cost a segment, and the next one might find none.
    pub async fn end_at_pointers(&self) -> Result<Vec<u64>> {
        let Some(of) = &self.zoned else { return Ok(Vec::new()) };
        let pointers = self.pointers(of.zones.start(0)..of.zones.start(self.shape.segments)).await?;
        let mut segments = self.segments.borrow_mut();
        for (number, pointer) in (0..).zip(&pointers) {
            let last = segments.owners(number).last().map_or(0, |(at, _)| at + 1);
            if u64::from(last) * SLOT as u64 > *pointer {
                let message = format!("slot {} of segment {number} is behind the write pointer", last - 1);
                return Err(self.damaged(message));
            }
            if segments.get(number).state != State::Free {
                let segment = segments.get_mut(number);
                segment.end = slots_of(*pointer);
                segment.durable = segment.end;
            }
        }
        let is_empty = |segment: &Segment| {
            segment.state == State::Closed && segment.live == 0 && segment.class == self.page_class()
        };
        let empty = segments.iter().filter(|(_, segment)| is_empty(segment)).map(|(number, _)| number);
        let empty: Vec<u32> = empty.collect();
        segments.end_freeing(&empty, true);
        Ok(pointers)
    }

    /// Recovery: no zones are written in part but those of open segments.
    pub async fn close_zones(&self, pointers: &[u64]) -> Result<()> {
        let Some(of) = &self.zoned else { return Ok(()) };
        for (number, pointer) in (0..).zip(pointers.iter().copied()) {
            let state = self.segments.borrow().get(number).state;
            match state {
                State::Open => self.fill_slot(of, number, pointer).await?,
                State::Closed | State::Freeing => self.finish(of, number, pointer).await?,
                State::Free if pointer == 0 || pointer == of.zones.capacity => {}
                State::Free => self.child.submit(Io::discard(of.zones.usable(number))).await?,
            }
        }
        Ok(())
    }
}
