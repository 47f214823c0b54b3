//! A static probe (USDT, in SystemTap's format) where a request ends, for `bpftrace`, `perf` and `gdb`. While none of
//! them is attached, a request costs the look at a counter that they raise.

use crate::{Node, OpKind};

/// The tracers that are attached: each raises this, through the kernel or the memory of this process.
#[unsafe(link_section = ".probes")]
static mut TRACERS: u16 = 0;

/// Whether a tracer is attached.
#[inline(always)]
pub(crate) fn is_traced() -> bool {
    // SAFETY: a number of this program that lives as long; no code of it writes there.
    unsafe { (&raw const TRACERS).read_volatile() != 0 }
}

/// A request has ended in `node`. The arguments of the probe `lamina:request`: address and length of the device's name,
/// the operation (its number in [`OpKind::ALL`]), bytes, nanoseconds, and 1 if the request failed.
pub(crate) fn request(node: &Node, op: OpKind, bytes: u64, latency_ns: u64, failed: bool) {
    let name = node.name();
    // Of the crate's macros the only one with a counter that several places share.
    probe::sdt!(
        [sym "{}" TRACERS], lamina, request, name.as_ptr(), name.len(), op, bytes, latency_ns, failed,
    );
}
