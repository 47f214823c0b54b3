//! Space for new data: the tail of a log is looked through, what is worth it is kept, and the segment is free.
//!
//! ```text
//!      small's tail:  asked for since it came ──▶ main         else forgotten, and remembered as a ghost
//!      main's tail:   asked for since it came ──▶ main again   else forgotten, and a ghost as well
//! ```
//!
//! Which tail goes depends on how large the small queue is, and should be (`ghosts`).
//!
//! Before anything is forgotten, segments go that have few blocks that count (`compact`).
//!
//! A segment is written again only when a durable state says that it does not count: otherwise what is
//! forgotten, and has been changed on its store since, could be found again after a crash. And what made its
//! blocks old is durable before they go. A tail that has blocks which are not on their store waits for them;
//! where that takes too long, because the store is away, slow or not even open, they are copied to the end of
//! their log, so that one store stops no other volume.

use super::Cache;
use super::format::{Entry, SLOT, Summary, What};
use super::index::Word;
use super::log::Waiting;
use super::rot::{Written, rotten};
use super::segments::{MAIN, SMALL};
use super::space::TOGETHER;
use super::volume::{LATE, Volume};
use crate::ticket::Ticket;
use futures_util::future::select;
use lamina_block::{Buf, Durability, Error, ErrorKind, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

/// In each log, what was asked for more often than this is kept. Twice in the small one: neighbouring
/// requests that share a block are no sign that it will be needed again (docs/benchmarks-hit-rates.md).
const ASKED: [u8; 2] = [1, 0];
/// Slots between two runs that are read along with them, at most.
const CLOSE: u32 = 8;

/// Why blocks leave a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// It is the tail of its log: what is kept goes to main, the rest is forgotten.
    Tail,
    /// The same, and stores are late: what is not there goes to the end of the same log.
    Late,
    /// It is compacted: all of it goes to the end of its log.
    Sparse,
}

/// Blocks that are to be kept: they lie side by side, and were written together.
pub(super) struct Run {
    pub volume: Rc<Volume>,
    /// Of the volume, when they were there: if all of it is forgotten meanwhile, their copies are, too.
    pub generation: u32,
    pub serial: u64,
    pub block: u64,
    pub slot: u32,
    pub count: u32,
    /// What they were written as.
    pub written: Written,
    pub is_dirty: bool,
    /// Of a single block: sectors that only the store has.
    pub absent: u8,
    /// It cannot be read any more.
    pub is_lost: bool,
}

impl Run {
    /// The slots that have to be read in order to copy it.
    fn needed(&self) -> Range<u32> {
        if self.is_dirty { self.written.slots.clone() } else { self.slot..self.slot + self.count }
    }
}

impl Cache {
    /// Segments that should be free.
    pub(super) fn low_water(&self) -> usize {
        self.space.borrow().low_water()
    }

    /// True if what comes throws out something else.
    pub fn is_full(&self) -> bool {
        self.space.borrow().is_full(self.free_segments())
    }

    /// True if space is short now.
    pub(super) fn is_urgent(&self) -> bool {
        self.space.borrow().is_urgent(self.free_segments())
    }

    /// Makes space if it is about to be short.
    pub fn reclaim_soon(&self) {
        if self.is_short() && !self.closed.get() && !self.reclaiming.replace(true) {
            self.spawn(|me| async move {
                me.reclaim().await;
                me.reclaiming.set(false);
                me.moved.notify();
            });
        }
    }

