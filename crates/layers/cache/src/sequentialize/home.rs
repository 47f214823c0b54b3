//! Blocks that have homes: what goes there at once, what is read from there, and what collection brings there.
//!
//! ```text
//!      small write ──────▶ log ── collection ──▶ home, by address ─▶ flush ─▶ the log lets it go, durably
//!      large, in a stream ─▶ home where nothing is mapped, log where something is
//!      read ──▶ home, and over it what the log has
//! ```
//!
//! The rule that makes the order of all this simple: **users write home only what is not mapped**. What is mapped is
//! superseded in the log, where serial numbers say what is newer. So no write of theirs needs a tombstone, and a replay
//! of an older piece cannot cover it.
//!
//! Invariants:
//! * A block that the log lets go is at home, durably, before: written by collection, or zeroed.
//! * The log has let a block go durably before the map does: what users write home then is not covered after a crash,
//!   also if it is durable by itself.
//! * Collection writes a block home under its lock, and only the version that the map has: an older one cannot land
//!   after a newer one. The log lets it go only if that version is still where it was.
//! * Collection waits for no lock: its holder may wait for space. What is locked is copied.
//! * One segment is collected at a time. Otherwise a copy and a move of the same block could be under way together, and
//!   recovery, which takes them in another order than they completed in, would bring the copy back.
//! * While a batch that failed may be found after a crash, nothing counts as unmapped: what the batch has must not
//!   cover what is written home later.

use super::batch::Part;
use super::collect::{Live, groups};
use super::format::{SLOT, What};
use super::log::Log;
use super::request::{Run, bytes_of, touched, whole};
use crate::ticket::Ticket;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use lamina_block::{Buf, Durability, Error, ErrorKind, Io, Result, Zero, all};
use lamina_kit::flaw::flawed;
use lamina_kit::streams::Streams;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Streams of writes that are followed at a time: a client writes few files at once.
const STREAMS: usize = 16;
/// Bytes between two pieces at home that are read along with them, at most: another request costs more.
const CLOSE: u64 = 32 << 10;
/// Runs that are written home together: enough for a drive to have something to choose from, and few enough for
/// requests of users to be served between them.
const TOGETHER: usize = 16;
/// Blocks of a run, at most: 1 MiB.
const RUN_BLOCKS: usize = 256;
/// How long a drain waits for blocks that users write.
const PAUSE: Duration = Duration::from_millis(1);
/// How much a measurement counts in the mean.
const WEIGHT: f64 = 0.125;

/// What is known of writes and moves home.
pub(super) struct Home {
    /// Writes of more bytes go home.
    pub small: Cell<u64>,
    streams: RefCell<Streams>,
    /// All writes go home, as far as they can.
    pub is_draining: Cell<bool>,
    /// The serial number behind that of the last batch that failed.
    pub failed: Cell<u64>,
    /// Everything is at home, and nothing has been appended since.
    pub is_left: Cell<bool>,
    pub costs: Costs,
}

impl Default for Home {
    fn default() -> Home {
        Home {
            small: Cell::new(0),
            streams: RefCell::new(Streams::new(STREAMS, 0)),
            is_draining: Cell::default(),
            failed: Cell::default(),
            is_left: Cell::default(),
            costs: Costs::default(),
        }
    }
}

/// What the two ways to make space have taken, in seconds. They are measured, because no model says it: on a hard disk
/// a write at random takes as long as hundreds in a row, and on flash as long as a few.
#[derive(Default)]
pub(super) struct Costs {
    /// For each block that is copied.
    copy: Cell<Option<f64>>,
    /// For each run that is written home.
    home: Cell<Option<f64>>,
}

fn mix(mean: &Cell<Option<f64>>, took: Duration, count: usize) {
    let each = took.as_secs_f64() / count.max(1) as f64;
    mean.set(Some(mean.get().map_or(each, |before| before + WEIGHT * (each - before))));
}

impl Costs {
    /// So many blocks were copied.
    pub fn copied(&self, took: Duration, blocks: usize) {
        mix(&self.copy, took, blocks);
    }

    /// So many runs were written home.
    fn homed(&self, took: Duration, runs: usize) {
        mix(&self.home, took, runs);
    }

    /// Whether to write home what counts in a segment of `slots`: `live` blocks in `runs` runs. Copies leave space for
    /// what is garbage, and all is free when it is at home. While one way was never measured, whatever gains more than
    /// it moves is copied.
    fn prefer_home(&self, live: usize, runs: usize, slots: usize) -> bool {
        let (live, runs, slots) = (live as f64, runs as f64, slots as f64);
        match (self.copy.get(), self.home.get()) {
            (Some(copy), Some(home)) => live * copy * slots > runs * home * (slots - live),
            _ => 2.0 * live > slots,
        }
    }
}

