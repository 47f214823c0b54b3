//! Commands that change data below other devices: devices that remember something of that data are asked first.
//!
//! ```text
//!   export      quiesced ─┐                            (3) top down: quiesced, flushed, made ready
//!     │                   │
//!   accelerate  ◀─ (2) ───┤  writes back to the store, and drops its cache
//!     │                   │
//!   crypt       ◀─ (1) ───┤  agrees                    (1), (2) bottom up: would each of them agree?
//!     │                   │
//!   snapshot    ◀─────────┘  `rollback` (4)
//! ```
//!
//! No node is quiesced before all have been asked once, and no data below changes before all are ready. A device that
//! was made ready stays so if the command then fails: the cost is no more than a cold cache.

use crate::hierarchy::Hierarchy;
use lamina_block::{Command, Consent, Effect, Error, ErrorKind, Fate, Io, Node, Pending, Quiesced, Result};
use serde_json::Value;
use std::rc::Rc;

/// A device above, and what happens to the devices below.
struct Above {
    node: Rc<Node>,
    below: Vec<(Rc<Node>, Effect)>,
}

impl Hierarchy {
    /// Sends a command to the device called `name`, if there is one. If the command changes data below other devices,
    /// these are asked before, and quiesced meanwhile; if one of them refuses, nothing is done.
    pub async fn control(&self, name: &str, command: Command) -> Option<Result<Value>> {
        let node = self.node(name)?;
        let effect = node.effect(&command);
        if effect.bytes == Fate::Stay {
            return Some(node.control(command).await);
        }
        Some(self.control_below(&node, &effect, command).await.map_err(|e| e.on(name)))
    }

    async fn control_below(&self, node: &Rc<Node>, effect: &Effect, command: Command) -> Result<Value> {
        let above = self.above(node, effect);
        for above in &above {
            for (ahead, _) in above.asked(&command)? {
                ahead.await.map_err(|e| above.refusal(&command, e.kind(), &e.to_string()))?;
            }
        }
        let mut quiesced = Vec::new();
        for above in &above {
            quiesced.push(above.quiesce(&command).await?);
        }
        let answer = node.control(command).await;
        drop(quiesced);
        answer
    }

    /// The devices that an effect on `node` reaches, from the top down.
    fn above(&self, node: &Rc<Node>, effect: &Effect) -> Vec<Above> {
        let mut reached = vec![(Rc::clone(node), effect.clone())];
        let mut all = Vec::new();
        for node in &self.nodes {
            let stands_on = self.children(node.name());
            let is_below =
                |(below, _): &&(Rc<Node>, Effect)| stands_on.iter().any(|name| name == below.name());
            let below: Vec<_> = reached.iter().filter(is_below).cloned().collect();
            let passes = |(below, effect): &(Rc<Node>, Effect)| match node.consent(below, effect) {
                Consent::Untouched => None,
                Consent::Agrees | Consent::Prepares(..) | Consent::Refuses(_) => Some(effect.bytes),
            };
            let bytes: Vec<Fate> = below.iter().filter_map(passes).collect();
            if let Some(bytes) = bytes.first() {
                reached.push((Rc::clone(node), Effect { bytes: *bytes, ..Effect::default() }));
                all.push(Above { node: Rc::clone(node), below });
            }
        }
        all.reverse();
        all
    }
}

impl Above {
    /// Asks the layer; returns the work that it has to prepare, none of which has begun.
    fn asked(&self, command: &Command) -> Result<Vec<(Pending, Pending)>> {
        let mut prepares = Vec::new();
        for (below, effect) in &self.below {
            match self.node.consent(below, effect) {
                Consent::Untouched | Consent::Agrees => {}
                Consent::Prepares(ahead, quiesced) => prepares.push((ahead, quiesced)),
                Consent::Refuses(why) => return Err(self.refusal(command, ErrorKind::Invalid, &why)),
            }
        }
        Ok(prepares)
    }

    /// Quiesces and flushes the node, and lets its layer make ready. The layer is asked again, because the node may
    /// have another one by now.
    async fn quiesce(&self, command: &Command) -> Result<Quiesced> {
        if !self.node.geometry().read_only && !self.node.is_absent() {
            self.node.submit(Io::flush()).await?;
        }
        let quiesced = self.node.quiesce().await;
        if !self.node.is_absent() {
            quiesced.flush().await?;
        }
        for (_, ready) in self.asked(command)? {
            ready.await.map_err(|e| self.refusal(command, e.kind(), &e.to_string()))?;
        }
        Ok(quiesced)
    }

    fn refusal(&self, command: &Command, kind: ErrorKind, why: &str) -> Error {
        let (name, layer) = (self.node.name(), self.node.kind());
        Error::new(kind, format!("{}: not under {name:?}, of type \"{layer}\": {why}", command.name))
    }
}
