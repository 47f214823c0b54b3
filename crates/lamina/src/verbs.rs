//! The commands of devices, by kind: parsed from arguments, checked, explained.
//!
//! The kinds declare their commands ([`lamina_block::Verb`]). The daemon checks every command against them before it
//! reaches a device; `lamina ctl` asks the daemon for them, so that it understands layers that it does not know itself.

use crate::api::{Arg, ArgType, Verb};
use crate::files;
use lamina_block::{Bytes, Command, Error, Interval, Result};
use serde_json::{Map, Value};
use std::fmt::Write;

/// Why a command or a change was not carried out, or not to its end.
#[derive(Debug)]
pub enum Denied {
    /// As the error says.
    Failed(Error),
    /// The command would lose this data, and has no argument `force`. Nothing was done.
    Unconfirmed(String),
}

impl From<Error> for Denied {
    fn from(e: Error) -> Denied {
        Denied::Failed(e)
    }
}

impl Denied {
    /// As text.
    pub fn message(&self) -> String {
        match self {
            Denied::Failed(e) => e.to_string(),
            Denied::Unconfirmed(message) => message.clone(),
        }
    }
}

/// Refuses a command to `device` that `loses` data without a confirmation.
pub fn confirm(device: &str, command: &Command, loses: Option<&str>) -> std::result::Result<(), Denied> {
    let Some(loses) = loses.filter(|_| command.args.get(FORCE) != Some(&Value::Bool(true))) else {
        return Ok(());
    };
    let name = &command.name;
    Err(Denied::Unconfirmed(format!("{device}: {name} loses {loses}: only with the argument force")))
}

/// The argument that confirms the loss of data.
pub const FORCE: &str = "force";
/// What a log has in the place of a secret.
const HIDDEN: &str = "***";

/// The commands of a kind.
pub fn of(kind: &str) -> Vec<Verb> {
    let kinds = files::kinds();
    let known = kinds.iter().find(|known| known.name == kind);
    known.map_or(Vec::new(), |kind| kind.traits.verbs.iter().map(Verb::from).collect())
}

/// True for a command of `kind` that changes nothing.
pub fn asks(kind: &str, name: &str) -> bool {
    let kind = files::kinds().into_iter().find(|known| known.name == kind);
    kind.is_some_and(|kind| kind.traits.verbs.iter().any(|verb| verb.name == name && verb.asks))
}

/// Refuses a command that devices of `kind` do not understand, or not like this.
pub fn check(kind: &str, command: &Command) -> Result<()> {
    let verbs = of(kind);
    let verb = find(&verbs, kind, &command.name).map_err(Error::unsupported)?;
    let empty = Map::new();
    let args = match &command.args {
        Value::Null => &empty,
        Value::Object(args) => args,
        _ => return Err(Error::invalid("args: an object is expected")),
    };
    check_args(verb, args).map_err(Error::invalid)
}

/// The command called `name`, or a message with those that there are.
pub fn find<'a>(verbs: &'a [Verb], kind: &str, name: &str) -> std::result::Result<&'a Verb, String> {
    verbs.iter().find(|verb| verb.name == name).ok_or_else(|| {
        let names: Vec<&str> = verbs.iter().map(|verb| verb.name.as_str()).collect();
        match names.as_slice() {
            [] => format!("there is no command {name:?}: devices of type \"{kind}\" have none"),
            names => format!("there is no command {name:?}; there is {}", names.join(", ")),
        }
    })
}

/// The mistake in arguments, if there is one.
fn check_args(verb: &Verb, args: &Map<String, Value>) -> std::result::Result<(), String> {
    let usage = || format!("write {}", usage(verb));
    for (name, value) in args {
        let Some(arg) = verb.args.iter().find(|arg| arg.name == *name) else {
            return Err(format!("{name}: there is no such argument: {}", usage()));
        };
        let what = || format!("{name}: {value} is no {}", described(arg.is));
        let good = match arg.is {
            ArgType::Text => value.is_string(),
            ArgType::Count => value.is_u64(),
            ArgType::Flag => value.is_boolean(),
            ArgType::Size => match value.as_str() {
                Some(text) => text.parse::<Bytes>().map(|_| true).map_err(|e| format!("{name}: {e}"))?,
                None => value.is_u64(),
            },
            ArgType::Time => match value.as_str() {
                Some(text) => text.parse::<Interval>().map(|_| true).map_err(|e| format!("{name}: {e}"))?,
                None => false,
            },
            ArgType::Json => true,
            ArgType::Secret if !value.is_string() => return Err(format!("{name}: is no text")),
            ArgType::Secret => true,
        };
        if !good {
            return Err(what());
        }
    }
    match verb.args.iter().find(|arg| arg.required && !args.contains_key(&arg.name)) {
        Some(arg) => Err(format!("{}: is missing: {}", arg.name, usage())),
        None => Ok(()),
    }
}

