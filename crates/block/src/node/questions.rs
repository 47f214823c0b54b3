//! Questions about bytes that are neither read nor written: they wait as requests do, and are none.

use super::{Busy, Gate, Node};
use crate::{Difference, Error, ErrorKind, Extent, Healed, Judge, Place, Result};
use std::ops::Range;
use std::rc::Rc;

impl Node {
    /// The allocation state of `at`: runs that cover it exactly.
    pub async fn extents(self: &Rc<Self>, at: Range<u64>) -> Result<Vec<Extent>> {
        let _busy = self.enter(&at).await?;
        let layer = self.layer();
        layer.extents(at).await.map_err(|e| e.on(&self.name))
    }

    /// Where byte `at` lies on devices below: see [`crate::Layer::places`].
    pub(crate) async fn places(self: &Rc<Self>, at: u64) -> Result<Vec<Place>> {
        let _busy = self.enter(&(at..at.saturating_add(1))).await?;
        let layer = self.layer();
        layer.places(at).await.map_err(|e| e.on(&self.name))
    }

    /// The differences of `at` from a snapshot: see [`crate::Layer::changed`].
    pub async fn changed(self: &Rc<Self>, since: String, at: Range<u64>) -> Result<Vec<Difference>> {
        let _busy = self.enter(&at).await?;
        let layer = self.layer();
        layer.changed(since, at).await.map_err(|e| e.on(&self.name))
    }

    /// The snapshots: see [`crate::Layer::snapshots`].
    pub fn snapshots(&self) -> Vec<String> {
        self.layer().snapshots()
    }

    /// Asks the layer for other copies of `at`, which is not what was written: see [`crate::Layer::heal`]. The query
    /// does not count as a request.
    pub async fn heal(self: &Rc<Self>, at: Range<u64>, is_right: Judge) -> Result<Option<Healed>> {
        let _busy = self.enter(&at).await?;
        if (at.start | at.end) & (self.geometry().block as u64 - 1) != 0 || at.is_empty() {
            return Err(Error::invalid("only whole blocks can be healed").at(at).on(&self.name));
        }
        if self.gate.get() == Gate::Fenced {
            return Err(Error::new(ErrorKind::Fenced, "the device has another owner").at(at).on(&self.name));
        }
        let layer = self.layer();
        layer.heal(at, is_right).await.map_err(|e| e.on(&self.name))
    }

    /// Waits until questions about `at` may pass. While the guard lives the layer is not exchanged: the guard counts as
    /// in flight.
    async fn enter(self: &Rc<Self>, at: &Range<u64>) -> Result<Busy> {
        self.moved.until(|| self.gate.get() != Gate::Quiesced).await;
        if self.gate.get() == Gate::Closed {
            return Err(Error::offline("the device is closed").at(at.clone()).on(&self.name));
        }
        let size = self.geometry().size;
        if !self.is_absent() && (at.start > at.end || at.end > size) {
            return Err(Error::invalid(format!("out of range: the device has {size} bytes"))
                .at(at.clone())
                .on(&self.name));
        }
        Ok(Busy::new(self))
    }
}
