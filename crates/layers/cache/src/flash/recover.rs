//! Opening a flash: the index is made anew from what the segments say.
//!
//! ```text
//!      for each segment: its first head, and the first slot of its summary
//!        summary of the same number ──▶ its entries count, all of them durable
//!        no such summary            ──▶ it is read from end to end; what is whole counts (`heads`)
//!      of several versions of a block the one with the highest serial number counts
//! ```
//!
//! What was found by reading a segment is made durable and gets a summary before anything else happens, so
//! that the next time the same is found: a block never comes back that was not there. What was not found may
//! still be there, in segments whose first batch is lost: so no segment ever gets a number that one may have
//! had before.

use super::Cache;
use super::format::{Entry, Head, SEGMENTS_AT, SLOT, STATE_SLOTS, STATES, State, Summary, Super, What};
use super::index::Word;
use super::volume::{Record, Volume};
use futures_util::future::try_join;
use futures_util::{StreamExt, stream};
use lamina_block::{Env, Error, ErrorKind, Io, Node, Result};
use lamina_kit::flaw::flawed;
use std::rc::Rc;

/// Segments that are looked at together.
const TOGETHER: usize = 32;

/// What was found in a segment.
pub(super) struct Found {
    pub number: u32,
    pub sequence: u64,
    pub log: u8,
    pub entries: Vec<Entry>,
    /// It had no summary.
    pub is_unfinished: bool,
    /// Slots up to here have been given to batches.
    pub end: u32,
}

impl Cache {
    /// Opens the cache on `child`.
    pub async fn open(name: &str, env: &Rc<dyn Env>, child: Rc<Node>) -> Result<Rc<Cache>> {
        let size = child.geometry().size;
        if size < SLOT as u64 || child.geometry().block as usize > SLOT {
            return Err(Error::new(ErrorKind::Corrupt, "there is no cache on it").on(child.name()));
        }
        let first = env.pool().take(SLOT);
        child.submit(Io::read(0, first.clone())).await?;
        let shape = Super::decode(&first.to_vec(), size).map_err(|e| {
            Error::new(e.kind(), format!("{}: a cache is made with `lamina create`", e.message()))
                .on(child.name())
        })?;
        let cache = Cache::new(name, env, child, shape);
        let mut states = Vec::new();
        for slot in STATES {
            let (bytes, unread) = cache.read_what_can_be(slot..slot + STATE_SLOTS).await?;
            // Where it ends in zeroes, as it mostly does, a part is enough to know that.
            let state = State::decode(&bytes, shape.key);
            if state.is_none() && !unread.is_empty() {
                let message = "one copy of the cache's state cannot be read, and may be the newer one";
                return Err(Error::media(message).on(cache.child.name()));
            }
            states.extend(state);
        }
        let Some(state) = states.into_iter().max_by_key(|state| state.sequence) else {
            return Err(Error::new(ErrorKind::Corrupt, "neither copy of the cache's state can be read")
                .on(cache.child.name()));
        };
        cache.saving.sequence.set(state.sequence);
        for (number, volume) in state.volumes.iter().enumerate() {
            cache.generations.set(cache.generations.get().max(volume.generation));
            let volume = (volume.uuid != 0).then(|| Rc::new(Volume::new(number as u16, *volume)));
            cache.volumes.borrow_mut().push(volume);
        }
        let looks =
            stream::iter(0..shape.segments).map(|number| cache.look(number, &state)).buffered(TOGETHER);
        let found = looks.collect::<Vec<_>>().await.into_iter().collect::<Result<Vec<_>>>()?;
        cache.take_over(found.into_iter().flatten().collect(), &state).await?;
        Ok(cache)
    }