/// A block that counts, on its way home.
struct Mover {
    block: u32,
    /// In the log.
    slot: u32,
    data: Buf,
}

/// Blocks that follow each other, in runs.
fn runs(movers: &[Mover]) -> Vec<&[Mover]> {
    movers.chunk_by(|a, b| a.block + 1 == b.block).flat_map(|run| run.chunks(RUN_BLOCKS)).collect()
}

/// Where to read at home for these runs: what lies between two of them is read along, if it is short.
fn homes(of: &[Run]) -> Vec<Range<u64>> {
    let mut homes: Vec<Range<u64>> = Vec::with_capacity(1);
    for run in of.iter().filter(|run| run.place.is_none()) {
        match homes.last_mut() {
            Some(last) if run.at.start - last.end <= CLOSE => last.end = run.at.end,
            Some(_) | None => homes.push(run.at.clone()),
        }
    }
    homes
}

impl Log {
    /// True if a write is large, or goes on where another one ended.
    pub fn is_for_home(&self, at: &Range<u64>) -> bool {
        if !self.shape.is_home {
            return false;
        }
        let goes_on = self.home.streams.borrow_mut().follow(at) > 0;
        goes_on || at.end - at.start > self.home.small.get() || self.home.is_draining.get()
    }

    /// True if recovery would look for a batch that failed.
    pub fn may_find_failed(&self) -> bool {
        self.home.failed.get() > self.saved.get().serial
    }

    /// Reads runs, some of which are at home.
    pub async fn read_over_homes(&self, runs: &[Run], at: &Range<u64>, into: &Buf) -> Result<()> {
        let part = |of: &Range<u64>| into.slice((of.start - at.start) as usize..(of.end - at.start) as usize);
        let homes = homes(runs);
        let mut reads: Vec<_> =
            homes.iter().map(|home| self.child.submit(Io::read(home.start, part(home)))).collect();
        let mut over = Vec::new();
        for (run, place) in runs.iter().filter_map(|run| run.place.map(|place| (run, place))) {
            let is_over = homes.iter().any(|home| home.contains(&run.at.start));
            let buf = match is_over {
                true => self.env.pool().take((run.at.end - run.at.start) as usize),
                false => part(&run.at),
            };
            reads.push(self.read_run(place, buf.clone()));
            over.extend(is_over.then_some((&run.at, buf)));
        }
        all(reads).await?;
        over.iter().for_each(|(at, buf)| part(at).copy_from(buf));
        Ok(())
    }

    /// Bytes side by side that are mapped, or that are not.
    fn parts(&self, at: &Range<u64>) -> Vec<(Range<u64>, bool)> {
        if self.may_find_failed() && !flawed("a failed batch is forgotten at once") {
            return vec![(at.clone(), true)];
        }
        let mut parts: Vec<(Range<u64>, bool)> = Vec::with_capacity(1);
        for run in self.runs(at) {
            match parts.last_mut() {
                Some((last, is_mapped)) if *is_mapped == run.place.is_some() => last.end = run.at.end,
                Some(_) | None => parts.push((run.at, run.place.is_some())),
            }
        }
        parts
    }

    /// Writes bytes home where nothing is mapped, and the others to the log. The blocks are locked.
    pub async fn write_home(
        self: &Rc<Log>,
        at: &Range<u64>,
        data: Buf,
        durability: Durability,
    ) -> Result<()> {
        let writes = self.parts(at).into_iter().map(|(part, is_mapped)| {
            let data = data.slice((part.start - at.start) as usize..(part.end - at.start) as usize);
            async move {
                match is_mapped && !flawed("what is mapped goes home") {
                    true => self.write_log(&part, data, durability).await,
                    false => {
                        self.counters.direct(part.end - part.start);
                        self.child.submit(Io::write(part.start, data, durability)).await
                    }
                }
            }
        });
        join_all(writes).await.into_iter().collect()
    }

    /// Blocks that the log has, or may be found to have.
    pub fn in_log(&self, blocks: &Range<u32>) -> Vec<Range<u32>> {
        match self.may_find_failed() {
            true => vec![blocks.clone()],
            false => self.map.borrow().mapped_in(blocks.clone()),
        }
    }

