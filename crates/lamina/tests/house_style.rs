//! What STYLE asks of every source file, as far as a test can see it.

use std::path::{Path, PathBuf};
use syn::visit::Visit;

/// A source file has one idea. This many lines without its tests are the most it takes to tell it; the margin over
/// 500 is for a file that a last function made longer.
const LINES_MAX: usize = 550;

/// The source files of all crates, without those that are only tests.
fn sources() -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                found.push((path, text));
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crates).expect("the folder of all crates").flatten() {
        collect(&entry.path().join("src"), &mut found);
    }
    assert!(found.len() > 50, "the sources are not where they were");
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|name| name == "tests" || name == "testing")
}

/// The text before the tests at the end of a file.
fn code(text: &str) -> &str {
    text.split_once("\n#[cfg(test)]\nmod ").map_or(text, |(code, _)| code)
}

#[test]
fn files_are_short() {
    for (path, text) in sources() {
        let lines = code(&text).lines().count();
        assert!(
            is_test(&path) || lines <= LINES_MAX,
            "{} has {lines} lines: split it by idea",
            path.display()
        );
    }
}

#[test]
fn files_say_what_they_are() {
    for (path, text) in sources() {
        assert!(is_test(&path) || text.starts_with("//!"), "{} has no module documentation", path.display());
    }
}

#[test]
fn nothing_is_left_to_do() {
    for (path, text) in sources() {
        for (n, line) in text.lines().enumerate() {
            let unfinished =
                ["todo!(", "unimplemented!(", "FIXME", "XXX"].iter().find(|word| line.contains(*word));
            assert!(unfinished.is_none(), "{}:{}: {line}", path.display(), n + 1);
        }
    }
}

/// Finds matches on an operation that have a `_` arm.
#[derive(Default)]
struct Wildcards {
    /// Lines do not survive parsing; the arms do.
    found: usize,
    /// Matches on the operation.
    seen: usize,
}

impl<'ast> Visit<'ast> for Wildcards {
    fn visit_expr_match(&mut self, matched: &'ast syn::ExprMatch) {
        let on_op = matched.arms.iter().any(|arm| {
            let mut names = OpNames(false);
            names.visit_pat(&arm.pat);
            names.0
        });
        let catches_all =
            |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_) | syn::Pat::Ident(_)) && arm.guard.is_none();
        self.seen += usize::from(on_op);
        if on_op && matched.arms.iter().any(catches_all) {
            self.found += 1;
        }
        syn::visit::visit_expr_match(self, matched);
    }
}

/// Whether a pattern names a variant of `Op` or `OpKind`.
struct OpNames(bool);

impl<'ast> Visit<'ast> for OpNames {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if let [.., kind, _] = &segments[..] {
            self.0 |= kind == "Op" || kind == "OpKind";
        }
        syn::visit::visit_path(self, path);
    }
}

#[test]
fn layers_decide_every_operation() {
    let mut matches = 0;
    for (path, text) in
        sources().iter().filter(|(path, _)| path.components().any(|c| c.as_os_str() == "layers"))
    {
        if is_test(path) {
            continue;
        }
        let file = syn::parse_file(code(text)).expect("a source file");
        let mut wildcards = Wildcards::default();
        wildcards.visit_file(&file);
        assert_eq!(wildcards.found, 0, "{}: a match on the operation has a `_` arm", path.display());
        matches += wildcards.seen;
    }
    assert!(matches > 20, "{matches} matches on the operation: the layers are elsewhere");
}

#[test]
fn the_check_finds_what_it_should() {
    let count = |text: &str| {
        let mut wildcards = Wildcards::default();
        wildcards.visit_file(&syn::parse_file(text).expect("a source file"));
        wildcards.found
    };
    assert_eq!(count("fn f(op: Op) { match op { Op::Flush => {} _ => {} } }"), 1);
    assert_eq!(count("fn f(op: Op) { match &op { Op::Read(b) | Op::Write(b, _) => {} other => {} } }"), 1);
    assert_eq!(count("fn f(op: Op) { match op { Op::Read(_) | Op::Write(..) => {} Op::Flush => {} } }"), 0);
    assert_eq!(count("fn f(n: u8) { match n { 0 => {} _ => {} } }"), 0);
}
