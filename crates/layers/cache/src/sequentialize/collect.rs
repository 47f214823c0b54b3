//! Collection: what counts in a segment is copied to the end of the log, and the segment becomes free.
//!
//! ```text
//!      free segments     state of the log
//!      ≥ target          no collection
//!      < target          victims are copied; when enough are empty, a checkpoint frees them (`pace.rs` says how fast)
//!      ≤ reserve.user    writes of users wait for a free segment
//!      ≤ reserve.copy    copies wait as well: a checkpoint frees what is empty
//! ```
//!
//! A copy counts only if its source is where the map says, now and in recovery, so nothing waits for copies: a block
//! may be written, dropped and read meanwhile. The data are not compared with their checksum: what the device returns
//! is what a read would return.
//!
//! Victims are read in pieces, so that users' requests wait for one piece at most, and copies of several victims are
//! gathered to whole batches while there is space for that.

use super::batch::{BATCH_SLOTS, Part};
use super::format::{SLOT, What};
use super::log::{Gathering, Log, Pin};
use super::pace;
use super::segments::State;
use crate::ticket::Ticket;
use lamina_block::{Buf, Durability, Error, ErrorKind, Io, Job, Result, Steering, Time, all};
use lamina_kit::flaw::flawed;
use lamina_kit::range_locks::RangeLock;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Slots between two runs that are read along with them, at most: reading them costs less than another request.
const CLOSE: u32 = 8;
/// Slots that are read together, at most: a hard disk takes about twice as long as to go there.
const READ_SLOTS: usize = 2 * BATCH_SLOTS as usize;
/// Copies that wait to be written, at most: they take memory.
const WAITING: usize = 2 * BATCH_SLOTS as usize;
/// The part of the log that should be free beyond the reserve, as a divisor, and at least in segments: what is kept
/// free is not used, and each percent of it costs a third of a copy for each block that users write. With less each
/// checkpoint frees little, and a hard disk spends its time on checkpoints.
const SLACK: u32 = 64;
const SLACK_MIN: u32 = 4;

/// A block that counts: its slot in the segment, and its address.
pub(super) type Live = (u32, u32);

/// Groups what is close together, no longer than a batch.
pub(super) fn groups(live: &[Live]) -> Vec<&[Live]> {
    let mut groups = Vec::new();
    let mut rest = live;
    while let Some((first, _)) = rest.first() {
        let is_near = |pair: &[Live]| pair[1].0 - pair[0].0 <= CLOSE && pair[1].0 - first < BATCH_SLOTS;
        let len = 1 + rest.windows(2).take_while(|pair| is_near(pair)).count();
        let (group, after) = rest.split_at(len);
        groups.push(group);
        rest = after;
    }
    groups
}

/// Runs of blocks whose slots and addresses follow each other, as indices.
pub(super) fn runs(group: &[Live]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = group.get(start..).filter(|rest| !rest.is_empty())?;
        let follows = |pair: &[Live]| pair[1] == (pair[0].0 + 1, pair[0].1 + 1);
        let len = 1 + rest.windows(2).take_while(|pair| follows(pair)).count();
        start += len;
        Some(start - len..start)
    })
}

/// Groups that are read together: pieces of so many slots at most, or one group.
fn pieces<'a, 'b>(groups: &'b [&'a [Live]]) -> impl Iterator<Item = &'b [&'a [Live]]> {
    let mut rest = groups;
    std::iter::from_fn(move || {
        let mut slots = 0;
        let fits = |group: &&&[Live]| {
            slots += slots_of(group).len();
            slots <= READ_SLOTS
        };
        let len = rest.iter().take_while(fits).count().clamp(1, rest.len().max(1));
        let (piece, after) = rest.split_at_checked(len)?;
        rest = after;
        Some(piece)
    })
}

/// The slots from the first block of a group to its last.
fn slots_of(group: &[Live]) -> Range<u32> {
    group[0].0..group[group.len() - 1].0 + 1
}

/// Victims whose copies are on their way. Nobody else collects until all of them count.
pub(super) struct Copying {
    log: Rc<Log>,
    gathering: Option<Gathering>,
    ticket: Rc<Ticket>,
    alone: Option<RangeLock>,
    /// Victims, and copies of blocks, since all counted; and how long these have taken since they were read.
    victims: Vec<u32>,
    copies: usize,
    took: Duration,
    /// Slots that were gained, and how long collection rested.
    gained: u64,
    rested: Duration,
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.forget_victims();
    }
}

impl Copying {
    pub fn new(log: &Rc<Log>) -> Copying {
        Copying {
            log: Rc::clone(log),
            gathering: None,
            ticket: Ticket::new(),
            alone: None,
            victims: Vec::new(),
            copies: 0,
            took: Duration::ZERO,
            gained: 0,
            rested: Duration::ZERO,
        }
    }

