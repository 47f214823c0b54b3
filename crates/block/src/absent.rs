//! The layer of a device that is not there.
//!
//! A device that stands on several may do without one of them ([`Config::survives`](crate::Config::survives)). This
//! layer stands in for the missing one: every request fails with the reason of the absence, so that no layer has to
//! know a second kind of child.
//!
//! The device is read-only so that it is never flushed: no write can have gone to it.

use crate::{
    Command, Difference, Error, ErrorKind, Extent, Finding, Geometry, Io, Layer, Made, Manage, Passthrough,
    Pending, Step,
};
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;

/// Fails everything with `Offline`.
pub struct Absent {
    why: Error,
    size: u64,
}

impl Absent {
    /// The kind that the node of an absent device reports. No kind of layer is called so.
    pub const KIND: &'static str = "absent";

    /// The layer of a device that could not be opened because of `why`.
    pub fn new(why: Error) -> Absent {
        let why = match why.kind() {
            ErrorKind::Offline => why,
            _ => Error::offline(why.to_string()),
        };
        Absent { why, size: 0 }
    }

    /// The layer of a device that is not there yet, and will have `size` bytes.
    pub fn of_size(size: u64) -> Absent {
        Absent { why: Error::offline("the device is not there yet"), size }
    }

    fn fail<T: 'static>(&self) -> Pending<T> {
        Box::pin(std::future::ready(Err(self.why.clone())))
    }
}

impl Layer for Absent {
    fn geometry(&self) -> Geometry {
        // Emulated operations consist of requests that would fail as well.
        Geometry { read_only: true, discard: true, zero: true, fua: true, ..Geometry::new(self.size) }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        self.why.clone().at(io.at.clone()).into()
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, _at: Range<u64>) -> Pending<Vec<Extent>> {
        self.fail()
    }

    fn changed(self: Rc<Self>, _since: String, _at: Range<u64>) -> Pending<Vec<Difference>> {
        self.fail()
    }
}

impl Manage for Absent {
    fn control(self: Rc<Self>, _command: Command) -> Pending<Value> {
        self.fail()
    }

    fn view(self: Rc<Self>, _name: String) -> Pending<Made> {
        self.fail()
    }

    fn evacuate(self: Rc<Self>, _names: Vec<String>) -> Pending {
        self.fail()
    }

    fn detach(self: Rc<Self>) -> Pending {
        self.fail()
    }

    fn check(self: Rc<Self>, _repair: bool) -> Pending<Vec<Finding>> {
        self.fail()
    }

    fn info(&self) -> Value {
        json!({ "absent": self.why.to_string() })
    }
}