/// The type of a value, for messages.
fn described(is: ArgType) -> &'static str {
    match is {
        ArgType::Text => "text",
        ArgType::Size => "size: a number of bytes, or text such as \"64MiB\"",
        ArgType::Count => "number of 0 or more",
        ArgType::Time => "time: text such as \"10ms\"",
        ArgType::Flag => "yes or no: write true or false",
        ArgType::Json => "JSON",
        ArgType::Secret => "text that is typed",
    }
}

/// The arguments of a command to a device of `kind` as they may be logged: what is not known to be no secret is not
/// shown.
pub fn loggable(kind: &str, command: &Command) -> Value {
    let verbs = of(kind);
    let verb = verbs.iter().find(|verb| verb.name == command.name);
    let is_shown = |name: &str| {
        verb.is_some_and(|verb| verb.args.iter().any(|arg| arg.name == name && arg.is != ArgType::Secret))
    };
    match &command.args {
        Value::Null => Value::Null,
        Value::Object(args) => {
            let shown = |(name, value): (&String, &Value)| {
                (name.clone(), if is_shown(name) { value.clone() } else { HIDDEN.into() })
            };
            Value::Object(args.iter().map(shown).collect())
        }
        _ => HIDDEN.into(),
    }
}

/// Takes the names of secrets out of the words of a command: these are to be asked for.
pub fn secrets<'a>(verb: &'a Verb, words: &mut Vec<String>) -> Vec<&'a Arg> {
    let secrets = verb.args.iter().filter(|arg| arg.is == ArgType::Secret);
    let asked: Vec<&Arg> = secrets.filter(|arg| words.contains(&arg.name)).collect();
    words.retain(|word| asked.iter().all(|arg| arg.name != *word));
    asked
}

/// Arguments from text: `key=value` each, or only the value in an argument's place; or all of them as one JSON object.
/// The name of a flag alone means yes. A secret is not among them: others can see the words of a command.
pub fn arguments(verb: &Verb, words: &[String]) -> std::result::Result<Value, String> {
    let mut args = Map::new();
    if let [one] = words
        && one.trim_start().starts_with('{')
    {
        args = serde_json::from_str(one).map_err(|e| format!("the arguments are no JSON object: {e}"))?;
    } else {
        for word in words {
            let (arg, value) = match word.split_once('=') {
                Some((name, value)) => (named(verb, name)?, value),
                None => next(verb, &args, word)?,
            };
            let value = read(arg, value)?;
            if args.insert(arg.name.clone(), value).is_some() {
                return Err(format!("{}: is given twice", arg.name));
            }
        }
    }
    if let Some(arg) = verb.args.iter().find(|arg| arg.is == ArgType::Secret && args.contains_key(&arg.name))
    {
        let name = &arg.name;
        return Err(format!(
            "{name}: others can see the words of a command: write {name} alone, and it is asked for"
        ));
    }
    check_args(verb, &args)?;
    Ok(Value::Object(args))
}

fn named<'a>(verb: &'a Verb, name: &str) -> std::result::Result<&'a Arg, String> {
    let found = verb.args.iter().find(|arg| arg.name == name);
    found.ok_or_else(|| format!("{name:?}: there is no such argument: write {}", usage(verb)))
}

/// The argument that a word without a name is about, and its value.
fn next<'a>(
    verb: &'a Verb,
    args: &Map<String, Value>,
    word: &'a str,
) -> std::result::Result<(&'a Arg, &'a str), String> {
    let open = || verb.args.iter().filter(|arg| !args.contains_key(&arg.name));
    let flag = || open().find(|arg| arg.is == ArgType::Flag && arg.name == word);
    if let Some(arg) = open().find(|arg| arg.required) {
        return Ok((arg, word));
    }
    if let Some(arg) = flag() {
        return Ok((arg, "true"));
    }
    let arg = open().find(|arg| !matches!(arg.is, ArgType::Flag | ArgType::Secret));
    arg.map(|arg| (arg, word)).ok_or_else(|| format!("{word:?} is one too many: write {}", usage(verb)))
}

/// A value from a word, as its argument needs it.
fn read(arg: &Arg, word: &str) -> std::result::Result<Value, String> {
    let json = || serde_json::from_str::<Value>(word).ok();
    let wrong = || format!("{}: {word:?} is no {}", arg.name, described(arg.is));
    match arg.is {
        ArgType::Text | ArgType::Size | ArgType::Time | ArgType::Secret => Ok(word.into()),
        ArgType::Count | ArgType::Flag => json().ok_or_else(wrong),
        ArgType::Json => Ok(json().unwrap_or_else(|| word.into())),
    }
}

