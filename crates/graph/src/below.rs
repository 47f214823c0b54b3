//! Commands that change what is below others: those who remember something of it are asked first.
//!
//! ```text
//!   export          held ─┐                            (3) top down: held, flushed, made ready
//!     │                   │
//!   accelerate  ◀─ (2) ───┤  it gets the store up to date, and forgets what it has of it
//!     │                   │
//!   crypt       ◀─ (1) ───┤  it agrees                 (1), (2) bottom up: would each of them agree?
//!     │                   │
//!   snapshot    ◀─────────┘  `rollback` (4)
//! ```
//!
//! Nothing is held before all have been asked once, and nothing has changed below before all are ready. Whatever was made
//! ready stays so if the command then fails: it is no more than a cache that is cold.

use crate::hierarchy::Hierarchy;
use lamina_block::{Command, Consent, Effect, Error, ErrorKind, Fate, Io, Node, Pending, Quiesced, Result};
use serde_json::Value;
use std::rc::Rc;

/// A device above, and what happens to those it stands on.
struct Above {
    node: Rc<Node>,
    below: Vec<(Rc<Node>, Effect)>,
}

impl Hierarchy {
    /// Sends a command to the device called `name`, if there is one. If it changes what is below others they are asked before,
    /// and held while it is carried out; if one of them refuses, nothing is done.
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
        let mut held = Vec::new();
        for above in &above {
            held.push(above.quiesce(&command).await?);
        }
        let answer = node.control(command).await;
        drop(held);
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
    /// Asks the layer; what it prepares. Nothing of that has begun.
    fn asked(&self, command: &Command) -> Result<Vec<(Pending, Pending)>> {
        let mut prepares = Vec::new();
        for (below, effect) in &self.below {
            match self.node.consent(below, effect) {
                Consent::Untouched | Consent::Agrees => {}
                Consent::Prepares(ahead, held) => prepares.push((ahead, held)),
                Consent::Refuses(why) => return Err(self.refusal(command, ErrorKind::Invalid, &why)),
            }
        }
        Ok(prepares)
    }

    /// Holds and flushes it, and lets it make ready. It is asked again, because it may have become another layer.
    async fn quiesce(&self, command: &Command) -> Result<Quiesced> {
        if !self.node.geometry().read_only && !self.node.is_absent() {
            self.node.submit(Io::flush()).await?;
        }
        let held = self.node.quiesce().await;
        if !self.node.is_absent() {
            held.flush().await?;
        }
        for (_, ready) in self.asked(command)? {
            ready.await.map_err(|e| self.refusal(command, e.kind(), &e.to_string()))?;
        }
        Ok(held)
    }

    fn refusal(&self, command: &Command, kind: ErrorKind, why: &str) -> Error {
        let (name, layer) = (self.node.name(), self.node.kind());
        Error::new(kind, format!("{}: not under {name:?}, of type \"{layer}\": {why}", command.name))
    }
}
