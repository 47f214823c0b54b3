//! Bytes that are unknown, because the power failed while they were written and their device is gone: a list
//! of them, and the command that zeroes them.
//!
//! Forgotten bytes are written as zeroes like any other bytes, with their parity; their device is stale from
//! then on, so that it gets zeroes too if it ever comes back. A crash on the way leaves the rest unknown.

use super::stripe::Write;
use super::{Parity, galois};
use crate::legs::cut;
use lamina_block::{Buf, Durability, Error, ErrorKind, Io, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;

/// At most so many ranges are shown.
const SHOWN: usize = 1000;

/// The arguments of `forget`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forget {
    #[serde(default)]
    force: bool,
}

impl Parity {
    /// The data cells of a part of a stripe that are unknown.
    fn lost(&self, stripe: u64, at: &Range<u64>) -> Vec<usize> {
        let is_gone = |cell: &usize| self.holder(self.layout.column(stripe, *cell), at, &[]).is_none();
        (0..self.layout.data()).filter(is_gone).collect()
    }

    /// The bytes of the device that are unknown, in order.
    fn unknown(&self) -> Vec<Range<u64>> {
        let (width, unit) = (self.layout.width(), self.layout.unit);
        let runs = if self.legs.is_degraded() { self.legs.resync_runs() } else { Vec::new() };
        let of_stripe = |(stripe, at): (u64, Range<u64>)| {
            let first = move |cell: usize| stripe * width + cell as u64 * unit - stripe * unit;
            self.lost(stripe, &at).into_iter().map(move |cell| first(cell) + at.start..first(cell) + at.end)
        };
        let stripes = runs.iter().flat_map(|run| self.layout.stripes(run));
        let mut parts: Vec<Range<u64>> = stripes.flat_map(of_stripe).collect();
        parts.sort_unstable_by_key(|part| part.start);
        let mut all: Vec<Range<u64>> = Vec::new();
        for part in parts {
            match all.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                Some(_) | None => all.push(part),
            }
        }
        all
    }

    /// The command: lists the unknown bytes, and with `force` zeroes them.
    pub(super) async fn forget(&self, Forget { force }: Forget) -> Result<Value> {
        if force && self.legs.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "a device below is read-only"));
        }
        let all = self.unknown();
        if force && !all.is_empty() {
            let rows = self.legs.resync_runs();
            for at in rows.iter().flat_map(|run| cut(run, self.legs.resync_unit().max(self.layout.unit))) {
                self.forget_rows(&at).await?;
            }
            self.legs.record().await?;
            self.legs.unstick();
        }
        let bytes: u64 = all.iter().map(|at| at.end - at.start).sum();
        let shown: Vec<Value> = all.iter().take(SHOWN).map(|at| json!([at.start, at.end])).collect();
        Ok(json!({ "unknown": bytes, "ranges": shown, "zeroed": force }))
    }

    async fn forget_rows(&self, rows: &Range<u64>) -> Result<()> {
        let _lock = self.legs.locks.lock(&self.legs.whole(rows)).await;
        for (stripe, at) in self.layout.stripes(rows) {
            self.forget_row(stripe, at).await?;
        }
        self.legs.resynced(rows);
        Ok(())
    }

    async fn forget_row(&self, stripe: u64, at: Range<u64>) -> Result<()> {
        let (layout, lost) = (self.layout, self.lost(stripe, &at));
        let cells: Vec<Buf> = (0..layout.columns).map(|_| self.take(&at)).collect();
        let (data, parity) = cells.split_at(layout.data());
        for (cell, into) in data.iter().enumerate() {
            match self.holder(layout.column(stripe, cell), &at, &[]) {
                Some(leg) => self.node(leg).submit(Io::read(at.start, into.clone())).await?,
                None => into.fill(0),
            }
        }
        parity.iter().enumerate().for_each(|(which, parity)| galois::encode(data, parity, which));
        let write = |cell: usize| Write {
            column: layout.column(stripe, cell),
            start: at.start,
            bytes: cells[cell].clone(),
        };
        let writes: Vec<Write> = lost.into_iter().chain(layout.data()..layout.columns).map(write).collect();
        if writes.iter().all(|write| self.takers(write.column).next().is_none()) {
            // The legs of the parity get it when they are back.
            let is_written = |column| writes.iter().any(|write| write.column == column);
            self.legs.mark(&at).await?;
            self.legs.begin_on(&at, |leg| leg.column.is_some_and(is_written));
            return Ok(());
        }
        self.store(&at, writes, Durability::Fua).await
    }
}
