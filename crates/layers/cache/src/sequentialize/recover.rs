//! Opening: the last checkpoint, and the batches since then in the order of their serial numbers.
//!
//! ```text
//!      the newer whole checkpoint ─▶ pages of the map
//!      segments that may have later batches, by their heads ─▶ records by serial ─▶ map ─▶ segments
//!      a new checkpoint, durable before anything is written
//! ```
//!
//! Segments to look at are those that the checkpoint says may have later batches, and as many of its free ones as
//! could be opened until the next one. A batch counts if its head is whole and its data are those that were written.
//!
//! Invariants:
//! * Nothing that the last checkpoint or a later batch needs is written over before the new checkpoint is durable:
//!   until then only pages of the map are written, behind those that the checkpoint knows, or into free segments.
//! * What a crash has left of a checkpoint is erased before pages are written over those that it refers to: another
//!   crash during the next checkpoint, which is written to the same place, could otherwise make it whole.
//! * A serial number is never used twice: each life begins with a number that no batch before it can have.

use super::checkpoint::Saved;
use super::classes::Classes;
use super::format::{Checkpoint, Entry, Head, Row, RowState, SLOT, Super, What, checksum, corrupt};
use super::log::Log;
use super::map::Map;
use super::segments::{Segments, State};
use super::zones::ZonedSegments;
use futures_util::{StreamExt, stream};
use lamina_block::{Env, Error, ErrorKind, Io, Node, Result};
use lamina_kit::flaw::flawed;
use std::rc::Rc;

/// Serial numbers of one life: more than a device of any size and speed takes.
const LIFE: u64 = 1 << 40;
/// Pages, and segments, that are read together, at most.
const TOGETHER: usize = 16;
/// Bytes of segments that are in memory together, unless one alone is larger.
const LOOKED_AT: usize = 128 << 20;

/// What was found in a segment.
struct Found {
    number: u32,
    /// Of its last use.
    heads: Vec<Head>,
    /// The entries that count, of batches that the checkpoint does not have: with their serial number.
    records: Vec<(u64, Entry)>,
}

impl Found {
    fn end(&self) -> u32 {
        self.heads.last().map_or(0, |head| head.at + head.slots)
    }
}

async fn read(env: &Rc<dyn Env>, node: &Rc<Node>, place: u64, slots: u32) -> Result<Vec<u8>> {
    let buf = env.pool().take(slots as usize * SLOT);
    node.submit(Io::read(place, buf.clone())).await?;
    Ok(buf.to_vec())
}

impl Log {
    /// Opens the log on `child` whose superblock is at `place`, in bytes.
    pub async fn open(name: &str, env: &Rc<dyn Env>, child: Rc<Node>, place: u64) -> Result<Rc<Log>> {
        let size = child.geometry().size;
        let on = |e: Error| Error::new(e.kind(), e.message()).on(child.name());
        let is_behind = size.checked_sub(SLOT as u64).is_none_or(|last| last < place);
        if is_behind || child.geometry().block as usize > SLOT {
            return Err(on(corrupt("there is no log of sequentialize on it: make it with `lamina create`")));
        }
        let shape = Super::decode(&read(env, &child, place, 1).await?, size).map_err(on)?;
        if shape.place(0) != place {
            return Err(on(Error::invalid("mode: the log was made with the other mode, and keeps that")));
        }
        let mut copies = Vec::new();
        for copy in [0, 1] {
            let place = shape.place(shape.checkpoint_at(copy));
            let bytes = read(env, &child, place, shape.checkpoint_slots).await?;
            copies.extend(Checkpoint::decode(&bytes, &shape).map(|checkpoint| (checkpoint, copy)));
        }
        let is_torn = copies.len() < 2;
        let Some((last, copy)) = copies.into_iter().max_by_key(|(checkpoint, _)| checkpoint.sequence) else {
            return Err(on(corrupt("neither checkpoint of the log can be read")));
        };
        let zoned = ZonedSegments::of(&child, &shape).map_err(on)?;
        let log = Log::new(name, env, child, shape, zoned);
        log.saved.set(Saved { sequence: last.sequence, serial: last.serial, copy, ..Saved::default() });
        log.recover(last, is_torn).await?;
        Ok(log)
    }

    async fn recover(self: &Rc<Log>, last: Checkpoint, is_torn: bool) -> Result<()> {
        self.clock.set(last.clock);
        self.serial.set((last.serial / LIFE + 1) * LIFE);
        self.load_pages(&last).await?;
        let found = self.look(&last).await?;
        self.replay(&found);
        self.take_over(&last, &found)?;
        let pointers = self.end_at_pointers().await?;
        self.reopen(&last, &found);
        if self.child.geometry().read_only {
            return Ok(());
        }
        if is_torn {
            self.erase_torn().await?;
        }
        self.close_zones(&pointers).await?;
        self.checkpoint().await
    }

    pub fn damaged(&self, what: String) -> Error {
        Error::new(ErrorKind::Corrupt, format!("the log is damaged: {what}")).on(self.child.name())
    }

