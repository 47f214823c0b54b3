//! When nobody uses any more what requests may have been using.
//!
//! A request that is handed on is not seen again, so the layer does not know when it ends. Before an extent is given to
//! somebody else, every request that may still be on its way to it must have ended. Requests therefore go to the child
//! through one of two nodes, which count them as every node does; now and then the other one is taken, and when the
//! first has counted down to zero, all that came before have ended.

use lamina_block::{Env, Geometry, Io, Layer, Manage, Node, Passthrough, Signal, Step};
use std::cell::Cell;
use std::rc::Rc;

/// Hands everything on.
struct Through(Rc<Node>);

impl Layer for Through {
    /// As if all were native: the child's own node makes up for what is not.
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

/// The two ways to the child.
pub(super) struct Grace {
    env: Rc<dyn Env>,
    nodes: [Rc<Node>; 2],
    now: Cell<usize>,
    draining: Cell<bool>,
    moved: Signal,
}

impl Grace {
    pub fn new(name: &str, env: &Rc<dyn Env>, child: &Rc<Node>) -> Rc<Grace> {
        let way = || Node::new(name, "snapshot", Rc::clone(env), Rc::new(Through(Rc::clone(child))));
        Rc::new(Grace {
            env: Rc::clone(env),
            nodes: [way(), way()],
            now: Cell::new(0),
            draining: Cell::new(false),
            moved: Signal::new(),
        })
    }

    /// The way that a request takes which is submitted at once.
    #[inline]
    pub fn way(&self) -> &Rc<Node> {
        &self.nodes[self.now.get()]
    }

    /// True while requests from before the last [`Grace::swap`] may be under way.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits until that is not so.
    pub async fn drained(&self) {
        self.moved.until(|| !self.draining.get()).await;
    }

    /// From now on requests go the other way. Not while [`Grace::is_draining`].
    pub fn swap(self: &Rc<Self>) {
        debug_assert!(!self.draining.get());
        let before = Rc::clone(self.way());
        self.now.set(1 - self.now.get());
        self.draining.set(true);
        let me = Rc::clone(self);
        self.env.spawn(Box::pin(async move {
            // Nothing new comes this way, so this only waits.
            drop(before.quiesce().await);
            me.draining.set(false);
            me.moved.notify();
        }));
    }

    /// Waits until every request has ended that was submitted before this was called.
    pub async fn pass(self: &Rc<Self>) {
        self.drained().await;
        self.swap();
        self.drained().await;
    }

    /// Takes over what the child says of itself.
    pub fn refresh(&self) {
        self.nodes.iter().for_each(|node| node.refresh());
    }
}
