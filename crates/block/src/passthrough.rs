//! Whose bytes a device shows: the answer to questions about bytes that are neither read nor written.

use crate::{Difference, Error, Extent, ExtentState, Healed, Judge, Node, Pending, Place};
use std::ops::Range;
use std::rc::Rc;

/// Whether the bytes of a device are those of one device below.
pub enum Passthrough {
    /// Byte `x` here is byte `x + shift` of `child`, or is made of it alone.
    To {
        /// The device below.
        child: Rc<Node>,
        /// Bytes from an address here to that below.
        shift: u64,
    },
    /// They are not: all is data, there is one copy and no snapshot, unless the layer says something else itself.
    None,
}

impl Passthrough {
    /// Byte `x` is byte `x` of `child`.
    pub fn to(child: &Rc<Node>) -> Passthrough {
        Passthrough::shifted(child, 0)
    }

    /// Byte `x` is byte `x + shift` of `child`.
    pub fn shifted(child: &Rc<Node>, shift: u64) -> Passthrough {
        Passthrough::To { child: Rc::clone(child), shift }
    }

    /// The allocation state of `at`.
    pub fn extents(self, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            match self {
                Passthrough::To { child, shift } => child.extents(at.start + shift..at.end + shift).await,
                Passthrough::None => Ok(vec![Extent { len: at.end - at.start, state: ExtentState::Data }]),
            }
        })
    }

    /// Where byte `at` lies below: nowhere, unless the bytes are those of a device below.
    pub fn places(self, at: u64) -> Pending<Vec<Place>> {
        let places = match self {
            Passthrough::To { child, shift } => vec![Place::data(&child, at + shift)],
            Passthrough::None => Vec::new(),
        };
        Box::pin(async { Ok(places) })
    }

    /// The differences of `at` from a snapshot: see [`crate::Layer::changed`].
    pub fn changed(self, since: String, at: Range<u64>) -> Pending<Vec<Difference>> {
        Box::pin(async move {
            match self {
                Passthrough::To { child, shift } => {
                    child.changed(since, at.start + shift..at.end + shift).await
                }
                Passthrough::None => {
                    let message = "the device has no snapshots, and no record of changes since one";
                    Err(Error::unsupported(message).at(at))
                }
            }
        })
    }

    /// The snapshots: see [`crate::Layer::snapshots`].
    pub fn snapshots(self) -> Vec<String> {
        match self {
            Passthrough::To { child, .. } => child.snapshots(),
            Passthrough::None => Vec::new(),
        }
    }

    /// Another copy of `at`: see [`crate::Layer::heal`].
    pub fn heal(self, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move {
            match self {
                Passthrough::To { child, shift } => {
                    child.heal(at.start + shift..at.end + shift, is_right).await
                }
                Passthrough::None => Ok(None),
            }
        })
    }
}

impl Node {
    /// The device at the bottom of which this one shows the bytes, perhaps moved: itself where its layer does more.
    /// Devices with the same bottom share its time.
    pub fn bottom(self: &Rc<Self>) -> Rc<Node> {
        match self.layer().passthrough() {
            Passthrough::To { child, .. } => child.bottom(),
            Passthrough::None => Rc::clone(self),
        }
    }
}
