//! Computing the bytes of a leg from the others: reads around a leg that is absent or fails, the rebuild of a
//! leg, the parity after a crash, the scrub.

use super::{Parity, galois};
use crate::legs::{Content, Found, Parts, is_away, is_corrupt};
use lamina_block::{Buf, Durability, Error, Io, Pending, Place, Request, Result, Role};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::rc::Rc;

impl Parity {
    /// A leg, not one of `bad`, with the right bytes of `column` at `at`.
    pub(super) fn holder(&self, column: usize, at: &Range<u64>, bad: &[usize]) -> Option<usize> {
        if self.is_undone(at) {
            return None;
        }
        (0..self.legs.nodes.len()).find(|leg| {
            self.column(*leg) == Some(column) && self.legs.is_good(*leg, at) && !bad.contains(leg)
        })
    }

    /// The places of byte `at`: its own, and those of the parity of its row.
    pub(super) fn located(&self, at: u64) -> Vec<Place> {
        let (unit, data) = (self.layout.unit, self.layout.data());
        let (stripe, within) = (at / self.layout.width(), at % self.layout.width());
        let there = stripe * unit + within % unit;
        let block = u64::from(self.legs.block());
        let around = there / block * block..(there / block + 1) * block;
        let cells = [(within / unit) as usize].into_iter().chain(data..self.layout.columns);
        let place = |cell| {
            let leg = self.holder(self.layout.column(stripe, cell), &around, &[])?;
            let role = if cell < data { Role::Data } else { Role::Parity };
            Some(Place { child: Rc::clone(self.node(leg)), at: there, role })
        };
        cells.filter_map(place).collect()
    }

    /// The legs that take writes to `column`.
    pub(super) fn takers(&self, column: usize) -> impl Iterator<Item = usize> {
        self.legs.targets().filter(move |leg| self.column(*leg) == Some(column))
    }

    /// True if one of these legs has the bytes at `at` as they were before.
    pub(super) fn has_taker(&self, column: usize, at: &Range<u64>) -> bool {
        self.takers(column).any(|leg| self.legs.is_good(leg, at))
    }

    /// Memory for a range of a column.
    pub(super) fn take(&self, at: &Range<u64>) -> Buf {
        self.legs.env.pool().take((at.end - at.start) as usize)
    }

    /// Reads `at` from legs, all at once. Legs that fail are added to `bad`, and put out if they do not
    /// answer.
    pub(super) async fn read_all(
        &self,
        at: &Range<u64>,
        from: Vec<(usize, Buf)>,
        bad: &mut Vec<usize>,
    ) -> Result<()> {
        let read = from.into_iter().map(|(leg, into)| (leg, self.node(leg).submit(Io::read(at.start, into))));
        let mut result = Ok(());
        for part in Parts::new(read).all().await {
            if let Err(e) = part.result {
                if is_away(&e) {
                    self.legs.put_out(part.leg, &e);
                }
                bad.push(part.leg);
                result = Err(e);
            }
        }
        result
    }

    /// Submits changes to legs. Legs that fail are put out, if that is possible, and returned.
    pub(super) async fn put_all(
        &self,
        requests: impl Iterator<Item = (usize, Request)>,
    ) -> Vec<(usize, Error)> {
        let parts = Parts::new(requests).all().await;
        let failed: Vec<_> =
            parts.into_iter().filter_map(|part| Some((part.leg, part.result.err()?))).collect();
        failed.iter().filter(|(_, e)| !is_corrupt(e)).for_each(|(leg, e)| self.legs.put_out(*leg, e));
        failed
    }

    /// The error of a leg that could not be put out.
    pub(super) fn unless_out(&self, failed: Vec<(usize, Error)>) -> Result<()> {
        let stays = |(leg, _): &(usize, Error)| self.legs.takes_writes(*leg);
        failed.into_iter().find(stays).map_or(Ok(()), |(_, e)| Err(e))
    }

