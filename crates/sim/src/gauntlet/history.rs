//! The possible contents of a device: the model that the gauntlet compares with.
//!
//! Every change is remembered per granule (the smallest unit in which a write may tear) with the moments between
//! which it took effect. From these follows, for a read or a power loss at any moment, the set of contents that the
//! contract allows:
//!
//! * a change that succeeded *supersedes* every change that had ended before it was submitted;
//! * changes that were under way together may have taken effect in either order;
//! * a failed write, and a discard, may have taken effect or not, and supersede nothing;
//! * after a power loss only those changes supersede that a completed flush, or forced unit access, made durable; after
//!   a death of the process alone, all that had ended;
//! * a read without concurrent changes stays true: a read that found one of several allowed contents rules out the
//!   rest.

use crate::stamp::{self, Found};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// A moment of the environment's event clock.
pub(crate) type Tick = u64;

const NEVER: Tick = Tick::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Zero,
    /// The contents at the start of the test.
    Initial,
    Write(u32),
}

#[derive(Clone, Copy)]
struct Change {
    content: Content,
    id: u32,
    submitted: Tick,
    ended: Tick,
    /// The change succeeded, and its effect is certain.
    sure: bool,
    /// Not a change but a read, where there were several allowed contents.
    seen: bool,
    /// Durable by itself at this moment (forced unit access).
    durable: Tick,
}

impl Change {
    /// Whether its effect may be there, if the newest certain change was submitted at `newest`, and only those before
    /// `before` count.
    fn stays(&self, before: Tick, newest: Tick) -> bool {
        self.submitted < before && (self.ended > newest || self.id == 0 && newest == 0)
    }
}

/// What a granule has held.
#[derive(Clone, Default)]
struct Granule {
    /// At the start of the test, unless that is zeroes.
    initial: Option<Rc<[u8]>>,
    changes: Vec<Change>,
}

impl Granule {
    /// The content that `block` shows, which is number `number`; none if nothing like it was ever written there.
    fn content(&self, number: u64, block: &[u8]) -> Option<Content> {
        if self.is_initial(block) {
            return Some(Content::Initial);
        }
        match stamp::recognise(block) {
            Found::Zero => Some(Content::Zero),
            Found::Written { write, place } if place == number && write < stamp::FOREIGN => {
                Some(Content::Write(write))
            }
            Found::Written { .. } | Found::Garbage => None,
        }
    }

    fn is_initial(&self, block: &[u8]) -> bool {
        self.initial.as_deref().is_some_and(|bytes| *bytes == *block)
    }
}

/// All changes of a device.
#[derive(Clone)]
pub(crate) struct History {
    granule: u64,
    /// Granules that were ever anything but zeroes: most that a test reads are not.
    granules: BTreeMap<u64, Granule>,
    /// Flushes that succeeded: submitted, ended.
    flushes: Vec<(Tick, Tick)>,
    ids: u32,
}

/// How a change is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// Done, and durable at once.
    Durable,
    /// May have taken effect, or not.
    Unsure,
}

/// The contents that survive a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stays {
    /// Every change that had ended.
    Ended,
    /// Every change that was durable.
    Durable,
}

impl History {
    pub(crate) fn new(granule: u32) -> History {
        History { granule: granule.into(), granules: BTreeMap::new(), flushes: Vec::new(), ids: 0 }
    }

    fn numbers(&self, at: &Range<u64>) -> Range<u64> {
        at.start / self.granule..at.end / self.granule
    }

    /// Takes the data of a first read for the contents.
    pub(crate) fn begin_with(&mut self, at: &Range<u64>, bytes: &[u8]) {
        for (number, block) in self.numbers(at).zip(bytes.chunks_exact(self.granule as usize)) {
            if !stamp::is_zero(block) {
                self.granules.entry(number).or_default().initial = Some(block.into());
            }
        }
    }

    /// A number for a request that changes something, or for a hypothetical one.
    pub(crate) fn number(&mut self) -> u32 {
        self.ids += 1;
        self.ids
    }

    /// The data of write `id` for `at`.
    pub(crate) fn bytes(&self, id: u32, at: &Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((at.end - at.start) as usize);
        for number in self.numbers(at) {
            stamp::fill(id, number, self.granule as usize, &mut bytes);
        }
        bytes
    }

    /// A change is submitted: a write of [`History::bytes`], or zeroes.
    pub(crate) fn submit(&mut self, id: u32, at: &Range<u64>, content: Content, now: Tick) {
        let change =
            Change { content, id, submitted: now, ended: NEVER, sure: false, seen: false, durable: NEVER };
        for number in self.numbers(at) {
            self.granules.entry(number).or_default().changes.push(change);
        }
    }

