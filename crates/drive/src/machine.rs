//! The mechanisms behind one set of calls. All times here are nanoseconds since time 0, as fractions.

use crate::chance::Chance;
use crate::{Mechanism, Model, Request, linear, remote, rotational, ssd};
use lamina_block::Time;
use std::time::Duration;

/// Nanoseconds: a moment since time 0, or a length.
pub(crate) type Nanos = f64;

/// Nanoseconds of a millisecond.
pub(crate) const MS: Nanos = 1e6;

/// Nanoseconds of a microsecond.
pub(crate) const US: Nanos = 1e3;

/// The moment `at`, to the nearest nanosecond.
pub(crate) fn moment(at: Nanos) -> Time {
    // Saturates: a moment behind the end of time is its end.
    Time((at + 0.5) as u64)
}

/// A length of time, to the nearest nanosecond; nothing if negative.
pub(crate) fn length(of: Nanos) -> Duration {
    Duration::from_nanos((of + 0.5) as u64)
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Served {
    /// When it ends.
    pub at: Nanos,
    /// Whether it is a read that the on-board cache had.
    pub hit: bool,
    /// Whether its end is that of a transfer from or to the medium.
    pub media: bool,
}

/// A mechanism at work.
pub(crate) enum Machine {
    Linear(linear::Machine),
    Rotational(Box<rotational::Machine>),
    Ssd(Box<ssd::Machine>),
    Remote(remote::Machine),
}

impl Machine {
    /// The mechanism of `model`, idle, with nothing in its caches.
    pub(crate) fn new(model: &Model) -> Machine {
        let sectors = model.sectors();
        match &model.mechanism {
            Mechanism::Linear(keys) => Machine::Linear(linear::Machine::new(keys, sectors)),
            Mechanism::Rotational(keys) => {
                Machine::Rotational(Box::new(rotational::Machine::new(keys, sectors)))
            }
            Mechanism::Ssd(keys) => Machine::Ssd(Box::new(ssd::Machine::new(keys, model.size.0))),
            Mechanism::Remote(keys) => Machine::Remote(remote::Machine::new(keys)),
        }
    }

    /// Begins with `request`; moments never go backwards from call to call.
    pub(crate) fn begin(&mut self, now: Nanos, request: &Request, chance: &mut Chance) -> Served {
        match self {
            Machine::Linear(machine) => machine.begin(now, request, chance),
            Machine::Rotational(machine) => machine.begin(now, request, chance),
            Machine::Ssd(machine) => machine.begin(now, request, chance),
            Machine::Remote(machine) => machine.begin(now, request, chance),
        }
    }

    /// Does what the drive does by itself until `now`, as [`Machine::begin`] does first.
    pub(crate) fn catch_up(&mut self, now: Nanos) {
        match self {
            Machine::Rotational(machine) => machine.catch_up(now),
            Machine::Ssd(machine) => machine.catch_up(now),
            // Neither does anything by itself.
            Machine::Linear(_) | Machine::Remote(_) => {}
        }
    }

    /// What `request` is expected to take if begun at `now`, to which the drive has caught up.
    pub(crate) fn cost(&self, now: Nanos, request: &Request) -> Nanos {
        match self {
            Machine::Linear(machine) => machine.cost(request),
            Machine::Rotational(machine) => machine.cost(now, request),
            Machine::Ssd(machine) => machine.cost(now, request),
            Machine::Remote(machine) => machine.cost(now, request),
        }
    }

    /// The part of the time of `request` on the medium that is the same whenever the request is begun; 0 where the
    /// model does not tell it from the rest.
    pub(crate) fn transfer(&self, request: &Request) -> Nanos {
        match self {
            Machine::Rotational(machine) => machine.transfer_time(request),
            Machine::Linear(_) | Machine::Ssd(_) | Machine::Remote(_) => 0.0,
        }
    }

    /// Whether the on-board cache has all of `request` at `now`, a read.
    pub(crate) fn is_hit(&self, now: Nanos, request: &Request) -> bool {
        match self {
            Machine::Linear(machine) => machine.is_hit(request),
            Machine::Rotational(machine) => machine.is_hit(now, request),
            Machine::Ssd(_) | Machine::Remote(_) => false,
        }
    }
}
