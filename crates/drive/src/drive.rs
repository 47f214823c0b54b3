//! A drive at work: requests in, completions out.

use crate::{Model, Request};
use lamina_block::Time;
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
    /// Whether the on-board cache had it.
    pub hit: bool,
}

/// A drive at work.
pub struct Drive {}

impl Drive {
    pub(crate) fn new(_model: &Model, _seed: u64) -> Drive {
        Drive {}
    }

    /// A request arrives at the drive.
    pub fn submit(&mut self, _now: Time, _id: u64, _request: Request) {}

    /// When [`Drive::completed`] is to be asked next, unless requests arrive before; `None` while nothing is under way.
    pub fn next(&self) -> Option<Time> {
        None
    }

    /// A request that has ended by `now`, in the order of their ends. To be asked until there is none.
    pub fn completed(&mut self, _now: Time) -> Option<Completion> {
        None
    }

    /// Requests that have arrived and not ended.
    pub fn in_flight(&self) -> usize {
        0
    }

    /// What `request` is expected to take if the drive began with it at `now`, after what it did last.
    pub fn cost(&self, _now: Time, _request: &Request) -> Duration {
        Duration::ZERO
    }

    /// Whether the on-board cache has all of `request`, a read.
    pub fn is_hit(&self, _request: &Request) -> bool {
        false
    }
}
