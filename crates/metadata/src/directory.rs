//! Which objects there are and which pages they have: a table of descriptors in the first pages of the store.
//!
//! Invariant: no page belongs to two objects, and a number names one object for ever. A change of the directory is a
//! plain change of bytes of object 0, logged like any other; this struct has the decoded bytes, for look-ups.

use crate::Id;
use crate::format::PAYLOAD;
use lamina_block::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Runs of pages that an object may have.
const RUNS: usize = 5;
/// The owner of the directory's own pages.
pub(crate) const DIRECTORY: u64 = 0;

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Run {
    start: U32,
    count: U32,
}

/// An object's entry in the table. Entry 0 is none: its `id` is the next number to give.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Descriptor {
    id: U64,
    len: U64,
    tag: U64,
    runs: [Run; RUNS],
}

const ENTRY: usize = size_of::<Descriptor>();
const PER_PAGE: usize = PAYLOAD / ENTRY;

/// Pages that a directory of `objects` objects takes.
pub(crate) fn pages_for(objects: u32) -> u32 {
    (objects + 1).div_ceil(PER_PAGE as u32)
}

/// Pages that `len` bytes take.
pub(crate) fn pages_of(len: u64) -> u64 {
    len.div_ceil(PAYLOAD as u64)
}

struct Entry {
    index: u32,
    len: u64,
    tag: u64,
    runs: Vec<(u32, u32)>,
}

/// Bytes of the directory that are to be changed: page, offset, bytes.
pub(crate) type Edit = (u32, usize, [u8; ENTRY]);

#[derive(Default)]
pub(crate) struct Directory {
    objects: BTreeMap<u64, Entry>,
    next_id: u64,
    /// Free entries of the table.
    spare: BTreeSet<u32>,
    /// Free runs of pages: start and count, never adjacent.
    free: BTreeMap<u32, u32>,
}

impl Directory {
    /// The table of a new store, and the contents of its first entry.
    pub fn first_entry() -> Edit {
        edit(0, &Descriptor { id: 1.into(), ..Descriptor::default() })
    }

    /// Reads the directory's `pages` (all of them), in a store of `pages_total` pages.
    pub fn read(pages: &[Vec<u8>], pages_total: u32) -> Result<Directory> {
        let mut directory = Directory::default();
        directory.free.insert(pages.len() as u32, pages_total - pages.len() as u32);
        let entries = pages.iter().flat_map(|page| page.chunks_exact(ENTRY).take(PER_PAGE));
        for (index, bytes) in (0u32..).zip(entries) {
            let descriptor = Descriptor::read_from_bytes(bytes).map_err(|_| wrong("an entry is cut off"))?;
            match (index, descriptor.id.get()) {
                (0, next) => directory.next_id = next,
                (_, 0) => {
                    directory.spare.insert(index);
                }
                (_, id) => directory.take_in(index, id, &descriptor)?,
            }
        }
        let ids_are_old = directory.objects.last_key_value().is_none_or(|(id, _)| *id < directory.next_id);
        match ids_are_old && (1..u64::MAX / 2).contains(&directory.next_id) {
            true => Ok(directory),
            false => Err(wrong("the next object's number is wrong")),
        }
    }

    fn take_in(&mut self, index: u32, id: u64, descriptor: &Descriptor) -> Result<()> {
        let used = descriptor.runs.iter().take_while(|run| run.count.get() > 0);
        let runs: Vec<(u32, u32)> = used.map(|run| (run.start.get(), run.count.get())).collect();
        let count: u64 = runs.iter().map(|(_, count)| u64::from(*count)).sum();
        if count != pages_of(descriptor.len.get()) || !runs.iter().all(|run| self.cut_out(*run)) {
            return Err(wrong(&format!("object {id} has pages that it cannot have")));
        }
        let entry = Entry { index, len: descriptor.len.get(), tag: descriptor.tag.get(), runs };
        match self.objects.insert(id, entry) {
            None => Ok(()),
            Some(_) => Err(wrong(&format!("object {id} is there twice"))),
        }
    }

    /// Removes a run from the free ones, if all of it is free.
    fn cut_out(&mut self, (start, count): (u32, u32)) -> bool {
        let Some((&from, &len)) = self.free.range(..=start).next_back() else { return false };
        let (end, free_end) = (u64::from(start) + u64::from(count), u64::from(from) + u64::from(len));
        if end > free_end {
            return false;
        }
        self.free.remove(&from);
        if start > from {
            self.free.insert(from, start - from);
        }
        if end < free_end {
            self.free.insert(end as u32, (free_end - end) as u32);
        }
        true
    }

