//! What a flash knows of a volume: its numbers, and what is not on its store yet.
//!
//! ```text
//!        checkpoint                      serial
//!      ──────┼──────────────────────────────┼────▶ serial numbers
//!      on the│ the staging queue: records   │
//!      store │ of writes, in serial order   │
//! ```
//!
//! The queue has no data (SYSTEMS C3): what it names is read from the flash when its turn comes. Of a block
//! that was written several times the latest is written to the store when the first of its records comes; the
//! others find it done.

use super::bad::BadBlocks;
use super::budget::Budget;
use super::format::VolumeState;
use super::quarantine::Quarantine;
use lamina_block::{Buf, Signal, Time};
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// A queue of so many writes is long.
pub const LONG: usize = 4096;

/// A store that takes longer for a batch is late: nobody else waits for it.
pub const LATE: Duration = Duration::from_millis(500);

/// The weight of a volume, unless another one is set.
const WEIGHT: u32 = 100;

/// The number of no volume.
const NOWHERE: u16 = 4095;

/// A write in the staging queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub serial: u64,
    pub block: u64,
    pub count: u32,
    /// It is on the flash, or has failed. What is being written holds up those after it.
    pub ended: bool,
    /// All of it is on the flash.
    pub whole: bool,
}

impl Record {
    /// The blocks.
    pub fn blocks(&self) -> Range<u64> {
        self.block..self.block + u64::from(self.count)
    }
}

/// Takes what is written to a volume elsewhere, too.
pub trait Tap {
    /// Whole blocks are being put on the flash; of a single one `absent` sectors are not in the data. Serial numbers
    /// rise.
    fn put(&self, serial: u64, block: u64, data: &Buf, absent: u8);
}

/// A volume of a flash.
pub struct Volume {
    /// What its entries have.
    pub number: u16,
    pub uuid: Cell<u128>,
    /// Blocks of the volume.
    pub size: Cell<u64>,
    pub serial: Cell<u64>,
    pub checkpoint: Cell<u64>,
    pub generation: Cell<u32>,
    pub valid: Cell<u32>,
    /// Blocks of it on the flash, and how many of them are not on the store.
    pub blocks: Cell<u64>,
    pub dirty: Cell<u64>,
    /// Its part of the flash, in thousandths; `None`: what the others leave, in equal parts.
    pub share: Cell<Option<u32>>,
    /// How much of what shares leave it has beside others without a share.
    pub weight: Cell<u32>,
    /// What its copies may write to the flash.
    pub budget: RefCell<Budget>,
    /// Blocks that stay as long as there is space for anything else.
    pub pins: RefCell<Vec<Range<u64>>>,
    /// Dirty blocks stay until their space is needed.
    pub destages_late: Cell<bool>,
    /// Writes that are on their way to the flash, and whether others wait.
    pub putting: Cell<usize>,
    pub is_held: Cell<bool>,
    /// Blocks that are about to be written.
    pub coming: Cell<u64>,
    /// Since when a batch is on its way to the store, or fails again and again.
    pub batch_since: Cell<Option<Time>>,
    /// A layer has it open.
    pub is_open: Cell<bool>,
    pub queue: RefCell<VecDeque<Record>>,
    /// What does not get to the store while the rest does.
    pub bad: BadBlocks,
    /// What stays here when the store has it.
    pub quarantine: Quarantine,
    /// Another host has the volume, and numbers what is put here.
    pub follows: Cell<bool>,
    /// Where else it is written.
    pub tap: RefCell<Option<Rc<dyn Tap>>>,
    /// The queue, or what it is waiting for, has moved.
    pub moved: Signal,
    /// The store should be brought up to date now: the queue is long, or somebody waits.
    pub hurry: Signal,
}

impl Volume {
    /// One that no flash has.
    pub fn nowhere(uuid: u128, size: u64) -> Volume {
        Volume::new(NOWHERE, VolumeState { uuid, size, ..VolumeState::default() })
    }

    /// True if a flash has it.
    pub fn is_somewhere(&self) -> bool {
        self.number != NOWHERE
    }

