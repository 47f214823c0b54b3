//! The management of a layer: commands, info, background work, and calls for a change of the graph. Nothing here is on
//! the way of a request.

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

/// The operations of a layer besides requests. A layer that does nothing but carry them says `impl Manage for X {}`;
/// only [`Node`] calls these.
pub trait Manage {
    /// Carries out a command. The answer is shown to the user as JSON. Unless a layer has commands, an error.
    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(
            async move { Err(Error::unsupported(format!("there is no command {:?} here", command.name))) },
        )
    }

    /// True for a command that needs the device quiesced: no request is in flight, and every write is durable, while
    /// [`Manage::control`] carries it out.
    fn needs_quiesce(&self, _command: &Command) -> bool {
        false
    }

    /// The effects of a command. A command that changes the device's data in another way than a write, or destroys data
    /// that it does not name, declares that here; the effects are approved before the command is carried out. Unless a
    /// layer has such commands, nothing.
    fn effect(&self, _command: &Command) -> Effect {
        Effect::default()
    }

    /// Asks whether a command to a device below may have `effect` on `child`. Nothing is done yet: the
    /// [preparation](Consent::Prepares) begins when it is polled. A layer with state about data below drops that state
    /// durably before it agrees, or refuses; the default is a refusal.
    fn consent(self: Rc<Self>, child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Refuses(format!("the layer may remember data of {}", child.name()))
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
    /// requests go on. Afterwards nothing is on them. A layer that does not move data has nothing to do.
    ///
    /// Called while the device is quiesced, so that no request is under way that the layer does not know of; the
    /// returned future is awaited when requests pass again.
    fn evacuate(self: Rc<Self>, _names: Vec<String>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Whether the device's data could be moved away from the children with the names `gone`, perhaps none, if the
    /// devices `joining` were children as well, and whether these could join; an error tells how much space is missing.
    /// Nothing is changed, and only the names and geometries of joining devices are looked at. Unless a layer moves
    /// data, there is nothing to refuse.
    fn can_evacuate(&self, _gone: &[String], _joining: &[Rc<Node>]) -> Result<()> {
        Ok(())
    }

    /// Makes the consequences of a build lasting, such as a child that joined, if the layer has deferred them in case
    /// the change would fail. Called while the device is quiesced, before another layer takes the place of this one,
    /// which was at work. Unless a layer puts off anything, nothing has to be done.
    fn commit(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Asks whether the layer can be taken away from over its first child, which then takes its place; called while the
    /// device is quiesced and flushed. The layer may bring the child up to date first. Layers whose child never shows
    /// the same bytes refuse, and say what to do. Unless a layer has data of its own, nothing has to be done.
    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async { Ok(()) })
    }

    /// Looks at everything that the layer keeps about where data are: does it mean something, and agree with itself?
    /// With `repair` it also puts right what can be, durably, and never at the price of a byte that could still be
    /// read. Called while the device is quiesced. Fails only if the check is impossible; damage is a finding. Unless a
    /// layer keeps anything, there is nothing to find.
    fn check(self: Rc<Self>, _repair: bool) -> Pending<Vec<Finding>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// State for layers above to share, such as a cache of several volumes; they know its type. Unless a layer shares
    /// anything, nothing.
    fn shared(&self) -> Option<Rc<dyn Any>> {
        None
    }

    /// State worth showing, as a JSON object; empty unless a layer has any.
    fn info(&self) -> Value {
        Value::Object(Default::default())
    }
}
