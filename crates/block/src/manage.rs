//! The management of a layer: commands, what is shown, background work, and what a change of the graph asks for. Nothing here is
//! on the way of a request.

use crate::{Consent, Effect, Error, Finding, Job, Made, Node, Pending, Result};
use serde_json::Value;
use std::any::Any;
use std::rc::Rc;

/// A command to a running device (Violin's ioctl): `lamina ctl DEVICE NAME ARGS`.
#[derive(Clone, Debug)]
pub struct Command {
    /// The verb, such as `set`.
    pub name: String,
    /// Its arguments: a JSON object.
    pub args: Value,
}

/// What a layer can do besides carrying requests. A layer that does nothing but carry them says `impl Manage for X {}`; only
/// [`Node`] calls these.
pub trait Manage {
    /// Carries out a command. The answer is shown to the user as JSON. Unless a layer has commands, an error.
    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(
            async move { Err(Error::unsupported(format!("there is no command {:?} here", command.name))) },
        )
    }

    /// True for a command that needs the device quiesced: no request is in flight, and what was written is durable, while
    /// [`Manage::control`] carries it out.
    fn needs_quiesce(&self, _command: &Command) -> bool {
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
    /// Called while the device is quiesced, so that no request is under way that the layer does not know of; what comes back
    /// is awaited when requests pass again.
    fn evacuate(self: Rc<Self>, _names: Vec<String>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Whether what is the device's could be moved away from the children with the names `gone`, of which there may be none,
    /// if there were those that are `joining` as well, and these could join; an error says how much is missing. Nothing is
    /// changed, and of those that are joining nothing but the name and the geometry is looked at. Unless a layer moves data,
    /// there is nothing to refuse.
    fn can_evacuate(&self, _gone: &[String], _joining: &[Rc<Node>]) -> Result<()> {
        Ok(())
    }

    /// Makes lasting what followed from how the layer was built, such as a child that joined, if it has put that off in
    /// case the change that built it would fail. Called while the device is quiesced, before another layer takes the place
    /// of this one, which was at work. Unless a layer puts off anything, nothing has to be done.
    fn commit(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Asks whether the layer can be taken away from over its first child, which then takes its place; called while
    /// the device is held and flushed. It may bring the child up to date first. Layers whose child never shows the same
    /// bytes refuse, and say what to do. Unless a layer has data of its own, nothing has to be done.
    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Looks at everything that the layer keeps about where data are: does it mean something, and agree with itself?
    /// With `repair` it also puts right what can be, durably, and never at the price of a byte that could still be read.
    /// Called while the device is quiesced. Fails only if it cannot look; damage is a finding. Unless a layer keeps
    /// anything, there is nothing to find.
    fn check(self: Rc<Self>, _repair: bool) -> Pending<Vec<Finding>> {
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
}
