//! How a layer is made from its keys in the hierarchy file.

use crate::{Children, Env, KeyError, Keys, Layer, Pending};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::ops::RangeInclusive;
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
    /// The devices it stands on, as many as [`Config::CHILDREN`] allows.
    pub children: Children,
    /// Where relative paths begin: the folder of the hierarchy file.
    pub base: PathBuf,
}

impl Build {
    /// The only child of a layer that has just one.
    pub fn child(&self) -> Rc<crate::Node> {
        Rc::clone(&self.children[0])
    }

    /// A path from the file, made absolute.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }
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
    parse: fn(&Value) -> Result<Keys, KeyError>,
}

impl Kind {
    /// The kind whose keys are `C`.
    pub const fn of<C: Config>() -> Kind {
        Kind { name: C::KIND, summary: C::SUMMARY, children: C::CHILDREN, parse: Keys::parse::<C> }
    }

    /// Reads a device's keys (without `type` and `over`).
    pub fn parse(&self, keys: &Value) -> Result<Keys, KeyError> {
        (self.parse)(keys)
    }
}