    /// Looks at a segment; `None` if it is free.
    async fn look(&self, number: u32, state: &State) -> Result<Option<Found>> {
        let slots = self.shape.segment(number);
        let summary_at = slots.start + self.shape.batch_slots();
        let counts = |log: u8, sequence: u64| sequence >= state.tails[log as usize];
        let slot = |slot: u32| self.read_what_can_be(slot..slot + 1);
        let ((first, unread), (summary, _)) = try_join(slot(slots.start), slot(summary_at)).await?;
        let first = Head::decode(&first, &self.shape).filter(|head| head.at == 0);
        let peeked = Summary::peek(&summary, &self.shape);
        if let Some((sequence, len)) = peeked
            && first.as_ref().is_none_or(|head| head.segment <= sequence)
        {
            let (bytes, _) = self.read_what_can_be(summary_at..summary_at + len).await?;
            if let Some(summary) = Summary::decode(&bytes, &self.shape) {
                let found = Found {
                    number,
                    sequence,
                    log: summary.log,
                    entries: summary.entries,
                    is_unfinished: false,
                    end: self.shape.batch_slots(),
                };
                // It counts whatever its first head says: no segment that does is written again.
                if counts(found.log, sequence) || unread.is_empty() {
                    return Ok(counts(found.log, sequence).then_some(found));
                }
            }
        }
        match first.filter(|head| counts(head.log, head.segment)) {
            Some(head) => self.read_through(number, &head).await.map(Some),
            None if !unread.is_empty() => Err(self.unknown(number, 0)),
            None => Ok(None),
        }
    }

    /// What was found is what there is.
    async fn take_over(self: &Rc<Cache>, mut found: Vec<Found>, state: &State) -> Result<()> {
        found.sort_by_key(|found| found.sequence);
        {
            let mut segments = self.segments.borrow_mut();
            segments.next = found.last().map_or(0, |last| last.sequence + 1).max(state.next_segment);
            for found in &mut found {
                self.log_of[found.number as usize].set(found.log);
                segments.logs[found.log as usize].push_back(found.number);
                let segment = segments.get(found.number);
                segment.sequence = found.sequence;
                segment.end = found.end;
                segment.durable = found.end;
                segment.given = found.entries.len();
                segment.stays = found.entries.iter().any(|entry| entry.what == What::Dropped);
                segment.entries = found.is_unfinished.then(|| found.entries.clone());
            }
            let used: Vec<u32> = found.iter().map(|found| found.number).collect();
            let mut is_used = vec![false; self.shape.segments as usize];
            used.iter().for_each(|number| is_used[*number as usize] = true);
            segments.free.retain(|number| !is_used[*number as usize]);
        }
        self.fill_index(&found)?;
        if self.child.geometry().read_only {
            return Ok(());
        }
        for found in found.iter().filter(|found| found.is_unfinished) {
            self.finish(found.number).await?;
        }
        self.renumber().await;
        Ok(())
    }

    /// Goes on with numbers that no segment can have had. Between two states there are no more new segments
    /// than there are segments, because none is used again before a state has said that it is free. Durable
    /// before anything is put.
    async fn renumber(self: &Rc<Cache>) {
        self.segments.borrow_mut().next += u64::from(self.shape.segments);
        if let Err(e) = self.save().await {
            tracing::warn!(flash = %self.name, error = %e, "it can only be read for now");
            self.break_down(&e);
        }
    }

    /// Fills the index and the staging queues.
    fn fill_index(&self, found: &[Found]) -> Result<()> {
        // Of each slot in use: the serial number, which the index has no space for.
        let mut serials = vec![0u64; self.shape.slots() as usize];
        for found in found {
            let base = self.shape.segment(found.number).start;
            for (entry, volume) in self.valid(found).filter(|(entry, _)| entry.what != What::Dropped) {
                let is_dirty = matches!(entry.what, What::Written | What::Lost)
                    && entry.generation >= volume.generation.get()
                    && entry.serial > volume.checkpoint.get();
                let absent = if flawed("absent sectors are forgotten") { 0 } else { entry.absent };
                for (i, block) in entry.blocks().enumerate() {
                    let slot = base + entry.slot + i as u32;
                    let mut index = self.index.borrow_mut();
                    if index.word(slot).is_used() {
                        return Err(self.damaged(format!("slot {slot} has two blocks")));
                    }
                    serials[slot as usize] = entry.serial;
                    let before =
                        index.put(slot, Word::new(entry.volume, block, is_dirty).with_absent(absent));
                    let Some((known, word)) = before else { continue };
                    let (here, there) = (found.log, self.log_of(known));
                    // Of a block and its copy in main, the copy stays longer.
                    let is_newer = (entry.serial, here) >= (serials[known as usize], there);
                    if !is_newer {
                        index.put(known, word);
                    }
                    if here != there {
                        self.goes_first(if is_newer { known } else { slot });
                    }
                }
            }
        }
        for found in found {
            for (entry, _) in self.valid(found).filter(|(entry, _)| entry.what == What::Dropped) {
                self.forget_older(found.log, entry, &serials);
            }
        }
        for found in found {
            let base = self.shape.segment(found.number).start;
            let lost = found.entries.iter().filter(|entry| entry.what == What::Lost);
            let slots = lost.flat_map(|entry| base + entry.slot..base + entry.slot + entry.count);
            let index = self.index.borrow();
            self.unreadable.borrow_mut().extend(slots.filter(|slot| index.word(*slot).is_used()));
        }
        self.count(&serials);
        Ok(())
    }

