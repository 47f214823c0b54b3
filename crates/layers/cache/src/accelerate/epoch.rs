//! Epochs: over a store of kind `redo`, a batch is what was dirty at one moment, and the store goes there at once.
//!
//! ```text
//!      dirty at this moment ──▶ redo ──▶ flush: the store was the volume of the moment before, and is that of this one
//! ```
//!
//! No write is on its way to the flash at that moment: those that come wait for the ones that are. So every
//! write is in the epoch or is not, but for those longer than a quarter of a segment of the flash, which are
//! several (some hundred KiB where it has a GiB); and all that was acknowledged is. So that a batch always
//! fits into the log of the `redo`, writes wait before more is dirty than that holds. A discard waits until
//! it has been part of a batch, so that it does not get to the store before what was written earlier.

use super::Accelerate;
use super::failure::SideResult;
use super::policy::Destage;
use crate::flash::{Dirty, SLOT, Volume};
use crate::redo::{How, Redo, redo_of};
use lamina_block::{Buf, Cause, Error, Node, Result, Time, wait};
use lamina_kit::flaw::flawed;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Discards of an epoch, at most. Others wait for the next one.
const DISCARDS: usize = 1024;
/// The fewest blocks that a log has to hold.
const BLOCKS_MIN: u64 = 32;
/// Parts of the log that one write may take.
const PARTS: u64 = 4;

/// A batch on its way to the store.
pub struct Batch {
    pub dirty: Vec<Dirty>,
    /// The store is up to date with this serial number then.
    pub upto: u64,
    /// So many discards come before it.
    pub discards: usize,
    /// The moment that it is of, if it is an epoch.
    pub cut: Option<Time>,
}

/// What there is only over a `redo`.
pub struct Epochs {
    redo: Rc<Redo>,
    /// Blocks that may be dirty.
    most: u64,
    /// What is to be discarded, with numbers that rise; so many of these are in the batch under way.
    discards: RefCell<VecDeque<(u64, Range<u64>)>>,
    numbers: Cell<u64>,
    taken: Cell<usize>,
    /// Of what moment the store is, if that is known.
    point: Cell<Option<Time>>,
    /// The store is between two moments: more is dirty than an epoch holds.
    is_between: Cell<bool>,
}

impl Epochs {
    /// Those of `store`, if it is a `redo`.
    pub fn of(store: &Rc<Node>) -> Result<Option<Epochs>> {
        let Some(redo) = redo_of(store) else { return Ok(None) };
        // Each discard may take as much of the table as a write.
        let most = redo.room_for(SLOT as u64).saturating_sub(DISCARDS as u64 / 64 + 1);
        if most < BLOCKS_MIN {
            return Err(Error::invalid("its log is too small: it is all that can be dirty").on(store.name()));
        }
        Ok(Some(Epochs {
            redo,
            most,
            discards: RefCell::default(),
            numbers: Cell::new(0),
            taken: Cell::new(0),
            point: Cell::new(None),
            is_between: Cell::new(false),
        }))
    }

    /// Writes what counts with the epoch only: the flash has it until then.
    pub(super) async fn write(&self, at: Range<u64>, data: Buf) -> Result<()> {
        self.redo.write(at, data, How::Together).await
    }
}

/// Space for what is about to be written, among what may be dirty.
pub struct Coming<'a> {
    of: &'a Volume,
    blocks: u64,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.of.coming.set(self.of.coming.get() - self.blocks);
    }
}

impl Accelerate {
    /// Blocks that may be dirty.
    pub(super) fn most_dirty(&self) -> u64 {
        let of_epoch = self.epochs.as_ref().map_or(u64::MAX, |epochs| epochs.most);
        let of_peers = self.peers.as_ref().map_or(u64::MAX, |peers| peers.space());
        self.cache.dirty_share(&self.volume).min(of_epoch).min(of_peers)
    }

    /// Blocks that are written at once.
    pub(super) fn longest(&self) -> u64 {
        let part = self.epochs.as_ref().map_or(u64::MAX, |epochs| epochs.most / PARTS);
        part.min(self.cache.chunk())
    }

