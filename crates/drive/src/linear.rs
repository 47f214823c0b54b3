//! The linear model of the paper on CATS: X = R/2 + S·d/D, and a constant for what the on-board cache has.

use serde::{Deserialize, Serialize};

/// Keys of a linear model. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Linear {
    /// R/2: half a rotation, paid by every request that misses the cache.
    pub constant_ms: f64,
    /// S: what the longest distance adds.
    pub slope_ms: f64,
    /// What a hit in the on-board cache takes.
    pub hit_ms: f64,
}
