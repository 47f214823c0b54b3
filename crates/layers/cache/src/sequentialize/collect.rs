//! Collection: what counts in a segment is copied to the end of the log, and the segment becomes free.
//!
//! ```text
//!      free segments     state of the log
//!      ≥ target          no collection
//!      < target          victims are copied; when enough are empty, a checkpoint frees them
//!      ≤ reserve.user    writes of users wait for a free segment
//!      ≤ reserve.copy    copies wait as well: a checkpoint frees what is empty
//! ```
//!
//! A copy counts only if its source is where the map says, now and in recovery, so nothing waits for copies: a block
//! may be written, dropped and read meanwhile. The data are not compared with their checksum: what the device returns
//! is what a read would return.

use super::format::{SLOT, What};
use super::log::{BATCH_SLOTS, Log, Part};
use super::segments::State;
use crate::ticket::Ticket;
use lamina_block::{Buf, Durability, Error, ErrorKind, Io, Result, all};
use lamina_kit::flaw::flawed;
use lamina_kit::range_locks::RangeLock;
use std::ops::Range;
use std::rc::Rc;

/// Slots between two runs that are read along with them, at most: reading them costs less than another request.
const CLOSE: u32 = 8;

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

/// Runs in a group whose slots and addresses follow each other, as indices.
fn runs(group: &[Live]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = group.get(start..).filter(|rest| !rest.is_empty())?;
        let follows = |pair: &[Live]| pair[1] == (pair[0].0 + 1, pair[0].1 + 1);
        let len = 1 + rest.windows(2).take_while(|pair| follows(pair)).count();
        start += len;
        Some(start - len..start)
    })
}

impl Log {
    /// Free segments that there should be.
    pub fn target(&self) -> u32 {
        self.reserve.user + self.slack()
    }

    fn slack(&self) -> u32 {
        (self.shape.segments / 32).max(2)
    }

    fn is_short(&self) -> bool {
        self.segments.borrow().free() < self.target()
    }

    /// Collects in the background, if free segments are few and it is not under way.
    pub fn make_space_soon(&self) {
        if self.is_short() && !self.is_closed.get() && !self.is_collecting.replace(true) {
            self.spawn(|me| async move {
                me.make_space().await;
                me.is_collecting.set(false);
                me.moved.notify();
            });
        }
    }

    async fn make_space(self: &Rc<Log>) {
        while self.is_short() && !self.is_closed.get() {
            let moved = self.moved.wait();
            match self.gain().await {
                Ok(true) => {}
                Ok(false) if self.is_moving() => moved.await,
                Ok(false) => {
                    let message = "the log is full, and nothing in it is garbage";
                    return self.fail_waiting(&Error::new(ErrorKind::NoSpace, message).on(&self.name));
                }
                Err(e) => {
                    tracing::warn!(device = %self.name, error = %e, "no space can be made");
                    return self.fail_waiting(&e);
                }
            }
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
    async fn gain(self: &Rc<Log>) -> Result<bool> {
        let (free, emptied) = {
            let segments = self.segments.borrow();
            (segments.free(), segments.emptied(self.serial.get()).count() as u32)
        };
        let is_last = free <= self.reserve.copy + 1;
        let is_enough = emptied >= self.slack().div_ceil(2) || free + emptied >= self.target();
        let victim = self.segments.borrow().victim(self.clock.get(), free <= self.reserve.user);
        match victim {
            Some(victim) if emptied == 0 || !is_last && !is_enough => {
                self.collect(victim).await.map(|()| true)
            }
            _ if emptied > 0 => self.checkpoint().await.map(|()| true),
            _ => Ok(false),
        }
    }

    /// Copies what counts in a segment to the end of the log.
    pub async fn collect(self: &Rc<Log>, victim: u32) -> Result<()> {
        let _pin = self.pin(victim);
        let _alone = self.collect_alone().await;
        let live: Vec<Live> = self.segments.borrow().owners(victim).collect();
        let (groups, class) = (groups(&live), self.class_of_copies(victim));
        let read = self.read_groups(victim, &groups).await;
        let brought = match &read {
            Ok(bufs) => self.bring_home(victim, &groups, bufs, class).await,
            Err(e) => Err(e.clone()),
        };
        let (bufs, homed) = match (read, brought) {
            (Ok(bufs), Ok(homed)) => (bufs, homed),
            (Err(e), _) | (_, Err(e)) => return self.pass_over(victim, e),
        };
        let (start, began) = (self.shape.start(victim), self.env.now());
        let ticket = Ticket::new();
        for (group, buf) in groups.iter().zip(&bufs) {
            let left: Vec<Live> = group.iter().filter(|(_, block)| !homed.contains(block)).copied().collect();
            for run in runs(&left) {
                let (slot, block) = left[run.start];
                let from = (slot - group[0].0) as usize * SLOT;
                let part = Part {
                    what: What::Copied,
                    block,
                    count: run.len() as u32,
                    data: buf.slice(from..from + run.len() * SLOT),
                    from: start + slot,
                    durability: Durability::Cached,
                    ticket: Rc::clone(&ticket),
                };
                self.append(class, part);
            }
        }
        self.counters.collected(live.len() as u64);
        ticket.wait().await?;
        if live.len() > homed.len() {
            self.home.costs.copied(self.env.now().since(began), live.len() - homed.len());
        }
        Ok(())
    }

    /// Waits until nobody collects. Two at a time could take the space that each of them needs; and a copy and a move
    /// of the same block could be under way together.
    pub async fn collect_alone(&self) -> Option<RangeLock> {
        match flawed("a segment is collected twice at a time") {
            true => None,
            false => Some(self.collecting.lock().await),
        }
    }

    /// Reads groups of slots of a segment, with what is between those of a group.
    pub async fn read_groups(&self, segment: u32, groups: &[&[Live]]) -> Result<Vec<Buf>> {
        let slots = groups.iter().map(|group| self.slots_of(group)).collect::<Vec<_>>();
        let bufs: Vec<Buf> = slots.iter().map(|slots| self.env.pool().take(slots.len() * SLOT)).collect();
        let place = |slots: &Range<u32>| self.shape.place(self.shape.start(segment) + slots.start);
        let reads = slots.iter().zip(&bufs).map(|(slots, buf)| Io::read(place(slots), buf.clone()));
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

    fn slots_of(&self, group: &[Live]) -> Range<u32> {
        group[0].0..group[group.len() - 1].0 + 1
    }

    /// The class that copies from a segment go to. When free segments are few, all go where only one is opened.
    fn class_of_copies(&self, victim: u32) -> u8 {
        let segments = self.segments.borrow();
        let of = segments.get(victim);
        let age = self.clock.get().saturating_sub(of.time);
        let mut classes = self.classes.borrow_mut();
        classes.collected(of.class, age);
        let is_short = segments.free() <= self.reserve.copy + self.shape.classes();
        if is_short { classes.first_of_copies() } else { classes.of_copy(of.class, age) }
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