    /// Waits until `blocks` more may be dirty. Fails if the store takes nothing for too long.
    pub(super) async fn coming(&self, blocks: u64) -> SideResult<Coming<'_>> {
        let volume = &self.volume;
        let fits = |me: &Accelerate| volume.dirty.get() + volume.coming.get() + blocks <= me.most_dirty();
        if !fits(self) {
            let (_short, _waits) = (self.cache.space_waiter(), wait(Cause::Room));
            Box::pin(self.wait_for(fits)).await?;
        }
        volume.coming.set(volume.coming.get() + blocks);
        Ok(Coming { of: volume, blocks })
    }

    /// `at` has been discarded, in an epoch, when this returns.
    pub(super) async fn discard_in_epoch(&self, epochs: &Epochs, at: Range<u64>) -> SideResult<()> {
        let number = epochs.numbers.get();
        epochs.numbers.set(number + 1);
        epochs.discards.borrow_mut().push_back((number, at));
        let place = || epochs.discards.borrow().iter().position(|(of, _)| *of == number);
        self.volume.moved.notify();
        let done = self.wait_until(|_| place().is_none()).await;
        // Whoever is told that it failed always finds what is there then.
        self.moved.until(|| place().is_none_or(|place| place >= epochs.taken.get())).await;
        match place() {
            Some(place) => {
                epochs.discards.borrow_mut().remove(place);
                done
            }
            None => Ok(()),
        }
    }

    /// What goes to the store next.
    pub(super) async fn next_batch(&self) -> Option<Batch> {
        if let Some(epochs) = &self.epochs {
            let _quiet = self.cache.quiet(&self.volume).await;
            let cut = Some(self.env.now());
            let discards = epochs.discards.borrow().len().min(DISCARDS);
            if discards > 0 && self.is_drained() {
                return Some(Batch { dirty: Vec::new(), upto: self.volume.checkpoint.get(), discards, cut });
            }
            let (mut dirty, upto) = self.cache.everything(&self.volume)?;
            if flawed("an epoch of a part") {
                dirty.truncate(dirty.len().div_ceil(2));
            }
            if dirty.len() as u64 <= epochs.most {
                return Some(Batch { dirty, upto, discards, cut });
            }
            // It was not always over a `redo`.
            epochs.is_between.set(true);
        }
        if self.is_lazy() {
            let (dirty, upto) = self.cache.is_ripe(&self.volume).then(|| self.cache.ripe(&self.volume))??;
            return Some(Batch { dirty, upto, discards: 0, cut: None });
        }
        let most = match self.keys.destage {
            Destage::Soon => self.flow.borrow().batch(),
            Destage::Late => self.flow.borrow().batch().min((self.most_dirty() / 8).max(256) as usize),
        };
        let (dirty, upto) = self.cache.batch(&self.volume, most)?;
        // Only bad blocks are left, and they are left alone.
        let is_known = dirty.is_empty() && self.volume.keeps_back() && upto <= self.progress.get().durable();
        (!is_known).then_some(Batch { dirty, upto, discards: 0, cut: None })
    }

    /// What was discarded before the batch comes first in its epoch.
    pub(super) async fn begin_epoch(&self, batch: &Batch) -> Result<()> {
        let Some(epochs) = &self.epochs else { return Ok(()) };
        epochs.taken.set(batch.discards);
        for n in 0..batch.discards {
            let at = epochs.discards.borrow()[n].1.clone();
            epochs.redo.discard(at).await?;
        }
        Ok(())
    }

    /// Nothing of what was written to the store since the last epoch gets there; false if there are no epochs.
    pub(super) fn abandon_epoch(&self) -> bool {
        self.epochs.as_ref().inspect(|epochs| epochs.redo.abandon()).is_some()
    }

    /// The store has the batch; or it has failed, and nothing of it gets there.
    pub(super) fn end_epoch(&self, batch: &Batch, is_done: bool) {
        let Some(epochs) = &self.epochs else { return };
        let taken = epochs.taken.take();
        if is_done {
            epochs.discards.borrow_mut().drain(..taken);
            epochs.is_between.set(batch.cut.is_none());
            epochs.point.set(batch.cut);
        } else {
            self.abandon_epoch();
        }
    }

    /// What is lost if the flash is lost now; null if the store may be between two moments.
    pub(super) fn recovery_point(&self) -> Value {
        let Some(epochs) = self.epochs.as_ref().filter(|epochs| !epochs.is_between.get()) else {
            return Value::Null;
        };
        let (epoch, time) = epochs.redo.point();
        let age = match epochs.point.get() {
            _ if self.is_drained() => Some(Duration::ZERO),
            Some(cut) => Some(self.env.now().since(cut)),
            // It was before this device was opened.
            None => {
                Some(self.env.unix_time().saturating_sub(time)).filter(|_| time > 0).map(Duration::from_secs)
            }
        };
        json!({
            "epoch": epoch,
            "age_seconds": age.map(|age| age.as_secs_f64()),
            "lag_bytes": self.volume.dirty.get() * SLOT as u64,
        })
    }
}
