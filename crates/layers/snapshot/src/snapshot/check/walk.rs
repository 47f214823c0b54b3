//! A walk through all versions that trusts nothing: finds the owner of each extent, and impossible entries.

use super::super::core::Core;
use super::list::List;
use lamina_block::{ErrorKind, Result};
use lamina_metadata::extents::{Entry, FANOUT, Root};
use std::ops::Range;
use std::time::Duration;

/// The physical extents whose owners are in memory at a time: those of whole pages of the bitmap, 64 MiB of
/// owners.
const WINDOW: u64 = 32_512 * 256;
/// Pages walked without a pause.
const AT_ONCE: u64 = 8;
/// The most versions that are named.
const NAMED_MAX: usize = 3;

/// A version of the volume.
pub(super) struct Known {
    /// The name of the version.
    pub name: String,
    pub root: Root,
    /// All extents of the version were born in this epoch, or before.
    pub epoch: u32,
    pub size: u64,
    /// The index of the snapshot; none: the volume as it is.
    pub snapshot: Option<usize>,
}

/// The location of an entry.
#[derive(Clone, Copy)]
enum Holder {
    /// In the root of a version.
    Root,
    Page {
        page: u64,
        level: u8,
        slot: usize,
    },
}

/// Entries below `entry`: their number, and the first extent among them.
#[derive(Clone, Copy)]
struct Span {
    first: u64,
    len: u64,
}

/// The kinds of damage.
enum Damage {
    /// A page cannot be read.
    Unreadable(u64),
    /// An entry is impossible.
    Impossible,
    /// An entry names a physical extent beyond the device's last.
    Beyond(u64),
    /// A physical extent has two owners: this one, and the extent whose number is given.
    Twice(u64, u64),
    /// A page is part of two tables, or of one twice.
    PageTwice(u64),
}

struct Problem {
    version: usize,
    holder: Holder,
    span: Span,
    damage: Damage,
}

/// The correction of an entry that claims to be younger than its version.
pub(super) enum Fix {
    Entry { page: u64, slot: usize, to: Entry, message: String },
    Root { version: usize, to: Entry, message: String },
}

/// A page to be walked.
struct Node {
    page: u64,
    level: u8,
    first: u64,
    holder: Holder,
}

pub(super) struct Walk<'a> {
    core: &'a Core,
    versions: &'a [Known],
    window: Range<u64>,
    /// For each physical extent of the window: the number of the extent of the volume that owns it, plus one.
    owners: Vec<u64>,
    /// For each page of the tree: its position in the tables, never 0.
    positions: Vec<u64>,
    stack: Vec<Node>,
    version: usize,
    problems: Vec<Problem>,
    fixes: Vec<Fix>,
    /// This is the first window: damage of pages and entries is noted.
    first: bool,
}

