//! The false environment, and the gauntlet that every layer passes in it.
//!
//! [`SimEnv`] implements `lamina_block::Env` from a seed: which task runs next, when timers fire, how long a disk
//! takes, how a stream is cut into pieces. Time is virtual and jumps when nothing can run. Its disks ([`SimDisk`]) keep
//! what was written apart from what is durable, and lose at power loss what they may. A run with the same seed does the
//! same again.
//!
//! [`gauntlet!`] puts a layer or a graph, as a [`Subject`], through seven checks, each a test:
//!
//! ```ignore
//! lamina_sim::gauntlet!(stripe, Subject::layer(&Kind::of::<Stripe>(), json!({ "unit": "4KiB" }), 3));
//! ```
//!
//! Invariant: nothing here reads the machine's clock, randomness, memory addresses or hash order; [`soak`] alone
//! measures how fast it is.
//!
//! [`SimHost`] is one of several hosts in a world, and [`SimRemote`] a disk that they all reach over a network. The
//! simulator deliberately leaves out particular devices; its network is one of connections, not packets.

mod disk;
mod env;
mod executor;
mod folder;
mod gauntlet;
mod host;
mod media;
mod memory;
mod net;
mod options;
mod probe;
mod remote;
mod service;
mod stamp;
mod zones;

pub use disk::{Image, SimDisk};
pub use env::{Images, SimEnv, Simulation, Started};
pub use executor::Hang;
pub use folder::{Fate, SimFolder};
pub use gauntlet::{
    Check, Failure, Replay, Rig, Run, SimKeep, Soaked, Subject, run, shown, simulate, soak, soak_test, test,
};
pub use host::SimHost;
pub use media::Loss;
pub use memory::gone_memory;
pub use net::Net;
pub use options::{Contents, DiskOptions, Presence};
pub use probe::Fault;
pub use remote::{Reach, SETTLES, SimRemote};
