//! What is under way to a peer: no more than the peer has granted, and what it says must fit what was sent.
//!
//! ```text
//!      granted ─────────────────────────────────────────▶ bytes, writes
//!      sent    ────────────────────────▶
//!      acked   ────────▶                 the rest is under way; silent for too long, the peer is lost
//! ```
//!
//! A peer that is slow grants late, and its primary waits: that is backpressure, and is seen. A peer that is silent
//! although something is under way is lost.

use crate::wire::{Ack, Credit, Welcome};
use lamina_block::{Error, ErrorKind, Result, Time};
use std::time::Duration;

/// What is under way to one peer.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Granted so far, and sent so far.
    granted: Credit,
    sent: Credit,
    /// The last serial number that was sent, and up to which one it was acknowledged.
    serial: u64,
    written: u64,
    durable: u64,
    /// Up to which one the peer was asked to make everything durable.
    flushing: u64,
    /// It was asked whether it is there.
    is_asked: bool,
    /// When the peer last had reason to speak, or spoke.
    since: Time,
    /// When it last had reason to get further, or did.
    moved: Time,
}

impl Sender {
    /// A peer that has said this.
    pub fn new(welcome: &Welcome, now: Time) -> Sender {
        let Welcome { written, durable, credit, .. } = *welcome;
        Sender {
            granted: credit,
            sent: Credit::default(),
            serial: written,
            written,
            durable,
            flushing: durable,
            is_asked: false,
            since: now,
            moved: now,
        }
    }

    /// True if writes of so many bytes may be sent now.
    pub fn may_send(&self, of: Credit) -> bool {
        let left = |granted: u64, sent: u64| granted - sent;
        left(self.granted.bytes, self.sent.bytes) >= of.bytes
            && left(self.granted.writes, self.sent.writes) >= of.writes
    }

    /// Writes up to `serial` are sent, of so many bytes.
    pub fn sends(&mut self, of: Credit, serial: u64, now: Time) {
        debug_assert!(self.may_send(of), "nothing goes beyond what was granted");
        self.awaits(now);
        self.sent.bytes += of.bytes;
        self.sent.writes += of.writes;
        self.serial = serial;
    }

    /// A flush of all that was sent is sent.
    pub fn flushes(&mut self, now: Time) {
        self.awaits(now);
        self.flushing = self.serial;
    }

    /// The peer is asked whether it is there.
    pub fn asks(&mut self, now: Time) {
        if !self.is_awaited() {
            self.since = now;
        }
        self.is_asked = true;
    }

    fn awaits(&mut self, now: Time) {
        if !self.is_awaited() {
            self.since = now;
        }
        if !self.has_work() {
            self.moved = now;
        }
    }

    /// True if the peer owes an answer.
    fn is_awaited(&self) -> bool {
        self.has_work() || self.is_asked
    }

    /// True if it was sent what it does not have, or not durably although it was asked to.
    fn has_work(&self) -> bool {
        self.written < self.serial || self.durable < self.flushing
    }

    /// The last serial number that was sent.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// True if it has asked for what is durable up to there.
    pub fn is_flushing(&self) -> bool {
        self.durable < self.flushing
    }

