//! What a device remembers beside data: where it lies, and what a crash may leave of it.

use crate::Pending;
use serde_json::Value;

/// A few words that a device keeps with its hierarchy: on every member, beside the hierarchy's description. For what
/// changes seldom and must survive the loss of any one device, such as a table of partitions.
///
/// Children are named under the keys `device` (a name) and `devices` (a list of names), and nowhere else: when a layer
/// comes between the device and a child, or goes, the hierarchy writes the child's new name there.
pub trait Keep {
    /// What was kept last, if anything was.
    fn get(&self) -> Option<Value>;

    /// Keeps `value` instead. It is durable when this completes; a crash before that leaves the old or the new.
    ///
    /// Fails with `NoSpace` if it is too long: all devices of a hierarchy share about 60 KiB of JSON.
    fn set(&self, value: Value) -> Pending;
}

/// Whether what a layer keeps on its children is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// It is there, or the layer is refused. What an interrupted run has left is brought in order.
    #[default]
    Open,
    /// It is made: the children hold nothing that matters. It is durable when the layer is built.
    Format,
    /// It is made, and the children's data is the device's from now on, at the same addresses. Nothing of it is
    /// overwritten, so that until the new layer has been written to the old graph is as good.
    Adopt,
}

/// The consistency level of a hierarchy (Violin, section 2.4): what a crash may do to its metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Pages are written back one by one: each is older or newer.
    Lazy,
    /// Changes are whole, and in order.
    #[default]
    Shadow,
    /// Only what was committed, whole: data and metadata are one earlier consistent point, that of the last flush or a
    /// later one.
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
