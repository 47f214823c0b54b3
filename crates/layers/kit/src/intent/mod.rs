//! Intent: the regions of a device that are being written, known after a crash.
//!
//! A layer that writes to several places has to know after a crash where they may differ. It marks a region
//! before it writes there (`covers`, or `mark`), and the region's bit is durable before the write begins;
//! some seconds after the last write, when all places were flushed, the bit is cleared (`quiet`, `clear`).
//! The bits that are set when the intent is opened are the regions with writes that a crash may have
//! interrupted.
//!
//! ```text
//!   write ─▶ covers? ── yes ─▶ go: a few instructions
//!               │ no
//!             mark ─▶ the page with the bit is written, once for all waiters, durably ─▶ go
//! ```
//!
//! A stream of writes would wait for a page at each new region. So regions are marked before the stream
//! reaches them (`ahead`): when it crosses into a region, as many as are marked before it in one piece, up to
//! a limit. The regions to resync after a crash are at most doubled by that.
//!
//! Invariant: **a bit that `covers` says is set is set on disk** until `clear`, which asks again whether all
//! is quiet when it clears the bit. A page is written by one task at a time, and a bit counts as durable only
//! if it was in the page that was written and is still wanted when that ended.
//!
//! The module deliberately does not know the places, when they agree, and what to do if they do not: its
//! owner does. Bits of several copies are joined: one too many costs time, one too few data. A sheet that is
//! damaged in one copy is taken from another copy in which it is whole.

mod bits;
mod format;
#[cfg(test)]
mod tests;

pub use bits::Bits;
pub use format::{SHEET, Shape, Sheets};

use crate::flaw::flawed;
use crate::range_locks::RangeLocks;
use lamina_block::{Buf, Cause, Durability, Env, Io, Node, Pending, Request, Result, wait};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// The shortest page, in bytes: the unit that is written.
const PAGE: usize = 4096;
/// So many bytes are marked before a stream of writes, at most.
const LEAD: u64 = 64 << 20;

/// A store for the pages of an intent.
pub trait IntentStore {
    /// Writes a page `at` bytes after the beginning of the area; the page is durable on all devices that need
    /// it when this completes.
    fn put(&self, at: u64, page: Buf) -> Pending;
}

/// An area on one device, from a byte of it on.
#[derive(Clone)]
pub struct Area(pub Rc<Node>, pub u64);

impl Area {
    /// Writes a page durably.
    pub fn write(&self, at: u64, page: Buf) -> Request {
        self.0.submit(Io::write(self.1 + at, page, Durability::Fua))
    }
}

impl IntentStore for Area {
    fn put(&self, at: u64, page: Buf) -> Pending {
        Box::pin(self.write(at, page))
    }
}

/// The regions that are being written.
pub struct Intent {
    env: Rc<dyn Env>,
    shape: Cell<Shape>,
    page: usize,
    state: RefCell<State>,
    /// Pages that are being written.
    writing: Rc<RangeLocks>,
}

struct State {
    /// Bits that are set, or about to be.
    wanted: Bits,
    /// Bits that are set on disk.
    durable: Bits,
    /// Bits used since the last [`Intent::quiet`].
    recent: Bits,
}

impl Intent {
    /// An empty intent, written to devices with logical blocks of at most `block` bytes.
    pub fn new(env: &Rc<dyn Env>, shape: Shape, block: u32) -> Result<Intent> {
        shape.check()?;
        let none = Bits::none(shape.size, shape.region);
        let state = State { wanted: none.clone(), durable: none.clone(), recent: none };
        Ok(Intent {
            env: Rc::clone(env),
            shape: Cell::new(shape),
            page: PAGE.max(block as usize),
            state: RefCell::new(state),
            writing: Rc::default(),
        })
    }

    /// The shape of the intent.
    pub fn shape(&self) -> Shape {
        self.shape.get()
    }

    /// Bytes of the area, a multiple of the logical block.
    pub fn area(&self) -> u64 {
        self.shape.get().area(self.page)
    }

