//! What an export stands on.
//!
//! Clients stay attached to an export while the device behind it is exchanged: the export has a node of its own, which
//! only forwards, and that node's layer is exchanged like any other.

use lamina_block::{Extent, Geometry, Io, Layer, Node, Pending, Step};
use std::ops::Range;
use std::rc::Rc;

/// Forwards everything to a device.
pub(crate) struct Door(pub Rc<Node>);

impl Door {
    /// What a door's node says it is.
    pub const KIND: &'static str = "export";
}

impl Layer for Door {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Forward(Rc::clone(&self.0))
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move { self.0.extents(at).await })
    }
}
