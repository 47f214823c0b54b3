//! Writing stripes: the reads that are needed first, the parity, and the order of writes to the legs.
//!
//! Part of a stripe is cut into rows in which the same cells are written. For each there are three ways, and
//! the one that reads least is taken: change the parity by the change of the data (the parity and the old
//! data are read), compute it from all data (the cells that are not written are read), or, where an absent
//! leg would have to be read, recover its cells first (all others are read). The data are copied first: a
//! guest may change its memory at any time, and then the parity would not be that of the data.

use super::layout::Piece;
use super::{Parity, galois, journal};
use crate::legs::{Parts, Role};
use lamina_block::{Buf, Durability, Error, Io, Op, Result, Zero};
use lamina_kit::flaw::flawed;
use std::ops::Range;

/// A write to a column.
#[derive(Clone)]
pub struct Write {
    pub column: usize,
    /// The address on the column.
    pub start: u64,
    pub bytes: Buf,
}

impl Write {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// The part of the write that is in `rows`.
    pub fn part(&self, rows: &Range<u64>) -> Option<Write> {
        let (start, end) = (self.start.max(rows.start), self.end().min(rows.end));
        let cut = || self.bytes.slice((start - self.start) as usize..(end - self.start) as usize);
        (start < end).then(|| Write { column: self.column, start, bytes: cut() })
    }
}

/// Rows of a stripe in which the same cells are written.
struct Rows {
    at: Range<u64>,
    /// The new bytes of each data cell, if any.
    new: Vec<Option<Buf>>,
}

/// The cells to read.
enum Way {
    /// The cells that are written, and the parity.
    Change,
    /// The data cells that are not written.
    Compute,
    /// All cells that are there.
    Recover,
}

impl Parity {
    /// Carries out a write or a zeroing.
    pub(super) async fn change(&self, io: Io) -> Result<()> {
        let pieces: Vec<Piece> = self.layout.pieces(&io.at).collect();
        let width = self.layout.width();
        let is_whole = |piece: &Piece| piece.within == (0..width);
        let mut parts: Vec<std::pin::Pin<Box<dyn Future<Output = Result<()>> + '_>>> = Vec::new();
        for run in pieces.chunk_by(|a, b| is_whole(a) && is_whole(b)) {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let here = first.stripe * width + first.within.start..last.stripe * width + last.within.end;
            if is_whole(first) {
                let part = io.part(here.clone(), here.start);
                parts.push(Box::pin(self.write_whole(first.stripe..last.stripe + 1, part)));
            } else {
                parts.push(Box::pin(self.gather(first.stripe, io.part(here, first.within.start))));
            }
        }
        if parts.len() == 1 {
            return parts.remove(0).await;
        }
        futures_util::future::join_all(parts).await.into_iter().collect()
    }

    /// Writes or zeroes whole stripes: no reads are needed.
    async fn write_whole(&self, stripes: Range<u64>, io: Io) -> Result<()> {
        let rows = stripes.start * self.layout.unit..stripes.end * self.layout.unit;
        let _lock = self.legs.locks.lock(&self.legs.whole(&rows)).await;
        match io.op {
            Op::Zero(how) => self.zero_whole(&rows, how).await,
            Op::Write(data, durability) => {
                let writes = self.encode_whole(&stripes, &data);
                self.store(&rows, writes, durability).await?;
                if self.legs.is_degraded() {
                    // Unknown bytes are known again, and stay so.
                    self.legs.resynced(&rows);
                    return self.legs.record().await;
                }
                Ok(())
            }
            Op::Read(_) | Op::Discard | Op::Flush => Ok(()),
        }
    }

    /// The writes to the columns when `stripes` are written with `data`.
    fn encode_whole(&self, stripes: &Range<u64>, data: &Buf) -> Vec<Write> {
        let (layout, unit) = (self.layout, self.layout.unit as usize);
        let count = (stripes.end - stripes.start) as usize;
        let columns: Vec<Buf> =
            (0..layout.columns).map(|_| self.legs.env.pool().take(count * unit)).collect();
        for (number, stripe) in stripes.clone().enumerate() {
            let cell =
                |cell: usize| columns[layout.column(stripe, cell)].slice(number * unit..(number + 1) * unit);
            let cells: Vec<Buf> = (0..layout.columns).map(cell).collect();
            let (new, parity) = cells.split_at(layout.data());
            let from = |cell: usize| {
                let start = (number * layout.data() + cell) * unit;
                data.slice(start..start + unit)
            };
            let from: Vec<Buf> = (0..layout.data()).map(from).collect();
            galois::copy_and_encode(&from, new, parity);
        }
        let start = stripes.start * layout.unit;
        columns.into_iter().enumerate().map(|(column, bytes)| Write { column, start, bytes }).collect()
    }