    /// The peer has said how far it is. Fails if that does not fit what was sent: no more is believed of it.
    pub fn acked(&mut self, ack: Ack, now: Time) -> Result<()> {
        let is_known = self.written <= ack.written && ack.written <= self.serial;
        if !is_known || ack.durable < self.durable || ack.durable > ack.written {
            let message = format!(
                "the peer says that it has writes up to {}, durably up to {}: it had said {} and {}, and was sent \
                 those up to {}",
                ack.written, ack.durable, self.written, self.durable, self.serial
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        if (self.written, self.durable) != (ack.written, ack.durable) {
            self.moved = now;
        }
        (self.written, self.durable) = (ack.written, ack.durable);
        self.granted.bytes = self.granted.bytes.saturating_add(ack.credit.bytes);
        self.granted.writes = self.granted.writes.saturating_add(ack.credit.writes);
        self.since = now;
        self.is_asked = false;
        Ok(())
    }

    /// For how long the peer has owed an answer.
    pub fn silent_for(&self, now: Time) -> Duration {
        if self.is_awaited() { now.since(self.since) } else { Duration::ZERO }
    }

    /// For how long it has not got further, although there is something to do; it may speak all the same.
    pub fn stuck_for(&self, now: Time) -> Duration {
        if self.has_work() { now.since(self.moved) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(bytes: u64, writes: u64) -> Credit {
        Credit { bytes, writes }
    }

    fn ack(written: u64, durable: u64, more: Credit) -> Ack {
        Ack { written, durable, credit: more, reaches_store: true }
    }

    /// To a peer that has everything up to 5.
    fn sender(credit: Credit) -> Sender {
        let flash = uuid::Uuid::from_u128(2);
        Sender::new(
            &Welcome { version: 1, flash, generation: 1, written: 5, durable: 5, credit, space: 0 },
            at(0),
        )
    }

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn no_more_is_under_way_than_was_granted() {
        let mut of = sender(credit(8192, 2));
        assert!(of.may_send(credit(8192, 1)) && !of.may_send(credit(8193, 1)) && !of.may_send(credit(1, 3)));
        of.sends(credit(4096, 2), 7, at(0));
        assert!(!of.may_send(credit(1, 1)), "no writes are left");
        of.acked(ack(7, 5, credit(4096, 2)), at(1)).expect("as it was sent");
        assert!(of.may_send(credit(8192, 2)));
        of.acked(ack(7, 7, credit(u64::MAX, u64::MAX)), at(1)).expect("it grants what it likes");
        assert!(of.may_send(credit(1 << 40, 1 << 20)));
    }

    #[test]
    fn what_a_peer_says_must_fit_what_was_sent() {
        let mut of = sender(credit(8192, 9));
        of.sends(credit(4096, 1), 6, at(0));
        let none = Credit::default();
        for wrong in [ack(7, 5, none), ack(4, 4, none), ack(6, 4, none), ack(5, 6, none)] {
            let e = of.acked(wrong, at(1)).expect_err("a lie");
            assert!(e.message().contains("it had said 5 and 5, and was sent those up to 6"), "{e}");
        }
        of.acked(ack(6, 6, none), at(1)).expect("as it was sent");
    }

    #[test]
    fn a_peer_is_silent_while_it_owes_an_answer() {
        let (mut of, none) = (sender(credit(8192, 9)), Credit::default());
        assert_eq!(of.silent_for(at(5000)), Duration::ZERO, "nothing is under way");
        of.sends(credit(1, 1), 6, at(5000));
        of.sends(credit(1, 1), 7, at(5400));
        assert_eq!(of.silent_for(at(5500)), Duration::from_millis(500));
        of.acked(ack(6, 5, none), at(5600)).expect("as it was sent");
        assert_eq!(of.silent_for(at(5700)), Duration::from_millis(100));
        of.acked(ack(7, 5, none), at(5800)).expect("as it was sent");
        assert_eq!(of.silent_for(at(9000)), Duration::ZERO);
        of.flushes(at(9000));
        assert_eq!(of.silent_for(at(9300)), Duration::from_millis(300));
        of.acked(ack(7, 7, none), at(9400)).expect("as it was sent");
        assert_eq!(of.silent_for(at(9900)), Duration::ZERO);
        of.asks(at(10_000));
        assert_eq!(of.silent_for(at(10_300)), Duration::from_millis(300));
    }

    #[test]
    fn a_peer_that_speaks_and_gets_no_further_is_stuck() {
        let (mut of, none) = (sender(credit(8192, 9)), Credit::default());
        of.asks(at(900));
        assert_eq!(of.stuck_for(at(1000)), Duration::ZERO, "there is nothing to do");
        of.sends(credit(1, 1), 6, at(1000));
        of.asks(at(1500));
        of.acked(ack(5, 5, none), at(1600)).expect("as it was");
        assert_eq!(
            (of.silent_for(at(2000)), of.stuck_for(at(2000))),
            (Duration::from_millis(400), Duration::from_secs(1))
        );
        of.acked(ack(6, 5, none), at(2100)).expect("as it was sent");
        assert_eq!(of.stuck_for(at(2200)), Duration::ZERO);
    }
}
