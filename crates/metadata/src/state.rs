//! The state of a store: the pages in memory, the changes, and the ends of the log. No input or output here.
//!
//! Invariant: a page that was changed stays in memory until a write-back of just these bytes has been flushed, and a
//! page is written back only after a durable record has the change. Bytes under way are shared, and a change of the
//! page copies them meanwhile, so a write-back is of one moment and delays no change.

use crate::directory::{DIRECTORY, Directory};
use crate::format::{BLOCK, CHANGE_HEAD, PAYLOAD, RECORD_HEAD, Shape, Tail, Writing};
use crate::{Id, Level};
use lamina_block::Result;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The owner of a page that was never written.
pub(crate) const NOBODY: u64 = u64::MAX;

pub(crate) type Data = [u8; PAYLOAD];

/// A page in memory. A reference keeps the page there.
pub(crate) struct Page {
    pub owner: Cell<u64>,
    pub data: RefCell<Rc<Data>>,
    /// Of the newest slot, and which one that is.
    pub version: Cell<u64>,
    pub slot: Cell<u8>,
    /// The last record that the bytes include; only replay looks at it.
    pub seq: Cell<u64>,
    /// The number of its last change; 0 if its newest slot has the same bytes.
    pub stamp: Cell<u64>,
    /// Used since the hand of the clock was here.
    pub recent: Cell<bool>,
}

impl Page {
    pub fn new(owner: u64, data: Data, version: u64, slot: u8, seq: u64) -> Rc<Page> {
        Rc::new(Page {
            owner: Cell::new(owner),
            data: RefCell::new(Rc::new(data)),
            version: Cell::new(version),
            slot: Cell::new(slot),
            seq: Cell::new(seq),
            stamp: Cell::new(0),
            recent: Cell::new(true),
        })
    }

    /// Empties a page that belonged to somebody else.
    pub fn becomes(&self, owner: u64) {
        if self.owner.replace(owner) != owner {
            *self.data.borrow_mut() = Rc::new([0; PAYLOAD]);
        }
    }
}

/// Which bytes of pages are not in the log yet.
#[derive(Default)]
pub(crate) struct Uncommitted {
    /// By page: runs from, to, in order, never touching.
    pub pages: BTreeMap<u32, Vec<(u16, u16)>>,
    /// The most bytes of a record of them, without its head.
    size: usize,
}

fn size(runs: &[(u16, u16)]) -> usize {
    runs.iter().map(|(from, to)| CHANGE_HEAD + usize::from(to - from)).sum()
}

impl Uncommitted {
    fn add(&mut self, page: u32, from: u16, to: u16) {
        let runs = self.pages.entry(page).or_default();
        self.size -= size(runs);
        let (mut from, mut to) = (from, to);
        // A gap that is shorter than the head of a change costs less than the head.
        let reach = CHANGE_HEAD as u16;
        runs.retain(|run| {
            let apart = run.1.saturating_add(reach) < from || to.saturating_add(reach) < run.0;
            if !apart {
                (from, to) = (from.min(run.0), to.max(run.1));
            }
            apart
        });
        let at = runs.partition_point(|run| run.0 < from);
        runs.insert(at, (from, to));
        self.size += size(runs);
    }

    fn forget(&mut self, page: u32) {
        if let Some(runs) = self.pages.remove(&page) {
            self.size -= size(&runs);
        }
    }
}

/// Where the log stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    /// The next record: its number and the block where it begins.
    pub head: Tail,
    /// Blocks from the tail to the head.
    pub used: u32,
}

/// A page to be written back.
pub(crate) struct Shot {
    pub number: u32,
    pub page: Rc<Page>,
    pub owner: u64,
    pub data: Rc<Data>,
    pub stamp: u64,
}

/// A write-back: of all pages that were dirty at one moment.
pub(crate) struct WriteBack {
    pub pages: Vec<Shot>,
    /// The last record that the pages include.
    pub seq: u64,
    /// Where replay starts afterwards, and the blocks of the log that become free, if the root is to say so.
    pub root: Option<(Tail, u32)>,
}

/// A record to be written.
pub(crate) struct Record {
    pub bytes: Vec<u8>,
    pub at: Tail,
    changes: Uncommitted,
    freed: Vec<(u32, u32)>,
}

impl Record {
    pub fn blocks(&self) -> u32 {
        (self.bytes.len() / BLOCK) as u32
    }
}

