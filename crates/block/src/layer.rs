//! The one trait that a layer implements, and what it may answer.

use crate::{
    Consent, Effect, Error, Extent, ExtentState, Finding, Geometry, Healed, Io, Job, Judge, Kept, Made, Node,
    Result,
};
use serde_json::Value;
use std::any::Any;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

/// What is not done yet. Futures are lazy: whoever receives one polls it (await, [`crate::all`], spawn) at once.
pub type Pending<T = ()> = Pin<Box<dyn Future<Output = Result<T>>>>;

/// The nodes below a layer, in the order of its `over` key.
pub type Children = Vec<Rc<Node>>;

/// What a layer decides when a request comes down: the four ways of Violin's request path (SYSTEMS A3).
pub enum Step {
    /// The request, as the layer has left it, goes on to a child, and the layer does not want to see it again. It
    /// costs nothing on the way up.
    Forward(Rc<Node>),
    /// The request is complete, well or with an error.
    Done(Result<()>),
    /// The layer keeps the request: what stands before a child's `.await` is done on the way down (push), what
    /// stands after it on the way up (pop).
    Control(Kept),
}

impl Step {
    /// Keeps the request until `work` is done.
    pub fn control(work: impl Future<Output = Result<()>> + 'static) -> Step {
        Step::Control(Kept::new(work))
    }
}

impl From<Error> for Step {
    fn from(e: Error) -> Step {
        Step::Done(Err(e))
    }
}

/// A command to a running device (Violin's ioctl): `lamina ctl DEVICE NAME ARGS`.
#[derive(Clone, Debug)]
pub struct Command {
    /// The verb, such as `set`.
    pub name: String,
    /// Its arguments: a JSON object.
    pub args: Value,
}

/// One function of the storage: it maps its address space onto its children's, or onto real storage.
///
/// Only [`Node`] calls these. What arrives at [`Layer::submit`] is inside the geometry, aligned, permitted, and not
/// empty except for a flush; buffers have the length of the range. A layer checks, counts and times nothing.
pub trait Layer {
    /// The shape of the device. May change only while the node is held, or when a command of the layer said so; the
    /// node is then told with [`Node::refresh`].
    fn geometry(&self) -> Geometry;

    /// Decides what happens to a request. Never blocks. To forward it, change `io` in place ([`Io::move_to`]); to keep
    /// it, take it ([`Io::take`]).
    fn submit(self: Rc<Self>, io: &mut Io) -> Step;

    /// What the bytes of `at` hold. The runs cover `at` exactly. Unless a layer knows better, all is data.
    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len: at.end - at.start, state: ExtentState::Data }]) })
    }

    /// A layer above has found that what is read at `at` is not what was written. Of all that can be had for `at`, gives
    /// what `is_right`, if anything is, and writes it wherever something else is in its place; the rest stays as it is.
    /// Nobody changes `at` from above meanwhile. `None`: nothing is right, or there is only what is read. Layers that only
    /// move requests hand this on. Unless a layer has copies, there are none.
    fn heal(self: Rc<Self>, _at: Range<u64>, _is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async { Ok(None) })
    }

    /// Carries out a command. The answer is shown to the user as JSON. Unless a layer has commands, an error.
    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(
            async move { Err(Error::unsupported(format!("there is no command {:?} here", command.name))) },
        )
    }

    /// True for a command that needs the device held: no request is in flight, and what was written is durable, while
    /// [`Layer::control`] carries it out.
    fn needs_hold(&self, _command: &Command) -> bool {
        false
    }

    /// What a command does besides its answer. A command that changes what is read of the device other than a write does, or
    /// that destroys what it does not name, says so here, and what is asked for is decided before it is carried out. Unless
    /// a layer has such commands, nothing.
    fn effect(&self, _command: &Command) -> Effect {
        Effect::default()
    }

    /// Asks whether a command to a device below may have `effect` on `child`. Nothing is done yet: what it
    /// [prepares](Consent::Prepares) begins when it is polled. Whoever remembers anything of what is below forgets it durably
    /// before it agrees, or refuses; a layer that says nothing here refuses.
    fn consent(self: Rc<Self>, child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Refuses(format!("it may remember what is on {}", child.name()))
    }

    /// Another address space of the layer, such as a snapshot, as a layer of its own; it shares the state of this one.
    /// A device of kind `view` shows it. Unless a layer has views, an error.
    fn view(self: Rc<Self>, name: String) -> Pending<Made> {
        Box::pin(async move { Err(Error::unsupported(format!("there is no {name:?} to view here"))) })
    }

    /// Work in the background that people may want to see and steer.
    fn jobs(&self) -> Vec<Rc<Job>> {
        Vec::new()
    }

    /// Moves what is the device's away from the children with these `names`, which are about to be taken away, while
    /// requests go on. Afterwards nothing is on them. Unless a layer moves data, it has nothing to do.
    ///
    /// Called while the device is held, so that no request is under way that the layer does not know of; what comes back
    /// is awaited when requests pass again.
    fn vacate(self: Rc<Self>, _names: Vec<String>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Whether what is the device's could be moved away from the children with the names `gone`, of which there may be none,
    /// if there were those that are `joining` as well, and these could join; an error says how much is missing. Nothing is
    /// changed, and of those that are joining nothing but the name and the geometry is looked at. Unless a layer moves data,
    /// there is nothing to refuse.
    fn room(&self, _gone: &[String], _joining: &[Rc<Node>]) -> Result<()> {
        Ok(())
    }

    /// Makes lasting what followed from how the layer was built, such as a child that joined, if it has put that off in
    /// case the change that built it would fail. Called while the device is held, before another layer takes the place
    /// of this one, which was at work. Unless a layer puts off anything, nothing has to be done.
    fn settle(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Asks whether the layer can be taken away from over its first child, which then takes its place; called while
    /// the device is held and flushed. It may bring the child up to date first. Layers whose child never shows the same
    /// bytes refuse, and say what to do. Unless a layer has data of its own, nothing has to be done.
    fn leave(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Looks at everything that the layer keeps about where data are: does it mean something, and agree with itself?
    /// With `mend` it also puts right what can be, durably, and never at the price of a byte that could still be read.
    /// Called while the device is held. Fails only if it cannot look; damage is a finding. Unless a layer keeps
    /// anything, there is nothing to find.
    fn check(self: Rc<Self>, _mend: bool) -> Pending<Vec<Finding>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// What layers above may have a share in, such as a cache that several volumes are in; they know its type. Unless a layer
    /// shares anything, nothing.
    fn shared(&self) -> Option<Rc<dyn Any>> {
        None
    }

    /// State worth showing, as a JSON object; empty unless a layer has any.
    fn info(&self) -> Value {
        Value::Object(Default::default())
    }

    /// Called once, after the last request has completed and was flushed: stop background work, release what is held.
    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }
}