    async fn reclaim(self: &Rc<Cache>) {
        while self.segments.borrow().free.len() <= self.low_water() && !self.closed.get() {
            let moved = self.moved.wait();
            // Who needs space fast does not wait for copies.
            if !self.is_urgent() && self.compact_some().await {
                continue;
            }
            let (emptied, result) = self.empty_some().await;
            if emptied.is_empty() && result.is_ok() {
                if self.is_urgent() && self.compact_some().await {
                    continue;
                }
                if !self.is_short() || !self.is_dirty(|_| true) {
                    return;
                }
                match self.late_tail() {
                    Some(late) => self.rotate(late).await,
                    // A store may become late meanwhile.
                    None => drop(select(self.env.sleep(LATE), pin!(moved)).await),
                }
                continue;
            }
            let freed = self.free(emptied).await;
            match freed.and(result) {
                // All of main has been looked through, and all of it is somebody's due. Space comes when
                // others get rid of what they have beyond theirs; and if there is nothing they wait for, it
                // is not kept any longer.
                Ok(()) if self.is_in_vain() => {
                    let now = self.env.now();
                    match self.is_dirty(|volume| !volume.is_late(now)) {
                        true => {
                            let before = self.checkpoints.get();
                            let is_over = || self.checkpoints.get() != before || self.closed.get();
                            // A store may become late meanwhile.
                            let over = pin!(self.moved.until(is_over));
                            drop(select(self.env.sleep(LATE), over).await);
                        }
                        false => self.change_space(|space| space.set_strict(true)),
                    }
                }
                Ok(()) => self.change_space(|space| space.set_strict(false)),
                Err(e) => {
                    tracing::debug!(flash = %self.name, error = %e, "a segment cannot be freed; it is tried again");
                    self.strike().await;
                }
            }
        }
    }

    /// True if something is not on its store, of volumes that are meant. It is wanted there now.
    fn is_dirty(&self, is_meant: impl Fn(&Volume) -> bool) -> bool {
        let volumes = self.volumes.borrow();
        let dirty = volumes.iter().flatten().filter(|volume| volume.dirty.get() > 0 && is_meant(volume));
        self.wants_clean.set(true);
        dirty.map(|volume| volume.hurry.notify()).count() > 0
    }

    /// True if all of main has been looked through, and nothing was won.
    fn is_in_vain(&self) -> bool {
        let main = self.segments.borrow().logs[MAIN as usize].len();
        self.space.borrow().is_in_vain(main)
    }

    /// True if all of main has been looked through as strictly as that is done, and there is still no space:
    /// all of it is asked for again and again. Somebody has to give way.
    fn is_hopeless(&self) -> bool {
        let main = self.segments.borrow().logs[MAIN as usize].len();
        self.space.borrow().is_hopeless(main)
    }

    /// True if space is about to be short.
    pub fn is_short(&self) -> bool {
        self.space.borrow().is_short(self.free_segments())
    }

    /// Empties the next tails, a few while that does not keep anybody waiting.
    async fn empty_some(self: &Rc<Cache>) -> (Vec<(u8, u32)>, Result<()>) {
        let mut emptied = Vec::new();
        let free = self.segments.borrow().free.len();
        while emptied.len() < free.saturating_sub(3).clamp(2, TOGETHER)
            && let Some((log, number)) = self.victim(&emptied)
        {
            self.settled(number).await;
            // A batch may have been on its way there that is not on its store: whoever waits for it here tells no
            // volume that its space is needed.
            if self.is_dirty_segment(number) && !flawed("a tail that becomes dirty is waited for") {
                continue;
            }
            if let Err(e) = self.empty_segment(log, number, Leaves::Tail).await {
                return (emptied, Err(e));
            }
            emptied.push((log, number));
        }
        (emptied, Ok(()))
    }

    /// The tail that goes next, behind those that are `emptied`.
    fn victim(&self, emptied: &[(u8, u32)]) -> Option<(u8, u32)> {
        self.next_tail(emptied, |number| !self.is_dirty_segment(number))
    }

    pub(super) fn next_tail(&self, emptied: &[(u8, u32)], may_go: impl Fn(u32) -> bool) -> Option<(u8, u32)> {
        let segments = self.segments.borrow();
        let gone = |log: u8| emptied.iter().filter(|(of, _)| *of == log).count();
        let oldest = |log: u8| {
            let number = *segments.logs[log as usize].get(gone(log))?;
            (self.logs[log as usize].open.get() != Some(number)).then_some((log, number))
        };
        let may_go = |(_, number): &(u8, u32)| may_go(*number);
        let goes_first = |(log, number): &(u8, u32)| {
            segments.list[*number as usize].sequence <= self.first[*log as usize].get()
        };
        if let Some(first) = [SMALL, MAIN].into_iter().filter_map(oldest).find(goes_first) {
            return Some(first).filter(may_go);
        }
        let is_large = self.index.borrow().ghosts.is_large(segments.live);
        let order = if is_large { [SMALL, MAIN] } else { [MAIN, SMALL] };
        order.into_iter().filter_map(oldest).find(may_go)
    }