pub(crate) struct State {
    shape: Shape,
    /// Pages that may be in memory, besides the directory's.
    pub capacity: usize,
    pub directory: Directory,
    pub pages: BTreeMap<u32, Rc<Page>>,
    pub dirty: BTreeSet<u32>,
    /// Pages on their way into memory.
    pub loading: BTreeSet<u32>,
    pub uncommitted: Uncommitted,
    /// Pages whose objects are gone, but not yet in the log.
    pub freed: Vec<(u32, u32)>,
    pub log: Log,
    pub generation: u64,
    /// A write-back that has begun, or failed.
    pub write_back: Option<WriteBack>,
    stamps: u64,
    hand: u32,
}

/// Whether there is space for changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Yes,
    /// After a commit.
    Commit,
    /// After pages have been written back.
    WriteBack,
    /// When the commits that were asked for are planned.
    AfterPlan,
    /// Never.
    No,
}

impl State {
    pub fn new(shape: Shape, capacity: usize, generation: u64, tail: Tail) -> State {
        State {
            shape,
            capacity,
            directory: Directory::default(),
            pages: BTreeMap::new(),
            dirty: BTreeSet::new(),
            loading: BTreeSet::new(),
            uncommitted: Uncommitted::default(),
            freed: Vec::new(),
            log: Log { head: tail, used: 0 },
            generation,
            write_back: None,
            stamps: 0,
            hand: 0,
        }
    }

    /// Whether changes of `bytes` in `pieces` pieces, to `pages`, may be made now.
    pub fn space(&self, bytes: usize, pieces: usize, pages: impl ExactSizeIterator<Item = u32>) -> Space {
        let (most, need) = (self.shape.record_max() - RECORD_HEAD, bytes + pieces * CHANGE_HEAD);
        let count = pages.len();
        if need > most || count > self.capacity / 4 {
            return Space::No;
        }
        if self.uncommitted.size + need > most || self.uncommitted.pages.len() + count > self.capacity / 4 {
            return Space::Commit;
        }
        let fresh = pages.filter(|page| !self.dirty.contains(page)).count();
        match self.dirty.len() + fresh > self.capacity / 4 * 3 {
            true => Space::WriteBack,
            false => Space::Yes,
        }
    }