    /// Writes home what counts in a segment, where that is cheaper, and begins to copy the rest to the end of the log.
    pub async fn copy(&mut self, victim: u32) -> Result<()> {
        let log = Rc::clone(&self.log);
        let source = Rc::new(log.pin(victim));
        if self.alone.is_none() {
            self.alone = log.collect_alone().await;
        }
        let before = log.segments.borrow().get(victim).live;
        if let Err(e) = log.bring_home(victim).await {
            return log.pass_over(victim, e);
        }
        self.gathering.get_or_insert_with(|| log.gather());
        log.segments.borrow_mut().get_mut(victim).is_leaving = true;
        self.victims.push(victim);
        let live: Vec<Live> = log.segments.borrow().owners(victim).collect();
        let is_apart = log.may_separate(&live, victim);
        for piece in pieces(&groups(&live)) {
            let begin = log.env.now();
            let read = match self.copy_piece(is_apart, piece, &source).await {
                Ok(read) => read,
                Err(e) => return log.pass_over(victim, e),
            };
            log.moved.until(|| log.copies_waiting() < WAITING || log.is_closed.get()).await;
            self.took += log.env.now().since(read);
            self.rest(log.env.now().since(begin)).await;
        }
        self.copies += live.len();
        log.counters.collected(before.into());
        self.gained += u64::from(log.shape.segment_slots) - live.len() as u64;
        Ok(())
    }

    /// Reads a piece, and appends its copies: when it had been read.
    async fn copy_piece(&mut self, is_apart: bool, piece: &[&[Live]], source: &Rc<Pin>) -> Result<Time> {
        let (log, start) = (&self.log, self.log.shape.start(source.segment()));
        let bufs = log.read_groups(start, piece).await?;
        let read = log.env.now();
        for (group, buf) in piece.iter().zip(&bufs) {
            for (class, run) in log.runs_of_copies(group, source.segment(), is_apart) {
                let (slot, block) = group[run.start];
                let from = (slot - group[0].0) as usize * SLOT;
                let data = buf.slice(from..from + run.len() * SLOT);
                let part = Part {
                    what: What::Copied,
                    block,
                    count: run.len() as u32,
                    data,
                    from: start + slot,
                    durability: Durability::Cached,
                    ticket: Rc::clone(&self.ticket),
                    source: Some(Rc::clone(source)),
                };
                log.append(class, part);
            }
        }
        Ok(read)
    }

    /// Rests after so much work, unless there is much to do, or nobody else.
    async fn rest(&mut self, worked: Duration) {
        let rest = pace::rest(self.log.debt(), worked);
        let is_urgent = self.log.segments.borrow().free() <= self.log.reserve.user;
        if !rest.is_zero() && !is_urgent && self.log.is_asked() && !self.log.is_closed.get() {
            self.log.env.sleep(rest).await;
            self.rested += rest;
        }
    }

    /// Waits until all copies count.
    pub async fn settle(&mut self) -> Result<()> {
        let begin = self.log.env.now();
        self.gathering = None;
        let settled = self.ticket.wait().await;
        let took = std::mem::take(&mut self.took) + self.log.env.now().since(begin);
        let copies = std::mem::take(&mut self.copies);
        if settled.is_ok() && copies > 0 {
            self.log.home.costs.copied(took, copies);
        }
        self.forget_victims();
        self.alone = None;
        settled
    }

    fn forget_victims(&mut self) {
        let mut segments = self.log.segments.borrow_mut();
        self.victims.drain(..).for_each(|victim| segments.get_mut(victim).is_leaving = false);
    }
}

impl Log {
    /// Free segments that there should be beyond the reserve.
    fn slack(&self) -> u32 {
        (self.shape.segments / SLACK).max(SLACK_MIN)
    }

    /// Slots that users' batches find, with those that a checkpoint would free.
    fn space(&self) -> u64 {
        let segments = self.segments.borrow();
        let users = usize::from(self.classes.borrow().first_of_copies());
        let open = self.streams.iter().take(users).filter_map(|stream| stream.open.get());
        let left: u32 = open.map(|number| self.shape.segment_slots - segments.get(number).end).sum();
        let whole = (segments.free() + segments.empty()).saturating_sub(self.reserve.user);
        u64::from(whole) * u64::from(self.shape.segment_slots) + u64::from(left)
    }

    fn wanted(&self) -> u64 {
        u64::from(self.slack()) * u64::from(self.shape.segment_slots)
    }

    /// The part that is missing of the space that there should be.
    pub fn debt(&self) -> f64 {
        pace::debt(self.space(), self.wanted())
    }

    /// Free segments are fewer than there should be.
    pub fn is_short(&self) -> bool {
        self.segments.borrow().free() < self.reserve.user + self.slack()
    }

