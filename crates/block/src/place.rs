//! Where bytes lie: the way of a byte through the layers, down to the devices that have it.

use crate::{Node, Result};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A place of a byte on a device below.
pub struct Place {
    /// The device below.
    pub child: Rc<Node>,
    /// The address there, in bytes.
    pub at: u64,
    /// The role of the byte there.
    pub role: Role,
}

/// The role of a byte at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The byte itself, or the byte from which it is made.
    Data,
    /// Parity: the byte can be computed from it and from other data.
    Parity,
    /// A copy in a cache; the data device has the same, or will get it.
    Cached,
}

impl Role {
    /// As a word.
    pub fn name(self) -> &'static str {
        match self {
            Role::Data => "data",
            Role::Parity => "parity",
            Role::Cached => "cached",
        }
    }
}

impl Place {
    /// Byte `at` of `child`.
    pub fn data(child: &Rc<Node>, at: u64) -> Place {
        Place { child: Rc::clone(child), at, role: Role::Data }
    }
}

/// A byte on a device, and its places below.
pub struct Located {
    /// The device.
    pub node: Rc<Node>,
    /// The address there, in bytes.
    pub at: u64,
    /// The role of the byte there.
    pub role: Role,
    /// The places below: none at the bottom, and where no device below has the byte. An error if the device cannot say.
    pub below: Result<Vec<Located>>,
}

impl Node {
    /// The places of byte `at` on all devices below, as of now. A device that cannot say fails alone.
    pub fn locate(self: &Rc<Self>, at: u64) -> Pin<Box<dyn Future<Output = Located>>> {
        self.located(at, Role::Data)
    }

    fn located(self: &Rc<Self>, at: u64, role: Role) -> Pin<Box<dyn Future<Output = Located>>> {
        let node = Rc::clone(self);
        Box::pin(async move {
            let below = match node.places(at).await {
                Err(e) => Err(e),
                Ok(places) => {
                    let mut below = Vec::with_capacity(places.len());
                    for place in places {
                        below.push(place.child.located(place.at, place.role).await);
                    }
                    Ok(below)
                }
            };
            Located { node, at, role, below }
        })
    }
}