    /// The right bytes of all columns at `at`, which is locked, without asking the legs in `not`. Those in
    /// `bad` fail somewhere in it.
    pub(super) async fn recover(&self, at: &Range<u64>, bad: &[usize], not: &[usize]) -> Result<Vec<Buf>> {
        match self.recover_at_once(at, &[bad, not].concat()).await {
            Err(_) if !self.legs.is_piece(at) || !bad.is_empty() => {}
            done => return done,
        }
        // Other legs may fail elsewhere.
        let columns: Vec<Buf> = (0..self.layout.columns).map(|_| self.take(at)).collect();
        for piece in self.legs.pieces(at) {
            let within = (piece.start - at.start) as usize..(piece.end - at.start) as usize;
            let found = self.recover_at_once(&piece, not).await?;
            columns.iter().zip(found).for_each(|(all, found)| all.slice(within.clone()).copy_from(&found));
        }
        Ok(columns)
    }

    async fn recover_at_once(&self, at: &Range<u64>, bad: &[usize]) -> Result<Vec<Buf>> {
        let (mut bad, mut why) = (bad.to_vec(), None);
        loop {
            let from: Vec<Option<usize>> =
                (0..self.layout.columns).map(|column| self.holder(column, at, &bad)).collect();
            let lost: Vec<usize> = (0..from.len()).filter(|column| from[*column].is_none()).collect();
            if lost.len() > self.layout.parity {
                let gone = match self.is_undone(at) {
                    true => {
                        "the last write stands in the journal, and can be read when the devices may be written"
                    }
                    false => "too many of its devices are missing or fail",
                };
                return Err(why.unwrap_or_else(|| self.gone(at, gone)));
            }
            let columns: Vec<Buf> = from.iter().map(|_| self.take(at)).collect();
            let read = from.iter().zip(&columns).filter_map(|(leg, into)| Some(((*leg)?, into.clone())));
            match self.read_all(at, read.collect(), &mut bad).await {
                Ok(()) => return self.solve(at, &columns, &lost).map(|()| columns),
                Err(e) => why = Some(e),
            }
        }
    }

    /// Computes the columns that are `lost` from the others.
    fn solve(&self, at: &Range<u64>, columns: &[Buf], lost: &[usize]) -> Result<()> {
        let layout = self.layout;
        for (stripe, part) in layout.stripes(at) {
            let within = (part.start - at.start) as usize..(part.end - at.start) as usize;
            let cells: Vec<Buf> = (0..layout.columns)
                .map(|cell| columns[layout.column(stripe, cell)].slice(within.clone()))
                .collect();
            let mut gone: Vec<usize> = lost.iter().map(|column| layout.cell(stripe, *column)).collect();
            gone.sort_unstable();
            if self.legs.needs_resync(&part) && !flawed("stale parity") {
                if gone.iter().any(|cell| *cell < layout.data()) {
                    return Err(self.gone(
                        &part,
                        "these bytes cannot be known: the power failed while they were written, and their \
                         device is gone",
                    ));
                }
                gone = (layout.data()..layout.columns).collect();
            }
            galois::solve(&cells, layout.data(), &gone);
        }
        Ok(())
    }

    fn gone(&self, at: &Range<u64>, why: &str) -> Error {
        Error::media(format!("{why} (bytes {}..{} of each device)", at.start, at.end))
    }

    /// Reads `at` of `column` into `into`, where leg `leg` failed with `e` or has no bytes.
    pub(super) async fn read_around(
        &self,
        column: usize,
        at: Range<u64>,
        into: Buf,
        failed: Option<(usize, Error)>,
    ) -> Result<()> {
        match &failed {
            Some((_, e)) if e.is_of_memory() => return Err(e.clone()),
            Some((leg, e)) if is_away(e) => self.legs.put_out(*leg, e),
            Some(_) | None => {}
        }
        let bad: Vec<usize> = failed.iter().map(|(leg, _)| *leg).collect();
        let lock = self.legs.locks.lock(&at).await;
        let recovered = self.recover_at_once(&at, &bad).await;
        drop(lock);
        match recovered {
            Ok(columns) => {
                into.copy_from(&columns[column]);
                if let Some((leg, _)) = failed.filter(|(_, e)| !is_away(e)) {
                    self.legs.heal(&at, leg).await;
                }
                return Ok(());
            }
            Err(e) if self.legs.is_piece(&at) => return Err(e),
            Err(_) => {}
        }
        // Other legs may fail elsewhere, and the leg may have the pieces that they cannot read.
        for piece in self.legs.pieces(&at) {
            let part = into.slice((piece.start - at.start) as usize..(piece.end - at.start) as usize);
            Box::pin(self.read_column(column, piece, part)).await?;
        }
        Ok(())
    }

