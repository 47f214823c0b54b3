//! Data that is believed at opening is durable.
//!
//! After the death of a process its successor finds everything that was written, also what is in a cache of the machine
//! only. A layer that recovers acts on that data: it replays a log, and reuses space that a table does not name. If the
//! power fails then, the believed data is gone, but not its consequences. So it is made durable first.

use crate::{Io, Node, Request};
use std::rc::Rc;

/// Makes the data of `devices` durable, which are about to be opened by a layer that recovers from them. All of them
/// are asked at once.
///
/// A device that cannot flush is believed as it is: its data can still be read, and the next flush reports its failure
/// to the layer above. A read-only or absent device is not asked: no later write can go to it.
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