/// The syntax of a command: `resize NAME SIZE [force=FLAG]`.
pub fn usage(verb: &Verb) -> String {
    let mut out = verb.name.clone();
    for arg in &verb.args {
        let _ = match (arg.required, arg.is) {
            (true, _) => write!(out, " {}", arg.name.to_uppercase()),
            (false, ArgType::Flag) => write!(out, " [{}=true]", arg.name),
            (false, ArgType::Secret) => write!(out, " [{}]", arg.name),
            (false, is) => write!(out, " [{}={}]", arg.name, word_for(is)),
        };
    }
    out
}

fn word_for(is: ArgType) -> &'static str {
    match is {
        ArgType::Text => "TEXT",
        ArgType::Size => "SIZE",
        ArgType::Count => "NUMBER",
        ArgType::Time => "TIME",
        ArgType::Flag => "true",
        ArgType::Json => "JSON",
        ArgType::Secret => "ASKED",
    }
}

/// All commands of a device, with their arguments.
pub fn help(device: &str, kind: &str, verbs: &[Verb]) -> String {
    let mut out = format!("{device} ({kind})\n");
    for verb in verbs {
        let _ = writeln!(out, "\n  {}\n      {}", usage(verb), verb.summary);
        let width = verb.args.iter().map(|arg| arg.name.len()).max().unwrap_or(0);
        for arg in &verb.args {
            let _ = writeln!(
                out,
                "        {:<width$}  {:<6}  {}",
                arg.name,
                word_for(arg.is).to_lowercase(),
                arg.summary
            );
        }
    }
    if verbs.is_empty() {
        out.push_str("\n  devices of this type have no commands of their own\n");
    }
    out.push_str("\n  info\n      shows the kind of the device, and its state\n");
    out.push_str(
        "\n  job NAME pause|resume|cancel|limit=RATE\n      steers background work that `lamina jobs` \
                  lists\n",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn verb(name: &str) -> Verb {
        let of = |kind: &str| of(kind).into_iter().find(|verb| verb.name == name);
        ["partition", "delay", "fault", "record", "file"].into_iter().find_map(of).expect("there is one")
    }

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn words_become_arguments_by_place_and_by_name() {
        let resize = of("partition").into_iter().find(|verb| verb.name == "resize").expect("resize");
        for (given, expected) in [
            (&["root", "2GiB"][..], json!({"name": "root", "size": "2GiB"})),
            (&["size=2GiB", "root"], json!({"name": "root", "size": "2GiB"})),
            (&["7", "4096"], json!({"name": "7", "size": "4096"})),
            (&["root", "1MiB", "force"], json!({"name": "root", "size": "1MiB", "force": true})),
            (&["force", "1MiB", "force=false"], json!({"name": "force", "size": "1MiB", "force": false})),
            (&["name=a=b", "size=1"], json!({"name": "a=b", "size": "1"})),
            (&["{\"name\": \"x\", \"size\": 4096}"], json!({"name": "x", "size": 4096})),
        ] {
            assert_eq!(arguments(&resize, &words(given)), Ok(expected), "{given:?}");
        }
        let rules = json!({"rules": [{"op": ["read"]}]});
        assert_eq!(
            arguments(&verb("set"), &words(&["parallel=3", "read=5ms"])),
            Ok(json!({"parallel": 3, "read": "5ms"}))
        );
        let set = of("fault").into_iter().find(|verb| verb.name == "set").expect("set");
        assert_eq!(arguments(&set, &words(&["[{\"op\": [\"read\"]}]"])), Ok(rules));
        assert_eq!(arguments(&verb("clear"), &[]), Ok(json!({})));
        let file = of("file").remove(0);
        assert_eq!(arguments(&file, &words(&["2GiB", "force"])), Ok(json!({"size": "2GiB", "force": true})));
        assert_eq!(arguments(&file, &[]), Ok(json!({})));
    }

    #[test]
    fn what_is_wrong_says_what_is_allowed() {
        let resize = of("partition").into_iter().find(|verb| verb.name == "resize").expect("resize");
        for (given, says) in [
            (&["root"][..], "size: is missing: write resize NAME SIZE [force=true]"),
            (&["root", "many"], "size: \"many\" is no size"),
            (&["root", "1MiB", "2MiB"], "\"2MiB\" is one too many: write resize NAME SIZE"),
            (&["root", "1MiB", "name=b"], "name: is given twice"),
            (&["root", "1MiB", "colour=red"], "\"colour\": there is no such argument"),
            (&["root", "1MiB", "force=maybe"], "force: \"maybe\" is no yes or no: write true or false"),
            (&["root", "1MiB", "force=3"], "force: 3 is no yes or no"),
            (&["{\"name\": \"x\", \"size\": -1}"], "size: -1 is no size"),
            (&["{\"name\": 5, \"size\": 1}"], "name: 5 is no text"),
            (&["{\"nam\": 5}"], "nam: there is no such argument"),
            (&["{x}"], "no JSON object"),
        ] {
            let message = arguments(&resize, &words(given)).expect_err("wrong");
            assert!(message.contains(says), "{given:?}: {message}");
        }
        let message = arguments(&verb("set"), &words(&["parallel=-1"])).expect_err("wrong");
        assert!(message.contains("parallel: -1 is no number"), "{message}");
    }

    #[test]
    fn the_daemon_checks_what_it_is_sent() {
        let command = |name: &str, args: Value| Command { name: name.into(), args };
        check("partition", &command("list", Value::Null)).expect("good");
        check("partition", &command("delete", json!({"name": "a"}))).expect("good");
        for (kind, name, args, says) in [
            (
                "partition",
                "format",
                json!({}),
                "no command \"format\"; there is create, resize, rename, delete, list",
            ),
            ("linear", "list", json!({}), "devices of type \"linear\" have none"),
            ("partition", "delete", json!({}), "name: is missing: write delete NAME"),
            ("partition", "delete", json!([]), "an object is expected"),
            ("partition", "create", json!({"name": "a", "size": "1 potato"}), "size"),
        ] {
            let e = check(kind, &command(name, args)).expect_err("wrong");
            assert!(e.message().contains(says), "{e}");
        }
    }

    #[test]
    fn secrets_are_asked_for_and_not_logged() {
        let add = of("crypt").into_iter().find(|verb| verb.name == "keyslot-add").expect("it is there");
        let mut given = words(&["key-file=k", "passphrase"]);
        let asked: Vec<&str> = secrets(&add, &mut given).into_iter().map(|arg| &arg.name[..]).collect();
        assert_eq!((asked, given), (vec!["passphrase"], words(&["key-file=k"])));
        for given in
            [&["passphrase=hunter2"][..], &["{\"passphrase\": \"hunter2\"}"], &["{\"passphrase\": 2}"]]
        {
            let message = arguments(&add, &words(given)).expect_err("it can be seen");
            assert!(message.contains("write passphrase alone") && !message.contains("hunter2"), "{message}");
        }
        let args = json!({"key-file": "k", "passphrase": "hunter2", "pasphrase": "hunter2"});
        for (kind, name, shown) in
            [("crypt", "keyslot-add", "k"), ("crypt", "keyslot", "***"), ("x", "", "***")]
        {
            let logged = loggable(kind, &Command { name: name.into(), args: args.clone() });
            assert_eq!(logged, json!({"key-file": shown, "passphrase": "***", "pasphrase": "***"}));
        }
        let wrong = Command { name: "keyslot-add".into(), args: json!({"passphrase": ["hunter2"]}) };
        assert_eq!(check("crypt", &wrong).expect_err("no text").message(), "passphrase: is no text");
        assert_eq!(loggable("crypt", &Command { name: "keyslot-add".into(), args: "hunter2".into() }), "***");
    }

    #[test]
    fn help_lists_everything() {
        let text = help("disk", "partition", &of("partition"));
        for line in [
            "disk (partition)",
            "  resize NAME SIZE [force=true]",
            "        force  true    make it smaller, and lose the data beyond",
            "  info",
            "  job NAME pause|resume|cancel|limit=RATE",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        assert!(help("x", "linear", &[]).contains("no commands of their own"));
    }

    /// The commands that `lamina ctl` understands itself, and the rule of the contract.
    #[test]
    fn commands_of_all_kinds_keep_to_the_rules() {
        for kind in files::kinds() {
            for verb in of(kind.name) {
                let name = format!("{} {}", kind.name, verb.name);
                assert!(
                    !["help", "info", "job"].contains(&verb.name.as_str()),
                    "{name}: ctl has one of its own"
                );
                let required: Vec<bool> = verb.args.iter().map(|arg| arg.required).collect();
                assert!(required.is_sorted_by(|a, b| a >= b), "{name}: required arguments come first");
                assert!(
                    !verb.summary.is_empty() && verb.args.iter().all(|arg| !arg.summary.is_empty()),
                    "{name}"
                );
            }
        }
    }
}
