//! The segments: what each is used for, which blocks of it count, and the order in which the free ones are used.
//!
//! ```text
//!      Free ──▶ Open ──▶ Closed ──▶ Freeing ──▶ Free
//!                          nothing in it counts   a checkpoint that does not need it is durable
//! ```
//!
//! Invariants:
//! * `live` is the number of slots that have an owner, and each owner's place in the map is that slot.
//! * Free segments are used in the order of the list, so that recovery knows where to look.
//! * A segment that a request reads from (`pins`), or that may be needed after a crash, is not freed.

use super::classes::{self, Candidate};
use super::format::{Row, RowState};
use std::collections::VecDeque;

/// An owner that is none.
const NOBODY: u32 = u32::MAX;

/// What a segment is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing in it is needed, also not after a crash.
    #[default]
    Free,
    /// Batches are appended to it.
    Open,
    /// Nothing is appended any more.
    Closed,
    /// The checkpoint under way does not need it.
    Freeing,
}

/// A segment.
#[derive(Default)]
pub struct Segment {
    /// What it is used for.
    pub state: State,
    /// Which blocks it holds.
    pub class: u8,
    /// The number of this use, rising with time.
    pub sequence: u64,
    /// When its data were written: the mean of what it holds.
    pub time: u64,
    /// When it was opened.
    pub begun: u64,
    /// Slots that have been given to batches.
    pub end: u32,
    /// Slots from its start that are durable.
    pub durable: u32,
    /// Slots that count.
    pub live: u32,
    /// Requests that read from it.
    pub pins: u32,
    /// Where the batches under way begin.
    pub under_way: Vec<u32>,
    /// Where the first batch that failed begins.
    pub failed: Option<u32>,
    /// It could not be read: it is not collected before users have written so many blocks.
    pub rests_until: u64,
    /// The serial number of its last batch.
    pub last_serial: u64,
    /// Copies of its blocks are on their way.
    pub is_leaving: bool,
    /// The address of each slot.
    owners: Vec<u32>,
}

impl Segment {
    /// Slots from the start that are written.
    pub fn written(&self) -> u32 {
        self.under_way.iter().copied().chain(self.failed).min().unwrap_or(self.end)
    }

    /// True if it is closed, and nothing in it counts.
    fn is_empty(&self) -> bool {
        self.state == State::Closed && self.live == 0
    }
    /// Counts what was written at `time` into the mean.
    fn mix(&mut self, time: u64) {
        let (before, all) = (u64::from(self.live), u64::from(self.live) + 1);
        self.time =
            ((u128::from(self.time) * u128::from(before) + u128::from(time)) / u128::from(all)) as u64;
    }
}

/// All segments.
pub struct Segments {
    slots: u32,
    /// Addresses below this one have homes: they can be written there.
    homes: u32,
    /// Free ones take no memory but their place.
    list: Vec<Option<Box<Segment>>>,
    /// What a free one is.
    unused: Segment,
    /// In the order in which they are used.
    free: VecDeque<u32>,
    /// The number of the next use.
    next: u64,
    /// How many have been taken from the list.
    opened: u64,
    /// How many are closed, and nothing in them counts.
    empty: u32,
    /// Slots that count.
    live: u64,
}

impl Segments {
    /// So many segments of so many slots, all of them free.
    pub fn new(count: u32, slots: u32) -> Segments {
        let list = (0..count).map(|_| None).collect();
        Segments {
            slots,
            homes: 0,
            list,
            unused: Segment::default(),
            free: (0..count).collect(),
            next: 1,
            opened: 0,
            empty: 0,
            live: 0,
        }
    }

    /// The same for a log beside homes of so many blocks.
    pub fn beside(self, homes: u32) -> Segments {
        Segments { homes, ..self }
    }

    /// The segment of this number.
    pub fn get(&self, number: u32) -> &Segment {
        self.list[number as usize].as_deref().unwrap_or(&self.unused)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, number: u32) -> &mut Segment {
        self.list[number as usize].get_or_insert_default()
    }

