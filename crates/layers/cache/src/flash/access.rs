//! Reading from the flash, and what the staging queue asks.

use super::Cache;
use super::beyond::NOTES;
use super::format::SLOT;
use super::index::Word;
use super::log::How;
use super::segments::SMALL;
use super::state::Pin;
use super::volume::{Record, Volume};
use lamina_block::{Buf, Durability, Healed, Io, Judge, Place, Result, Role};
use lamina_kit::flaw::flawed;
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;

/// So large a part of its share is much that is dirty, as a divisor: it can neither go nor be compacted, and
/// what is clean would have to make all the space.
const MUCH: u64 = 8;
/// Bytes of a sector: a block has or lacks each of its sectors.
const SECTOR: u64 = 512;

/// Blocks side by side that are on the flash side by side, or are all not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub blocks: Range<u64>,
    /// Where the first of them is.
    pub slot: Option<u32>,
    /// Of a single block: sectors that only the store has, a bit each.
    pub absent: u8,
}

/// A block that has to get to the store, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dirty {
    pub block: u64,
    pub slot: u32,
    /// Sectors of it that only the store has, a bit each.
    pub absent: u8,
}

/// While nothing of a volume is on its way to the flash.
pub struct Quiet<'a> {
    of: &'a Cache,
    volume: Rc<Volume>,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.volume.is_held.set(false);
        self.of.moved.notify();
    }
}

/// Slots that are copied nowhere.
struct Held {
    cache: Rc<Cache>,
    slots: Range<u32>,
}

impl Held {
    fn new(cache: &Rc<Cache>, slots: Range<u32>) -> Held {
        let held = Held { cache: Rc::clone(cache), slots };
        held.hold(true);
        held
    }

