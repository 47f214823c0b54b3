//! A new device before its time.
//!
//! What is made over a device that gets another layer in the same change may need what only that has: its new size, or
//! its state. So it is made when that is at work. Until then its node has this layer, which nobody uses: it is as small
//! and as coarse as a device can be, so that whatever comes fits in its place.

use lamina_block::{Error, Geometry, Io, Layer, Manage, Passthrough, Step};
use std::rc::Rc;

/// Holds the place of a layer.
pub(crate) struct Later;

/// The coarsest blocks that a device may have, in bytes.
const BLOCK: u32 = 64 << 10;

impl Layer for Later {
    fn geometry(&self) -> Geometry {
        Geometry { block: BLOCK, optimal: BLOCK, read_only: true, ..Geometry::new(0) }
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Done(Err(Error::offline("it is not there yet")))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Later {}