    pub fn new(number: u16, state: VolumeState) -> Volume {
        Volume {
            number,
            uuid: Cell::new(state.uuid),
            size: Cell::new(state.size),
            serial: Cell::new(state.serial.max(state.checkpoint)),
            checkpoint: Cell::new(state.checkpoint),
            generation: Cell::new(state.generation),
            valid: Cell::new(state.valid),
            blocks: Cell::new(0),
            dirty: Cell::new(0),
            share: Cell::new(None),
            weight: Cell::new(WEIGHT),
            budget: RefCell::default(),
            pins: RefCell::default(),
            destages_late: Cell::new(false),
            putting: Cell::new(0),
            is_held: Cell::new(false),
            coming: Cell::new(0),
            batch_since: Cell::new(None),
            is_open: Cell::new(false),
            queue: RefCell::default(),
            bad: BadBlocks::default(),
            quarantine: Quarantine::default(),
            follows: Cell::new(false),
            tap: RefCell::default(),
            moved: Signal::new(),
            hurry: Signal::new(),
        }
    }

    /// True if a block is to stay.
    pub fn is_pinned(&self, block: u64) -> bool {
        self.pins.borrow().iter().any(|pin| pin.contains(&block))
    }

    pub fn state(&self) -> VolumeState {
        VolumeState {
            uuid: self.uuid.get(),
            checkpoint: self.checkpoint.get(),
            serial: self.serial.get(),
            size: self.size.get(),
            generation: self.generation.get(),
            valid: self.valid.get(),
        }
    }

    /// True if nobody can say when its store will have what is dirty.
    pub fn is_late(&self, now: Time) -> bool {
        let is_slow = || self.batch_since.get().is_some_and(|since| now.since(since) >= LATE);
        !self.is_open.get() || self.follows.get() || self.keeps_back() || is_slow()
    }

    /// True if something may stay here when the store has been given all there is.
    pub fn keeps_back(&self) -> bool {
        !self.bad.is_empty() || !self.quarantine.is_empty()
    }

    /// True if a block stays here when the store has been given the rest of its write.
    pub fn keeps(&self, block: u64) -> bool {
        self.bad.has(block) || self.quarantine.has(block)
    }

    /// The serial number of another change.
    pub fn next_serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    /// A change has come to which another host has given this number.
    pub fn has_come(&self, serial: u64) -> u64 {
        self.serial.set(self.serial.get().max(serial));
        serial
    }

    /// A write of these blocks begins.
    pub fn stage(&self, serial: u64, block: u64, count: u32) {
        let mut queue = self.queue.borrow_mut();
        // Those of another host may begin in another order than it has numbered them.
        let is_last = queue.back().is_none_or(|last| last.serial < serial);
        let at = if is_last { queue.len() } else { queue.partition_point(|record| record.serial < serial) };
        queue.insert(at, Record { serial, block, count, ended: false, whole: false });
    }

    /// The write with this serial number has ended; `whole` if all of it is on the flash.
    pub fn staged(&self, serial: u64, whole: bool) {
        let mut queue = self.queue.borrow_mut();
        // Few writes are under way, and they are the last.
        if let Some(record) = queue.iter_mut().rev().find(|record| record.serial == serial) {
            (record.ended, record.whole) = (true, whole);
        }
        let is_long = queue.len() == LONG;
        drop(queue);
        self.moved.notify();
        if is_long {
            self.hurry.notify();
        }
    }

    /// True if there are many more records than blocks that are not on the store.
    pub fn is_untidy(&self) -> bool {
        self.queue.borrow().len() as u64 > (2 * self.dirty.get()).max(LONG as u64)
    }

    /// Drops records all of whose blocks have been written again since, or are on the store: of a block the
    /// newest is enough, as the store gets what the flash has then. The oldest record stays, so that its age
    /// is known.
    ///
    /// Before the store is said to have what such a record was of, the flash is flushed, and has the newer
    /// version durably.
    pub fn tidy(&self, is_dirty: impl Fn(u64) -> bool) {
        let mut queue = self.queue.borrow_mut();
        let (mut newer, mut kept) = (HashSet::new(), VecDeque::with_capacity(LONG));
        let oldest = queue.pop_front();
        while let Some(record) = queue.pop_back() {
            let blocks = || record.blocks().filter(|block| is_dirty(*block));
            if !record.ended || blocks().any(|block| !newer.contains(&block)) {
                kept.push_front(record);
            }
            if record.whole {
                newer.extend(blocks());
            }
        }
        oldest.into_iter().for_each(|oldest| kept.push_front(oldest));
        *queue = kept;
    }
}
