//! A versioned table: a tree of pages from an extent's number to its place, of which old versions can be kept.
//!
//! Invariant: a page that a kept version refers to is never changed. Every entry, of an extent or of a page of the
//! tree, has the epoch in which it was *born*; when a version is kept, the epoch is raised, and entries from before are
//! shared from then on. To change what is shared, the pages on the way to it are copied ([`Draft`]).
//!
//! ```text
//!   root ─▶ ┌───┬───┬──── 508 entries ┐
//!           │ · │   │ ·               │      entry: what, where (40 bits), born in epoch (22 bits)
//!           └─┬─┴───┴─┬───────────────┘
//!             ▼       ▼
//!          leaf     leaf ─▶ extents          an absent page stands for 508 absent entries
//! ```
//!
//! Keeping a version is copying its [`Root`]. There are no counts of references: a walk of all versions finds the pages
//! to which none refers any more ([`Tree::page`]).
//!
//! An entry lies in one page, and so does the reference to a page, so at every level of the store both are old or new
//! as a whole.

use crate::format::PAYLOAD;
use crate::{Change, Object, Store};
use lamina_block::{Error, ErrorKind, Result};

/// Entries of a page.
pub const FANOUT: u64 = PAYLOAD as u64 / WIDTH as u64;
/// Bytes of an entry.
pub(crate) const WIDTH: usize = 8;
/// Places that an entry can name.
pub const PLACES_MAX: u64 = 1 << PLACE_BITS;
/// The last epoch.
pub const EPOCH_MAX: u32 = (1 << (64 - KIND_BITS - PLACE_BITS)) - 1;
/// The height of the tallest tree: more extents than there are places.
const LEVELS_MAX: u8 = 5;

const KIND_BITS: u32 = 2;
const PLACE_BITS: u32 = 40;
const HOLE: u64 = 1;
const AT: u64 = 2;

/// The entry of an extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    #[default]
    Absent,
    /// The extent is nowhere.
    Hole,
    /// The place of the extent.
    At {
        /// The physical extent, or the page of the tree.
        place: u64,
        /// The epoch in which this was said first.
        born: u32,
    },
}

impl Entry {
    #[inline]
    pub(crate) fn encode(self) -> u64 {
        match self {
            Entry::Absent => 0,
            Entry::Hole => HOLE,
            Entry::At { place, born } => {
                AT | (place & (PLACES_MAX - 1)) << KIND_BITS | u64::from(born) << (KIND_BITS + PLACE_BITS)
            }
        }
    }

    #[inline]
    pub(crate) fn decode(raw: u64) -> Result<Entry> {
        match raw & ((1 << KIND_BITS) - 1) {
            0 if raw == 0 => Ok(Entry::Absent),
            HOLE if raw == HOLE => Ok(Entry::Hole),
            AT => Ok(Entry::At {
                place: raw >> KIND_BITS & (PLACES_MAX - 1),
                born: (raw >> (KIND_BITS + PLACE_BITS)) as u32,
            }),
            _ => Err(wrong(format!("{raw:#x} is no entry"))),
        }
    }
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the map of extents is damaged: {}", what.into()))
}

/// A version of the table: where its first page is, and how many pages lie on the way to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The first page; [`Entry::Absent`] if the table is empty.
    pub page: Entry,
    /// 1 to 5.
    pub levels: u8,
}

impl Default for Root {
    fn default() -> Root {
        Root { page: Entry::Absent, levels: 1 }
    }
}

impl Root {
    /// Bytes of a root on disk.
    pub const LEN: usize = 16;

    /// Its bytes.
    pub fn encode(self) -> [u8; Root::LEN] {
        let mut bytes = [0; Root::LEN];
        bytes[..8].copy_from_slice(&self.page.encode().to_le_bytes());
        bytes[8] = self.levels;
        bytes
    }

    /// The entry in these bytes. `Corrupt` if they are no root.
    pub fn decode(bytes: &[u8; Root::LEN]) -> Result<Root> {
        let mut raw = [0; 8];
        raw.copy_from_slice(&bytes[..8]);
        let root = Root { page: Entry::decode(u64::from_le_bytes(raw))?, levels: bytes[8] };
        let right = (1..=LEVELS_MAX).contains(&root.levels) && root.page != Entry::Hole;
        match right && bytes[9..].iter().all(|byte| *byte == 0) {
            true => Ok(root),
            false => Err(wrong("a root is impossible")),
        }
    }