    /// Zeroes whole blocks. They are locked.
    pub async fn zero_home(self: &Rc<Log>, blocks: Range<u32>, how: Zero) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let is_mapped = !self.in_log(&blocks).is_empty();
        let durability = if is_mapped { Durability::Fua } else { how.durability };
        self.child.submit(Io::zero(bytes_of(&blocks), Zero { durability, ..how })).await?;
        match is_mapped {
            true => self.drop_blocks(blocks, tombstone()).await,
            false => Ok(()),
        }
    }

    /// Discards bytes. Blocks that the log has become zeroes: at home there is something older.
    pub async fn discard_home(self: &Rc<Log>, at: Range<u64>) -> Result<()> {
        let _lock = self.lock(&touched(&at)).await;
        let blocks = whole(&at);
        let mapped = self.in_log(&blocks);
        if !blocks.is_empty() && !mapped.is_empty() {
            let how = Zero { unmap: true, ..Zero::default() };
            let zero = |part: &Range<u32>| self.child.submit(Io::zero(bytes_of(part), how));
            all(mapped.iter().map(zero)).await?;
            self.flush().await?;
            self.drop_blocks(blocks, tombstone()).await?;
        }
        self.child.submit(Io::discard(at)).await
    }

    /// Writes home what counts in a segment, if that is cheaper than copying it. What still counts in
    /// it then is to be copied.
    pub async fn bring_home(self: &Rc<Log>, victim: u32) -> Result<()> {
        match self.shape.is_home && self.is_cheaper_home(victim) {
            true => self.move_segment(victim).await.map(drop),
            false => Ok(()),
        }
    }

    fn is_cheaper_home(&self, victim: u32) -> bool {
        let all: Vec<u32> = self.segments.borrow().owners(victim).map(|(_, block)| block).collect();
        let mut blocks: Vec<u32> = all.iter().copied().filter(|block| *block < self.shape.blocks).collect();
        blocks.sort_unstable();
        let follows = |a: &u32, b: &u32| a + 1 == *b;
        let runs: usize = blocks.chunk_by(follows).map(|run| run.len().div_ceil(RUN_BLOCKS)).sum();
        let has_gain = all.len() <= self.shape.copied_max() as usize;
        let slots = self.shape.segment_slots as usize;
        runs > 0 && (!has_gain || self.home.costs.prefer_home(all.len(), runs, slots))
    }

    /// Writes home what counts in a segment: how many blocks.
    async fn move_segment(self: &Rc<Log>, number: u32) -> Result<u64> {
        let live: Vec<Live> = self.segments.borrow().owners(number).collect();
        let groups = groups(&live);
        let bufs = self.read_groups(self.shape.start(number), &groups).await?;
        let movers = self.movers(number, &groups, &bufs);
        let began = self.env.now();
        let homed = self.write_movers(&movers).await?;
        if homed.is_empty() {
            return Ok(0);
        }
        if !flawed("let go before it is at home") {
            self.flush().await?;
        }
        self.home.costs.homed(self.env.now().since(began), homed.len());
        self.append_homed(&homed).await?;
        Ok(homed.iter().map(|run| run.len() as u64).sum())
    }

    /// Blocks of the volume that were read, by address.
    fn movers(&self, victim: u32, groups: &[&[Live]], bufs: &[Buf]) -> Vec<Mover> {
        let start = self.shape.start(victim);
        let live = groups.iter().zip(bufs).flat_map(|(group, buf)| {
            group.iter().map(move |(slot, block)| {
                let from = (slot - group[0].0) as usize * SLOT;
                Mover { block: *block, slot: start + slot, data: buf.slice(from..from + SLOT) }
            })
        });
        let mut movers: Vec<Mover> = live.filter(|mover| mover.block < self.shape.blocks).collect();
        movers.sort_unstable_by_key(|mover| mover.block);
        movers
    }

    /// Writes blocks of a segment home: the runs of them that are there now.
    async fn write_movers<'a>(&self, movers: &'a [Mover]) -> Result<Vec<&'a [Mover]>> {
        let runs = runs(movers);
        let writes = runs.iter().map(|run| self.write_run_home(run));
        let written: Vec<Result<bool>> = stream::iter(writes).buffered(TOGETHER).collect().await;
        let written = written.into_iter().collect::<Result<Vec<bool>>>()?;
        Ok(runs.into_iter().zip(written).filter_map(|(run, written)| written.then_some(run)).collect())
    }

    /// Lets go what is at home, durably.
    async fn append_homed(self: &Rc<Log>, homed: &[&[Mover]]) -> Result<()> {
        let (ticket, class) = (Ticket::new(), self.classes.borrow().first_of_copies());
        let in_log = homed.iter().flat_map(|run| run.chunk_by(|a, b| a.slot + 1 == b.slot));
        for run in in_log {
            let part = Part {
                what: What::Homed,
                block: run[0].block,
                count: run.len() as u32,
                data: Buf::empty(),
                from: run[0].slot,
                durability: tombstone(),
                ticket: Rc::clone(&ticket),
                source: None,
            };
            self.append(class, part);
        }
        ticket.wait().await
    }

    /// Writes a run home, if the map still has all of it where it was read: false if not.
    async fn write_run_home(&self, run: &[Mover]) -> Result<bool> {
        let blocks = run[0].block..run[0].block + run.len() as u32;
        let Some(lock) = self.locks.try_lock(&(blocks.start.into()..blocks.end.into())) else {
            return Ok(false);
        };
        let lock = (!flawed("homes are not locked")).then_some(lock);
        let is_there = |mover: &Mover| self.map.borrow().get(mover.block) == Some(mover.slot);
        if !run.iter().all(is_there) && !flawed("an older version goes home") {
            return Ok(false);
        }
        let data = match run {
            [mover] => mover.data.clone(),
            _ => {
                let all = self.env.pool().take(run.len() * SLOT);
                let parts = run.iter().enumerate();
                parts.for_each(|(i, mover)| all.slice(i * SLOT..(i + 1) * SLOT).copy_from(&mover.data));
                all
            }
        };
        let written = self.child.submit(Io::write(bytes_of(&blocks).start, data, Durability::Cached)).await;
        drop(lock);
        written.map(|()| true)
    }

    /// Brings everything home, and keeps writes out of the log from then on: how many blocks were brought.
    pub async fn drain(self: &Rc<Log>) -> Result<u64> {
        self.home.is_draining.set(true);
        let mut brought = 0;
        loop {
            let moved = self.moved.wait();
            let (next, is_more) = self.next_to_drain();
            match next {
                Some(number) => match self.drain_segment(number).await? {
                    // Users have all of it locked, or have written it meanwhile.
                    0 => self.env.sleep(PAUSE).await,
                    more => brought += more,
                },
                None if is_more => moved.await,
                None => break,
            }
        }
        self.checkpoint().await?;
        Ok(brought)
    }

    /// A segment that has blocks of the volume; and whether one has that cannot be looked at now.
    pub fn next_to_drain(&self) -> (Option<u32>, bool) {
        let segments = self.segments.borrow();
        let mut with_homes = segments.iter().filter(|(_, segment)| segments.has_homes(segment)).peekable();
        let is_more = with_homes.peek().is_some();
        let next = with_homes.find(|(_, segment)| segment.under_way.is_empty());
        (next.map(|(number, _)| number), is_more)
    }

    pub async fn drain_segment(self: &Rc<Log>, number: u32) -> Result<u64> {
        let _pin = self.pin(number);
        let _alone = self.collect_alone().await;
        self.move_segment(number).await
    }

    /// Brings everything home, so that the device below can take the place of this one. No request is under way.
    pub async fn leave(self: &Rc<Log>) -> Result<()> {
        if !self.shape.is_home {
            let message =
                "the device below has a log, not the data in their places: copy them to another device";
            return Err(Error::unsupported(message));
        }
        let before = self.home.is_draining.get();
        let drained = self.drain().await;
        self.home.is_draining.set(before);
        self.tasks.ended().await;
        drained?;
        self.clear_segments().await?;
        self.home.is_left.set(true);
        Ok(())
    }

    /// Makes zeroes of the segments, in which nothing counts, if that takes no time: another log can be made there.
    async fn clear_segments(&self) -> Result<()> {
        let slots = self.shape.slots();
        let how = Zero { unmap: true, fast: true, ..Zero::default() };
        let at = self.shape.place(slots.start)..self.shape.place(slots.end);
        match self.child.submit(Io::zero(at, how)).await {
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(()),
            cleared => cleared,
        }
    }
}

