//! Rules of STYLE for every source file, as far as a test can check them.

use std::path::{Path, PathBuf};
use syn::visit::Visit;

/// A source file has one idea. The limit is this many lines without tests; the margin over 500 is for a file that a
/// last function made longer.
const LINES_MAX: usize = 550;

/// The source files of all crates, those in folders of families among them, without those that are only tests.
fn sources() -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, is_source: bool, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, is_source || entry.file_name() == "src", found);
            } else if is_source && path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                found.push((path, text));
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut found = Vec::new();
    collect(crates, false, &mut found);
    assert!(found.len() > 300, "the sources are not where they were: {} files", found.len());
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

/// Columns of a line, at most, so that two files fit beside each other. Formatting keeps code to fewer, and
/// leaves comments and strings as they are.
const COLUMNS_MAX: usize = 120;

#[test]
fn lines_are_short() {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            match entry.path() {
                path if path.is_dir() && !path.ends_with("target") => collect(&path, found),
                path if path.extension().is_some_and(|e| e == "rs") => found.push(path),
                _ => {}
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the folder of the project");
    let mut found = Vec::new();
    ["crates", "fuzz"].iter().for_each(|folder| collect(&root.join(folder), &mut found));
    assert!(found.len() > 400, "the sources are not where they were: {} files", found.len());
    let mut long = Vec::new();
    for path in found {
        let text = std::fs::read_to_string(&path).expect("a source file");
        let numbered = text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        long.extend(numbered.map(|(number, _)| format!("{}:{}", path.display(), number + 1)));
    }
    assert!(long.is_empty(), "these have more than {COLUMNS_MAX} columns: {}", long.join(", "));
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

/// The tested code is the shipped code: a constant that is another one in tests is a key, or follows from a size.
#[test]
fn nothing_is_another_constant_in_tests() {
    for (path, text) in sources().iter().filter(|(path, _)| !is_test(path)) {
        let line = code(text).lines().position(|line| line.contains("cfg!(test)"));
        assert!(line.is_none(), "{}:{}: cfg!(test)", path.display(), line.unwrap_or_default() + 1);
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

/// Every static and thread-local outside of tests: its file (the end of its path), its name, and its reason. One with
/// state is an exception to "Nothing is global", and ARCHITECTURE.md names its file there.
const STATICS: &[(&str, &str, &str)] = &[
    ("block/src/account.rs", "HERE", "the request that is polled, to what it calls, which knows no request"),
    ("block/src/account.rs", "IS_HERE", "as HERE: asked for every request"),
    (
        "block/src/probe.rs",
        "TRACERS",
        "a tracer raises it from outside, at an address that the program's file tells",
    ),
    ("host/src/executor.rs", "HERE", "the reactor's: a waker knows only the thread on which it is called"),
    ("host/src/executor.rs", "READY", "the reactor's: as HERE"),
    ("host/src/executor.rs", "NEXT", "the reactor's: numbers of executors, so that a waker knows its own"),
    ("lamina/src/daemon/core_thread.rs", "HERE", "a message to a core knows only the thread that it came to"),
    ("vhost-user/src/truncation.rs", "CHUNKS", "the handler of SIGBUS is given an address, and nothing else"),
    ("vhost-user/src/truncation.rs", "LOST", "as CHUNKS"),
    ("vhost-user/src/truncation.rs", "BEFORE", "as CHUNKS: a process has one handler"),
    ("host/src/secret.rs", "LOCKED", "a process locks its memory once"),
    ("parity/galois/mod.rs", "BEST", "no state: what the processor can, asked once"),
    ("layers/kit/src/flaw.rs", "FLAW", "in tests alone"),
    ("layers/testing/src/lib.rs", "ALLOCATOR", "in tests alone: a process has one allocator"),
    ("layers/src/lib.rs", "KINDS", "no state: a table"),
    ("nbd/src/client/mod.rs", "KIND", "no state: an entry of a table"),
];

/// The names of the statics in a text, those of `thread_local!` and of macros among them.
fn statics(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for (at, keyword) in line.match_indices("static ") {
            // Not the lifetime, nor the end of another word.
            if line[..at].ends_with(|c: char| c == '\'' || is_name(c)) {
                continue;
            }
            let rest = line[at + keyword.len()..].trim_start();
            let rest = rest.strip_prefix("mut ").or(rest.strip_prefix("ref ")).unwrap_or(rest);
            let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
            if !name.is_empty() && rest[name.len()..].trim_start().starts_with(':') {
                found.push(name);
            }
        }
    }
    found
}

#[test]
fn nothing_is_global_but_what_the_architecture_names() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut found: Vec<(String, String)> = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| !is_test(path)) {
        let file = path.strip_prefix(crates).expect("a file of a crate").display().to_string();
        // A module of tests may be declared above code.
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        found.extend(statics(code).into_iter().map(|name| (file.clone(), name)));
    }
    for (file, name) in &found {
        let known = STATICS.iter().any(|(known, its, _)| file.ends_with(known) && name == its);
        assert!(known, "{file}: the static {name} is global: give the state to what uses it");
    }
    let architecture = include_str!("../../../ARCHITECTURE.md");
    let rule = architecture.split("- **Nothing is global").nth(1).and_then(|rest| rest.split("\n\n").next());
    let rule = rule.expect("ARCHITECTURE.md says that nothing is global");
    for (file, name, why) in STATICS {
        let there = found.iter().any(|(known, its)| known.ends_with(file) && name == its);
        assert!(there, "{file} has no static {name} any more");
        let has_state = !why.starts_with("no state") && !why.starts_with("in tests");
        assert!(!has_state || rule.contains(&format!("`{file}`")), "ARCHITECTURE.md does not name {file}");
    }
}

#[test]
fn the_check_finds_statics_wherever_they_are() {
    for (text, names) in [
        ("static A: AtomicU64 = AtomicU64::new(0);", &["A"][..]),
        ("    pub(crate) static mut B: u8 = 0;", &["B"]),
        ("thread_local!(static C: Cell<u8> = const { Cell::new(0) });", &["C"]),
        ("macro_rules! m { ($n:ident) => { pub static D: &[Kind] = &[]; } }", &["D"]),
        ("lazy_static! { static ref E: Mutex<u8> = Mutex::new(0); }", &["E"]),
        ("fn f(x: &'static str, y: &'static [u8]) {}", &[]),
        ("// static G: u8 = 0;", &[]),
        ("fn is_static (a: u8) {}", &[]),
    ] {
        assert_eq!(statics(text), names, "{text}");
    }
}