    /// The number of extents that it has.
    pub fn capacity(&self) -> u64 {
        capacity(self.levels)
    }
}

/// The extents of a tree of so many levels.
pub(crate) fn capacity(levels: u8) -> u64 {
    FANOUT.saturating_pow(levels.into())
}

/// The levels that a tree needs to have an entry for extent `index`.
pub fn levels_for(index: u64) -> u8 {
    (1..LEVELS_MAX).find(|levels| index < capacity(*levels)).unwrap_or(LEVELS_MAX)
}

/// The most pages that a tree of `extents` entries has.
pub fn pages_for(extents: u64) -> u64 {
    let (mut pages, mut rest) = (0, extents.max(1));
    loop {
        rest = rest.div_ceil(FANOUT);
        pages += rest;
        if rest == 1 {
            return pages;
        }
    }
}

/// The entry of a page at `level` (0: a leaf) on the way to an extent.
#[inline]
pub(crate) fn slot(index: u64, level: u8) -> usize {
    let within = match level {
        0 => index,
        1 => index / FANOUT,
        _ => index / capacity(level),
    };
    (within % FANOUT) as usize
}

/// The result for an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The entry.
    pub entry: Entry,
    /// The epoch in which its leaf was born; `None` if there is no leaf.
    pub leaf: Option<u32>,
}

const NOTHING: Found = Found { entry: Entry::Absent, leaf: None };

/// The pages of all versions, in one object.
pub struct Tree {
    pages: Object,
    count: u64,
}

impl Tree {
    /// A new object of `count` pages, in none of which anything is. The tree is there after a crash if it was
    /// committed.
    pub async fn create(store: &Store, count: u64, tag: u64) -> Result<Tree> {
        let pages = store.alloc(count.saturating_mul(PAYLOAD as u64), tag).await?;
        Ok(Tree { pages, count })
    }

    /// The object with this tag. `Corrupt` if there is none.
    pub fn open(store: &Store, tag: u64) -> Result<Tree> {
        let id = store.find(tag).ok_or_else(|| wrong("its pages are missing"))?;
        let pages = store.load(id)?;
        let count = pages.len() / PAYLOAD as u64;
        Ok(Tree { pages, count })
    }

