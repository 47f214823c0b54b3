//! Damage that a layer above finds: the column whose bytes differ from those written, found by trying.
//!
//! The rows of the damage are read from all columns. Then columns are assumed to be wrong, first none, then
//! each one, then each two, as many as there are parities, and are computed from the others; the caller says
//! whether the result is right. If it is, the others and the parity that was used are right as well, so all
//! computed bytes are written where the legs have others.
//!
//! Where a crash may have left a parity that is not that of the data, only the requested columns and the
//! parity are assumed to be wrong: another cell would perhaps be computed as it was before.
//!
//! The parity is deliberately not compared where the data are right as they are read: other data in the row
//! may be wrong.

use super::{Parity, galois};
use crate::legs::is_away;
use lamina_block::{Buf, Healed, Io, Judge, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;

/// The rows to be healed. They are locked.
struct Rows {
    at: Range<u64>,
    /// The bytes of each column, if it can be read.
    columns: Vec<Option<(usize, Buf)>>,
    /// The columns of the request.
    asked: Vec<usize>,
}

impl Rows {
    /// The range of a column's bytes that is in `part`.
    fn within(&self, part: &Range<u64>) -> Range<usize> {
        (part.start - self.at.start) as usize..(part.end - self.at.start) as usize
    }

    fn lost(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|column| self.columns[*column].is_none()).collect()
    }
}

impl Parity {
    /// Finds the bytes that `is_right` at `at`, and writes them to legs that have others.
    pub(super) async fn put_right(&self, at: &Range<u64>, is_right: Judge) -> Result<Option<Healed>> {
        let bytes = self.take(at);
        let runs = self.runs(at, &bytes);
        let (start, end) = (runs.iter().map(|run| run.1.start).min(), runs.iter().map(|run| run.1.end).max());
        let rows = start.unwrap_or(0)..end.unwrap_or(0);
        // As a write does, so that none is under way.
        let _lock = self.legs.locks.lock(&self.legs.whole(&rows)).await;
        let asked = runs.iter().map(|run| run.0).collect();
        let rows = Rows { columns: self.read_rows(&rows).await, at: rows, asked };
        for wrong in self.suspects(&rows) {
            let columns = self.without(&rows, &wrong);
            for (column, part, into) in &runs {
                into.copy_from(&columns[*column].slice(rows.within(part)));
            }
            if is_right(&bytes) || flawed("a wrong copy heals") {
                let copies = self.give(&rows, &wrong, &columns).await;
                return Ok(Some(Healed { bytes, copies }));
            }
        }
        Ok(None)
    }

    /// The bytes of each column in `rows`, and the leg they are read from.
    async fn read_rows(&self, rows: &Range<u64>) -> Vec<Option<(usize, Buf)>> {
        let read = async |column: usize| {
            let (leg, bytes) = (self.holder(column, rows, &[])?, self.take(rows));
            match self.node(leg).submit(Io::read(rows.start, bytes.clone())).await {
                Ok(()) => return Some((leg, bytes)),
                Err(e) if is_away(&e) => self.legs.put_out(leg, &e),
                Err(_) => {}
            }
            None
        };
        futures_util::future::join_all((0..self.layout.columns).map(read)).await
    }

    /// The sets of columns that may be wrong, small ones first. Each has all columns that cannot be read.
    fn suspects(&self, rows: &Rows) -> Vec<Vec<usize>> {
        let (layout, lost) = (self.layout, rows.lost());
        let is_parity = |column: usize| {
            layout.stripes(&rows.at).all(|(stripe, _)| layout.cell(stripe, column) >= layout.data())
        };
        let needs_resync = self.legs.needs_resync(&rows.at);
        let may_be = |column: &usize| {
            !lost.contains(column) && (!needs_resync || rows.asked.contains(column) || is_parity(*column))
        };
        let others: Vec<usize> = (0..layout.columns).filter(may_be).collect();
        let mut sets = vec![Vec::new()];
        sets.extend(others.iter().map(|column| vec![*column]));
        let pairs = others.iter().enumerate().flat_map(|(i, a)| others[i + 1..].iter().map(|b| vec![*a, *b]));
        sets.extend(pairs);
        let all = sets.into_iter().map(|set| (set.is_empty(), [&lost[..], &set].concat()));
        // Columns outside the request make no difference to it, unless it is computed from them.
        let counts = |(first, set): &(bool, Vec<usize>)| {
            set.len() <= layout.parity && (*first || set.iter().any(|column| rows.asked.contains(column)))
        };
        all.filter(counts).map(|(_, set)| set).collect()
    }

    /// The bytes of all columns, if those in `wrong` do not count.
    fn without(&self, rows: &Rows, wrong: &[usize]) -> Vec<Buf> {
        let layout = self.layout;
        let columns: Vec<Buf> = rows
            .columns
            .iter()
            .map(|column| {
                let copy = self.take(&rows.at);
                column.iter().for_each(|(_, bytes)| copy.copy_from(bytes));
                copy
            })
            .collect();
        for (stripe, part) in layout.stripes(&rows.at).filter(|_| !wrong.is_empty()) {
            let within = rows.within(&part);
            let cells: Vec<Buf> = (0..layout.columns)
                .map(|cell| columns[layout.column(stripe, cell)].slice(within.clone()))
                .collect();
            let mut gone: Vec<usize> = wrong.iter().map(|column| layout.cell(stripe, *column)).collect();
            gone.sort_unstable();
            galois::solve(&cells, layout.data(), &gone);
            // One parity has given the right data; the other parity is computed from them.
            let (data, parity) = cells.split_at(layout.data());
            parity.iter().enumerate().for_each(|(which, parity)| galois::encode(data, parity, which));
        }
        columns
    }

    /// Writes the computed columns to legs that have other bytes; returns on how many.
    async fn give(&self, rows: &Rows, wrong: &[usize], columns: &[Buf]) -> usize {
        // The data are right as they were read: nothing was computed from the parity, so the parity is not
        // verified.
        if !wrong.iter().any(|column| rows.asked.contains(column)) {
            return 0;
        }
        let mut repaired = 0;
        for (column, bytes) in columns.iter().enumerate() {
            let is_same = |(_, there): &(usize, Buf)| there.to_vec() == bytes.to_vec();
            if rows.columns[column].as_ref().is_some_and(is_same) {
                continue;
            }
            for leg in self.takers(column).filter(|leg| self.legs.is_good(*leg, &rows.at)).collect::<Vec<_>>()
            {
                let why = "healed from the others: a layer above knows what is right";
                repaired += usize::from(self.legs.repair(&rows.at, leg, bytes.clone(), why).await);
            }
        }
        repaired
    }
}
