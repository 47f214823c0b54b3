//! The data of the control API: plain data, copied from the cores.
//!
//! The types carry their own documentation into the OpenAPI document (`docs/openapi.json`). Counters never go back
//! while the daemon runs; rates are the reader's business (see [`crate::show`]).

mod cluster;
mod map;
mod why;

pub use cluster::{Cluster, ClusterHost, ClusterMember, ClusterVolume};
pub use map::ByteMap;
pub use why::{CoreLoad, OperationTimes, ReadsFirst, Share, SlowRequest, Why};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Everything that a daemon serves, at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Nanoseconds since it started; the time base for rates.
    pub uptime_ns: u64,
    /// CPU time that the process has used, in nanoseconds.
    pub cpu_ns: u64,
    /// Memory of the process that is resident, in bytes.
    pub resident_bytes: u64,
    /// The connected graphs of devices.
    pub hierarchies: Vec<Hierarchy>,
}

impl Snapshot {
    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.hierarchies.iter().flat_map(|h| &h.devices)
    }

    /// All exports.
    pub fn exports(&self) -> impl Iterator<Item = &Export> {
        self.hierarchies.iter().flat_map(|h| &h.exports)
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Rises with each event; also across restarts, if a file keeps them.
    pub number: u64,
    /// When it has happened, last if several times: milliseconds since 1970, UTC.
    pub time_ms: u64,
    /// `error`, `warning` or `info`.
    pub severity: String,
    /// The device that it is about, or the volume that several hosts reach; none if it is about the daemon.
    pub device: Option<String>,
    /// What has happened.
    pub message: String,
    /// How often it has happened without anything else to that device in between.
    pub times: u64,
}

/// Makes a running daemon's hierarchies what a file says.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The absolute path of the hierarchy file.
    pub file: String,
    /// Only say what would be done.
    #[serde(default)]
    pub plan: bool,
    /// Overwrite what new members carry.
    #[serde(default)]
    pub force: bool,
}

/// The steps, done or planned.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// The steps in their order, a line each; none if everything is as the file says.
    pub steps: Vec<String>,
    /// Failures after the change was made: devices that could not be closed well.
    pub warnings: Vec<String>,
    /// Files with which the daemon was started, and that do not describe the served hierarchies.
    #[serde(default)]
    pub outdated: Vec<String>,
}

/// A connected graph of devices, all on one core.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Hierarchy {
    /// The file it was read from.
    pub file: String,
    /// The core it lives on, from 0.
    pub core: usize,
    /// Its devices, each after the devices below it.
    pub devices: Vec<Device>,
    /// Its exports.
    pub exports: Vec<Export>,
}

/// A device: its shape, its counters, and the state of its layer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// Name in the hierarchy file; unique in the daemon.
    pub name: String,
    /// Kind of its layer.
    pub kind: String,
    /// The devices it stands on, in the order of its `over` key.
    pub over: Vec<String>,
    /// Its shape.
    pub geometry: Geometry,
    /// Requests under way.
    pub in_flight: u32,
    /// Requests fail because a device below could not be reached: the last request, or some of the last seconds.
    #[serde(default)]
    pub unreachable: bool,
    /// Counters by operation: `read`, `write`, `zero`, `discard`, `flush`.
    pub operations: BTreeMap<String, Operation>,
    /// State that the layer shows, if any.
    pub info: Value,
    /// Its work in the background, if any.
    #[serde(default)]
    pub jobs: Vec<Job>,
}

/// Work in the background of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// The device.
    pub device: String,
    /// Its name; unique on its device.
    pub name: String,
    /// `running`, `paused`, or `cancelled` and about to end.
    pub state: String,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes in all, as far as is known.
    pub total: u64,
    /// Bytes for each second since it began or was resumed.
    pub rate: u64,
    /// The most bytes for each second; without this key there is no limit.
    pub limit: Option<u64>,
    /// Seconds that are left at this rate, if there is one.
    pub seconds_left: Option<u64>,
    /// The reason why the job paused by itself, if it did; resume the job after the repair.
    pub error: Option<String>,
}

impl Job {
    /// A copy of the figures of a device's job.
    pub fn of(device: &str, job: &lamina_block::Job) -> Job {
        let mut figures = job.info();
        figures["device"] = device.into();
        serde_json::from_value(figures).expect("a job's figures are those of this type; a test says so")
    }
}

/// The action on a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "action", rename_all = "lowercase", deny_unknown_fields)]
pub enum Steer {
    /// Let it wait before its next piece.
    Pause,
    /// Let it go on.
    Resume,
    /// End it before its next piece.
    Cancel,
    /// Change how fast it may go.
    Limit {
        /// The most bytes for each second; without this key there is no limit.
        #[serde(default)]
        limit: Option<u64>,
    },
}

