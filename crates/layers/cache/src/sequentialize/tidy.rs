//! Tidying: when nobody asks for anything, blocks that lie scattered are rewritten in the order of their addresses, so
//! that they are read in long pieces again.
//!
//! ```text
//!      window 5   7001 │ 312 │ 9120 │ 44 │ …   ── read, in the order of places ──▶   88 │ 89 │ 90 │ 91 │ …
//! ```
//!
//! Only copies are made, of the kind that collection makes: they count where their source still does. They go where
//! users' blocks go, if there is space beyond what collection needs. A request of a user ends the work
//! within a few reads.
//!
//! Beside homes nothing is tidied: blocks are in order there, and collection brings those of the log there. A copy from
//! a segment that is brought home at the same time would also break a rule of `home.rs`.
//!
//! Bounds: a window (a page of the map) is looked at once after users have written to it; it is rewritten if reads of
//! it have to go to another place for every 16 blocks or less; and no more is copied, by collection on behalf of
//! tidying as well, than eight blocks for each that users have written. To tidy all of a log that was written over at
//! random means to rewrite 1 − s of the device, where s is spare, and to collect what is left behind, (1 − s)² / 2s:
//! four blocks for each at 13%, six at 10%. What was to be tidied is not remembered beyond closing; the command looks
//! at all windows.

use super::batch::Part;
use super::collect::{Live, groups, runs};
use super::format::{ENTRIES_MAX, PAGE_BLOCKS, SLOT, What};
use super::log::{Log, Pin};
use crate::ticket::Ticket;
use lamina_block::{Buf, Durability, Error, ErrorKind, Job, Result, Time};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Nobody has asked for anything for so long: users are gone for a while.
const IDLE: Duration = Duration::from_secs(1);
/// Blocks between two places, on average, below which a window is rewritten. A hard disk that goes elsewhere after each
/// 64 KiB reads at a twentieth of its speed.
const RUN: usize = 16;
/// Slots from one block to the next, at most, that are read as if they followed each other: a head may lie between.
const STEP: u32 = 2;
/// Blocks that may be copied for each that users have written.
const COPIES: u64 = 8;
/// Reads that are under way together: a user waits for them.
const READS: usize = 8;
/// Blocks that are read before they are written again: two batches.
const PIECE: u32 = 2 * ENTRIES_MAX as u32;
/// Windows that are looked at in one go.
const LOOKS: usize = 64;

/// Whether users ask for anything, and what may be tidied when they do not.
#[derive(Default)]
pub(super) struct Idle {
    /// Requests of users under way, and when the last one began or ended.
    users: Cell<u32>,
    asked: Cell<Time>,
    /// Somebody waits for the users to be gone.
    is_watched: Cell<bool>,
    /// Windows that users have written to since they were looked at.
    windows: RefCell<BTreeSet<u32>>,
    /// Blocks that may be copied.
    earned: Cell<u64>,
}

/// A request of a user, until it has ended.
pub(super) struct User(Rc<Log>);

impl User {
    /// It ends with this result.
    pub fn ends(self, result: Result<()>) -> Result<()> {
        result
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.idle.users.set(self.0.idle.users.get() - 1);
        self.0.idle.asked.set(self.0.env.now());
    }
}

/// Why tidying has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All is in order, as far as it may be put into it.
    Done,
    /// Users are back.
    Asked,
}

/// True if reads of blocks in these places, in the order of the blocks, go to another place too often.
fn is_scattered(slots: impl Iterator<Item = u32>) -> bool {
    let (mut blocks, mut places, mut last) = (0, 0, None);
    for slot in slots {
        let follows = last.is_some_and(|last| slot > last && slot - last <= STEP);
        places += usize::from(!follows);
        blocks += 1;
        last = Some(slot);
    }
    places > 1 + blocks / RUN
}

impl Log {
    /// A request of a user begins.
    pub fn user(self: &Rc<Log>) -> User {
        self.idle.users.set(self.idle.users.get() + 1);
        self.idle.asked.set(self.env.now());
        User(Rc::clone(self))
    }

    /// True while users ask for something, or have lately.
    pub fn is_asked(&self) -> bool {
        self.idle.users.get() > 0 || self.env.now().since(self.idle.asked.get()) < IDLE
    }