    /// Computes the parity of stripes that follow each other, and writes it. A leg that does not get it is
    /// stale there.
    async fn write_parity(&self, run: &[(u64, Range<u64>)]) -> Result<()> {
        let at = run[0].1.start..run[run.len() - 1].1.end;
        let columns = self.recover(&at, &[], &[]).await?;
        let (mut writes, mut parities) = (Vec::new(), Vec::new());
        for (stripe, part) in run {
            let within = (part.start - at.start) as usize..(part.end - at.start) as usize;
            for cell in self.layout.data()..self.layout.columns {
                let column = self.layout.column(*stripe, cell);
                let io = Io::write(part.start, columns[column].slice(within.clone()), Durability::Cached);
                parities.push((column, part));
                writes.extend(self.takers(column).map(|leg| (leg, io.clone())));
            }
        }
        let asked: Vec<usize> = writes.iter().map(|(leg, _)| *leg).collect();
        let put = |(leg, io): (usize, Io)| (leg, self.node(leg).submit(io));
        let failed = self.put_all(writes.into_iter().map(put)).await;
        let has_it = |leg: &usize| asked.contains(leg) && failed.iter().all(|(other, _)| other != leg);
        for (column, part) in parities {
            let legs = (0..self.legs.nodes.len()).filter(|leg| self.column(*leg) == Some(column));
            let without = legs.filter(|leg| !has_it(leg) && !flawed("what needs a resync is not missed"));
            without.for_each(|leg| self.legs.mark_stale(leg, part));
        }
        self.unless_out(failed)
    }

    /// Compares the parity of `at`, all of one stripe, with the bytes of `columns`, block by block.
    async fn compare_stripe(&self, stripe: u64, at: &Range<u64>, columns: &[Buf]) {
        let (layout, block) = (self.layout, u64::from(self.legs.block()));
        let cells: Vec<Buf> =
            (0..layout.columns).map(|cell| columns[layout.column(stripe, cell)].clone()).collect();
        let (data, parity) = cells.split_at(layout.data());
        let syndromes: Vec<Buf> = (0..layout.parity).map(|_| self.take(at)).collect();
        for (which, syndrome) in syndromes.iter().enumerate() {
            galois::encode(data, syndrome, which);
            galois::add(syndrome, &parity[which]);
        }
        let syndromes: Vec<Vec<u8>> = syndromes.iter().map(Buf::to_vec).collect();
        for start in (0..at.end - at.start).step_by(block as usize) {
            let within = start as usize..(start + block) as usize;
            let of_block: Vec<&[u8]> = syndromes.iter().map(|all| &all[within.clone()]).collect();
            if of_block.iter().all(|all| all.iter().all(|byte| *byte == 0)) {
                continue;
            }
            let here = at.start + start..at.start + start + block;
            let wrong = wrong_cell(layout.data(), &of_block);
            let legs: Vec<usize> =
                wrong.iter().flat_map(|cell| self.takers(layout.column(stripe, *cell))).collect();
            let (Some(cell), [leg]) = (wrong, &legs[..]) else {
                self.legs.found(Found::Different);
                let leg = self.takers(layout.column(stripe, layout.data())).next().unwrap_or(0);
                self.legs.note(
                    leg,
                    &here,
                    "the parity is not that of the data, and nothing says which is wrong",
                );
                continue;
            };
            let right: Vec<Buf> =
                cells.iter().map(|cell| Buf::from_vec(cell.slice(within.clone()).to_vec())).collect();
            galois::solve(&right, layout.data(), &[cell]);
            let why = "healed from the others: the two parities agree that this leg was wrong";
            self.legs.repair(&here, *leg, right[cell].clone(), why).await;
        }
    }
}

