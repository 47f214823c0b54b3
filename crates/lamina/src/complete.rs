//! What a shell offers at TAB: words of the command line, and what a running daemon knows, its devices, exports and
//! commands.
//!
//! The shell runs `lamina` with [`VAR`] in its environment and the line so far behind `--`. A daemon that does not
//! answer at once offers nothing, and nobody can offer what a shell would take for more than a word.

use crate::api::{Arg, ArgType, Snapshot, Verb};
use crate::cli::Cli;
use crate::control::Client;
use crate::events::shown;
use crate::uri::encoded;
use clap::CommandFactory;
use clap_complete::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::mpsc;
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
    if shell.is("zsh") {
        // The first time the file is loaded as the function that completes.
        script.extend(
            b"\nif [ \"$funcstack[1]\" = _lamina ]; then _clap_dynamic_completer_lamina \"$@\"; fi\n",
        );
    }
    Ok(script)
}

/// The devices of the daemon, and their kinds.
pub fn devices() -> Vec<CompletionCandidate> {
    let served: Option<Snapshot> = asked("/v1/hierarchy");
    let all = served.into_iter().flat_map(|served| served.hierarchies).flat_map(|one| one.devices);
    all.filter_map(|device| offered(device.name, &device.kind)).collect()
}

/// The exports of the daemon, and their devices.
pub fn exports() -> Vec<CompletionCandidate> {
    let served: Option<Snapshot> = asked("/v1/hierarchy");
    let all = served.into_iter().flat_map(|served| served.hierarchies).flat_map(|one| one.exports);
    all.filter_map(|export| offered(export.name, &export.device)).collect()
}

/// The commands of the device that is on the line.
pub fn commands() -> Vec<CompletionCandidate> {
    let common =
        [("help", "explains the commands"), ("info", "says how the device is"), ("job", "steers its work")];
    let common = common.map(|(name, help)| (name.to_owned(), help.to_owned()));
    let own = verbs().into_iter().map(|verb| (verb.name, verb.summary));
    own.chain(common).filter_map(|(name, help)| offered(name, &help)).collect()
}

/// The arguments of the command that is on the line.
pub fn arguments() -> Vec<CompletionCandidate> {
    let named = words().into_iter().nth(1);
    let verb = verbs().into_iter().find(|verb| Some(&verb.name) == named.as_ref());
    let args = verb.into_iter().flat_map(|verb| verb.args);
    let word = |arg: &Arg| match arg.is {
        ArgType::Secret => arg.name.clone(),
        _ => format!("{}=", arg.name),
    };
    args.filter_map(|arg| offered(word(&arg), &arg.summary)).collect()
}

fn verbs() -> Vec<Verb> {
    let device = words().into_iter().next();
    device
        .and_then(|device| asked(&format!("/v1/devices/{}/commands", encoded(&device, ""))))
        .unwrap_or_default()
}

/// A word with its explanation, if it is one for a shell.
fn offered(word: String, help: &str) -> Option<CompletionCandidate> {
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+=".contains(c));
    is_plain.then(|| CompletionCandidate::new(word).help(Some(shown(help).into())))
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

fn asked<T: DeserializeOwned + Send + 'static>(path: &str) -> Option<T> {
    let socket = socket(&line()).or_else(|| std::env::var_os("LAMINA_CONTROL").map(PathBuf::from));
    let (path, (sender, answer)) = (path.to_owned(), mpsc::channel());
    // A thread, which this process does not wait for: whoever listens there may not take the connection.
    std::thread::spawn(move || {
        let client = Client::find(socket.as_deref()).ok();
        sender.send(client.and_then(|client| client.get(&path).ok()))
    });
    answer.recv_timeout(PATIENCE).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_offered_that_a_shell_would_run() {
        for (word, is_offered) in [("vm1", true), ("size=", true), ("x;$(reboot)", false), ("a b", false)] {
            assert_eq!(offered(word.into(), "help").is_some(), is_offered, "{word}");
        }
    }

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
