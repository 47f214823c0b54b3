//! The service behind a store: brings pages into memory, writes records and pages, one round after the other.
//!
//! ```text
//!   round:   finish an earlier write-back ─▶ record ─▶ flush ─▶ waiting commits go on
//!            if due: pages to their other slots ─▶ flush ─▶ root, forced ─▶ the log's tail has moved
//! ```
//!
//! Invariant: there is one round at a time; a page is written only when the record of its bytes is durable, once
//! between two flushes, and never over its newest whole copy.

use crate::format::{self, BLOCK, PAYLOAD, Shape, Slot};
use crate::state::{NOBODY, Page, Record, Space, State};
use crate::{Id, Level, Options, Region};
use lamina_block::{Durability, Env, Error, ErrorKind, Result, Signal};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// Pages written at once.
const BATCH: usize = 64;

/// The answer to a waiting caller.
type Answer = Rc<RefCell<Option<Result<()>>>>;

pub(crate) struct Service {
    /// Itself, for the tasks that it starts.
    me: Weak<Service>,
    pub env: Rc<dyn Env>,
    pub region: Region,
    pub shape: Shape,
    options: Options,
    pub state: RefCell<State>,
    /// They stay in memory.
    pub directory_pages: RefCell<Vec<Rc<Page>>>,
    pub closed: Cell<bool>,
    /// A round has ended, or a page has come.
    moved: Signal,
    working: Cell<bool>,
    /// A task sleeps until the next commit of the store's own.
    timer: Cell<bool>,
    for_commit: RefCell<Vec<Answer>>,
    for_write_back: RefCell<Vec<Answer>>,
}

impl Service {
    pub fn new(
        env: &Rc<dyn Env>,
        region: Region,
        shape: Shape,
        options: Options,
        state: State,
    ) -> Rc<Service> {
        Rc::new_cyclic(|me| Service {
            me: me.clone(),
            env: Rc::clone(env),
            region,
            shape,
            options,
            state: RefCell::new(state),
            directory_pages: RefCell::default(),
            closed: Cell::new(false),
            moved: Signal::new(),
            working: Cell::new(false),
            timer: Cell::new(false),
            for_commit: RefCell::default(),
            for_write_back: RefCell::default(),
        })
    }

    /// A page of an object, in memory.
    pub async fn page(&self, id: Id, index: u64) -> Result<Rc<Page>> {
        loop {
            // Asked again after every wait: the object may be gone.
            let number = self.state.borrow().directory.page_of(id, index)?;
            if let Some(page) = self.state.borrow().pages.get(&number) {
                page.becomes(id.0);
                page.recent.set(true);
                return Ok(Rc::clone(page));
            }
            self.bring(number, false).await?;
        }
    }

    /// Brings a page into memory, or waits for the task that does. `lenient` takes half-written copies for never
    /// written, as after a crash.
    pub async fn bring(&self, number: u32, lenient: bool) -> Result<()> {
        if !self.state.borrow_mut().loading.insert(number) {
            self.moved.wait().await;
            return Ok(());
        }
        let _loading = Loading { service: self, number };
        let bytes = self.region.get(&*self.env, self.shape.slot_at(number, 0), 2 * BLOCK).await?;
        let page = newest(number, &bytes, lenient || self.shape.level == Level::Lazy)?;
        let pinned = self.directory_pages.borrow().len();
        let mut state = self.state.borrow_mut();
        // While the log is replayed its end is not known yet.
        if !lenient && page.seq.get() >= state.log.head.seq {
            return Err(from_the_future(number));
        }
        state.evict(pinned, 1);
        state.pages.insert(number, page);
        Ok(())
    }

    /// The two copies of a page on disk.
    pub async fn copies(&self, number: u32) -> Result<[Slot; 2]> {
        let bytes = self.region.get(&*self.env, self.shape.slot_at(number, 0), 2 * BLOCK).await?;
        Ok([&bytes[..BLOCK], &bytes[BLOCK..]].map(|slot| format::slot(slot, number)))
    }

    /// Writes the damaged copies of a page that is not in memory anew, one after the other; no other one is touched.
    pub async fn rewrite(&self, number: u32, owner: u64, data: &[u8; PAYLOAD]) -> Result<()> {
        let copies = self.copies(number).await?;
        let newest = copies.iter().map(|copy| match copy {
            Slot::Whole { version, .. } => *version,
            Slot::Blank | Slot::Broken => 0,
        });
        let mut version = newest.max().unwrap_or(0);
        let seq = self.state.borrow().log.head.seq.saturating_sub(1);
        for slot in (0u8..2).filter(|slot| copies[usize::from(*slot)] == Slot::Broken) {
            version += 1;
            let mut bytes = Vec::with_capacity(BLOCK);
            format::page(number, owner, seq, version, data, &mut bytes);
            self.region.put(&*self.env, self.shape.slot_at(number, slot), &bytes, Durability::Fua).await?;
        }
        Ok(())
    }