    /// Joins the bits of the whole sheets of an area. Sheets that no area has are for
    /// [`Intent::mark_damaged`].
    pub async fn load(&self, area: &Area) -> Result<Sheets> {
        let bytes = self.bytes_of(area).await?;
        let sheets = self.shape.get().look(&bytes, &mut self.state.borrow_mut().wanted)?;
        if !sheets.are_whole() {
            tracing::warn!(device = %area.0.name(), gone = sheets.gone, "the intent is damaged");
        }
        Ok(sheets)
    }

    /// True if an area has no sheet of an intent, not even a damaged one.
    pub async fn is_gone(&self, area: &Area) -> Result<bool> {
        let bytes = self.bytes_of(area).await?;
        let shape = self.shape.get();
        Ok(shape.look(&bytes, &mut Bits::none(shape.size, shape.region))?.gone)
    }

    async fn bytes_of(&self, Area(node, at): &Area) -> Result<Vec<u8>> {
        let buf = self.env.pool().take(self.area() as usize);
        node.submit(Io::read(*at, buf.clone())).await?;
        Ok(buf.to_vec())
    }

    /// Marks all regions of the sheets that no area has: they count as written.
    pub fn mark_damaged(&self, known: &Sheets) {
        self.shape.get().mark_damaged(known, &mut self.state.borrow_mut().wanted);
    }

    /// True if all of `at` may be written now. It counts as written from now on.
    #[inline]
    pub fn covers(&self, at: &Range<u64>) -> bool {
        let mut state = self.state.borrow_mut();
        let durable = state.durable.has(at);
        if durable {
            state.recent.add(at);
        }
        durable || flawed("data before intent")
    }

    /// The regions to mark soon, because the stream of writes that `at` belongs to will reach them; once.
    #[inline]
    pub fn ahead(&self, at: &Range<u64>) -> Option<Range<u64>> {
        let region = self.shape.get().region;
        let edge = (at.start + (region - 1)) & !(region - 1);
        if edge >= at.end || edge == 0 { None } else { self.lead(edge) }
    }

    /// As [`Intent::ahead`], for a write that crosses into the region at `edge`.
    fn lead(&self, edge: u64) -> Option<Range<u64>> {
        let Shape { region, size, .. } = self.shape.get();
        let wanted = &mut self.state.borrow_mut().wanted;
        let is_marked = |count: &u64| wanted.has(&(edge - count * region..edge - (count - 1) * region));
        let marked = (1..=(LEAD / region).min(edge / region)).take_while(is_marked).count() as u64;
        // The marked half before the edge leaves time enough to write a page.
        let half = edge + marked / 2 * region;
        if marked == 0 || half >= size || wanted.has(&(half..half + 1)) {
            return None;
        }
        let next = edge..(edge + marked * region).min(size);
        wanted.add(&next);
        Some(next)
    }

    /// Makes [`Intent::covers`] true for `at`. It is true until the next await of the caller.
    pub async fn mark(&self, at: &Range<u64>, on: &impl IntentStore) -> Result<()> {
        if self.covers(at) {
            return Ok(());
        }
        let _waits = wait(Cause::Metadata);
        while !self.covers(at) {
            self.state.borrow_mut().wanted.add(at);
            let is_not_durable = |page: &u64| {
                let part = self.shape.get().page_part(*page, self.page);
                let part = part.start.max(at.start)..part.end.min(at.end);
                !self.state.borrow().durable.has(&part)
            };
            let missing = self.shape.get().pages(at, self.page).find(is_not_durable);
            if let Some(page) = missing {
                self.write(page, on, || is_not_durable(&page)).await?;
            }
        }
        Ok(())
    }