    async fn load_pages(&self, last: &Checkpoint) -> Result<()> {
        let pages = (0..).zip(&last.pages).filter(|(_, page)| page.slot != 0);
        let reads = pages.map(|(number, page)| async move {
            (number, *page, read(&self.env, &self.child, self.shape.place(page.slot), 1).await)
        });
        let mut reads = stream::iter(reads).buffer_unordered(TOGETHER);
        while let Some((number, page, bytes)) = reads.next().await {
            let (bytes, mut map) = (bytes?, self.map.borrow_mut());
            if checksum(&bytes) != page.checksum || !map.load(number, &bytes, &self.shape.slots()) {
                let slot = page.slot;
                return Err(self.damaged(format!("slot {slot} is not page {number} of the map")));
            }
            map.place(number, page);
        }
        Ok(())
    }

    /// Looks at the segments that may have batches since the checkpoint.
    async fn look(&self, last: &Checkpoint) -> Result<Vec<Found>> {
        let recent = (0..).zip(&last.rows).filter(|(_, row)| match row.state {
            RowState::Recent | RowState::Open => true,
            RowState::Free | RowState::Closed => false,
        });
        let recent = recent.map(|(number, _)| number);
        let numbers = recent.chain(last.free.iter().take(last.window as usize).copied());
        let looks = numbers.map(|number| self.look_at(number, last));
        let together = (LOOKED_AT / (self.shape.segment_slots as usize * SLOT)).clamp(1, TOGETHER);
        let found = stream::iter(looks).buffer_unordered(together).collect::<Vec<_>>().await;
        let found = found.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(found.into_iter().filter(|found| !found.records.is_empty()).collect())
    }

    async fn look_at(&self, number: u32, last: &Checkpoint) -> Result<Found> {
        let place = self.shape.place(self.shape.start(number));
        let bytes = read(&self.env, &self.child, place, self.shape.segment_slots).await?;
        let heads = self.heads(&bytes, last.serial);
        let durable = heads.iter().map(|head| head.durable).max().unwrap_or(0);
        // What came before the checkpoint may have gaps: batches that a crash took. What failed of the map is written
        // over, and not looked for.
        let mut covered = last.rows[number as usize].end;
        for head in heads.iter().filter(|head| head.class != self.page_class()) {
            if head.checkpoint > last.sequence {
                let message =
                    format!("segment {number} knows a later checkpoint than the two that there are");
                return Err(self.damaged(message));
            }
            if head.at > covered && head.at <= durable {
                let message =
                    format!("slot {covered} of segment {number} was durable, and is something else now");
                return Err(self.damaged(message));
            }
            covered = covered.max(head.at + head.slots);
        }
        let written = self.written(number).await?;
        let records = heads.iter().flat_map(|head| {
            // Zeroes that were not written read as such all the same, and their place is written next.
            let there = head.entries.iter().filter(|entry| entry.slot + entry.slots() <= written);
            let whole = there.filter(|entry| self.is_whole(number, head, entry, durable, &bytes));
            whole.map(|entry| (head.serial, *entry))
        });
        let records = records.filter(|(_, entry)| !self.is_of_map(entry)).collect();
        Ok(Found { number, heads, records })
    }

    /// The heads of batches from `serial` on, of the last use of a segment, in their order. There may be one in any
    /// slot: the power may have taken a batch before it, and left what another use had there.
    fn heads(&self, bytes: &[u8], serial: u64) -> Vec<Head> {
        let slots = (0..).zip(bytes.chunks_exact(SLOT));
        let heads =
            slots.filter_map(|(at, slot)| Head::decode(slot, &self.shape).filter(|head| head.at == at));
        let mut heads: Vec<Head> = heads.filter(|head| head.serial >= serial).collect();
        let last = heads.iter().map(|head| head.segment).max();
        heads.retain(|head| Some(head.segment) == last);
        heads
    }

    /// True if the data of an entry are there. Of those that were durable no less is believed than of any other data on
    /// the device: what is there now is what a read returns.
    fn is_whole(&self, number: u32, head: &Head, entry: &Entry, durable: u32, bytes: &[u8]) -> bool {
        let data = entry.slot as usize * SLOT..(entry.slot + entry.slots()) as usize * SLOT;
        let is_whole = checksum(&bytes[data]) == entry.checksum;
        let was_durable = head.at + head.slots <= durable;
        if !is_whole && was_durable {
            let (block, count) = (entry.block, entry.count);
            tracing::error!(device = %self.name, segment = number, block, count, "data have rotted in the log");
        }
        is_whole || was_durable
    }

