//! A walk through all versions that believes nothing: who owns each extent, and what cannot be.

use super::super::core::Core;
use super::list::List;
use lamina_block::{ErrorKind, Result};
use lamina_metadata::extents::{Entry, FANOUT, Root};
use std::ops::Range;
use std::time::Duration;

/// The extents whose owners are in memory at a time: those of whole pages of the bitmap, 64 MiB of owners.
const WINDOW: u64 = 32_512 * 256;
/// Pages walked without a pause.
const AT_ONCE: u64 = 8;
/// The most versions that are named.
const NAMED_MAX: usize = 3;

/// A version of the volume.
pub(super) struct Known {
    /// What it is called.
    pub words: String,
    pub root: Root,
    /// What it refers to was born then, or before.
    pub epoch: u32,
    pub size: u64,
    /// Its place among the snapshots; none: the volume as it is.
    pub snapshot: Option<usize>,
}

/// Where an entry stands.
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

/// What cannot be.
enum Wrong {
    /// A page cannot be read.
    Unreadable(u64),
    /// An entry says nothing.
    Impossible,
    /// An entry names an extent behind the device's last.
    Beyond(u64),
    /// An extent has two owners: this one, and the one whose number is given.
    Twice(u64, u64),
    /// A page is part of two tables, or of one twice.
    PageTwice(u64),
}

struct Problem {
    version: usize,
    holder: Holder,
    span: Span,
    wrong: Wrong,
}

/// What is to be written instead of an entry that claims to be younger than its version.
pub(super) enum Fix {
    Entry { page: u64, slot: usize, to: Entry, words: String },
    Root { version: usize, to: Entry, words: String },
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
    /// Of each extent of the window: the number of the extent of the volume that lies there, and one.
    owners: Vec<u64>,
    /// Of each page of the tree: its place in the tables, never 0.
    places: Vec<u64>,
    stack: Vec<Node>,
    version: usize,
    problems: Vec<Problem>,
    fixes: Vec<Fix>,
    /// This is the first window: what is wrong with pages and entries is noted.
    first: bool,
}

