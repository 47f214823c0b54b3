//! The hierarchy file: read, checked, built, drawn.
//!
//! ```text
//!   text ──read──▶ drafts ──check──▶ Plan ──build──▶ Hierarchy
//!          keys, names     graph     (data)  devices    (nodes)
//!                                    opened
//! ```
//!
//! A [`Plan`] is the content of a file, free of every mistake that can be seen without opening a device; a
//! [`Hierarchy`] is a plan at work. A [`Report`] has all problems at once, each with file, line, device and key.
//!
//! Invariants:
//! * no text makes this crate panic, hang, or take memory beyond a small multiple of [`FILE_MAX`];
//! * a hierarchy has no cycle, every device comes after its children, and none is deeper than [`DEPTH_MAX`];
//! * after a build that fails no device is open.
//!
//! This crate knows no kind of layer: kinds are handed in. The crate serves nothing: the caller runs the exports of
//! [`Hierarchy::exports`].

mod absent;
mod apply;
mod assemble;
mod below;
mod change;
mod check;
mod cut;
mod description;
mod device;
mod export;
mod export_node;
mod follow;
mod hierarchy;
mod keys;
mod later;
mod local;
mod members;
mod overwritten;
mod persistent;
mod plan;
mod reach;
mod report;
mod returning;
mod source;
mod spelling;
mod stages;
mod switch;
#[cfg(test)]
mod testing;
mod tree;
mod way;

pub use change::Step;
pub use description::{members_of, with_paths, with_places};
pub use device::Device;
pub use export::{DESCRIPTION_MAX, Export, QUEUES_MAX, SERIAL_MAX, SOCKET_PATH_MAX, Tls};
pub use hierarchy::Hierarchy;
pub use members::MemberPlan;
pub use persistent::Persistent;
pub use plan::{DEPTH_MAX, FILE_MAX, NAME_MAX, Plan, TABLES_MAX, bad_name};
pub use report::{PROBLEMS_MAX, Problem, Report, Severity, Subject};
pub use stages::Stage;
pub use tree::{Row, rows};
pub use way::{Hints, hints};
