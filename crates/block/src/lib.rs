//! The contract between Lamina's layers: requests, the allowed calls, and the promise of a completion.
//!
//! A virtual disk is a graph of [`Node`]s. Each node holds one [`Layer`], and a layer reaches the layers below it
//! only through their nodes. A request is an [`Io`]; it is answered by one `Result`.
//!
//! Invariants kept here, so that no layer has to:
//! * only [`Node`] calls a layer, and a request at a layer is inside its geometry, aligned, allowed and not empty;
//! * every operation works on every node: a node turns what its layer does not do natively (zeroing, forced unit
//!   access, discard) into what it does;
//! * a completed write is visible to later reads; it is durable after a later completed flush, or at once when it
//!   was written with [`Durability::Fua`] (the promise of NVMe and virtio);
//! * overlapping requests in flight together may take effect in either order, logical block by logical block.
//!
//! This crate knows no operating system. Time, tasks, randomness, disks and connections come from an [`Env`].

mod absent;
mod account;
mod all;
mod believe;
mod budget;
mod buf;
mod config;
mod effect;
mod emulate;
mod env;
mod error;
mod figure;
mod finding;
mod folder;
mod geometry;
mod growth;
mod heal;
mod io;
mod job;
mod keep;
mod kind;
mod layer;
mod manage;
mod node;
mod passthrough;
mod place;
mod pool;
mod probe;
mod reserve;
mod signal;
mod signature;
mod stats;
mod traits;
mod units;
mod users;
mod verb;
mod walk;
mod watch;
mod zones;

pub use absent::Absent;
pub use account::{Account, Cause, Part, Reads, Sample, Waits, wait, wait_on};
pub use all::all;
pub use believe::believe;
pub use budget::{Budget, PIECE, Taker};
pub use buf::{Buf, Segment};
pub use config::{KeyError, Keys};
pub use effect::{Consent, Effect, Fate};
pub use env::{Address, Conn, Ending, Env, Listener, Occasion, OpenDisk, OpenRbd, Question, Time, computed};
pub use error::{Error, ErrorKind, Result};
pub use figure::{Figure, Metric, Notice, Unit, is_null};
pub use finding::{Class, Finding};
pub use folder::Folder;
pub use geometry::{Difference, Extent, ExtentState, Geometry};
pub use growth::Growth;
pub use heal::{Healed, Judge};
pub use io::{Durability, Io, Op, OpKind, Zero};
pub use job::{Job, JobState, Steering};
pub use keep::{Begin, Keep, Level};
pub use kind::{Build, Config, Kind, Made, Over};
pub use layer::{Children, Layer, Pending, Step};
pub use manage::{Command, Manage};
pub use node::{Node, Quiesced};
pub use passthrough::Passthrough;
pub use place::{Located, Place, Role};
pub use pool::{Fresh, Pool};
pub use reserve::{Answer, FarEnd, Probe, Probes, Records, ReservationKey, SharedStore, far_end, probe};
pub use signal::Signal;
pub use signature::Signature;
pub use stats::{Histogram, OpStats, Stats};
pub use traits::{Outside, Traits};
pub use units::{Bytes, Interval};
pub use users::InUse;
pub use verb::{Arg, ArgType, Verb};
pub use walk::{Deferred, Request};
pub use watch::Watch;
pub use zones::{WritePointers, ZoneChange, Zones};
