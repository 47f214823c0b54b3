//! The log: everything that is shared by requests, collection and checkpoints, and how a batch is written.
//!
//! ```text
//!      part ──▶ class ──▶ waiting ┐
//!      part ──▶ …                 ├─▶ batch: head │ data … ──▶ one write ──▶ map ──▶ done
//!      part ──▶ …                 ┘
//! ```
//!
//! Parts that come while batches of their class are under way wait, and go together with the next one (`batch.rs`).
//!
//! Invariants:
//! * The map has what has been written, not what is under way: a place in it can always be read.
//! * Two writes of a block are never under way together (the range lock of `request.rs`). A copy may be under way
//!   beside a write of the same block: live and in recovery alike the copy counts only if its source still does.
//! * Nothing is appended to a segment behind a batch that failed.

use super::batch::{BATCH_SLOTS, Batch, Fit, Part, fit, take};
use super::checkpoint::Saved;
use super::classes::Classes;
use super::format::{Entry, Head, Page, Reserve, SLOT, Super, What, checksum};
use super::home::Home;
use super::map::Map;
use super::pace::Pace;
use super::report::Counters;
use super::segments::{Segments, State};
use super::tidy::Idle;
use super::zones::ZonedSegments;
use lamina_block::{Buf, Durability, Env, Error, Io, Job, Node, Result, Signal};
use lamina_kit::flaw::flawed;
use lamina_kit::mutex::Mutex;
use lamina_kit::range_locks::RangeLocks;
use lamina_kit::single_flight::SingleFlight;
use lamina_kit::tasks::Tasks;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::{Rc, Weak};

/// Batches of a class that are under way together, at most: with two the device always has one.
const BATCHES: usize = 2;

/// The parts of a class that wait, and where they go.
#[derive(Default)]
pub(super) struct Stream {
    waiting: RefCell<VecDeque<Part>>,
    /// Parts that have been appended so far.
    appended: Cell<u64>,
    under_way: Cell<usize>,
    pub open: Cell<Option<u32>>,
    scheduled: Cell<bool>,
}

/// A segment that is not freed while this lives.
pub(super) struct Pin {
    of: Rc<Log>,
    segment: u32,
}

impl Pin {
    /// Its number.
    pub fn segment(&self) -> u32 {
        self.segment
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.of.segments.borrow_mut().get_mut(self.segment).pins -= 1;
        self.of.moved.notify();
    }
}

/// While this lives, more copies will come: those that wait need not go before they make a whole batch.
pub(super) struct Gathering(Rc<Log>);

impl Drop for Gathering {
    fn drop(&mut self) {
        self.0.gathering.set(self.0.gathering.get() - 1);
        self.0.pump_all();
    }
}

/// The log on a device.
pub(super) struct Log {
    pub me: Weak<Log>,
    pub name: String,
    pub env: Rc<dyn Env>,
    pub child: Rc<Node>,
    pub shape: Super,
    /// Segments are zones.
    pub zoned: Option<ZonedSegments>,
    /// Slots of a full stripe of the device; 1 if it has none.
    pub stripe: u32,
    pub reserve: Reserve,
    pub map: RefCell<Map>,
    pub segments: RefCell<Segments>,
    pub classes: RefCell<Classes>,
    /// By class; the last one is of pages of the map.
    pub streams: Vec<Stream>,
    /// On blocks.
    pub locks: Rc<RangeLocks>,
    /// The next serial number of a batch, and those under way.
    pub serial: Cell<u64>,
    pub under_way: RefCell<BTreeSet<u64>>,
    /// Blocks that users have written.
    pub clock: Cell<u64>,
    pub saved: Cell<Saved>,
    pub saving: SingleFlight,
    pub is_saving: Cell<bool>,
    /// The next checkpoint has the whole map.
    pub is_whole: Cell<bool>,
    pub is_collecting: Cell<bool>,
    /// One segment is collected at a time.
    pub collecting: Mutex,
    /// Beside homes: what is known of writes and moves that go there.
    pub home: Home,
    /// How many will append more copies.
    pub gathering: Cell<u32>,
    pub pace: RefCell<Pace>,
    pub idle: Idle,
    /// What goes on in the background, for people.
    pub jobs: RefCell<Vec<Rc<Job>>>,
    /// Something has changed that others may wait for.
    pub moved: Signal,
    pub tasks: Rc<Tasks>,
    pub is_closed: Cell<bool>,
    pub counters: Counters,
}