    /// Users have written these blocks.
    pub fn wrote(&self, blocks: &Range<u32>) {
        if self.shape.is_home {
            return;
        }
        let most = COPIES * u64::from(self.shape.blocks);
        let earned = self.idle.earned.get() + COPIES * blocks.len() as u64;
        self.idle.earned.set(earned.min(most));
        self.idle.windows.borrow_mut().extend(blocks.start / PAGE_BLOCKS..=(blocks.end - 1) / PAGE_BLOCKS);
        if !self.is_closed.get() && !self.idle.is_watched.replace(true) {
            self.watch();
        }
    }

    /// Tidies when users are gone, and until they are back.
    fn watch(&self) {
        let (me, env) = (self.me.clone(), Rc::clone(&self.env));
        self.env.spawn(Box::pin(async move {
            loop {
                env.sleep(IDLE).await;
                let Some(log) = me.upgrade().filter(|log| !log.is_closed.get()) else { return };
                if log.is_asked() {
                    continue;
                }
                let task = log.tasks.begin();
                let ended = log.tidy_as_job(true).await;
                drop(task);
                if ended != End::Asked {
                    return log.idle.is_watched.set(false);
                }
            }
        }));
    }

    /// Tidies all windows, whatever users do: how many blocks were rewritten.
    ///
    /// # Errors
    ///
    /// `Unsupported` beside homes.
    pub async fn tidy_all(self: &Rc<Log>) -> Result<u64> {
        if self.shape.is_home {
            let message =
                "tidy: in mode home blocks are in order at home: drain brings those of the log there";
            return Err(Error::unsupported(message).on(&self.name));
        }
        let _task = self.tasks.begin();
        self.idle.windows.borrow_mut().extend(0..self.shape.pages());
        let before = self.counters.copied();
        self.tidy_as_job(false).await;
        Ok(self.counters.copied() - before)
    }

    async fn tidy_as_job(self: &Rc<Log>, gives_way: bool) -> End {
        let windows = self.idle.windows.borrow().len() as u64;
        let bytes = u64::from(PAGE_BLOCKS) * SLOT as u64;
        let job = Job::new(&self.env, "tidy", windows * bytes, None);
        self.jobs.borrow_mut().push(Rc::clone(&job));
        let tidied = self.tidy(&job, gives_way).await;
        self.jobs.borrow_mut().retain(|other| !Rc::ptr_eq(other, &job));
        tidied.unwrap_or_else(|e| {
            match e.kind() {
                ErrorKind::Cancelled => self.idle.windows.borrow_mut().clear(),
                _ => tracing::warn!(device = %self.name, error = %e, "tidying has ended early"),
            }
            End::Done
        })
    }

    async fn tidy(self: &Rc<Log>, job: &Job, gives_way: bool) -> Result<End> {
        let mut looks = 0;
        loop {
            let Some(window) = self.idle.windows.borrow_mut().pop_first() else { return Ok(End::Done) };
            looks += 1;
            if looks % LOOKS == 0 {
                self.env.sleep(Duration::ZERO).await;
            }
            job.step(u64::from(PAGE_BLOCKS) * SLOT as u64).await?;
            if self.is_closed.get() {
                return Ok(End::Done);
            }
            let before = self.counters.copied();
            let end = self.tidy_window(window, gives_way).await?;
            let copied = self.counters.copied() - before;
            self.idle.earned.set(self.idle.earned.get().saturating_sub(copied));
            match end {
                Some(End::Asked) => {
                    self.idle.windows.borrow_mut().insert(window);
                    return Ok(End::Asked);
                }
                Some(End::Done) => return Ok(End::Done),
                None => {}
            }
        }
    }

    /// Rewrites a window if it is scattered. `Some`: this was the last one for now.
    async fn tidy_window(self: &Rc<Log>, window: u32, gives_way: bool) -> Result<Option<End>> {
        let blocks = window * PAGE_BLOCKS..((window + 1) * PAGE_BLOCKS).min(self.shape.blocks);
        let mapped = self.places(&blocks);
        if !is_scattered(mapped.iter().map(|(slot, _)| *slot)) {
            return Ok(None);
        }
        if gives_way && self.idle.earned.get() < mapped.len() as u64 {
            return Ok(Some(End::Done));
        }
        let (ticket, mut end) = (Ticket::new(), None);
        let most = PIECE.min(self.shape.segment_slots / 2);
        for start in blocks.clone().step_by(most as usize) {
            if !self.has_space().await {
                end = Some(End::Done);
                break;
            }
            let piece = self.places(&(start..blocks.end.min(start + most)));
            if gives_way && self.is_asked() || !self.rewrite(&piece, &ticket, gives_way).await? {
                end = Some(End::Asked);
                break;
            }
        }
        ticket.wait().await?;
        Ok(end)
    }

