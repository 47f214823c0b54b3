//! The store as layers use it: objects, changes, commits.
//!
//! Invariant: a [`Change`] is made in memory without a pause in the middle, so a record holds all of it or nothing.

use crate::directory::{DIRECTORY, Edit, gone, pages_of};
use crate::format::{PAYLOAD, Slot};
use crate::service::Service;
use crate::state::{Page, Space};
use crate::{Format, Id, Level, Options, Region};
use lamina_block::{Env, Error, ErrorKind, Result};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Objects in a region of a device. See the crate's page.
pub struct Store(pub(crate) Rc<Service>);

/// An object of a store: an array of bytes of a fixed length, zeroes at first.
#[derive(Clone)]
pub struct Object {
    service: Rc<Service>,
    id: Id,
    len: u64,
}

/// A set of changes: after a crash all of it is there or nothing (under [`Level::Lazy`]: page by page).
#[derive(Clone, Default)]
pub struct Change {
    writes: Vec<(Id, u64, Bytes)>,
    frees: Vec<Id>,
}

/// The effect of a write on a few bytes.
type Update = Rc<dyn Fn(&mut [u8])>;

#[derive(Clone)]
enum Bytes {
    /// They become these.
    Put(Vec<u8>),
    /// So many of them become what this makes of them, when the change is made.
    Update(usize, Update),
}

impl Bytes {
    fn len(&self) -> usize {
        match self {
            Bytes::Put(bytes) => bytes.len(),
            Bytes::Update(len, _) => *len,
        }
    }
}

impl Change {
    /// No change.
    pub fn new() -> Change {
        Change::default()
    }

    /// Puts `bytes` at `offset` of an object.
    pub fn write(mut self, id: Id, offset: u64, bytes: impl Into<Vec<u8>>) -> Change {
        self.writes.push((id, offset, Bytes::Put(bytes.into())));
        self
    }

    /// Changes `len` bytes at `offset` of an object, which lie in one page (4064 bytes from the object's start on), as
    /// `update` says when the change is made: for bits and counters that several change at the same time.
    pub fn update(mut self, id: Id, offset: u64, len: usize, update: impl Fn(&mut [u8]) + 'static) -> Change {
        self.writes.push((id, offset, Bytes::Update(len, Rc::new(update))));
        self
    }

    /// Removes an object.
    pub fn free(mut self, id: Id) -> Change {
        self.frees.push(id);
        self
    }

    /// This change and then `other`, together.
    pub fn and(mut self, other: Change) -> Change {
        self.writes.extend(other.writes);
        self.frees.extend(other.frees);
        self
    }

    /// True if nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.frees.is_empty()
    }

    /// Its bytes, counted as [`Store::change_max`] counts them.
    pub fn cost(&self) -> usize {
        self.writes.iter().map(|(_, _, bytes)| bytes.len() + 32).sum::<usize>() + self.frees.len() * 96
    }
}

/// A piece of a change: in one page.
struct Piece<'a> {
    number: u32,
    offset: usize,
    what: What<'a>,
}

