//! What a drive is, and the file that says so (`docs/formats/drive-model.md`).
//!
//! A file that was read is valid: every value is inside the range that its key allows, so that a drive made of it
//! neither panics nor runs without end. [`Model::check`] says the same of a model made by a program.

use crate::check::{Checked, within, wrong};
use crate::{Cache, Drive, Linear, Remote, Rotational, SECTOR, Ssd};
use lamina_block::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use toml::de::{DeArray, DeTable};

/// A drive's description, as its file has it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "File", into = "File")]
pub struct Model {
    /// What the drive is called, for people: 1 to 200 printable characters.
    pub name: String,
    /// Its size: 4KiB..=1EiB, whole sectors.
    pub size: Bytes,
    /// How it works.
    pub mechanism: Mechanism,
}

/// How a drive works: one table of the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Mechanism {
    /// Service time as a line over the distance (the paper's).
    Linear(Linear),
    /// A hard disk: arm and platters.
    Rotational(Box<Rotational>),
    /// Flash.
    Ssd(Box<Ssd>),
    /// A store behind a network.
    Remote(Remote),
}

/// A mistake in a model file: which key, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError {
    /// The path of the key (`rotational.zones[2].sectors-per-track`); empty if the file as a whole is meant.
    pub key: String,
    /// The line of the file, from 1, where it is known.
    pub line: Option<usize>,
    /// The mistake, with the range that is allowed.
    pub message: String,
}

/// The file: one of the mechanisms is there.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    name: String,
    size: Bytes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    linear: Option<Linear>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rotational: Option<Box<Rotational>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ssd: Option<Box<Ssd>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remote: Option<Remote>,
}

/// The models that come with Lamina: names and files.
const FILES: [(&str, &str); 8] = [
    ("cheetah-15k4", include_str!("../models/cheetah-15k4.toml")),
    ("cheetah-15k5", include_str!("../models/cheetah-15k5.toml")),
    ("disk-7200", include_str!("../models/disk-7200.toml")),
    ("nvme", include_str!("../models/nvme.toml")),
    ("san", include_str!("../models/san.toml")),
    ("ssd-sata", include_str!("../models/ssd-sata.toml")),
    ("ssd-sata-blocks", include_str!("../models/ssd-sata-blocks.toml")),
    ("ssd-sata-old", include_str!("../models/ssd-sata-old.toml")),
];

impl Model {
    /// The longest model file that is read, in bytes.
    pub const FILE_MAX: usize = 16 << 20;

    /// Reads a model file.
    pub fn parse(text: &str) -> Result<Model, ModelError> {
        if text.len() > Model::FILE_MAX {
            return Err(wrong(
                "",
                format_args!("the file has {} bytes: at most {} are read", text.len(), Model::FILE_MAX),
            ));
        }
        let with_line = |mut error: ModelError| {
            error.line = error.line.or_else(|| line_of_key(text, &error.key));
            error
        };
        Model::try_from(read(text).map_err(with_line)?).map_err(with_line)
    }

    /// The model file: [`Model::parse`] reads it back to the same model.
    pub fn to_toml(&self) -> String {
        // Only maps with keys that are no strings, which a model does not have, cannot be written.
        toml::to_string(self).unwrap_or_default()
    }

    /// The names of the models that come with Lamina, in the order of the alphabet.
    pub const NAMES: [&'static str; FILES.len()] = {
        let (mut names, mut i) = ([""; FILES.len()], 0);
        while i < FILES.len() {
            names[i] = FILES[i].0;
            i += 1;
        }
        names
    };

    /// A model that comes with Lamina, such as `cheetah-15k4`; [`Model::NAMES`] has them all.
    pub fn named(name: &str) -> Option<Model> {
        let (_, text) = FILES.iter().find(|(known, _)| *known == name)?;
        Model::parse(text).ok()
    }

    /// Such a drive, switched on and idle. `seed` decides what the model leaves to chance.
    pub fn drive(&self, seed: u64) -> Drive {
        Drive::new(self, seed)
    }

    /// Whole sectors of the drive.
    pub fn sectors(&self) -> u64 {
        self.size.0 / SECTOR
    }

    /// The on-board cache, if the drive has one of segments.
    pub fn cache(&self) -> Option<&Cache> {
        match &self.mechanism {
            Mechanism::Linear(keys) => keys.cache.as_ref(),
            Mechanism::Rotational(keys) => keys.cache.as_ref(),
            Mechanism::Ssd(_) | Mechanism::Remote(_) => None,
        }
    }

