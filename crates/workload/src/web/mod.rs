//! The web file server of the paper on CATS (section 5): fifty processes that read files, directly or through a page
//! cache.
//!
//! ```text
//!      a process, for ever:
//!          n ← Pareto(2.43, 1.00), rounded down
//!          n times:
//!              file ← Zipf over all files
//!              until the file's end:
//!                  read a page of 4 KiB
//!                  sleep Pareto(1.5, 2.0) ms
//! ```
//!
//! The paper says how long a process sleeps ("milliseconds per block"), but not how many blocks it reads before that.
//! The figures of its tables decide. Fifty processes that each wait R for a page and then sleep 6.0 ms, the mean of
//! Pareto(1.5, 2.0), read 50 · 8 / (R + 6.0) sectors a millisecond. For the direct workload and the deadline scheduler
//! R is 59.87 ms: the formula gives 6.07, and Table 2 has 6.08. (On the virtual machine all is slower by k = 8, so that
//! the sleep is 0.75 of its milliseconds: 5.06, and the table has 5.06; for cfq 3.39 and 3.38.) Pages of two blocks, or
//! a sleep for each file, are far off. Hence the mean service time of the tables is twice the time that the disk takes
//! for a request: 8 sectors / 6.08 = 1.32 ms, and Table 2 has 2.71. A request of the paper is in service from the
//! moment when it leaves the scheduler, while the disk still works on the one before.
//!
//! With O_DIRECT each page is a request (the last one of a file as well: a file has whole blocks). Through the cache,
//! reads are those of Linux 2.6.30's read-ahead: windows of 16 to 128 KiB, cut where an extent ends, where pages are
//! there already, and at 256 sectors. The cache (65 MB were observed) is full of popular files when the workload
//! begins.
//!
//! A process that opens a file reads the block of its directory and that of its inode first, through the kernel's
//! caches also with O_DIRECT: each block once, because at the begin none is in memory (but those of files that the page
//! cache has) and none leaves it (all of a million files take 170 MB). Of the requests of the direct workload a tenth
//! are such; without them the drive's cache has so many of the other requests that the policies of Table 2 do not rank
//! as measured.
//!
//! A page that is on its way for another process counts as there: a client waits for its own requests only.
//!
//! A cache that has all files leaves nothing to ask of the disk. The workload ends when its processes have opened
//! [`IDLE_FILES`] files for each one that there is without a request.

mod allocator;
mod cache;
mod files;
mod readahead;

pub use files::{FILES, Files, LARGE, Layout, SECTORS, Summary};

use crate::random::{pareto, zipf};
use crate::{Action, Workload};
use allocator::{BLOCK, Extent};
use cache::{Page, PageCache, PageId};
use fastrand::Rng;
use lamina_block::Time;
use lamina_drive::{Op, Request, SECTOR};
use readahead::{ReadAhead, WINDOW_MAX, Window};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Blocks of the longest request: 256 sectors.
const REQUEST_MAX: u32 = 256 / BLOCK_SECTORS;
const BLOCK_SECTORS: u32 = (BLOCK / SECTOR) as u32;
/// The workload ends after so many files were opened for each one that there is, all from memory.
pub const IDLE_FILES: u64 = 16;

/// Parameters of the workload; the default is the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Processes, at least 1.
    pub clients: u32,
    /// The page cache in pages of 4 KiB; `None`: O_DIRECT.
    pub cache: Option<u32>,
    /// Pages of 4 KiB that a process reads at a time, 1 to 1024.
    pub pages: u32,
    /// The workload ends after so many requests, or earlier if the page cache has all that is read.
    pub requests: u64,
    /// Opening a file reads its metadata.
    pub metadata: bool,
    /// Sleeps last so many times as long as the paper's.
    pub sleep: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { clients: 50, cache: None, pages: 1, requests: 50_000, metadata: true, sleep: 1.0 }
    }
}

/// Pages of the page cache that the paper observed: 65 MB.
pub const CACHE_PAGES: u32 = (65_000_000 / BLOCK) as u32;