/// A command that a device understands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Verb {
    /// Its name.
    pub name: String,
    /// A description in one line.
    pub summary: String,
    /// Its arguments, the required ones first.
    pub args: Vec<Arg>,
}

/// An argument of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Arg {
    /// Its name.
    pub name: String,
    /// The type of its value.
    #[serde(rename = "type")]
    pub is: ArgType,
    /// The command does not work without it.
    pub required: bool,
    /// A description in one line.
    pub summary: String,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ArgType {
    /// Text.
    Text,
    /// Bytes, as a number or as text with a unit: `"4KiB"`.
    Size,
    /// A number that is not negative.
    Count,
    /// A time with its unit: `"10ms"`.
    Time,
    /// True or false.
    Flag,
    /// Any JSON, as the summary says.
    Json,
    /// Text that is not shown and not logged.
    Secret,
}

impl From<&lamina_block::Verb> for Verb {
    fn from(verb: &lamina_block::Verb) -> Verb {
        let arg = |arg: &lamina_block::Arg| Arg {
            name: arg.name.into(),
            is: arg.is.into(),
            required: arg.required,
            summary: arg.summary.into(),
        };
        Verb {
            name: verb.name.into(),
            summary: verb.summary.into(),
            args: verb.args.iter().map(arg).collect(),
        }
    }
}

impl From<lamina_block::ArgType> for ArgType {
    fn from(is: lamina_block::ArgType) -> ArgType {
        use lamina_block::ArgType as T;
        match is {
            T::Text => ArgType::Text,
            T::Size => ArgType::Size,
            T::Count => ArgType::Count,
            T::Time => ArgType::Time,
            T::Flag => ArgType::Flag,
            T::Json => ArgType::Json,
            T::Secret => ArgType::Secret,
        }
    }
}

/// The shape of a device, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Geometry {
    /// Size.
    pub size: u64,
    /// Logical block.
    pub block: u32,
    /// The unit it handles best.
    pub optimal: u32,
    /// The device cannot be written.
    pub read_only: bool,
    /// Discard releases space.
    pub discard: bool,
    /// Zeroing is cheaper than writing zeroes.
    pub zero: bool,
    /// Single writes can be made durable.
    pub fua: bool,
}

/// The counters of one operation since the device was built.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// Completed requests, well or not.
    pub completed: u64,
    /// Bytes of operations that completed well.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// How long completed requests took. Only buckets that are not empty, rising.
    pub latency: Vec<Bucket>,
}

/// Requests that took up to so long, and longer than the bucket before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    /// The longest latency of the bucket, in nanoseconds; at most one eighth above the shortest.
    pub up_to_ns: u64,
    /// Requests.
    pub count: u64,
}

/// A device as clients see it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// The name that NBD clients ask for.
    pub name: String,
    /// The device.
    pub device: String,
    /// For people; empty if the file has none.
    pub description: String,
    /// Clients cannot write.
    pub read_only: bool,
    /// Size in bytes.
    pub size: u64,
    /// Where clients reach it.
    pub endpoints: Vec<Endpoint>,
    /// The clients that are connected now.
    #[serde(default)]
    pub clients: Vec<Client>,
}

/// A client of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Client {
    /// Its address, and its process if it uses a Unix socket.
    pub name: String,
    /// Connections of this client, at least 1. A TCP client has a name for each of its connections.
    pub connections: u32,
}

/// One way to reach an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Endpoint {
    /// `nbd` or `vhost-user`.
    pub protocol: String,
    /// An NBD URI, or the path of a vhost-user socket.
    pub address: String,
}

/// A command to a device.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// The verb, such as `resize`.
    pub name: String,
    /// Its arguments: an object.
    #[serde(default = "no_arguments")]
    pub args: Value,
}

fn no_arguments() -> Value {
    Value::Object(Default::default())
}

/// The answer that the daemon is alive.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `serving`, or `draining` after a signal.
    pub state: String,
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
}

/// Why a request to the API failed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The class.
    pub kind: String,
    /// A description of the failure.
    pub message: String,
}

impl From<lamina_block::Geometry> for Geometry {
    fn from(g: lamina_block::Geometry) -> Geometry {
        let lamina_block::Geometry { size, block, optimal, stripe: _, read_only, discard, zero, fua } = g;
        Geometry { size, block, optimal, read_only, discard, zero, fua }
    }
}

impl From<&lamina_block::OpStats> for Operation {
    fn from(stats: &lamina_block::OpStats) -> Operation {
        let buckets = stats.latency.buckets().into_iter();
        Operation {
            completed: stats.completed.get(),
            bytes: stats.bytes.get(),
            errors: stats.errors.get(),
            latency: buckets.map(|(up_to_ns, count)| Bucket { up_to_ns, count }).collect(),
        }
    }
}