enum What<'a> {
    Put(&'a [u8]),
    Update(usize, &'a Update),
}

/// The pages of a change in memory, by number, each once. Most changes touch one or two.
type Pages = SmallVec<[(u32, Rc<Page>); 4]>;

impl Store {
    /// Makes an empty store of `region`. Earlier data there is lost.
    ///
    /// Fails with `Invalid` if the region is too small for the log and the directory.
    pub async fn format(env: &Rc<dyn Env>, region: &Region, format: Format) -> Result<()> {
        crate::open::format(env, region, format).await
    }

    /// Opens the store of `region`, after a crash as well. On a read-only device nothing is written, and all changes in
    /// the log must fit into memory.
    ///
    /// Fails with `Corrupt` if there is no store or a damaged one, with `Unsupported` if its format is newer.
    pub async fn open(env: &Rc<dyn Env>, region: Region, options: Options) -> Result<Store> {
        crate::open::open(env, region, options).await.map(Store)
    }

    /// Its level.
    pub fn level(&self) -> Level {
        self.0.shape.level
    }

    /// All objects: number, length in bytes, tag.
    pub fn objects(&self) -> Vec<(Id, u64, u64)> {
        self.0.state.borrow().directory.objects().collect()
    }

    /// The object with a tag; the oldest, if several have it.
    pub fn find(&self, tag: u64) -> Option<Id> {
        self.0.state.borrow().directory.objects().find(|object| object.2 == tag).map(|object| object.0)
    }

    /// Adds an object of `len` bytes, all zero. `tag` is the layer's own, to find it again. The object is there after a
    /// crash if it was committed.
    ///
    /// Fails with `NoSpace` if there is no space for it; a commit may free some.
    pub async fn alloc(&self, len: u64, tag: u64) -> Result<Object> {
        self.0.wait_for_room(2 * size_of::<Edit>(), 2, || Ok(SmallVec::new())).await?;
        let (id, edits) = self.0.state.borrow_mut().directory.alloc(len, tag)?;
        edits.into_iter().for_each(|edit| self.0.edit(edit));
        self.0.changed();
        Ok(Object { service: Rc::clone(&self.0), id, len })
    }

    /// Removes an object. Its space is free for others after the next commit.
    pub async fn free(&self, id: Id) -> Result<()> {
        self.change(Change::new().free(id)).await
    }

    /// An object, to read and write it. Its bytes come into memory when they are asked for.
    pub fn load(&self, id: Id) -> Result<Object> {
        let len = self.0.state.borrow().directory.len_of(id)?;
        Ok(Object { service: Rc::clone(&self.0), id, len })
    }

    /// Drops the pages of an object from memory, except those that are not written back yet.
    pub fn unload(&self, id: Id) -> Result<()> {
        self.0.state.borrow_mut().unload(id)
    }

    /// Makes a change in memory; later reads show it. The call waits for space: for a commit or a write-back.
    ///
    /// Fails with `NoSpace` (and for no other reason) under [`Level::Atomic`], where the store does not commit by
    /// itself, if so much has been changed that the layer must commit first; with `Invalid` if the change is wrong, or
    /// larger than [`Store::change_max`].
    pub async fn change(&self, change: Change) -> Result<()> {
        self.0.change(&change).await
    }

    /// The most bytes that one change may carry, each write counted with 32 more. A change may touch at most a quarter
    /// of the pages that fit into memory.
    pub fn change_max(&self) -> usize {
        self.0.shape.record_max() / 2
    }

    /// Makes every change durable that was made before this was called. Calls at the same time share what it costs.
    ///
    /// After an error, it is not known which changes are durable; a later commit writes all of them again.
    pub async fn commit(&self) -> Result<()> {
        self.0.reach(false).await
    }

    /// Commits, and writes every page back, so that nothing is left to replay.
    pub async fn flush(&self) -> Result<()> {
        self.0.reach(true).await
    }

    /// Flushes, and lets nothing more change.
    pub async fn close(&self) -> Result<()> {
        if self.0.closed.replace(true) || self.0.region.read_only() {
            return Ok(());
        }
        self.0.reach(true).await
    }

    /// The most pages that may be changed without a commit.
    pub fn pages_max(&self) -> usize {
        self.0.state.borrow().capacity / 4
    }

    /// True if something has been changed that is not known to be durable.
    pub fn is_dirty(&self) -> bool {
        self.0.state.borrow().is_dirty()
    }

    /// Pages that no object has. Freed bytes count after the next commit.
    pub fn free_pages(&self) -> u64 {
        self.0.state.borrow().directory.free_pages()
    }

    /// The bytes of its region in use.
    pub fn region_len(&self) -> u64 {
        self.0.shape.len()
    }

    /// Bytes of memory that pages take now.
    pub fn memory(&self) -> usize {
        self.0.state.borrow().pages.len() * size_of::<Page>().max(PAYLOAD)
    }
}

impl Object {
    /// Its number.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length, not a collection")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads `into.len()` bytes from `offset`. Concurrent changes may be seen page by page.
    pub async fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        check(self.id, self.len, offset, into.len())?;
        let mut rest = into;
        for (_, (index, from, len)) in parts(offset, rest.len()) {
            let (part, after) = rest.split_at_mut(len);
            let page = self.service.page(self.id, index).await?;
            part.copy_from_slice(&page.data.borrow()[from..from + len]);
            rest = after;
        }
        Ok(())
    }

    /// Eight bytes, little-endian, at `at` of page `index` of the object (each has 4064 bytes), if the page is in
    /// memory and they lie in it.
    #[inline]
    pub fn peek(&self, index: u64, at: usize) -> Option<u64> {
        self.service.state.borrow().peek(self.id, index, at)
    }

    /// Whether page `index` of the object (each has 4064 bytes) is damaged on disk: one of its two copies cannot be
    /// read. Under [`Level::Lazy`], where a crash may leave one copy half-written: neither can. Changes that are not
    /// written back yet are not looked at.
    pub async fn is_damaged(&self, index: u64) -> Result<bool> {
        let number = self.service.state.borrow().directory.page_of(self.id, index)?;
        let copies = self.service.copies(number).await?;
        let broken = copies.iter().filter(|copy| **copy == Slot::Broken).count();
        Ok(broken > usize::from(self.service.shape.level == Level::Lazy))
    }

    /// Makes page `index` of the object whole again, holding `bytes` and then zeroes, whatever was left of it. For a
    /// page that cannot be read, and whose contents the caller knows. The page is durable when this returns; after a
    /// crash before that, the page may still be damaged, and nothing else. The object must not change meanwhile.
    pub async fn restore(&self, index: u64, bytes: &[u8]) -> Result<()> {
        if bytes.len() > PAYLOAD {
            return Err(Error::invalid(format!("a page has {PAYLOAD} bytes")));
        }
        let mut data = [0; PAYLOAD];
        data[..bytes.len()].copy_from_slice(bytes);
        // Nothing is left in the log that would be put over what is written now.
        self.service.reach(true).await?;
        let number = self.service.state.borrow().directory.page_of(self.id, index)?;
        match self.service.page(self.id, index).await {
            // The next copy takes the place of the damaged one.
            Ok(_) => {
                let offset = index * PAYLOAD as u64;
                let len = (self.len - offset).min(PAYLOAD as u64) as usize;
                self.write(offset, &data[..len]).await?;
                self.service.reach(true).await
            }
            Err(e) if e.kind() == ErrorKind::Corrupt => self.service.rewrite(number, self.id.0, &data).await,
            Err(e) => Err(e),
        }
    }

    /// Writes `bytes` at `offset`: a [`Change`] of one write.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.service.change(&Change::new().write(self.id, offset, bytes)).await
    }
}

