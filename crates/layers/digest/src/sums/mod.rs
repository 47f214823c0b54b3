//! Sums: a digest of every block of a device, kept with it. What the layers `integrity` and `fingerprint` stand on.
//!
//! ```text
//!   write ─▶ lock its blocks ─▶ private copy, digests ─▶ intent on disk? ─▶ below ─▶ digests into the table ─▶ unlock
//!   later:   flush below ─▶ commit the table ─▶ clear the intent of regions in which nothing happened since
//! ```
//!
//! Invariant: **outside of regions that the intent on disk names, the digests on disk are those of the blocks on disk.**
//! So a flush has nothing to do but to be handed on, and digests are written when it suits. After a crash the regions of
//! the intent are *needs_resync*: a block there whose digest is another one is taken as it is, at once when it is read, or by
//! the job `sum`, which looks at all of them. So is a region in which a write failed half-way.
//!
//! The digest of a block of zeroes is written as zeroes: an entry is the digest, XOR that of zeroes. A new device is
//! zeroed, so its table is right without ever being written.
//!
//! The table is kept as at the level `shadow` whatever the hierarchy's level is: blocks are overwritten in their places, so
//! there is nothing that could go back to an earlier moment, and `lazy` would save nothing that is on any request's way.
//!
//! It deliberately does not know what digests are for. What is summed is the request's copy, never memory that others
//! can change.

mod begin;
mod change;
pub mod digest;
mod format;
mod look;
mod table;
mod tidy;

pub use begin::{Wanted, open};
pub use format::PAGE;

use digest::Digest;
use format::Head;
use lamina_block::{Buf, Env, Extent, ExtentState, Geometry, Job, Node, Result};
use lamina_kit::intent::{Area, Bits, Intent};
use lamina_kit::range_locks::{RangeLock, RangeLocks};
use lamina_kit::tasks::Tasks;
use lamina_metadata::Store;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;
use table::Table;

/// Places that are remembered.
const PLACES: usize = 16;

/// A device with the digests of its blocks.
pub struct Sums {
    me: Weak<Sums>,
    name: String,
    pub env: Rc<dyn Env>,
    pub child: Rc<Node>,
    pub store: Store,
    pub table: Table,
    head: Head,
    /// A block whose digest is another one is an error.
    strict: bool,
    /// The digest of a block of zeroes.
    zero: Vec<u8>,
    intent: Intent,
    /// How long a region is left alone before its intent goes.
    idle: Duration,
    area: Area,
    /// What is being changed: bytes of the device.
    locks: Rc<RangeLocks>,
    /// Regions in which a digest that differs says nothing.
    needs_resync: RefCell<Bits>,
    /// How often something came into doubt.
    doubts: Cell<u64>,
    /// Nobody wants the job `sum` to go on.
    sum_cancelled: Cell<bool>,
    tidying: Cell<bool>,
    jobs: RefCell<Vec<Rc<Job>>>,
    /// What goes on in the background.
    tasks: Rc<Tasks>,
    closed: Cell<bool>,
    scratch: RefCell<Vec<u8>>,
    tally: Tally,
}

/// What was found.
#[derive(Default)]
struct Tally {
    /// Blocks that were not what they should be.
    corrupt: Cell<u64>,
    /// The last of them.
    places: RefCell<VecDeque<u64>>,
    /// How often another copy was right, and was written where one was not.
    healed: Cell<u64>,
    /// The last of these blocks.
    healed_at: RefCell<VecDeque<u64>>,
    /// Blocks in doubt that were taken as they are.
    anew: Cell<u64>,
    /// How often everything was looked at.
    passes: Cell<u64>,
    /// Bytes that a job could not read.
    unreadable: Cell<u64>,
}