    /// Zeroes whole stripes, whose parity is zero as well.
    async fn zero_whole(&self, rows: &Range<u64>, how: Zero) -> Result<()> {
        loop {
            self.legs.record().await?;
            self.legs.mark(rows).await?;
            if self.legs.is_degraded() {
                break;
            }
            if self.legs.is_recorded() {
                self.legs.begin(rows);
                let busy = self.busy();
                let zero = |leg| (leg, self.node(leg).submit(Io::zero(rows.clone(), how)));
                let mut parts = Parts::new(self.legs.targets().map(zero)).all().await;
                self.legs.set_right(rows, &mut parts).await;
                drop(busy);
                return self.legs.ended(rows, parts).await;
            }
        }
        // A crash must not leave half of it, so the journal has a record of it.
        if how.fast {
            return Err(Error::unsupported("zeroing is not fast while a device is missing"));
        }
        let zeroes = self.legs.env.pool().take(self.layout.unit as usize);
        zeroes.fill(0);
        for (stripe, at) in self.layout.stripes(rows) {
            let write = |column| Write { column, start: stripe * self.layout.unit, bytes: zeroes.clone() };
            self.store(&at, (0..self.layout.columns).map(write).collect(), how.durability).await?;
        }
        Ok(())
    }

    /// Writes to parts of a stripe; `ios` are writes and zeroings with addresses within it; later ones win.
    pub(super) async fn write_part(&self, stripe: u64, ios: Vec<Io>) -> Result<()> {
        let (mut parts, mut durability) = (Vec::new(), Durability::Cached);
        for io in ios {
            let (bytes, how) = match &io.op {
                Op::Write(bytes, how) => (bytes.clone(), *how),
                Op::Zero(how) => {
                    let zeroes = self.legs.env.pool().take(io.len() as usize);
                    zeroes.fill(0);
                    (zeroes, how.durability)
                }
                Op::Read(_) | Op::Discard | Op::Flush => continue,
            };
            if how == Durability::Fua {
                durability = how;
            }
            let mut from = 0;
            for (cell, rows) in self.layout.cells(&io.at) {
                let len = (rows.end - rows.start) as usize;
                parts.push((cell, rows, bytes.slice(from..from + len)));
                from += len;
            }
        }
        let first = stripe * self.layout.unit;
        let Some(start) = parts.iter().map(|(_, rows, _)| first + rows.start).min() else { return Ok(()) };
        let end = parts.iter().map(|(_, rows, _)| first + rows.end).max().unwrap_or(start);
        // A leg that finds a block corrupt when a part of it is written gets the whole block.
        let _lock = self.legs.locks.lock(&self.legs.whole(&(start..end))).await;
        let rows = rows_of(first, self.layout.data(), &parts);
        let computed =
            futures_util::future::join_all(rows.iter().map(|rows| self.compute(stripe, rows))).await;
        let mut writes: Vec<Write> = Vec::new();
        for write in computed.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten() {
            match writes
                .iter_mut()
                .find(|before| before.column == write.column && before.end() == write.start)
            {
                Some(before) => before.bytes.append(write.bytes),
                None => writes.push(write),
            }
        }
        self.store(&(start..end), writes, durability).await
    }