    /// Keeps of a tail what is worth it, and forgets the rest.
    pub(super) async fn empty_segment(self: &Rc<Cache>, log: u8, number: u32, why: Leaves) -> Result<()> {
        self.settled(number).await;
        let entries = self.entries_of_tail(number).await?;
        // Once something of it is forgotten, nothing newer may go before it, also if it cannot be freed now.
        let sequence = self.segments.borrow_mut().get(number).sequence;
        let first = &self.first[log as usize];
        first.set(first.get().max(sequence));
        let mut kept = 0;
        loop {
            let moved = self.moved.wait();
            let (runs, waits) = self.sort(number, &entries, why);
            kept += runs.iter().filter(|run| !run.is_dirty).map(|run| run.count).sum::<u32>();
            match (runs.is_empty(), waits) {
                (false, _) => self.keep(runs, why).await?,
                (true, true) => moved.await,
                (true, false) => break,
            }
        }
        self.change_space(|space| space.emptied(kept));
        Ok(())
    }

    /// Lets segments be used again that are empty.
    pub(super) async fn free(self: &Rc<Cache>, emptied: Vec<(u8, u32)>) -> Result<()> {
        if emptied.is_empty() {
            return Ok(());
        }
        // What made their blocks old is durable before they go; and until they have gone, nothing else does.
        while !flawed("freed before what is newer is durable")
            && let Err(e) = self.flush().await
        {
            if self.closed.get() {
                return Err(e);
            }
            self.strike().await;
        }
        for (log, number) in &emptied {
            let gone = self.segments.borrow_mut().logs[*log as usize].pop_front();
            debug_assert_eq!(gone, Some(*number));
        }
        while !flawed("written again before the state")
            && let Err(e) = self.save().await
        {
            if self.closed.get() {
                return Err(e);
            }
            self.strike().await;
        }
        for (_, number) in emptied {
            self.give_back(number).await;
        }
        self.ripen();
        Ok(())
    }

    /// The segment can be used again, perhaps not before a store that takes its time has what is read from it.
    async fn give_back(self: &Rc<Cache>, number: u32) {
        let facts = move |cache: &Cache| {
            let segments = cache.segments.borrow();
            let segment = &segments.list[number as usize];
            (segment.pins == 0, segment.entries.is_none())
        };
        let give = move |cache: &Rc<Cache>| {
            cache.segments.borrow_mut().give_back(number);
            cache.freed();
        };
        self.hasten(!facts(self).1);
        self.moved.until(|| facts(self).0 || facts(self).1).await;
        self.hasty.set(false);
        if facts(self).0 {
            return give(self);
        }
        self.spawn(move |me| async move {
            me.moved.until(|| facts(&me).0 || me.closed.get()).await;
            if !me.closed.get() {
                give(&me);
            }
        });
    }

    /// Segments that have ended do not wait for the flushes of others any more, if `is_hasty`.
    fn hasten(&self, is_hasty: bool) {
        self.hasty.set(is_hasty);
        self.flushed.notify();
    }

    /// There are more free segments. What waits for one is not always somebody who waits for space: copies
    /// take what there is.
    pub(super) fn freed(self: &Rc<Cache>) {
        self.moved.notify();
        if !flawed("nobody hears of a free segment") {
            [SMALL, MAIN].into_iter().for_each(|log| self.pump(log));
        }
    }

    /// Nobody reads from the segment any more, and its summary is written or never will be.
    pub(super) async fn unpinned(&self, number: u32) {
        self.hasten(self.segments.borrow_mut().get(number).entries.is_some());
        self.moved.until(|| self.segments.borrow_mut().get(number).pins == 0).await;
        self.hasty.set(false);
    }