impl Log {
    /// Runs `work` in the background; closing waits for it.
    pub fn spawn<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Rc<Log>) -> F) {
        let Some(me) = self.me.upgrade() else { return };
        self.tasks.spawn(&*self.env, work(me));
    }

    /// Keeps the segment of a slot from being freed.
    pub fn pin(self: &Rc<Log>, segment: u32) -> Pin {
        self.segments.borrow_mut().get_mut(segment).pins += 1;
        Pin { of: Rc::clone(self), segment }
    }

    /// Lets copies wait for each other.
    pub fn gather(self: &Rc<Log>) -> Gathering {
        self.gathering.set(self.gathering.get() + 1);
        Gathering(Rc::clone(self))
    }

    /// True while parts of a class that wait will have company. Somebody waits for what says that blocks are at home,
    /// and brings no company meanwhile.
    fn gathers(&self, class: u8) -> bool {
        let (stream, is_copied) =
            (&self.streams[class as usize], class >= self.classes.borrow().first_of_copies());
        let is_homed = || stream.waiting.borrow().iter().any(|part| part.what == What::Homed);
        (stream.under_way.get() > 0 || is_copied && self.gathering.get() > 0) && !is_homed()
    }

    /// Parts of a class that wait.
    pub fn waiting(&self, class: u8) -> usize {
        self.streams[class as usize].waiting.borrow().len()
    }

    /// The class of pages of the map.
    pub fn page_class(&self) -> u8 {
        self.classes.borrow().of_pages()
    }

    /// Appends a part; its ticket ends with it.
    pub fn append(self: &Rc<Log>, class: u8, part: Part) {
        let stream = &self.streams[class as usize];
        part.ticket.one_more();
        if self.is_closed.get() && class != self.page_class() {
            return part.ticket.end(&Err(Error::offline("the device is being closed")));
        }
        self.home.is_left.set(false);
        stream.waiting.borrow_mut().push_back(part);
        stream.appended.set(stream.appended.get() + 1);
        if !stream.scheduled.replace(true) {
            // What others append in this turn goes along.
            self.spawn(move |me| async move {
                me.streams[class as usize].scheduled.set(false);
                me.pump(class);
            });
        }
    }

    /// Makes batches of what waits, and sends them.
    fn pump(self: &Rc<Log>, class: u8) {
        while let Some(batch) = self.next_batch(class) {
            self.spawn(move |me| async move { me.write_batch(batch).await });
        }
    }

    /// The same for all classes: space has become free.
    pub fn pump_all(self: &Rc<Log>) {
        (0..self.streams.len() as u8).for_each(|class| self.pump(class));
    }

    /// The parts that have been appended to each stream: an attempt to make space is for these.
    pub fn appended(&self) -> Vec<u64> {
        self.streams.iter().map(|stream| stream.appended.get()).collect()
    }

    /// Ends the parts that have waited for an attempt to make space, which failed. True if others wait: the next
    /// attempt may succeed, and what failed before they came is no reason to fail them.
    pub fn fail_waiting(&self, e: &Error, attempt: &[u64]) -> bool {
        let failed = Err(e.clone());
        let mut is_more = false;
        for (stream, before) in self.streams.iter().zip(attempt) {
            let mut waiting = stream.waiting.borrow_mut();
            let younger = (stream.appended.get() - before) as usize;
            let count = waiting.len().saturating_sub(younger);
            let older: Vec<Part> = waiting.drain(..count).collect();
            is_more |= !waiting.is_empty();
            drop(waiting);
            older.iter().for_each(|part| part.ticket.end(&failed));
        }
        is_more
    }

    fn next_batch(self: &Rc<Log>, class: u8) -> Option<Batch> {
        let stream = &self.streams[class as usize];
        // What has failed of the map is written over: see `failed`.
        let batches = if class == self.page_class() { 1 } else { self.batches(BATCHES) };
        if stream.under_way.get() >= batches || stream.waiting.borrow().is_empty() {
            return None;
        }
        if class != self.page_class() && self.gathers(class) && !self.next_fit(stream).is_whole {
            return None;
        }
        let Some(number) = self.segment_for(class) else {
            self.drop_copies(class);
            return None;
        };
        let slots = self.next_fit(stream).slots;
        let mut segments = self.segments.borrow_mut();
        let segment = segments.get_mut(number);
        let at = segment.end;
        let (parts, entries) = take(&mut stream.waiting.borrow_mut(), at, slots);
        let slots = self.padded(at, 1 + entries.iter().map(Entry::slots).sum::<u32>());
        let serial = self.serial.replace(self.serial.get() + 1);
        segment.under_way.push(at);
        segment.end += slots;
        segment.last_serial = serial;
        self.under_way.borrow_mut().insert(serial);
        stream.under_way.set(stream.under_way.get() + 1);
        let head = Head {
            segment: segment.sequence,
            serial,
            checkpoint: self.saved.get().sequence,
            class,
            at,
            slots,
            durable: segment.durable,
            entries,
        };
        Some(Batch { class, segment: number, head, parts })
    }

    /// A copy in a class of users' (`tidy.rs`) does not wait for space: it would keep its source from being freed, and
    /// is not needed.
    fn drop_copies(&self, class: u8) {
        if class < self.classes.borrow().first_of_copies() {
            self.streams[class as usize].waiting.borrow_mut().retain(|part| {
                let is_copied = part.what == What::Copied;
                if is_copied {
                    part.ticket.end(&Ok(()));
                }
                !is_copied
            });
        }
    }

    /// The next batch of what waits: behind the last one, or in another segment.
    fn next_fit(&self, stream: &Stream) -> Fit {
        let all = self.shape.segment_slots;
        let end = stream.open.get().map(|number| self.segments.borrow().get(number).end);
        let at = end.filter(|end| end + 2 <= all).unwrap_or(0);
        fit(&stream.waiting.borrow(), at, (all - at).min(BATCH_SLOTS), self.stripe)
    }

    /// The segment that the next batch of a class goes to, which has space for one block at least.
    fn segment_for(self: &Rc<Log>, class: u8) -> Option<u32> {
        let stream = &self.streams[class as usize];
        if let Some(number) = stream.open.get() {
            let mut segments = self.segments.borrow_mut();
            if segments.get(number).end + 2 <= self.shape.segment_slots {
                return Some(number);
            }
            stream.open.set(None);
            segments.close(number);
        }
        self.make_space_soon();
        if !self.may_open(class) {
            // One that failed is not made again by itself; nor does collection free what is empty while it waits.
            self.checkpoint_if_due();
            return None;
        }
        let number = self.segments.borrow_mut().open(class, self.clock.get())?;
        stream.open.set(Some(number));
        Some(number)
    }

    /// True if a class may have a free segment: those of the reserve are for copies, and the last for the map, so that
    /// space can always be gained; and recovery looks at no more than a window of them.
    fn may_open(&self, class: u8) -> bool {
        let (free, copies) = (self.segments.borrow().free(), self.classes.borrow().first_of_copies());
        let is_in_window = self.opened_since_checkpoint() + self.reserve.copy < self.window();
        match class {
            class if class == self.page_class() => free > 0,
            class if class >= copies => free > self.reserve.copy && is_in_window,
            _ => free > self.reserve.user && is_in_window,
        }
    }

    async fn write_batch(self: &Rc<Log>, mut batch: Batch) {
        let (stream, at) = (&self.streams[batch.class as usize], batch.head.at);
        // Guests may change their memory at any time: what is summed is what is written.
        let mut bytes = self.env.pool().fresh(batch.head.slots as usize * SLOT);
        for (part, entry) in batch.parts.iter().zip(&mut batch.head.entries) {
            let from = (entry.slot.max(at) - at) as usize * SLOT;
            let data = &mut bytes[from..from + part.data.len()];
            part.data.read(0, data);
            entry.checksum = checksum(data);
        }
        batch.head.encode_into(&mut bytes[..SLOT], self.shape.key);
        // The memory has been others' before.
        let ends = batch.head.entries.iter().map(|entry| entry.slot + entry.slots());
        let end = ends.fold(at + 1, u32::max) - at;
        bytes[end as usize * SLOT..].fill(0);
        let is_durable = batch.parts.iter().any(|part| part.durability == Durability::Fua);
        let durability = match is_durable && !flawed("acknowledged before it is in the log") {
            true => Durability::Fua,
            false => Durability::Cached,
        };
        self.counters.batch(batch.class, &batch.head, &batch.parts);
        let result = self.put_batch(batch.segment, at, Buf::from(bytes), durability).await;
        self.segments.borrow_mut().get_mut(batch.segment).under_way.retain(|begin| *begin != at);
        match &result {
            Ok(()) => self.commit(&batch),
            Err(_) => self.failed(&batch),
        }
        let parts = std::mem::take(&mut batch.parts);
        let end = || parts.iter().for_each(|part| part.ticket.end(&result));
        match &result {
            Ok(()) => end(),
            Err(_) => self.zone_failed(batch.segment).await,
        }
        self.under_way.borrow_mut().remove(&batch.head.serial);
        stream.under_way.set(stream.under_way.get() - 1);
        self.moved.notify();
        self.pump(batch.class);
        match &result {
            Ok(()) => self.checkpoint_if_due(),
            Err(_) => {
                self.forget_failed(batch.class).await;
                end();
            }
        }
    }

    /// Makes the checkpoint after which nobody finds a batch that failed: what is read after the error must not be
    /// followed, after a crash, by what the batch has. If that fails as well, the next flush makes it. A checkpoint
    /// whose own pages failed is not made again by itself.
    async fn forget_failed(self: &Rc<Log>, class: u8) {
        if class != self.page_class() && !flawed("a failed batch is found again") {
            let _ = self.checkpoint().await;
        }
    }

    /// What a batch holds counts.
    fn commit(&self, batch: &Batch) {
        let base = self.shape.start(batch.segment);
        for entry in &batch.head.entries {
            match entry.what {
                What::Dropped => self.unmap(entry.blocks()),
                What::Homed => (0..entry.count).for_each(|i| self.let_go(entry, i)),
                What::Written | What::Copied => (0..entry.count).for_each(|i| self.map_to(entry, i, base)),
            }
        }
    }

    /// Block `i` of an entry is where the entry says, in the segment that begins at `base`.
    fn map_to(&self, entry: &Entry, i: u32, base: u32) {
        let (block, slot) = (entry.block + i, base + entry.slot + i);
        let mut map = self.map.borrow_mut();
        let mut time = self.clock.get();
        if entry.what == What::Copied {
            let from = entry.from + i;
            if map.get(block) != Some(from) && !flawed("copies count whatever is there") {
                return;
            }
            time = self.segments.borrow().get(self.shape.segment_of(from)).time;
        }
        let before = match map.is_page(block) && entry.what == What::Written {
            true => map.place(block - self.shape.blocks, Page { slot, checksum: entry.checksum }),
            false => map.set(block, slot),
        };
        let mut segments = self.segments.borrow_mut();
        if let Some(before) = before {
            let segment = self.shape.segment_of(before);
            segments.left(segment, before - self.shape.start(segment));
        }
        let segment = self.shape.segment_of(slot);
        segments.came(segment, slot - self.shape.start(segment), block, time);
    }

    /// Block `i` of an entry is at home, if it still was where the entry says.
    fn let_go(&self, entry: &Entry, i: u32) {
        let block = entry.block + i;
        if self.map.borrow().get(block) == Some(entry.from + i) || flawed("homes count whatever is there") {
            self.unmap(block..block + 1);
        }
    }

    fn unmap(&self, mut blocks: Range<u32>) {
        while let Some((block, slot)) = self.map.borrow_mut().unmap_next(blocks.clone()) {
            let segment = self.shape.segment_of(slot);
            self.segments.borrow_mut().left(segment, slot - self.shape.start(segment));
            blocks.start = block + 1;
        }
    }

    /// A batch may be there or not. It is older than the next checkpoint: nobody finds it after that.
    fn failed(&self, batch: &Batch) {
        if batch.class == self.page_class() {
            // Recovery does not look for it at all. The next one takes its place, so that however many fail, there is
            // space for the map.
            self.segments.borrow_mut().get_mut(batch.segment).end = batch.head.at;
            return;
        }
        self.home.failed.set(self.home.failed.get().max(batch.head.serial + 1));
        let stream = &self.streams[batch.class as usize];
        if stream.open.get() == Some(batch.segment) {
            stream.open.set(None);
        }
        let mut segments = self.segments.borrow_mut();
        segments.close(batch.segment);
        let segment = segments.get_mut(batch.segment);
        segment.failed = Some(segment.failed.map_or(batch.head.at, |first| first.min(batch.head.at)));
    }

    /// Makes durable what users read from now on: a batch that failed is not found any more.
    pub async fn flush_for_user(self: &Rc<Log>) -> Result<()> {
        match self.may_find_failed() {
            true => self.checkpoint().await,
            false => self.flush().await,
        }
    }

    /// Makes durable what has completed.
    pub async fn flush(&self) -> Result<()> {
        let open = self.streams.iter().filter_map(|stream| stream.open.get());
        let written: Vec<(u32, u64, u32)> = {
            let segments = self.segments.borrow();
            open.map(|number| {
                let segment = segments.get(number);
                (number, segment.sequence, segment.written())
            })
            .collect()
        };
        self.child.submit(Io::flush()).await?;
        let mut segments = self.segments.borrow_mut();
        for (number, sequence, written) in written {
            let segment = segments.get_mut(number);
            if segment.sequence == sequence && segment.state == State::Open {
                segment.durable = segment.durable.max(written);
            }
        }
        Ok(())
    }

    /// The next request finds everything that it changes in the map; nothing goes on in the background.
    pub async fn close(self: &Rc<Log>) -> Result<()> {
        self.is_closed.set(true);
        self.fail_waiting(&Error::offline("the device is being closed"), &self.appended());
        self.jobs.borrow().iter().for_each(|job| job.cancel());
        self.moved.notify();
        self.tasks.ended().await;
        // When everything is at home, the device below may be in use already, with all of its bytes.
        if self.child.geometry().read_only || self.home.is_left.get() {
            return Ok(());
        }
        let saved = self.checkpoint().await;
        self.tasks.ended().await;
        saved
    }

    /// Fails unless the map and the segments agree.
    #[cfg(test)]
    pub fn check(&self) -> std::result::Result<(), String> {
        let (map, segments) = (self.map.borrow(), self.segments.borrow());
        segments.check()?;
        let live: u32 = segments.iter().map(|(_, segment)| segment.live).sum();
        let mapped = map.mapped().count() as u32;
        if live != mapped {
            return Err(format!("{live} slots count, and {mapped} addresses are mapped"));
        }
        for (number, _) in segments.iter() {
            for (at, address) in segments.owners(number) {
                if map.get(address) != Some(self.shape.start(number) + at) {
                    return Err(format!("{address} is not in slot {at} of segment {number}"));
                }
            }
        }
        Ok(())
    }
}