fn check(id: Id, object: u64, offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= object => Ok(()),
        _ => Err(Error::invalid(format!("{len} bytes at {offset} of object {}, which has {object}", id.0))),
    }
}

/// `len` bytes from `offset` by page: bytes before; the page's index in the object, the offset in it, the length.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, (u64, usize, usize))> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let (index, from) = (at / PAYLOAD as u64, (at % PAYLOAD as u64) as usize);
        let part = (PAYLOAD - from).min(len - done);
        done += part;
        (part > 0).then_some((done - part, (index, from, part)))
    })
}

impl Service {
    async fn change(&self, change: &Change) -> Result<()> {
        let bytes: usize = change.writes.iter().map(|(_, _, bytes)| bytes.len()).sum();
        let entries = change.frees.len();
        // Every page is one more piece at most.
        let pieces = change.writes.len() * 2 + bytes / PAYLOAD + entries;
        let size = bytes + entries * size_of::<Edit>();
        loop {
            self.wait_for_room(size, pieces, || self.pages_of(change)).await?;
            // Holding them keeps them in memory. Others may have changed something meanwhile, so space is asked for
            // again, and from then on there is no pause.
            let pages = self.pages_in_memory(change).await?;
            if self.space(size, pieces, pages.iter().map(|page| page.0)) == Space::Yes {
                return self.make(change, &pages);
            }
        }
    }

