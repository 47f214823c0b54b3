//! Old names are gone: `docs/names.md` says what has another name now, and in its last column what is not to
//! be found any more in the documentation, in help texts, errors, and JSON.

use proc_macro2::{TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use syn::visit::Visit;

const TABLE: &str = include_str!("../../../docs/names.md");

/// A page or a source file, and a text of it that a user reads.
type Text = (PathBuf, String);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("the folder of the project")
}

/// All files below a folder whose names end so.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

/// The strings of a source file that is not a test, and its documentation, which is help as well.
#[derive(Default)]
struct Strings(Vec<String>);

impl Strings {
    fn tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Ok(string) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.0.push(string.value());
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Strings {
    fn visit_lit_str(&mut self, string: &'ast syn::LitStr) {
        self.0.push(string.value());
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.tokens(called.tokens.clone());
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        // Old names of keys, which are still taken.
        let is_renamed = matches!(&field.member, syn::Member::Named(name) if name == "renamed");
        if !is_renamed {
            syn::visit::visit_field_value(self, field);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let is_test = module.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
        });
        if !is_test {
            syn::visit::visit_item_mod(self, module);
        }
    }
}

/// All texts that users read.
fn texts() -> Vec<Text> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a text");
        (path, text)
    };
    let mut pages = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    files(&root().join("docs"), "md", &mut pages);
    files(&root().join("docs"), "json", &mut pages);
    pages.retain(|path| !path.ends_with("docs/names.md"));
    let mut found: Vec<Text> = pages.into_iter().map(read).collect();
    assert!(found.len() > 40, "the pages are not where they were: {}", found.len());
    let mut sources = Vec::new();
    files(&root().join("crates"), "rs", &mut sources);
    let is_test = |path: &PathBuf| {
        path.components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "testing" | "benches")))
            || path.file_stem().is_some_and(|name| name == "tests" || name == "testing")
    };
    sources.retain(|path| !is_test(path));
    assert!(sources.len() > 250, "the sources are not where they were: {}", sources.len());
    for (path, text) in sources.into_iter().map(read) {
        let mut strings = Strings::default();
        strings.visit_file(&syn::parse_file(&text).expect("a source file"));
        found.extend(strings.0.into_iter().map(|string| (path.clone(), string)));
    }
    found
}

/// Where `name` stands in a text as a word, or as several.
fn find(text: &str, name: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let stands_alone =
        |at: &usize| !text[..*at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part);
    text.match_indices(name).map(|(at, _)| at).find(stands_alone)
}

/// Old names of a row of the table, and what is searched for.
fn rows(table: &str) -> Vec<(&str, Vec<&str>)> {
    let mut rows = Vec::new();
    for line in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [old, _, _, searched] = cells[..] else { panic!("a row has four cells: {line}") };
        rows.push((old, searched.split('`').skip(1).step_by(2).collect()));
    }
    rows
}

#[test]
fn no_old_name_is_left() {
    let (rows, texts) = (rows(TABLE), texts());
    assert!(rows.len() > 20, "{} rows", rows.len());
    let mut left = Vec::new();
    for name in rows.iter().flat_map(|(_, searched)| searched) {
        for (path, text) in &texts {
            if let Some(at) = find(text, name) {
                let line = text[..at].matches('\n').count();
                let line = text.lines().nth(line).unwrap_or_default().trim();
                left.push(format!(
                    "{}: {name:?} in {line:?}",
                    path.strip_prefix(root()).unwrap_or(path).display()
                ));
            }
        }
    }
    assert!(left.is_empty(), "old names, see docs/names.md:\n{}", left.join("\n"));
}

#[test]
fn each_old_name_is_searched_for() {
    let without: Vec<_> = rows(TABLE).into_iter().filter(|(_, searched)| searched.is_empty()).collect();
    assert!(without.is_empty(), "no search: {without:?}");
}

#[test]
fn the_check_finds_what_it_should() {
    let mut strings = Strings::default();
    let source = r#"
        //! The head.
        /// Help.
        fn f() { error("a", format!("b {}", ["c"])); }
        const T: Traits = Traits { renamed: &[("old", "new")], name: "d" };
        #[cfg(test)]
        mod tests { const E: &str = "e"; }
    "#;
    strings.visit_file(&syn::parse_file(source).expect("a source"));
    assert_eq!(strings.0, [" The head.", " Help.", "a", "b {}", "c", "d"]);
    assert_eq!(find("patiences, impatience, patience", "patience"), Some(23));
    assert_eq!((find("out_since", "out"), find("it is out.", "is out")), (None, Some(3)));
    assert_eq!(
        rows("| a | b | c | d |\n|---|---|---|---|\n| x | y | z | `p`, `q r` |\n"),
        [("x", vec!["p", "q r"])]
    );
}
