//! How a layer is made from its keys in the hierarchy file.

use crate::{Begin, Children, Env, Keep, KeyError, Keys, Layer, Level, Node, Pending, Result, Traits};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The result of building a layer.
pub type Made = Rc<dyn Layer>;

/// The arguments for building a layer.
pub struct Build {
    /// The device's name in the hierarchy.
    pub name: String,
    /// The hierarchy file as reports name it; empty if there is none.
    pub file: String,
    /// The world.
    pub env: Rc<dyn Env>,
    /// The devices it stands on, as many as [`Config::CHILDREN`] allows. Some are absent only if the layer survives
    /// that ([`Config::survives`]).
    pub children: Children,
    /// Where relative paths begin: the folder of the hierarchy file.
    pub base: PathBuf,
    /// A device for the layer's metadata alone, if the file names one (`metadata = "NAME"`); otherwise it lies on the
    /// children. Only for kinds that have one ([`Traits::metadata`]).
    pub metadata: Option<Rc<Node>>,
    /// Whether the layer's state is there.
    pub begin: Begin,
    /// The consistency level of the hierarchy.
    pub level: Level,
    /// The state record; `None` in a hierarchy that is not persistent.
    pub keep: Option<Rc<dyn Keep>>,
    /// The children that are about to be taken away: [`crate::Manage::evacuate`] follows with their names. Others that
    /// are new are there to take their data.
    pub leaving: Vec<String>,
}

impl Build {
    /// The arguments for a layer that is opened over `children` in a hierarchy that is not persistent.
    pub fn new(name: &str, env: &Rc<dyn Env>, children: Children) -> Build {
        Build {
            name: name.into(),
            file: String::new(),
            env: Rc::clone(env),
            children,
            base: PathBuf::new(),
            metadata: None,
            begin: Begin::Open,
            level: Level::default(),
            keep: None,
            leaving: Vec::new(),
        }
    }

    /// The only child of a layer that has just one.
    pub fn child(&self) -> Rc<Node> {
        Rc::clone(&self.children[0])
    }

    /// A path from the file, made absolute.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }
}

/// The devices below a device, as far as the file tells.
pub struct Over<'a> {
    /// The kinds of the devices of `over`, in order.
    pub kinds: &'a [&'a Kind],
    /// The kinds of those below them, in no order.
    pub deeper: &'a [&'a Kind],
    /// The device has another one for its metadata.
    pub metadata: bool,
    /// The hierarchy is persistent: there are state records ([`Build::keep`]).
    pub persistent: bool,
}

/// The keys of a layer: a serde struct with `#[serde(deny_unknown_fields)]`. Everything that a new kind of layer
/// tells the rest of the program is here.
pub trait Config: DeserializeOwned + 'static {
    /// The value of the `type` key.
    const KIND: &'static str;
    /// One line for `lamina kinds` and the manual.
    const SUMMARY: &'static str;
    /// How many devices it stands on; 0 for a sink.
    const CHILDREN: RangeInclusive<usize>;
    /// Its abilities, the info and commands of its devices, the signatures of its format.
    const TRAITS: Traits = Traits::NONE;

    /// How many of its `children` may be absent ([`Node::is_absent`]), in any choice of them, and it still has every
    /// byte. A kind with more than 0 is built over absent children too, and finds out for itself which data they miss;
    /// any other device is absent when one of its children is.
    fn survives(&self, _children: usize) -> usize {
        0
    }

    /// True if the device goes on by itself without the child number `child`, or reports the loss: the device is built
    /// also when this child is absent, whatever else is.
    fn may_miss(&self, _child: usize) -> bool {
        false
    }

    /// Refuses mistakes that the file alone shows: keys that do not fit each other, or the devices below. Errors begin
    /// with the key that does not fit (`spares: ...`). Checks that need the devices themselves are left to
    /// [`Config::build`].
    fn check(&self, _over: &Over<'_>) -> Result<()> {
        Ok(())
    }

    /// The bytes of its only child that the device shows, from the first one to the one after the last, if it shows a
    /// part; the end is that of the child if it is `u64::MAX`. Two parts that overlap are perhaps not meant.
    fn part(&self) -> Option<Range<u64>> {
        None
    }

    /// Makes the layer. Errors name the key or child that does not fit, and the remedy.
    fn build(self, with: Build) -> Pending<Made>;
}

/// A kind of layer, as the graph knows it.
#[derive(Clone)]
pub struct Kind {
    /// The value of the `type` key.
    pub name: &'static str,
    /// A description in one line.
    pub summary: &'static str,
    /// How many devices it stands on.
    pub children: RangeInclusive<usize>,
    /// Its declarations.
    pub traits: Traits,
    parse: fn(&Value) -> std::result::Result<Keys, KeyError>,
}

impl Kind {
    /// The kind whose keys are `C`.
    pub const fn of<C: Config>() -> Kind {
        const { C::TRAITS.check() };
        Kind {
            name: C::KIND,
            summary: C::SUMMARY,
            children: C::CHILDREN,
            traits: C::TRAITS,
            parse: Keys::parse::<C>,
        }
    }

    /// True for a kind whose devices show what is on one other, with nothing of their own.
    pub fn is_view(&self) -> bool {
        self.traits.shares && self.children == (1..=1)
    }

    /// Reads a device's keys (without `type` and `over`).
    pub fn parse(&self, keys: &Value) -> std::result::Result<Keys, KeyError> {
        (self.parse)(keys)
    }
}
