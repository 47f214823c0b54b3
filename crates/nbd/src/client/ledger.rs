//! Writes that a server has acknowledged and not flushed, and the effect of a lost connection on them.
//!
//! A server that goes away may take acknowledged writes with it, if they were only in the server's own memory. A client
//! cannot see where they were: `kill -9` of a server whose writes are in the kernel loses nothing, a power failure on
//! its host may lose everything since the last flush. [`Promise`] is what the user knows about the server.

use lamina_block::{Error, Result};
use serde::Deserialize;
use std::cell::Cell;

/// The promise of a server about acknowledged writes when the connection to it is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Promise {
    /// The writes are still there when the server comes back.
    #[default]
    Kept,
    /// They may be gone. The first flush after a reconnect then fails, unless there were no unflushed writes.
    Lost,
}

/// Counts unflushed writes.
#[derive(Default)]
pub struct Ledger {
    promise: Cell<Promise>,
    /// Acknowledged changes that were not durable by themselves.
    acknowledged: Cell<u64>,
    /// How many of them a completed flush covers.
    flushed: Cell<u64>,
    /// The same for acknowledged changes only.
    certain: Cell<(u64, u64)>,
    /// Acknowledged changes may have been lost without a report.
    may_be_lost: Cell<bool>,
}

/// A flush that is under way.
pub struct Flushing {
    covers: u64,
    certain: u64,
}

impl Ledger {
    /// A new connection to a server with this promise.
    pub fn new(promise: Promise) -> Ledger {
        Ledger { promise: Cell::new(promise), ..Ledger::default() }
    }

    /// A change that is not durable by itself has ended. A failed change counts too: a part of it may have been done.
    pub fn acknowledge(&self, is_certain: bool) {
        self.acknowledged.set(self.acknowledged.get() + 1);
        let (certain, flushed) = self.certain.get();
        self.certain.set((certain + u64::from(is_certain), flushed));
    }

    /// True if there is no acknowledged change that is not flushed.
    pub fn owes_nothing(&self) -> bool {
        self.certain.get().0 == self.certain.get().1
    }

    /// The connection was lost.
    pub fn lost(&self) {
        if self.promise.get() == Promise::Lost && self.acknowledged.get() > self.flushed.get() {
            self.may_be_lost.set(true);
        }
    }

    /// A flush begins.
    pub fn begin(&self) -> Flushing {
        Flushing { covers: self.acknowledged.get(), certain: self.certain.get().0 }
    }

    /// The server has done a flush. An error, once, if writes before this flush may be gone.
    pub fn end(&self, flush: Flushing) -> Result<()> {
        self.flushed.set(self.flushed.get().max(flush.covers));
        let (certain, flushed) = self.certain.get();
        self.certain.set((certain, flushed.max(flush.certain)));
        if self.may_be_lost.replace(false) {
            return Err(Error::media(
                "the connection was lost with writes acknowledged and not flushed; the server may have lost them",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_after_a_loss_tells_once_what_may_be_gone() {
        let ledger = Ledger::new(Promise::Lost);
        ledger.lost();
        assert!(ledger.end(ledger.begin()).is_ok(), "nothing was at stake");
        ledger.acknowledge(true);
        let flush = ledger.begin();
        ledger.lost();
        assert!(ledger.end(flush).is_err());
        assert!(ledger.end(ledger.begin()).is_ok(), "told already");
        ledger.lost();
        assert!(ledger.end(ledger.begin()).is_ok(), "all was flushed");
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_when_it_began() {
        let ledger = Ledger::new(Promise::Lost);
        let flush = ledger.begin();
        ledger.acknowledge(true);
        assert!(ledger.end(flush).is_ok());
        ledger.lost();
        assert!(ledger.end(ledger.begin()).is_err());
    }

    #[test]
    fn a_server_that_keeps_its_promise_is_believed() {
        let ledger = Ledger::new(Promise::Kept);
        ledger.acknowledge(true);
        ledger.lost();
        assert!(ledger.end(ledger.begin()).is_ok());
    }

    #[test]
    fn what_failed_is_owed_to_nobody() {
        let ledger = Ledger::default();
        ledger.acknowledge(false);
        assert!(ledger.owes_nothing());
        ledger.acknowledge(true);
        let flush = ledger.begin();
        ledger.acknowledge(true);
        assert!(ledger.end(flush).is_ok());
        assert!(!ledger.owes_nothing(), "one came after the flush had begun");
        assert!(ledger.end(ledger.begin()).is_ok());
        assert!(ledger.owes_nothing());
    }
}