    /// Writes a page when its turn comes, if that is `needed` then.
    async fn write(&self, page: u64, on: &impl IntentStore, needed: impl Fn() -> bool) -> Result<()> {
        let _writing = self.writing.lock(&(page..page + 1)).await;
        if !needed() {
            return Ok(());
        }
        let part = self.shape.get().page_part(page, self.page);
        let mut content = self.state.borrow().wanted.clone();
        let buf = self.env.pool().take(self.page);
        buf.write(0, &self.shape.get().encode(page, self.page, &content));
        on.put(page * self.page as u64, buf).await?;
        let state = &mut *self.state.borrow_mut();
        if !flawed("an old page is trusted") {
            content.meet(&state.wanted);
        }
        state.durable.remove(&part);
        for region in content.units_from(part.start).take_while(|unit| unit.start < part.end) {
            state.durable.add(&region);
        }
        Ok(())
    }

    /// Writes all pages: for a store that has none of them, or old ones.
    pub async fn write_all(&self, on: &impl IntentStore) -> Result<()> {
        for page in 0..self.area() / self.page as u64 {
            self.write(page, on, || true).await?;
        }
        Ok(())
    }

    /// Marks all regions; durable after [`Intent::write_all`].
    pub fn set_all(&self) {
        self.state.borrow_mut().wanted.add(&(0..self.shape.get().size));
    }

    /// An intent of the same device with `size` bytes, more than now: all of the new bytes count as written.
    /// It is written to another area, and then [`Intent::grow`] goes on with it.
    pub fn longer(&self, size: u64) -> Result<Intent> {
        let before = self.shape();
        let mut next = Intent::new(&self.env, Shape { size, ..before }, self.page as u32)?;
        let state = next.state.get_mut();
        if !flawed("what needs a resync is forgotten") {
            state.wanted.join(&self.state.borrow().wanted);
        }
        if !flawed("what is new is not marked") {
            state.wanted.add(&(before.size..size));
        }
        // An earlier call of `quiet` does not know these.
        state.recent.add(&(before.size..size));
        Ok(next)
    }

    /// Goes on as `next`, which is [longer](Intent::longer) and durable in its area, when no page is being
    /// written: then `switch` is called, and from then on pages go to the new area.
    pub async fn grow(&self, next: Intent, switch: impl FnOnce()) {
        let _writing = self.writing.lock(&(0..u64::MAX)).await;
        let mut state = next.state.into_inner();
        // Bits marked meanwhile are not on disk there.
        if !flawed("what needs a resync is forgotten") {
            state.wanted.join(&self.state.borrow().wanted);
        }
        state.recent.join(&self.state.borrow().recent);
        self.state.replace(state);
        self.shape.set(next.shape.get());
        switch();
    }

    /// The regions whose writes may not be in all places.
    pub fn regions(&self) -> Bits {
        self.state.borrow().wanted.clone()
    }

    /// No writes are under way: regions used lately may be cleared at once.
    pub fn forget(&self) {
        self.state.borrow_mut().recent.clear();
    }

    /// True if no bit is set.
    pub fn is_empty(&self) -> bool {
        self.state.borrow().wanted.is_empty()
    }

    /// The regions that were not used since the last call, and in which no writes are under way, as `good`
    /// says. Flush all places, and then [`Intent::clear`] them.
    pub fn quiet(&self, good: impl Fn(&Range<u64>) -> bool) -> Vec<Range<u64>> {
        let state = &mut *self.state.borrow_mut();
        let quiet = state
            .wanted
            .units()
            .filter(|unit| !state.recent.touches(unit))
            // A write that ends during the flush may be flushed or not.
            .filter(|unit| good(unit) || flawed("a busy region is cleared"))
            .collect();
        state.recent.clear();
        quiet
    }

    /// Clears those of `regions` that were not used since they were quiet, and are still `good`.
    pub async fn clear(
        &self,
        regions: Vec<Range<u64>>,
        on: &impl IntentStore,
        good: impl Fn(&Range<u64>) -> bool,
    ) -> Result<()> {
        let mut pages = BTreeSet::new();
        for region in regions {
            let state = &mut *self.state.borrow_mut();
            if good(&region) && !state.recent.touches(&region) {
                state.wanted.remove(&region);
                state.durable.remove(&region);
                pages.extend(self.shape.get().pages(&region, self.page));
            }
        }
        for page in pages {
            self.write(page, on, || true).await?;
        }
        Ok(())
    }
}
