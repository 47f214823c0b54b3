//! The declarations of a kind of layer, apart from its construction.
//!
//! The graph, the metrics, `lamina show`, `lamina inspect`, the OpenAPI document and the manual are made from these
//! declarations: none of them knows a kind by its name.

use crate::{Figure, Growth, Notice, Signature, Verb};

/// The declarations of a kind, as one constant ([`crate::Config::TRAITS`]): `Traits { keeps: true, ..Traits::NONE }`.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// Its layer has state, on its children or with the hierarchy ([`crate::Build::keep`]): only one layer may have a
    /// device open, and the state has to be made ([`crate::Begin::Format`]) before the first open.
    pub keeps: bool,
    /// More children at the end of `over` add space at its end, and nothing has to be moved.
    pub appends: bool,
    /// Its layer shares the state of the device below: when the device below gets another layer, this layer is made
    /// anew.
    pub shares: bool,
    /// Its layer has further address spaces ([`crate::Manage::view`]), which devices of kind `view` show.
    pub views: bool,
    /// Its state can lie on a separate device: the key `metadata`. Only if it `keeps` state.
    pub metadata: bool,
    /// The state there, or at the head of its child, is a metadata store; otherwise the state has a format of its own.
    pub store: bool,
    /// Its devices carry superblocks if their hierarchy is persistent: members. Only for a kind with the key `path`,
    /// which says where a member is, and is not part of what members say. A device whose key `read-only` is true is no
    /// member.
    pub member: bool,
    /// One host at a time has its devices: a layer that has writes elsewhere than below stands directly on it, and
    /// tells.
    pub reserves: bool,
    /// Its keys that name places outside of the hierarchy.
    pub outside: &'static [Outside],
    /// Keys that were called something else, as (before, now): the old name is taken too, and said to be old.
    pub renamed: &'static [(&'static str, &'static str)],
    /// How its devices become larger.
    pub growth: Growth,
    /// The command, with the argument `name`, by which a device keeps its present state under that name.
    pub snapshot: Option<&'static str>,
    /// The commands that its devices understand.
    pub verbs: &'static [Verb],
    /// The figures that its devices show, in the order of their columns.
    pub figures: &'static [Figure],
    /// The sentences about its devices below the table of its figures.
    pub notices: &'static [Notice],
    /// The title above the names of its devices in that table; without one the name of the kind.
    pub heading: Option<&'static str>,
    /// The signatures of its data on a device.
    pub signature: Option<Signature>,
    /// Each byte that passes is computed with, on the core: encrypted, hashed, added up.
    pub computes: bool,
    /// Why its devices read for requests that are no reads, in a sentence.
    pub reads_to_write: Option<&'static str>,
    /// The names of such a layer in other systems, in lower case and with dashes: a message then tells the name here.
    pub elsewhere: &'static [&'static str],
}

impl Traits {
    /// The declarations of a layer without state.
    pub const NONE: Traits = Traits {
        keeps: false,
        appends: false,
        shares: false,
        views: false,
        metadata: false,
        store: false,
        member: false,
        reserves: false,
        outside: &[],
        renamed: &[],
        growth: Growth::First,
        snapshot: None,
        verbs: &[],
        figures: &[],
        notices: &[],
        heading: None,
        signature: None,
        computes: false,
        reads_to_write: None,
        elsewhere: &[],
    };

    /// Panics if they do not fit each other; [`crate::Kind::of`] asks when the program is compiled.
    pub(crate) const fn check(&self) {
        assert!(self.keeps || !self.metadata, "a layer with a device for its metadata keeps state");
        assert!(
            self.metadata || !self.store,
            "a layer with a metadata store may have it on a separate device"
        );
        assert!(!self.member || has_path(self.outside), "a member has its path in the key `path`");
    }
}

/// True if one of the keys is `path`, the path of a file with data.
const fn has_path(outside: &[Outside]) -> bool {
    let mut rest = outside;
    while let [first, others @ ..] = rest {
        if let (b"path", true) = (first.key.as_bytes(), first.is_file()) {
            return true;
        }
        rest = others;
    }
    false
}

/// A key whose value is a place outside of the hierarchy: a file or a device of this host, a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The key; dotted if it is in a table of its own (`tls.key`).
    pub key: &'static str,
    /// The data there is part of the stored data. Otherwise only this host needs it, as the file with a key: members of
    /// a hierarchy need not agree on it.
    pub stored: bool,
    /// The value is an address, perhaps `unix:PATH`; otherwise a path.
    pub address: bool,
    /// Values that are names of what comes with Lamina, and no places; with a colon at the end, what such values begin
    /// with.
    pub names: &'static [&'static str],
}

impl Outside {
    /// The path of a file that data is kept in. The file belongs to the device alone.
    pub const fn file(key: &'static str) -> Outside {
        Outside { key, stored: true, address: false, names: &[] }
    }

    /// The address of a server that data is kept on.
    pub const fn server(key: &'static str) -> Outside {
        Outside { key, stored: true, address: true, names: &[] }
    }

    /// The path of a file that only this host needs.
    pub const fn local(key: &'static str) -> Outside {
        Outside { key, stored: false, address: false, names: &[] }
    }

    /// The same key, whose value may also be one of `names`.
    pub const fn or(self, names: &'static [&'static str]) -> Outside {
        Outside { names, ..self }
    }

    /// True if a value stays as it is, wherever the file is that says it.
    pub fn is_name(&self, text: &str) -> bool {
        self.names.iter().any(|name| text == *name || name.ends_with(':') && text.starts_with(name))
    }

    /// True for the path of a file that data is kept in.
    pub const fn is_file(&self) -> bool {
        self.stored && !self.address
    }
}
