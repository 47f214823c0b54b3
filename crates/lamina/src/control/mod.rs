//! The control API: HTTP and JSON on a Unix socket that only its owner can open.
//!
//! [`server`] answers it, [`Client`] asks it, [`socket`] decides who may listen. The document that describes it is
//! made from the handlers (`docs/openapi.json`; a test keeps the committed copy true).

mod answer;
mod client;
mod draw;
mod schema;
pub mod server;
pub mod socket;
mod tracing;

pub use client::Client;
pub use tracing::{End, LOST, Tracing};

use crate::api::{Arg, Control, Device, Job, Snapshot, Steer, Verb};
use crate::cli::Ctl;
use crate::confirm::confirm;
use crate::exit::Failure;
use crate::show::table;
use crate::uri::encoded;
use crate::{jobs, verbs};
use lamina_block::{Bytes, Occasion, Question};
use lamina_host::Asker;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};

/// The most bytes of a secret that is typed.
const SECRET_MAX: usize = 512;

/// Runs `lamina ctl`: lists devices, explains a device's commands, shows its kind and state, steers its work, or sends
/// one command and prints the answer.
pub fn ctl(args: &Ctl) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let mut out = std::io::stdout();
    let Some(name) = &args.device else {
        let served: Snapshot = client.get("/v1/hierarchy")?;
        return Ok(write!(out, "{}", devices(&served))?);
    };
    let path = format!("/v1/devices/{}", encoded(name, ""));
    match args.command.as_str() {
        "help" => {
            let device: Device = client.get(&path)?;
            let known: Vec<Verb> = client.get(&format!("{path}/commands"))?;
            write!(out, "{}", verbs::help(&device.name, &device.kind, &known))?;
            return Ok(());
        }
        "info" => {
            let Device { kind, over, geometry, info, .. } = client.get(&path)?;
            return print(args, &json!({ "type": kind, "over": over, "geometry": geometry, "info": info }));
        }
        "job" => {
            let (job, steer) = steering(&args.args).map_err(Failure::Usage)?;
            let steered: Job = client.post(&format!("{path}/jobs/{}", encoded(job, "")), &steer)?;
            write!(out, "{}", jobs::table(&[steered]))?;
            return Ok(());
        }
        _ => {}
    }
    let known: Vec<Verb> = client.get(&format!("{path}/commands"))?;
    let usage = |e: String| Failure::Usage(format!("{e}\n`lamina ctl {name} help` explains it"));
    let verb = verbs::find(&known, name, &args.command).map_err(usage)?;
    let mut words = args.args.clone();
    let secrets = verbs::secrets(verb, &mut words);
    let mut command =
        Control { name: verb.name.clone(), args: verbs::arguments(verb, &words).map_err(usage)? };
    for secret in secrets {
        command.args[&secret.name] = asked(secret, name)?.into();
    }
    if args.force {
        let can = verb.args.iter().any(|arg| arg.name == verbs::FORCE);
        let can = can.then_some(()).ok_or_else(|| format!("--force: {} loses nothing", verb.name));
        can.map_err(usage)?;
        command.args[verbs::FORCE] = true.into();
    }
    match (send(&client, &format!("{path}/control"), command)?, &args.draw) {
        (Value::Null, None) => Ok(()),
        (answer, None) => print(args, &answer),
        (answer, Some(into)) => {
            let map = match draw::Map::of(&answer) {
                Ok(map) => map,
                // The command is done: its answer is not lost.
                Err(e) => {
                    print(args, &answer)?;
                    return Err(Failure::failed(e));
                }
            };
            match into {
                None => Ok(write!(out, "{}", map.text())?),
                Some(path) => map.svg(path, name).map_err(Failure::failed),
            }
        }
    }
}

/// The devices of a daemon, with the commands of their kinds.
fn devices(served: &Snapshot) -> String {
    let devices = served.hierarchies.iter().flat_map(|hierarchy| &hierarchy.devices);
    let row = |device: &Device| {
        let verbs = verbs::of(&device.kind);
        let names: Vec<&str> = verbs.iter().map(|verb| verb.name.as_str()).collect();
        vec![device.name.clone(), device.kind.clone(), names.join(" ")]
    };
    table(&["DEVICE", "KIND", "COMMANDS"], 3, &devices.map(row).collect::<Vec<_>>())
}

/// Sends a command; again, if a loss of data was confirmed.
fn send(client: &Client, path: &str, mut command: Control) -> Result<Value, Failure> {
    match client.post(path, &command) {
        Err(Failure::Unconfirmed(warning)) => {
            confirm(&warning)?;
            command.args[verbs::FORCE] = true.into();
            client.post(path, &command)
        }
        answer => answer,
    }
}

/// A secret for a command to `device`, which a person types.
fn asked(secret: &Arg, device: &str) -> Result<String, Failure> {
    let of = format!("{} of device {device}", secret.name);
    let answer = Asker::at_terminal().answer(&Question { of, max: SECRET_MAX, occasion: Occasion::New });
    let answer = answer.map_err(|e| Failure::failed(format!("{}: {}", secret.name, e.message())))?;
    let text = std::str::from_utf8(&answer);
    text.map(str::to_owned).map_err(|_| Failure::usage(format!("{}: is not UTF-8", secret.name)))
}

/// For people at a terminal, for programs as JSON.
fn print(args: &Ctl, answer: &Value) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    if out.is_terminal() && !args.json {
        return Ok(write!(out, "{}", answer::text(answer))?);
    }
    let text = serde_json::to_string_pretty(answer).map_err(Failure::failed)?;
    Ok(writeln!(out, "{text}")?)
}

/// The arguments of `lamina ctl DEVICE job`: the job, and the way to steer it.
fn steering(words: &[String]) -> Result<(&str, Steer), String> {
    const USAGE: &str = "write job NAME pause, resume, cancel or limit=RATE; `lamina jobs` lists the names";
    let [job, action] = words else { return Err(USAGE.into()) };
    let steer = match (action.as_str(), action.strip_prefix("limit=")) {
        ("pause", _) => Steer::Pause,
        ("resume", _) => Steer::Resume,
        ("cancel", _) => Steer::Cancel,
        (_, Some("none")) => Steer::Limit { limit: None },
        (_, Some(rate)) => {
            let bytes = rate.strip_suffix("/s").unwrap_or(rate).parse::<Bytes>();
            let Bytes(limit) = bytes.map_err(|e| format!("limit: {e}, or none"))?;
            Steer::Limit { limit: Some(limit) }
        }
        _ => return Err(USAGE.into()),
    };
    Ok((job, steer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_steered_in_words() {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let limit = |limit| Steer::Limit { limit };
        for (action, expected) in [
            ("pause", Steer::Pause),
            ("resume", Steer::Resume),
            ("cancel", Steer::Cancel),
            ("limit=50MiB", limit(Some(50 << 20))),
            ("limit=1000/s", limit(Some(1000))),
            ("limit=none", limit(None)),
        ] {
            assert_eq!(steering(&words(&["reclaim", action])), Ok(("reclaim", expected)), "{action}");
        }
        for (list, says) in [
            (&["reclaim"][..], "write job NAME"),
            (&["reclaim", "stop"], "write job NAME"),
            (&["reclaim", "limit=fast"], "limit: \"fast\" is no size"),
            (&[], "lamina jobs"),
        ] {
            assert!(steering(&words(list)).expect_err("wrong").contains(says), "{list:?}");
        }
    }
}
