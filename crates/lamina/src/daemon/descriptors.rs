//! Whether the process may open as many files as a daemon must: before it opens the first one.
//!
//! Libraries below (the asynchronous runtime) panic without descriptors, and an error at the limit can only name the
//! file that could not be opened. So the descriptors are tried at the start, and a limit that is too low is named.

use super::placement::Placement;
use crate::exit::Failure;
use lamina_graph::Plan;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The descriptors of a daemon without hierarchies: control socket, runtime, signals, and some for clients.
const OWN: usize = 16;
/// A core's ring and the events around it.
const CORE: usize = 6;
/// A device's file, and a second one for its lock or its partition table's.
const DEVICE: usize = 2;
/// A listener and its first client.
const NBD: usize = 2;
/// A listener, its first front-end, and the events of its threads.
const VHOST_USER: usize = 6;
/// The limit that is set: enough for some hundred guests.
const ADVICE: u32 = 65536;

/// Raises the limit of open files as far as the system lets us: every client and every guest's queue is some. An error
/// if these hierarchies have too few even so.
pub fn prepare(placement: &Placement) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(error = %e, "the limit of open files stays unchanged");
    }
    let needed = needed(placement);
    room_for(needed).map_err(|e| {
        let most = getrlimit(Resource::Nofile).current.map_or("none".into(), |most| most.to_string());
        Failure::failed(format!(
            "{needed} descriptors are needed for these hierarchies, and the limit of open files (RLIMIT_NOFILE) is \
             {most}: {e}. Raise the limit: \"LimitNOFILE={ADVICE}\" in the unit's [Service], or as root \"ulimit -n \
             {ADVICE}\" before the start"
        ))
    })
}

fn needed(placement: &Placement) -> usize {
    let of_plan = |plan: &Plan| {
        let exports = plan.exports().iter();
        let of_exports = exports.map(|export| {
            let nbd = export.nbd.as_ref().map_or(0, |_| NBD);
            nbd + export.vhost_user.as_ref().map_or(0, |_| VHOST_USER)
        });
        DEVICE * plan.devices().len() + of_exports.sum::<usize>()
    };
    let hierarchies = placement.iter().flatten().map(of_plan).sum::<usize>();
    OWN + CORE * placement.len() + hierarchies
}

/// Takes so many descriptors, and gives them back.
fn room_for(needed: usize) -> io::Result<()> {
    let stdin = io::stdin();
    let taken: io::Result<Vec<OwnedFd>> = (0..needed).map(|_| stdin.as_fd().try_clone_to_owned()).collect();
    taken.map(drop)
}
