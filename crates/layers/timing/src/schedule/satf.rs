//! `satf`: shortest access time first, by a model of the drive that knows the angle of its platters.
//!
//! The cost of each waiting request is what the [`Tracker`] expects it to take now until its first sector is under the
//! head: seek and rotation. Age counts as in Jacobson and Wilkes, *Disk Scheduling Algorithms Based on Rotational
//! Position*, 1991 (ASATF), and Worthington, Ganger and Patt, *Scheduling Algorithms for Modern Disk Drives*, 1994
//! (ASPTF): the request with the least `cost - age-weight · age` is next. The transfer takes the same time whenever the
//! request goes, and does not count, as in ASPTF: a transfer that loses a turn between two tracks would look far away
//! wherever the arm is, and wait for as many turns more as `1 / age-weight`.
//!
//! No request starves: another one that came later by more than `cost / age-weight` never goes before it. Of more than
//! [`CONSIDERED`] requests the oldest are considered, so that a decision takes bounded time: at most
//! 12 µs with 64 waiting requests and 45 µs with 256 or more on a rotational model (`examples/decision_time.rs`).
//!
//! The default weight comes from Poisson reads on a disk of 15,000 turns a minute (`tests/policies/poisson.rs`). At
//! 0.02 the policy has all of the gain of the pure shortest access time first, and its longest response is about 0.8
//! of C-LOOK's; 0.05 costs a tenth of the gain, and 0.1 nearly half of it.

use super::keys::Keys;
use super::policy::{Choice, Policy, Queued};
use lamina_block::Time;
use lamina_drive::{Model, Tracker};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::collections::VecDeque;
use std::time::Duration;

/// Requests whose costs are compared, at most.
pub const CONSIDERED: usize = 256;

/// The parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Parameters {
    /// The weight of a millisecond of waiting, in milliseconds of access time: 0.001 (age hardly counts) to 1 (nearly
    /// in the order of arrival).
    #[serde(deserialize_with = "within_bounds")]
    pub age_weight: f64,
}

fn within_bounds<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    let weight = f64::deserialize(d)?;
    if !(WEIGHT_MIN..=1.0).contains(&weight) {
        return Err(de::Error::custom(format!("age-weight {weight} is not in {WEIGHT_MIN}..=1")));
    }
    Ok(weight)
}

/// With a smaller weight, a request of 10 ms could wait for longer than 10 s.
const WEIGHT_MIN: f64 = 0.001;

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters { age_weight: 0.02 }
    }
}

/// The policy.
pub struct Satf {
    weight: f64,
    tracker: Tracker,
    /// Oldest first.
    waiting: VecDeque<Waiting>,
}

/// A request that waits, and what its transfer will take.
#[derive(Clone, Copy)]
struct Waiting {
    queued: Queued,
    transfer: Duration,
}

impl Satf {
    /// Nothing waits, and of the drive nothing is known but its model.
    pub fn new(keys: &Keys, model: &Model) -> Satf {
        Satf { weight: keys.satf.age_weight, tracker: Tracker::new(model), waiting: VecDeque::new() }
    }

    /// Nanoseconds that the rank of a request has less for its age.
    fn ahead(&self, now: Time, queued: &Queued) -> f64 {
        self.weight * now.since(queued.arrived).as_nanos() as f64
    }

    /// The rank of a request: nanoseconds until its transfer begins, less those for its age. A hit has no transfer, and
    /// begins at once.
    fn rank(&self, now: Time, Waiting { queued, transfer }: &Waiting) -> f64 {
        let cost = self.tracker.cost(now, &queued.request).saturating_sub(*transfer);
        cost.as_nanos() as f64 - self.ahead(now, queued)
    }

    /// The place of the request with the least rank, the oldest of several.
    fn first(&self, now: Time) -> Option<usize> {
        let mut first: Option<(usize, f64)> = None;
        for (at, waiting) in self.waiting.iter().take(CONSIDERED).enumerate() {
            // No cost is below 0: most of those that came late are not looked at where some have waited for long.
            if first.is_none_or(|(_, best)| -self.ahead(now, &waiting.queued) < best) {
                let rank = self.rank(now, waiting);
                first = first.filter(|(_, best)| *best <= rank).or(Some((at, rank)));
            }
        }
        first.map(|(at, _)| at)
    }
}

