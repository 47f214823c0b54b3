//! The control API: HTTP and JSON on a Unix socket that only its owner can open.
//!
//! [`server`] answers it, [`Client`] asks it, [`socket`] decides who may listen. The document that describes it is
//! made from the handlers (`docs/openapi.json`; a test keeps the committed copy true).

mod client;
pub mod server;
pub mod socket;

pub use client::Client;

use crate::api::Control;
use crate::cli::Ctl;
use crate::exit::Failure;
use crate::uri::encoded;
use serde_json::{Map, Value};
use std::io::Write;

/// Runs `lamina ctl`: sends one command and prints the answer.
pub fn ctl(args: &Ctl) -> Result<(), Failure> {
    let command =
        Control { name: args.command.clone(), args: arguments(&args.args).map_err(Failure::Usage)? };
    let client = Client::find(args.daemon.control.as_deref())?;
    let answer: Value =
        client.post(&format!("/v1/devices/{}/control", encoded(&args.device, "")), &command)?;
    if !answer.is_null() {
        let text = serde_json::to_string_pretty(&answer).map_err(Failure::failed)?;
        writeln!(std::io::stdout(), "{text}")?;
    }
    Ok(())
}

/// Arguments as an object: either one JSON object, or `key=value` each. A value that is JSON is taken as JSON (5,
/// true, [1,2], "5"), any other as a string, so that sizes and times need no quotes.
fn arguments(words: &[String]) -> Result<Value, String> {
    if let [one] = words
        && one.trim_start().starts_with('{')
    {
        return serde_json::from_str(one).map_err(|e| format!("the arguments are no JSON object: {e}"));
    }
    let mut object = Map::new();
    for word in words {
        let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(format!("{word:?} is no argument: write key=value, or one JSON object"));
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
        if object.insert(key.into(), value).is_some() {
            return Err(format!("the argument {key:?} is given twice"));
        }
    }
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_are_json_where_they_can_be() {
        let parse = |words: &[&str]| arguments(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
        assert_eq!(parse(&[]), Ok(json!({})));
        assert_eq!(
            parse(&["size=2GiB", "count=3", "on=true", "text=\"3\"", "empty=", "eq=a=b"]),
            Ok(json!({"size": "2GiB", "count": 3, "on": true, "text": "3", "empty": "", "eq": "a=b"}))
        );
        assert_eq!(parse(&["{\"a\": [1]}"]), Ok(json!({"a": [1]})));
        for (wrong, says) in [
            (&["size"][..], "write key=value"),
            (&["=1"], "write key=value"),
            (&["a=1", "a=2"], "given twice"),
            (&["{a}"], "no JSON object"),
        ] {
            let message = parse(wrong).unwrap_err();
            assert!(message.contains(says), "{message}");
        }
    }
}
