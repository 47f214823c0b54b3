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
    /// The core that all of them share.
    #[serde(default)]
    pub core: CoreLoad,
    /// Work in the background that uses the devices which take most of the time of slow requests, and runs now.
    #[serde(default)]
    pub jobs: Vec<Job>,
    /// The slowest requests of the last five minutes that were looked at, the slowest first.
    pub slowest: Vec<SlowRequest>,
}

/// How busy a core is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CoreLoad {
    /// Its number.
    pub number: usize,
    /// The part of the time that it has worked, from 0 to 1, between the first and the last request that was looked at.
    pub busy: f64,
    /// Devices of the export that compute with each byte, such as one that encrypts.
    pub computing: Vec<String>,
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
    /// Requests that were under way when one of these began, with that one, on average.
    #[serde(default)]
    pub depth: f64,
    /// Reads that devices have made for these requests, which are no reads; the device with the longest ones first.
    #[serde(default)]
    pub reads: Vec<ReadsFirst>,
    /// Where the time of a request went on average, the largest part first. The parts add up to the mean time.
    pub mean: Vec<Share>,
    /// The same of the slowest 1%, at least one.
    pub slow: Vec<Share>,
}

/// Reads that a device has made for requests which are none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReadsFirst {
    /// The device.
    pub device: String,
    /// The kind of its layer.
    pub kind: String,
    /// How many, for each request on average.
    pub count: f64,
    /// Microseconds of each request on average, from the begin of the first read until the end of the last.
    pub us: f64,
    /// Why devices of this kind do that, in a sentence.
    pub why: Option<String>,
}

/// A part of the time of a request, or of several on average.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Share {
    /// The device.
    pub device: String,
    /// The kind of its layer.
    pub kind: String,
    /// What the request waited for there: `itself`, `lock` (other requests of the same bytes), `room` (in a log or on a
    /// flash), `queue` (its turn), `flow-control` (held back), `metadata` (of the layer, to be on disk), `hosts` (other
    /// hosts), `change` (of the hierarchy).
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
