//! Every command of this program that the documents tell is one: it parses, or its options are those of its command.

use clap::{Command, CommandFactory, Parser};
use lamina::cli::Cli;
use std::path::{Path, PathBuf};

/// All documents.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [".", "docs", "docs/decisions", "docs/formats", "docs/guides", "examples", "packaging"];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).expect("a folder"));
    let files = files.map(|file| file.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|suffix| suffix == "md")).collect()
}

/// The words of a command, as a shell has them, up to what begins another one.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (c, quote) {
            (c, Some(end)) if c == end => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('|' | '>' | '<' | '&' | ';' | '#', None) => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.into_iter().chain(word).collect()
}

/// What is wrong with a command that stands on a line of its own.
fn wrong_command(line: &str) -> Option<String> {
    let words = words(line);
    let is_before = |word: &String| word == "$" || word == "sudo" || word.contains('=');
    let words: Vec<_> = words.into_iter().skip_while(is_before).collect();
    if words.first().is_none_or(|word| word != "lamina" && !word.ends_with("/lamina")) {
        return None;
    }
    let error = Cli::try_parse_from(words).err().filter(|e| e.use_stderr())?;
    Some(error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// What is wrong with a command in a sentence: it may be a part of one.
fn wrong_part(program: &Command, part: &str) -> Option<String> {
    let mut words = words(part).into_iter().skip(1).peekable();
    let name = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
    let command = match &name {
        None => program,
        Some(name) => match program.find_subcommand(name) {
            Some(command) => command,
            None if name == "help" => return None,
            None => return Some(format!("there is no command {name:?}")),
        },
    };
    let options = words.map(|word| word.trim_matches(['[', ']']).to_owned());
    let options: Vec<String> = options.filter_map(|word| Some(word.strip_prefix("--")?.to_owned())).collect();
    let has = |of: &Command, option: &str| of.get_arguments().any(|known| known.get_long() == Some(option));
    let is_known =
        |option: &str| ["help", "version"].contains(&option) || has(command, option) || has(program, option);
    let unknown = options
        .iter()
        .find(|option| !option.is_empty() && !is_known(option.split('=').next().unwrap_or_default()))?;
    Some(format!("there is no option --{unknown}"))
}

#[test]
fn commands_in_documents_are_commands() {
    let (program, mut wrong, mut seen) = (Cli::command(), Vec::new(), 0);
    for path in documents() {
        let text = std::fs::read_to_string(&path).expect("a document");
        let mut tell = |command: &str, error: Option<String>| {
            seen += 1;
            wrong.extend(error.map(|e| format!("{}: {command}: {e}", path.display())));
        };
        for (number, piece) in text.split("```").enumerate() {
            // Every other one is a block, which begins with its language.
            if number % 2 == 1 {
                let whole = piece.replace("\\\n", " ");
                whole
                    .lines()
                    .skip(1)
                    .filter(|line| line.contains("lamina "))
                    .for_each(|line| tell(line, wrong_command(line)));
            } else {
                let spans = piece.split('`').skip(1).step_by(2);
                spans
                    .filter(|span| span.starts_with("lamina "))
                    .for_each(|span| tell(span, wrong_part(&program, span)));
            }
        }
    }
    assert!(seen > 200, "only {seen} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_no_command_is_noticed() {
    let program = Cli::command();
    assert!(wrong_command("$ lamina serve vm.toml &").is_none());
    assert!(wrong_command("lamina serve vm.toml --nonsense").is_some_and(|e| e.contains("--nonsense")));
    assert!(wrong_command("sudo lamina nonsense").is_some());
    assert!(wrong_part(&program, "lamina serve --samples N").is_none());
    assert!(wrong_part(&program, "lamina serve --nonsense").is_some());
    assert!(wrong_part(&program, "lamina nonsense").is_some());
}

/// The places that a document links to, without those elsewhere and those on its own page.
fn links(text: &str) -> Vec<&str> {
    let ends = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let places = ends.map(|(place, _)| place.split('#').next().unwrap_or_default());
    places
        .filter(|place| !place.is_empty() && !place.contains(':') && !place.contains(char::is_whitespace))
        .collect()
}

#[test]
fn what_documents_link_to_is_there() {
    let (mut checked, mut missing) = (0, Vec::new());
    for path in documents() {
        let text = std::fs::read_to_string(&path).expect("a document");
        for place in links(&text) {
            checked += 1;
            if !path.parent().expect("a folder").join(place).exists() {
                missing.push(format!("{}: {place}", path.display()));
            }
        }
    }
    assert!(checked > 100, "{checked} links");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The book (`make site`) has the pages of its contents.
#[test]
fn every_page_is_in_the_contents() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let contents = std::fs::read_to_string(root.join("docs/SUMMARY.md")).expect("contents");
    let listed = links(&contents);
    for folder in ["docs", "docs/guides"] {
        for page in std::fs::read_dir(root.join(folder)).expect("a folder") {
            let path = page.expect("a page").path();
            let name = path.strip_prefix(root.join("docs")).expect("a page of docs").display().to_string();
            if name.ends_with(".md") && name != "SUMMARY.md" {
                assert_eq!(
                    listed.iter().filter(|place| **place == name).count(),
                    1,
                    "{name} in docs/SUMMARY.md"
                );
            }
        }
    }
}
