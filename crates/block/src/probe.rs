//! A static probe (USDT, in SystemTap's format) where a request ends, for `bpftrace`, `perf` and `gdb`. While none of
//! them is attached, a node costs the look at a counter that they raise.

use crate::{Node, OpKind};

/// A request has ended in `node`. The arguments of the probe `lamina:request`: address and length of the device's name,
/// the operation (its number in [`OpKind::ALL`]), bytes, nanoseconds, and 1 if the request failed.
#[inline(always)]
pub(crate) fn request(node: &Node, op: OpKind, bytes: u64, latency_ns: u64, failed: bool) {
    let name = node.name();
    probe::probe_lazy!(lamina, request, name.as_ptr(), name.len(), op, bytes, latency_ns, failed);
}
