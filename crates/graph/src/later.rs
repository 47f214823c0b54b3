//! A new device before its time.
//!
//! A device over another one that gets a new layer in the same change may need properties that only the new layer has:
//! its size, or its state. So the upper device is made when the new layer is at work. Until then its node has this
//! layer, which gets no request: the smallest and coarsest device there can be, so that any layer fits in its place.

use lamina_block::{Error, Geometry, Io, Layer, Manage, Passthrough, Step};
use std::rc::Rc;

/// The placeholder of a layer.
pub(crate) struct Later;

/// The coarsest blocks that a device may have, in bytes.
const BLOCK: u32 = 64 << 10;

impl Layer for Later {
    fn geometry(&self) -> Geometry {
        Geometry { block: BLOCK, optimal: BLOCK, read_only: true, ..Geometry::new(0) }
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Done(Err(Error::offline("the device is not there yet")))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Later {}
