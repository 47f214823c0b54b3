//! The state of a device beside data: its place, and the states that a crash may leave.

use crate::Pending;
use serde_json::Value;

/// The state record of a device: kept with its hierarchy on every member, beside the hierarchy's description. For state
/// that changes seldom and must survive the loss of any one device, such as a table of partitions.
///
/// Children are named under the keys `device` (a name) and `devices` (a list of names), and nowhere else: when a layer
/// comes between the device and a child, or goes, the hierarchy writes the child's new name there.
pub trait Keep {
    /// The last record, if there is one.
    fn get(&self) -> Option<Value>;

    /// Keeps `value` instead. The record is durable when this completes; a crash before that leaves the old or the new
    /// one.
    ///
    /// Fails with `NoSpace` if it is too long: all devices of a hierarchy share about 60 KiB of JSON.
    fn set(&self, value: Value) -> Pending;
}

/// Whether the state of a layer on its children is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// The state is there, or the layer is refused. The state after an interrupted run is recovered.
    #[default]
    Open,
    /// The state is made: the children have no data that matters. It is durable when the layer is built.
    Format,
    /// The state is made, and the children's data is the device's from now on, at the same addresses. No data is
    /// overwritten, so that the old graph stays valid until the first write to the new layer.
    Adopt,
}

/// The consistency level of a hierarchy (Violin, section 2.4): the states of its metadata after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Pages are written back one by one: each is older or newer.
    Lazy,
    /// Changes are whole, and in order.
    #[default]
    Shadow,
    /// Only whole commits: data and metadata are one earlier consistent point, that of the last flush or a later one.
    Atomic,
}

impl Level {
    /// All levels.
    pub const ALL: [Level; 3] = [Level::Lazy, Level::Shadow, Level::Atomic];

    /// Its name in the hierarchy file.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Lazy => "lazy",
            Level::Shadow => "shadow",
            Level::Atomic => "atomic",
        }
    }
}
