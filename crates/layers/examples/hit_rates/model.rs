//! The cache of `accelerate`, as a model: S3-FIFO in two logs of segments, with what it costs to append and
//! never write in place.
//!
//! ```text
//!      new ───▶ small ▢▢▣ ──┬─ asked for since it came ──▶ main ▢▢▢▢▢▣ ──┬─ asked for ──▶ main again, counted down
//!                           └─ else ghost                    ▲           └─ else gone, a ghost of main
//!      ghost ────────────────────────────────────────────────┘
//! ```
//!
//! Small is longer when its latest ghosts come again, and shorter when main's do.
//!
//! Room is made by whole segments. A block that is written again is appended again, to the log that has it;
//! what it was before takes its slot until its segment goes. A segment a quarter of which is so is compacted:
//! what is left goes to the end of its log. If there is none, the tail of a log goes. Long streams of large
//! reads pass by, but for a block in which one ends, and the next one begins.
//!
//! The layer has the same rules in code of its own (`accelerate/read.rs` the one for long streams): that it
//! does what is said here shows the table in which the layer itself is replayed (`layer.rs`).
//!
//! What is left out: heads and summaries (but see `heads`), and that a block cannot go before its store has
//! it. With segments of one block, and nothing that is written twice, it does what S3-FIFO does.

use super::policy::{Order, Policy};
use super::trace::{BLOCK, Request};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// What a write does to a block that is there, and to how often it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    Counts,
    Keeps,
    Forgets,
    /// It counts, and nothing is appended: what the same policy could do if flash were written in place.
    InPlace,
}

/// What can be chosen.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Percent of the blocks that are small's before main has to give way, at first.
    pub small: usize,
    /// The least and the most that it becomes, in percent.
    pub between: [usize; 2],
    /// Blocks that it loses when a block comes again that main let go lately; it wins one when small did.
    pub loses: usize,
    /// So many ghosts of each log are the latest, in percent of the blocks of the cache.
    pub lately: usize,
    /// So often a block in small was asked for, to go to main.
    pub threshold: u8,
    /// What the counter can say.
    pub most: u8,
    /// Ghosts of small, in percent of the blocks of the cache.
    pub ghosts: usize,
    pub rewrite: Rewrite,
    /// A block that a stream of reads has just asked for in part, and asks for again for the rest, is counted.
    pub parts: bool,
    /// Bytes after which a stream of reads passes by.
    pub stream: u64,
    /// Smaller requests of it, in bytes, do not.
    pub passing: u64,
    pub segments: usize,
    /// Segments that are always free.
    pub free: usize,
    /// Each request takes one more slot in each log that it is appended to, as if it were written alone.
    pub heads: bool,
    /// Before anything is forgotten, a segment is compacted that has no more blocks than so many percent of its slots.
    pub compact: usize,
    /// The last block of a read that passes comes if it was asked for in part.
    pub ends: bool,
}

/// What Lamina does.
pub const LAMINA: Choice = Choice {
    small: 20,
    between: [10, 40],
    loses: 2,
    lately: 18,
    threshold: 2,
    most: 3,
    ghosts: 72,
    rewrite: Rewrite::Counts,
    parts: true,
    stream: 1 << 20,
    passing: 64 << 10,
    segments: 128,
    free: 0,
    heads: false,
    compact: 75,
    ends: true,
};

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Streams of reads that are known at a time.
const STREAMS: usize = 16;

/// Streams of reads: where the next one is expected, and how long it is; the latest first.
#[derive(Default)]
struct Streams(Vec<(u64, u64)>);

impl Streams {
    /// How long the stream is that a read belongs to.
    fn len(&mut self, bytes: &Range<u64>) -> u64 {
        let known = self.0.iter().position(|(next, _)| *next == bytes.start);
        let before = known.map_or(0, |place| self.0.remove(place).1);
        self.0.truncate(STREAMS - 1);
        let len = before + (bytes.end - bytes.start);
        self.0.insert(0, (bytes.end, len));
        len
    }
}

/// Where the current version of a block is.
#[derive(Clone, Copy)]
struct Place {
    log: usize,
    segment: u64,
    serial: u64,
    frequency: u8,
}

/// A slot that was written: a version of a block, which is dead when the block has another one.
struct Slot {
    key: u64,
    serial: u64,
}

#[derive(Default)]
struct Segment {
    /// Rises in each log.
    number: u64,
    /// Slots that are not dead.
    live: usize,
    slots: Vec<Slot>,
}

pub struct Model {
    choice: Choice,
    blocks: usize,
    /// Slots of a segment.
    slots: usize,
    segments: usize,
    logs: [VecDeque<Segment>; 2],
    /// Blocks of each log.
    live: [usize; 2],
    index: HashMap<u64, Place>,
    ghosts: [Order; 2],
    /// Blocks of all that small should have.
    small: usize,
    streams: Streams,
    serial: u64,
    /// That a block is asked for is counted.
    counts: bool,
    /// Which logs the request has been appended to.
    appended: [bool; 2],
    /// Slots that were written for requests, and to keep what was in a tail.
    pub asked: u64,
    pub kept: u64,
}

