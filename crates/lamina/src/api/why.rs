//! Where the time of requests goes.

use super::Job;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Where the time of an export's requests goes: of some of them, the last ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// The export.
    pub export: String,
    /// The device that it shows.
    pub device: String,
    /// So many requests a second are looked at, about; 0: none.
    pub samples: u32,
    /// By operation: `read`, `write`, `zero`, `discard`, `flush`; those that were looked at.
    pub operations: BTreeMap<String, OperationTimes>,
    /// Work in the background that uses the devices which take most of the time of slow requests, and runs now.
    #[serde(default)]
    pub jobs: Vec<Job>,
    /// The slowest requests of the last five minutes that were looked at, the slowest first.
    pub slowest: Vec<SlowRequest>,
}

/// The times of the requests of one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperationTimes {
    /// Requests that were looked at.
    pub requests: u64,
    /// Seconds from the first of them until now.
    pub seconds: f64,
    /// Half of the requests took no longer, in microseconds.
    pub median_us: f64,
    /// 99% of them took no longer, in microseconds.
    pub p99_us: f64,
    /// Where the time of a request went on average, the largest part first. The parts add up to the mean time.
    pub mean: Vec<Share>,
    /// The same of the slowest 1%, at least one.
    pub slow: Vec<Share>,
}

/// A part of the time of a request, or of several on average.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Share {
    /// The device.
    pub device: String,
    /// The kind of its layer.
    pub kind: String,
    /// What the request waited for there: `itself`, `lock` (other requests of the same bytes), `room` (in a log or on a
    /// flash), `queue` (its turn), `flow-control` (held back), `hosts` (other hosts), `change` (of the hierarchy).
    pub cause: String,
    /// Microseconds.
    pub us: f64,
}

/// A request that took long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SlowRequest {
    /// Its operation.
    pub operation: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Seconds since it began.
    pub seconds_ago: f64,
    /// Microseconds that it took.
    pub us: f64,
    /// Where they went, in the order of time.
    pub parts: Vec<Share>,
}