impl<'a> Walk<'a> {
    pub fn new(core: &'a Core, versions: &'a [Known]) -> Walk<'a> {
        Walk {
            core,
            versions,
            window: 0..0,
            owners: Vec::new(),
            places: Vec::new(),
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

    /// Whether somebody owns an extent of the window.
    pub fn owns(&self, extent: u64) -> bool {
        self.owners[(extent - self.window.start) as usize] != 0
    }

    /// Whether somebody refers to a page of the tree.
    pub fn has_page(&self, page: u64) -> bool {
        self.places[page as usize] != 0
    }

    /// Pages that somebody refers to.
    pub fn pages(&self) -> usize {
        self.places.iter().filter(|place| **place != 0).count()
    }

    pub fn take_fixes(&mut self) -> Vec<Fix> {
        std::mem::take(&mut self.fixes)
    }

    /// Walks all versions for a window, and says what is wrong.
    pub async fn window(&mut self, number: u64, list: &mut List) -> Result<()> {
        self.first = number == 0;
        self.walk(number).await?;
        for problem in std::mem::take(&mut self.problems) {
            let words = self.words(&problem).await;
            list.lost(words);
        }
        Ok(())
    }

    /// Walks once more, in silence.
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
        self.places = vec![0; self.core.tree.count() as usize];
        let mut walked = 0;
        for version in 0..self.versions.len() {
            self.version = version;
            let root = self.versions[version].root;
            let behind = Span { first: root.capacity(), len: u64::MAX - root.capacity() };
            self.at_home(Holder::Root, behind);
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
                self.wrong(holder, span, Wrong::Unreadable(page));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// An entry with so many levels below it.
    fn entry(&mut self, holder: Holder, entry: Result<Entry>, below: u8, span: Span) {
        match entry {
            Ok(Entry::Absent) => self.at_home(holder, span),
            Ok(Entry::Hole) if below == 0 => {}
            Ok(Entry::At { place, born }) => {
                self.age(holder, place, born, span);
                match below {
                    0 if place < self.core.head().physical => self.own(holder, place, span.first),
                    0 => self.wrong(holder, span, Wrong::Beyond(place)),
                    _ => self.go_down(holder, place, below, span),
                }
            }
            Ok(Entry::Hole) | Err(_) => self.wrong(holder, span, Wrong::Impossible),
        }
    }

    fn go_down(&mut self, holder: Holder, page: u64, below: u8, span: Span) {
        let here = span.first.saturating_mul(8) + u64::from(below);
        match self.places.get(page as usize).copied() {
            Some(0) => {
                self.places[page as usize] = here;
                self.stack.push(Node { page, level: below - 1, first: span.first, holder });
            }
            Some(there) if there == here => {}
            Some(_) => self.wrong(holder, span, Wrong::PageTwice(page)),
            None => self.wrong(holder, span, Wrong::Impossible),
        }
    }

    /// What was born after a version cannot be part of it. If it were believed, it would be overwritten in its place.
    fn age(&mut self, holder: Holder, place: u64, born: u32, span: Span) {
        let version = &self.versions[self.version];
        if born <= version.epoch || !self.first {
            return;
        }
        let bytes = self.bytes(span, version.size);
        let words = format!(
            "bytes {} to {} of {} are said to be younger than it is",
            bytes.start, bytes.end, version.words
        );
        let to = Entry::At { place, born: version.epoch };
        self.fixes.push(match holder {
            Holder::Root => Fix::Root { version: self.version, to, words },
            Holder::Page { page, slot, .. } => Fix::Entry { page, slot, to, words },
        });
    }

    /// What no entry speaks of lies where it did when the device was taken over.
    fn at_home(&mut self, holder: Holder, span: Span) {
        let adopted = self.core.head().adopted;
        let start = span.first.max(self.window.start);
        let end = span.first.saturating_add(span.len).min(adopted).min(self.window.end);
        for extent in start..end {
            self.own(holder, extent, extent);
        }
    }

    fn own(&mut self, holder: Holder, extent: u64, number: u64) {
        if !self.window.contains(&extent) {
            return;
        }
        let at = (extent - self.window.start) as usize;
        match self.owners[at] {
            0 => self.owners[at] = number + 1,
            owner if owner == number + 1 => {}
            other => {
                let span = Span { first: number, len: 1 };
                self.note(holder, span, Wrong::Twice(extent, other - 1));
            }
        }
    }

    fn wrong(&mut self, holder: Holder, span: Span, wrong: Wrong) {
        if self.first {
            self.note(holder, span, wrong);
        }
    }

    fn note(&mut self, holder: Holder, span: Span, wrong: Wrong) {
        self.problems.push(Problem { version: self.version, holder, span, wrong });
    }

    /// The bytes of extents, as far as a version of `size` bytes has them.
    fn bytes(&self, span: Span, size: u64) -> Range<u64> {
        let shift = self.core.shift();
        let at = |extent: u64| if extent >> (63 - shift) == 0 { extent << shift } else { u64::MAX };
        let start = at(span.first);
        start..at(span.first.saturating_add(span.len)).min(size).max(start)
    }

    async fn words(&self, problem: &Problem) -> String {
        let (size, whose) = self.whose(problem).await;
        let bytes = self.bytes(problem.span, size);
        let lost = format!("bytes {} to {} of {whose}", bytes.start, bytes.end);
        match problem.wrong {
            Wrong::Unreadable(page) => format!("page {page} of the map cannot be read: {lost} are lost"),
            Wrong::Impossible => {
                format!("the map says nothing that is possible of where {lost} lie: they are lost")
            }
            Wrong::Beyond(extent) => {
                let last = self.core.head().physical;
                format!("{lost} are said to lie in extent {extent}, and there are only {last}: they are lost")
            }
            Wrong::Twice(extent, other) => {
                let start = other << self.core.shift();
                format!(
                    "{lost} are said to lie in extent {extent}, and so are bytes {start} to {}: one of both is lost, \
                     and what is written to one is read from the other",
                    start + self.core.extent()
                )
            }
            Wrong::PageTwice(page) => {
                format!(
                    "page {page} of the map is said to tell where {lost} lie, and others too: one of both is lost"
                )
            }
        }
    }

    /// Which versions an entry is part of, in words, and the size of the largest.
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
                names.push(version.words.as_str());
            }
        }
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        let names = names.join(" and ");
        (size, if more > 0 { format!("{names} and {more} more") } else { names })
    }
}
