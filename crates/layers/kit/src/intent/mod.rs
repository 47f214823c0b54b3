//! Intent: which regions of a device are being written, known after a crash.
//!
//! A layer that writes to several places has to know after a crash where they may differ. It says before it writes
//! (`covers`, or `mark`), and the region's bit is durable before the write begins; some seconds after the last write, when
//! all places were flushed, the bit goes (`quiet`, `clear`). What is found when it is opened is where a crash may have
//! left something undone.
//!
//! ```text
//!   write ─▶ covers? ── yes ─▶ go: a few instructions
//!               │ no
//!             mark ─▶ the page with the bit is written, once for all who wait, durably ─▶ go
//! ```
//!
//! A stream of writes would wait for a page at each new region. So regions are marked before it comes to them (`ahead`):
//! when it crosses into one, as many as lie marked behind it in one piece, up to a limit. What is in doubt after a crash is
//! at most doubled by that.
//!
//! Invariant: **a bit that `covers` says is set is set on disk** until `clear`, which asks again whether all is quiet
//! when it takes the bit out. A page is written by one at a time, and a bit counts as durable only if it was in the page
//! that was written and is still wanted when that ended.
//!
//! It deliberately does not know what it is about: which places there are, when they agree, and what to do if they do
//! not is its owner's. Bits of several copies are joined: one too many costs time, one too few data. A sheet that is damaged
//! in one copy and whole in another says nothing that the other does not.

mod bits;
mod format;
#[cfg(test)]
mod tests;

pub use bits::Bits;
pub use format::{SHEET, Shape, Sheets};

