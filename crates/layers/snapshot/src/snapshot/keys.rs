//! The keys of a `snapshot` layer, and their possible values; the module describes them.

use super::format::EXTENTS;
use lamina_block::{Bytes, Error, Result};
use lamina_metadata::extents::{PLACES_MAX, Policy};
use serde::Deserialize;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    pub(super) size: Option<Bytes>,
    pub(super) extent: Option<Bytes>,
    #[serde(default)]
    policy: PolicyKey,
    #[serde(default = "memory_default")]
    pub(super) memory: Bytes,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PolicyKey {
    #[default]
    FirstAvailable,
    LogStructured,
    ClosestToLast,
}

fn memory_default() -> Bytes {
    Bytes(16 << 20)
}

impl Keys {
    pub(super) fn extent(&self) -> Bytes {
        self.extent.unwrap_or(Bytes(32 << 10))
    }

    pub(super) fn policy(&self) -> Policy {
        match self.policy {
            PolicyKey::FirstAvailable => Policy::FirstAvailable,
            PolicyKey::LogStructured => Policy::LogStructured,
            PolicyKey::ClosestToLast => Policy::ClosestToLast,
        }
    }

    /// Refuses keys that cannot be over logical blocks of `block` bytes.
    pub(super) fn possible(&self, block: u64) -> Result<()> {
        let extent = self.extent().0;
        if !extent.is_power_of_two() || !EXTENTS.contains(&extent) || extent < block {
            return Err(Error::invalid(format!(
                "extent: {} is not a power of two from {} to {}",
                Bytes(extent),
                Bytes(block.max(*EXTENTS.start())),
                Bytes(*EXTENTS.end())
            )));
        }
        match self.size {
            Some(size)
                if size.0 == 0 || !size.0.is_multiple_of(block) || size.0.div_ceil(extent) > PLACES_MAX =>
            {
                Err(Error::invalid(format!(
                    "size: {size} is not possible; it is a multiple of {block} bytes"
                )))
            }
            _ => Ok(()),
        }
    }
}