    /// Frees pages that are not used any more.
    pub fn give_back(&mut self, (mut start, mut count): (u32, u32)) {
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            self.free.remove(&before);
            (start, count) = (before, count + len);
        }
        if let Some(len) = self.free.remove(&(start + count)) {
            count += len;
        }
        self.free.insert(start, count);
    }

    /// Free runs for `pages` pages: the first that is long enough, or the longest few.
    fn find(&self, pages: u64) -> Option<Vec<(u32, u32)>> {
        if pages == 0 {
            return Some(Vec::new());
        }
        if let Some((start, _)) = self.free.iter().find(|(_, count)| u64::from(**count) >= pages) {
            return Some(vec![(*start, pages as u32)]);
        }
        let mut longest: Vec<(u32, u32)> = self.free.iter().map(|(start, count)| (*start, *count)).collect();
        longest.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
        longest.truncate(RUNS);
        let mut missing = pages;
        let mut runs = Vec::new();
        for (start, count) in longest {
            let part = missing.min(count.into());
            runs.push((start, part as u32));
            missing -= part;
            if missing == 0 {
                return Some(runs);
            }
        }
        None
    }

    /// Adds an object. The bytes to write: its entry and the next number.
    pub fn alloc(&mut self, len: u64, tag: u64) -> Result<(Id, [Edit; 2])> {
        let full = |what: &str| Error::new(ErrorKind::NoSpace, format!("the metadata store has no {what}"));
        let index = *self.spare.first().ok_or_else(|| full("space for another object"))?;
        let no_pages = || full(&format!("space for an object of {len} bytes: {}", self.space()));
        let runs = self.find(pages_of(len)).ok_or_else(no_pages)?;
        let id = self.next_id;
        self.next_id += 1;
        self.spare.remove(&index);
        let mut descriptor =
            Descriptor { id: id.into(), len: len.into(), tag: tag.into(), ..Descriptor::default() };
        for (slot, run) in descriptor.runs.iter_mut().zip(&runs) {
            self.cut_out(*run);
            *slot = Run { start: run.0.into(), count: run.1.into() };
        }
        self.objects.insert(id, Entry { index, len, tag, runs });
        let next = Descriptor { id: self.next_id.into(), ..Descriptor::default() };
        Ok((Id(id), [edit(0, &next), edit(index, &descriptor)]))
    }

    /// Pages that no object has.
    pub fn free_pages(&self) -> u64 {
        self.free.values().map(|count| u64::from(*count)).sum()
    }

    fn space(&self) -> String {
        let pages = self.free_pages();
        format!("{} bytes are free, in {} pieces", pages * PAYLOAD as u64, self.free.len())
    }

    /// Removes an object; its pages stay taken until they are given back. The bytes to write, and the pages of the
    /// object.
    pub fn free(&mut self, id: Id) -> Option<(Edit, Vec<(u32, u32)>)> {
        let entry = self.objects.remove(&id.0)?;
        self.spare.insert(entry.index);
        Some((edit(entry.index, &Descriptor::default()), entry.runs))
    }

    /// Length of an object in bytes.
    pub fn len_of(&self, id: Id) -> Result<u64> {
        self.objects.get(&id.0).map(|entry| entry.len).ok_or_else(|| gone(id))
    }

    /// The page of the store that holds page `index` of an object.
    pub fn page_of(&self, id: Id, index: u64) -> Result<u32> {
        let entry = self.objects.get(&id.0).ok_or_else(|| gone(id))?;
        let mut rest = index;
        for (start, count) in &entry.runs {
            if rest < u64::from(*count) {
                return Ok(start + rest as u32);
            }
            rest -= u64::from(*count);
        }
        Err(Error::invalid(format!("object {} has no page {index}", id.0)))
    }

    /// All objects: number, length and tag.
    pub fn objects(&self) -> impl Iterator<Item = (Id, u64, u64)> {
        self.objects.iter().map(|(id, entry)| (Id(*id), entry.len, entry.tag))
    }

    /// The pages of an object.
    pub fn runs(&self, id: Id) -> &[(u32, u32)] {
        self.objects.get(&id.0).map_or(&[], |entry| &entry.runs)
    }
}