use crate::flaw::flawed;
use crate::range_locks::RangeLocks;
use lamina_block::{Buf, Durability, Env, Io, Node, Pending, Request, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// The shortest page, in bytes: the unit that is written.
const PAGE: usize = 4096;
/// So much is marked before a stream of writes, at most, in bytes.
const LEAD: u64 = 64 << 20;

/// Where the pages of an intent are kept.
pub trait Place {
    /// Writes a page `at` bytes behind the beginning of the area; durable, wherever it has to be, when it completes.
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

impl Place for Area {
    fn put(&self, at: u64, page: Buf) -> Pending {
        Box::pin(self.write(at, page))
    }
}

/// What is being written.
pub struct Intent {
    env: Rc<dyn Env>,
    shape: Cell<Shape>,
    page: usize,
    state: RefCell<State>,
    /// Pages that are being written.
    writing: Rc<RangeLocks>,
}

struct State {
    /// Set, or about to be.
    wanted: Bits,
    /// Those of them that are on disk.
    durable: Bits,
    /// Used since [`Intent::quiet`] was asked last.
    recent: Bits,
}

impl Intent {
    /// An intent of which nothing is known yet, written to devices with logical blocks of at most `block` bytes.
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

    /// What it is of.
    pub fn shape(&self) -> Shape {
        self.shape.get()
    }

    /// Bytes of the area that it takes, a multiple of the logical block.
    pub fn area(&self) -> u64 {
        self.shape.get().area(self.page)
    }

    /// Takes in what the whole sheets of an area say. What no area says is for [`Intent::doubt`].
    pub async fn load(&self, area: &Area) -> Result<Sheets> {
        let bytes = self.bytes_of(area).await?;
        let sheets = self.shape.get().look(&bytes, &mut self.state.borrow_mut().wanted)?;
        if !sheets.are_whole() {
            tracing::warn!(device = %area.0.name(), gone = sheets.gone, "its intent is damaged");
        }
        Ok(sheets)
    }

    /// True if there is nothing of it in an area, not even something damaged.
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

    /// What no whole sheet says may be anything: all of its regions count as written.
    pub fn doubt(&self, known: &Sheets) {
        self.shape.get().doubt(known, &mut self.state.borrow_mut().wanted);
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

    /// What should be marked soon, because the stream of writes that `at` is of will come to it; once.
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
        let is_behind = |count: &u64| wanted.has(&(edge - count * region..edge - (count - 1) * region));
        let behind = (1..=(LEAD / region).min(edge / region)).take_while(is_behind).count() as u64;
        // The half of it that is there already is time enough to write a page.
        let half = edge + behind / 2 * region;
        if behind == 0 || half >= size || wanted.has(&(half..half + 1)) {
            return None;
        }
        let next = edge..(edge + behind * region).min(size);
        wanted.add(&next);
        Some(next)
    }

    /// Makes [`Intent::covers`] true for `at`. It is true until the next await of the caller.
    pub async fn mark(&self, at: &Range<u64>, on: &impl Place) -> Result<()> {
        while !self.covers(at) {
            self.state.borrow_mut().wanted.add(at);
            let lacks = |page: &u64| {
                let part = self.shape.get().page_part(*page, self.page);
                let part = part.start.max(at.start)..part.end.min(at.end);
                !self.state.borrow().durable.has(&part)
            };
            let lacking = self.shape.get().pages(at, self.page).find(lacks);
            if let Some(page) = lacking {
                self.write(page, on, || lacks(&page)).await?;
            }
        }
        Ok(())
    }

    /// Writes a page as it is when its turn comes, if that is `needed` then.
    async fn write(&self, page: u64, on: &impl Place, needed: impl Fn() -> bool) -> Result<()> {
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

    /// Writes all pages: for a place that has none of them, or old ones.
    pub async fn write_all(&self, on: &impl Place) -> Result<()> {
        for page in 0..self.area() / self.page as u64 {
            self.write(page, on, || true).await?;
        }
        Ok(())
    }

    /// Says that anything may have been written everywhere; durable after [`Intent::write_all`].
    pub fn set_all(&self) {
        self.state.borrow_mut().wanted.add(&(0..self.shape.get().size));
    }

    /// An intent of the same device with `size` bytes, more than it has: all of what is new counts as written. It is written
    /// to another area, and then [`Intent::grow`] goes on with it.
    pub fn longer(&self, size: u64) -> Result<Intent> {
        let before = self.shape();
        let mut next = Intent::new(&self.env, Shape { size, ..before }, self.page as u32)?;
        let state = next.state.get_mut();
        if !flawed("what was in doubt is forgotten") {
            state.wanted.join(&self.state.borrow().wanted);
        }
        if !flawed("what is new is not marked") {
            state.wanted.add(&(before.size..size));
        }
        // Who has asked before what is quiet does not know of it.
        state.recent.add(&(before.size..size));
        Ok(next)
    }

    /// Goes on as `next`, which is [longer](Intent::longer) and durable in its area, when no page is being written: then
    /// `switch` is called, and from then on pages go to the new area.
    pub async fn grow(&self, next: Intent, switch: impl FnOnce()) {
        let _writing = self.writing.lock(&(0..u64::MAX)).await;
        let mut state = next.state.into_inner();
        // What was marked meanwhile is not on disk there.
        if !flawed("what was in doubt is forgotten") {
            state.wanted.join(&self.state.borrow().wanted);
        }
        state.recent.join(&self.state.borrow().recent);
        self.state.replace(state);
        self.shape.set(next.shape.get());
        switch();
    }

    /// Where something was written that is not known to be everywhere.
    pub fn regions(&self) -> Bits {
        self.state.borrow().wanted.clone()
    }

    /// Nothing is under way: what was used lately may be cleared at once.
    pub fn forget(&self) {
        self.state.borrow_mut().recent.clear();
    }

    /// True if nothing is.
    pub fn is_empty(&self) -> bool {
        self.state.borrow().wanted.is_empty()
    }

    /// The regions that were not used since this was asked last, and in which nothing is under way, as `good` says.
    /// Flush all places, and then [`Intent::clear`] them.
    pub fn quiet(&self, good: impl Fn(&Range<u64>) -> bool) -> Vec<Range<u64>> {
        let state = &mut *self.state.borrow_mut();
        let quiet = state
            .wanted
            .units()
            .filter(|unit| !state.recent.touches(unit))
            // What ends while all is being flushed may be flushed or not.
            .filter(|unit| good(unit) || flawed("a busy region is cleared"))
            .collect();
        state.recent.clear();
        quiet
    }

    /// Takes out those of `regions` that were not used since they were quiet, and are still `good`.
    pub async fn clear(
        &self,
        regions: Vec<Range<u64>>,
        on: &impl Place,
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