impl<'a> Walk<'a> {
    pub fn new(core: &'a Core, versions: &'a [Known]) -> Walk<'a> {
        Walk {
            core,
            versions,
            window: 0..0,
            owners: Vec::new(),
            positions: Vec::new(),
            stack: Vec::new(),
            version: 0,
            problems: Vec::new(),
            fixes: Vec::new(),
            first: true,
        }
    }

    pub fn windows(&self) -> u64 {
        self.core.head().physical.div_ceil(WINDOW).max(1)
    }

    /// The extents of the window.
    pub fn extents(&self) -> Range<u64> {
        self.window.clone()
    }

    /// True if a physical extent of the window has an owner.
    pub fn owns(&self, physical: u64) -> bool {
        self.owners[(physical - self.window.start) as usize] != 0
    }

    /// True if a page of the tree is referred to.
    pub fn has_page(&self, page: u64) -> bool {
        self.positions[page as usize] != 0
    }

    /// The number of pages that are referred to.
    pub fn pages(&self) -> usize {
        self.positions.iter().filter(|position| **position != 0).count()
    }

    pub fn take_fixes(&mut self) -> Vec<Fix> {
        std::mem::take(&mut self.fixes)
    }

    /// Walks all versions for a window, and lists the damage.
    pub async fn window(&mut self, number: u64, list: &mut List) -> Result<()> {
        self.first = number == 0;
        self.walk(number).await?;
        for problem in std::mem::take(&mut self.problems) {
            let message = self.message(&problem).await;
            list.lost(message);
        }
        Ok(())
    }

    /// Walks once more, without listing.
    pub async fn again(&mut self, number: u64) -> Result<()> {
        self.first = false;
        self.walk(number).await?;
        self.problems.clear();
        Ok(())
    }

    async fn walk(&mut self, number: u64) -> Result<()> {
        let physical = self.core.head().physical;
        self.window = number * WINDOW..((number + 1) * WINDOW).min(physical);
        self.owners = vec![0; (self.window.end - self.window.start) as usize];
        self.positions = vec![0; self.core.tree.count() as usize];
        let mut walked = 0;
        for version in 0..self.versions.len() {
            self.version = version;
            let root = self.versions[version].root;
            let rest = Span { first: root.capacity(), len: u64::MAX - root.capacity() };
            self.own_adopted(Holder::Root, rest);
            let all = Span { first: 0, len: root.capacity() };
            self.entry(Holder::Root, Ok(root.page), root.levels, all);
            while let Some(node) = self.stack.pop() {
                self.page(node).await?;
                walked += 1;
                if walked % AT_ONCE == 0 {
                    self.core.env.sleep(Duration::ZERO).await;
                }
            }
        }
        Ok(())
    }

    async fn page(&mut self, node: Node) -> Result<()> {
        let Node { page, level, first, holder } = node;
        let len = FANOUT.pow(level.into());
        match self.core.tree.entries(page).await {
            Ok(entries) => {
                for (slot, entry) in entries.into_iter().enumerate() {
                    let span = Span { first: first.saturating_add(slot as u64 * len), len };
                    self.entry(Holder::Page { page, level, slot }, entry, level, span);
                }
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                let span = Span { first, len: len.saturating_mul(FANOUT) };
                self.damaged(holder, span, Damage::Unreadable(page));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// An entry, and the number of levels below it.
    fn entry(&mut self, holder: Holder, entry: Result<Entry>, below: u8, span: Span) {
        match entry {
            Ok(Entry::Absent) => self.own_adopted(holder, span),
            Ok(Entry::Hole) if below == 0 => {}
            Ok(Entry::At { place, born }) => {
                self.age(holder, place, born, span);
                match below {
                    0 if place < self.core.head().physical => self.own(holder, place, span.first),
                    0 => self.damaged(holder, span, Damage::Beyond(place)),
                    _ => self.go_down(holder, place, below, span),
                }
            }
            Ok(Entry::Hole) | Err(_) => self.damaged(holder, span, Damage::Impossible),
        }
    }

    fn go_down(&mut self, holder: Holder, page: u64, below: u8, span: Span) {
        let here = span.first.saturating_mul(8) + u64::from(below);
        match self.positions.get(page as usize).copied() {
            Some(0) => {
                self.positions[page as usize] = here;
                self.stack.push(Node { page, level: below - 1, first: span.first, holder });
            }
            Some(there) if there == here => {}
            Some(_) => self.damaged(holder, span, Damage::PageTwice(page)),
            None => self.damaged(holder, span, Damage::Impossible),
        }
    }

    /// An extent born after a version cannot be part of it. If the entry were trusted, the extent would be
    /// overwritten in place.
    fn age(&mut self, holder: Holder, place: u64, born: u32, span: Span) {
        let version = &self.versions[self.version];
        if born <= version.epoch || !self.first {
            return;
        }
        let bytes = self.bytes(span, version.size);
        let message = format!(
            "bytes {} to {} of {} are said to be younger than this version",
            bytes.start, bytes.end, version.name
        );
        let to = Entry::At { place, born: version.epoch };
        self.fixes.push(match holder {
            Holder::Root => Fix::Root { version: self.version, to, message },
            Holder::Page { page, slot, .. } => Fix::Entry { page, slot, to, message },
        });
    }

    /// Adopted extents without an entry are where they were when the device was adopted.
    fn own_adopted(&mut self, holder: Holder, span: Span) {
        let adopted = self.core.head().adopted;
        let start = span.first.max(self.window.start);
        let end = span.first.saturating_add(span.len).min(adopted).min(self.window.end);
        for extent in start..end {
            self.own(holder, extent, extent);
        }
    }

    fn own(&mut self, holder: Holder, physical: u64, extent: u64) {
        if !self.window.contains(&physical) {
            return;
        }
        let at = (physical - self.window.start) as usize;
        match self.owners[at] {
            0 => self.owners[at] = extent + 1,
            owner if owner == extent + 1 => {}
            other => {
                let span = Span { first: extent, len: 1 };
                self.note(holder, span, Damage::Twice(physical, other - 1));
            }
        }
    }

    fn damaged(&mut self, holder: Holder, span: Span, damage: Damage) {
        if self.first {
            self.note(holder, span, damage);
        }
    }

    fn note(&mut self, holder: Holder, span: Span, damage: Damage) {
        self.problems.push(Problem { version: self.version, holder, span, damage });
    }

    /// The bytes of extents, as far as a version of `size` bytes has them.
    fn bytes(&self, span: Span, size: u64) -> Range<u64> {
        let shift = self.core.shift();
        let at = |extent: u64| if extent >> (63 - shift) == 0 { extent << shift } else { u64::MAX };
        let start = at(span.first);
        start..at(span.first.saturating_add(span.len)).min(size).max(start)
    }

    async fn message(&self, problem: &Problem) -> String {
        let (size, whose) = self.whose(problem).await;
        let bytes = self.bytes(problem.span, size);
        let lost = format!("bytes {} to {} of {whose}", bytes.start, bytes.end);
        match problem.damage {
            Damage::Unreadable(page) => format!("page {page} of the map cannot be read: {lost} are lost"),
            Damage::Impossible => {
                format!("the map has an impossible entry for {lost}: they are lost")
            }
            Damage::Beyond(extent) => {
                let last = self.core.head().physical;
                format!("{lost} are said to lie in extent {extent}, and there are only {last}: they are lost")
            }
            Damage::Twice(extent, other) => {
                let start = other << self.core.shift();
                format!(
                    "{lost} are said to lie in extent {extent}, and so are bytes {start} to {}: one of both \
                     is lost, and a write to one is read from the other",
                    start + self.core.extent()
                )
            }
            Damage::PageTwice(page) => {
                format!(
                    "page {page} of the map is said to tell where {lost} lie, and others too: one of both is lost"
                )
            }
        }
    }

    /// The names of the versions that an entry is part of, and the size of the largest.
    async fn whose(&self, problem: &Problem) -> (u64, String) {
        let (mut size, mut names) = (0, Vec::new());
        for (i, version) in self.versions.iter().enumerate() {
            let is_its = match problem.holder {
                Holder::Root => version.root == self.versions[problem.version].root,
                Holder::Page { page, level, .. } => {
                    let found = self.core.tree.page_at(version.root, problem.span.first, level).await;
                    found.is_ok_and(|found| found == Some(page))
                }
            };
            if is_its || i == problem.version {
                size = size.max(version.size);
                names.push(version.name.as_str());
            }
        }
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        let names = names.join(" and ");
        (size, if more > 0 { format!("{names} and {more} more") } else { names })
    }
}
