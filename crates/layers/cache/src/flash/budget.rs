//! How much the copies of a volume may write to a flash: a bucket of tokens, a byte each.
//!
//! ```text
//!      a day's budget ── evenly over the day ──▶ ▒▒▒▒▒░░░  an hour's worth at most
//!                                                └─▶ copies of what was read, moves within the logs
//! ```
//!
//! A copy that can be left out *takes* its bytes, and is refused where there are too few. What has to be written all
//! the same is *charged*: the head of a batch of copies, and what only the flash has, which moves from the tail of a
//! log to its end while a store is late. The bucket owes that, and nothing is taken until the debt is paid.
//!
//! Invariant: in any span of time at most the budget of that span and an hour's worth is taken. Users' writes are none
//! of this module's concern, nor are summaries and states, which are one byte in a hundred.

use super::Cache;
use super::format::{SLOT, What};
use super::index::Word;
use super::log::Waiting;
use super::volume::Volume;
use lamina_block::Time;
use serde_json::{Value, json};
use std::rc::Rc;

/// Nanoseconds of a day, by which tokens are counted so that no drop is lost.
const DAY_NS: i128 = 24 * 3600 * 1_000_000_000;
/// The bucket has the budget of so large a part of a day at most: an hour.
const HOURS: u64 = 24;

/// The budget of a volume, and what was written of it.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// Bytes of a day; `None`: no limit.
    limit: Option<u64>,
    /// Bytes times nanoseconds of a day; below zero is a debt.
    tokens: i128,
    /// When the tokens were counted.
    counted: Time,
    /// The running day, counted from when the environment began, and the bytes that were written in it.
    day: u64,
    today: u64,
    /// Bytes that copies have written, and that copies would have written which were refused.
    copied: u64,
    refused: u64,
}

impl Budget {
    /// Allows `limit` bytes a day from now on. What a bucket becomes larger by is full: so is one that is new.
    pub fn set(&mut self, limit: Option<u64>, now: Time) {
        self.count(now);
        let before = self.most();
        self.limit = limit;
        let larger = (self.most() - before).max(0);
        self.tokens = if limit.is_some() { (self.tokens + larger).min(self.most()) } else { 0 };
    }

    /// True unless all is allowed.
    pub fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Tokens of a full bucket.
    fn most(&self) -> i128 {
        i128::from(self.limit.unwrap_or(0) / HOURS) * DAY_NS
    }

    /// What has come since tokens were counted last, and what was of another day.
    fn count(&mut self, now: Time) {
        let past = now.since(self.counted).as_nanos() as i128;
        let came = past.saturating_mul(i128::from(self.limit.unwrap_or(0)));
        self.tokens = self.tokens.saturating_add(came).min(self.most());
        self.counted = self.counted.max(now);
        let day = (i128::from(self.counted.0) / DAY_NS) as u64;
        if day != self.day {
            (self.day, self.today) = (day, 0);
        }
    }

    /// True if so many bytes can be taken now.
    pub fn has(&mut self, bytes: u64, now: Time) -> bool {
        self.count(now);
        self.limit.is_none() || self.tokens >= i128::from(bytes) * DAY_NS
    }

    /// Takes bytes for a copy that is about to be written; false if the copy is not to be made.
    pub fn take(&mut self, bytes: u64, now: Time) -> bool {
        let has = self.has(bytes, now);
        match has {
            true => self.charge(bytes, now),
            false => self.refuse(bytes),
        }
        has
    }

    /// Bytes are written whatever there is.
    pub fn charge(&mut self, bytes: u64, now: Time) {
        self.count(now);
        if self.limit.is_some() {
            self.tokens -= i128::from(bytes) * DAY_NS;
        }
        self.today += bytes;
        self.copied += bytes;
    }

    /// Bytes that were taken have not been written.
    pub fn give_back(&mut self, bytes: u64, now: Time) {
        self.count(now);
        if self.limit.is_some() {
            self.tokens = (self.tokens + i128::from(bytes) * DAY_NS).min(self.most());
        }
        self.today = self.today.saturating_sub(bytes);
        self.copied = self.copied.saturating_sub(bytes);
    }

    /// A copy of so many bytes is not made.
    pub fn refuse(&mut self, bytes: u64) {
        self.refused += bytes;
    }

    /// How full the bucket is, from 0 to 1; 1 without a limit.
    pub fn level(&mut self, now: Time) -> f64 {
        self.count(now);
        match self.limit {
            None => 1.0,
            Some(_) => (self.tokens as f64 / self.most().max(1) as f64).clamp(0.0, 1.0),
        }
    }

    /// What is shown.
    pub fn info(&mut self, now: Time) -> Value {
        self.count(now);
        json!({
            "bytes": self.limit,
            "left_bytes": self.limit.map(|_| (self.tokens / DAY_NS).max(0) as u64),
            "today_bytes": self.today,
            "copied_bytes": self.copied,
            "refused_bytes": self.refused,
        })
    }
}

impl Waiting {
    /// True unless a user writes it, or drops it.
    fn is_copy(&self) -> bool {
        match self.what {
            What::Written | What::Lost | What::Clean if self.from.is_some() => true,
            What::Clean => true,
            What::Written | What::Lost | What::Dropped => false,
        }
    }
}

