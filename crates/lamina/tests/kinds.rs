//! The graph and the program know no kind of layer by its name: a kind declares all that they need.

use proc_macro2::{TokenStream, TokenTree};
use std::path::{Path, PathBuf};

/// Words that are the name of a kind and mean something else: the file, the word, its meaning there. Each has to be
/// there.
const OTHERS: &[(&str, &str, &str)] = &[
    ("graph/src/export.rs", "nbd", "the key of an export: the protocol"),
    ("graph/src/export.rs", "memory", "the key of an export: bytes of requests"),
    ("graph/src/local.rs", "nbd", "the key of an export"),
    ("graph/src/reach.rs", "nbd", "the key of an export"),
    ("graph/src/check.rs", "nbd", "the key of an export"),
    ("graph/src/spelling.rs", "null", "serde's word for nothing"),
    ("lamina/src/control/answer.rs", "memory", "the name of a value: bytes"),
    ("lamina/src/daemon/exports.rs", "nbd", "the protocol, as in a URI"),
    ("lamina/src/import/mod.rs", "nbd", "the protocol of an endpoint"),
    ("lamina/src/metrics/figures.rs", "file", "the hierarchy file"),
    ("lamina/src/inspect/mod.rs", "file", "what is no block device"),
];

/// The names of all kinds.
fn names() -> Vec<&'static str> {
    let names: Vec<_> =
        lamina_layers::KINDS.iter().chain([&lamina_nbd::client::KIND]).map(|kind| kind.name).collect();
    assert!(names.len() > 20, "the kinds are not where they were");
    names
}

/// The source files of a crate, without those that are only tests, and without tests at their ends.
fn sources(of: &str) -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            let is_test = path.file_stem().is_some_and(|name| name == "tests" || name == "testing");
            if is_test {
                continue;
            }
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                let code = text.split("\n#[cfg(test)]\n").next().unwrap_or_default().to_owned();
                found.push((path, code));
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut found = Vec::new();
    collect(&crates.join(of).join("src"), &mut found);
    assert!(found.len() > 20, "the sources of {of} are not where they were");
    let below = |path: PathBuf| path.strip_prefix(crates).expect("it is below").to_owned();
    found.into_iter().map(|(path, text)| (below(path), text)).collect()
}

/// The names of kinds that are string literals in a text, or stand in one in quotation marks. Attributes, and so
/// documentation, do not count.
fn named(code: &str, names: &[&'static str]) -> Vec<&'static str> {
    fn look(tokens: TokenStream, is_name: &mut dyn FnMut(&str)) {
        let mut is_attribute = false;
        for token in tokens {
            match &token {
                TokenTree::Group(group) if !is_attribute => look(group.stream(), is_name),
                TokenTree::Literal(literal) => is_name(&literal.to_string()),
                TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
            // `#[...]` and `#![...]`.
            is_attribute = match &token {
                TokenTree::Punct(punct) => punct.as_char() == '#' || is_attribute && punct.as_char() == '!',
                TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Literal(_) => false,
            };
        }
    }
    let mut found = Vec::new();
    let tokens = code.parse().expect("source text");
    look(tokens, &mut |literal| {
        for &name in names {
            let forms = [format!("\"{name}\""), format!("\\\"{name}\\\""), format!("'{name}'")];
            let is_whole = literal.trim_start_matches(['b', 'r', '#']).trim_end_matches('#') == forms[0];
            if is_whole || literal.starts_with('"') && forms[1..].iter().any(|form| literal.contains(form)) {
                found.push(name);
            }
        }
    });
    found
}

#[test]
fn no_kind_is_known_by_its_name() {
    let names = names();
    let (mut wrong, mut used) = (Vec::new(), Vec::new());
    for (path, code) in ["graph", "lamina"].into_iter().flat_map(sources) {
        for name in named(&code, &names) {
            let known = OTHERS.iter().position(|(file, word, _)| path == Path::new(file) && *word == name);
            match known {
                Some(known) => used.push(known),
                None => wrong.push(format!("{}: {name:?}", path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "a kind of layer declares what is to be known of it (`Traits`): {wrong:#?}");
    for (number, (file, word, _)) in OTHERS.iter().enumerate() {
        assert!(used.contains(&number), "{file} has no {word:?} any more");
    }
}

#[test]
fn the_check_finds_what_it_should() {
    let found = |code: &str| named(code, &["mirror", "file"]);
    assert_eq!(found("fn f(kind: &str) -> bool { kind == \"mirror\" }"), ["mirror"]);
    assert_eq!(
        found("fn f() { println!(\"type = \\\"file\\\"\\n\"); g(&[(b\"mirror\", 1)]); }"),
        ["file", "mirror"]
    );
    assert_eq!(
        found(
            "#![doc = \"file\"]\n/// \"file\"\n#[x(\"mirror\")]\nfn f() { g(\"a file\", mirror, 'f') } // \"file\""
        ),
        [""; 0]
    );
}
