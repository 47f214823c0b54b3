//! A device that has failed, and answers again.
//!
//! While it fails nothing is put on it. When it answers again, what may not have been durable is compared
//! with its checksums: a device that was without power for a moment has lost it, although nobody here has.
//! Then it is not used again before it is opened anew, so that who has a volume open hears of it. Otherwise
//! every segment gets its summary, which is without what failed, the state is kept, and it goes on.

use super::Cache;
use super::format::Entry;
use super::state::Pin;
use lamina_block::{Error, ErrorKind, Result};
use lamina_kit::flaw::flawed;
use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// How long a device that fails is left alone.
const PAUSE: Duration = Duration::from_millis(100);
/// So often in a row a device is not flushed until it counts as broken.
const STRIKES: u32 = 3;

impl Cache {
    /// The device has failed in a way that leaves no other choice: nothing is put on it until it works again, and what
    /// failed has been made to stay failed.
    pub fn break_down(&self, e: &Error) {
        let begins = self.health.borrow_mut().break_down(e);
        (0..self.logs.len()).for_each(|log| self.refuse(log as u8, e));
        self.moved.notify();
        if !begins {
            return;
        }
        self.spawn(|me| async move {
            loop {
                me.env.sleep(PAUSE).await;
                if me.closed.get() {
                    return;
                }
                match me.repair().await {
                    Ok(()) if me.lost.borrow().is_empty() => break,
                    Ok(()) => {
                        let message = "it has lost what had not been made durable: it has to be opened again";
                        tracing::error!(flash = %me.name, message);
                        me.health
                            .borrow_mut()
                            .lose(Error::new(ErrorKind::Corrupt, message).on(me.child.name()));
                        return;
                    }
                    Err(e) => tracing::debug!(flash = %me.name, error = %e, "it still fails"),
                }
            }
            me.health.borrow_mut().repaired();
            tracing::info!(flash = %me.name, "it works again");
            me.moved.notify();
            (0..me.logs.len()).for_each(|log| me.pump(log as u8));
        });
    }

    /// A request has failed, and is tried again after this. A device that is not even flushed, several times in a row,
    /// is broken, and not some blocks of it: requests that wait for space end.
    pub(super) async fn strike(&self) {
        let strikes = match self.flush().await {
            Ok(()) => 0,
            Err(e) => {
                let strikes = self.strikes.get() + 1;
                if strikes >= STRIKES && !flawed("a dead device is tried on and on") {
                    self.break_down(&e);
                }
                strikes
            }
        };
        self.strikes.set(strikes);
        self.env.sleep(PAUSE).await;
    }

    /// Finds out whether the device has lost power meanwhile, and with it what was not durable. If not, ends
    /// all segments, also those of batches that failed.
    async fn repair(self: &Rc<Cache>) -> Result<()> {
        self.logs.iter().for_each(|this| this.open.set(None));
        let unfinished = self.unfinished();
        for (number, _pin) in &unfinished {
            for (slots, checksum) in self.unsure(*number).await {
                if !self.is_right(&slots, checksum).await? {
                    self.lost.borrow_mut().extend(slots);
                }
            }
        }
        if self.lost.borrow().is_empty() {
            for (number, _pin) in &unfinished {
                self.finish(*number).await?;
            }
            self.save().await?;
        }
        Ok(())
    }

    /// The segments that have no summary.
    fn unfinished(self: &Rc<Cache>) -> Vec<(u32, Pin)> {
        let numbers: Vec<u32> = {
            let segments = self.segments.borrow();
            let all = segments.logs.iter().flatten().copied();
            all.filter(|number| segments.list[*number as usize].entries.is_some()).collect()
        };
        numbers.into_iter().map(|number| (number, self.pin(number))).collect()
    }

    /// What a segment has that may not be durable: the slots, and the checksum.
    async fn unsure(&self, number: u32) -> Vec<(Range<u32>, u64)> {
        self.settled(number).await;
        self.undurable(number)
    }

    /// The same, as it is now.
    fn undurable(&self, number: u32) -> Vec<(Range<u32>, u64)> {
        let base = self.shape.segment(number).start;
        let mut segments = self.segments.borrow_mut();
        let segment = segments.get(number);
        let unsure = |entry: &&Entry| entry.slot > 0 && entry.slot + entry.count > segment.durable;
        let place = |entry: &Entry| {
            let first = base + entry.slot;
            (first..first + entry.count, entry.checksum)
        };
        segment.entries.iter().flatten().filter(unsure).map(place).collect()
    }

    /// A device that has failed a request may have been without power for a moment.
    pub(super) fn suspect(&self, done: &Result<()>) {
        if done.is_err() {
            let (failed, verified) = self.failures.get();
            self.failures.set((failed + 1, verified));
        }
    }

    /// Fails if something has failed since the last time, and what had been put and is not known to be durable is not
    /// there: a flush does not make durable what is gone. A block that cannot be read fails alone, when it is read.
    pub(super) async fn verify(&self) -> Result<()> {
        let (failed, verified) = self.failures.get();
        if failed == verified || flawed("a device that has failed something has lost nothing") {
            return Ok(());
        }
        let numbers: Vec<u32> = self.segments.borrow().logs.iter().flatten().copied().collect();
        let unsure = |number| self.undurable(number).into_iter().map(move |entry| (number, entry));
        for (number, entry) in numbers.into_iter().flat_map(unsure) {
            match self.is_right(&entry.0, entry.1).await {
                Ok(true) => {}
                Err(e) if e.kind() == ErrorKind::Media => {}
                // Another flush has made it durable meanwhile, and its segment may be written again.
                Ok(false) if !self.undurable(number).contains(&entry) => {}
                Ok(false) => {
                    let message = "it has lost what had not been made durable";
                    let e = Error::new(ErrorKind::Corrupt, message).on(self.child.name());
                    self.break_down(&e);
                    return Err(e);
                }
                Err(e) => return Err(e),
            }
        }
        let (now, verified) = self.failures.get();
        self.failures.set((now, verified.max(failed)));
        Ok(())
    }

    /// True if the device has what was put there.
    async fn is_right(&self, slots: &Range<u32>, checksum: u64) -> Result<bool> {
        Ok(super::format::checksum(&self.read_slots(slots.clone()).await?.to_vec()) == checksum)
    }

    /// Slots that may not be durable, and that are not what was put there or cannot be read.
    pub async fn unverified(self: &Rc<Cache>) -> HashSet<u32> {
        let mut unverified = HashSet::new();
        for (number, _pin) in self.unfinished() {
            for (slots, checksum) in self.unsure(number).await {
                if !self.is_right(&slots, checksum).await.unwrap_or(false) {
                    unverified.extend(slots);
                }
            }
        }
        unverified
    }

    /// Fails if the device has lost any of `slots`.
    pub fn is_there(&self, mut slots: Range<u32>) -> Result<()> {
        let unreadable = self.unreadable.borrow();
        if !unreadable.is_empty() && slots.clone().any(|slot| unreadable.contains(&slot)) {
            return Err(Error::media("the flash could not read it as it was written, and has given it up")
                .on(&self.name));
        }
        let lost = self.lost.borrow();
        match !lost.is_empty() && slots.any(|slot| lost.contains(&slot)) {
            true => Err(Error::media("the flash has lost it").on(&self.name)),
            false => Ok(()),
        }
    }
}