    /// Where blocks are, with the blocks.
    fn places(&self, blocks: &Range<u32>) -> Vec<Live> {
        let map = self.map.borrow();
        blocks.clone().filter_map(|block| Some((map.get(block)?, block))).collect()
    }

    /// Waits until there is space that users do not need; false if there will be none.
    async fn has_space(self: &Rc<Log>) -> bool {
        while self.is_short() && !self.is_closed.get() {
            self.make_space_soon();
            let moved = self.moved.wait();
            if !self.is_collecting.get() {
                return !self.is_short();
            }
            moved.await;
        }
        !self.is_closed.get()
    }

    /// Reads blocks, in the order of their places, and appends them in their own; false if a user has come meanwhile.
    async fn rewrite(self: &Rc<Log>, blocks: &[Live], ticket: &Rc<Ticket>, gives_way: bool) -> Result<bool> {
        let mut sources = BTreeMap::new();
        for (slot, _) in blocks {
            let segment = self.shape.segment_of(*slot);
            sources.entry(segment).or_insert_with(|| Rc::new(self.pin(segment)));
        }
        let Some(data) = self.read_scattered(blocks, gives_way).await? else { return Ok(false) };
        let class = self.classes.borrow().of_tidied();
        for run in runs(blocks) {
            let (slot, block) = blocks[run.start];
            let part = Part {
                what: What::Copied,
                block,
                count: run.len() as u32,
                data: data.slice(run.start * SLOT..run.end * SLOT),
                from: slot,
                durability: Durability::Cached,
                ticket: Rc::clone(ticket),
                source: sources.get(&self.shape.segment_of(slot)).map(Rc::<Pin>::clone),
            };
            self.append(class, part);
        }
        self.moved.until(|| self.waiting(class) == 0 || self.is_closed.get()).await;
        Ok(true)
    }

    /// The data of blocks, in their order; `None` if a user has come meanwhile.
    async fn read_scattered(&self, blocks: &[Live], gives_way: bool) -> Result<Option<Buf>> {
        let data = self.env.pool().take(blocks.len() * SLOT);
        let mut places: Vec<Live> = (0..).zip(blocks).map(|(at, (slot, _))| (*slot, at)).collect();
        places.sort_unstable();
        // Zones may have a gap between them.
        let by_segment = places.chunk_by(|a, b| self.shape.segment_of(a.0) == self.shape.segment_of(b.0));
        let groups: Vec<&[Live]> = by_segment.flat_map(groups).collect();
        for some in groups.chunks(READS) {
            if gives_way && self.is_asked() {
                return Ok(None);
            }
            self.read_into(some, &data).await?;
        }
        Ok(Some(data))
    }

    /// Reads slots that are close to each other, each to its number in `into`.
    async fn read_into(&self, groups: &[&[Live]], into: &Buf) -> Result<()> {
        let bufs = self.read_groups(0, groups).await?;
        for (group, buf) in groups.iter().zip(&bufs) {
            for (slot, at) in *group {
                let (from, to) = ((slot - group[0].0) as usize * SLOT, *at as usize * SLOT);
                into.slice(to..to + SLOT).copy_from(&buf.slice(from..from + SLOT));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_scattered_has_short_runs() {
        let check =
            |slots: &[u32], expected| assert_eq!(is_scattered(slots.iter().copied()), expected, "{slots:?}");
        check(&[], false);
        check(&[7], false);
        check(&[7, 3], true);
        check(&[7, 8, 9, 11, 12], false);
        check(&[7, 8, 9, 12, 13], true);
        let runs = |len: u32| {
            (0..1024 / len).flat_map(|run| (0..len).map(move |at| run * 999 + at)).collect::<Vec<_>>()
        };
        check(&runs(8), true);
        check(&runs(32), false);
    }
}
