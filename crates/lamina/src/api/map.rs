//! Where a byte lies.

use lamina_block::Located;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A byte on a device, and its places on the devices below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ByteMap {
    /// The device, or the export.
    pub device: String,
    /// The address there, in bytes.
    pub at: u64,
    /// `data`: the byte, or that from which it is made; `parity`: it can be computed from here and others; `cached`: a
    /// copy in a cache.
    pub role: String,
    /// Its places below; none at the bottom, and where it is not allocated.
    #[schema(no_recursion)]
    pub below: Vec<ByteMap>,
    /// Why the device cannot say where the byte lies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<Located> for ByteMap {
    fn from(mut located: Located) -> ByteMap {
        // A member and the disk that it lies on have one name: the address is that on the disk.
        while let Ok([below]) = located.below.as_deref_mut()
            && below.node.name() == located.node.name()
        {
            (located.at, located.node) = (below.at, below.node.clone());
            located.below = std::mem::replace(&mut below.below, Ok(Vec::new()));
        }
        let (below, error) = match located.below {
            Ok(below) => (below.into_iter().map(ByteMap::from).collect(), None),
            Err(e) => (Vec::new(), Some(e.to_string())),
        };
        let (device, role) = (located.node.name().to_owned(), located.role.name().to_owned());
        ByteMap { device, at: located.at, role, below, error }
    }
}