    /// What a segment holds or held.
    pub(super) async fn entries(&self, number: u32) -> Result<Vec<Entry>> {
        let (known, sequence) = {
            let mut segments = self.segments.borrow_mut();
            let segment = segments.get(number);
            (segment.entries.clone(), segment.sequence)
        };
        if let Some(entries) = known {
            return Ok(entries);
        }
        let slots = self.shape.segment(number);
        let bytes = self.read_slots(slots.start + self.shape.batch_slots()..slots.end).await?.to_vec();
        match Summary::decode(&bytes, &self.shape).filter(|summary| summary.segment == sequence) {
            Some(summary) => Ok(summary.entries),
            None => {
                Err(Error::new(ErrorKind::Corrupt, "the summary of a segment has changed").on(&self.name))
            }
        }
    }

    /// Forgets what is not worth keeping, and gives what is. True if something is just being written anew, or is not on
    /// its store any more.
    pub(super) fn sort(&self, number: u32, entries: &[Entry], why: Leaves) -> (Vec<Run>, bool) {
        let base = self.shape.segment(number).start;
        let log = self.log_of[number as usize].get();
        let has_room = self.segments.borrow().free.len() >= 2 && self.health.borrow().works();
        let can_move = has_room && !self.is_hopeless();
        let (mut runs, mut waits): (Vec<Run>, bool) = (Vec::new(), false);
        for entry in entries.iter().filter(|entry| entry.what != What::Dropped) {
            for i in 0..entry.count {
                let slot = base + entry.slot + i;
                let word = self.index.borrow().word(slot);
                if !word.is_used() {
                    continue;
                }
                let is_dirty = word.is_dirty();
                if word.is_pending() || word.is_moving() || (is_dirty && why != Leaves::Late) {
                    waits = true;
                    continue;
                }
                let Some(volume) = self.volumes.borrow().get(usize::from(word.volume())).cloned().flatten()
                else {
                    continue;
                };
                let is_kept = || can_move && self.is_worth(word, log, &volume) && self.takes(&volume);
                if why != Leaves::Sparse && !is_dirty && !is_kept() {
                    self.unmap(&volume, word.block());
                    self.index.borrow_mut().ghosts.remember(log, word.volume(), word.block());
                    continue;
                }
                if why == Leaves::Sparse || is_dirty {
                    volume.budget.borrow_mut().charge(SLOT as u64, self.env.now());
                }
                // In main it has to be asked for again.
                let frequency = match (why, log) {
                    _ if is_dirty => word.frequency(),
                    (Leaves::Sparse, _) => word.frequency(),
                    (Leaves::Tail | Leaves::Late, MAIN) => word.frequency().saturating_sub(1),
                    (Leaves::Tail | Leaves::Late, _) => 0,
                };
                self.index.borrow_mut().set_frequency(slot, frequency);
                self.index.borrow_mut().set_moving(slot, true);
                match runs.last_mut() {
                    Some(run)
                        if run.slot + run.count == slot
                            && run.serial == entry.serial
                            && run.is_dirty == is_dirty
                            && (run.absent, word.absent()) == (0, 0)
                            && i > 0 =>
                    {
                        run.count += 1
                    }
                    _ => {
                        // What is dirty counts after a crash as long as it would have where it was.
                        let generation = if is_dirty { entry.generation } else { volume.generation.get() };
                        let (serial, block) = (entry.serial, word.block());
                        runs.push(Run {
                            volume,
                            generation,
                            serial,
                            block,
                            slot,
                            count: 1,
                            written: Written::of(entry, base),
                            is_dirty,
                            absent: word.absent(),
                            is_lost: false,
                        });
                    }
                }
            }
        }
        (runs, waits)
    }

    /// True if a block at the tail of a log is worth keeping; one of which sectors are absent is not.
    pub(super) fn is_worth(&self, word: Word, log: u8, volume: &Volume) -> bool {
        let is_asked = || word.frequency() > ASKED[log as usize];
        let is_due = || !self.space.borrow().is_strict() && self.is_owed(volume);
        word.absent() == 0 && (is_asked() || volume.is_pinned(word.block()) || is_due())
    }

