//! The program as its users meet it: processes, signals, sockets, files.
//!
//! Data goes through our own NBD client, in this process. Every daemon is killed and every folder removed when its
//! test ends, well or not; nothing waits longer than [`rig::PATIENCE`].

mod api;
mod calibrate;
mod classes;
mod commands;
mod commands_of_devices;
mod create;
mod models;
mod offline;
mod recovery;
mod rig;
mod secrets;
mod serving;