    /// The pieces of a change, in order.
    fn pieces<'a>(&self, change: &'a Change) -> Result<SmallVec<[Piece<'a>; 4]>> {
        let state = self.state.borrow();
        let mut pieces = SmallVec::new();
        for (id, offset, bytes) in &change.writes {
            check(*id, state.directory.len_of(*id)?, *offset, bytes.len())?;
            for (done, (index, from, len)) in parts(*offset, bytes.len()) {
                let what = match bytes {
                    Bytes::Put(bytes) => What::Put(&bytes[done..done + len]),
                    Bytes::Update(all, update) if *all == len => What::Update(len, update),
                    Bytes::Update(..) => {
                        return Err(Error::invalid("bytes that are updated must lie in one page"));
                    }
                };
                pieces.push(Piece { number: state.directory.page_of(*id, index)?, offset: from, what });
            }
        }
        Ok(pieces)
    }

    fn pages_of(&self, change: &Change) -> Result<SmallVec<[u32; 4]>> {
        let mut pages: SmallVec<[u32; 4]> = self.pieces(change)?.iter().map(|piece| piece.number).collect();
        pages.sort_unstable();
        pages.dedup();
        Ok(pages)
    }

    async fn pages_in_memory(&self, change: &Change) -> Result<Pages> {
        let mut pages = Pages::new();
        for (id, offset, bytes) in &change.writes {
            for (_, (index, ..)) in parts(*offset, bytes.len()) {
                let number = self.state.borrow().directory.page_of(*id, index)?;
                pages.push((number, self.page(*id, index).await?));
            }
        }
        pages.sort_unstable_by_key(|page| page.0);
        pages.dedup_by_key(|page| page.0);
        Ok(pages)
    }

    /// Makes a change whose pages are in memory.
    fn make(&self, change: &Change, pages: &Pages) -> Result<()> {
        let pieces = self.pieces(change)?;
        let mut state = self.state.borrow_mut();
        let mut frees = BTreeSet::new();
        for id in &change.frees {
            state.directory.len_of(*id)?;
            if !frees.insert(*id) {
                return Err(gone(*id));
            }
        }
        // An object that went and came while pages were loaded has other pages: its number is another, too.
        for Piece { number, offset, what } in pieces {
            let Ok(found) = pages.binary_search_by_key(&number, |page| page.0) else {
                return Err(Error::new(ErrorKind::Corrupt, "a page moved while it was changed"));
            };
            let page = &pages[found].1;
            match what {
                What::Put(bytes) => state.change(number, page, offset, bytes),
                What::Update(len, update) => {
                    let mut bytes = page.data.borrow()[offset..offset + len].to_vec();
                    update(&mut bytes);
                    state.change(number, page, offset, &bytes);
                }
            }
        }
        let mut edits = Vec::new();
        for id in frees {
            if let Some((edit, runs)) = state.directory.free(id) {
                state.drop_pages(&runs);
                state.freed.extend(runs);
                edits.push(edit);
            }
        }
        drop(state);
        edits.into_iter().for_each(|edit| self.edit(edit));
        self.changed();
        Ok(())
    }

    /// Changes an entry of the directory.
    fn edit(&self, (number, offset, bytes): Edit) {
        let directory = self.directory_pages.borrow();
        debug_assert_eq!(directory[number as usize].owner.get(), DIRECTORY);
        self.state.borrow_mut().change(number, &directory[number as usize], offset, &bytes);
    }
}

/// The number of pages that an object of `len` bytes takes, each twice 4096 bytes of the region.
pub fn pages(len: u64) -> u64 {
    pages_of(len)
}
