//! docs/hierarchy.md is true and complete: it has every kind with every key, every key of an export, and its files
//! are good.

mod common;

use common::{head, kinds, rewriting, root};
use lamina_graph::Plan;
use serde_json::json;
use std::path::Path;

/// The kinds' part of the page.
fn chapters() -> String {
    let mut out = String::new();
    for kind in kinds() {
        let head = head(kind.name);
        let text = head
            .strip_prefix(&format!("`{}`: ", kind.name))
            .unwrap_or_else(|| panic!("the head of {} begins with its name", kind.name));
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let mut letters = first.chars();
        let first: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
        out += &format!("\n### {}\n\n{first}\n{}\n", kind.name, rest.trim_end());
    }
    out
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/hierarchy.md")).unwrap()
}

#[test]
fn the_page_has_every_kind_as_its_source_says_it() {
    let page = page();
    let (before, after) = page.split_once("<!-- kinds -->\n").expect("the page has a part for the kinds");
    let now = chapters();
    if rewriting() {
        return std::fs::write(root().join("docs/hierarchy.md"), format!("{before}<!-- kinds -->\n{now}"))
            .unwrap();
    }
    for (source, printed) in now.lines().zip(after.lines()) {
        assert_eq!(source, printed, "LAMINA_REWRITE=1 writes the page anew");
    }
    assert_eq!(now.len(), after.len());
}

/// The keys that a message about an unknown one lists.
fn listed(message: &str, quote: char) -> Vec<String> {
    let words = message.split(quote).skip(1).step_by(2).map(str::to_owned);
    words.filter(|word| word != "no-such-key").collect()
}

#[test]
fn every_key_of_every_kind_is_explained_at_the_head_of_its_source() {
    for kind in kinds() {
        let unknown = kind.parse(&json!({ "no-such-key": 1 })).err();
        let message = unknown.unwrap_or_else(|| panic!("{} takes any key", kind.name)).message;
        for key in listed(&message, '`') {
            let head = head(kind.name);
            let mut points = head.lines().filter(|line| line.starts_with("* `"));
            let explained = points.any(|line| line.contains(&format!("`{key}`")));
            assert!(explained, "{}: {key} is not explained", kind.name);
            assert!(!key.contains('_'), "{}: {key}: keys are written with dashes", kind.name);
        }
    }
}

#[test]
fn every_command_of_every_kind_is_explained_at_the_head_of_its_source() {
    for kind in kinds() {
        for verb in kind.traits.verbs {
            let head = head(kind.name);
            // `resize`, `resize SIZE` or `lamina ctl DEVICE resize`.
            let written = ["`$`", "`$ ", " $`"].map(|form| form.replace('$', verb.name));
            assert!(written.iter().any(|form| head.contains(form)), "{}: {}", kind.name, verb.name);
        }
    }
}

#[test]
fn every_key_of_an_export_is_explained() {
    let (_, chapter) = kinds_and_exports();
    for keys in ["no-such-key = 1", "nbd = 'unix:x'\ntls = { no-such-key = 1 }"] {
        let text = format!("[device.d]\ntype='null'\nsize='1MiB'\n[export.x]\n{keys}\n");
        let report = Plan::parse(&text, "f", Path::new("/"), &kinds()).err().expect("there is no such key");
        let problem = report.problems().iter().find(|p| p.message.starts_with("unknown key")).unwrap();
        let keys = listed(&problem.message, '"');
        assert!(keys.len() >= 3, "{problem:?}");
        for key in keys {
            assert!(chapter.contains(&format!("* `{key}`")), "{key} is not explained");
        }
    }
}

fn kinds_and_exports() -> (String, String) {
    let page = page();
    let (_, rest) = page.split_once("\n## Exports").expect("the page has a chapter about exports");
    let (exports, kinds) = rest.split_once("\n## ").expect("and more after it");
    (kinds.into(), exports.into())
}

#[test]
fn the_files_on_the_page_are_good() {
    let page = page();
    let files: Vec<&str> =
        page.split("```toml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    assert!(files.len() >= 2);
    for file in files {
        let plan = Plan::parse(file, "page", Path::new("/srv"), &kinds());
        let plan = plan.unwrap_or_else(|report| panic!("{report}\n{file}"));
        assert!(plan.warnings().is_empty(), "{}", plan.warnings());
    }
}