    pub(super) fn damaged(&self, what: String) -> Error {
        Error::new(ErrorKind::Corrupt, format!("the cache is damaged: {what}")).on(self.child.name())
    }

    /// The entries of a segment that count, with their volumes.
    fn valid<'a>(&self, found: &'a Found) -> impl Iterator<Item = (&'a Entry, Rc<Volume>)> {
        let volumes = self.volumes.borrow().clone();
        found.entries.iter().filter_map(move |entry| {
            // One that was not kept in time is not given again either.
            self.generations.set(self.generations.get().max(entry.generation));
            let volume = volumes.get(usize::from(entry.volume)).cloned().flatten()?;
            volume.serial.set(volume.serial.get().max(entry.serial));
            // A later one than the volume's was begun, and could not be kept before the power failed.
            let is_valid = entry.generation >= volume.valid.get() || flawed("stale generation");
            is_valid.then_some((entry, volume))
        })
    }

    /// Blocks were dropped by an entry in `log`.
    fn forget_older(&self, log: u8, entry: &Entry, serials: &[u64]) {
        let forget = |slot: u32, block: u64| {
            if serials[slot as usize] < entry.serial {
                if self.log_of(slot) != log {
                    self.goes_first(slot);
                }
                self.index.borrow_mut().remove(entry.volume, block);
            }
        };
        if u64::from(entry.count) < serials.len() as u64 {
            for block in entry.blocks() {
                let slot = self.index.borrow().find(entry.volume, block);
                slot.into_iter().for_each(|slot| forget(slot, block));
            }
            return;
        }
        for slot in SEGMENTS_AT..self.shape.slots() {
            let word = self.index.borrow().word(slot);
            if word.is_used() && word.volume() == entry.volume && entry.blocks().contains(&word.block()) {
                forget(slot, word.block());
            }
        }
    }

    /// What is in `slot` is older than what another log has of the same block: its segment was about to be freed, and
    /// is, before any other.
    fn goes_first(&self, slot: u32) {
        let sequence = self.segments.borrow_mut().get(self.shape.segment_of(slot)).sequence;
        let first = &self.first[self.log_of(slot) as usize];
        first.set(first.get().max(sequence));
    }

    /// Counts what is in the index, and puts what is not on the stores into the staging queues.
    fn count(&self, serials: &[u64]) {
        let (index, volumes) = (self.index.borrow(), self.volumes.borrow());
        let mut dirty: Vec<(u16, u64, u64)> = Vec::new();
        for slot in SEGMENTS_AT..self.shape.slots() {
            let word = index.word(slot);
            let Some(volume) =
                volumes.get(usize::from(word.volume())).and_then(Option::as_ref).filter(|_| word.is_used())
            else {
                continue;
            };
            volume.blocks.set(volume.blocks.get() + 1);
            self.came(volume, slot, word);
            if word.is_dirty() {
                dirty.push((word.volume(), serials[slot as usize], word.block()));
            }
        }
        // In each segment they are in order already.
        dirty.sort();
        for (volume, serial, block) in dirty {
            let Some(volume) = &volumes[usize::from(volume)] else { continue };
            let mut queue = volume.queue.borrow_mut();
            match queue.back_mut() {
                Some(last) if last.serial == serial && last.blocks().end == block => last.count += 1,
                _ => queue.push_back(Record { serial, block, count: 1, ended: true, whole: true }),
            }
        }
    }
}