/// Remembers `at` among the last places; false if it is there already.
fn remember(places: &RefCell<VecDeque<u64>>, at: u64) -> bool {
    let mut places = places.borrow_mut();
    if places.contains(&at) {
        return false;
    }
    places.push_back(at);
    if places.len() > PLACES {
        places.pop_front();
    }
    true
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

/// Why others cannot change what is on `child`.
pub fn refusal(child: &Node) -> String {
    format!(
        "it has a digest of every block of {}, and would take other bytes for damage: take it away first, or have what \
         changes them above it",
        child.name()
    )
}

impl Sums {
    /// Bytes of a block.
    pub fn block(&self) -> u64 {
        self.head.block()
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.head.blocks()
    }

    /// How digests are made.
    pub fn digest(&self) -> Digest {
        self.head.digest
    }

    /// Nothing may change on disk.
    pub fn is_read_only(&self) -> bool {
        self.child.geometry().read_only || self.area.0.geometry().read_only
    }

    /// Its shape.
    pub fn geometry(&self) -> Geometry {
        let below = self.child.geometry();
        Geometry {
            optimal: below.optimal.max(self.block() as u32),
            read_only: self.is_read_only(),
            // What is discarded has to read as zeroes.
            discard: below.discard && below.zero,
            ..below.with_size(self.head.size)
        }
    }

    /// Where on the child the device's byte `at` lies.
    #[inline]
    pub fn below(&self, at: u64) -> u64 {
        self.head.data + at
    }

    /// The whole blocks that `at` touches.
    fn cover(&self, at: &Range<u64>) -> Range<u64> {
        let block = self.block();
        at.start / block * block..at.end.next_multiple_of(block)
    }

    /// The numbers of whole blocks.
    fn numbers(&self, at: &Range<u64>) -> Range<u64> {
        at.start >> self.head.shift..at.end >> self.head.shift
    }

    /// What the table should hold for whole blocks. Others have the core now and then.
    async fn entries(&self, bytes: &Buf) -> Vec<u8> {
        let (step, len) = (self.digest().at_once().max(self.block() as usize), bytes.len());
        let mut entries = Vec::with_capacity(len / self.block() as usize * self.digest().len());
        for from in (0..len).step_by(step) {
            if from > 0 {
                self.env.sleep(Duration::ZERO).await;
            }
            self.add_entries(bytes, from..len.min(from + step), &mut entries);
        }
        entries
    }

    fn add_entries(&self, bytes: &Buf, part: Range<usize>, entries: &mut Vec<u8>) {
        let scratch = &mut *self.scratch.borrow_mut();
        for at in part.step_by(scratch.len()) {
            bytes.read(at, scratch);
            let start = entries.len();
            self.digest().add(scratch, entries);
            entries[start..].iter_mut().zip(&self.zero).for_each(|(byte, zero)| *byte ^= zero);
        }
    }

    /// The digest that an entry stands for, and the other way around.
    pub fn reveal(&self, entry: &[u8]) -> Vec<u8> {
        entry.iter().zip(&self.zero).map(|(byte, zero)| byte ^ zero).collect()
    }

    /// What the bytes of `at` hold. What reads as zeroes below, and should not, is data: reading it says so.
    pub async fn runs(&self, at: Range<u64>) -> Result<Vec<Extent>> {
        let below = self.child.extents(self.below(at.start)..self.below(at.end)).await?;
        let (mut runs, mut from) = (Vec::new(), at.start);
        for run in below {
            let end = from + run.len;
            while from < end && run.state != ExtentState::Data && self.strict {
                let number = from >> self.head.shift;
                let last = self.numbers(&self.cover(&(from..end))).end;
                let page = last.min(number + self.table.page() - number % self.table.page());
                let entries = self.table.get(number..page).await?;
                for (i, entry) in (number..).zip(entries.chunks_exact(self.digest().len())) {
                    let to = ((i + 1) << self.head.shift).min(end);
                    let zero = entry.iter().all(|byte| *byte == 0);
                    Extent::push(&mut runs, to - from, if zero { run.state } else { ExtentState::Data });
                    from = to;
                }
            }
            Extent::push(&mut runs, end - from, run.state);
            from = end;
        }
        Ok(runs)
    }

    /// Locks blocks for a change of them.
    async fn lock(&self, at: &Range<u64>) -> Lock<'_> {
        let range = self.locks.lock(at).await;
        Lock { sums: self, at: at.clone(), unsure: Cell::new(false), _range: range }
    }

    pub fn is_doubted(&self, at: &Range<u64>) -> bool {
        self.needs_resync.borrow().touches(at)
    }

    /// From now on a digest that differs says nothing there. The intent names it already.
    fn doubt(&self, at: &Range<u64>) {
        self.needs_resync.borrow_mut().add(at);
        add(&self.doubts, 1);
        self.sum_cancelled.set(false);
        self.tidy_later();
    }

    /// Counts a block that is not what it should be.
    fn note(&self, at: u64) {
        add(&self.tally.corrupt, 1);
        if remember(&self.tally.places, at) {
            tracing::warn!(device = %self.name, offset = at, len = self.block(), "a block is not what was written");
        }
    }

    /// Counts a block that was not what it should be, and is everywhere now.
    fn note_healed(&self, at: u64) {
        add(&self.tally.healed, 1);
        if remember(&self.tally.healed_at, at) {
            tracing::warn!(device = %self.name, offset = at, len = self.block(), "a block was healed from another copy");
        }
    }

    /// Bytes of whole blocks that the child has become larger by, and for which the table has no room.
    fn unused(&self) -> u64 {
        let end = self.head.data + self.head.size;
        self.child.geometry().size.saturating_sub(end) / self.block() * self.block()
    }

    /// What both layers show.
    pub fn info(&self) -> Value {
        let places = |of: &RefCell<VecDeque<u64>>| of.borrow().iter().copied().collect::<Vec<_>>();
        let mut info = json!({
            "digest": self.digest().name(),
            "block": self.block(),
            "blocks": self.blocks(),
            "corrupt": self.tally.corrupt.get(),
            "corrupt_at": places(&self.tally.places),
            "summed_anew": self.tally.anew.get(),
            "needs_resync_bytes": self.needs_resync.borrow().bytes(),
            "passes": self.tally.passes.get(),
            "unreadable_bytes": self.tally.unreadable.get(),
            "unused_bytes": self.unused(),
            "table_bytes": self.store.region_len(),
            "memory": self.store.memory(),
            "alerts": { "corrupt": self.tally.corrupt.get() > self.tally.healed.get() },
        });
        if self.strict {
            info["healed"] = self.tally.healed.get().into();
            info["healed_at"] = places(&self.tally.healed_at).into();
        }
        info
    }

    /// Work in the background.
    pub fn jobs(&self) -> Vec<Rc<Job>> {
        self.jobs.borrow().clone()
    }

    /// Bytes in doubt.
    pub fn needs_resync_bytes(&self) -> u64 {
        self.needs_resync.borrow().bytes()
    }
}

/// Blocks that nobody else changes until this is dropped.
struct Lock<'a> {
    sums: &'a Sums,
    at: Range<u64>,
    /// Their digests may be wrong: if that is so at the end, they are needs_resync.
    unsure: Cell<bool>,
    /// Given back last.
    _range: RangeLock,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if self.unsure.get() {
            self.sums.doubt(&self.at);
        }
    }
}

#[cfg(test)]
pub mod scene;
#[cfg(test)]
mod tests;