    /// Holds a write of so many blocks back, as the debt says.
    pub async fn slow_down(&self, blocks: u32) {
        let delay = self.pace.borrow_mut().delay(self.env.now(), blocks, self.debt());
        if !delay.is_zero() {
            self.env.sleep(delay).await;
        }
    }

    /// Collects in the background, if free segments are few and it is not under way.
    pub fn make_space_soon(&self) {
        if self.is_short() && !self.is_closed.get() && !self.is_collecting.replace(true) {
            self.spawn(|me| async move {
                let job = Job::shown(&me.env, "collect", me.wanted() * SLOT as u64, Steering::Nothing);
                me.jobs.borrow_mut().push(Rc::clone(&job));
                me.make_space(&job).await;
                me.jobs.borrow_mut().retain(|other| !Rc::ptr_eq(other, &job));
                me.is_collecting.set(false);
                me.moved.notify();
            });
        }
    }

    async fn make_space(self: &Rc<Log>, job: &Job) {
        let mut copying = Copying::new(self);
        while self.is_short() && !self.is_closed.get() {
            let (moved, begin, rested) = (self.moved.wait(), self.env.now(), copying.rested);
            let attempt = self.appended();
            let gained = self.gain(&mut copying).await;
            let took = self.env.now().since(begin).saturating_sub(copying.rested - rested);
            self.pace.borrow_mut().worked(std::mem::take(&mut copying.gained), took);
            job.set_progress(self.space().min(self.wanted()) * SLOT as u64, job.total());
            let failed = match gained {
                Ok(true) => continue,
                Ok(false) if self.is_moving() => {
                    moved.await;
                    continue;
                }
                Ok(false) => {
                    let message = "the log is full, and nothing in it is garbage";
                    Error::new(ErrorKind::NoSpace, message).on(&self.name)
                }
                Err(e) => {
                    tracing::warn!(device = %self.name, error = %e, "no space can be made");
                    e
                }
            };
            if !self.fail_waiting(&failed, &attempt) {
                return;
            }
        }
        if let Err(e) = copying.settle().await {
            tracing::warn!(device = %self.name, error = %e, "copies could not be written, and will be made again");
        }
    }

    /// True if segments may become empty, or become victims, without collection.
    fn is_moving(&self) -> bool {
        let is_in_use = self.segments.borrow().iter().any(|(_, segment)| {
            segment.pins > 0 || !segment.under_way.is_empty() || segment.state == State::Freeing
        });
        is_in_use || self.is_saving.get()
    }

