//! The shared parts of layers' commands.

use lamina_block::{Command, Error, Result, Verb};
use serde::de::DeserializeOwned;

/// The arguments of a command. No arguments at all are the same as an empty object.
pub fn args<T: DeserializeOwned>(command: Command) -> Result<T> {
    let args = if command.args.is_null() { serde_json::json!({}) } else { command.args };
    serde_json::from_value(args).map_err(|e| Error::invalid(format!("{}: {e}", command.name)))
}

/// The answer to a command that is none of `verbs`.
pub fn unknown(command: &Command, verbs: &[Verb]) -> Error {
    let known: Vec<&str> = verbs.iter().map(|verb| verb.name).collect();
    Error::unsupported(format!("there is no command {:?}; there are: {}", command.name, known.join(", ")))
}
