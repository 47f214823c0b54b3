//! A snapshot as a device: read-only, as long as it exists.

use super::core::Core;
use super::read::Version;
use lamina_block::{
    Consent, Difference, Effect, Error, ErrorKind, Extent, Geometry, Healed, Io, Judge, Layer, Manage, Node,
    Op, Passthrough, Pending, Place, Step,
};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

pub(super) struct View {
    core: Rc<Core>,
    name: String,
    version: Version,
    size: u64,
    viewing: RefCell<Option<Viewing>>,
}

/// The snapshot cannot be deleted while this exists.
struct Viewing {
    core: Rc<Core>,
    index: usize,
}

impl Drop for Viewing {
    fn drop(&mut self) {
        self.core.change(|state| state.versions.end_view(self.index));
    }
}

impl View {
    pub fn new(core: &Rc<Core>, name: String) -> lamina_block::Result<View> {
        core.offline()?;
        let (index, record) = core.state().versions.known(&name).map(|s| (s.index, s.record.clone()))?;
        core.suits(&name, record.size)?;
        core.change(|state| state.versions.begin_view(index));
        let viewing = RefCell::new(Some(Viewing { core: Rc::clone(core), index }));
        let (version, size) = (Version::Snapshot(record.root), record.size);
        Ok(View { core: Rc::clone(core), name, version, size, viewing })
    }
}

impl Layer for View {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.core.geometry() }.with_size(self.size)
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op {
            Op::Read(_) if self.core.state().closed => {
                Error::offline("the volume of the snapshot is closed").into()
            }
            Op::Read(_) => self.core.read(self.version, io),
            Op::Flush => Step::Done(Ok(())),
            Op::Write(..) | Op::Zero(_) | Op::Discard => {
                Error::new(ErrorKind::ReadOnly, "a snapshot does not change").into()
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        let (core, version) = (Rc::clone(&self.core), self.version);
        Box::pin(async move { core.runs(version, at).await })
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        Box::pin(Rc::clone(&self.core).places(self.version, at))
    }

    fn changed(self: Rc<Self>, since: String, at: Range<u64>) -> Pending<Vec<Difference>> {
        Box::pin(Rc::clone(&self.core).differences(self.version, since, at))
    }

    fn snapshots(&self) -> Vec<String> {
        self.core.names()
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(Rc::clone(&self.core).heal(self.version, at, is_right))
    }

    fn close(self: Rc<Self>) -> Pending {
        drop(self.viewing.take());
        Box::pin(async { Ok(()) })
    }
}

impl Manage for View {
    /// A change of the volume changes no snapshot.
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Untouched
    }

    fn info(&self) -> Value {
        json!({ "snapshot": self.name })
    }
}