    /// Pages in all.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn object(&self) -> &Object {
        &self.pages
    }

    pub(crate) fn offset(page: u64, slot: usize) -> u64 {
        page * PAYLOAD as u64 + (slot * WIDTH) as u64
    }

    /// The page that an entry of an inner page (or a root) names.
    pub(crate) fn named(&self, entry: Entry) -> Result<Option<(u64, u32)>> {
        match entry {
            Entry::Absent => Ok(None),
            Entry::At { place, born } if place < self.count => Ok(Some((place, born))),
            Entry::Hole | Entry::At { .. } => Err(wrong("a page is named that cannot be")),
        }
    }

    /// The entry of an extent in a version, if the pages on the way are in memory.
    #[inline]
    pub fn peek(&self, root: Root, index: u64) -> Option<Result<Found>> {
        if index >= root.capacity() {
            return Some(Ok(NOTHING));
        }
        let mut entry = root.page;
        for level in (0..root.levels).rev() {
            let (page, born) = match self.named(entry) {
                Ok(Some(named)) => named,
                Ok(None) => return Some(Ok(NOTHING)),
                Err(e) => return Some(Err(e)),
            };
            let raw = self.pages.peek(page, slot(index, level) * WIDTH)?;
            entry = match Entry::decode(raw) {
                Ok(entry) if level == 0 => return Some(Ok(Found { entry, leaf: Some(born) })),
                Ok(entry) => entry,
                Err(e) => return Some(Err(e)),
            };
        }
        Some(Ok(NOTHING))
    }

    /// The entry of an extent in a version. When this returns, the pages on the way are in memory, until the caller
    /// waits for something.
    pub async fn get(&self, root: Root, index: u64) -> Result<Found> {
        loop {
            if let Some(found) = self.peek(root, index) {
                return found;
            }
            self.leaf(root, index).await?;
        }
    }

    /// The page of the leaf that has an entry for `index`; brings it into memory.
    async fn leaf(&self, root: Root, index: u64) -> Result<Option<u64>> {
        let mut entry = root.page;
        for level in (0..root.levels).rev() {
            let Some((page, _)) = self.named(entry)? else { return Ok(None) };
            let mut raw = [0; WIDTH];
            self.pages.read(Tree::offset(page, slot(index, level)), &mut raw).await?;
            if level == 0 {
                return Ok(Some(page));
            }
            entry = Entry::decode(u64::from_le_bytes(raw))?;
        }
        Ok(None)
    }

    /// The first extent in `from..to` whose leaf is there, or `to`: steps over what is absent, however large it is.
    pub async fn next(&self, root: Root, from: u64, to: u64) -> Result<u64> {
        let mut index = from;
        while index < to.min(root.capacity()) {
            let mut entry = root.page;
            let mut missing = None;
            for level in (0..root.levels).rev() {
                let Some((page, _)) = self.named(entry)? else {
                    missing = Some(level + 1);
                    break;
                };
                if level > 0 {
                    let mut raw = [0; WIDTH];
                    self.pages.read(Tree::offset(page, slot(index, level)), &mut raw).await?;
                    entry = Entry::decode(u64::from_le_bytes(raw))?;
                }
            }
            let Some(level) = missing else { return Ok(index) };
            let step = capacity(level);
            index = (index / step + 1).saturating_mul(step);
        }
        Ok(to)
    }

    /// The first extent in `from..to` whose leaf two versions do not share, or `to`: steps over shared pages, and over
    /// what is absent in both.
    pub async fn next_unshared(&self, versions: [Root; 2], from: u64, to: u64) -> Result<u64> {
        let mut index = from;
        while index < to {
            // Pages of the same level that have an entry for the extent. A shorter tree has nothing at higher levels.
            let reach = versions.iter().filter(|root| index < root.capacity());
            let Some(levels) = reach.map(|root| root.levels).min() else { return Ok(to) };
            let mut shared = None;
            for level in (0..levels).rev() {
                let [one, other] = versions;
                if self.page_at(one, index, level).await? == self.page_at(other, index, level).await? {
                    shared = Some(capacity(level + 1));
                    break;
                }
            }
            let Some(span) = shared else { return Ok(index) };
            index = (index / span + 1).saturating_mul(span);
        }
        Ok(to)
    }

    /// All entries of a page.
    pub async fn page(&self, page: u64) -> Result<Vec<Entry>> {
        self.entries(page).await?.into_iter().collect()
    }

    /// All entries of a page, each of which may be impossible.
    pub async fn entries(&self, page: u64) -> Result<Vec<Result<Entry>>> {
        if page >= self.count {
            return Err(wrong("a page is named that cannot be"));
        }
        let mut bytes = vec![0; PAYLOAD];
        self.pages.read(Tree::offset(page, 0), &mut bytes).await?;
        let raw = |bytes: &[u8]| {
            let mut raw = [0; WIDTH];
            raw.copy_from_slice(bytes);
            Entry::decode(u64::from_le_bytes(raw))
        };
        Ok(bytes.chunks_exact(WIDTH).map(raw).collect())
    }

    /// The page at `level` (0: a leaf) on a version's way to an extent, if there is one.
    pub async fn page_at(&self, root: Root, index: u64, level: u8) -> Result<Option<u64>> {
        if index >= root.capacity() || level >= root.levels {
            return Ok(None);
        }
        let mut entry = root.page;
        for above in (level..root.levels).rev() {
            let Some((page, _)) = self.named(entry)? else { return Ok(None) };
            if above == level {
                return Ok(Some(page));
            }
            let mut raw = [0; WIDTH];
            self.pages.read(Tree::offset(page, slot(index, above)), &mut raw).await?;
            entry = Entry::decode(u64::from_le_bytes(raw))?;
        }
        Ok(None)
    }

    /// Adds to `change`: another entry in a page, in all versions that share it. For repairing what is wrong; to change
    /// a version, there is [`Draft`](super::Draft).
    pub fn correct(&self, change: Change, page: u64, slot: usize, to: Entry) -> Change {
        change.write(self.pages.id(), Tree::offset(page, slot), to.encode().to_le_bytes())
    }
}
