//! What a drive is, and the file that says so.

use crate::{Drive, Linear};
use lamina_block::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A drive's description, as its file has it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Model {
    /// What the drive is called, for people.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// How it works.
    #[serde(flatten)]
    pub mechanism: Mechanism,
}

/// How a drive works: one table of the file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Service time as a line over the distance (the paper's).
    Linear(Linear),
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

impl Model {
    /// Reads a model file.
    pub fn parse(text: &str) -> Result<Model, ModelError> {
        todo_parse(text)
    }

    /// The model file: [`Model::parse`] reads it back to the same model.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// A model that comes with Lamina, such as `cheetah-15k4`.
    pub fn named(_name: &str) -> Option<Model> {
        None
    }

    /// Such a drive, switched on and idle. `seed` decides what the model leaves to chance.
    pub fn drive(&self, seed: u64) -> Drive {
        Drive::new(self, seed)
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

fn todo_parse(text: &str) -> Result<Model, ModelError> {
    toml::from_str(text).map_err(|e| ModelError { key: String::new(), line: None, message: e.to_string() })
}
