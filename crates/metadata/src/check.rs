//! Looking at a store without opening it: is every copy of every page whole?
//!
//! A store notices damage when a page is asked for, which may be years later. This reads all pages that are in use,
//! both copies of each. A check writes nothing. Changes that are only in the log are not looked at: open the store
//! before, over a device that forgets writes, and its log is in its pages.

use crate::directory::{DIRECTORY, Directory};
use crate::format::{self, BLOCK, Shape, Slot};
use crate::service::newest;
use crate::{Id, Level};
use lamina_block::{Buf, Error, ErrorKind, Io, Node, Result};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// Pages that are read at once.
const BATCH: u32 = 64;
/// The most places of damage that are listed one by one.
pub const DAMAGE_MAX: usize = 1000;

/// The findings about a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Its level.
    pub level: Level,
    /// How many objects there are.
    pub objects: usize,
    /// The number of pages in use, those of the directory too.
    pub pages: u64,
    /// The damage, at most [`DAMAGE_MAX`] places.
    pub damage: Vec<Damage>,
    /// How many places there are in all.
    pub damaged: u64,
    /// The number of pages with one whole copy and one broken copy, under [`Level::Lazy`]: a crash in the middle of a
    /// write-back leaves that, and the whole one counts. This is no damage; but damage looks the same.
    pub half_written: u64,
}

/// Something that is wrong in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One of the two roots; the store is opened by the other.
    Root(u8),
    /// One of the two copies of a page. The other one is whole, and may be the older one.
    Copy {
        /// The page.
        page: u32,
        /// The object of the page; 0 is the directory.
        object: u64,
    },
    /// A page of which nothing is left.
    Page {
        /// The page.
        page: u32,
        /// The object of the page; 0 is the directory.
        object: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |object: &u64| match object {
            0 => "the directory".to_owned(),
            id => format!("object {id}"),
        };
        match self {
            Damage::Root(0) => f.write_str("the first root is damaged; the second one is whole"),
            Damage::Root(_) => f.write_str("the second root is damaged; the first one is whole"),
            Damage::Copy { page, object } => {
                write!(
                    f,
                    "page {page}, of {}: one of its copies is damaged, and the other may be older",
                    of(object)
                )
            }
            Damage::Page { page, object } => write!(f, "page {page}, of {}: the page is lost", of(object)),
        }
    }
}

/// Where a store lies.
struct Looked<'a> {
    node: &'a Rc<Node>,
    shape: Shape,
    found: Checked,
}

/// Looks at the store that begins at the head of `node`.
///
/// Fails if there is none, or if neither of its roots or not all of its directory can be read.
pub async fn check(node: &Rc<Node>) -> Result<Checked> {
    let space = node.geometry().size / BLOCK as u64 * BLOCK as u64;
    if space < 2 * BLOCK as u64 {
        return Err(Error::new(ErrorKind::Corrupt, "the device is too small for a metadata store"));
    }
    let bytes = get(node, 0..2 * BLOCK as u64).await?;
    let mut roots = [0, 1].map(|i| format::read_root(&bytes[i * BLOCK..][..BLOCK], space));
    let broken: Vec<Damage> =
        (0u8..).zip(&roots).filter(|(_, r)| r.is_err()).map(|(i, _)| Damage::Root(i)).collect();
    // The directory lies where both say.
    let at = usize::from(roots[0].is_err());
    let (shape, ..) = std::mem::replace(&mut roots[at], Err(Error::invalid("taken")))?;
    let never_written = bytes[BLOCK..].iter().all(|byte| *byte == 0);
    let mut looked = Looked {
        node,
        shape,
        found: Checked {
            level: shape.level,
            objects: 0,
            pages: 0,
            damage: Vec::new(),
            damaged: 0,
            half_written: 0,
        },
    };
    // The second root comes with the first write-back.
    for damage in broken.into_iter().filter(|damage| *damage != Damage::Root(1) || !never_written) {
        looked.wrong(damage);
    }
    let directory = looked.directory().await?;
    for (id, ..) in directory.objects() {
        looked.found.objects += 1;
        for (start, count) in directory.runs(id) {
            looked.run(id, *start, *count).await?;
        }
    }
    Ok(looked.found)
}

async fn get(node: &Rc<Node>, at: Range<u64>) -> Result<Vec<u8>> {
    let buf = Buf::zeroed((at.end - at.start) as usize);
    node.submit(Io::read(at.start, buf.clone())).await?;
    Ok(buf.to_vec())
}

impl Looked<'_> {
    fn wrong(&mut self, damage: Damage) {
        self.found.damaged += 1;
        if self.found.damage.len() < DAMAGE_MAX {
            self.found.damage.push(damage);
        }
    }

    async fn directory(&mut self) -> Result<Directory> {
        let count = self.shape.directory_pages;
        let mut pages = Vec::new();
        for number in 0..count {
            let at = self.shape.slot_at(number, 0);
            let slots = get(self.node, at..at + 2 * BLOCK as u64).await?;
            let page = newest(number, &slots, true)?;
            pages.push(page.data.borrow().to_vec());
        }
        self.run(Id(DIRECTORY), 0, count).await?;
        Directory::read(&pages, self.shape.pages)
    }

    /// Looks at both copies of `count` pages.
    async fn run(&mut self, id: Id, start: u32, count: u32) -> Result<()> {
        let end = start + count;
        for first in (start..end).step_by(BATCH as usize) {
            let last = end.min(first + BATCH);
            let bytes = get(self.node, self.shape.slot_at(first, 0)..self.shape.slot_at(last, 0)).await?;
            for (page, slots) in (first..).zip(bytes.chunks_exact(2 * BLOCK)) {
                let found = [&slots[..BLOCK], &slots[BLOCK..]].map(|slot| format::slot(slot, page));
                let broken = found.iter().filter(|slot| **slot == Slot::Broken).count();
                let whole = found.iter().any(|slot| matches!(slot, Slot::Whole { .. }));
                match broken {
                    0 => {}
                    // A page that was never whole reads as zeroes.
                    1 if self.shape.level == Level::Lazy => self.found.half_written += 1,
                    1 if whole => self.wrong(Damage::Copy { page, object: id.0 }),
                    _ => self.wrong(Damage::Page { page, object: id.0 }),
                }
            }
        }
        self.found.pages += u64::from(count);
        Ok(())
    }
}