    fn hold(&self, on: bool) {
        let mut index = self.cache.index.borrow_mut();
        for slot in self.slots.clone() {
            // The volume may be forgotten meanwhile.
            if index.word(slot).is_used() {
                index.set_moving(slot, on);
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hold(false);
        self.cache.moved.notify();
    }
}

impl Cache {
    /// Where blocks are, in runs. Nothing is asked for by it.
    pub fn runs(&self, volume: &Volume, blocks: Range<u64>) -> Vec<Run> {
        let index = self.index.borrow();
        let mut runs: Vec<Run> = Vec::with_capacity(1);
        for block in blocks {
            let slot = index.find(volume.number, block);
            let absent = slot.map_or(0, |slot| index.word(slot).absent());
            if let Some(last) = runs.last_mut().filter(|last| (last.absent, absent) == (0, 0)) {
                let follows = match (last.slot, slot) {
                    (Some(first), Some(slot)) => {
                        u64::from(slot) == u64::from(first) + (block - last.blocks.start)
                            && self.shape.segment_of(first) == self.shape.segment_of(slot)
                    }
                    (None, None) => true,
                    (Some(_), None) | (None, Some(_)) => false,
                };
                if follows {
                    last.blocks.end += 1;
                    continue;
                }
            }
            runs.push(Run { blocks: block..block + 1, slot, absent });
        }
        runs
    }

    /// The place of byte `at` of a volume, if it is there.
    pub fn places(&self, volume: &Volume, at: u64) -> Vec<Place> {
        let (block, within) = (at / SLOT as u64, at % SLOT as u64);
        let index = self.index.borrow();
        let has = |slot: &u32| index.word(*slot).absent() >> (within / SECTOR) & 1 == 0;
        let slot = index.find(volume.number, block).filter(has);
        let address = |slot: u32| u64::from(slot) * SLOT as u64 + within;
        let place = |slot| Place { child: Rc::clone(&self.child), at: address(slot), role: Role::Cached };
        slot.map(place).into_iter().collect()
    }

    /// Keeps the segments of `dirty` from being used again.
    pub fn pin_all(self: &Rc<Cache>, dirty: &[Dirty]) -> Vec<Pin> {
        let mut numbers: Vec<_> = dirty.iter().map(|dirty| self.shape.segment_of(dirty.slot)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| self.pin(number)).collect()
    }

    /// The same for the segment of a run, if it is there.
    pub fn pin_run(self: &Rc<Cache>, run: &Run) -> Option<Pin> {
        run.slot.map(|slot| self.pin(self.shape.segment_of(slot)))
    }

    /// True if a crash may bring back any of `blocks`: it is there, or it is just being forgotten.
    pub fn may_return(&self, volume: &Volume, blocks: Range<u64>) -> bool {
        self.reclaiming.get() || self.has_any(volume, blocks)
    }

    /// True if any of `blocks` is there.
    pub fn has_any(&self, volume: &Volume, blocks: Range<u64>) -> bool {
        let index = self.index.borrow();
        blocks.into_iter().any(|block| index.find(volume.number, block).is_some())
    }

    /// True if any of `blocks` is there, and not on the store.
    pub fn is_dirty_at(&self, volume: &Volume, blocks: Range<u64>) -> bool {
        let index = self.index.borrow();
        blocks
            .into_iter()
            .any(|block| index.find(volume.number, block).is_some_and(|slot| index.word(slot).is_dirty()))
    }

    /// True if a segment has something that is not on its store.
    pub(super) fn is_dirty_segment(&self, number: u32) -> bool {
        self.segments.borrow().list[number as usize].dirty > 0
    }

    /// True if both slots are in one segment.
    pub fn is_same_segment(&self, a: u32, b: u32) -> bool {
        self.shape.segment_of(a) == self.shape.segment_of(b)
    }

    /// Segments that there are.
    pub fn segments(&self) -> u32 {
        self.shape.segments
    }

    /// Blocks of a volume that a segment has, but for notes.
    pub fn blocks_in(&self, number: u32, volume: &Volume) -> Vec<u64> {
        self.words_in(number, volume).into_iter().map(Word::block).collect()
    }

    /// What is known of the blocks of a volume that a segment has, but for notes, by slots.
    pub(super) fn words_in(&self, number: u32, volume: &Volume) -> Vec<Word> {
        let index = self.index.borrow();
        let words = self.shape.segment(number).map(|slot| index.word(slot));
        let of_volume = |word: &Word| word.is_used() && word.volume() == volume.number;
        words.filter(|word| of_volume(word) && !NOTES.contains(&word.block())).collect()
    }

    /// How many of these blocks of a volume are on the flash.
    pub fn present(&self, volume: &Volume, blocks: Range<u64>) -> u64 {
        let index = self.index.borrow();
        blocks.filter(|block| index.find(volume.number, *block).is_some()).count() as u64
    }

    /// True if it takes blocks of which sectors are absent.
    pub fn takes_parts(&self) -> bool {
        self.shape.has_parts()
    }

    /// What is known of a block that is there: `null` if it is not.
    pub fn standing(&self, volume: &Volume, block: u64) -> Value {
        let index = self.index.borrow();
        let Some(slot) = index.find(volume.number, block) else { return Value::Null };
        let word = index.word(slot);
        json!({
            "log": if self.log_of(slot) == SMALL { "small" } else { "main" },
            "asked": word.frequency(),
            "dirty": word.is_dirty(),
            "absent_sectors": word.absent().count_ones(),
        })
    }

    /// Nothing can be put on it.
    pub fn is_read_only(&self) -> bool {
        !self.health.borrow().is_missing() && self.child.geometry().read_only
    }

    /// Dirty blocks of a volume that are many.
    pub fn much_dirty(&self, volume: &Volume) -> u64 {
        match volume.destages_late.get() {
            true => self.dirty_share(volume) / 4 * 3,
            false => self.share(volume) / MUCH,
        }
    }

    /// True if a volume's store should get what is dirty without waiting for more.
    pub fn is_much_dirty(&self, volume: &Volume) -> bool {
        volume.dirty.get() > self.much_dirty(volume)
    }

    /// True if there is space for what was read, too.
    pub fn can_fill(&self) -> bool {
        if self.is_read_only() || self.closed.get() || self.check().is_err() {
            return false;
        }
        self.reclaim_soon();
        self.available_to_fill() > 0
    }

    /// For how many blocks that were read there is space: none while a write waits for it.
    fn available_to_fill(&self) -> u64 {
        self.space.borrow().available_to_fill(self.free_segments())
    }

    /// Puts what was read, as much of it as there still is space for without waiting: so many blocks.
    pub async fn fill(&self, volume: &Rc<Volume>, block: u64, data: &Buf) -> Result<u64> {
        let how = How { dirty: false, durability: Durability::Cached, absent: 0, serial: None };
        let blocks = self.available_to_fill().min((data.len() / SLOT) as u64);
        if blocks == 0 {
            return Ok(0);
        }
        let Some(space) = self.try_reserve(blocks) else { return Ok(0) };
        self.put(space, volume, block, &data.slice(0..blocks as usize * SLOT), how).await?;
        Ok(blocks)
    }

    /// Somebody asked for what these slots hold.
    pub fn touch(&self, slots: Range<u32>) {
        let mut index = self.index.borrow_mut();
        slots.for_each(|slot| index.touch(slot));
    }

    /// Reads bytes from slots of one segment, `at` counted from the start of `slot`. The segment is not used
    /// again before that has ended.
    pub fn read(
        self: &Rc<Cache>,
        slot: u32,
        at: Range<u64>,
        into: Buf,
    ) -> impl Future<Output = Result<()>> + use<> {
        let me = Rc::clone(self);
        async move {
            let _pin = me.pin(me.shape.segment_of(slot));
            me.is_there(slot..slot + at.end.div_ceil(SLOT as u64) as u32)?;
            let base = u64::from(slot) * SLOT as u64;
            me.read_bytes(base + at.start..base + at.end, into).await
        }
    }

    /// Another copy of bytes from slots of one segment, from below, as [`Cache::read`] counts them. The blocks of the
    /// slots, which are at rest ([`Cache::at_rest`]), are copied nowhere meanwhile: a copy could be of what is wrong
    /// here, and would be wrong for good.
    pub async fn heal(
        self: &Rc<Cache>,
        slot: u32,
        at: Range<u64>,
        is_right: Judge,
    ) -> Result<Option<Healed>> {
        let _pin = self.pin(self.shape.segment_of(slot));
        let base = u64::from(slot) * SLOT as u64;
        let place = base + at.start..base + at.end;
        if !(place.start | place.end).is_multiple_of(self.child.geometry().block.into()) {
            // The device has larger blocks than the volume.
            return Ok(None);
        }
        let slots = (place.start / SLOT as u64) as u32..place.end.div_ceil(SLOT as u64) as u32;
        let _held = (!flawed("copied while it is healed")).then(|| Held::new(self, slots));
        self.child.heal(place, is_right).await
    }

    /// Waits until none of these blocks is being copied to another place of the flash.
    pub async fn at_rest(&self, volume: &Volume, blocks: &Range<u64>) {
        self.moved.until(|| !self.is_moving(volume, blocks)).await;
    }

    async fn read_bytes(&self, at: Range<u64>, into: Buf) -> Result<()> {
        let block = u64::from(self.child.geometry().block);
        if at.start.is_multiple_of(block) && at.end.is_multiple_of(block) {
            return self.child.submit(Io::read(at.start, into)).await;
        }
        // The device has larger blocks than the volume.
        let whole = at.start / block * block..at.end.next_multiple_of(block);
        let buf = self.env.pool().take((whole.end - whole.start) as usize);
        self.child.submit(Io::read(whole.start, buf.clone())).await?;
        let from = (at.start - whole.start) as usize;
        into.copy_from(&buf.slice(from..from + into.len()));
        Ok(())
    }

    /// The oldest writes of a volume, `most` of them and `most` blocks at most: the blocks that have to get
    /// to the store, each once but for bad ones that are left alone, and the serial number that it is up to
    /// date with then. `None`: there are none, or the oldest is being written.
    pub fn batch(&self, volume: &Volume, most: usize) -> Option<(Vec<Dirty>, u64)> {
        let queue = volume.queue.borrow();
        let (mut dirty, mut upto): (Vec<Dirty>, Option<u64>) = (Vec::new(), None);
        // Parts of one write, found after a crash, have the same number: they go together.
        let is_done = |dirty: &Vec<Dirty>, upto: Option<u64>, record: &Record, n: usize| {
            upto != Some(record.serial) && (n >= most || dirty.len() >= most)
        };
        let (mut records, now) = (0, self.env.now());
        for record in queue.iter() {
            if !record.ended || is_done(&dirty, upto, record, records) {
                break;
            }
            upto = Some(record.serial);
            let before = dirty.len();
            self.add_dirty(volume, record, &mut dirty);
            let found = dirty.len() - before;
            if volume.keeps_back() {
                let rests = |dirty: &Dirty| {
                    let Dirty { block, slot, .. } = *dirty;
                    volume.bad.rests(block, slot, now) || volume.quarantine.rests(block, slot)
                };
                dirty.retain(|dirty| !rests(dirty));
            }
            // Those of which there are only bad blocks stay in the queue, and keep no others out.
            records += usize::from(found == 0 || dirty.len() > before);
        }
        upto.map(|upto| (self.batched(dirty), upto))
    }

    /// Nothing of the volume is on its way to the flash while what this gives lives: each write is there or
    /// has not begun. Who has space does not wait for anything but the device, so this ends.
    pub async fn quiet(&self, volume: &Rc<Volume>) -> Quiet<'_> {
        volume.is_held.set(true);
        let _hurry = self.hurry();
        let quiet = Quiet { of: self, volume: Rc::clone(volume) };
        self.moved.until(|| volume.putting.get() == 0).await;
        quiet
    }

    /// All that is not on the store, as [`Cache::batch`] gives a part of it.
    pub fn everything(&self, volume: &Volume) -> Option<(Vec<Dirty>, u64)> {
        let queue = volume.queue.borrow();
        let upto = queue.iter().take_while(|record| record.ended).last()?.serial;
        let mut dirty = Vec::new();
        queue.iter().for_each(|record| self.add_dirty(volume, record, &mut dirty));
        Some((self.batched(dirty), upto))
    }

    /// These go to the store, each once. Their versions are known by that wherever they are copied to meanwhile.
    pub(super) fn batched(&self, mut dirty: Vec<Dirty>) -> Vec<Dirty> {
        dirty.sort_unstable();
        dirty.dedup();
        let mut index = self.index.borrow_mut();
        dirty.iter().for_each(|dirty| index.batch(dirty.slot));
        dirty
    }

    /// The blocks of a write that are not on the store.
    fn add_dirty(&self, volume: &Volume, record: &Record, dirty: &mut Vec<Dirty>) {
        dirty.extend(self.dirty_of(volume, record.blocks()));
    }

    /// Those of `blocks` that are not on the store, and where they are.
    pub(super) fn dirty_of(
        &self,
        volume: &Volume,
        blocks: impl Iterator<Item = u64>,
    ) -> impl Iterator<Item = Dirty> {
        let index = self.index.borrow();
        blocks.filter_map(move |block| {
            let slot = index.find(volume.number, block).filter(|slot| index.word(*slot).is_dirty());
            slot.map(|slot| Dirty { block, slot, absent: index.word(slot).absent() })
        })
    }

    /// Keeps the staging queue as short as what is not on the store, also if that is written again and again.
    /// Nobody waits for a certain write to get to the store.
    pub fn tidy(&self, volume: &Volume) {
        if volume.is_untidy() {
            volume.tidy(|block| self.is_dirty_at(volume, block..block + 1));
        }
    }

    /// The store has what `batch` gave but for bad blocks, durably: so says the flash, durably, when this
    /// returns. What is said to be on the store ends before the oldest record with a block that is kept.
    pub async fn checkpoint(&self, volume: &Volume, upto: u64, dirty: &[Dirty]) -> Result<()> {
        let stays = |record: &Record| {
            volume.keeps_back()
                && record
                    .blocks()
                    .any(|block| volume.keeps(block) && self.is_dirty_at(volume, block..block + 1))
        };
        let oldest = match volume.keeps_back() {
            false => None,
            true => volume.queue.borrow().iter().find(|record| stays(record)).map(|record| record.serial),
        };
        let checkpoint = oldest.map_or(upto, |oldest| upto.min(oldest - 1));
        volume.checkpoint.set(volume.checkpoint.get().max(checkpoint));
        self.save().await?;
        self.checkpoints.set(self.checkpoints.get() + 1);
        self.wants_clean.set(false);
        {
            let mut index = self.index.borrow_mut();
            let mut segments = self.segments.borrow_mut();
            for Dirty { block, .. } in dirty {
                let Some(slot) = index.find(volume.number, *block) else { continue };
                if index.stored(slot) {
                    segments.cleaned(self.shape.segment_of(slot));
                    volume.dirty.set(volume.dirty.get() - 1);
                }
            }
        }
        let mut queue = volume.queue.borrow_mut();
        let mut stay = Vec::new();
        while queue.front().is_some_and(|record| record.serial <= upto) {
            stay.extend(queue.pop_front().filter(stays));
        }
        stay.into_iter().rev().for_each(|record| queue.push_front(record));
        drop(queue);
        volume.moved.notify();
        self.moved.notify();
        Ok(())
    }

    /// Makes nothing of the volume count any more that is on the flash. It is durable when this returns.
    pub async fn forget(&self, volume: &Volume) -> Result<()> {
        let generation = self.generations.get().max(volume.generation.get()) + 1;
        self.generations.set(generation);
        volume.generation.set(generation);
        volume.valid.set(generation);
        if !flawed("forgotten before the state") {
            self.save().await?;
        }
        self.let_go(volume);
        Ok(())
    }

    /// The volume has another UUID from now on, and nothing of it that is on the flash counts. Durable when
    /// this returns.
    pub async fn renew(&self, volume: &Volume, uuid: u128) -> Result<()> {
        volume.uuid.set(uuid);
        self.forget(volume).await
    }

    /// Nothing of the volume is found any more that its store has, for as long as this lives. No batch is under way.
    pub fn let_go_of_clean(&self, volume: &Volume) {
        self.unmap_all(volume, |word| !word.is_dirty());
    }

    fn unmap_all(&self, volume: &Volume, which: impl Fn(Word) -> bool) {
        for slot in super::format::SEGMENTS_AT..self.shape.slots() {
            let word = self.index.borrow().word(slot);
            if word.is_used() && word.volume() == volume.number && which(word) {
                self.unmap(volume, word.block());
            }
        }
    }

    /// Nothing of the volume is found any more, for as long as this lives.
    pub fn let_go(&self, volume: &Volume) {
        self.unmap_all(volume, |_| true);
        volume.queue.borrow_mut().clear();
        volume.moved.notify();
        self.moved.notify();
    }

    /// All that was written is on the store, and is never to be replayed. Durable when this returns.
    pub async fn settle(&self, volume: &Volume) -> Result<()> {
        let generation = self.generations.get().max(volume.generation.get()) + 1;
        self.generations.set(generation);
        volume.generation.set(generation);
        self.save().await
    }
}
