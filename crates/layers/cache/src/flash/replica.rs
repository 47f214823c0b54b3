//! A volume that another host has, and whose writes this flash keeps as well (`lamina_cluster::serve`): they are
//! numbered there, and nothing of them gets to the store from here.

use super::Cache;
use super::access::Dirty;
use super::format::SLOT;
use super::log::How;
use super::volume::Volume;
use futures_util::future::{Either, select};
use lamina_block::{Buf, Durability, Error, ErrorKind, Result};
use std::collections::HashSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How long a write of the other host waits for segments that are about to be free.
const ROOM: Duration = Duration::from_millis(500);

impl Cache {
    /// Nothing counts of what the volume has here, and the numbers of what comes begin anywhere. Durable when this
    /// returns.
    pub async fn begin_replica(&self, volume: &Volume) -> Result<()> {
        volume.checkpoint.set(0);
        volume.serial.set(0);
        self.forget(volume).await
    }

    /// Puts a write of the other host on the flash. Nobody else puts these blocks meanwhile.
    pub async fn replicate(
        &self,
        volume: &Rc<Volume>,
        (serial, block): (u64, u64),
        data: &Buf,
        absent: u8,
    ) -> Result<()> {
        let blocks = (data.len() / SLOT) as u64;
        if volume.dirty.get() + volume.coming.get() + blocks > self.dirty_share(volume) {
            // It must not wait: perhaps only the other host, or who takes its volume, can make space.
            return Err(Error::new(ErrorKind::NoSpace, "the flash has its share of what the store lacks")
                .on(&self.name));
        }
        volume.coming.set(volume.coming.get() + blocks);
        let how = How { dirty: true, durability: Durability::Cached, absent, serial: Some(serial) };
        let put = async {
            let space = match select(pin!(self.reserve(blocks)), self.env.sleep(ROOM)).await {
                Either::Left((space, _)) => space?,
                // What is dirty leaves too little: the takeover, or beginning anew, would wait for this write.
                Either::Right(_) => {
                    let message = "the flash has no room beside what the store lacks";
                    return Err(Error::new(ErrorKind::NoSpace, message).on(&self.name));
                }
            };
            self.put(space, volume, block, data, how).await
        }
        .await;
        volume.coming.set(volume.coming.get() - blocks);
        self.tidy(volume);
        put.map(drop)
    }

    /// The other host's store has everything up to `upto`, durably.
    pub async fn replica_is_stored(&self, volume: &Volume, upto: u64) -> Result<()> {
        let (dirty, upto) = {
            let queue = volume.queue.borrow();
            let first = queue.iter().find(|record| !record.ended).map_or(u64::MAX, |record| record.serial);
            let upto = upto.min(first - 1);
            let (older, newer) = queue.as_slices();
            let records = || older.iter().chain(newer);
            let blocks_after = records().filter(|record| record.serial > upto);
            let newer: HashSet<u64> = blocks_after.flat_map(|record| record.blocks()).collect();
            let stored = records().take_while(|record| record.serial <= upto);
            let blocks = stored.flat_map(|record| record.blocks()).filter(|block| !newer.contains(block));
            (self.dirty_of(volume, blocks).collect::<Vec<Dirty>>(), upto)
        };
        let dirty = self.batched(dirty);
        self.checkpoint(volume, upto, &dirty).await
    }
}
