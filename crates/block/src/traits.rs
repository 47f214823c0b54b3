//! What a kind of layer declares of itself, apart from how it is made.
//!
//! The graph, the metrics, `lamina show`, `lamina inspect`, the OpenAPI document and the manual are made from these
//! declarations: none of them knows a kind by its name.

use crate::{Figure, Notice, Signature, Verb};

/// What a kind declares, as one constant ([`crate::Config::TRAITS`]): `Traits { keeps: true, ..Traits::NONE }`.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// It remembers something, on its children or with the hierarchy ([`crate::Build::keep`]): only one layer may have a
    /// device open, and it has to be made ([`crate::Begin::Format`]) before it is opened for the first time.
    pub keeps: bool,
    /// More children at the end of `over` add room at its end, and nothing has to be moved.
    pub appends: bool,
    /// Its layer shares the state of the device below: when that gets another layer, this one is made anew.
    pub shares: bool,
    /// It has further address spaces ([`crate::Manage::view`]), which devices of kind `view` show.
    pub views: bool,
    /// What it remembers can lie on a device of its own: the key `metadata`. Only if it `keeps` something.
    pub metadata: bool,
    /// What lies there, or at the head of its child, is a metadata store: otherwise it is of a format of its own.
    pub store: bool,
    /// Its devices carry superblocks if their hierarchy is persistent: members. Only for a kind with the key `path`, which
    /// says where a member is, and is not part of what members say. One whose key `read-only` is true is no member.
    pub member: bool,
    /// Its keys that name places outside of the hierarchy.
    pub outside: &'static [Outside],
    /// Keys that were called something else, as (before, now): the old name is taken too, and said to be old.
    pub renamed: &'static [(&'static str, &'static str)],
    /// The commands that its devices understand.
    pub verbs: &'static [Verb],
    /// The figures that its devices show, in the order of their columns.
    pub figures: &'static [Figure],
    /// What is said of its devices below the table of its figures.
    pub notices: &'static [Notice],
    /// What stands above the names of its devices in that table; without it the name of the kind.
    pub heading: Option<&'static str>,
    /// How what it has on a device is recognised.
    pub signature: Option<Signature>,
    /// What other systems call such a thing, in lower case and with dashes: who writes that is told the name here.
    pub elsewhere: &'static [&'static str],
}

impl Traits {
    /// Those of a layer that is nothing but a function of the devices below.
    pub const NONE: Traits = Traits {
        keeps: false,
        appends: false,
        shares: false,
        views: false,
        metadata: false,
        store: false,
        member: false,
        outside: &[],
        renamed: &[],
        verbs: &[],
        figures: &[],
        notices: &[],
        heading: None,
        signature: None,
        elsewhere: &[],
    };

    /// Panics if they do not fit each other; [`crate::Kind::of`] asks when the program is compiled.
    pub(crate) const fn check(&self) {
        assert!(self.keeps || !self.metadata, "what has a device for its metadata keeps something");
        assert!(self.metadata || !self.store, "what has a metadata store may have it on a device of its own");
        assert!(!self.member || has_path(self.outside), "a member is at its key `path`");
    }
}

/// True if one of the keys is `path`, the path of a file that data is kept in.
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
    /// The key; dotted if it stands in a table of its own (`tls.key`).
    pub key: &'static str,
    /// What is there is part of what is stored. Otherwise only this host needs it, as the file with a key: members of a
    /// hierarchy need not agree on it.
    pub stored: bool,
    /// It is an address, perhaps `unix:PATH`; otherwise it is a path.
    pub address: bool,
}

impl Outside {
    /// The path of a file that data is kept in. It belongs to the device alone.
    pub const fn file(key: &'static str) -> Outside {
        Outside { key, stored: true, address: false }
    }

    /// The address of a server that data is kept on.
    pub const fn server(key: &'static str) -> Outside {
        Outside { key, stored: true, address: true }
    }

    /// The path of a file that only this host needs.
    pub const fn local(key: &'static str) -> Outside {
        Outside { key, stored: false, address: false }
    }

    /// True for the path of a file that data is kept in.
    pub const fn is_file(&self) -> bool {
        self.stored && !self.address
    }
}