    /// All segments with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0..).zip(self.list.iter().map(|segment| segment.as_deref().unwrap_or(&self.unused)))
    }

    /// How many are free.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// How many have nothing that counts, and become free with a checkpoint.
    pub fn empty(&self) -> u32 {
        self.empty
    }

    /// Slots that count, in all of them.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// How many have been opened, ever.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// The number of the next use of a segment.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Opens the next free segment, whose data are written at `time`.
    pub fn open(&mut self, class: u8, time: u64) -> Option<u32> {
        let number = self.free.pop_front()?;
        let (sequence, owners) = (self.next, vec![NOBODY; self.slots as usize]);
        self.list[number as usize] = Some(Box::new(Segment {
            state: State::Open,
            class,
            sequence,
            time,
            begun: time,
            owners,
            ..Segment::default()
        }));
        self.next += 1;
        self.opened += 1;
        Some(number)
    }

    /// Nothing is appended to it any more.
    pub fn close(&mut self, number: u32) {
        let segment = self.get_mut(number);
        if segment.state == State::Open {
            segment.state = State::Closed;
            self.empty += u32::from(segment.live == 0);
        }
    }

    /// Slot `at` of a segment has `address` from now on, which was written at `time`.
    pub fn came(&mut self, number: u32, at: u32, address: u32, time: u64) {
        let segment = self.get_mut(number);
        let was_empty = segment.is_empty();
        segment.mix(time);
        segment.live += 1;
        segment.owners[at as usize] = address;
        self.empty -= u32::from(was_empty);
        self.live += 1;
    }

    /// Slot `at` of a segment has nothing any more.
    pub fn left(&mut self, number: u32, at: u32) {
        let segment = self.get_mut(number);
        segment.live -= 1;
        self.live -= 1;
        let segment = self.get_mut(number);
        segment.owners[at as usize] = NOBODY;
        self.empty += u32::from(segment.is_empty());
    }

    /// The slots of a segment that count, with their addresses.
    pub fn owners(&self, number: u32) -> impl Iterator<Item = (u32, u32)> {
        let owners = (0..).zip(self.get(number).owners.iter().copied());
        owners.filter(|(_, address)| *address != NOBODY)
    }

    /// Segments in which nothing counts, and that become free with a checkpoint of all batches before `serial`.
    pub fn emptied(&self, serial: u64) -> impl Iterator<Item = u32> {
        let is_empty = move |segment: &Segment| {
            segment.state == State::Closed
                && segment.live + segment.pins == 0
                && segment.under_way.is_empty()
                && segment.last_serial < serial
        };
        self.iter().filter(move |(_, segment)| is_empty(segment)).map(|(number, _)| number)
    }

    /// The checkpoint that begins now does not need these.
    pub fn begin_freeing(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|number| self.get_mut(*number).state = State::Freeing);
        self.empty -= numbers.len() as u32;
    }

    /// The checkpoint is durable, or has failed.
    pub fn end_freeing(&mut self, numbers: &[u32], is_durable: bool) {
        for number in numbers {
            match is_durable {
                true => {
                    self.list[*number as usize] = None;
                    self.free.push_back(*number);
                }
                false => {
                    self.get_mut(*number).state = State::Closed;
                    self.empty += 1;
                }
            }
        }
    }

    /// Segments that can be collected.
    fn collectable(&self, now: u64) -> impl Iterator<Item = (u32, &Segment)> {
        self.iter().filter(move |(_, segment)| {
            segment.state == State::Closed
                && segment.under_way.is_empty()
                && !segment.is_leaving
                && segment.live > 0
                && segment.rests_until <= now
        })
    }

    /// True if copying what counts in a segment gives space.
    fn has_garbage(&self, segment: &Segment) -> bool {
        segment.live + 2.max(self.slots / 32) <= self.slots
    }

    /// True if a segment has blocks that can be written home.
    pub fn has_homes(&self, segment: &Segment) -> bool {
        self.homes > 0 && segment.owners.iter().any(|address| *address < self.homes)
    }

    /// Segments that can be collected, and give space.
    fn candidates(&self, now: u64) -> impl Iterator<Item = (u32, &Segment)> {
        self.collectable(now).filter(|(_, segment)| self.has_garbage(segment) || self.has_homes(segment))
    }

    /// The first segment with garbage to collect of those that were opened before `next`.
    pub fn oldest_victim(&self, now: u64, next: u64) -> Option<u32> {
        let old = self.collectable(now).filter(|(_, segment)| self.has_garbage(segment));
        let old = old.filter(|(_, segment)| segment.sequence < next);
        old.min_by_key(|(_, segment)| segment.sequence).map(|(number, _)| number)
    }

    /// The segment to collect, if one gives enough space: the one with the most garbage where space is `urgent`.
    pub fn victim(&self, now: u64, is_urgent: bool) -> Option<u32> {
        let candidates = self.candidates(now);
        if is_urgent {
            return candidates
                .min_by_key(|(_, segment)| (segment.live, segment.time))
                .map(|(number, _)| number);
        }
        let of = |segment: &Segment| Candidate { live: segment.live, time: segment.begun };
        classes::victim(candidates.map(|(number, segment)| (number, of(segment))), self.slots, now)
    }

    /// What a checkpoint of all batches before `serial` says of them: the number of the next use, the rows, and the
    /// free segments, in their order and then those of `freeing`.
    pub fn rows(&self, serial: u64, freeing: &[u32]) -> (u64, Vec<Row>, Vec<u32>) {
        let row = |segment: &Segment| {
            let state = match segment.state {
                State::Free | State::Freeing => RowState::Free,
                State::Open => RowState::Open,
                State::Closed if segment.last_serial < serial && segment.under_way.is_empty() => {
                    RowState::Closed
                }
                State::Closed => RowState::Recent,
            };
            let Segment { sequence, time, end, class, .. } = *segment;
            Row { sequence, time, end, class, state }
        };
        let free = self.free.iter().chain(freeing).copied().collect();
        (self.next, self.iter().map(|(_, segment)| row(segment)).collect(), free)
    }

    /// Takes a segment into use as it was before: for recovery.
    pub fn restore(&mut self, number: u32, row: &Row, state: State) {
        let owners = vec![NOBODY; self.slots as usize];
        let Row { sequence, time, end, class, .. } = *row;
        let durable = end;
        self.list[number as usize] = Some(Box::new(Segment {
            state,
            class,
            sequence,
            time,
            begun: time,
            end,
            durable,
            owners,
            ..Segment::default()
        }));
    }

    /// The free segments in their order, and the number of the next use: for recovery.
    pub fn set_free(&mut self, free: impl Iterator<Item = u32>, next: u64) {
        self.free = free.collect();
        self.next = next;
    }

    /// Recovery has found all owners.
    pub fn recovered(&mut self) {
        self.empty = self.iter().filter(|(_, segment)| segment.is_empty()).count() as u32;
    }

    /// An owner that recovery has found: false if the slot has another one, or its segment is free.
    pub fn adopt(&mut self, number: u32, at: u32, address: u32) -> bool {
        let segment = self.get_mut(number);
        match segment.owners.get_mut(at as usize) {
            Some(owner) if *owner == NOBODY => {
                *owner = address;
                segment.live += 1;
                self.live += 1;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        let of = |segment: &Segment| size_of::<Segment>() + segment.owners.len() * size_of::<u32>();
        let used: usize = self.list.iter().flatten().map(|segment| of(segment)).sum();
        (used + self.list.len() * (size_of::<Option<Box<Segment>>>() + size_of::<u32>())) as u64
    }

    /// The invariants that need no map.
    pub fn check(&self) -> Result<(), String> {
        let empty = self.iter().filter(|(_, segment)| segment.is_empty()).count();
        if empty != self.empty as usize {
            return Err(format!("{empty} segments are empty, and {} are counted", self.empty));
        }
        for (number, segment) in self.iter() {
            let owners = self.owners(number).count() as u32;
            let is_free = self.free.contains(&number);
            if owners != segment.live || is_free != (segment.state == State::Free) || is_free && owners > 0 {
                return Err(format!(
                    "segment {number} is {:?}, free: {is_free}, with {owners} owners of {} slots",
                    segment.state, segment.live
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_free_again_after_a_checkpoint() {
        let mut of = Segments::new(3, 16);
        let number = of.open(0, 5).expect("free");
        of.came(number, 1, 70, 5);
        of.came(number, 2, 71, 9);
        assert_eq!((of.get(number).live, of.get(number).time), (2, 7));
        assert_eq!(of.owners(number).collect::<Vec<_>>(), [(1, 70), (2, 71)]);
        of.left(number, 1);
        of.get_mut(number).last_serial = 4;
        of.close(number);
        assert_eq!(of.emptied(9).count(), 0, "a block counts");
        of.left(number, 2);
        assert_eq!(of.emptied(4).count(), 0, "its batch is not in the checkpoint");
        of.get_mut(number).pins = 1;
        assert_eq!(of.emptied(9).count(), 0, "a request reads it");
        of.get_mut(number).pins = 0;
        let freeing: Vec<u32> = of.emptied(9).collect();
        of.begin_freeing(&freeing);
        assert_eq!((of.free(), of.emptied(9).count()), (2, 0));
        of.end_freeing(&freeing, false);
        let freeing: Vec<u32> = of.emptied(9).collect();
        of.begin_freeing(&freeing);
        assert_eq!(of.rows(9, &freeing).2, [1, 2, 0]);
        of.end_freeing(&freeing, true);
        assert_eq!((of.free(), of.check()), (3, Ok(())));
    }

    #[test]
    fn a_victim_gives_space() {
        let mut of = Segments::new(3, 16);
        for live in [15, 14, 3] {
            let number = of.open(0, 0).expect("free");
            (0..live).for_each(|at| of.came(number, at, at, 0));
            if live > 3 {
                of.close(number);
            }
        }
        assert_eq!(of.victim(10, false), Some(1), "one is full, and one is open");
        assert_eq!(of.open(0, 0), None);
        of.left(1, 0);
        of.get_mut(1).under_way.push(3);
        assert_eq!((of.victim(10, true), of.check()), (None, Ok(())));
    }

    #[test]
    fn what_is_durable_ends_before_what_failed() {
        let mut of = Segments::new(1, 16);
        let number = of.open(0, 0).expect("free");
        let segment = of.get_mut(number);
        segment.end = 12;
        assert_eq!(segment.written(), 12);
        segment.under_way = vec![9, 7];
        assert_eq!(segment.written(), 7);
        segment.failed = Some(4);
        assert_eq!(segment.written(), 4);
    }
}
