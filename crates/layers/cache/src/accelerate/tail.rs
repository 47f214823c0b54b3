//! The end of the store: a last block that is not whole, and blocks behind it.
//!
//! A block that the store has only a part of is never on the flash: what fills it up there would go over, or
//! be read instead of, what the store has there when it is larger. Its writes go to the store, and a flush
//! makes them durable there.
//!
//! Blocks behind the end are of a store that was larger. They are forgotten, durably, when the device is
//! opened; otherwise they would be read again when the store has grown, and something else is there.

use super::Accelerate;
use super::failure::SideError;
use super::progress::Progress;
use crate::flash::SLOT;
use lamina_block::{Buf, Durability, Error, ErrorKind, Io, Result};
use std::ops::Range;
use std::rc::Rc;

impl Accelerate {
    /// Bytes of the store that are in whole blocks.
    pub(super) fn whole_bytes(&self) -> u64 {
        let size = self.store.geometry().size;
        size - size % SLOT as u64
    }

    pub(super) async fn write_to_end(&self, at: Range<u64>, from: Buf, durability: Durability) -> Result<()> {
        let border = self.whole_bytes().clamp(at.start, at.end);
        if border == at.end {
            return self.write(at, from, durability).await;
        }
        let len = (border - at.start) as usize;
        if len > 0 {
            Box::pin(self.write(at.start..border, from.slice(0..len), durability)).await?;
        }
        Box::pin(self.write_tail(border..at.end, from.slice(len..from.len()), durability)).await
    }

    async fn write_tail(&self, at: Range<u64>, from: Buf, durability: Durability) -> Result<()> {
        self.while_leaving().await;
        if self.epochs.is_some() {
            // Nothing that was written before is missing where this is.
            match self.drained().await {
                // Then the store has it all the same.
                Err(SideError::Flash(e)) => self.without_flash(e).await?,
                drained => drained?,
            }
        }
        // When the store has grown, the block is whole, and what is read of it may stay on the flash.
        let lock = self.lock(&self.bytes(&Accelerate::blocks(&at))).await;
        if self.whole_bytes() > at.start {
            drop(lock);
            return Box::pin(self.write_to_end(at, from, durability)).await;
        }
        // The flush ends an epoch, which is not to have a part of a batch.
        let _none = if self.epochs.is_some() { Some(self.no_batches().await) } else { None };
        self.store.submit(Io::write(at.start, from, durability)).await?;
        match self.epochs {
            Some(_) => self.store.submit(Io::flush()).await?,
            // The next flush goes to the store, too.
            None => self.proceed(Progress::change_directly),
        }
        drop(lock);
        Ok(())
    }

    /// Forgets what the flash has from a last block on that is not whole, if there is any. Everything that
    /// the flash has goes with it, when the store has it.
    pub(super) async fn forget_beyond(self: &Rc<Self>) -> Result<()> {
        let first = self.whole_bytes() / SLOT as u64;
        match self.volume.is_somewhere()
            && self.volume.quarantine.is_empty()
            && self.cache.has_beyond(&self.volume, first)
        {
            true => self.drain_first().await,
            false => Ok(()),
        }
    }

    /// Fails if the store does not reach as far as these blocks.
    pub(super) fn is_on_store(&self, blocks: &Range<u64>) -> Result<()> {
        if blocks.end <= self.store.geometry().size.div_ceil(SLOT as u64) {
            return Ok(());
        }
        let message =
            "it has become smaller, and the cache has what was written behind its end: give it its size back";
        Err(Error::new(ErrorKind::Corrupt, message).on(self.store.name()))
    }
}