    /// Gains some space: false if there is nothing to gain.
    async fn gain(self: &Rc<Log>, copying: &mut Copying) -> Result<bool> {
        let (free, emptied) = {
            let segments = self.segments.borrow();
            (segments.free(), segments.emptied(self.serial.get()).count() as u32)
        };
        let is_urgent = free <= self.reserve.user;
        let is_enough =
            emptied >= self.slack().div_ceil(2) || free + emptied >= self.reserve.user + self.slack();
        let victim = self.segments.borrow().victim(self.clock.get(), is_urgent);
        match victim {
            Some(victim) if emptied == 0 || !is_urgent && !is_enough => {
                copying.copy(victim).await?;
                // Copies that wait, for company or for the batch before in their zone, take space only when they go.
                let is_late = self.segments.borrow().free() <= self.reserve.copy + self.shape.classes();
                if is_late || self.zoned.is_some() {
                    copying.settle().await?;
                }
                Ok(true)
            }
            _ if emptied > 0 || !copying.victims.is_empty() => {
                copying.settle().await?;
                self.free_emptied().await.map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Copies what counts in a segment to the end of the log, or writes it home.
    pub async fn collect(self: &Rc<Log>, victim: u32) -> Result<()> {
        let mut copying = Copying::new(self);
        copying.copy(victim).await?;
        copying.settle().await
    }

    /// Waits until nobody collects. Two at a time could take the space that each of them needs; and a copy and a move
    /// of the same block could be under way together.
    pub async fn collect_alone(&self) -> Option<RangeLock> {
        match flawed("a segment is collected twice at a time") {
            true => None,
            false => Some(self.collecting.lock().await),
        }
    }

    /// Reads groups of blocks whose slots count from `start`, with what is between those of a group.
    pub async fn read_groups(&self, start: u32, groups: &[&[Live]]) -> Result<Vec<Buf>> {
        let take = |group: &&[Live]| self.env.pool().take(slots_of(group).len() * SLOT);
        let bufs: Vec<Buf> = groups.iter().map(take).collect();
        let place = |group: &[Live]| self.shape.place(start + slots_of(group).start);
        let reads = groups.iter().zip(&bufs).map(|(group, buf)| Io::read(place(group), buf.clone()));
        all(reads.map(|read| self.child.submit(read))).await?;
        Ok(bufs)
    }

    /// A segment that cannot be read stays as it is for a while: others can perhaps be read.
    fn pass_over(&self, victim: u32, e: Error) -> Result<()> {
        tracing::warn!(device = %self.name, segment = victim, error = %e, "a segment cannot be collected");
        let rests_until = self.clock.get() + u64::from(self.shape.segment_slots);
        self.segments.borrow_mut().get_mut(victim).rests_until = rests_until;
        match e.kind() {
            ErrorKind::Media | ErrorKind::Corrupt => Ok(()),
            _ => Err(e),
        }
    }

    /// Collects every segment that gives space, and frees what is empty: how many were collected.
    pub async fn collect_all(self: &Rc<Log>) -> Result<u64> {
        // Not those that are filled meanwhile.
        let last = self.segments.borrow().next();
        let mut collected = 0;
        loop {
            // One at a time: the reserve is for the copies of one.
            self.moved.until(|| !self.is_collecting.replace(true)).await;
            let is_more = self.collect_oldest(last).await;
            self.is_collecting.set(false);
            self.moved.notify();
            self.make_space_soon();
            if !is_more? {
                break;
            }
            collected += 1;
        }
        self.checkpoint().await?;
        Ok(collected)
    }

    /// Collects the oldest victim of those that were opened before `next`: false if there is none, or no space for its
    /// copies.
    async fn collect_oldest(self: &Rc<Log>, next: u64) -> Result<bool> {
        if self.segments.borrow().free() <= self.reserve.copy + 1 {
            self.checkpoint().await?;
        }
        let victim = self.segments.borrow().oldest_victim(self.clock.get(), next);
        match victim {
            Some(victim) if self.segments.borrow().free() > self.reserve.copy => {
                self.collect(victim).await.map(|()| true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// The class of a block that is copied from a segment.
    fn class_of_copy(&self, block: u32, victim: u32) -> u8 {
        if self.map.borrow().is_page(block) {
            return self.classes.borrow().first_of_copies();
        }
        let segments = self.segments.borrow();
        let age = self.clock.get().saturating_sub(segments.get(victim).time);
        self.classes.borrow().of_copy(self.map.borrow().life(block), age, segments.live())
    }

    fn classes_of_copies(&self) -> Range<u8> {
        self.classes.borrow().first_of_copies()..self.page_class()
    }

    fn copies_waiting(&self) -> usize {
        self.classes_of_copies().map(|class| self.waiting(class)).sum()
    }

    /// True if there are free segments for copies of this victim in all of their classes: otherwise they go where one
    /// is opened at most.
    fn may_separate(&self, live: &[Live], victim: u32) -> bool {
        let mut blocks = [0; 8];
        for (_, block) in live {
            blocks[usize::from(self.class_of_copy(*block, victim))] += 1;
        }
        let is_opened = |class: &u8| {
            let open = self.streams[usize::from(*class)].open.get();
            let left =
                open.map_or(0, |number| self.shape.segment_slots - self.segments.borrow().get(number).end);
            let waiting = self.waiting(*class) as u32;
            // A head for 64 slots at most, and one more.
            let wanted = blocks[usize::from(*class)] + waiting;
            wanted > 0 && wanted + wanted / 64 + 2 > left
        };
        let opened = self.classes_of_copies().filter(is_opened).count() as u32;
        opened <= 1 || self.segments.borrow().free() > self.reserve.copy + opened
    }

    /// Runs of blocks that go to one class, as indices.
    fn runs_of_copies(&self, group: &[Live], victim: u32, is_apart: bool) -> Vec<(u8, Range<usize>)> {
        let first = self.classes.borrow().first_of_copies();
        let class = |at: usize| if is_apart { self.class_of_copy(group[at].1, victim) } else { first };
        let mut parts: Vec<(u8, Range<usize>)> = Vec::new();
        for run in runs(group) {
            for at in run.clone() {
                match parts.last_mut() {
                    Some((last, part)) if at > run.start && *last == class(at) => part.end += 1,
                    _ => parts.push((class(at), at..at + 1)),
                }
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_close_is_read_together() {
        let live = [(1, 7), (2, 8), (4, 9), (13, 10), (14, 3), (400, 1)];
        let groups: Vec<Vec<Live>> = groups(&live).into_iter().map(<[Live]>::to_vec).collect();
        assert_eq!(groups, [&live[..3], &live[3..5], &live[5..]]);
        assert_eq!(runs(&live[..3]).collect::<Vec<_>>(), [0..2, 2..3]);
        assert_eq!(runs(&live[3..5]).collect::<Vec<_>>(), [0..1, 1..2]);
        let long: Vec<Live> = (0..600).map(|slot| (slot, slot)).collect();
        assert_eq!(super::groups(&long).iter().map(|group| group.len()).collect::<Vec<_>>(), [256, 256, 88]);
    }
}