impl Cache {
    /// True if the budget of a volume has another block, which is then taken.
    pub(super) fn takes(&self, volume: &Volume) -> bool {
        volume.budget.borrow_mut().take(SLOT as u64, self.env.now())
    }

    /// True if any volume has a budget that can run out.
    pub(super) fn is_limited(&self) -> bool {
        self.volumes.borrow().iter().flatten().any(|volume| volume.budget.borrow().is_limited())
    }

    /// True if no volume that has some of the `live` blocks of a segment is without the budget for that many.
    pub(super) fn affords(&self, number: u32, live: u32) -> bool {
        let (volumes, now) = (self.volumes.borrow(), self.env.now());
        let bytes = u64::from(live) * SLOT as u64;
        let is_poor = |volume: &&Rc<Volume>| !volume.budget.borrow_mut().has(bytes, now);
        let poor: Vec<u16> = volumes.iter().flatten().filter(is_poor).map(|volume| volume.number).collect();
        let index = self.index.borrow();
        let is_of_poor = |word: Word| word.is_used() && poor.contains(&word.volume());
        poor.is_empty() || !self.shape.segment(number).any(|slot| is_of_poor(index.word(slot)))
    }

    /// Copies alone pay for the head that they share: with a user's write there is one anyway.
    pub(super) fn charge_head(&self, parts: &[Waiting]) {
        if parts.iter().all(Waiting::is_copy) {
            let (part, now) = ((SLOT / parts.len().max(1)) as u64, self.env.now());
            parts.iter().for_each(|copy| copy.volume.budget.borrow_mut().charge(part, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const GIB: u64 = 1 << 30;
    /// What a budget of 24 GiB a day allows in a second.
    const SECOND: u64 = GIB / 3600;

    fn at(seconds: u64) -> Time {
        Time(0).after(Duration::from_secs(seconds))
    }

    fn of(gib: u64) -> Budget {
        let mut budget = Budget::default();
        budget.set(Some(gib * GIB), at(0));
        budget
    }

    #[test]
    fn without_a_limit_all_is_allowed_and_counted() {
        let mut budget = Budget::default();
        assert!(budget.take(u64::MAX / 4, at(0)) && budget.take(5, at(0)));
        assert_eq!(budget.level(at(0)), 1.0);
        let info = budget.info(at(0));
        assert_eq!((&info["bytes"], &info["copied_bytes"]), (&Value::Null, &json!(u64::MAX / 4 + 5)));
    }

    #[test]
    fn no_window_has_more_than_its_budget_and_an_hours_worth() {
        let mut budget = of(24);
        // What was taken until each second, by somebody who always wants more.
        let mut until = vec![0];
        for second in 0..2 * 86_400 {
            let mut taken: u64 = until[second as usize];
            while budget.take(SECOND / 3, at(second)) {
                taken += SECOND / 3;
            }
            until.push(taken);
        }
        for window in [1, 60, 3600, 86_400] {
            let most = until.iter().zip(&until[window..]).map(|(before, after)| after - before).max();
            let allowed = GIB + window as u64 * (SECOND + 1);
            assert!(most <= Some(allowed), "{window} s: {most:?} of {allowed}");
        }
        assert!(until[86_400] > 24 * GIB, "all of a budget can be used");
        assert_eq!(budget.info(at(2 * 86_400))["today_bytes"], 0, "another day");
    }

    #[test]
    fn drops_are_not_lost() {
        let mut budget = of(24);
        assert!(budget.take(GIB, at(0)));
        (0..1_000_000).for_each(|us| assert!(!budget.has(GIB, Time(us * 1000))));
        assert!(budget.has(SECOND, at(1)) && !budget.has(SECOND + 2, at(1)));
    }

    #[test]
    fn a_debt_is_paid_before_anything_is_taken() {
        let mut budget = of(24);
        budget.charge(GIB + 10 * SECOND, at(0));
        assert_eq!((budget.level(at(0)), budget.take(1, at(9))), (0.0, false));
        assert!(budget.take(SECOND, at(12)));
        budget.give_back(SECOND, at(12));
        let info = budget.info(at(12));
        assert_eq!((&info["copied_bytes"], &info["refused_bytes"]), (&json!(GIB + 10 * SECOND), &json!(1)));
    }

    #[test]
    fn a_change_keeps_what_is_left_and_no_more_than_fits() {
        let mut budget = of(24);
        assert!(budget.take(GIB / 2, at(0)));
        budget.set(Some(6 * GIB), at(0));
        assert_eq!((budget.level(at(0)), budget.has(GIB / 4 + 1, at(0))), (1.0, false));
        assert!(budget.take(GIB / 4, at(0)));
        budget.set(Some(24 * GIB), at(0));
        assert_eq!(budget.level(at(0)), 0.75);
        budget.set(None, at(0));
        assert!(budget.take(100 * GIB, at(0)));
        budget.set(Some(24 * GIB), at(0));
        assert_eq!(budget.level(at(0)), 1.0);
    }
}