    /// How many requests the drive chooses among, or works on at a time.
    pub fn depth(&self) -> u32 {
        match &self.mechanism {
            Mechanism::Linear(_) => 1,
            Mechanism::Rotational(keys) => keys.depth,
            Mechanism::Ssd(keys) => keys.depth,
            Mechanism::Remote(keys) => keys.depth,
        }
    }

    /// How many requests the drive works on at a time.
    pub(crate) fn slots(&self) -> usize {
        match &self.mechanism {
            Mechanism::Linear(_) | Mechanism::Rotational(_) => 1,
            Mechanism::Ssd(_) | Mechanism::Remote(_) => self.depth() as usize,
        }
    }

    /// Whether every value is inside the range that its key allows.
    pub fn check(&self) -> Checked {
        within("name", self.name.chars().count(), 1..=200)
            .map_err(|error| wrong("name", format_args!("the number of characters, {}", error.message)))?;
        if self.name.chars().any(char::is_control) {
            return Err(wrong("name", "control characters are not allowed"));
        }
        within("size", self.size, Bytes(4096)..=Bytes(1 << 60))?;
        if !self.size.0.is_multiple_of(SECTOR) {
            return Err(wrong("size", format_args!("{} is no multiple of {SECTOR} bytes", self.size)));
        }
        match &self.mechanism {
            Mechanism::Linear(keys) => keys.check(),
            Mechanism::Rotational(keys) => keys.check(self.sectors()),
            Mechanism::Ssd(keys) => keys.check(),
            Mechanism::Remote(keys) => keys.check(),
        }
    }
}

impl TryFrom<File> for Model {
    type Error = ModelError;
    fn try_from(file: File) -> Result<Model, ModelError> {
        let File { name, size, linear, rotational, ssd, remote } = file;
        let mechanism = match (linear, rotational, ssd, remote) {
            (Some(keys), None, None, None) => Mechanism::Linear(keys),
            (None, Some(keys), None, None) => Mechanism::Rotational(keys),
            (None, None, Some(keys), None) => Mechanism::Ssd(keys),
            (None, None, None, Some(keys)) => Mechanism::Remote(keys),
            _ => return Err(wrong("", "a model has one of the tables linear, rotational, ssd, remote")),
        };
        let model = Model { name, size, mechanism };
        model.check().map(|()| model)
    }
}

impl From<Model> for File {
    fn from(Model { name, size, mechanism }: Model) -> File {
        let mut file = File { name, size, linear: None, rotational: None, ssd: None, remote: None };
        match mechanism {
            Mechanism::Linear(keys) => file.linear = Some(keys),
            Mechanism::Rotational(keys) => file.rotational = Some(keys),
            Mechanism::Ssd(keys) => file.ssd = Some(keys),
            Mechanism::Remote(keys) => file.remote = Some(keys),
        }
        file
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ModelError {}

/// Reads the file, without regard to ranges.
fn read(text: &str) -> Result<File, ModelError> {
    let error = |key: String, error: &toml::de::Error| ModelError {
        key,
        line: error.span().map(|span| line(text, span.start)),
        message: error.message().to_owned(),
    };
    let file = toml::Deserializer::parse(text).map_err(|e| error(String::new(), &e))?;
    serde_path_to_error::deserialize(file).map_err(|e| {
        let path = e.path().to_string();
        error(if path == "." { String::new() } else { path }, e.inner())
    })
}

/// The line, from 1, of a place in a text.
fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// The line of the key whose path is `key`, or of the nearest table above it that is in the file.
fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let (mut table, mut array): (Option<&DeTable<'_>>, Option<&DeArray<'_>>) =
        (Some(document.get_ref()), None);
    let mut at = None;
    for part in key.split(['.', '[']).map(|part| part.trim_end_matches(']')).filter(|part| !part.is_empty()) {
        let found = match (table, array) {
            (Some(table), _) => table.get(part),
            (None, Some(array)) => part.parse::<usize>().ok().and_then(|n| array.get(n)),
            (None, None) => None,
        };
        let Some(found) = found else { break };
        at = Some(found.span().start);
        (table, array) = (found.get_ref().as_table(), found.get_ref().as_array());
    }
    at.map(|at| line(text, at))
}
