//! The description of a hierarchy that its members carry.
//!
//! A description is the file in canonical form: no comments, tables and keys in the order of the alphabet, one line a
//! key. The `path` of a member is left out, because a member is found by its superblock and not by its path; so the
//! description stays the same when devices are renamed. Exports come last: they say how the hierarchy is reached, not
//! what it is.
//!
//! Two files with the same keys and values have the same description, whatever their order and layout. Values are
//! deliberately compared as text: "1GiB" and "1024MiB" differ.

use crate::local;
use lamina_block::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The treatment of the `path` of a device.
type PathOf<'a> = &'a dyn Fn(&str) -> PathKey;

enum PathKey {
    Keep,
    Drop,
    Set(String),
}

/// The description of a file, of whose devices some are members.
pub(crate) fn canonical(root: &DeTable<'_>, is_member: &dyn Fn(&str) -> bool) -> String {
    emit(root, &|device| if is_member(device) { PathKey::Drop } else { PathKey::Keep })
}

/// A hierarchy file from the description that a member carries, and the paths of the members: what `lamina assemble`
/// prints. `None` if the text is no description.
pub fn with_paths(description: &str, paths: &BTreeMap<String, String>) -> Option<String> {
    let document = DeTable::parse(description).ok()?;
    Some(emit(document.get_ref(), &|device| {
        paths.get(device).map_or(PathKey::Keep, |path| PathKey::Set(path.clone()))
    }))
}

/// The file `text` with the places absolute that only a host needs, such as keys and sockets: they began at `base`.
/// `None` if the text is no file, or the folder of its paths is not known.
pub fn with_places(text: &str, base: Option<&Path>, kinds: &[Kind]) -> Option<String> {
    let mut root = DeTable::parse(text).ok()?.into_inner();
    let base = base?;
    local::tables(&mut root, "device").into_values().for_each(|d| local::root_keys(d, kinds, base));
    local::tables(&mut root, "export").into_values().for_each(|e| local::root_export(e, base));
    Some(written(&root))
}

/// Keys of devices whose values are other lists of names than in the file.
type Lists = BTreeMap<String, Vec<(&'static str, Vec<String>)>>;

/// The file `new`, in which devices have other children, with the devices of `old` that are `needed` for it.
pub(crate) fn union(old: &str, new: &str, lists: &Lists, needed: &BTreeSet<String>) -> Option<String> {
    let (old, new) = (DeTable::parse(old).ok()?, DeTable::parse(new).ok()?);
    let mut out = emit_with(new.get_ref(), &|_| PathKey::Keep, lists);
    let has = |name: &str| {
        let devices = new.get_ref().get("device").and_then(|devices| devices.get_ref().as_table());
        devices.is_some_and(|devices| devices.contains_key(name))
    };
    let DeValue::Table(devices) = old.get_ref().get("device")?.get_ref() else { return None };
    for (name, value) in sorted(devices) {
        if let (true, false, DeValue::Table(table)) = (needed.contains(name), has(name), value) {
            let _ = writeln!(out, "\n[device.{}]", key(name));
            keys(&mut out, table, PathKey::Keep, &[]);
        }
    }
    Some(out)
}

/// What devices stand on, in the form in which the file has it.
pub(crate) fn children_of<'a>(
    text: &str,
    devices: impl Iterator<Item = &'a String>,
) -> BTreeMap<String, serde_json::Value> {
    let Ok(document) = DeTable::parse(text) else { return BTreeMap::new() };
    let over = |name: &String| {
        let named = document.get_ref().get("device")?.get_ref().get(name.as_str())?.get_ref().get("over")?;
        let text = |value: &DeValue<'_>| value.as_str().map(serde_json::Value::from);
        let over = match named.get_ref() {
            DeValue::Array(list) => list.iter().filter_map(|value| text(value.get_ref())).collect(),
            one => text(one)?,
        };
        Some((name.clone(), over))
    };
    devices.filter_map(over).collect()
}

