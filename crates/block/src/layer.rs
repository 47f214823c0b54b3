//! The data path of a layer: the trait that requests meet, and its possible answers. Calls for people and for changes
//! of the graph are in [`Manage`].

use crate::{
    Deferred, Difference, Error, Extent, Geometry, Healed, Io, Judge, Manage, Node, Passthrough, Place,
    Result, Zones,
};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

/// A result that is still to come. Futures are lazy: the receiver polls one (await, [`crate::all`], spawn) at once.
pub type Pending<T = ()> = Pin<Box<dyn Future<Output = Result<T>>>>;

/// The nodes below a layer, in the order of its `over` key.
pub type Children = Vec<Rc<Node>>;

/// A layer's decision about a request on its way down: the four ways of Violin's request path (SYSTEMS A3).
pub enum Step {
    /// The request, as the layer has left it, goes on to a child, and the layer does not want to see it again. The way
    /// up is free.
    Forward(Rc<Node>),
    /// The request is complete, well or with an error.
    Done(Result<()>),
    /// The layer keeps the request: code before a child's `.await` runs on the way down (push), code after it on the
    /// way up (pop).
    Control(Deferred),
}

impl Step {
    /// Keeps the request until `work` is done.
    pub fn control(work: impl Future<Output = Result<()>> + 'static) -> Step {
        Step::Control(Deferred::new(work))
    }
}

impl From<Error> for Step {
    fn from(e: Error) -> Step {
        Step::Done(Err(e))
    }
}

/// One function of the storage: it maps its address space onto its children's, or onto real storage.
///
/// Only [`Node`] calls these. A request at [`Layer::submit`] is inside the geometry, aligned, permitted, and not empty
/// except for a flush; buffers have the length of the range. A layer checks, counts and times nothing.
pub trait Layer: Manage {
    /// The shape of the device. May change only while the node is quiesced, or when a command of the layer said so; the
    /// node is then told with [`Node::refresh`].
    fn geometry(&self) -> Geometry;

    /// Decides what happens to a request. Never blocks. To forward it, change `io` in place ([`Io::move_to`]); to keep
    /// it, take it ([`Io::take`]).
    fn submit(self: Rc<Self>, io: &mut Io) -> Step;

    /// The sequential zones of a zoned device; see [`Zones`] for the rules of writing to them. Not part of the
    /// geometry, which layers copy from the device below: a layer that forgets about zones must have none.
    fn zones(&self) -> Option<Zones> {
        None
    }

    /// Whether the bytes of this device are those of one device below, and where: questions about them
    /// ([`Layer::extents`], [`Layer::changed`], [`Layer::places`], [`Layer::heal`]) are then that device's to answer.
    /// There is no default, because a layer that forgets to hand them on switches off healing for every layer above,
    /// silently. A layer that completes writes before the device below has them cannot hand them on.
    fn passthrough(&self) -> Passthrough;

    /// The allocation state of `at`. The runs cover `at` exactly.
    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        self.passthrough().extents(at)
    }

    /// The places of byte `at` on devices below, as of now; empty if none has it, as for a byte that was never written.
    /// Copies that are out of date are left out.
    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        self.passthrough().places(at)
    }

    /// The differences of `at` from the snapshot `since`, one of [`Layer::snapshots`]. The runs cover `at` exactly. A
    /// run that counts as changed may be the same; a run that counts as the same is, as of when the question came.
    /// `Unsupported` where no snapshot is of just these bytes, `Invalid` if there is none with this name.
    fn changed(self: Rc<Self>, since: String, at: Range<u64>) -> Pending<Vec<Difference>> {
        self.passthrough().changed(since, at)
    }

    /// The names of the snapshots of which [`Layer::changed`] knows, oldest first.
    fn snapshots(&self) -> Vec<String> {
        self.passthrough().snapshots()
    }

    /// A layer above has found that a read at `at` returns other data than was written. Returns a copy of `at` that
    /// `is_right`, if there is one, and writes it over all copies that differ; the rest stays as it is. No write to
    /// `at` is in flight from above meanwhile. `None`: nothing is right, or there is only what is read.
    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        self.passthrough().heal(at, is_right)
    }

    /// Called once, after the last request has completed and was flushed: stop background work, release resources.
    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }
}