    /// A change has ended.
    pub(crate) fn end(&mut self, id: u32, at: &Range<u64>, end: End, now: Tick) {
        for number in self.numbers(at) {
            let granule = self.granules.entry(number).or_default();
            if let Some(change) = granule.changes.iter_mut().rev().find(|c| c.id == id) {
                change.ended = now;
                change.sure = end != End::Unsure;
                change.durable = if end == End::Durable { now } else { NEVER };
            }
        }
    }

    /// A flush succeeded.
    pub(crate) fn flushed(&mut self, submitted: Tick, ended: Tick) {
        self.flushes.push((submitted, ended));
    }

    fn first(granule: Option<&Granule>) -> Change {
        let initial = granule.is_some_and(|g| g.initial.is_some());
        let content = if initial { Content::Initial } else { Content::Zero };
        Change { content, id: 0, submitted: 0, ended: 0, sure: true, seen: false, durable: 0 }
    }

    /// True for most of what tests read: zeroes are right there, and nothing else is.
    fn was_never_changed(&self, number: u64) -> bool {
        !self.granules.contains_key(&number)
    }

    /// The moment from which a change is durable.
    fn durable(&self, change: &Change) -> Tick {
        // They are in the order of their ends.
        let later = &self.flushes[self.flushes.partition_point(|(_, ended)| *ended < change.ended)..];
        let flushed = later.iter().find(|(submitted, _)| *submitted >= change.ended);
        flushed.map_or(NEVER, |(_, ended)| *ended).min(change.durable)
    }

    /// Changes of a granule that those which are `certain` do not rule out.
    fn possible(&self, number: u64, before: Tick, certain: impl Fn(&Change) -> bool) -> Vec<Change> {
        let granule = self.granules.get(&number);
        let changes = granule.map_or(&[][..], |g| g.changes.as_slice());
        let all = || std::iter::once(Self::first(granule)).chain(changes.iter().copied());
        let newest = all().filter(|c| c.sure && certain(c)).map(|c| c.submitted).max().unwrap_or(0);
        all().filter(|c| c.stays(before, newest)).collect()
    }

    /// Checks what a read between `submitted` and `now` found.
    pub(crate) fn check_read(
        &mut self,
        at: &Range<u64>,
        bytes: &[u8],
        submitted: Tick,
        now: Tick,
    ) -> Result<(), String> {
        for (number, block) in self.numbers(at).zip(bytes.chunks_exact(self.granule as usize)) {
            if self.was_never_changed(number) && stamp::is_zero(block) {
                continue;
            }
            let possible = self.possible(number, now, |c| c.ended <= submitted);
            let found = self.check_block(number, block, &possible)?;
            if possible.len() > 1 && possible.iter().all(|c| c.ended <= submitted) {
                let id = self.number();
                let seen = Change {
                    content: found,
                    id,
                    submitted,
                    ended: now,
                    sure: true,
                    seen: true,
                    durable: NEVER,
                };
                self.granules.entry(number).or_default().changes.push(seen);
            }
        }
        Ok(())
    }

    /// Checks that a range said to be zero between `submitted` and `now` may be.
    pub(crate) fn check_zero(&self, at: &Range<u64>, submitted: Tick, now: Tick) -> Result<(), String> {
        for number in self.numbers(at) {
            let possible = self.possible(number, now, |c| c.ended <= submitted);
            if !possible.iter().any(|c| c.content == Content::Zero) {
                let may = self.describe(number, &possible);
                return Err(format!("{} is reported as zeroes, but may hold: {may}", self.place(number)));
            }
        }
        Ok(())
    }

    /// Checks what was found after a power loss at any of `crashes`.
    pub(crate) fn check_crash(&self, at: &Range<u64>, bytes: &[u8], crashes: &[Tick]) -> Result<(), String> {
        let numbers = self.numbers(at);
        let place = |number: u64| ((number - numbers.start) * self.granule) as usize;
        let (mut next, changed) = (numbers.start, self.granules.range(numbers.clone()));
        for (number, granule) in changed {
            self.check_unchanged(next..*number, &bytes[place(next)..place(*number)])?;
            next = number + 1;
            let block = &bytes[place(*number)..place(next)];
            let found = granule.content(*number, block);
            let changes = std::iter::once(Self::first(Some(granule))).chain(granule.changes.iter().copied());
            let durable: Vec<(Change, Tick)> = changes.map(|c| (c, self.durable(&c))).collect();
            for crash in crashes {
                let newest = durable.iter().filter(|(c, durable)| c.sure && durable <= crash);
                let newest = newest.map(|(c, _)| c.submitted).max().unwrap_or(0);
                let all = durable.iter().map(|(c, _)| c);
                if !all.filter(|c| c.stays(*crash, newest)).any(|c| Some(c.content) == found) {
                    let possible = self.possible(*number, *crash, |c| self.durable(c) <= *crash);
                    self.check_block(*number, block, &possible)?;
                }
            }
        }
        self.check_unchanged(next..numbers.end, &bytes[place(next)..])
    }

