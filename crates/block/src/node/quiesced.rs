//! A node that lets no request pass, while layers below are exchanged.

use super::{Gate, Node};
use crate::emulate::run;
use crate::{Io, Layer, Result};
use std::rc::Rc;

/// A node that lets no request pass until this is dropped.
pub struct Quiesced {
    pub(super) node: Rc<Node>,
    /// The later state of the gate.
    pub(super) before: Gate,
}

impl Quiesced {
    /// Makes all writes from before durable. The nodes below must not be quiesced.
    pub async fn flush(&self) -> Result<()> {
        let untouchable = self.node.geometry().read_only || self.node.fenced.get();
        let flushed = if untouchable { Ok(()) } else { run(&self.node.layer(), Io::flush()).await };
        flushed.map_err(|e| e.on(&self.node.name))
    }

    /// Puts another layer, of `kind`, under the node, and gives back the one that was there. Its shape may differ;
    /// waiting requests that no longer fit will fail.
    pub fn replace(&self, kind: &'static str, layer: Rc<dyn Layer>) -> Rc<dyn Layer> {
        self.node.kind.set(kind);
        let before = self.node.layer.replace(layer);
        self.node.refresh();
        before
    }

    /// The node.
    pub fn node(&self) -> &Rc<Node> {
        &self.node
    }

    /// The layer under the node.
    pub fn layer(&self) -> Rc<dyn Layer> {
        self.node.layer()
    }
}

impl Drop for Quiesced {
    fn drop(&mut self) {
        self.node.set_gate(match self.before {
            Gate::Open if self.node.fenced.get() => Gate::Fenced,
            before => before,
        });
        self.node.moved.notify();
    }
}