    /// What runs of a segment hold, as far as it can be read. What lies close together is read at once.
    async fn read_apart(&self, mut runs: Vec<Run>) -> Vec<(Run, Buf)> {
        runs.sort_unstable_by_key(|run| run.slot);
        let mut copies = Vec::with_capacity(runs.len());
        let mut left = runs.into_iter().peekable();
        while let Some(run) = left.next() {
            let needed = run.needed();
            let (mut first, mut end) = (needed.start, needed.end);
            let mut stretch = vec![run];
            while let Some(next) = left.next_if(|next| next.slot <= end + CLOSE) {
                (first, end) = (first.min(next.needed().start), end.max(next.needed().end));
                stretch.push(next);
            }
            let whole = match self.is_there(first..end) {
                Ok(()) => self.read_slots(first..end).await.ok(),
                Err(_) => None,
            };
            for run in stretch {
                let slots = run.slot..run.slot + run.count;
                let place = |slot: u32| (slot - first) as usize * SLOT;
                let data = match (&whole, self.is_there(slots.clone())) {
                    (Some(whole), _) if !run.is_dirty || self.is_sound(&run.written, first, whole) => {
                        Ok(whole.slice(place(slots.start)..place(slots.end)))
                    }
                    // One of them cannot be read, or several.
                    (None, Ok(())) if !run.is_dirty => self.read_slots(slots).await,
                    (_, there) => Err(there.err().unwrap_or_else(rotten)),
                };
                match data {
                    Ok(data) => copies.push((run, data)),
                    Err(_) if run.is_dirty => self.read_alone(&run, &mut copies).await,
                    Err(e) => {
                        tracing::warn!(flash = %self.name, error = %e, "cached blocks cannot be read, nor copied")
                    }
                }
            }
        }
        copies
    }

    /// Copies runs to where they go. What cannot be copied is forgotten in a tail, and stays where it is in
    /// another segment: there may be something older behind it. Fails if something dirty stays where it is.
    pub(super) async fn keep(self: &Rc<Cache>, runs: Vec<Run>, why: Leaves) -> Result<()> {
        let ticket = Ticket::new();
        let slots_of = |run: &Run| run.slot..run.slot + run.count;
        let slots = runs.iter().flat_map(|run| slots_of(run).map(|slot| (Rc::clone(&run.volume), slot)));
        let slots: Vec<_> = slots.collect();
        let copies = self.read_apart(runs).await;
        // All at once, so that they share heads: with one for each there might be no space won.
        for (run, data) in copies {
            self.append(
                if why == Leaves::Sparse || run.is_dirty { self.log_of(run.slot) } else { MAIN },
                Waiting {
                    what: match (run.is_lost, run.is_dirty) {
                        (true, _) => What::Lost,
                        (false, true) => What::Written,
                        (false, false) => What::Clean,
                    },
                    generation: run.generation,
                    serial: run.serial,
                    block: run.block,
                    count: run.count,
                    data,
                    absent: if run.is_lost { 0 } else { run.absent },
                    from: Some(run.slot),
                    durability: Durability::Cached,
                    ticket: Rc::clone(&ticket),
                    volume: run.volume,
                },
            );
        }
        // Its result does not matter: what is still where it was has not been copied.
        let _copied = ticket.wait().await;
        let mut stay = 0;
        for (volume, slot) in slots {
            let word = self.index.borrow().word(slot);
            match why {
                _ if !word.is_moving() => {}
                _ if word.is_dirty() => {
                    self.index.borrow_mut().set_moving(slot, false);
                    stay += 1;
                }
                Leaves::Tail | Leaves::Late => self.unmap(&volume, word.block()),
                Leaves::Sparse => self.index.borrow_mut().set_moving(slot, false),
            }
        }
        self.moved.notify();
        match stay {
            0 => Ok(()),
            stay => Err(Error::media(format!("{stay} blocks that only the flash has cannot be copied"))
                .on(&self.name)),
        }
    }
}
