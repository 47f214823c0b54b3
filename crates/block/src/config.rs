//! Keys of a device, read and not yet built.

use crate::{Build, Config, Made, Pending};
use serde_json::Value;

/// What is wrong with a device's keys, and at which of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    /// Path of the key inside the device's table (`units[2].size`); empty if the table as a whole is meant.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// The keys of a device, valid in themselves.
pub struct Keys(Box<dyn FnOnce(Build) -> Pending<Made>>);

impl Keys {
    pub(crate) fn parse<C: Config>(keys: &Value) -> Result<Keys, KeyError> {
        let config: C = serde_path_to_error::deserialize(keys).map_err(|e| {
            let path = e.path().to_string();
            KeyError { path: if path == "." { String::new() } else { path }, message: e.inner().to_string() }
        })?;
        Ok(Keys(Box::new(move |with| config.build(with))))
    }

    /// Builds the layer.
    pub fn build(self, with: Build) -> Pending<Made> {
        (self.0)(with)
    }
}