/// The workload. Each process draws from a generator of its own, so that it reads the same files in the same order
/// whatever the others do and however long its reads take.
pub struct Web {
    options: Options,
    files: Arc<Files>,
    cache: Option<PageCache>,
    /// Blocks of metadata in memory.
    known: FxHashSet<u32>,
    clients: Vec<Client>,
    /// Requests sent by all.
    sent: u64,
    /// Files that were opened since the last of them.
    opened: u64,
}

/// A process.
struct Client {
    number: u32,
    random: Rng,
    /// Files to read before the next group.
    files_left: u32,
    open: Option<Open>,
    /// Its actions before it reads on.
    todo: VecDeque<Action>,
    /// Requests that it has sent or put into `todo`.
    requests: u64,
    /// Of these, so many from the first on have ended, or `todo` has a wait for them.
    awaited: u64,
}

/// A file that is being read.
struct Open {
    file: u32,
    /// The next page, and the end.
    page: u32,
    pages: u32,
    ahead: ReadAhead,
}

impl Web {
    /// The workload over files that are laid out. Another seed: other draws of the processes.
    pub fn new(options: Options, files: Arc<Files>, seed: u64) -> Web {
        let mut random = Rng::with_seed(seed);
        let clients = (0..options.clients).map(|number| Client {
            number,
            random: random.fork(),
            files_left: 0,
            open: None,
            todo: VecDeque::new(),
            requests: 0,
            awaited: 0,
        });
        let clients = clients.collect();
        let mut known = FxHashSet::default();
        let cache = options.cache.map(|pages| warm(PageCache::new(pages), &files, &mut known, &mut random));
        Web { options, files, cache, known, clients, sent: 0, opened: 0 }
    }
}

/// Fills a cache with files as they are read: popular ones more likely, and whole. What it takes to find them was read
/// then, too, and stays `known`.
fn warm(mut cache: PageCache, files: &Files, known: &mut FxHashSet<u32>, random: &mut Rng) -> PageCache {
    // A cache that is larger than all files does not fill up.
    for _ in 0..files.count() {
        if cache.is_full() {
            break;
        }
        let file = files.by_rank(zipf(random, files.count()));
        known.extend(files.metadata(file));
        for page in 0..files.blocks(file) {
            let id = PageId { file, page };
            if cache.get(id).is_none() {
                cache.insert(id, Page { reader: u32::MAX, request: 0, marker: false });
            }
        }
    }
    cache
}

impl Workload for Web {
    fn clients(&self) -> u32 {
        self.options.clients
    }

    fn next(&mut self, client: u32, _now: Time) -> Action {
        let Some(client) = self.clients.get_mut(client as usize) else { return Action::End };
        let is_idle = self.opened > IDLE_FILES * self.files.count() as u64;
        if self.sent >= self.options.requests || is_idle {
            return Action::End;
        }
        while client.todo.is_empty() {
            self.opened += client.open.is_none() as u64;
            client.read(&self.options, &self.files, self.cache.as_mut(), &mut self.known);
        }
        let action = client.todo.pop_front().unwrap_or(Action::End);
        if matches!(action, Action::Submit { .. }) {
            self.sent += 1;
            self.opened = 0;
        }
        action
    }
}

