//! What one leg cannot read, another one can: it is read there, and written back.

use super::Mirror;
use crate::flaw::flawed;
use crate::legs::{Content, is_away};
use lamina_block::{Buf, Durability, Error, Io, Pending, Result};
use std::ops::Range;
use std::rc::Rc;

/// Where no leg can read the whole of a range, it is read in pieces of so many bytes.
const PIECE: u64 = 4096;

impl Mirror {
    /// Leg `leg` failed a read with `e`: the others are asked, and it gets from them what it could not read.
    pub async fn read_elsewhere(self: Rc<Self>, io: Io, leg: usize, e: Error) -> Result<()> {
        let mut failed = vec![(leg, e)];
        loop {
            let tried: Vec<usize> = failed.iter().map(|(leg, _)| *leg).collect();
            let other = self.readable(&io.at, &tried).next().or_else(|| self.sync_but(&tried));
            let Some(other) = other else { break };
            match self.node(other).submit(io.clone()).await {
                Err(e) => failed.push((other, e)),
                Ok(()) => {
                    for (leg, e) in failed {
                        self.heal(&io.at, leg, &e).await;
                    }
                    return Ok(());
                }
            }
        }
        let piece = PIECE.max(self.legs.block().into());
        if io.len() <= piece || failed.len() < 2 {
            return Err(failed.swap_remove(0).1);
        }
        // Each may have bytes that the others lack.
        let mut from = io.at.start;
        while from < io.at.end {
            let to = io.at.end.min((from / piece + 1) * piece);
            let part = io.part(from..to, from);
            let first = self.readable(&part.at, &[]).next();
            let Some(first) = first else { return Err(failed.swap_remove(0).1) };
            if let Err(e) = self.node(first).submit(part.clone()).await {
                Box::pin(Rc::clone(&self).read_elsewhere(part, first, e)).await?;
            }
            from = to;
        }
        Ok(())
    }

    /// A leg in sync that is not one of `not`.
    fn sync_but(&self, not: &[usize]) -> Option<usize> {
        self.legs.in_sync().find(|leg| !not.contains(leg))
    }

    /// Writes to leg `leg`, which failed a read of `at` with `e`, what the others have.
    async fn heal(&self, at: &Range<u64>, leg: usize, e: &Error) {
        if is_away(e) {
            return self.legs.put_out(leg, e);
        }
        if self.legs.is_read_only() {
            return;
        }
        let _lock = self.legs.locks.take(at).await;
        if let Ok(bytes) = self.others_hold(at, leg).await {
            self.mend(at, leg, bytes, &e.to_string()).await;
        }
    }

    /// What the others have at `at`, which is locked.
    async fn others_hold(&self, at: &Range<u64>, leg: usize) -> Result<Buf> {
        let mut result = Err(Error::offline("no other leg has these bytes").at(at.clone()));
        let others: Vec<usize> = self.readable(at, &[leg]).chain(self.sync_but(&[leg])).collect();
        for other in others {
            let bytes = self.legs.env.pool().take((at.end - at.start) as usize);
            match self.node(other).submit(Io::read(at.start, bytes.clone())).await {
                Ok(()) => return Ok(bytes),
                Err(e) => result = Err(e),
            }
        }
        result
    }

    /// Writes what is right to a leg at `at`, which is locked.
    async fn mend(&self, at: &Range<u64>, leg: usize, bytes: Buf, why: &str) {
        match self.node(leg).submit(Io::write(at.start, bytes, Durability::Cached)).await {
            Ok(()) => {
                let found = &self.legs.findings;
                found.healed.set(found.healed.get() + 1);
                self.legs.note(leg, at, &format!("healed from another leg: {why}"));
            }
            Err(e) => self.legs.put_out(leg, &e),
        }
    }

    /// Compares one block of several copies, and mends what can be.
    async fn vote(&self, at: Range<u64>, copies: &[(usize, &[u8])], trust: Option<usize>) {
        let votes = |bytes: &[u8]| copies.iter().filter(|(_, other)| *other == bytes).count() * 2;
        let wins = |votes: usize| (votes > copies.len()) != flawed!("wrong leg healed");
        let right = match copies.iter().find(|(_, bytes)| wins(votes(bytes))) {
            Some(majority) => Some(majority),
            None => copies.iter().find(|(leg, _)| trust == Some(*leg)),
        };
        let Some((_, right)) = right else {
            let found = &self.legs.findings;
            found.different.set(found.different.get() + 1);
            let names: Vec<&str> = copies.iter().map(|(leg, _)| self.node(*leg).name()).collect();
            let what = format!("{} differ, and nothing says which is right", names.join(" and "));
            return self.legs.note(copies[0].0, &at, &what);
        };
        for (leg, bytes) in copies.iter().filter(|(_, bytes)| bytes != right) {
            let buf = self.legs.env.pool().take(bytes.len());
            buf.write(0, right);
            self.mend(&at, *leg, buf, "it differed from the others").await;
        }
    }
}

impl Content for Mirror {
    /// The first leg that can be read is right.
    fn agree(self: Rc<Self>, at: Range<u64>) -> Pending {
        Box::pin(async move {
            let legs: Vec<usize> = self.legs.in_sync().collect();
            let bytes = self.legs.env.pool().take((at.end - at.start) as usize);
            let (mut source, mut result) = (None, Ok(()));
            for leg in legs.iter().filter(|_| legs.len() > 1) {
                result = self.node(*leg).submit(Io::read(at.start, bytes.clone())).await;
                if result.is_ok() {
                    source = Some(*leg);
                    break;
                }
            }
            result?;
            for leg in legs.into_iter().filter(|leg| source.is_some_and(|source| source != *leg)) {
                let write = Io::write(at.start, bytes.clone(), Durability::Cached);
                if let Err(e) = self.node(leg).submit(write).await {
                    self.legs.put_out(leg, &e);
                }
            }
            Ok(())
        })
    }

    fn right(self: Rc<Self>, at: Range<u64>, leg: usize) -> Pending<Buf> {
        Box::pin(async move { self.others_hold(&at, leg).await })
    }

    fn compare(self: Rc<Self>, at: Range<u64>, trust: Option<usize>) -> Pending {
        Box::pin(async move {
            let mut copies = Vec::new();
            for leg in self.legs.in_sync().collect::<Vec<_>>() {
                let bytes = self.legs.env.pool().take((at.end - at.start) as usize);
                match self.node(leg).submit(Io::read(at.start, bytes.clone())).await {
                    Ok(()) => copies.push((leg, bytes.to_vec())),
                    Err(e) if is_away(&e) => self.legs.put_out(leg, &e),
                    Err(e) => match self.others_hold(&at, leg).await {
                        Ok(bytes) => self.mend(&at, leg, bytes, &e.to_string()).await,
                        Err(e) => self.legs.note(leg, &at, &format!("no leg can read it: {e}")),
                    },
                }
            }
            if self.legs.is_unsure(&at) || copies.windows(2).all(|pair| pair[0].1 == pair[1].1) {
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
