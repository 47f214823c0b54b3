//! What the commands of layers share.

use lamina_block::{Command, Error, Result};
use serde::de::DeserializeOwned;

/// The arguments of a command. No arguments at all are the same as an empty object.
pub fn args<T: DeserializeOwned>(command: Command) -> Result<T> {
    let args = if command.args.is_null() { serde_json::json!({}) } else { command.args };
    serde_json::from_value(args).map_err(|e| Error::invalid(format!("{}: {e}", command.name)))
}

/// The answer to a command that the layer does not know.
pub fn unknown(command: &Command, known: &[&str]) -> Error {
    Error::unsupported(format!("there is no command {:?}; there are: {}", command.name, known.join(", ")))
}