impl Model {
    /// A cache of `blocks` blocks.
    pub fn new(blocks: usize, choice: Choice) -> Model {
        let slots = (blocks / choice.segments).max(1);
        Model {
            choice,
            blocks,
            slots,
            // A small log, a main one, and one to move to.
            segments: (blocks / slots).saturating_sub(choice.free).max(3),
            logs: Default::default(),
            live: [0; 2],
            index: HashMap::new(),
            ghosts: Default::default(),
            small: blocks * choice.small / 100,
            streams: Streams::default(),
            serial: 0,
            counts: true,
            appended: [false; 2],
            asked: 0,
            kept: 0,
        }
    }

    fn is_full(&self, log: usize) -> bool {
        self.logs[log].back().is_none_or(|open| open.slots.len() == self.slots)
    }

    /// Appends a version of a block where there is room, or one more segment.
    fn push(&mut self, log: usize, key: u64, frequency: u8) {
        self.serial += 1;
        let serial = self.serial;
        if self.is_full(log) {
            self.logs[log].push_back(Segment { number: serial, ..Segment::default() });
        }
        let Some(open) = self.logs[log].back_mut() else { return };
        open.slots.push(Slot { key, serial });
        open.live += 1;
        self.live[log] += 1;
        let place = Place { log, segment: open.number, serial, frequency };
        if let Some(old) = self.index.insert(key, place) {
            self.live[old.log] -= 1;
            let of = &mut self.logs[old.log];
            if let Ok(at) = of.binary_search_by_key(&old.segment, |segment| segment.number) {
                of[at].live -= 1;
            }
        }
    }

    /// Makes room, and appends; where the block is, if making room has moved it.
    fn append(&mut self, mut log: usize, key: u64, frequency: u8) {
        while self.is_full(log) && self.logs[SMALL].len() + self.logs[MAIN].len() >= self.segments {
            self.reclaim();
            log = self.index.get(&key).map_or(log, |place| place.log);
        }
        self.asked += 1;
        self.appended[log] = true;
        self.push(log, key, frequency);
    }

    /// Segments of a log without the one that is appended to.
    fn closed(&self, log: usize) -> usize {
        self.logs[log].len() - usize::from(!self.logs[log].is_empty() && !self.is_full(log))
    }

    /// The segment with the fewest blocks, if that is few enough: its log, and where it is in it.
    fn sparse(&self) -> Option<(usize, usize)> {
        let places = [SMALL, MAIN].into_iter().flat_map(|log| (0..self.closed(log)).map(move |at| (log, at)));
        let live = |(log, at): &(usize, usize)| self.logs[*log][*at].live;
        let is_sparse = |place: &(usize, usize)| {
            let live = live(place);
            live < self.slots && live * 100 <= self.slots * self.choice.compact
        };
        places.filter(|_| self.choice.compact > 0).filter(is_sparse).min_by_key(live)
    }

    /// Takes a segment out: its blocks, and what was known of them.
    fn take(&mut self, log: usize, at: usize) -> Vec<(u64, Place)> {
        let Some(segment) = self.logs[log].remove(at) else { return Vec::new() };
        self.live[log] -= segment.live;
        let mut blocks = Vec::with_capacity(segment.live);
        for Slot { key, serial } in segment.slots {
            let place = self.index.get(&key).copied().filter(|place| place.serial == serial);
            if let Some(place) = place {
                self.index.remove(&key);
                blocks.push((key, place));
            }
        }
        blocks
    }

    /// Frees a segment.
    fn reclaim(&mut self) {
        if let Some((log, at)) = self.sparse() {
            for (key, place) in self.take(log, at) {
                self.kept += 1;
                self.push(log, key, place.frequency);
            }
            return;
        }
        let [small, main] = self.live;
        let is_large = small * self.blocks > (small + main) * self.small;
        let order = if is_large { [SMALL, MAIN] } else { [MAIN, SMALL] };
        let Some(log) = order.into_iter().find(|log| self.closed(*log) > 0) else { return };
        for (key, place) in self.take(log, 0) {
            let is_kept = place.frequency >= if log == SMALL { self.choice.threshold } else { 1 };
            if is_kept {
                self.kept += 1;
                self.push(MAIN, key, if log == SMALL { 0 } else { place.frequency - 1 });
                continue;
            }
            let most = if log == SMALL { self.choice.ghosts } else { self.choice.lately };
            self.ghosts[log].put(key);
            if self.ghosts[log].len() > self.blocks * most / 100 {
                self.ghosts[log].pop();
            }
        }
    }

    /// A block comes that is not there: the log that it goes to.
    fn recall(&mut self, key: u64) -> usize {
        let [least, most] = self.choice.between.map(|percent| self.blocks * percent / 100);
        if self.ghosts[SMALL].age(key).is_some_and(|age| age <= self.blocks * self.choice.lately / 100) {
            self.small = (self.small + 1).min(most);
        }
        if self.ghosts[MAIN].take(key) {
            self.small = self.small.saturating_sub(self.choice.loses).max(least);
        }
        if self.ghosts[SMALL].take(key) { MAIN } else { SMALL }
    }

