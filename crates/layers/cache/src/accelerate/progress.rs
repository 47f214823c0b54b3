//! How far the store is with what was written: plain state.
//!
//! ```text
//!            durable            stored                acknowledged (write-back)
//!      ─────────┼──────────────────┼────────────────────────┼────▶ serial numbers
//!      on the   │ on the store,    │ unprotected: only the  │
//!      store    │ perhaps in its   │ flash has it           │
//!      for good │ cache            │                        │
//! ```
//!
//! | | acknowledged | stored | durable |
//! |---|---|---|---|
//! | `acknowledge(n)` | at least n | | |
//! | `store(n)`: the store took a batch up to n | | at least n | |
//! | `make_durable(n)`: the store was flushed, the flash knows | | | at least n, `stored` at most |
//! | `fail()`: the store may have lost what it took | | as `durable` | |
//! | `begin_again(n, last)`: late writes may be over what comes after n | | as `durable` | at most n |
//! | `store(last)`, `make_durable(last)` after that | | as before it | as before it |
//!
//! Serial numbers are the volume's. Bad blocks (`flash::bad`) are apart from all this: they count as stored.

/// How far the store is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    acknowledged: u64,
    stored: u64,
    durable: u64,
    /// What is to be given once more ends here, and so far was everything before that.
    again: Option<(u64, u64)>,
    /// Batches that were begun.
    batches: u64,
    /// Changes of the store past the flash: where discards begin and end, and writes of a last block that is not whole.
    direct: u64,
    /// Of these, those before the last flush of the store.
    direct_durable: u64,
}

impl Progress {
    /// The store has everything up to the checkpoint, durably; up to `acknowledged` something may have been
    /// acknowledged.
    pub fn new(checkpoint: u64, acknowledged: u64) -> Progress {
        Progress {
            acknowledged,
            stored: checkpoint,
            durable: checkpoint,
            again: None,
            batches: 0,
            direct: 0,
            direct_durable: 0,
        }
    }

    pub fn stored(&self) -> u64 {
        self.stored
    }

    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The number of the last batch that was begun, from 1 on.
    pub fn batch(&self) -> u64 {
        self.batches
    }

    /// A write was acknowledged that the store does not have.
    pub fn is_unprotected(&self) -> bool {
        self.acknowledged > self.stored
    }

    /// The write with this serial number is acknowledged.
    pub fn acknowledge(&mut self, serial: u64) {
        self.acknowledged = self.acknowledged.max(serial);
    }

    pub fn begin_batch(&mut self) {
        self.batches += 1;
    }

    /// The store took a batch with everything up to `upto`.
    pub fn store(&mut self, upto: u64) {
        self.stored = self.stored.max(self.with_again(upto));
    }

    /// The store has everything up to `upto`, durably, and the flash knows, durably.
    pub fn make_durable(&mut self, upto: u64) {
        self.durable = self.durable.max(self.with_again(upto));
    }

    /// How far the store is with everything up to `upto`: what was written since, and is not to be given once more, is
    /// there already.
    fn with_again(&self, upto: u64) -> u64 {
        self.again.filter(|(last, _)| *last <= upto).map_or(upto, |(_, before)| before.max(upto))
    }

    /// A batch has failed: the store may have lost all that it took since the last that did not.
    pub fn fail(&mut self) {
        self.stored = self.durable;
    }

    /// The store is to get once more what it lacks after `checkpoint`, up to `last`: others may have written over that.
    pub fn begin_again(&mut self, checkpoint: u64, last: u64) {
        self.again = Some((last, self.durable));
        self.durable = self.durable.min(checkpoint);
        self.stored = self.durable;
    }

    /// The store was changed past the flash, or is about to be.
    pub fn change_directly(&mut self) {
        self.direct += 1;
    }

    /// Which change past the flash the last one is, for [`Progress::flushed`].
    pub fn direct(&self) -> u64 {
        self.direct
    }

    /// True if all changes past the flash are durable, and none is under way.
    pub fn is_direct_durable(&self) -> bool {
        self.direct == self.direct_durable
    }

    /// The store was flushed: changes past the flash up to `upto` are durable.
    pub fn flushed(&mut self, upto: u64) {
        self.direct_durable = self.direct_durable.max(upto);
    }

    /// The invariants.
    pub fn check(&self) -> Result<(), String> {
        if self.durable > self.stored {
            return Err(format!("durable up to {}, and stored up to {}", self.durable, self.stored));
        }
        match self.direct_durable > self.direct {
            true => {
                Err(format!("{} of {} changes past the flash are durable", self.direct_durable, self.direct))
            }
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_late_writes_may_be_over_is_unprotected_until_it_is_given_again() {
        let mut progress = Progress::new(5, 9);
        progress.store(9);
        progress.make_durable(9);
        assert!(!progress.is_unprotected());
        progress.begin_again(6, 8);
        assert!(progress.is_unprotected() && (progress.stored(), progress.durable()) == (6, 6));
        assert_eq!(progress.check(), Ok(()));
        // Write 9 was given after late writes, is not given again, and perhaps has not been acknowledged yet.
        progress.store(7);
        assert!(progress.is_unprotected());
        progress.store(8);
        assert!(!progress.is_unprotected() && (progress.stored(), progress.durable()) == (9, 6));
        progress.make_durable(8);
        assert_eq!(progress.durable(), 9);
        // The checkpoint is ahead of what is durable: nothing is taken for more than it was.
        progress.fail();
        progress.begin_again(12, 13);
        assert_eq!((progress.stored(), progress.durable()), (9, 9));
    }

    #[test]
    fn the_table() {
        type Change = fn(&mut Progress);
        // Acknowledged, stored, durable after each change of one that has 5, and has acknowledged 9.
        let table: [(Change, [u64; 3]); 6] = [
            (|progress| progress.acknowledge(7), [9, 5, 5]),
            (|progress| progress.acknowledge(12), [12, 5, 5]),
            (|progress| progress.store(8), [12, 8, 5]),
            (|progress| progress.fail(), [12, 5, 5]),
            (|progress| (progress.store(12), progress.make_durable(12)).1, [12, 12, 12]),
            // A batch of discards alone, after one that left a bad block.
            (|progress| (progress.store(6), progress.make_durable(6)).1, [12, 12, 12]),
        ];
        let mut progress = Progress::new(5, 9);
        for (n, (change, expected)) in table.into_iter().enumerate() {
            change(&mut progress);
            let Progress { acknowledged, stored, durable, .. } = progress;
            assert_eq!([acknowledged, stored, durable], expected, "change {n}");
            assert_eq!(progress.is_unprotected(), acknowledged > stored);
            assert_eq!(progress.check(), Ok(()), "change {n}");
        }
    }

    #[test]
    fn a_change_during_a_flush_is_not_durable() {
        let mut progress = Progress::new(0, 0);
        progress.change_directly();
        let begun = progress.direct();
        progress.change_directly();
        progress.flushed(begun);
        assert!(!progress.is_direct_durable());
        progress.flushed(progress.direct());
        // A flush that began earlier ends later.
        progress.flushed(begun);
        assert!(progress.is_direct_durable());
        assert_eq!(progress.check(), Ok(()));
    }

    #[test]
    fn what_cannot_be_is_said() {
        let progress = Progress::new(5, 5);
        assert!(Progress { durable: 6, ..progress }.check().is_err());
        assert!(Progress { direct_durable: 1, ..progress }.check().is_err());
    }
}
