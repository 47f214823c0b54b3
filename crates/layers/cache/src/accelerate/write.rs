//! The gatekeeper: writes, in an order where they overlap.
//!
//! A request takes as much memory as all it may ever wait for, and is copied when it begins. So what is rare is in a
//! box of its own.

use super::failure::{SideError, SideResult};
use super::{Accelerate, Policy, add, parts};
use crate::flash::{How, Reservation, SLOT};
use futures_util::future::{Either, select};
use lamina_block::{Buf, Cause, Durability, Io, Result, wait};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::pin::pin;

impl Accelerate {
    pub(super) async fn write(&self, at: Range<u64>, from: Buf, durability: Durability) -> Result<()> {
        self.while_leaving().await;
        let blocks = Accelerate::blocks(&at);
        let began = self.env.now();
        let lock = self.lock(&self.bytes(&blocks)).await;
        // The flash may have been left meanwhile.
        if let Some(why) = self.failure.stopped() {
            return Err(why);
        }
        self.before.writes(&self.bytes(&blocks));
        if self.policy.get() == Policy::Uncached {
            drop(lock);
            return self.store.submit(Io::write(at.start, from, durability)).await;
        }
        let under_way = self.failure.begin(&at, &from, durability);
        let lock = Some(lock).filter(|_| !flawed("unordered overlap"));
        // It is so durable on the flash as the policy wanted when it began, also if another one holds when it is there.
        let was_through = self.policy.get() == Policy::WriteThrough;
        let put = self.put(&at, &blocks, from, self.durability(durability)).await;
        drop(lock);
        let written = match put {
            Ok(serial) => {
                under_way.write.serial.set(Some(serial));
                self.acknowledge(serial, &blocks, durability, was_through).await
            }
            Err(fault) => Err(fault),
        };
        match written {
            Ok(()) => {
                let outcome = under_way.outcome(Ok(()));
                drop(under_way);
                self.hold_back(began).await;
                outcome
            }
            Err(SideError::Store(e)) => {
                // It may be on its way to the store just now.
                self.while_leaving().await;
                under_way.outcome(Err(e))
            }
            Err(SideError::Flash(e)) => {
                Box::pin(self.without_flash(e)).await?;
                under_way.outcome(Ok(()))
            }
        }
    }

    /// Puts a write on the flash, and gives its serial number.
    async fn put(
        &self,
        at: &Range<u64>,
        blocks: &Range<u64>,
        from: Buf,
        durability: Durability,
    ) -> SideResult<u64> {
        let (data, absent) = match (blocks.end - blocks.start) as usize * SLOT == from.len() {
            true => (from, [0; 2]),
            false => Box::pin(self.whole(at, blocks, from)).await?,
        };
        self.note_write();
        self.begin_write();
        if let Some(heat) = &self.heat {
            heat.write(at);
            self.note_soon(heat);
        }
        let mut serial = 0;
        for (run, absent) in parts::runs(blocks, absent) {
            let how = How { dirty: true, durability, absent, serial: None };
            for from in run.clone().step_by(self.longest() as usize) {
                let to = run.end.min(from + self.longest());
                let part = (from - blocks.start) as usize * SLOT..(to - blocks.start) as usize * SLOT;
                let _coming = self.coming(to - from).await?;
                let space = self.reserve(to - from).await?;
                let put = self.cache.put(space, &self.volume, from, &data.slice(part), how).await;
                serial = put.map_err(SideError::Flash)?;
            }
        }
        self.end_write();
        add(&self.tally.written, blocks.end - blocks.start);
        if self.policy.get() == Policy::WriteBack && self.waiting.get() == 0 {
            self.cache.tidy(&self.volume);
        }
        Ok(serial)
    }

    /// Waits for space on the flash. Fails if the store, which has to take what is dirty, takes nothing for too long.
    pub(super) async fn reserve(&self, blocks: u64) -> SideResult<Reservation<'_>> {
        match self.cache.reserve_now(blocks) {
            Ok(Some(space)) => Ok(space),
            Ok(None) => Box::pin(self.reserve_late(blocks)).await,
            Err(e) => Err(SideError::Flash(e)),
        }
    }

    async fn reserve_late(&self, blocks: u64) -> SideResult<Reservation<'_>> {
        let _waits = wait(Cause::Room);
        let (space, given_up) = (pin!(self.cache.reserve(blocks)), pin!(self.wait_until(|_| false)));
        match select(space, given_up).await {
            Either::Left((space, _)) => space.map_err(SideError::Flash),
            Either::Right((given_up, _)) => Err(given_up.expect_err("it waits for nothing else")),
        }
    }

    /// Waits until a write that is on the flash can be acknowledged.
    async fn acknowledge(
        &self,
        serial: u64,
        blocks: &Range<u64>,
        durability: Durability,
        was_through: bool,
    ) -> SideResult<()> {
        match (self.policy.get(), durability) {
            // It went to the store when the flash was left.
            (Policy::Uncached, _) => return Ok(()),
            (Policy::WriteBack, _) if !was_through => {
                self.at_peers(serial, durability).await?;
                // The flash may have been left meanwhile: it went to the store then, with an outcome of its own.
                self.while_leaving().await;
                if let Some(why) = self.failure.stopped() {
                    return Err(why.into());
                }
                if self.policy.get() == Policy::Uncached {
                    return Ok(());
                }
            }
            (_, Durability::Fua) => {
                Box::pin(self.wait_for(|me| me.progress.get().durable() >= serial)).await?
            }
            (_, Durability::Cached) => {
                Box::pin(self.wait_for(|me| me.progress.get().stored() >= serial)).await?
            }
        }
        if (self.policy.get() != Policy::WriteBack || was_through)
            && let Some((side, e)) = self.volume.bad.tell(blocks)
        {
            return Err(self.bad_block(side, e));
        }
        self.proceed(|progress| progress.acknowledge(serial));
        Ok(())
    }

    /// How durable a write is on the flash.
    fn durability(&self, wanted: Durability) -> Durability {
        match self.policy.get() {
            // The destager makes it durable before it goes to the store.
            Policy::WriteThrough => Durability::Cached,
            Policy::WriteBack | Policy::Uncached => wanted,
        }
    }

    /// The data of whole blocks: where a write covers the first or the last only in part, the rest is read from the
    /// flash; which sectors of these two only the store has.
    async fn whole(&self, at: &Range<u64>, blocks: &Range<u64>, from: Buf) -> SideResult<(Buf, [u8; 2])> {
        let slot = SLOT as u64;
        let size = self.store.geometry().size;
        let covered = |block: u64| at.start <= block * slot && at.end >= (block * slot + slot).min(size);
        let len = (blocks.end - blocks.start) as usize * SLOT;
        let data = self.env.pool().take(len);
        let (first, last) = (blocks.start, blocks.end - 1);
        let mut absent = [0; 2];
        let edges = [first, last].into_iter().take(if first == last { 1 } else { 2 }).enumerate();
        for (edge, block) in edges.filter(|(_, block)| !covered(*block)) {
            let offset = (block - first) as usize * SLOT;
            let part = data.slice(offset..offset + SLOT);
            part.fill(0);
            absent[edge] = self.rest_of(block, at, &part).await?;
        }
        if covered(last) && size < blocks.end * slot {
            // Beyond the end of the device.
            data.slice((size - first * slot) as usize..len).fill(0);
        }
        let start = (at.start - first * slot) as usize;
        data.slice(start..start + from.len()).copy_from(&from);
        Ok((data, absent))
    }
}
