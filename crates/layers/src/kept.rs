//! What devices that keep words with the hierarchy share (`docs/formats/kept.md`): each is JSON with a version of its own.

use lamina_block::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads words of `version` about `what`. Those of a later version, and everything else that cannot be, is refused.
pub fn read<T: DeserializeOwned>(words: &Value, version: u64, what: &str) -> Result<T> {
    match words.get("version").and_then(Value::as_u64) {
        Some(later) if later > version => Err(Error::unsupported(format!(
            "its {what} was kept by a later version (format {later}; known is {version})"
        ))),
        Some(known) if known == version => T::deserialize(words).map_err(|e| corrupt(what, e)),
        Some(_) | None => Err(corrupt(what, "no version that is known")),
    }
}

/// What was kept about `what` cannot be.
pub fn corrupt(what: &str, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("what is kept of its {what}: {why}"))
}
