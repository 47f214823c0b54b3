//! The real environment: a reactor on io_uring, with files, block devices, sockets, eventfds and timers.
//!
//! One [`Reactor`] a thread. A reactor runs the thread's tasks, hands their operations to the kernel in one call a
//! turn, and sleeps in the kernel when there is nothing to do. [`Host`] is the [`lamina_block::Env`] of these tasks.
//!
//! Invariants:
//! * memory and descriptors of an operation stay until the kernel has answered, also when the future that waited for it
//!   was dropped;
//! * tasks never leave their thread; other threads reach them through wakers and [`Remote`];
//! * nothing here blocks the thread but [`lamina_block::Env::listen`] (at start); calls without an asynchronous form
//!   run on helper threads.
//!
//! Deliberately left out: distribute tasks over threads, poll devices, handle signals.

mod access;
mod asker;
mod bell;
mod disk;
mod event;
mod executor;
mod fence;
mod file;
mod folder;
mod helper;
pub mod holders;
mod host;
mod net;
mod rbd;
mod reactor;
mod remote;
mod ring;
mod secret;
mod spin;
mod terminal;
mod timers;

pub use access::Access;
pub use asker::Asker;
pub use bell::Bell;
pub use event::Event;
pub use fence::Fencer;
pub use host::Host;
pub use reactor::{Options, Reactor};
pub use remote::{Gone, Remote};
