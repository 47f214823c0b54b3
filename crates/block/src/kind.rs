//! How a layer is made from its keys in the hierarchy file.

use crate::{Begin, Children, Env, Keep, KeyError, Keys, Layer, Level, Node, Pending, Result, Traits};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What building a layer yields.
pub type Made = Rc<dyn Layer>;

/// What a layer is given when it is built.
pub struct Build {
    /// The device's name in the hierarchy.
    pub name: String,
    /// The world.
    pub env: Rc<dyn Env>,
    /// The devices it stands on, as many as [`Config::CHILDREN`] allows. Some are absent only if it survives that
    /// ([`Config::survives`]).
    pub children: Children,
    /// Where relative paths begin: the folder of the hierarchy file.
    pub base: PathBuf,
    /// A device for the layer's metadata alone, if the file names one (`metadata = "NAME"`); otherwise it lies on the
    /// children. Only for kinds that have one ([`Traits::metadata`]).
    pub metadata: Option<Rc<Node>>,
    /// Whether what the layer keeps is there.
    pub begin: Begin,
    /// The consistency level of the hierarchy.
    pub level: Level,
    /// Where a few words can be kept; `None` in a hierarchy that is not persistent.
    pub keep: Option<Rc<dyn Keep>>,
    /// The children that are about to be taken away: [`crate::Manage::evacuate`] follows with their names. Others that
    /// are new are there to take their data.
    pub leaving: Vec<String>,
}

impl Build {
    /// What a layer is given that is opened over `children` in a hierarchy that is not persistent.
    pub fn new(name: &str, env: &Rc<dyn Env>, children: Children) -> Build {
        Build {
            name: name.into(),
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

/// What a device stands on, as far as the file says.
pub struct Over<'a> {
    /// The kinds of the devices of `over`, in order.
    pub kinds: &'a [&'a Kind],
    /// It has a device for its metadata.
    pub metadata: bool,
    /// The hierarchy is persistent: it can keep words ([`Build::keep`]).
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
    /// What it can, what its devices show and understand, how its format is recognised.
    const TRAITS: Traits = Traits::NONE;

    /// How many of its `children` may be absent ([`Node::is_absent`]), in any choice of them, and it still has every
    /// byte. A kind that says more than 0 is built over absent children too, and finds out for itself what they miss;
    /// any other device is absent when one of its children is.
    fn survives(&self, _children: usize) -> usize {
        0
    }

    /// True if it goes on by itself without the child number `child`, or says what is lost without it: it is built over it
    /// also when it is absent, whatever else is.
    fn may_miss(&self, _child: usize) -> bool {
        false
    }

    /// Refuses what the file alone shows to be wrong: keys that do not fit each other, or what the device stands on. Errors
    /// begin with the key that does not fit (`spares: ...`). What only the devices themselves can tell is left to
    /// [`Config::build`].
    fn check(&self, _over: &Over<'_>) -> Result<()> {
        Ok(())
    }

    /// The bytes of its only child that it shows, from the first one to the one behind the last, if it shows a part; the end
    /// is that of the child if it is `u64::MAX`. Two parts that overlap are perhaps not meant.
    fn part(&self) -> Option<Range<u64>> {
        None
    }

    /// Makes the layer. Errors say which key or child does not fit, and what would.
    fn build(self, with: Build) -> Pending<Made>;
}

/// A kind of layer, as the graph knows it.
#[derive(Clone)]
pub struct Kind {
    /// The value of the `type` key.
    pub name: &'static str,
    /// One line about it.
    pub summary: &'static str,
    /// How many devices it stands on.
    pub children: RangeInclusive<usize>,
    /// What it declares.
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
