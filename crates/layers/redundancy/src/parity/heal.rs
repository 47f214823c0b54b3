//! What a layer above finds to be wrong: which column says something else than what was written, found by trying.
//!
//! The rows of it are read from all columns. Then columns are taken to be wrong, first none, then each one, then each two, as
//! many as there are parities for, and are computed from the others; the one who asked says whether that is it. If it is,
//! the others and the parity that was used are right as well, so all that was computed is written where something else is.
//!
//! Where a crash may have left a parity that is not that of the data, only what was asked for and the parity count as wrong:
//! what is computed of another cell might be what was there before.
//!
//! It deliberately does not look at the parity where the data are right as they are read: others in the row may be wrong.

use super::{Parity, galois};
use crate::legs::is_away;
use lamina_block::{Buf, Healed, Io, Judge, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;

/// The rows of something that is to be healed. They are locked.
struct Rows {
    at: Range<u64>,
    /// What each column holds, if it can be read.
    columns: Vec<Option<(usize, Buf)>>,
    /// The columns that were asked for.
    asked: Vec<usize>,
}

impl Rows {
    /// The part of a column's bytes that is in `part`.
    fn within(&self, part: &Range<u64>) -> Range<usize> {
        (part.start - self.at.start) as usize..(part.end - self.at.start) as usize
    }

    fn lost(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|column| self.columns[*column].is_none()).collect()
    }
}

impl Parity {
    /// Finds what `is_right` at `at`, and writes it where something else is.
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

    /// What each column holds in `rows`, and the leg that says so.
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

    /// The sets of columns that may be wrong, small ones first. All have those that cannot be read.
    fn suspects(&self, rows: &Rows) -> Vec<Vec<usize>> {
        let (layout, lost) = (self.layout, rows.lost());
        let is_parity = |column: usize| {
            layout.stripes(&rows.at).all(|(stripe, _)| layout.cell(stripe, column) >= layout.data())
        };
        let is_unsure = self.legs.needs_resync(&rows.at);
        let may_be = |column: &usize| {
            !lost.contains(column) && (!is_unsure || rows.asked.contains(column) || is_parity(*column))
        };
        let others: Vec<usize> = (0..layout.columns).filter(may_be).collect();
        let mut sets = vec![Vec::new()];
        sets.extend(others.iter().map(|column| vec![*column]));
        let pairs = others.iter().enumerate().flat_map(|(i, a)| others[i + 1..].iter().map(|b| vec![*a, *b]));
        sets.extend(pairs);
        let all = sets.into_iter().map(|set| (set.is_empty(), [&lost[..], &set].concat()));
        // What was not asked for makes no difference to what was, unless that is computed from it.
        let counts = |(first, set): &(bool, Vec<usize>)| {
            set.len() <= layout.parity && (*first || set.iter().any(|column| rows.asked.contains(column)))
        };
        all.filter(counts).map(|(_, set)| set).collect()
    }

    /// What all columns hold if those in `wrong` do not count.
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
            // One parity has said what is right; the other one is that of it.
            let (data, parity) = cells.split_at(layout.data());
            parity.iter().enumerate().for_each(|(which, parity)| galois::encode(data, parity, which));
        }
        columns
    }

    /// Writes what columns should hold to legs that hold something else; on how many.
    async fn give(&self, rows: &Rows, wrong: &[usize], columns: &[Buf]) -> usize {
        // As it was read: nothing was computed from the parity, so nothing says that it is right.
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