    /// Checks granules that were never changed.
    fn check_unchanged(&self, numbers: Range<u64>, bytes: &[u8]) -> Result<(), String> {
        if stamp::is_zero(bytes) {
            return Ok(());
        }
        let mut blocks = numbers.zip(bytes.chunks_exact(self.granule as usize));
        blocks.try_for_each(|(number, block)| self.check_block(number, block, &[Self::first(None)]).map(drop))
    }

    /// The history until a death at `at`, for the next life: the contents that `stays` allows, or anything newer.
    pub(crate) fn after(&self, at: Tick, stays: Stays) -> History {
        let mut after = History { granules: BTreeMap::new(), flushes: Vec::new(), ..*self };
        for (number, granule) in &self.granules {
            // Data that was not durable may come back when the power fails in a later life, also if newer data is there
            // now.
            if granule.changes.is_empty() {
                after.granules.insert(*number, granule.clone());
                continue;
            }
            let mut possible = self.possible(*number, at, |c| self.durable(c) <= at);
            for change in &mut possible {
                let durable = self.durable(change);
                let is_there = match stays {
                    // The effect of a discard may be undone.
                    Stays::Ended => change.ended <= at && !change.seen,
                    Stays::Durable => durable <= at,
                };
                change.durable = if change.sure && durable <= at { durable } else { NEVER };
                change.sure &= is_there;
                // A change under way has taken effect, or never will.
                change.ended = change.ended.min(at);
            }
            let initial = granule.initial.clone();
            after.granules.insert(*number, Granule { initial, changes: possible });
        }
        after
    }

    /// The contents after a power loss, between two moments up to `now`, are durable.
    pub(crate) fn find(&mut self, at: &Range<u64>, bytes: &[u8], now: Tick) -> Result<(), String> {
        for (number, block) in self.numbers(at).zip(bytes.chunks_exact(self.granule as usize)) {
            let content = self.check_block(number, block, &self.possible(number, now, |_| true))?;
            let id = self.number();
            let found =
                Change { content, id, submitted: now - 1, ended: now, sure: true, seen: false, durable: now };
            self.granules.entry(number).or_default().changes = vec![found];
        }
        Ok(())
    }

    fn check_block(&self, number: u64, block: &[u8], possible: &[Change]) -> Result<Content, String> {
        let unchanged = Granule::default();
        match self.granules.get(&number).unwrap_or(&unchanged).content(number, block) {
            Some(content) if possible.iter().any(|c| c.content == content) => Ok(content),
            _ => {
                let holds = self.explain(number, block);
                let may = self.describe(number, possible);
                Err(format!("{} holds {holds}; it may hold: {may}", self.place(number)))
            }
        }
    }

    fn place(&self, number: u64) -> String {
        format!("bytes {}..{}", number * self.granule, (number + 1) * self.granule)
    }

    fn explain(&self, number: u64, block: &[u8]) -> String {
        match stamp::recognise(block) {
            Found::Zero => "zeroes".into(),
            Found::Written { write, .. } if write >= stamp::FOREIGN => {
                format!("foreign data (of disk {})", write - stamp::FOREIGN)
            }
            Found::Written { write, place } if place != number => {
                format!("the data of write #{write} at {}", self.place(place))
            }
            Found::Written { write, .. } => format!("write #{write}"),
            Found::Garbage if self.granules.get(&number).is_some_and(|g| g.is_initial(block)) => {
                "the contents at the beginning".into()
            }
            Found::Garbage => "a mixture, or bytes that were never written".into(),
        }
    }

    fn describe(&self, _number: u64, possible: &[Change]) -> String {
        let each = possible.iter().map(|c| match c.content {
            Content::Zero => "zeroes".into(),
            Content::Initial => "the contents at the beginning".into(),
            Content::Write(id) => format!("write #{id}"),
        });
        each.collect::<Vec<String>>().join(", ")
    }
}
