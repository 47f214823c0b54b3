//! A drive at work: requests in, completions out.
//!
//! A drive has *slots*: as many requests as it works on at a time, one for a mechanical drive, the queue depth for
//! others. Requests beyond them wait in the order of their arrival, and a mechanical drive chooses among the first of
//! them, as many as its queue is deep. Events are found when asked for: a call first does all that happened until
//! `now`.

use crate::chance::Chance;
use crate::machine::{Machine, Nanos, length, moment};
use crate::{Mechanism, Model, Order, Request};
use lamina_block::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the request was submitted with.
    pub id: u64,
    /// When the mechanism began with it.
    pub started: Time,
    /// When it ended.
    pub at: Time,
    /// Whether it is a read of which the on-board cache had all when the drive began with it.
    pub hit: bool,
}

/// A request that has a slot, ordered by its end, and then by when it was begun.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Serving {
    at: Time,
    serial: u64,
    id: u64,
    started: Time,
    hit: bool,
}

/// A request without a slot.
struct Waiting {
    id: u64,
    arrived: Time,
    request: Request,
}

/// A drive at work.
pub struct Drive {
    machine: Machine,
    chance: Chance,
    /// The latest moment of any call.
    now: Time,
    slots: usize,
    /// Among how many waiting requests the shortest is chosen; 1 for the order of arrival.
    window: usize,
    /// A request that waited longer is next.
    age_max: Duration,
    waiting: VecDeque<Waiting>,
    serving: BinaryHeap<Reverse<Serving>>,
    ended: VecDeque<Completion>,
    begun: u64,
}

impl Drive {
    pub(crate) fn new(model: &Model, seed: u64) -> Drive {
        let mut chance = Chance::seeded(seed);
        let mut machine = Machine::new(model);
        if let Machine::Rotational(rotational) = &mut machine {
            rotational.spin(chance.uniform());
        }
        Drive::with(model, machine, chance)
    }

    fn with(model: &Model, machine: Machine, chance: Chance) -> Drive {
        let (window, age_max) = match &model.mechanism {
            Mechanism::Rotational(keys) if keys.order == Order::Shortest => {
                (keys.depth as usize, length(keys.age_limit_ms * crate::machine::MS))
            }
            Mechanism::Rotational(_) | Mechanism::Linear(_) | Mechanism::Ssd(_) | Mechanism::Remote(_) => {
                (1, Duration::MAX)
            }
        };
        Drive {
            machine,
            chance,
            now: Time(0),
            slots: model.slots(),
            window,
            age_max,
            waiting: VecDeque::new(),
            serving: BinaryHeap::new(),
            ended: VecDeque::new(),
            begun: 0,
        }
    }

    /// A request arrives at the drive.
    pub fn submit(&mut self, now: Time, id: u64, request: Request) {
        self.advance(now);
        self.waiting.push_back(Waiting { id, arrived: self.now, request });
        self.fill(self.now);
    }

    /// When [`Drive::completed`] is to be asked next, unless requests arrive before; `None` while nothing is under way.
    pub fn next(&self) -> Option<Time> {
        let ended = self.ended.front().map(|completion| completion.at);
        ended.or_else(|| self.serving.peek().map(|Reverse(first)| first.at))
    }

    /// A request that has ended by `now`, in the order of their ends. To be asked until there is none.
    pub fn completed(&mut self, now: Time) -> Option<Completion> {
        self.advance(now);
        self.ended.pop_front()
    }

    /// Requests that have arrived and whose completion was not taken yet.
    pub fn in_flight(&self) -> usize {
        self.waiting.len() + self.serving.len() + self.ended.len()
    }

    /// What `request` is expected to take if the drive began with it at `now`, after what it did last. What the drive
    /// does by itself counts up to the last request that it began.
    pub fn cost(&self, now: Time, request: &Request) -> Duration {
        length(self.machine.cost(now.0 as Nanos, request))
    }

    /// Whether the on-board cache has all of `request`, a read, at the latest moment that the drive was told.
    pub fn is_hit(&self, request: &Request) -> bool {
        self.machine.is_hit(self.now.0 as Nanos, request)
    }

    /// Does all that happens until `now`.
    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(Reverse(first)) = self.serving.peek()
            && first.at <= self.now
            && let Some(Reverse(Serving { at, id, started, hit, .. })) = self.serving.pop()
        {
            self.ended.push_back(Completion { id, started, at, hit });
            self.fill(at);
        }
    }

    /// Gives free slots to waiting requests at the moment `at`.
    fn fill(&mut self, at: Time) {
        while self.serving.len() < self.slots
            && let Some(Waiting { id, request, .. }) = self.pick(at)
        {
            let served = self.machine.begin(at.0 as Nanos, &request, &mut self.chance);
            self.begun += 1;
            let end = moment(served.at).max(at);
            let serving = Serving { at: end, serial: self.begun, id, started: at, hit: served.hit };
            self.serving.push(Reverse(serving));
        }
    }

    /// The waiting request that is next.
    fn pick(&mut self, at: Time) -> Option<Waiting> {
        let aged = self.waiting.front().is_some_and(|oldest| at.since(oldest.arrived) > self.age_max);
        if self.window == 1 || self.waiting.len() == 1 || aged {
            return self.waiting.pop_front();
        }
        self.machine.catch_up(at.0 as Nanos);
        let cost = |waiting: &Waiting| self.machine.cost(at.0 as Nanos, &waiting.request);
        let costs = self.waiting.iter().take(self.window).map(cost).enumerate();
        let (shortest, _) = costs.min_by(|a, b| a.1.total_cmp(&b.1))?;
        self.waiting.remove(shortest)
    }
}
