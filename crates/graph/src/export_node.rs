//! The node of an export.
//!
//! Clients stay attached to an export while its device is exchanged: the export has a node of its own, which only
//! forwards, and that node's layer is exchanged like any other.

use lamina_block::{Geometry, Io, Layer, Manage, Node, Passthrough, Step};
use std::rc::Rc;

/// Forwards everything to a device, and says who asks.
pub(crate) struct ExportNode {
    device: Rc<Node>,
    /// What is added to the number of a connection ([`Io::client`]). From the name of the export, so that the number
    /// stays when the device is exchanged: two exports of 2^32 may be taken for one.
    client: u32,
}

impl ExportNode {
    /// The kind that the node of an export reports.
    pub const KIND: &'static str = "export";

    /// The layer of the export called `name`, which leads to `device`.
    pub fn new(name: &str, device: &Rc<Node>) -> ExportNode {
        ExportNode { device: Rc::clone(device), client: fnv(name) }
    }
}

/// FNV-1a (Fowler, Noll, Vo; draft-eastlake-fnv), of 32 bits.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811C_9DC5, |hash, byte| (hash ^ byte as u32).wrapping_mul(0x0100_0193))
}

impl Layer for ExportNode {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        io.client = io.client.wrapping_add(self.client);
        Step::Forward(Rc::clone(&self.device))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.device)
    }
}

impl Manage for ExportNode {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_exports_are_those_of_the_draft() {
        assert_eq!((fnv(""), fnv("a"), fnv("foobar")), (0x811C_9DC5, 0xE40C_292C, 0xBF9C_F968));
    }
}
