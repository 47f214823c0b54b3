//! What an observer outside knows of a drive: the model, and what it sent.

use crate::chance::Chance;
use crate::machine::{Machine, Nanos, length};
use crate::{Model, Request, phase::Phase};
use lamina_block::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// How many requests are remembered as under way. An observer that is told of no ends forgets the oldest.
const UNDER_WAY_MAX: usize = 1024;

/// Follows a real drive by the requests that it is sent and the moments when they end, and says what others would cost.
///
/// The observer has a drive of its own, of the same model, that does what the real one is sent, without chance. The
/// place of its arm and its cache are what those of the real one are believed to be. The angle of the platters follows
/// from completions: a drive's rotation is never exactly its nominal one, so that newer completions count more. An end
/// that comes too soon for a transfer says nothing of the angle. As long as no request has ended on the medium, every
/// rotational wait is expected to be half a turn.
pub struct Tracker {
    machine: Machine,
    phase: Phase,
    under_way: VecDeque<UnderWay>,
    /// The latest moment of any call.
    now: Time,
    sent: u64,
}

/// A request that went to the drive.
struct UnderWay {
    serial: u64,
    request: Request,
    /// Whether its end is expected to be that of a transfer from or to the medium.
    media: bool,
}

impl Tracker {
    /// An observer of a drive of which nothing is known but its model.
    pub fn new(model: &Model) -> Tracker {
        Tracker {
            machine: Machine::new(model),
            phase: Phase::default(),
            under_way: VecDeque::new(),
            now: Time(0),
            sent: 0,
        }
    }

    /// `request` went to the drive.
    pub fn dispatched(&mut self, now: Time, request: &Request) {
        self.now = self.now.max(now);
        let served = self.machine.begin(self.now.0 as Nanos, request, &mut Chance::Expected);
        // Ends of other drives say nothing.
        if !matches!(self.machine, Machine::Rotational(_)) {
            return;
        }
        if self.under_way.len() == UNDER_WAY_MAX {
            self.under_way.pop_front();
        }
        self.sent += 1;
        self.under_way.push_back(UnderWay { serial: self.sent, request: *request, media: served.media });
    }

    /// `request`, with which the drive began at `started`, ended at `at`.
    pub fn completed(&mut self, started: Time, at: Time, request: &Request) {
        self.now = self.now.max(at);
        let Some(place) = self.under_way.iter().position(|sent| sent.request == *request) else { return };
        let Some(sent) = self.under_way.remove(place).filter(|sent| sent.media) else { return };
        let Machine::Rotational(machine) = &mut self.machine else { return };
        let ending = machine.ending(request);
        // A hit that was not expected says nothing of the angle.
        if (at.since(started).as_nanos() as Nanos) < ending.least {
            return;
        }
        let at = at.0 as Nanos;
        self.phase.observe(at, ending.turns, machine.rotation());
        if let Some(spin) = self.phase.spin(machine.rotation()) {
            machine.spin_as(spin);
        }
        if sent.serial == self.sent {
            machine.ended(at, &ending);
        }
    }

    /// What the drive does by itself until `now` is done: costs and hits from then on are asked of that state.
    pub fn catch_up(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.machine.catch_up(self.now.0 as Nanos);
    }

    /// What `request` is expected to take if it were sent at `now`: until its end, with the wait for a drive that is
    /// busy with the medium. What the drive has done by itself meanwhile counts up to the last call that changes this
    /// observer: of a drive with a buffer of writes, [`Tracker::catch_up`] comes first.
    pub fn cost(&self, now: Time, request: &Request) -> Duration {
        length(self.machine.cost(now.0 as Nanos, request))
    }

    /// What the transfer of `request` from or to the medium takes, whenever it is sent: turns that are lost between
    /// tracks count. 0 of a drive whose model has no such part.
    pub fn transfer(&self, request: &Request) -> Duration {
        length(self.machine.transfer(request))
    }

    /// The part of a turn for which `request`, sent at `now`, is expected to wait for its first sector; none of a drive
    /// that does not turn, or of a request that needs no medium.
    pub fn wait(&self, now: Time, request: &Request) -> Option<f64> {
        match &self.machine {
            Machine::Rotational(machine) => machine.wait(now.0 as Nanos, request),
            Machine::Linear(_) | Machine::Ssd(_) | Machine::Remote(_) => None,
        }
    }

    /// Whether the drive's cache is believed to have all of `request`, a read: the paper's shadow cache.
    pub fn is_hit(&self, request: &Request) -> bool {
        self.machine.is_hit(self.now.0 as Nanos, request)
    }

    /// The same at `now`, which may be later than all that the observer was told: reading ahead has gone on.
    pub fn is_hit_at(&self, now: Time, request: &Request) -> bool {
        self.machine.is_hit(now.max(self.now).0 as Nanos, request)
    }
}