impl Policy for Satf {
    fn arrived(&mut self, request: Queued) {
        let transfer = self.tracker.transfer(&request.request);
        self.waiting.push_back(Waiting { queued: request, transfer });
    }

    fn choose(&mut self, now: Time) -> Choice {
        self.tracker.catch_up(now);
        let next = self.first(now).and_then(|at| self.waiting.remove(at));
        let Some(Waiting { queued, .. }) = next else { return Choice::Idle };
        self.tracker.dispatched(now, &queued.request);
        Choice::Send(queued.id)
    }

    fn completed(&mut self, now: Time, sent: Time, request: &Queued) {
        // A request that was given up before it was sent ends at once, and says nothing about the drive.
        if sent < now {
            self.tracker.completed(sent, now, &request.request);
        }
    }

    fn drain(&mut self) -> Vec<Queued> {
        std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.queued).collect()
    }

    fn tune(&mut self, keys: &Keys) {
        self.weight = keys.satf.age_weight;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MS, order, read};
    use super::*;

    fn satf(weight: f64) -> Satf {
        let mut keys = Keys::default();
        keys.satf.age_weight = weight;
        Satf::new(&keys, &Model::named("cheetah-15k4").expect("a model"))
    }

    #[test]
    fn the_cheapest_first() {
        // The linear model: the nearest, and hits before it: 48 is in what is read ahead behind 40.
        let all = [read(1, 50_000_000), read(2, 48), read(3, 90_000_000), read(4, 40), read(5, 1_000_000)];
        assert_eq!(order(&mut satf(0.02), all), [4, 2, 5, 1, 3]);
    }

    #[test]
    fn age_counts_by_its_weight() {
        // The far one costs 1.83 ms more.
        for (weight, age_ms, expected) in [(0.02, 90, 2), (0.02, 93, 1), (0.1, 18, 2), (0.1, 19, 1)] {
            let mut policy = satf(weight);
            policy.arrived(read(1, 50_000_000));
            policy.arrived(Queued { arrived: Time(age_ms * MS), ..read(2, 0) });
            assert_eq!(policy.choose(Time(age_ms * MS)), Choice::Send(expected), "{weight} {age_ms}");
        }
    }

    #[test]
    fn a_request_is_overtaken_only_by_what_came_soon_after() {
        let mut policy = satf(0.02);
        policy.arrived(read(1, 140_000_000));
        let sent = (2..1000).find(|id| {
            let now = Time(id * 5 * MS);
            policy.arrived(Queued { arrived: now, ..read(*id, id * 100) });
            policy.choose(now) == Choice::Send(1)
        });
        // 5.25 ms / 0.02.
        assert!(sent.is_some_and(|id| id * 5 <= 270), "{sent:?}");
    }

    #[test]
    fn of_too_many_the_oldest_are_considered() {
        let mut policy = satf(0.02);
        (1..=300).for_each(|id| policy.arrived(read(id, 100_000 * (400 - id))));
        assert_eq!(policy.choose(Time(0)), Choice::Send(256), "300 is nearer");
        assert_eq!(policy.choose(Time(0)), Choice::Send(255), "257 is farther by 16 sectors");
        assert_eq!(policy.drain().len(), 298);
        assert_eq!(policy.choose(Time(0)), Choice::Idle);
    }

    #[test]
    fn the_weight_is_live_and_has_a_range() {
        let mut policy = satf(0.001);
        let mut keys = Keys::default();
        keys.satf.age_weight = 1.0;
        policy.tune(&keys);
        policy.arrived(read(1, 50_000_000));
        policy.arrived(Queued { arrived: Time(0).after(Duration::from_millis(10)), ..read(2, 0) });
        assert_eq!(policy.choose(Time(10 * MS)), Choice::Send(1));
        for weight in [0.0, 1.5, -1.0] {
            let keys = serde_json::json!({ "age-weight": weight });
            let message = serde_json::from_value::<Parameters>(keys).expect_err("wrong").to_string();
            assert!(message.contains("is not in 0.001..=1"), "{message}");
        }
    }
}
