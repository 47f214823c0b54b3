//! What the layer decides: when each request ends in the model, and with which k.
//!
//! A plain struct without waits. Each request is *sent*, *returned* from below, *ended* in the model, and then
//! *complete*, the last two in either order with the return.

use super::adapt::{Adapt, Bounds, Returned};
use super::clock::{Clock, Scale};
use super::lateness::Lateness;
use lamina_block::Time;
use lamina_drive::{Drive, Request};
use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

/// A request that is not complete.
struct Flight {
    sent: Time,
    /// The same moment in the model.
    arrived: Time,
    ended: Option<Ended>,
    /// Whoever waits for the end.
    waker: Option<Waker>,
}

/// The end of a request in the model.
#[derive(Clone, Copy)]
struct Ended {
    /// The real moment.
    target: Time,
    /// The model's time from its arrival.
    took: Duration,
}

/// What requests were like since the statistics began.
#[derive(Default)]
pub struct Counts {
    /// How much later than their targets they were complete.
    pub lateness: Lateness,
    /// Reads that the drive's cache had.
    pub hits: u64,
    /// Requests that came back from below after their targets.
    pub late: u64,
}

/// The virtual performance throttle of the paper on CATS, section 4.
pub struct Throttle {
    drive: Drive,
    clock: Clock,
    adapt: Option<Adapt>,
    flights: BTreeMap<u64, Flight>,
    next: u64,
    counts: Counts,
}

impl Throttle {
    /// A drive that is idle; k is fixed, or stays within the bounds.
    pub fn new(now: Time, drive: Drive, k: Scale, adaptive: Option<Bounds>) -> Throttle {
        Throttle {
            drive,
            clock: Clock::new(now, adaptive.map_or(k, |bounds| bounds.nearest(k))),
            adapt: adaptive.map(|bounds| Adapt::new(now, bounds)),
            flights: BTreeMap::new(),
            next: 0,
            counts: Counts::default(),
        }
    }

    /// The present factor.
    pub fn k(&self) -> Scale {
        self.clock.k()
    }

    /// The bounds of k, if it is not fixed.
    pub fn bounds(&self) -> Option<Bounds> {
        self.adapt.as_ref().map(Adapt::bounds)
    }

    /// The statistics.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Begins the statistics anew.
    pub fn reset(&mut self) {
        self.counts = Counts::default();
    }

    /// Goes on with another k, and with fresh statistics: lateness under one k says nothing about another.
    pub fn set_k(&mut self, now: Time, k: Scale, adaptive: Option<Bounds>) {
        self.harvest(now);
        self.clock.set_k(now, adaptive.map_or(k, |bounds| bounds.nearest(k)));
        self.adapt = adaptive.map(|bounds| Adapt::new(now, bounds));
        self.reset();
    }

    /// A request goes to the drive; its number.
    pub fn send(&mut self, now: Time, request: Request) -> u64 {
        let id = self.next;
        self.next += 1;
        let arrived = self.clock.model(now);
        self.drive.submit(arrived, id, request);
        self.flights.insert(id, Flight { sent: now, arrived, ended: None, waker: None });
        id
    }

    /// The real moment when the next request ends in the model.
    pub fn next(&self) -> Option<Time> {
        self.drive.next().map(|at| self.clock.real(at))
    }

    /// Finds out which requests have ended in the model by now, and wakes those that wait for it.
    pub fn harvest(&mut self, now: Time) {
        let until = self.clock.model(now);
        while let Some(done) = self.drive.completed(until) {
            self.counts.hits += u64::from(done.hit);
            // A request that was given up waits for nothing.
            let Some(flight) = self.flights.get_mut(&done.id) else { continue };
            flight.ended =
                Some(Ended { target: self.clock.real(done.at), took: done.at.since(flight.arrived) });
            if let Some(waker) = flight.waker.take() {
                waker.wake();
            }
        }
    }

    /// Whether a request has ended in the model. If not, `waker` is called when it does.
    pub fn has_ended(&mut self, id: u64, waker: &Waker) -> bool {
        let Some(flight) = self.flights.get_mut(&id) else { return true };
        if flight.ended.is_none() {
            flight.waker = Some(waker.clone());
        }
        flight.ended.is_some()
    }

    /// A request that has ended, and came back from below at `returned`, is complete now. The k from now on, if it
    /// changes.
    pub fn complete(&mut self, now: Time, id: u64, returned: Time) -> Option<Scale> {
        let Flight { sent, ended, .. } = self.flights.remove(&id)?;
        let Ended { target, took } = ended?;
        self.counts.lateness.record(now.since(target));
        self.counts.late += u64::from(returned > target);
        let request = Returned { sent, below: returned.since(sent), model: took };
        let adapt = self.adapt.as_mut()?;
        let (k, bounds) = (adapt.returned(now, self.clock.k(), request)?, adapt.bounds());
        self.set_k(now, k, Some(bounds));
        Some(k)
    }

    /// A request is given up.
    pub fn forget(&mut self, id: u64) {
        self.flights.remove(&id);
    }
}
