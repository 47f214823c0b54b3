//! Serves a node to a virtual machine as a virtio block device, over vhost-user.
//!
//! ```text
//!  front-end ═ control socket ═▶ control thread ─ jobs ─▶ Device ┐       (set up, stop, migrate)
//!  guest ─ rings in shared memory, kicks ─▶ Queue              ──┴─▶ Node (every request)
//! ```
//!
//! The front-end (QEMU, Cloud Hypervisor) shares the guest's memory with us and tells us where its rings are; from
//! then on requests come and go through that memory, and data moves between it and the storage without a copy. The
//! control socket blocks and has a thread of its own; everything else runs on the reactor.
//!
//! Invariants:
//! * no memory outside the guest's is touched, whatever values the guest writes into its rings and descriptors; every
//!   chain is answered, or its queue is stopped with a line in the log;
//! * memory that a request may touch stays mapped until the request is complete, also when the front-end takes it
//!   away or leaves;
//! * a queue that is stopped has nothing in flight, and nothing of an earlier connection is in flight when the next
//!   one begins;
//! * requests in flight when the process was killed are done again by the next one (if the front-end kept the in-flight
//!   region), and its guest sees no error.
//!
//! Deliberately left out: packed rings, post-copy migration, zones, secure erase.

mod chain;
mod config;
mod control;
mod device;
mod dirty;
mod disposal;
mod eventfd;
mod front_end;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
mod inflight;
mod memory;
mod queue;
mod request;
mod ring;
mod server;
mod socket;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod truncation;

pub use server::{Server, Settings};
