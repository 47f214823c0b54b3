//! docs/hierarchy-errors.md is true: every file on that page gets the message that is printed there.

mod common;

use common::{build, rewriting, root};
use lamina_block::Kind;
use lamina_graph::Plan;
use std::fmt::Write;
use std::path::Path;

/// A wrong file on the page.
struct Case<'a> {
    title: &'a str,
    file: &'a str,
    message: String,
}

/// The text of the first block of `kind` in a section.
fn block<'a>(section: &'a str, kind: &str) -> &'a str {
    let (_, rest) = section.split_once(&format!("```{kind}\n")).expect("a section has two blocks");
    rest.split_once("```\n").expect("a block ends").0
}

/// The kinds that the page knows. A new kind does not change the page.
fn kinds() -> Vec<Kind> {
    let known = ["concat", "fault", "file", "linear", "memory", "nbd", "null", "stripe"];
    common::kinds().into_iter().filter(|kind| known.contains(&kind.name)).collect()
}

/// The messages about a file, from the check and from the build.
fn said_about(file: &str) -> String {
    let report = match Plan::parse(file, "disk.toml", Path::new("/srv"), &kinds()) {
        Err(report) => report,
        Ok(plan) => build(plan).expect_err("the file is wrong"),
    };
    assert!(!report.pictures().is_empty());
    report.to_string()
}

fn cases(page: &str) -> Vec<Case<'_>> {
    let sections = page.split("\n## ").skip(1);
    sections
        .map(|section| {
            let title = section.lines().next().expect("a section has a title");
            let file = block(section, "toml");
            Case { title, file, message: said_about(file) }
        })
        .collect()
}

/// The page with the messages that its files get.
fn rewritten(page: &str, cases: &[Case<'_>]) -> String {
    let (before, rest) = page.split_once("<!-- table -->\n").expect("the page has a table");
    assert!(rest.contains("<!-- end of table -->"));
    let mut out = format!("{before}<!-- table -->\n| what is wrong | what is said |\n|---|---|\n");
    for case in cases {
        let said = case.message.trim_end().replace('|', "\\|").replace('\n', "<br>");
        writeln!(out, "| {} | {said} |", case.title).unwrap();
    }
    out.push_str("<!-- end of table -->\n");
    for case in cases {
        writeln!(out, "\n## {}\n\n```toml\n{}```\n\n```text\n{}```", case.title, case.file, case.message)
            .unwrap();
    }
    out
}

/// Every line of a message begins with the file, and with a line of it unless something is missing altogether.
fn names_the_place(case: &Case<'_>) {
    for line in case.message.lines() {
        let rest = line.strip_prefix("disk.toml:").unwrap_or_else(|| panic!("{line}"));
        let number = rest.split_once(':').and_then(|(number, _)| number.parse::<usize>().ok());
        let inside = number.is_some_and(|n| (1..=case.file.lines().count()).contains(&n));
        assert!(inside || rest.starts_with(" there is no device"), "{line}");
    }
}

#[test]
fn every_message_on_the_page_is_the_message_that_is_given() {
    let path = root().join("docs/hierarchy-errors.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let cases = cases(&page);
    assert!(cases.len() >= 40, "{} files", cases.len());
    cases.iter().for_each(names_the_place);
    let now = rewritten(&page, &cases);
    if rewriting() {
        return std::fs::write(&path, now).unwrap();
    }
    for (said, printed) in now.lines().zip(page.lines()) {
        assert_eq!(said, printed, "LAMINA_REWRITE=1 writes the page anew");
    }
    assert_eq!(now.len(), page.len());
}