    /// Whether there is space for a change.
    pub fn space(&self, bytes: usize, pieces: usize, pages: impl ExactSizeIterator<Item = u32>) -> Space {
        let asked = !self.for_commit.borrow().is_empty() || !self.for_write_back.borrow().is_empty();
        if asked && self.shape.level == Level::Atomic {
            return Space::AfterPlan;
        }
        self.state.borrow().space(bytes, pieces, pages)
    }

    /// Waits until there is space for a change of `pages`, which are asked for again after every wait.
    pub async fn wait_for_room(
        &self,
        bytes: usize,
        pieces: usize,
        pages: impl Fn() -> Result<SmallVec<[u32; 4]>>,
    ) -> Result<()> {
        loop {
            if self.closed.get() {
                return Err(Error::offline("the metadata store is closed"));
            }
            let space = self.space(bytes, pieces, pages()?.into_iter());
            match (space, self.shape.level) {
                (Space::Yes, _) => return Ok(()),
                (Space::No, _) => {
                    return Err(Error::invalid("a change of metadata is too large to be made at once"));
                }
                // The commit has all changes up to the call.
                (Space::AfterPlan, _) => self.moved.wait().await,
                (Space::WriteBack, Level::Atomic) if self.working.get() => self.moved.wait().await,
                (Space::Commit | Space::WriteBack, Level::Atomic) => {
                    let message = "too much metadata has been changed since the last commit: commit first";
                    return Err(Error::new(ErrorKind::NoSpace, message));
                }
                (Space::Commit, Level::Lazy | Level::Shadow) => self.reach(false).await?,
                (Space::WriteBack, Level::Lazy | Level::Shadow) => self.reach(true).await?,
            }
        }
    }

    /// Something was changed: the change will be committed without a request, if the level demands that.
    pub fn changed(&self) {
        if self.shape.level == Level::Atomic || self.timer.replace(true) {
            return;
        }
        let (me, sleep) = (self.me.clone(), self.env.sleep(self.options.interval));
        self.env.spawn(Box::pin(async move {
            sleep.await;
            let Some(service) = me.upgrade() else { return };
            service.timer.set(false);
            if service.state.borrow().is_dirty()
                && let Err(e) = service.reach(false).await
            {
                tracing::warn!("metadata could not be committed, and will be later: {e}");
                service.changed();
            }
        }));
    }