    /// What was found takes effect in the order of serial numbers.
    fn replay(&self, found: &[Found]) {
        let records = found.iter().flat_map(|found| {
            let start = self.shape.start(found.number);
            found.records.iter().map(move |(serial, entry)| (*serial, start, *entry))
        });
        let mut records: Vec<(u64, u32, Entry)> = records.collect();
        if !flawed("replay in the order of places") {
            records.sort_by_key(|(serial, ..)| *serial);
        }
        let mut map = self.map.borrow_mut();
        for (_, start, entry) in records {
            match entry.what {
                What::Written => (0..entry.count).for_each(|i| {
                    map.set(entry.block + i, start + entry.slot + i);
                }),
                What::Copied => (0..entry.count).for_each(|i| {
                    let is_there = map.get(entry.block + i) == Some(entry.from + i);
                    if is_there || flawed("copies count whatever is there") {
                        map.set(entry.block + i, start + entry.slot + i);
                    }
                }),
                What::Dropped if flawed("drops are forgotten") => {}
                What::Dropped => {
                    let mut blocks = entry.blocks();
                    while let Some((block, _)) = map.unmap_next(blocks.clone()) {
                        blocks.start = block + 1;
                    }
                }
                What::Homed => (0..entry.count).for_each(|i| {
                    let block = entry.block + i;
                    if map.get(block) == Some(entry.from + i) || flawed("homes count whatever is there") {
                        map.unmap_next(block..block + 1);
                    }
                }),
            }
        }
    }

    /// The segments are as the checkpoint, the batches that were found, and the map say.
    fn take_over(&self, last: &Checkpoint, found: &[Found]) -> Result<()> {
        let mut segments = self.segments.borrow_mut();
        let mut is_used = vec![false; last.rows.len()];
        let mut next = last.next_segment;
        for (number, row) in (0..).zip(&last.rows).filter(|(_, row)| row.state != RowState::Free) {
            segments.restore(number, row, State::Closed);
            is_used[number as usize] = true;
        }
        for of in found {
            let Some(head) = of.heads.last() else { continue };
            let row = Row {
                sequence: head.segment,
                time: self.clock.get(),
                end: of.end(),
                class: head.class,
                state: RowState::Open,
            };
            let end = row.end.max(segments.get(of.number).end);
            segments.restore(of.number, &Row { end, ..row }, State::Closed);
            is_used[of.number as usize] = true;
            next = next.max(head.segment + 1);
        }
        // Uses that were not found may have had higher numbers.
        next += u64::from(self.shape.segments);
        segments.set_free(last.free.iter().copied().filter(|number| !is_used[*number as usize]), next);
        for (address, slot) in self.map.borrow().mapped() {
            let number = self.shape.segment_of(slot);
            if !segments.adopt(number, slot - self.shape.start(number), address) {
                let message = format!("slot {slot} should have block {address}, and its segment does not");
                return Err(self.damaged(message));
            }
        }
        Ok(())
    }

    /// Of each class goes on in the segment that was opened last: a crash costs no segment.
    fn reopen(&self, last: &Checkpoint, found: &[Found]) {
        let mut segments = self.segments.borrow_mut();
        let open = (0..).zip(&last.rows).filter(|(_, row)| row.state == RowState::Open);
        let candidates = open.map(|(number, _)| number).chain(found.iter().map(|found| found.number));
        for number in candidates {
            let segment = segments.get(number);
            let stream = &self.streams[usize::from(segment.class)];
            let before = stream.open.get().map(|open| segments.get(open).sequence);
            if segment.end + 2 <= self.shape.segment_slots
                && before.is_none_or(|before| before < segment.sequence)
            {
                stream.open.set(Some(number));
            }
        }
        for number in self.streams.iter().filter_map(|stream| stream.open.get()) {
            segments.get_mut(number).state = State::Open;
        }
        segments.recovered();
    }

    fn new(
        name: &str,
        env: &Rc<dyn Env>,
        child: Rc<Node>,
        shape: Super,
        zoned: Option<ZonedSegments>,
    ) -> Rc<Log> {
        let classes = Classes::new(shape.classes());
        let stripe = child.geometry().stripe / SLOT as u32;
        Rc::new_cyclic(|me| Log {
            me: me.clone(),
            name: name.into(),
            env: Rc::clone(env),
            child,
            shape,
            // Zones have none; and one that segments do not fit, of a device that was exchanged, is none.
            stripe: if zoned.is_none() && stripe > 0 && shape.segment_slots.is_multiple_of(stripe) {
                stripe
            } else {
                1
            },
            zoned,
            reserve: shape.reserve(),
            map: Map::new(shape.blocks).into(),
            segments: Segments::new(shape.segments, shape.segment_slots)
                .beside(if shape.is_home { shape.blocks } else { 0 })
                .into(),
            streams: (0..=classes.of_pages()).map(|_| Default::default()).collect(),
            classes: classes.into(),
            locks: Rc::default(),
            serial: Default::default(),
            under_way: Default::default(),
            clock: Default::default(),
            saved: Default::default(),
            saving: Default::default(),
            is_saving: Default::default(),
            is_whole: Default::default(),
            is_collecting: Default::default(),
            collecting: Default::default(),
            home: Default::default(),
            gathering: Default::default(),
            pace: Default::default(),
            idle: Default::default(),
            jobs: Default::default(),
            moved: Default::default(),
            tasks: Rc::default(),
            is_closed: Default::default(),
            counters: super::report::Counters::new(shape.classes() as usize + 1, env.now()),
        })
    }
}
