//! What an observer outside knows of a drive: the model, and what it sent.

use crate::{Model, Request};
use lamina_block::Time;
use std::time::Duration;

/// Follows a real drive by the requests that it is sent and the moments when they end, and says what others would cost.
///
/// The angle of the platters follows from completions: a drive's rotation is never exactly its nominal one, so that
/// newer completions count more.
pub struct Tracker {}

impl Tracker {
    /// An observer of a drive of which nothing is known but its model.
    pub fn new(_model: &Model) -> Tracker {
        Tracker {}
    }

    /// `request` went to the drive.
    pub fn dispatched(&mut self, _now: Time, _request: &Request) {}

    /// `request`, with which the drive began at `started`, ended at `at`.
    pub fn completed(&mut self, _started: Time, _at: Time, _request: &Request) {}

    /// What `request` is expected to take if it were sent at `now`.
    pub fn cost(&self, _now: Time, _request: &Request) -> Duration {
        Duration::ZERO
    }

    /// Whether the drive's cache is believed to have all of `request`, a read: the paper's shadow cache.
    pub fn is_hit(&self, _request: &Request) -> bool {
        false
    }
}
