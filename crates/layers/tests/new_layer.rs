//! `tools/new-layer` adds one file and one line, and the layer that it makes passes the gauntlet.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A copy of what layers are made of, gone at the end.
struct Copy(PathBuf);

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a layer is built and tested from.
const PARTS: [&str; 13] = [
    "Cargo.toml",
    "Cargo.lock",
    "rustfmt.toml",
    "tools/new-layer",
    "crates/block",
    "crates/cluster",
    "crates/drive",
    "crates/layers",
    "crates/metadata",
    "crates/sim",
    "crates/tls",
    "crates/workload",
    "docs/formats",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Copy {
    /// A copy in a folder of this name. The files keep their times, so that cargo builds only what has changed since
    /// the last run.
    fn new(name: &str) -> Copy {
        let copy = Copy(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = fs::remove_dir_all(&copy.0);
        for part in PARTS {
            for path in files(&repository().join(part)).into_keys() {
                // A part that is a file has nothing below it; joining that would make it a folder.
                let below =
                    if path.as_os_str().is_empty() { part.into() } else { Path::new(part).join(path) };
                let (from, to) = (repository().join(&below), copy.0.join(&below));
                fs::create_dir_all(to.parent().expect("a file is in a folder"))
                    .expect("a folder can be made");
                fs::copy(&from, &to).expect("a file can be copied");
                let time = fs::metadata(&from).and_then(|meta| meta.modified()).expect("a file has a time");
                let to = fs::File::options().write(true).open(&to).expect("a copy can be opened");
                to.set_modified(time).expect("a time can be set");
            }
        }
        copy
    }

    fn new_layer(&self, name: &str, family: &str) -> Output {
        let script = fs::read(self.0.join("tools/new-layer")).expect("the script is there");
        assert!(script.starts_with(b"#!/usr/bin/env bash"));
        Command::new("bash")
            .arg(self.0.join("tools/new-layer"))
            .args([name, family])
            .output()
            .expect("bash is installed")
    }
}

/// Every file below `root` (or `root` itself, under an empty path) with its bytes.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder can be read");
            todo.extend(entries.map(|entry| entry.expect("an entry can be read").path()));
        } else {
            let bytes = fs::read(&path).expect("a file can be read");
            found.insert(path.strip_prefix(root).expect("it is below").to_owned(), bytes);
        }
    }
    found
}

/// The lines that `after` has and `before` has not; panics if `before` has any that are gone.
fn added_lines(before: &[u8], after: &[u8]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it is text");
    let (before, after) = (text(before), text(after));
    let mut old = before.lines().peekable();
    let added = after.lines().filter(|line| old.next_if_eq(line).is_none()).map(str::to_owned).collect();
    assert_eq!(old.next(), None, "a line is gone or has changed");
    added
}

/// Begins a layer of a family: one file, and one line.
fn begins(copy: &Copy, family: &str) {
    let before = files(&copy.0);
    let made = copy.new_layer("my-cache2", family);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let after = files(&copy.0);
    let new: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
    let [file, list] = ["my_cache2.rs", "lib.rs"].map(|name| format!("crates/layers/{family}/src/{name}"));
    assert_eq!(new, [Path::new(&file)]);
    let changed: Vec<_> = before.keys().filter(|path| after.get(*path) != before.get(*path)).collect();
    assert_eq!(changed, [Path::new(&list)]);
    assert_eq!(added_lines(&before[changed[0]], &after[changed[0]]), ["    my_cache2,"]);
}

#[test]
fn a_family_gets_one_file_and_one_line() {
    begins(&Copy::new("new-layer-family"), "cache");
}

/// Of the family that is compiled soonest.
#[test]
fn one_file_and_one_line_pass_the_gauntlet() {
    let copy = Copy::new("new-layer");
    begins(&copy, "lab");
    // A target folder of its own, kept: the same crates at another place would otherwise replace those of this run.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new-layer-target");
    let tested = Command::new(env!("CARGO"))
        .args(["test", "--offline", "-p", "lamina-lab", "--lib", "my_cache2"])
        .current_dir(&copy.0)
        .env("CARGO_TARGET_DIR", target)
        .env("LAMINA_SEEDS", "3")
        .output()
        .expect("cargo can be run");
    let (out, err) = (String::from_utf8_lossy(&tested.stdout), String::from_utf8_lossy(&tested.stderr));
    assert!(tested.status.success(), "{out}{err}");
    let checks = [
        "model_check",
        "crash_at_every_write",
        "faults",
        "change_under_load",
        "contract_edges",
        "deaths_in_a_row",
        "healing_reaches_below",
    ];
    for check in checks {
        assert!(out.contains(&format!("test gauntlet::my_cache2::{check} ... ok")), "{out}");
    }
    // What it declares is there; `crates/lamina/src/kinds.rs` says what is made of that.
    assert!(out.contains("test figures::my_cache2 ... ok"), "{out}");
    assert!(!err.contains("warning: unused"), "{err}");
}

#[test]
fn wrong_names_change_nothing() {
    let copy = Copy::new("new-layer-names");
    let before = files(&copy.0);
    for name in [
        "",
        "Cache",
        "my_cache",
        "-cache",
        "my--cache",
        "9lives",
        "../x",
        "a b",
        "match",
        "stripe",
        "record",
        "node",
    ] {
        let made = copy.new_layer(name, "lab");
        assert_eq!(made.status.code(), Some(2), "{name:?} was taken");
        assert!(String::from_utf8_lossy(&made.stderr).starts_with("new-layer: "), "{name:?}");
    }
    let made = copy.new_layer("my-cache2", "attic");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(said.contains("no family attic") && said.contains("cache"), "{said}");
    assert!(files(&copy.0) == before);
}
