//! How long drives take: models of hard disks, SSDs and remote stores, as (state, request, now) → completion.
//!
//! A [`Model`] is what a drive is; it is read from a file. A [`Drive`] is such a drive at work: requests go in at their
//! time and come out at theirs. A [`Tracker`] is what an observer outside knows of a drive that it sends requests to:
//! where its arm is, what its cache holds, and so what a request would cost now.
//!
//! ```text
//!      submit(now, id, request) ──▶ queue of the drive ──▶ mechanism ──▶ completed(now) ─▶ id, time
//!                                     fifo, or the           one of
//!                                     shortest first         linear · rotational · ssd · remote
//! ```
//!
//! Invariants: everything is deterministic in (model, seed, calls); no clock is read; no call waits. Time never goes
//! backwards: `now` of a call is not before that of an earlier one.
//!
//! The crate deliberately knows no bytes of data, no layers and no operating system: `emulate` holds requests by it,
//! `schedule` picks by it, simulated disks take their time from it, and `predict` counts with it.

mod cache;
mod chance;
mod check;
mod drive;
mod linear;
mod machine;
mod model;
mod of_io;
mod phase;
mod quantiles;
mod remote;
mod request;
mod rotational;
mod ssd;
#[cfg(test)]
mod tests;
mod tracker;

pub use cache::{Cache, SegmentCache};
pub use drive::{Completion, Drive};
pub use linear::Linear;
pub use model::{Mechanism, Model, ModelError};
pub use quantiles::Quantiles;
pub use remote::{Latency, Lognormal, Remote};
pub use request::{Op, Request, SECTOR};
pub use rotational::{Curve, HeadOrder, Order, Residuals, Rotational, Seek, WriteBuffer, Zone};
pub use ssd::{BlockMap, DepthLatency, Garbage, Residual, ResidualOp, Ssd};
pub use tracker::Tracker;
