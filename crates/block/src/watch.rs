//! A view of the requests of a device as they come, for recording what a running volume is asked.

use crate::{Io, Time};

/// Sees the requests that a node is asked for: see [`crate::Node::watch`].
pub trait Watch {
    /// A request has come at `now`, and passes. A request that had to wait for the gate is seen when it passes.
    fn asked(&self, now: Time, io: &Io);
}