/// The one cell of a stripe that is wrong, if one alone explains how the parities differ from the right ones
/// (`P` and `Q` as computed, plus those that are there).
fn wrong_cell(data: usize, syndromes: &[&[u8]]) -> Option<usize> {
    let [p, q] = syndromes else { return None };
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if is_zero(q) || is_zero(p) {
        return Some(if is_zero(q) { data } else { data + 1 });
    }
    // If data cell z is wrong by e, P is by e, and Q by g^z e.
    let mut cells = p.iter().zip(q.iter()).filter(|(p, q)| (**p, **q) != (0, 0)).map(|(p, q)| match (p, q) {
        (0, _) | (_, 0) => None,
        (p, q) => Some(galois::log(galois::divide(*q, *p))).filter(|cell| *cell < data),
    });
    let first = cells.next()??;
    cells.all(|cell| cell == Some(first)).then_some(first)
}

impl Content for Parity {
    /// Computes the parity from the data.
    fn agree(self: Rc<Self>, at: Range<u64>) -> Pending {
        Box::pin(async move {
            if flawed("parity not recomputed") {
                return Ok(());
            }
            let stripes: Vec<(u64, Range<u64>)> = self.layout.stripes(&at).collect();
            for run in stripes.chunk_by(|a, b| self.legs.needs_resync(&a.1) == self.legs.needs_resync(&b.1)) {
                if self.legs.needs_resync(&run[0].1) {
                    self.write_parity(run).await?;
                }
            }
            Ok(())
        })
    }

    fn right(self: Rc<Self>, at: Range<u64>, leg: usize, mut not: Vec<usize>) -> Pending<Buf> {
        not.push(leg);
        Box::pin(async move {
            let column = self.column(leg).ok_or_else(|| Error::invalid("this leg has no column"))?;
            // Another leg of the column may have the bytes, when a leg replaces one that is being detached.
            if let Some(other) = self.holder(column, &at, &not) {
                let into = self.take(&at);
                if self.read_all(&at, vec![(other, into.clone())], &mut Vec::new()).await.is_ok() {
                    return Ok(into);
                }
            }
            Ok(self.recover(&at, &[], &not).await?.swap_remove(column))
        })
    }

    fn compare(self: Rc<Self>, at: Range<u64>, _trust: Option<usize>) -> Pending {
        Box::pin(async move {
            let columns: Vec<Buf> = (0..self.layout.columns).map(|_| self.take(&at)).collect();
            let mut whole = !self.legs.needs_resync(&at);
            for leg in self.legs.in_sync().collect::<Vec<_>>() {
                let Some(column) = self.column(leg) else { continue };
                let read = || self.node(leg).submit(Io::read(at.start, columns[column].clone()));
                let mut result = read().await;
                if result.as_ref().is_err_and(|e| !is_away(e)) {
                    for piece in self.legs.pieces(&at) {
                        self.legs.heal_piece(&piece, leg).await;
                    }
                    result = read().await;
                }
                if let Err(e) = result.as_ref().inspect_err(|_| whole = false)
                    && is_away(e)
                {
                    self.legs.put_out(leg, e);
                }
            }
            if !whole || self.legs.is_degraded() {
                return Ok(());
            }
            for (stripe, part) in self.layout.stripes(&at) {
                let within = (part.start - at.start) as usize..(part.end - at.start) as usize;
                let of_part: Vec<Buf> = columns.iter().map(|column| column.slice(within.clone())).collect();
                self.compare_stripe(stripe, &part, &of_part).await;
            }
            Ok(())
        })
    }

    /// Before a lost leg is recorded: no writes are under way that are not in the journal, and all are
    /// durable.
    fn before_record(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            loop {
                let legs: Vec<usize> = self.legs.in_sync().collect();
                if *self.recorded_in_sync.borrow() == legs {
                    return Ok(());
                }
                // A write is durable by its record, as long as records count.
                if self.legs.is_degraded() || self.epoch.get() != 0 {
                    self.legs.moved.until(|| self.under_way.get() == 0).await;
                    let flush = |leg| (leg, self.node(leg).submit(Io::flush()));
                    let failed =
                        self.put_all(self.legs.targets().collect::<Vec<_>>().into_iter().map(flush)).await;
                    self.unless_out(failed)?;
                }
                if self.legs.in_sync().eq(legs.iter().copied()) {
                    self.begin_epoch();
                    self.recorded_in_sync.replace(legs);
                    return Ok(());
                }
            }
        })
    }
}
