//! The requests that clients make of a disk: generated, or from traces.
//!
//! A [`Workload`] has clients. Each is asked for its next [`Action`] when it has nothing to wait for, so that the same
//! workload is closed (clients wait for their answers) or open (a trace keeps its times), in virtual or in real time.
//!
//! ```text
//!      Spec "web:cached"  ──▶ Web: 50 processes over Files ─┐
//!      Poisson ─────────────────────────────────────────────┤
//!      Spec "trace:FILE"  ──▶ Trace ──▶ Replay ─────────────┴─▶ Workload ──next(client, now)──▶ Action
//! ```
//!
//! Invariants: everything is deterministic in (specification, seed, the times of the calls); no clock is read; no call
//! waits; what a trace says is checked before use, and memory is in proportion to what was read.
//!
//! The crate deliberately sends no request: a runner does, against a model in virtual time or a device in real time. It
//! knows no bytes of data either: what a write carries is the runner's choice.

mod poisson;
mod random;
mod replay;
mod spec;
pub mod trace;
pub mod web;

pub use poisson::Poisson;
pub use replay::{Recorded, Replay, ReplayOptions};
pub use spec::{Prepared, Spec};
pub use web::Web;

use lamina_block::Time;
use lamina_drive::Request;
use std::time::Duration;

/// A source of requests. Deterministic in its seed and in the times it is told.
pub trait Workload {
    /// How many clients there are; they are numbered from 0.
    fn clients(&self) -> u32;
    /// The next action of client `client`. `now` is the moment since the workload's begin at which it became free: at
    /// the begin, after its sleep, after the end of a request that it waited for, or at once after one that it did not.
    fn next(&mut self, client: u32, now: Time) -> Action;
}

/// The next action of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends a request, and waits for its end, or not.
    Submit {
        /// The request.
        request: Request,
        /// Whether the client does nothing more before the request has ended.
        wait: bool,
    },
    /// Does nothing for that long.
    Sleep(Duration),
    /// Waits until its first so many requests, counted from the workload's begin, have ended: the page that is read
    /// next is in one of them, while later ones, read ahead, may still be under way.
    WaitFor(u64),
    /// Waits until all of its requests have ended.
    Join,
    /// Does nothing any more. Requests may still be under way.
    End,
}
