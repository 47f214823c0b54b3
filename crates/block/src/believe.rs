//! What is believed is durable.
//!
//! After the death of a process its successor finds everything that was written, also what is in a cache of the machine
//! only. Who recovers from it acts on it: writes elsewhere what a log says, takes room for free that a table does not name.
//! If the power fails then, what was believed is gone, and what followed from it is not. So it is made durable first.

use crate::{Io, Node, Request};
use std::rc::Rc;

/// Makes durable what can be read of `devices`, which are about to be opened by who recovers from it. All of them are asked
/// at once.
///
/// One that cannot flush is believed as it is: what it has can still be read, and whoever stands on it hears of its failure
/// when it is flushed next. One that is read-only or absent is not asked: nothing that follows can be written to it.
pub async fn believe(devices: impl IntoIterator<Item = &Rc<Node>>) {
    let asked = devices.into_iter().filter(|device| !device.geometry().read_only);
    let flushes: Vec<(&Rc<Node>, Request)> =
        asked.map(|device| (device, device.submit(Io::flush()))).collect();
    for (device, flush) in flushes {
        if let Err(e) = flush.await {
            tracing::warn!(device = %device.name(), error = %e, "cannot be flushed, and is believed as it is");
        }
    }
}