    /// The writes to the columns where the same cells of `stripe` are written.
    async fn compute(&self, stripe: u64, rows: &Rows) -> Result<Vec<Write>> {
        let (layout, at) = (self.layout, &rows.at);
        let mut bad = Vec::new();
        let (way, parity, mut cells) = loop {
            // A parity without a leg need not be computed.
            let parity: Vec<usize> = (layout.data()..layout.columns)
                .filter(|cell| self.has_taker(layout.column(stripe, *cell), at))
                .collect();
            let (way, read) = self.way(stripe, rows, &parity, &bad);
            if let Way::Recover = way {
                let columns = self.recover(at, &bad, &[]).await?;
                let cells = (0..layout.columns).map(|cell| columns[layout.column(stripe, cell)].clone());
                break (way, parity, cells.collect());
            }
            let cells: Vec<Buf> = (0..layout.columns).map(|_| self.take(at)).collect();
            let from = read.iter().filter_map(|cell| {
                Some((self.holder(layout.column(stripe, *cell), at, &bad)?, cells[*cell].clone()))
            });
            if self.read_all(at, from.collect(), &mut bad).await.is_ok() {
                break (way, parity, cells);
            }
        };
        for (cell, new) in rows.new.iter().enumerate().filter_map(|(cell, new)| Some((cell, new.as_ref()?))) {
            let copy = self.take(at);
            copy.copy_from(new);
            if let Way::Change = way {
                galois::add(&cells[cell], &copy);
                for parity in &parity {
                    let factor = galois::factor(parity - layout.data(), cell);
                    galois::add_times(&cells[*parity], &cells[cell], factor);
                }
            }
            cells[cell] = copy;
        }
        if !matches!(way, Way::Change) {
            let data = &cells[..layout.data()];
            parity.iter().for_each(|cell| galois::encode(data, &cells[*cell], cell - layout.data()));
        }
        let new = (0..layout.data()).filter(|cell| rows.new[*cell].is_some());
        let write = |cell: usize| Write {
            column: layout.column(stripe, cell),
            start: at.start,
            bytes: cells[cell].clone(),
        };
        Ok(new.chain(parity.iter().copied()).map(write).collect())
    }

    /// The way that reads least, and the cells that it reads.
    fn way(&self, stripe: u64, rows: &Rows, parity: &[usize], bad: &[usize]) -> (Way, Vec<usize>) {
        let (layout, at) = (self.layout, &rows.at);
        let can_read = |cell: &usize| self.holder(layout.column(stripe, *cell), at, bad).is_some();
        if parity.is_empty() {
            return (Way::Compute, Vec::new());
        }
        let of = |new: bool| (0..layout.data()).filter(move |cell| rows.new[*cell].is_some() == new);
        let change: Vec<usize> = of(true).chain(parity.iter().copied()).collect();
        let compute: Vec<usize> = of(false).collect();
        let changes = change.iter().all(can_read) && !self.legs.needs_resync(at);
        let computes = compute.iter().all(can_read);
        match (changes, computes) {
            (true, true) if change.len() <= compute.len() => (Way::Change, change),
            (_, true) => (Way::Compute, compute),
            (true, false) => (Way::Change, change),
            (false, false) => (Way::Recover, Vec::new()),
        }
    }

    /// Writes to the legs, all in `rows`, which are locked: after the rows are marked on disk, and while a
    /// leg is absent after the writes are in the journal.
    pub(super) async fn store(
        &self,
        rows: &Range<u64>,
        writes: Vec<Write>,
        durability: Durability,
    ) -> Result<()> {
        if self.legs.is_degraded() && self.layout.stripes(rows).nth(1).is_some() {
            for (_, part) in self.layout.stripes(rows).collect::<Vec<_>>() {
                let of_it = writes.iter().filter_map(|write| write.part(&part)).collect();
                Box::pin(self.store(&part, of_it, durability)).await?;
            }
            return Ok(());
        }
        loop {
            self.legs.record().await?;
            self.legs.mark(rows).await?;
            if !self.legs.is_recorded() {
                continue;
            }
            if !self.needs_journal(rows) {
                return self.put(rows, &writes, durability).await;
            }
            if self.layout.stripes(rows).nth(1).is_some() {
                return Box::pin(self.store(rows, writes, durability)).await;
            }
            break;
        }
        for (part, group) in journal::cut(&self.journal, self.legs.block().into(), rows, &writes) {
            self.store_journaled(&part, group, durability).await?;
        }
        Ok(())
    }