fn edit(index: u32, descriptor: &Descriptor) -> Edit {
    let (page, at) = (index / PER_PAGE as u32, index as usize % PER_PAGE);
    let mut bytes = [0; ENTRY];
    bytes.copy_from_slice(descriptor.as_bytes());
    (page, at * ENTRY, bytes)
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the directory of the metadata store is damaged: {what}"))
}

pub(crate) fn gone(id: Id) -> Error {
    Error::invalid(format!("there is no object {}", id.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(pages: u32) -> (Vec<Vec<u8>>, Directory) {
        let mut bytes = vec![vec![0; PAYLOAD]];
        apply(&mut bytes, &[Directory::first_entry()]);
        let directory = Directory::read(&bytes, pages).unwrap();
        (bytes, directory)
    }

    fn apply(bytes: &mut [Vec<u8>], edits: &[Edit]) {
        for (page, at, entry) in edits {
            bytes[*page as usize][*at..at + ENTRY].copy_from_slice(entry);
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (mut bytes, mut directory) = fresh(10);
        let (a, edits) = directory.alloc(3 * PAYLOAD as u64, 7).unwrap();
        apply(&mut bytes, &edits);
        let (b, edits) = directory.alloc(1, 8).unwrap();
        apply(&mut bytes, &edits);
        let (edit, runs) = directory.free(a).unwrap();
        apply(&mut bytes, &[edit]);
        assert_eq!(runs, [(1, 3)]);
        let mut again = Directory::read(&bytes, 10).unwrap();
        assert_eq!(again.objects().collect::<Vec<_>>(), [(b, 1, 8)]);
        assert_eq!(again.page_of(b, 0).unwrap(), 4);
        // 8 pages are free in two pieces.
        let (c, _) = again.alloc(8 * PAYLOAD as u64, 0).unwrap();
        assert_eq!((c, again.runs(c)), (Id(3), &[(5, 5), (1, 3)][..]));
        assert_eq!(again.alloc(1, 0).unwrap_err().kind(), ErrorKind::NoSpace);
        let pages: Vec<u32> = (0..8).map(|i| again.page_of(c, i).unwrap()).collect();
        assert_eq!(pages, [5, 6, 7, 8, 9, 1, 2, 3]);
    }

    #[test]
    fn pages_given_back_join() {
        let (_, mut directory) = fresh(20);
        let ids: Vec<Id> = (0..6).map(|_| directory.alloc(3 * PAYLOAD as u64, 0).unwrap().0).collect();
        for id in [ids[1], ids[3], ids[2], ids[0], ids[5], ids[4]] {
            let (_, runs) = directory.free(id).unwrap();
            runs.into_iter().for_each(|run| directory.give_back(run));
        }
        assert_eq!(directory.free, [(1, 19)].into());
        assert!(directory.free(ids[0]).is_none());
    }

    #[test]
    fn impossible_tables_are_refused() {
        let (good, mut directory) = fresh(10);
        let (_, edits) = directory.alloc(2 * PAYLOAD as u64, 0).unwrap();
        let run = |start: u32, count: u32| Run { start: start.into(), count: count.into() };
        let with = |change: &dyn Fn(&mut Descriptor)| {
            let mut bytes = good.clone();
            let mut descriptor = Descriptor::read_from_bytes(&edits[1].2).unwrap();
            change(&mut descriptor);
            apply(&mut bytes, &[edits[0], edits[1], edit(2, &descriptor)]);
            Directory::read(&bytes, 10).map(|_| ())
        };
        let move_to = |start, count| {
            with(&move |d: &mut Descriptor| {
                d.id = 0.into();
                d.runs[0] = run(start, count);
            })
        };
        assert!(move_to(3, 2).is_ok());
        let wrong: [&dyn Fn(&mut Descriptor); 6] = [
            &|_| {},
            &|d| d.id = 9.into(),
            &|d| (d.id, d.runs[0]) = (9.into(), run(3, 2)),
            &|d| (d.id, d.runs[0]) = (1.into(), run(3, 2)),
            &|d| d.runs[0] = run(u32::MAX, u32::MAX),
            &|d| d.len = u64::MAX.into(),
        ];
        for (number, change) in wrong.iter().enumerate() {
            let refused = with(change).expect_err(&format!("table {number}"));
            assert_eq!(refused.kind(), ErrorKind::Corrupt);
        }
    }
}
