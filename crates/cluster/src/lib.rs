//! Several hosts in front of one shared store: what they say to each other about its volumes.
//!
//! ```text
//!      host a                     datastore                    host b
//!      ┌────────┐   read, append  ┌──────────────────┐         ┌────────┐
//!      │ holder │────────────────▶│ vault: a record  │◀────────│        │
//!      │        │   beat          │ for each volume; │  reads  │        │
//!      └────────┘────────────────▶│ a beat a host    │         └────────┘
//!                                 └──────────────────┘
//! ```
//!
//! The *vault* says of each volume which host holds it, in which generation, and where the writes are that the store
//! does not have (SYSTEMS C6; *A Practical Implementation of Clustered Fault Tolerant Write Acceleration in a
//! Virtualized Environment*, FAST '15). It is a record that is changed by comparing and setting, and no lock: an
//! outside authority keeps the configuration, and no host votes (PacificA, MSR-TR-2008-25).
//!
//! Everything that decides is a plain struct or function: time, folders and connections come with the calls or from an
//! [`lamina_block::Env`].

pub mod amend;
pub mod choice;
pub mod conn;
mod fence;
pub mod handover;
mod held;
pub mod host;
pub mod link;
pub mod members;
pub mod peer;
pub mod promise;
mod reach;
mod read_ahead;
pub mod remote;
pub mod report;
pub mod reservation;
pub mod secure;
pub mod sender;
pub mod serve;
pub mod takeover;
pub mod vault;
pub mod view;
pub mod wire;

pub use uuid::Uuid;