    /// A block that is there is asked for.
    fn hit(&mut self, key: u64, place: Place, is_write: bool) {
        let counted = (place.frequency + u8::from(self.counts)).min(self.choice.most);
        if !is_write || self.choice.rewrite == Rewrite::InPlace {
            self.index.insert(key, Place { frequency: counted, ..place });
            return;
        }
        let frequency = match self.choice.rewrite {
            Rewrite::Counts | Rewrite::InPlace => counted,
            Rewrite::Keeps => place.frequency,
            Rewrite::Forgets => 0,
        };
        self.index.insert(key, Place { frequency, ..place });
        self.append(place.log, key, frequency);
    }

    /// As `access`; what `passes` and is not there does not come.
    fn ask(&mut self, key: u64, is_write: bool, passes: bool) -> bool {
        if let Some(place) = self.index.get(&key).copied() {
            self.hit(key, place, is_write);
            return true;
        }
        if !passes {
            let log = self.recall(key);
            self.append(log, key, 0);
        }
        false
    }
}

impl Policy for Model {
    fn access(&mut self, key: u64, is_write: bool) -> bool {
        self.ask(key, is_write, false)
    }

    fn request(&mut self, request: &Request) -> u64 {
        let Request { is_write, bytes } = request;
        let len = if *is_write { 0 } else { self.streams.len(bytes) };
        let is_rest = len > bytes.end - bytes.start && !bytes.start.is_multiple_of(BLOCK);
        let passes = len > self.choice.stream && bytes.end - bytes.start >= self.choice.passing;
        self.appended = [false; 2];
        let mut hits = 0;
        for key in request.blocks() {
            self.counts = self.choice.parts || !(is_rest && key == request.blocks().start);
            let is_end = (key + 1) * BLOCK > bytes.end;
            let passes = passes && !(self.choice.ends && is_end);
            hits += u64::from(self.ask(key, *is_write, passes));
        }
        let heads = self.appended.map(|is_appended| is_appended && self.choice.heads);
        for log in [SMALL, MAIN].into_iter().filter(|log| heads[*log]) {
            self.append(log, u64::MAX - log as u64, 0);
        }
        hits
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::hits;
    use super::*;

    #[test]
    fn a_scan_leaves_what_was_asked_for_again() {
        assert_eq!(hits(&mut Model::new(6, LAMINA), "aaabbbcdefghijab"), ".++.++........++");
    }

    #[test]
    fn what_comes_again_soon_after_it_went_goes_to_main() {
        assert_eq!(hits(&mut Model::new(4, LAMINA), "abcdeafghija"), "...........+");
    }

    #[test]
    fn old_versions_take_room_until_they_are_compacted() {
        let compacted = Choice { rewrite: Rewrite::Forgets, ..LAMINA };
        let forgetful = Choice { compact: 0, ..compacted };
        assert_eq!(hits(&mut Model::new(4, compacted), "abBBBa"), "..++++");
        assert_eq!(hits(&mut Model::new(4, forgetful), "abba"), "..++");
        assert_eq!(hits(&mut Model::new(4, forgetful), "abBBBa"), "..+++.");
    }

    #[test]
    fn a_long_stream_passes_by() {
        let mut model = Model::new(1000, LAMINA);
        let mut request = |is_write, blocks: Range<u64>| {
            model.request(&Request { is_write, bytes: blocks.start * BLOCK..blocks.end * BLOCK })
        };
        assert_eq!(request(false, 0..200) + request(false, 200..400), 0);
        assert_eq!((request(true, 0..200), request(true, 200..400)), (200, 0));
    }

    #[test]
    fn it_never_has_more_than_it_may() {
        let mut x = 1u64;
        let mut random = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            x >> 33
        };
        for blocks in [3, 10, 500] {
            let mut model = Model::new(blocks, LAMINA);
            for _ in 0..20_000 {
                model.access(
                    random() % if random() % 2 == 0 { 3 * blocks as u64 } else { 2 },
                    random() % 3 == 0,
                );
                let used: usize = model.logs.iter().flatten().map(|_| model.slots).sum();
                assert!(used <= blocks, "{used} of {blocks}");
                assert!(model.ghosts.iter().all(|ghosts| ghosts.len() <= blocks));
            }
            let live = model.logs.iter().enumerate().flat_map(|(log, segments)| {
                segments.iter().flat_map(|segment| &segment.slots).map(move |slot| (log, slot))
            });
            let live = live.filter(|(log, slot)| {
                model
                    .index
                    .get(&slot.key)
                    .is_some_and(|place| (place.log, place.serial) == (*log, slot.serial))
            });
            assert_eq!(live.count(), model.index.len(), "a block is there that no slot has");
        }
    }
}