/// The names of the members that a description has, sorted: the number of a member is its place here.
pub fn members_of(description: &str, kinds: &[Kind]) -> Vec<String> {
    let Ok(document) = DeTable::parse(description) else { return Vec::new() };
    let Some(DeValue::Table(devices)) = document.get_ref().get("device").map(|v| v.get_ref()) else {
        return Vec::new();
    };
    let is_member = |value: &DeValue<'_>| {
        let DeValue::Table(keys) = value else { return false };
        let kind = keys.get("type").and_then(|kind| kind.get_ref().as_str());
        let read_only = matches!(keys.get("read-only").map(|v| v.get_ref()), Some(DeValue::Boolean(true)));
        kinds.iter().any(|known| known.traits.member && Some(known.name) == kind) && !read_only
    };
    let mut names: Vec<String> = devices
        .iter()
        .filter(|(_, value)| is_member(value.get_ref()))
        .map(|(name, _)| name.get_ref().to_string())
        .collect();
    names.sort();
    names
}

/// The first line in which two descriptions differ, as (table, line here, line there).
pub(crate) fn difference(ours: &str, theirs: &str) -> Option<String> {
    let lines = |text: &str| -> Vec<(String, String)> {
        let mut table = String::new();
        let mut found = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if line.starts_with('[') {
                table = line.to_owned();
            }
            found.push((table.clone(), line.to_owned()));
        }
        found
    };
    let (ours, theirs) = (lines(ours), lines(theirs));
    let only = |one: &[(String, String)], other: &[(String, String)]| {
        one.iter().find(|line| !other.contains(line)).cloned()
    };
    let say = |(table, line): (String, String)| if table == line { line } else { format!("{table} {line}") };
    match (only(&ours, &theirs), only(&theirs, &ours)) {
        (Some(ours), Some(theirs)) => Some(format!("here {}, there {}", say(ours), say(theirs))),
        (Some(ours), None) => Some(format!("only here {}", say(ours))),
        (None, Some(theirs)) => Some(format!("only there {}", say(theirs))),
        (None, None) => None,
    }
}

/// The text of a file that was read and changed.
pub(crate) fn written(root: &DeTable<'_>) -> String {
    emit(root, &|_| PathKey::Keep)
}

fn emit(root: &DeTable<'_>, path: PathOf<'_>) -> String {
    emit_with(root, path, &BTreeMap::new())
}

/// As [`emit`], with other lists of names for some devices.
fn emit_with(root: &DeTable<'_>, path: PathOf<'_>, lists: &Lists) -> String {
    let mut out = String::new();
    if let Some(DeValue::Table(table)) = root.get("hierarchy").map(|v| v.get_ref()) {
        out.push_str("[hierarchy]\n");
        keys(&mut out, table, PathKey::Keep, &[]);
    }
    for kind in ["device", "export"] {
        let Some(DeValue::Table(named)) = root.get(kind).map(|v| v.get_ref()) else { continue };
        for (name, value) in sorted(named) {
            let DeValue::Table(table) = value else { continue };
            let _ = writeln!(out, "\n[{kind}.{}]", key(name));
            match kind {
                "device" => keys(&mut out, table, path(name), lists.get(name).map_or(&[], |lists| lists)),
                _ => keys(&mut out, table, PathKey::Keep, &[]),
            }
        }
    }
    out
}

fn sorted<'a>(table: &'a DeTable<'a>) -> BTreeMap<&'a str, &'a DeValue<'a>> {
    table.iter().map(|(key, value)| (key.get_ref().as_ref(), value.get_ref())).collect()
}

