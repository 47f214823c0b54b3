//! The control API: HTTP and JSON on a Unix socket that only its owner can open.
//!
//! [`server`] answers it, [`Client`] asks it, [`socket`] decides who may listen. The document that describes it is
//! made from the handlers (`docs/openapi.json`; a test keeps the committed copy true).

mod client;
pub mod server;
pub mod socket;

pub use client::Client;

use crate::api::{Applied, Apply, Control};
use crate::cli;
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

/// Runs `lamina apply`: the file is checked here, so that what is wrong with it is told with its lines; then the daemon
/// reads it.
pub fn apply(args: &cli::Apply) -> Result<(), Failure> {
    let plans = crate::files::load(std::slice::from_ref(&args.file))?;
    crate::daemon::check_together(&plans)?;
    let file = std::path::absolute(&args.file).map_err(Failure::failed)?;
    let file = file.to_str().ok_or_else(|| Failure::usage("the file's path is not UTF-8"))?.to_owned();
    let client = Client::find(args.daemon.control.as_deref())?;
    let applied: Applied = client.post("/v1/apply", &Apply { file, plan: args.plan, force: args.force })?;
    let mut out = std::io::stdout().lock();
    match applied.steps.as_slice() {
        [] => writeln!(out, "everything is as the file says")?,
        steps => steps.iter().try_for_each(|step| writeln!(out, "{step}"))?,
    }
    match applied.warnings.as_slice() {
        [] => Ok(()),
        wrong => Err(Failure::failed(format!("it was changed, but {}", wrong.join("; ")))),
    }
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
