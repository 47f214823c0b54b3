//! The end of an epoch: it counts, and gets to the store.
//!
//! ```text
//!      Open ──▶ Ending: table, flush, record ──▶ Counts: store, flush, record ──▶ Open, a new one
//! ```
//!
//! Where it fails, the next one begins again. Nothing joins an epoch that may count.

use super::format::{Committed, PAGE, RECORDS, Record, encode_table};
use super::open::write_page;
use super::{Epoch, Phase, Redo};
use futures_util::{StreamExt, stream};
use lamina_block::{Durability, Io, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;

/// Requests to the store, or to the log, that are under way together when an epoch gets to the store.
const DEPTH: usize = 32;

impl Redo {
    /// Ends the epoch: the store has it, durably, when this returns. If it fails, the next one begins where it stopped.
    pub async fn end(&self) -> Result<()> {
        self.ends.change();
        let end = async || {
            self.ending.set(true);
            let result = self.end_alone().await;
            if result.is_err() {
                // Somebody was told so, and may read what is there: it stays.
                self.epoch.borrow_mut().is_discarded = true;
            }
            self.ending.set(false);
            self.moved.notify();
            result
        };
        self.ends.save(end).await
    }

    async fn end_alone(&self) -> Result<()> {
        self.moved.until(|| self.epoch.borrow().coming.is_empty()).await;
        {
            let epoch = &mut *self.epoch.borrow_mut();
            match epoch.phase {
                Phase::Open if epoch.table.is_empty() => {
                    // What failed has left nothing but the space it took.
                    *epoch = Epoch::new(&self.env);
                    return Ok(());
                }
                Phase::Open => epoch.phase = Phase::Ending,
                Phase::Ending | Phase::Counts => {}
            }
        }
        if self.epoch.borrow().phase == Phase::Ending {
            self.commit().await?;
            self.epoch.borrow_mut().phase = Phase::Counts;
        }
        self.bring().await?;
        let before = self.record.get();
        self.keep(Record { sequence: before.sequence + 1, committed: None, ..before }).await?;
        self.epoch.replace(Epoch::new(&self.env));
        // Whoever was told that it is on the log has to have read it from there.
        self.moved.until(|| self.reading.get() == 0).await;
        Ok(())
    }

    /// Makes the epoch count.
    async fn commit(&self) -> Result<()> {
        let (bytes, committed, time) = {
            let epoch = self.epoch.borrow();
            let (bytes, sum) = encode_table(&epoch.table, self.of.key);
            let table = epoch.end.next_multiple_of(PAGE);
            (bytes, Committed { table, entries: epoch.table.len() as u32, sum }, epoch.time)
        };
        let buf = self.env.pool().take(bytes.len());
        buf.write(0, &bytes);
        self.written.set(self.written.get() + bytes.len() as u64);
        self.log.submit(Io::write(committed.table, buf, Durability::Cached)).await?;
        if !flawed("record before the table") {
            self.log.submit(Io::flush()).await?;
        }
        let before = self.record.get();
        self.keep(Record {
            sequence: before.sequence + 1,
            epoch: before.epoch + 1,
            time,
            committed: Some(committed),
        })
        .await
    }

    /// Writes a record durably, not over the one that counts.
    async fn keep(&self, record: Record) -> Result<()> {
        let slot = 1 - self.slot.get();
        self.written.set(self.written.get() + PAGE);
        write_page(&self.env, &self.log, RECORDS[slot], &record.encode(self.of.key)).await?;
        self.record.set(record);
        self.slot.set(slot);
        Ok(())
    }

    /// Brings an epoch that counts to the store.
    async fn bring(&self) -> Result<()> {
        let (discards, writes) = {
            let epoch = &mut *self.epoch.borrow_mut();
            let is_wanted = !epoch.is_discarded;
            let discards = epoch.table.iter().filter(|entry| is_wanted && entry.data.is_none());
            let writes: Vec<(Range<u64>, u64)> = epoch.places.all().collect();
            (discards.map(|entry| entry.at.clone()).collect::<Vec<_>>(), writes)
        };
        for at in discards {
            // What is discarded may stay as it is.
            let _done = self.store.submit(Io::discard(at)).await;
        }
        let moves = writes.into_iter().map(|(at, place)| self.copy(at, place));
        let moved: Vec<Result<()>> = stream::iter(moves).buffer_unordered(DEPTH).collect().await;
        moved.into_iter().collect::<Result<()>>()?;
        if !flawed("record before the store") {
            self.store.submit(Io::flush()).await?;
        }
        Ok(())
    }

    async fn copy(&self, at: Range<u64>, place: u64) -> Result<()> {
        let data = self.env.pool().take((at.end - at.start) as usize);
        self.log.submit(Io::read(place, data.clone())).await?;
        self.store.submit(Io::write(at.start, data, Durability::Cached)).await
    }
}