impl Client {
    /// Reads the next pages of the open file, of the next one if none is open, and sleeps.
    fn read(
        &mut self,
        options: &Options,
        files: &Files,
        cache: Option<&mut PageCache>,
        known: &mut FxHashSet<u32>,
    ) {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let open = self.next_file(files);
                if options.metadata {
                    self.find(open.file, files, known);
                }
                open
            }
        };
        let pages = open.page..open.pages.min(open.page + options.pages);
        match cache {
            None => self.read_directly(open.file, pages.clone(), files),
            Some(cache) => pages.clone().for_each(|page| {
                self.read_cached(&mut open, page, pages.end - page, files, cache);
            }),
        }
        let ms = options.sleep * pages.clone().map(|_| pareto(&mut self.random, 1.5, 2.0)).sum::<f64>();
        // The tail is long: at most thirty years, which are far from the end of the clock.
        self.todo.push_back(Action::Sleep(Duration::from_secs_f64((ms / 1e3).min(1e9))));
        open.page = pages.end;
        self.open = Some(open).filter(|open| open.page < open.pages);
    }

    fn next_file(&mut self, files: &Files) -> Open {
        if self.files_left == 0 {
            self.files_left = pareto(&mut self.random, 2.43, 1.0) as u32;
        }
        self.files_left = self.files_left.saturating_sub(1);
        let file = files.by_rank(zipf(&mut self.random, files.count()));
        Open { file, page: 0, pages: files.blocks(file), ahead: ReadAhead::default() }
    }

    /// Reads what it takes to find a file, as far as that is not in memory.
    fn find(&mut self, file: u32, files: &Files, known: &mut FxHashSet<u32>) {
        for start in files.metadata(file) {
            if known.insert(start) {
                self.send(Extent { start, blocks: 1 });
                self.wait_for(self.requests);
            }
        }
    }

    /// Sends the reads of some pages, and waits for all of them.
    fn read_directly(&mut self, file: u32, pages: Range<u32>, files: &Files) {
        for extent in runs(files, file, pages) {
            self.send(extent);
        }
        self.wait_for(self.requests);
    }

    /// Has one of `wanted` pages in the cache, and what is to be read ahead of it on its way.
    fn read_cached(&mut self, open: &mut Open, page: u32, wanted: u32, files: &Files, cache: &mut PageCache) {
        let id = PageId { file: open.file, page };
        if !cache.has(id) {
            let window = open.ahead.missing(page, wanted);
            self.fetch(open, window, files, cache);
        }
        // A cache that is smaller than a window has lost the page again: then it was read all the same.
        let Some(there) = cache.get(id) else { return self.wait_for(self.requests) };
        let read = *there;
        if std::mem::take(&mut there.marker) {
            let behind = page + 1..open.pages.min(page + 1 + WINDOW_MAX);
            let present =
                behind.take_while(|page| cache.has(PageId { file: open.file, page: *page })).count();
            if let Some(window) = open.ahead.marked(page, wanted, present as u32) {
                self.fetch(open, window, files, cache);
            }
        }
        if read.reader == self.number {
            self.wait_for(read.request + 1);
        }
    }

    /// Sends the reads of those pages of a window that are in the file, and not in the cache.
    fn fetch(&mut self, open: &Open, window: Window, files: &Files, cache: &mut PageCache) {
        let end = open.pages.min(window.start + window.pages);
        let mut page = window.start;
        while page < end {
            let is_absent = |page: &u32| !cache.has(PageId { file: open.file, page: *page });
            let absent = page..page + (page..end).take_while(is_absent).count() as u32;
            for extent in runs(files, open.file, absent.clone()) {
                let (reader, request) = (self.number, self.requests);
                self.send(extent);
                for read in page..page + extent.blocks {
                    let read_in = Page { reader, request, marker: read == window.marker };
                    cache.insert(PageId { file: open.file, page: read }, read_in);
                }
                page += extent.blocks;
            }
            // The page behind is there, or behind the end.
            page = absent.end + 1;
        }
    }

    fn send(&mut self, extent: Extent) {
        let (lbn, sectors) = (extent.start as u64 * BLOCK_SECTORS as u64, extent.blocks * BLOCK_SECTORS);
        let request = Request { op: Op::Read, lbn, sectors };
        self.todo.push_back(Action::Submit { request, wait: false });
        self.requests += 1;
    }

    /// Waits for the first `requests` requests, unless that is behind it.
    fn wait_for(&mut self, requests: u64) {
        if requests > self.awaited {
            self.awaited = requests;
            self.todo.push_back(Action::WaitFor(requests));
        }
    }
}

/// Pages of a file as requests: consecutive blocks, at most 256 sectors.
fn runs(files: &Files, file: u32, pages: Range<u32>) -> Vec<Extent> {
    let mut runs = Vec::new();
    let mut page = pages.start;
    while page < pages.end {
        let Some(extent) = files.place(file, page) else { break };
        let blocks = extent.blocks.min(pages.end - page).min(REQUEST_MAX);
        runs.push(Extent { start: extent.start, blocks });
        page += blocks;
    }
    runs
}

#[cfg(test)]
mod tests;