    /// Writes to the legs as much as fits into a record. The writes are durable then, whether that is asked
    /// for or not.
    async fn store_journaled(
        &self,
        rows: &Range<u64>,
        writes: Vec<Write>,
        durability: Durability,
    ) -> Result<()> {
        loop {
            self.legs.record().await?;
            self.legs.mark(rows).await?;
            if !self.legs.is_recorded() {
                continue;
            }
            if !self.needs_journal(rows) || flawed("no journal") {
                return self.put(rows, &writes, durability).await;
            }
            let Some(slot) = self.ring.take() else {
                self.room().await?;
                continue;
            };
            let busy = self.busy();
            if flawed("journal after data") {
                let result = self.put(rows, &writes, Durability::Fua).await;
                return result.and(self.write_down(slot.sequence, &writes).await);
            }
            if let Err(e) = self.write_down(slot.sequence, &writes).await {
                drop((busy, slot));
                if self.legs.is_recorded() {
                    return Err(e);
                }
                continue;
            }
            let result = self.put_and_end(rows, &writes, Durability::Cached, busy).await;
            if result.is_err() && self.legs.needs_resync(rows) {
                // When the record is gone, the stripe must be marked: it may be half written.
                self.legs.changed();
                let _ = self.legs.record().await;
            }
            drop(slot);
            self.room_ahead();
            return result;
        }
    }

    /// True if bytes that no leg has would change if only a part of a write to `rows` were done.
    fn needs_journal(&self, rows: &Range<u64>) -> bool {
        let has_leg = |column| self.legs.in_sync().any(|leg| self.column(leg) == Some(column));
        let parity = |stripe| {
            (self.layout.data()..self.layout.columns).map(move |cell| self.layout.column(stripe, cell))
        };
        self.legs.is_degraded() && self.layout.stripes(rows).any(|(stripe, _)| parity(stripe).any(has_leg))
    }

    async fn put(&self, rows: &Range<u64>, writes: &[Write], durability: Durability) -> Result<()> {
        self.put_and_end(rows, writes, durability, self.busy()).await
    }

    /// Submits the writes to all legs that take them. There was no await since the intent was marked, or the
    /// journal was written.
    async fn put_and_end(
        &self,
        rows: &Range<u64>,
        writes: &[Write],
        durability: Durability,
        busy: super::Busy<'_>,
    ) -> Result<()> {
        let is_written = |column| writes.iter().any(|write| write.column == column);
        self.legs.begin_on(rows, |leg| leg.column.is_some_and(is_written));
        self.left_out(rows, is_written);
        let put = |write: &Write| {
            let legs: Vec<usize> = self.takers(write.column).collect();
            let io = Io::write(write.start, write.bytes.clone(), durability);
            legs.into_iter().map(move |leg| (leg, io.clone()))
        };
        let requests = writes.iter().flat_map(put).map(|(leg, io)| (leg, self.node(leg).submit(io)));
        let mut parts = Parts::new(requests).all().await;
        self.legs.set_right(rows, &mut parts).await;
        drop(busy);
        match parts.is_empty() {
            true => Err(Error::offline("no device that would take it is there").at(rows.clone())),
            false => self.legs.ended(rows, parts).await,
        }
    }
}

impl Parity {
    /// A parity was not computed, because no leg would have taken it: its legs are stale there.
    fn left_out(&self, rows: &Range<u64>, is_written: impl Fn(usize) -> bool) {
        for (stripe, at) in self.layout.stripes(rows) {
            let parity =
                (self.layout.data()..self.layout.columns).map(|cell| self.layout.column(stripe, cell));
            for column in parity.filter(|column| !is_written(*column)) {
                let legs = (0..self.legs.nodes.len()).filter(|leg| self.column(*leg) == Some(column));
                legs.for_each(|leg| match self.legs.role(leg) {
                    Role::Sync => self.legs.mark_for_resync(&at),
                    Role::Stale | Role::Failed | Role::Spare => self.legs.mark_stale(leg, &at),
                });
            }
        }
    }
}

/// Cuts `parts` (a cell, the rows of its unit, the new bytes) into rows in which the same cells are written.
/// The unit begins at byte `first` of its column.
fn rows_of(first: u64, cells: usize, parts: &[(usize, Range<u64>, Buf)]) -> Vec<Rows> {
    let mut ends: Vec<u64> = parts.iter().flat_map(|(_, rows, _)| [rows.start, rows.end]).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut all = Vec::new();
    for end in ends.windows(2) {
        let mut new = vec![None; cells];
        for (cell, rows, bytes) in
            parts.iter().filter(|(_, rows, _)| rows.start <= end[0] && end[1] <= rows.end)
        {
            let (from, to) = ((end[0] - rows.start) as usize, (end[1] - rows.start) as usize);
            new[*cell] = Some(bytes.slice(from..to));
        }
        if new.iter().any(Option::is_some) {
            all.push(Rows { at: first + end[0]..first + end[1], new });
        }
    }
    all
}
