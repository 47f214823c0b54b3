//! Flushes and discards.

use super::destage::PAUSE;
use super::failure::{SideError, SideResult};
use super::progress::Progress;
use super::{Accelerate, Policy};
use crate::flash::SLOT;
use futures_util::future::{join, select};
use lamina_block::{Durability, Error, Io, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::pin::pin;

/// Blocks that are discarded at once: 1 GiB.
const DISCARD_BLOCKS: u64 = (1 << 30) / SLOT as u64;

impl Accelerate {
    pub(super) async fn flush(&self) -> Result<()> {
        match self.flush_all().await {
            Err(SideError::Flash(e)) => {
                self.without_flash(e).await?;
                self.store.submit(Io::flush()).await
            }
            flushed => flushed.map_err(Error::from),
        }
    }

    /// What the store has when the device is opened may have been acknowledged past this flash, by another host for
    /// instance, and be in the cache of the store alone. Until it is durable there, flushes go to the store, too, and
    /// the flash keeps nothing that is read there. A store that does not answer at once is not waited for. Before the
    /// first host of a volume nobody has acknowledged anything.
    pub(super) async fn flush_found(&self) {
        let is_first = self.kept.held().is_some_and(|held| held.record().generation <= 1);
        if self.epochs.is_some() || is_first || flawed("what is found on the store counts as durable") {
            return;
        }
        self.proceed(Progress::change_directly);
        self.spawn(|me| async move {
            while !me.is_over() && me.flush_direct().await.is_err() {
                me.env.sleep(PAUSE).await;
            }
            me.moved.notify();
        });
        let flushed = pin!(self.moved.until(|| self.progress.get().is_direct_durable()));
        select(flushed, self.env.sleep(PAUSE)).await;
    }

    /// Makes durable what was changed on the store past the flash.
    async fn flush_direct(&self) -> SideResult<()> {
        // Over a `redo` what is discarded is part of an epoch, and visible when that is durable.
        if !self.progress.get().is_direct_durable() && self.epochs.is_none() {
            let direct = self.progress.get().direct();
            self.flush_store().await?;
            self.proceed(|progress| progress.flushed(direct));
        }
        Ok(())
    }

    /// Flushes the store. One that has lost something may say so once, to whoever asks first: a batch under way hears
    /// of it.
    pub(super) async fn flush_store(&self) -> Result<()> {
        let flushed = self.store.submit(Io::flush()).await;
        if flushed.is_err() {
            self.failure.flushes.set(self.failure.flushes.get() + 1);
        }
        flushed
    }

    async fn flush_all(&self) -> SideResult<()> {
        self.flush_direct().await?;
        match self.policy.get() {
            Policy::WriteBack => {
                let serial = self.volume.serial.get();
                let (here, there) = join(self.cache.flush(), self.at_peers(serial, Durability::Fua)).await;
                here.map_err(SideError::Flash).and(there)
            }
            Policy::WriteThrough => {
                let serial = self.last_dirty();
                self.cache.flush().await.map_err(SideError::Flash)?;
                self.wait_for(|me| me.progress.get().durable() >= serial || me.is_drained()).await?;
                // What has failed is known, but not what was written before the policy was this one.
                self.volume.bad.owed().map_or(Ok(()), |(side, e)| Err(self.bad_block(side, e)))
            }
            Policy::Uncached => Ok(self.flush_store().await?),
        }
    }

    pub(super) async fn discard(&self, at: Range<u64>) -> Result<()> {
        if self.policy.get() == Policy::Uncached {
            return self.store.submit(Io::discard(at)).await;
        }
        // Only whole blocks, so that no part of one is kept that is not what the store has.
        let size = self.store.geometry().size;
        let inner = at.start.div_ceil(SLOT as u64)..if at.end == size {
            at.end.div_ceil(SLOT as u64)
        } else {
            at.end / SLOT as u64
        };
        let mut from = inner.start;
        while from < inner.end {
            let to = inner.end.min(from + DISCARD_BLOCKS);
            match self.discard_blocks(from..to).await {
                Err(SideError::Flash(e)) => {
                    self.without_flash(e).await?;
                    self.store.submit(Io::discard(self.bytes(&(from..to)))).await?;
                }
                discarded => discarded?,
            }
            from = to;
        }
        Ok(())
    }

    async fn discard_blocks(&self, blocks: Range<u64>) -> SideResult<()> {
        self.while_leaving().await;
        let at = self.bytes(&blocks);
        let _lock = self.lock(&at).await;
        // The flash may have been left meanwhile.
        if let Some(why) = self.failure.stopped() {
            return Err(why.into());
        }
        self.before.writes(&at);
        if self.policy.get() == Policy::Uncached {
            return Ok(self.store.submit(Io::discard(at)).await?);
        }
        if self.cache.is_dirty_at(&self.volume, blocks.clone()) {
            // What the store has there is older than what was discarded: it stays until the newer has got there.
            return Ok(());
        }
        if self.cache.may_return(&self.volume, blocks.clone()) {
            let space = self.reserve(4).await?;
            self.cache.drop_blocks(space, &self.volume, blocks).await.map_err(SideError::Flash)?;
        }
        if let Some(epochs) = &self.epochs {
            return self.discard_in_epoch(epochs, at).await;
        }
        // What is read there from now on is not durable on the store: it is not to be on the flash.
        self.proceed(Progress::change_directly);
        let discarded = self.store.submit(Io::discard(at)).await;
        self.proceed(Progress::change_directly);
        Ok(discarded?)
    }
}
