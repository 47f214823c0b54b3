//! Reads from the flash of the host that had the volume before (SYSTEMS C5): a volume that has moved begins with a cold
//! flash, and the other one still has what its virtual machine reads.
//!
//! ```text
//!      miss ──▶ written here since? ── no ──▶ the host before: on its flash? ── yes ──▶ fills the flash here
//!                      │ yes                                   │ no
//!                      └──────────────────▶ the store ◀────────┘
//! ```
//!
//! What the other flash has is as the volume was when it was given away. So a bitmap says which parts have been
//! written since, 64 KiB each (2 MiB for a TiB), and for these the store or this flash is asked. The bitmap is in
//! memory: a device that is opened again asks nobody. After so many misses in a row, and after the first answer that is
//! late or wrong, the other host is not asked any more.

use super::{Accelerate, add};
use crate::flash::{Cache, SLOT, Volume};
use lamina_block::{Buf, Env, Error, Pending, Result};
use lamina_cluster::remote::{Remains, Remote};
use lamina_kit::flaw::flawed;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Bytes for which one bit says whether they have been written.
const PART: u64 = 64 << 10;
/// After so many misses in a row the other host has nothing more that is of use.
const MISSES: u32 = 256;

/// The host that had the volume before, as far as it is of use.
#[derive(Default)]
pub struct Before {
    /// Parts that have been written since, a bit each; empty if nobody is asked.
    written: RefCell<Vec<u64>>,
    remote: RefCell<Option<Rc<Remote>>>,
    misses: Cell<u32>,
}

impl Before {
    /// From now on it is known what is written on a device of `size` bytes.
    pub fn begin(&self, size: u64) {
        self.written.replace(vec![0; size.div_ceil(PART).div_ceil(64) as usize]);
    }

    /// Bytes are about to be written here.
    pub fn writes(&self, at: &Range<u64>) {
        let mut written = self.written.borrow_mut();
        if written.is_empty() || flawed("a remote read after an overwrite") {
            return;
        }
        for part in at.start / PART..at.end.div_ceil(PART) {
            // One behind the end, as the store has grown, is never asked for.
            if let Some(word) = written.get_mut((part / 64) as usize) {
                *word |= 1 << (part % 64);
            }
        }
    }

    fn is_written(&self, at: &Range<u64>) -> bool {
        let written = self.written.borrow();
        let bit =
            |part: u64| written.get((part / 64) as usize).is_none_or(|word| word >> (part % 64) & 1 == 1);
        (at.start / PART..at.end.div_ceil(PART)).any(bit)
    }

    /// Nobody is asked any more.
    pub fn end(&self) {
        self.remote.take().into_iter().for_each(|remote| remote.end());
        self.written.take();
    }
}

impl Accelerate {
    /// Asks the host that has given the volume to this one, from now on, for what the flash lacks.
    pub(super) fn asks_before(&self) {
        let Some(held) = self.kept.held() else { return };
        let Some(giver) = held.take_giver() else { return };
        self.before.begin(self.store.geometry().size);
        self.spawn(|me| async move {
            match held.reads_from(giver, me.keys.peer_timeout.0).await {
                Ok(remote) if me.closed.get() => remote.end(),
                Ok(remote) => drop(me.before.remote.replace(Some(remote))),
                Err(e) => {
                    tracing::info!(device = %me.name, error = %e, "the host before is not asked for what it has");
                    me.before.end();
                }
            }
        });
    }

    /// Whole blocks from the flash of the host before; false if it does not have all of them, or is not asked.
    pub(super) async fn read_before(&self, at: &Range<u64>, into: &Buf) -> bool {
        let Some(remote) = self.before.remote.borrow().clone() else { return false };
        if self.before.is_written(at) {
            return false;
        }
        let found = remote.read(at.start / SLOT as u64..at.end / SLOT as u64).await;
        // Whatever was written meanwhile was written beside the read, in either order.
        match found.filter(|data| data.len() == into.len()) {
            Some(data) => {
                into.copy_from(&data);
                self.before.misses.set(0);
                add(&self.tally.remote, (at.end - at.start) / SLOT as u64);
                true
            }
            None => {
                self.before.misses.set(self.before.misses.get() + 1);
                if self.before.misses.get() >= MISSES || remote.has_ended() {
                    tracing::info!(device = %self.name, "the host before is not asked for what it has any more");
                    self.before.end();
                }
                false
            }
        }
    }
}

/// What the flash has of a volume that this host has given away, or keeps the writes of.
pub struct Left {
    pub cache: Rc<Cache>,
    pub volume: Rc<Volume>,
    pub env: Rc<dyn Env>,
    /// The generation in which this host had it, or keeps the writes of the one that has it.
    pub generation: u64,
    /// Blocks count as well of which the flash has some sectors: whoever asks knows which.
    pub has_parts: bool,
}

impl Remains for Left {
    fn read(&self, generation: u64, blocks: Range<u64>) -> Pending<Option<Buf>> {
        let (cache, volume, env) = (Rc::clone(&self.cache), Rc::clone(&self.volume), Rc::clone(&self.env));
        let (is_here, has_parts) = (generation == self.generation, self.has_parts);
        Box::pin(async move {
            if !is_here || !volume.follows.get() {
                return Err(Error::offline("the volume has changed hands again"));
            }
            if blocks.end > volume.size.get() || cache.check_reads().is_err() {
                return Ok(None);
            }
            let runs = cache.runs(&volume, blocks.clone());
            let pins: Vec<_> = runs.iter().map(|run| cache.pin_run(run)).collect();
            let data = env.pool().take((blocks.end - blocks.start) as usize * SLOT);
            for run in &runs {
                let Some(slot) = run.slot.filter(|_| has_parts || run.absent == 0) else { return Ok(None) };
                let at = |block: u64| (block - blocks.start) as usize * SLOT;
                let part = data.slice(at(run.blocks.start)..at(run.blocks.end));
                // A block that cannot be read here is read from the store there.
                if cache.read(slot, 0..part.len() as u64, part).await.is_err() {
                    return Ok(None);
                }
            }
            drop(pins);
            Ok(Some(data))
        })
    }
}

/// Fails unless a host may read what this one has left of the volume.
pub fn may_read(left: Option<&Rc<Left>>, generation: u64) -> Result<Rc<dyn Remains>> {
    match left.filter(|left| left.generation == generation) {
        Some(left) => Ok(Rc::clone(left) as Rc<dyn Remains>),
        None => Err(Error::offline("nothing is left here of the volume in that generation")),
    }
}
