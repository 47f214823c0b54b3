//! Sums: a digest of every block of a device, kept with it. The layers `integrity` and `fingerprint` are
//! built on this.
//!
//! ```text
//!   write ─▶ lock its blocks ─▶ private copy, digests ─▶ intent on disk? ─▶ below ─▶ digests into the table ─▶ unlock
//!   later:   flush below ─▶ commit the table ─▶ clear the intent of regions without writes since
//! ```
//!
//! Invariant: **outside of regions that the intent on disk names, the digests on disk are those of the blocks
//! on disk.** So a flush is only handed on, and digests are written later. After a crash the regions of the
//! intent *need a resync*: a block there with another digest is accepted as it is, at once when it is read,
//! or by the job `sum`, which reads all of them. So does a region in which a write failed half-way.
//!
//! The digest of a block of zeroes is written as zeroes: an entry is the digest, XOR that of zeroes. A new device is
//! zeroed, so its table is right without ever being written.
//!
//! The table is kept as at the level `shadow` at every level of the hierarchy: blocks are overwritten in
//! place, so the bytes could not go back to an earlier moment, and `lazy` would save nothing in the path of a
//! request.
//!
//! The module deliberately does not know what digests are for. Digests are made of the request's copy, never
//! of memory that others can change.

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

/// Why a device with sums never becomes larger, and what helps.
pub const NO_ROOM: &str =
    "its table of digests has no room: larger disks take the place of its disks, one by one";

/// Damaged blocks that are remembered.
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
    /// A block with another digest is an error.
    strict: bool,
    /// The digest of a block of zeroes.
    zero: Vec<u8>,
    intent: Intent,
    /// How long a region stays unchanged before its intent is cleared.
    idle: Duration,
    area: Area,
    /// The bytes of the device that are being changed.
    locks: Rc<RangeLocks>,
    /// Regions in which blocks may have other digests.
    needs_resync: RefCell<Bits>,
    /// How often a range was marked for a resync.
    resync_marks: Cell<u64>,
    /// The job `sum` was cancelled.
    sum_cancelled: Cell<bool>,
    tidying: Cell<bool>,
    jobs: RefCell<Vec<Rc<Job>>>,
    /// The background tasks.
    tasks: Rc<Tasks>,
    closed: Cell<bool>,
    scratch: RefCell<Vec<u8>>,
    tally: Tally,
}

/// The counts of damage.
#[derive(Default)]
struct Tally {
    /// Blocks with other digests.
    corrupt: Cell<u64>,
    /// The last corrupt blocks.
    places: RefCell<VecDeque<u64>>,
    /// How often another copy was right, and was written over a wrong one.
    healed: Cell<u64>,
    /// The last healed blocks.
    healed_at: RefCell<VecDeque<u64>>,
    /// Blocks that were accepted as they are in a resync.
    anew: Cell<u64>,
    /// How often everything was read.
    passes: Cell<u64>,
    /// Bytes that a job could not read.
    unreadable: Cell<u64>,
}

/// Remembers `at` among the last blocks; false if it is there already.
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

/// Why a change of the bytes of `child` by others is refused.
pub fn refusal(child: &Node) -> String {
    format!(
        "the layer has a digest of every block of {}, and would take other bytes for damage: take it away \
         first, or have what \
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

    /// The digest of blocks.
    pub fn digest(&self) -> Digest {
        self.head.digest
    }

    /// True if nothing may change on disk.
    pub fn is_read_only(&self) -> bool {
        self.child.geometry().read_only || self.area.0.geometry().read_only
    }

    /// The geometry of the device.
    pub fn geometry(&self) -> Geometry {
        let below = self.child.geometry();
        Geometry {
            optimal: below.optimal.max(self.block() as u32),
            read_only: self.is_read_only(),
            // Discarded blocks have to read as zeroes.
            discard: below.discard && below.zero,
            ..below.with_size(self.head.size).shifted(self.head.data)
        }
    }

    /// The address on the child of the device's byte `at`.
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

    /// The entries of whole blocks. Other tasks get the core now and then.
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

    /// The digest of an entry, and the other way around.
    pub fn reveal(&self, entry: &[u8]) -> Vec<u8> {
        entry.iter().zip(&self.zero).map(|(byte, zero)| byte ^ zero).collect()
    }

    /// The data and holes of `at`. A hole below that should not read as zeroes is data: reading it fails.
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
        Lock { sums: self, at: at.clone(), needs_resync: Cell::new(false), _range: range }
    }

    pub fn needs_resync_at(&self, at: &Range<u64>) -> bool {
        self.needs_resync.borrow().touches(at)
    }

    /// A digest that differs is accepted there from now on. The intent has the range already.
    fn mark_for_resync(&self, at: &Range<u64>) {
        self.needs_resync.borrow_mut().add(at);
        add(&self.resync_marks, 1);
        self.sum_cancelled.set(false);
        self.tidy_later();
    }

    /// Counts a corrupt block.
    fn note(&self, at: u64) {
        add(&self.tally.corrupt, 1);
        if remember(&self.tally.places, at) {
            tracing::warn!(device = %self.name, offset = at, len = self.block(), "a block is not what was written");
        }
    }

    /// Counts a block that was corrupt, and is right in all copies now.
    fn note_healed(&self, at: u64) {
        add(&self.tally.healed, 1);
        if remember(&self.tally.healed_at, at) {
            tracing::warn!(device = %self.name, offset = at, len = self.block(), "a block was healed from \
                another copy");
        }
    }

    /// Bytes of whole blocks by which the child has grown, and for which the table has no room.
    fn unused(&self) -> u64 {
        let end = self.head.data + self.head.size;
        self.child.geometry().size.saturating_sub(end) / self.block() * self.block()
    }

    /// The info of both layers.
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

    /// The background jobs.
    pub fn jobs(&self) -> Vec<Rc<Job>> {
        self.jobs.borrow().clone()
    }

    /// Bytes that need a resync.
    pub fn needs_resync_bytes(&self) -> u64 {
        self.needs_resync.borrow().bytes()
    }
}

/// Blocks that are locked until this is dropped.
struct Lock<'a> {
    sums: &'a Sums,
    at: Range<u64>,
    /// The digests of the blocks may be wrong: if this is still set at the end, the blocks need a resync.
    needs_resync: Cell<bool>,
    /// Released last.
    _range: RangeLock,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if self.needs_resync.get() {
            self.sums.mark_for_resync(&self.at);
        }
    }
}

#[cfg(test)]
pub mod scene;
#[cfg(test)]
mod tests;
