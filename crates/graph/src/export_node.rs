//! The node of an export.
//!
//! Clients stay attached to an export while its device is exchanged: the export has a node of its own, which only
//! forwards, and that node's layer is exchanged like any other.

use lamina_block::{Geometry, Io, Layer, Manage, Node, Passthrough, Step};
use std::rc::Rc;

/// Forwards everything to a device.
pub(crate) struct ExportNode(pub Rc<Node>);

impl ExportNode {
    /// The kind that the node of an export reports.
    pub const KIND: &'static str = "export";
}

impl Layer for ExportNode {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Forward(Rc::clone(&self.0))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.0)
    }
}

impl Manage for ExportNode {}
