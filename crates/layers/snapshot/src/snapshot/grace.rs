//! The end of requests that may still be using an extent.
//!
//! A request that is handed on is not seen again, so the layer does not know when it ends. Before an extent
//! gets another owner, every request that may still be on its way to it must have ended. Requests therefore
//! go to the child through one of two nodes, which count them as every node does; now and then the other node
//! is taken, and when the first has counted down to zero, all earlier requests have ended.
//!
//! | ways | `swap` | `drained` |
//! |---|---|---|
//! | calm: requests go one way, and none is left of the other | draining, the other way | – |
//! | draining: requests are left of the way before | – | calm, the same way |
//!
//! "–" is an assertion: while requests are left of one way, new ones on it could not be told from them.

use lamina_block::{Env, Geometry, Io, Layer, Manage, Node, Passthrough, Signal, Step};
use std::cell::Cell;
use std::rc::Rc;

/// Hands every request on.
struct Through(Rc<Node>);

impl Layer for Through {
    /// As if all operations were native: the child's own node emulates those that are not.
    fn geometry(&self) -> Geometry {
        Geometry { discard: true, zero: true, fua: true, ..self.0.geometry() }
    }

    fn submit(self: Rc<Self>, _io: &mut Io) -> Step {
        Step::Forward(Rc::clone(&self.0))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.0)
    }
}

impl Manage for Through {}

/// The way of requests; see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ways {
    /// The number of the way: one of two.
    now: usize,
    draining: bool,
}

impl Ways {
    /// Requests go the other way from now on.
    fn swap(self) -> Ways {
        assert!(!self.draining, "requests are left of the other way");
        Ways { now: 1 - self.now, draining: true }
    }

    /// No request is left of the way before.
    fn drained(self) -> Ways {
        assert!(self.draining, "a way is drained once for each swap");
        Ways { draining: false, ..self }
    }
}

/// The two ways to the child.
pub(super) struct Grace {
    env: Rc<dyn Env>,
    nodes: [Rc<Node>; 2],
    ways: Cell<Ways>,
    moved: Signal,
}

impl Grace {
    pub fn new(name: &str, env: &Rc<dyn Env>, child: &Rc<Node>) -> Rc<Grace> {
        let way = || Node::new(name, "snapshot", Rc::clone(env), Rc::new(Through(Rc::clone(child))));
        let nodes = [way(), way()];
        Rc::new(Grace { env: Rc::clone(env), nodes, ways: Cell::default(), moved: Signal::new() })
    }

    /// The way that a request takes which is submitted at once.
    #[inline]
    pub fn way(&self) -> &Rc<Node> {
        &self.nodes[self.ways.get().now]
    }

    /// True while requests from before the last [`Grace::swap`] may be under way.
    pub fn is_draining(&self) -> bool {
        self.ways.get().draining
    }

    /// Waits until that is false.
    pub async fn drained(&self) {
        self.moved.until(|| !self.is_draining()).await;
    }

    /// From now on requests go the other way. Not while [`Grace::is_draining`].
    pub fn swap(self: &Rc<Self>) {
        let before = Rc::clone(self.way());
        self.ways.set(self.ways.get().swap());
        let me = Rc::clone(self);
        self.env.spawn(Box::pin(async move {
            // No new requests come this way, so this only waits.
            drop(before.quiesce().await);
            me.ways.set(me.ways.get().drained());
            me.moved.notify();
        }));
    }

    /// Waits until every request has ended that was submitted before this was called.
    pub async fn pass(self: &Rc<Self>) {
        self.drained().await;
        self.swap();
        self.drained().await;
    }

    /// Takes over the traits of the child.
    pub fn refresh(&self) {
        self.nodes.iter().for_each(|node| node.refresh());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn all_transitions() {
        for (now, draining) in [(0, false), (0, true), (1, false), (1, true)] {
            let before = Ways { now, draining };
            let swapped = catch_unwind(|| before.swap()).ok();
            assert_eq!(swapped, (!draining).then_some(Ways { now: 1 - now, draining: true }), "{before:?}");
            let drained = catch_unwind(|| before.drained()).ok();
            assert_eq!(drained, draining.then_some(Ways { now, draining: false }), "{before:?}");
        }
    }
}
