//! Replays the journal after a crash.
//!
//! The records of the epoch are read, one slot of one leg after the other; records that do not count any more
//! are dropped (`ring.rs` says why there are such), and the others are carried out in order. At most as many
//! records as there are slots are in memory: 16 MiB, and one slot. The replay is repeated if the power fails
//! meanwhile: the epoch ends when all writes are durable.

use super::Parity;
use super::journal::Record;
use crate::legs::{Role, is_corrupt};
use lamina_block::{Durability, Error, ErrorKind, Io, Result};
use lamina_kit::flaw::flawed;
use std::collections::BTreeMap;
use std::ops::Range;

/// The records that count, by their sequence.
#[derive(Default)]
struct Found {
    first: u64,
    records: BTreeMap<u64, Record>,
}

impl Found {
    fn add(&mut self, record: Record) {
        if record.first > self.first && !flawed("first ignored") {
            self.first = record.first;
            self.records = self.records.split_off(&self.first);
        }
        if record.sequence >= self.first {
            self.records.insert(record.sequence, record);
        }
    }
}

impl Parity {
    /// Replays the records, which were written to so many `legs`. They are durable when the next epoch
    /// begins.
    pub(super) async fn replay(&self, legs: Option<usize>) -> Result<()> {
        let (mut found, mut unread) = (Found::default(), Vec::new());
        for slot in 0..self.journal.slots {
            let bad = self.find(slot, &mut found).await?;
            // The legs that have the record, if that can be told; the others are absent.
            let all = match legs == Some(self.legs.in_sync().count()) {
                true => self.holders(slot).iter().all(|leg| bad.contains(leg)),
                false => bad.len() >= self.copies(),
            };
            unread.extend(all.then_some(slot));
        }
        let is_found = |slot: &u64| found.records.keys().any(|at| at % self.journal.slots == *slot);
        if !unread.iter().all(is_found) {
            self.mark_all_for_resync();
        }
        for record in found.records.into_values() {
            self.redo(record).await?;
        }
        Ok(())
    }

    /// Reads the records in slot `slot`. Returns the legs that find theirs corrupt.
    async fn find(&self, slot: u64, found: &mut Found) -> Result<Vec<usize>> {
        let (shape, id, epoch) = (self.journal, self.legs.intent.shape().id, self.epoch.get());
        let mut unread = Vec::new();
        for leg in self.legs.in_sync().collect::<Vec<_>>() {
            let buf = self.legs.env.pool().take(shape.slot() as usize);
            let at = self.legs.tail() + slot * shape.slot();
            match self.node(leg).submit(Io::read(at, buf.clone())).await {
                Ok(()) => {}
                Err(e) if is_corrupt(&e) => {
                    unread.push(leg);
                    continue;
                }
                Err(e) => {
                    self.legs.put_out(leg, &e);
                    if self.legs.role(leg) == Role::Sync {
                        return Err(e);
                    }
                    continue;
                }
            }
            let is_ours = |it: &Record| {
                (it.id, it.epoch, it.sequence % shape.slots) == (id, epoch, slot) && it.first <= it.sequence
            };
            Record::decode(&shape, &buf.to_vec())?.filter(is_ours).into_iter().for_each(|it| found.add(it));
        }
        Ok(unread)
    }

    /// The writes of a slot are unknown: stripes that were being written may be half done.
    fn mark_all_for_resync(&self) {
        self.legs.intent.regions().units().for_each(|region| self.legs.mark_for_resync(&region));
    }

    async fn redo(&self, record: Record) -> Result<()> {
        for (column, start, bytes) in record.writes {
            let at = start..start.saturating_add(bytes.len() as u64);
            if column >= self.layout.columns || at.end > self.legs.size() {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "a record of the journal is about bytes that do not exist",
                ));
            }
            if self.legs.is_read_only() {
                self.undone.borrow_mut().push(at);
                continue;
            }
            let buf = self.legs.env.pool().take(bytes.len());
            buf.write(0, &bytes);
            let is_there = |leg: &usize| self.column(*leg) == Some(column);
            let legs: Vec<usize> = self.legs.in_sync().filter(is_there).collect();
            let put = |leg| (leg, self.node(leg).submit(Io::write(start, buf.clone(), Durability::Cached)));
            let mut failed = self.put_all(legs.into_iter().map(put)).await;
            // A wrong block stays wrong, and fails when it is read.
            failed.retain(|(_, e)| !is_corrupt(e));
            self.unless_out(failed)?;
            // A leg that was there when the record was written, and is not any more, or has just failed, is
            // stale there.
            let is_out_of_sync = |leg: &usize| is_there(leg) && self.legs.role(*leg) != Role::Sync;
            (0..self.legs.nodes.len()).filter(is_out_of_sync).for_each(|leg| self.legs.mark_stale(leg, &at));
        }
        Ok(())
    }

    /// True if the last write to `at` is in the journal only, and `at` must not be written.
    pub(super) fn is_undone(&self, at: &Range<u64>) -> bool {
        self.undone.borrow().iter().any(|undone| undone.start < at.end && at.start < undone.end)
    }
}
