//! What a shell offers at TAB: words of the command line, and what a running daemon knows, its devices, exports and
//! commands.
//!
//! The shell runs `lamina` with [`VAR`] in its environment and the line so far behind `--`. A daemon that does not
//! answer at once offers nothing.

use crate::api::{Arg, Snapshot, Verb};
use crate::cli::Cli;
use crate::control::Client;
use crate::uri::encoded;
use clap::CommandFactory;
use clap_complete::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::time::Duration;

/// The variable with the name of the shell that asks.
const VAR: &str = "LAMINA_COMPLETE";
/// How long a daemon may think.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers a shell, and ends this process; returns if no shell asks.
pub fn complete() {
    CompleteEnv::with_factory(Cli::command).var(VAR).complete();
}

/// The script that makes a shell ask.
pub fn script(shell: clap_complete::Shell) -> std::io::Result<Vec<u8>> {
    let (all, mut script) = (Shells::builtins(), Vec::new());
    let shell = all.completer(&shell.to_string()).expect("each shell of the command line is known");
    shell.write_registration(VAR, "lamina", "lamina", "lamina", &mut script)?;
    Ok(script)
}

/// The devices of the daemon, and their kinds.
pub fn devices() -> Vec<CompletionCandidate> {
    let served: Option<Snapshot> = asked("/v1/hierarchy");
    let all = served.into_iter().flat_map(|served| served.hierarchies).flat_map(|one| one.devices);
    all.map(|device| offered(device.name, &device.kind)).collect()
}

/// The exports of the daemon, and their devices.
pub fn exports() -> Vec<CompletionCandidate> {
    let served: Option<Snapshot> = asked("/v1/hierarchy");
    let all = served.into_iter().flat_map(|served| served.hierarchies).flat_map(|one| one.exports);
    all.map(|export| offered(export.name, &export.device)).collect()
}

/// The commands of the device that is on the line.
pub fn commands() -> Vec<CompletionCandidate> {
    let common =
        [("help", "explains the commands"), ("info", "says how the device is"), ("job", "steers its work")];
    let common = common.map(|(name, help)| offered(name.into(), help));
    verbs().into_iter().map(|verb| offered(verb.name, &verb.summary)).chain(common).collect()
}

/// The arguments of the command that is on the line.
pub fn arguments() -> Vec<CompletionCandidate> {
    let named = words().into_iter().nth(1);
    let verb = verbs().into_iter().find(|verb| Some(&verb.name) == named.as_ref());
    let args = verb.into_iter().flat_map(|verb| verb.args);
    args.map(|Arg { name, summary, .. }| offered(format!("{name}="), &summary)).collect()
}

fn verbs() -> Vec<Verb> {
    let device = words().into_iter().next();
    device
        .and_then(|device| asked(&format!("/v1/devices/{}/commands", encoded(&device, ""))))
        .unwrap_or_default()
}

fn offered(value: String, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(help.to_owned().into()))
}

/// The line so far, behind the program's name.
fn line() -> Vec<String> {
    let all = std::env::args_os().skip_while(|word| word != "--").skip(2);
    all.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The words behind `ctl` that are no options.
fn words() -> Vec<String> {
    positional(&line())
}

fn positional(line: &[String]) -> Vec<String> {
    let (mut words, mut is_value) = (Vec::new(), false);
    for word in line {
        if !is_value && !word.starts_with('-') {
            words.push(word.clone());
        }
        is_value = word == "--control" || word == "--log";
    }
    words.drain(..words.len().min(1));
    words
}

/// The socket that the line names.
fn socket(line: &[String]) -> Option<PathBuf> {
    let joined = line.iter().find_map(|word| word.strip_prefix("--control="));
    let apart = || line.iter().skip_while(|word| *word != "--control").nth(1).map(String::as_str);
    joined.or_else(apart).map(PathBuf::from)
}

fn asked<T: DeserializeOwned>(path: &str) -> Option<T> {
    let socket = socket(&line()).or_else(|| std::env::var_os("LAMINA_CONTROL").map(PathBuf::from));
    Client::find(socket.as_deref()).ok()?.get_within(path, PATIENCE).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_the_daemon_and_the_device() {
        let of = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
        for line in ["ctl --control a.ctl.sock vm1 snap", "ctl vm1 --control=a.ctl.sock --json snap"] {
            assert_eq!(positional(&of(line)), ["vm1", "snap"], "{line}");
            assert_eq!(socket(&of(line)), Some("a.ctl.sock".into()), "{line}");
        }
        assert_eq!((positional(&of("ctl")), socket(&of("ctl --control"))), (vec![], None));
    }
}