fn keys(out: &mut String, table: &DeTable<'_>, path: PathKey, lists: &[(&str, Vec<String>)]) {
    let set = if let PathKey::Set(path) = &path { Some(string(path)) } else { None };
    let mut lines: BTreeMap<&str, String> = sorted(table).into_iter().map(|(k, v)| (k, value(v))).collect();
    match path {
        PathKey::Keep => {}
        PathKey::Drop => drop(lines.remove("path")),
        PathKey::Set(_) => drop(set.map(|path| lines.insert("path", path))),
    }
    for (key, list) in lists {
        let names: Vec<String> = list.iter().map(|name| string(name)).collect();
        lines.insert(key, format!("[{}]", names.join(", ")));
    }
    for (name, value) in lines {
        let _ = writeln!(out, "{} = {value}", key(name));
    }
}

/// A value on one line. The depth of values is bounded by the check of the file they are from, and by the size of a
/// description.
fn value(of: &DeValue<'_>) -> String {
    match of {
        DeValue::String(text) => string(text),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix());
            parsed.map_or_else(|_| number.as_str().to_owned(), |n| n.to_string())
        }
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(so) => so.to_string(),
        DeValue::Datetime(at) => at.to_string(),
        DeValue::Array(list) => {
            let list: Vec<String> = list.iter().map(|v| value(v.get_ref())).collect();
            format!("[{}]", list.join(", "))
        }
        DeValue::Table(table) if table.is_empty() => "{}".into(),
        DeValue::Table(table) => {
            let pairs: Vec<String> =
                sorted(table).into_iter().map(|(k, v)| format!("{} = {}", key(k), value(v))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
    }
}

fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { string(name) }
}

/// A basic string of TOML.
fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => drop(write!(out, "\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::KINDS;

    const FILE: &str = r#"
# a comment
[export.vm1]
device = "vm1"
nbd = "unix:a.sock"

[device.vm1]
type = "pair"   # another
over = [ "b",
  "a.1" ]
rules = [{ range = ["1KiB", 0x10], count = 1_000 }]

[hierarchy]
name = 'vm1'

[device."a.1"]
path = "/x\ty.img"
type = "store"

[device.b]
type = "store"
path = "b.img"
"#;

    const SAME: &str = r#"[hierarchy]
name = "vm1"

[device."a.1"]
path = "/x\u0009y.img"
type = "store"

[device.b]
type = "store"

[device.vm1]
over = ["b", "a.1"]
rules = [{ count = 1000, range = ["1KiB", 16] }]
type = "pair"

[export.vm1]
device = "vm1"
nbd = "unix:a.sock"
"#;

    fn described(text: &str) -> String {
        let document = DeTable::parse(text).expect("a file");
        canonical(document.get_ref(), &|device| device == "b")
    }

    #[test]
    fn a_file_has_one_form_which_is_its_own() {
        assert_eq!(described(FILE), SAME);
        assert_eq!(described(SAME), SAME);
    }

    #[test]
    fn paths_are_put_back() {
        let paths = BTreeMap::from([("b".to_owned(), "/dev/\"x\"".to_owned())]);
        let file = with_paths(SAME, &paths).expect("a description");
        assert!(file.contains("[device.b]\npath = \"/dev/\\\"x\\\"\"\ntype = \"store\"\n"), "{file}");
        assert_eq!(described(&file), SAME);
    }

    #[test]
    fn what_differs_is_named() {
        assert_eq!(difference(SAME, SAME), None);
        let other = SAME.replace("count = 1000", "count = 7").replace("unix:a", "unix:b");
        let said = difference(SAME, &other).expect("they differ");
        assert!(said.starts_with("here [device.vm1] rules = [{ count = 1000"), "{said}");
        let (less, _) = SAME.split_once("\n[export.").expect("exports are the last");
        assert!(difference(SAME, less).expect("more here").starts_with("only here [export.vm1]"));
    }

    #[test]
    fn members_are_known_from_a_description() {
        let text = "[device.z]\ntype=\"store\"\n[device.a]\ntype=\"store\"\n[device.r]\ntype=\"store\"\n\
                    read-only=true\n[device.top]\ntype=\"slice\"\nover=\"a\"\n";
        assert_eq!(members_of(text, KINDS), ["a", "z"]);
        assert!(members_of("no description", KINDS).is_empty());
    }
}