/// When the log has to have let something go: at once, because what is written home then, and is durable by itself,
/// must not be covered by what the log had.
fn tombstone() -> Durability {
    match flawed("late tombstone") {
        true => Durability::Cached,
        false => Durability::Fua,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_is_measured() {
        let costs = Costs::default();
        assert!(!costs.prefer_home(50, 50, 100) && costs.prefer_home(51, 51, 100), "nothing is known");
        costs.copied(Duration::from_millis(10), 100);
        assert!(costs.prefer_home(51, 51, 100), "one way is not enough");
        costs.homed(Duration::from_secs(1), 100);
        // A run takes 100 times what a copy takes.
        assert!(!costs.prefer_home(98, 98, 100) && costs.prefer_home(100, 100, 100));
        assert!(costs.prefer_home(90, 8, 100) && !costs.prefer_home(90, 10, 100), "runs, not blocks");
    }

    #[test]
    fn close_pieces_are_read_together() {
        let run = |at: Range<u64>, place| Run { at, place };
        let near = [run(0..4096, None), run(4096..8192, Some(7)), run(8192..9000, None)];
        assert_eq!(homes(&near), vec![0..9000]);
        let far =
            [run(0..512, None), run(512..512 + CLOSE + 1, Some(7)), run(512 + CLOSE + 1..100_000, None)];
        assert_eq!(homes(&far), [0..512, 512 + CLOSE + 1..100_000]);
        assert_eq!(homes(&near[1..2]), []);
    }
}
