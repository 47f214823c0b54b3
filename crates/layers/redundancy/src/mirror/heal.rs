//! Blocks that one leg cannot read are read from another leg, and written back.

use super::Mirror;
use crate::legs::{Content, Found, is_away, is_corrupt};
use lamina_block::{Buf, Durability, Error, Healed, Io, Judge, Pending, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::rc::Rc;

impl Mirror {
    /// Leg `leg` failed a read with `e`: reads from the others, and writes back the blocks that the leg could
    /// not read.
    pub async fn read_elsewhere(self: Rc<Self>, io: Io, leg: usize, e: Error) -> Result<()> {
        if e.is_of_memory() {
            return Err(e);
        }
        if is_away(&e) {
            self.legs.put_out(leg, &e);
        }
        // Where legs may differ each block comes from the first leg that can read it, whichever request asks
        // for it.
        let whole = self.legs.is_piece(&io.at) || !self.legs.needs_resync(&io.at);
        let e = match self.read_from(&io, vec![leg], whole).await {
            true => return Ok(()),
            false => e,
        };
        if self.legs.is_piece(&io.at) {
            return Err(e);
        }
        // Each leg may have blocks that the others have lost.
        for piece in self.legs.pieces(&io.at) {
            if !self.read_from(&io.part(piece.clone(), piece.start), Vec::new(), true).await {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Reads from the first leg that can, if `ask`; then heals the legs in `failed`, and those that fail.
    async fn read_from(&self, io: &Io, mut failed: Vec<usize>, ask: bool) -> bool {
        for leg in self.sources(&io.at, &failed).into_iter().filter(|_| ask) {
            match self.node(leg).submit(io.clone()).await {
                Ok(()) => {
                    for leg in failed {
                        self.legs.heal(&io.at, leg).await;
                    }
                    return true;
                }
                Err(e) if e.is_of_memory() => return false,
                Err(e) if is_away(&e) => self.legs.put_out(leg, &e),
                Err(_) => failed.push(leg),
            }
        }
        false
    }

    /// The legs that may have `at`, right ones first, without those in `not`.
    fn sources(&self, at: &Range<u64>, not: &[usize]) -> Vec<usize> {
        let mut legs: Vec<usize> = self.readable(at, not).collect();
        let more: Vec<usize> =
            self.legs.in_sync().filter(|leg| !legs.contains(leg) && !not.contains(leg)).collect();
        legs.extend(more);
        legs
    }

    /// Reads `at`, which is locked, from the legs apart from those in `not`.
    async fn expected(&self, at: &Range<u64>, not: &[usize]) -> Result<Buf> {
        let bytes = self.legs.env.pool().take((at.end - at.start) as usize);
        let io = Io::read(at.start, bytes.clone());
        match self.sources(at, not).first() {
            Some(first) if self.node(*first).submit(io.clone()).await.is_ok() => return Ok(bytes),
            Some(_) | None => {}
        }
        for piece in self.legs.pieces(at) {
            let mut result = Err(Error::offline("no other leg has these bytes").at(at.clone()));
            for leg in self.sources(&piece, not) {
                result = self.node(leg).submit(io.part(piece.clone(), piece.start)).await;
                if result.is_ok() {
                    break;
                }
            }
            result?;
        }
        Ok(bytes)
    }

    /// Makes all legs the same at `at`: the first leg that can be read is right. If `at` is more than one
    /// block only the first leg is read.
    async fn spread(&self, at: &Range<u64>) -> Result<()> {
        let legs: Vec<usize> = self.legs.in_sync().collect();
        let bytes = self.legs.env.pool().take((at.end - at.start) as usize);
        let tried = if self.legs.is_piece(at) { legs.len() } else { 1 };
        let (mut source, mut wrong, mut result) = (None, Vec::new(), Ok(()));
        for leg in legs[..tried].iter().filter(|_| legs.len() > 1) {
            match self.node(*leg).submit(Io::read(at.start, bytes.clone())).await {
                Ok(()) => {
                    source = Some(*leg);
                    break;
                }
                Err(e) if is_away(&e) => {
                    self.legs.put_out(*leg, &e);
                    result = result.and(Err(e));
                }
                // Legs that cannot read a block agree about it.
                Err(e) if tried > 1 && is_corrupt(&e) => wrong.push(*leg),
                Err(e) => result = result.and(Err(e)),
            }
        }
        let Some(source) = source else { return result };
        for leg in legs.into_iter().filter(|leg| *leg != source) {
            if wrong.contains(&leg) {
                self.legs.repair(at, leg, bytes.clone(), "healed from another leg after a crash").await;
                continue;
            }
            let write = Io::write(at.start, bytes.clone(), Durability::Cached);
            if let Err(e) = self.node(leg).submit(write).await {
                self.legs.put_out(leg, &e);
            }
        }
        Ok(())
    }

    /// Writes the copy of `at` that `is_right`, if there is one, to all legs that have other bytes.
    pub(super) async fn put_right(&self, at: &Range<u64>, is_right: Judge) -> Result<Option<Healed>> {
        let _lock = self.legs.locks.lock(&self.legs.whole(at)).await;
        let mut copies: Vec<(usize, Option<Buf>)> = Vec::new();
        for leg in self.legs.targets().collect::<Vec<_>>() {
            let bytes = self.legs.env.pool().take((at.end - at.start) as usize);
            match self.node(leg).submit(Io::read(at.start, bytes.clone())).await {
                Ok(()) => copies.push((leg, Some(bytes))),
                Err(e) if is_away(&e) => self.legs.put_out(leg, &e),
                Err(_) => copies.push((leg, None)),
            }
        }
        let is_right = |bytes: &&Buf| is_right(bytes) || flawed("a wrong copy heals");
        // Stale bytes of a leg may be right all the same, if they are known in large units only; they are
        // copied anyhow.
        let right = copies.iter().filter_map(|(_, bytes)| bytes.as_ref()).find(is_right).cloned();
        let Some(right) = right else { return Ok(None) };
        let (all, mut repaired) = (right.to_vec(), 0);
        for (leg, bytes) in copies {
            let is_same = bytes.is_some_and(|bytes| bytes.to_vec() == all);
            if !is_same && self.legs.is_good(leg, at) {
                let why = "healed from the others: a layer above knows what is right";
                repaired += usize::from(self.legs.repair(at, leg, right.clone(), why).await);
            }
        }
        Ok(Some(Healed { bytes: right, copies: repaired }))
    }

    /// Compares one block of several copies, and repairs what can be.
    async fn vote(&self, at: Range<u64>, copies: &[(usize, &[u8])], trust: Option<usize>) {
        let votes = |bytes: &[u8]| copies.iter().filter(|(_, other)| *other == bytes).count() * 2;
        let wins = |votes: usize| (votes > copies.len()) != flawed("wrong leg healed");
        let right = match copies.iter().find(|(_, bytes)| wins(votes(bytes))) {
            Some(majority) => Some(majority),
            None => copies.iter().find(|(leg, _)| trust == Some(*leg)),
        };
        let Some((_, right)) = right else {
            self.legs.found(Found::Different);
            let names: Vec<&str> = copies.iter().map(|(leg, _)| self.node(*leg).name()).collect();
            let what = format!("{} differ, and nothing says which is right", names.join(" and "));
            return self.legs.note(copies[0].0, &at, &what);
        };
        for (leg, bytes) in copies.iter().filter(|(_, bytes)| bytes != right) {
            let buf = self.legs.env.pool().take(bytes.len());
            buf.write(0, right);
            self.legs.repair(&at, *leg, buf, "healed from the others: the leg differed").await;
        }
    }
}

impl Content for Mirror {
    fn agree(self: Rc<Self>, at: Range<u64>) -> Pending {
        Box::pin(async move {
            let whole = self.spread(&at).await;
            if whole.is_ok() || self.legs.is_piece(&at) {
                return whole;
            }
            let mut result = Ok(());
            for piece in self.legs.pieces(&at) {
                result = result.and(self.spread(&piece).await);
            }
            result
        })
    }

    fn right(self: Rc<Self>, at: Range<u64>, leg: usize, mut not: Vec<usize>) -> Pending<Buf> {
        not.push(leg);
        Box::pin(async move { self.expected(&at, &not).await })
    }

    fn compare(self: Rc<Self>, at: Range<u64>, trust: Option<usize>) -> Pending {
        Box::pin(async move {
            let mut copies = Vec::new();
            for leg in self.legs.in_sync().collect::<Vec<_>>() {
                let bytes = self.legs.env.pool().take((at.end - at.start) as usize);
                let read = || self.node(leg).submit(Io::read(at.start, bytes.clone()));
                let mut result = read().await;
                if result.as_ref().is_err_and(|e| !is_away(e)) {
                    for piece in self.legs.pieces(&at) {
                        self.legs.heal_piece(&piece, leg).await;
                    }
                    result = read().await;
                }
                match result {
                    Ok(()) => copies.push((leg, bytes.to_vec())),
                    Err(e) if is_away(&e) => self.legs.put_out(leg, &e),
                    Err(_) => {}
                }
            }
            if self.legs.needs_resync(&at) || copies.windows(2).all(|pair| pair[0].1 == pair[1].1) {
                return Ok(());
            }
            let block = self.legs.block() as usize;
            for start in (0..copies[0].1.len()).step_by(block) {
                let of_each: Vec<_> =
                    copies.iter().map(|(leg, bytes)| (*leg, &bytes[start..start + block])).collect();
                if of_each.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                    let start = at.start + start as u64;
                    self.vote(start..start + block as u64, &of_each, trust).await;
                }
            }
            Ok(())
        })
    }
}