    /// Waits until every change made so far is durable, and in its page if `home`.
    pub async fn reach(&self, home: bool) -> Result<()> {
        if self.region.read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "the metadata lies on a read-only device"));
        }
        let answer = Answer::default();
        let waiting = if home { &self.for_write_back } else { &self.for_commit };
        waiting.borrow_mut().push(Rc::clone(&answer));
        self.work();
        loop {
            if let Some(result) = answer.borrow_mut().take() {
                return result;
            }
            self.moved.wait().await;
        }
    }

    /// Starts rounds unless they run.
    fn work(&self) {
        if self.working.replace(true) {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        self.env.spawn(Box::pin(async move {
            while !me.for_commit.borrow().is_empty() || !me.for_write_back.borrow().is_empty() {
                me.round().await;
                me.moved.notify();
            }
            me.working.set(false);
            me.moved.notify();
        }));
    }

    /// One round. All changes before its start are in it.
    async fn round(&self) {
        let answer = |to: &[Answer], result: &Result<()>| {
            to.iter().for_each(|answer| *answer.borrow_mut() = Some(result.clone()));
            self.moved.notify();
        };
        let earlier = self.write_back().await;
        let (commits, homes) = (self.for_commit.take(), self.for_write_back.take());
        if earlier.is_err() {
            answer(&commits, &earlier);
            return answer(&homes, &earlier);
        }
        let (record, write_back) = self.state.borrow_mut().plan(!homes.is_empty());
        // Changes that waited for this moment go on.
        self.moved.notify();
        if let Some(record) = record {
            let written = self.append(&record).await;
            if written.is_err() {
                self.state.borrow_mut().not_committed(record);
                answer(&commits, &written);
                return answer(&homes, &written);
            }
            self.state.borrow_mut().committed(record);
        }
        self.state.borrow_mut().write_back = write_back;
        let committed = self.shape.level != Level::Lazy;
        if committed {
            answer(&commits, &Ok(()));
        }
        let result = self.write_back().await;
        if let Err(e) = &result {
            tracing::warn!("metadata could not be written back, and will be later: {e}");
        }
        answer(&homes, &result);
        if !committed {
            answer(&commits, &result);
        }
    }

    /// Makes a record durable at the head of the log.
    async fn append(&self, record: &Record) -> Result<()> {
        let len = record.bytes.len();
        let buf = self.env.pool().take(len);
        buf.write(0, &record.bytes);
        let at = record.at.block;
        let before_end = ((self.shape.log_blocks - at) as usize * BLOCK).min(len);
        let mut parts = vec![(self.shape.log_at(at), buf.slice(0..before_end))];
        if before_end < len {
            parts.push((self.shape.log_at(0), buf.slice(before_end..len)));
        }
        self.region.write(parts, Durability::Cached).await?;
        self.region.flush().await
    }

    /// Finishes the write-back that is under way, if there is one. After an error it is still under way.
    pub async fn write_back(&self) -> Result<()> {
        let Some(work) = self.state.borrow_mut().write_back.take() else { return Ok(()) };
        // Put back whatever happens, also if the future is dropped.
        let mut under_way = UnderWay { service: self, work: Some(work) };
        let Some(work) = under_way.work.as_mut() else { return Ok(()) };
        if !work.pages.is_empty() {
            for batch in work.pages.chunks(BATCH) {
                let mut bytes = Vec::with_capacity(batch.len() * BLOCK);
                for shot in batch {
                    let version = shot.page.version.get() + 1;
                    format::page(shot.number, shot.owner, work.seq, version, &shot.data, &mut bytes);
                }
                let buf = self.env.pool().take(bytes.len());
                buf.write(0, &bytes);
                let part = |(i, shot): (usize, &crate::state::Shot)| {
                    let at = self.shape.slot_at(shot.number, 1 - shot.page.slot.get());
                    (at, buf.slice(i * BLOCK..(i + 1) * BLOCK))
                };
                let parts = batch.iter().enumerate().map(part).collect();
                self.region.write(parts, Durability::Cached).await?;
            }
            self.region.flush().await?;
            let mut state = self.state.borrow_mut();
            work.pages.drain(..).for_each(|shot| state.written_back(&shot));
        }
        if let Some((tail, released)) = work.root {
            let generation = self.state.borrow().generation + 1;
            let root = format::root(&self.shape, generation, tail);
            let at = generation % 2 * BLOCK as u64;
            self.region.put(&*self.env, at, &root, Durability::Fua).await?;
            self.state.borrow_mut().root_written(released);
        }
        under_way.work = None;
        let pinned = self.directory_pages.borrow().len();
        self.state.borrow_mut().evict(pinned, 0);
        Ok(())
    }
}

/// Puts a write-back that did not end back to where the next round finds it.
struct UnderWay<'a> {
    service: &'a Service,
    work: Option<crate::state::WriteBack>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.service.state.borrow_mut().write_back = Some(work);
        }
    }
}

/// A page is on its way.
struct Loading<'a> {
    service: &'a Service,
    number: u32,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.service.state.borrow_mut().loading.remove(&self.number);
        self.service.moved.notify();
    }
}

/// A page includes a record that the log does not have: the newer root must have been lost, and the older one does not
/// tell where the log goes on.
pub(crate) fn from_the_future(page: u32) -> Error {
    let message = format!("page {page} of the metadata store is newer than its log: the newest root is lost");
    Error::new(ErrorKind::Corrupt, message)
}

/// The newest whole copy of a page among its two slots.
pub(crate) fn newest(number: u32, slots: &[u8], lenient: bool) -> Result<Rc<Page>> {
    let (first, second) = slots.split_at(BLOCK);
    let found = [format::slot(first, number), format::slot(second, number)];
    let broken = found.iter().filter(|slot| **slot == Slot::Broken).count();
    if broken > usize::from(lenient) {
        let message = format!("page {number} of the metadata store is damaged: {found:?}");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let whole = |slot: usize| match found[slot] {
        Slot::Whole { version, owner, seq } => Some((version, slot, owner, seq)),
        Slot::Blank | Slot::Broken => None,
    };
    let mut data = [0; PAYLOAD];
    let Some((version, slot, owner, seq)) = whole(0).max(whole(1)) else {
        // The next copy goes to the slot that may be broken.
        let slot = if found[0] == Slot::Broken { 1 } else { 0 };
        return Ok(Page::new(NOBODY, data, 0, slot, 0));
    };
    data.copy_from_slice(&[first, second][slot][..PAYLOAD]);
    Ok(Page::new(owner, data, version, slot as u8, seq))
}