    /// Changes bytes of a page in memory.
    pub fn change(&mut self, number: u32, page: &Page, offset: usize, bytes: &[u8]) {
        Rc::make_mut(&mut page.data.borrow_mut())[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.touch(number, page);
        if self.shape.level != Level::Lazy || page.owner.get() == DIRECTORY {
            self.uncommitted.add(number, offset as u16, (offset + bytes.len()) as u16);
        }
    }

    /// Eight bytes at `at` of a page of an object, if the page is in memory.
    #[inline]
    pub fn peek(&self, id: Id, index: u64, at: usize) -> Option<u64> {
        let number = self.directory.page_of(id, index).ok()?;
        let page = self.pages.get(&number)?;
        page.recent.set(true);
        if page.owner.get() != id.0 {
            return Some(0);
        }
        let data = page.data.borrow();
        let bytes = data.get(at..at.checked_add(8)?)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    }

    /// Marks a page as changed.
    pub fn touch(&mut self, number: u32, page: &Page) {
        self.stamps += 1;
        page.stamp.set(self.stamps);
        self.dirty.insert(number);
    }

    /// Forgets the pages of an object that is gone.
    pub fn drop_pages(&mut self, runs: &[(u32, u32)]) {
        for (start, count) in runs {
            let numbers: Vec<u32> = self.pages.range(*start..start + count).map(|(n, _)| *n).collect();
            for number in numbers {
                self.pages.remove(&number);
                self.dirty.remove(&number);
                self.uncommitted.forget(number);
            }
        }
    }

    /// Something was changed that is not known to be on disk.
    pub fn is_dirty(&self) -> bool {
        !self.uncommitted.pages.is_empty() || (self.shape.level == Level::Lazy && !self.dirty.is_empty())
    }

    /// The writes that are due: changes that are not in the log, and the pages if they are asked for or due.
    pub fn plan(&mut self, home: bool) -> (Option<Record>, Option<WriteBack>) {
        let record = self.record();
        let blocks = record.as_ref().map_or(0, Record::blocks);
        let used = self.log.used + blocks;
        let log_is_full = home && used > 0 || used > self.shape.log_blocks / 2;
        let lazy = self.shape.level == Level::Lazy;
        let due = lazy || home || log_is_full || self.dirty.len() > self.capacity / 2;
        if !due || (self.dirty.is_empty() && !log_is_full) {
            return (record, None);
        }
        let head = self.log.head;
        let after = match blocks {
            0 => head,
            n => Tail { seq: head.seq + 1, block: (head.block + n) % self.shape.log_blocks },
        };
        let root = (log_is_full || !lazy).then_some((after, used));
        let pages = self.shots();
        (record, Some(WriteBack { pages, seq: after.seq - 1, root }))
    }

    /// All dirty pages as they are now.
    pub fn shots(&self) -> Vec<Shot> {
        let shot = |number: &u32| {
            let page = self.pages.get(number)?;
            Some(Shot {
                number: *number,
                page: Rc::clone(page),
                owner: page.owner.get(),
                data: Rc::clone(&page.data.borrow()),
                stamp: page.stamp.get(),
            })
        };
        self.dirty.iter().filter_map(shot).collect()
    }

    fn record(&mut self) -> Option<Record> {
        if self.uncommitted.pages.is_empty() {
            return None;
        }
        let (changes, freed) = (std::mem::take(&mut self.uncommitted), std::mem::take(&mut self.freed));
        let mut writing = Writing::new();
        for (number, runs) in &changes.pages {
            let Some(page) = self.pages.get(number) else { continue };
            let data = page.data.borrow();
            for (from, to) in runs {
                writing.add(page.owner.get(), *number, *from, &data[usize::from(*from)..usize::from(*to)]);
            }
        }
        let bytes = writing.end(&self.shape, self.log.head.seq);
        Some(Record { bytes, at: self.log.head, changes, freed })
    }

    /// A record is durable.
    pub fn committed(&mut self, record: Record) {
        self.log.used += record.blocks();
        self.log.head = Tail {
            seq: record.at.seq + 1,
            block: (record.at.block + record.blocks()) % self.shape.log_blocks,
        };
        record.freed.into_iter().for_each(|run| self.directory.give_back(run));
    }

    /// A record could not be written: its changes are still to be recorded.
    pub fn not_committed(&mut self, record: Record) {
        for (number, runs) in record.changes.pages {
            if self.pages.contains_key(&number) {
                runs.into_iter().for_each(|(from, to)| self.uncommitted.add(number, from, to));
            }
        }
        self.freed.extend(record.freed);
    }

    /// A page's bytes are durable in their new slot.
    pub fn written_back(&mut self, shot: &Shot) {
        let page = &shot.page;
        page.version.set(page.version.get() + 1);
        page.slot.set(1 - page.slot.get());
        let known = self.pages.get(&shot.number).is_some_and(|known| Rc::ptr_eq(known, page));
        if known && page.stamp.get() == shot.stamp {
            page.stamp.set(0);
            self.dirty.remove(&shot.number);
        }
    }

    /// A root has been written.
    pub fn root_written(&mut self, released: u32) {
        self.generation += 1;
        self.log.used -= released;
    }

    /// Drops pages that were not used for long until there is space for `more`, as far as that is possible.
    pub fn evict(&mut self, pinned: usize, more: usize) {
        let mut steps = 2 * self.pages.len();
        while self.pages.len() + more > self.capacity + pinned && steps > 0 {
            steps -= 1;
            let next = self.pages.range(self.hand..).next().map(|(number, page)| {
                let free = page.stamp.get() == 0 && Rc::strong_count(page) == 1;
                (*number, free && !page.recent.replace(false))
            });
            match next {
                Some((number, goes)) => {
                    self.hand = number + 1;
                    if goes {
                        self.pages.remove(&number);
                    }
                }
                None => self.hand = 0,
            }
        }
    }

    /// Drops what is in memory of an object and need not be.
    pub fn unload(&mut self, id: Id) -> Result<()> {
        self.directory.len_of(id)?;
        for (start, count) in self.directory.runs(id).to_vec() {
            let numbers: Vec<u32> = self.pages.range(start..start + count).map(|(n, _)| *n).collect();
            for number in numbers {
                let free = |page: &Rc<Page>| page.stamp.get() == 0 && Rc::strong_count(page) == 1;
                if self.pages.get(&number).is_some_and(free) {
                    self.pages.remove(&number);
                }
            }
        }
        Ok(())
    }
}
