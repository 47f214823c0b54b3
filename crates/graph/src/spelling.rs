//! Finding the correct spelling of a word, and messages of serde in plain English.

use lamina_block::Kind;

/// The known word nearest to `word`, near enough to have been meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let len = word.chars().count();
    let allowed = match len {
        0 => return None,
        1..=2 => 1,
        3..=5 => 2,
        6..=64 => 3,
        _ => return None,
    };
    let folded = |w: &str| w.to_lowercase().replace('_', "-");
    let word = folded(word);
    let distance = |k: &str| strsim::damerau_levenshtein(&word, &folded(k));
    // Of one or two letters one must be right: "b" is no misspelling of "a".
    let limit = |k: &str| if len <= 2 { allowed.min(k.chars().count() - 1) } else { allowed };
    let near = known.into_iter().filter(|k| !k.is_empty() && k.chars().count().abs_diff(len) <= allowed);
    near.map(|k| (distance(k), k)).filter(|(d, k)| *d <= limit(k)).min_by_key(|(d, _)| *d).map(|(_, k)| k)
}

/// ` (did you mean "san"?)`, or nothing.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|w| format!(" (did you mean \"{w}\"?)")).unwrap_or_default()
}

/// Formats of images that no type reads.
const FORMATS: [&str; 7] = ["qcow", "qcow2", "vmdk", "vhd", "vhdx", "vdi", "qed"];

/// The hint for a type that is not among `kinds`, but has this name in another system; or nothing.
pub(crate) fn elsewhere(word: &str, kinds: &[Kind]) -> Option<String> {
    let word = word.to_lowercase().replace('_', "-");
    if FORMATS.contains(&&*word) {
        let disks = member_kinds(kinds);
        return Some(format!(
            " (images of {word} are not read: `qemu-img convert -O raw` makes one for type {disks})"
        ));
    }
    let meant = kinds.iter().find(|kind| kind.traits.elsewhere.contains(&&*word))?;
    Some(format!(" (did you mean \"{}\"?)", meant.name))
}

/// The kinds whose devices can be members, quoted.
pub(crate) fn member_kinds(kinds: &[Kind]) -> String {
    one_of(kinds.iter().filter(|kind| kind.traits.member).map(|kind| kind.name), "or")
}

/// The language that a text that is no TOML seems to be in.
pub(crate) fn language(text: &str) -> Option<&'static str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.into_iter().next()?;
    let is_word = |key: &str| {
        let key = key.trim_matches('"');
        !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c))
    };
    match first.split_once(':') {
        _ if first.starts_with('{') => Some("JSON"),
        _ if first == "---" || first.starts_with("- ") || first.starts_with("%YAML") => Some("YAML"),
        Some((key, rest)) if is_word(key) && (rest.is_empty() || rest.starts_with(' ')) => Some("YAML"),
        Some(_) | None => None,
    }
}

/// `"a"`, `"a" or "b"`, `"a", "b" or "c"`.
pub(crate) fn one_of<'a>(words: impl IntoIterator<Item = &'a str>, last: &str) -> String {
    let words: Vec<String> = words.into_iter().map(|w| format!("\"{w}\"")).collect();
    match words.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((end, rest)) => format!("{} {last} {end}", rest.join(", ")),
    }
}

/// The meaning of a serde message about a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The key is not known; the text has the likely spelling, or all that there are.
    Unknown(String),
    /// This key is missing.
    Missing(String),
    /// The value of the key is wrong, with this message.
    Wrong(String),
}

/// Reads a message of a derived `Deserialize`. A message that is not recognised is passed on.
pub(crate) fn meaning(message: &str) -> Meaning {
    let message = message.trim_end_matches('.');
    if let Some(rest) = message.strip_prefix("unknown field ") {
        let words = ticked(rest);
        let Some((word, known)) = words.split_first() else { return Meaning::Wrong(message.into()) };
        return Meaning::Unknown(not_known("key", word, known));
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        let words = ticked(rest);
        let Some((word, known)) = words.split_first() else { return Meaning::Wrong(message.into()) };
        return Meaning::Wrong(format!("\"{word}\": {}", not_known("word", word, known)));
    }
    if let Some(rest) = message.strip_prefix("missing field ") {
        return Meaning::Missing(ticked(rest).first().copied().unwrap_or_default().into());
    }
    for found in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((found, expected)) = message.strip_prefix(found).and_then(|m| m.split_once(", expected "))
        {
            return Meaning::Wrong(format!("expected {}, found {}", toml_word(expected), toml_word(found)));
        }
    }
    Meaning::Wrong(message.into())
}

fn not_known(what: &str, word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("unknown {what} (did you mean \"{meant}\"?)"),
        None if known.is_empty() => format!("unknown {what}: there are none here"),
        None => format!("unknown {what}: there is {}", one_of(known.iter().copied(), "and")),
    }
}

/// The words between back ticks.
fn ticked(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// A type with its name in TOML's manual rather than serde's.
fn toml_word(word: &str) -> String {
    let quote = |w: &str| w.replace('`', "");
    match word {
        "map" => "a table".into(),
        "sequence" | "a sequence" => "a list".into(),
        "path string" => "a path".into(),
        "null" | "unit value" => "nothing".into(),
        "a boolean" | "a bool" => "true or false".into(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number".into(),
        "i8" | "i16" | "i32" | "i64" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        w if w.starts_with("struct ") => "a table".into(),
        w if w.starts_with("integer ") => quote(&w.replacen("integer", "the number", 1)),
        w if w.starts_with("floating point ") => quote(&w.replacen("floating point", "the number", 1)),
        w if w.starts_with("boolean ") => quote(w.trim_start_matches("boolean ")),
        w if w.starts_with("string ") => quote(w.trim_start_matches("string ")),
        w => w.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["linear", "stripe", "concat", "file", "a", "vhost-user"];
        for (word, meant) in [
            ("lineer", Some("linear")),
            ("LINEAR", Some("linear")),
            ("strip", Some("stripe")),
            ("flie", Some("file")),
            ("vhost_user", Some("vhost-user")),
            ("b", None),
            ("qcow2", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
        assert_eq!(nearest(&"x".repeat(1000), ["x"]), None);
    }

    #[test]
    fn names_of_other_systems_are_known() {
        let known = &lamina_layers::KINDS[..];
        for (word, meant) in
            [("raid1", "mirror"), ("RAID5", "parity"), ("raid_6", "parity"), ("luks", "crypt")]
        {
            let hint = elsewhere(word, known).unwrap_or_default();
            assert_eq!(hint, format!(" (did you mean \"{meant}\"?)"), "{word}");
        }
        let image = elsewhere("qcow2", known).expect("words");
        assert!(image.contains("qcow2 are not read") && image.contains("qemu-img convert -O raw"), "{image}");
        assert_eq!((elsewhere("mirror", known), elsewhere("stroe", known)), (None, None));
    }

    #[test]
    fn other_languages_are_recognised() {
        for (text, is) in [
            ("{ \"device\": {} }", Some("JSON")),
            ("\n# vm\n---\ndevice:\n", Some("YAML")),
            ("device:\n  san:\n    type: file\n", Some("YAML")),
            ("\"device\": 1", Some("YAML")),
            ("[device.a]\ntype = file\n", None),
            ("path = \"a:b\"\n", None),
            ("", None),
        ] {
            assert_eq!(language(text), is, "{text:?}");
        }
    }

    #[test]
    fn serde_is_put_into_plain_words() {
        for (serde, plain) in [
            ("unknown field `sixe`, expected `size` or `path`", "unknown key (did you mean \"size\"?)"),
            ("unknown field `colour`, expected one of `size`, `path`, `mode`", {
                "unknown key: there is \"size\", \"path\" and \"mode\""
            }),
            ("unknown field `x`, there are no fields", "unknown key: there are none here"),
        ] {
            assert_eq!(meaning(serde), Meaning::Unknown(plain.into()));
        }
        assert_eq!(meaning("missing field `path`"), Meaning::Missing("path".into()));
        for (serde, plain) in [
            ("invalid type: integer `5`, expected a string", "expected a string, found the number 5"),
            ("invalid type: string \"x\", expected u64", "expected a whole number, found \"x\""),
            ("invalid type: map, expected a boolean", "expected true or false, found a table"),
            ("invalid value: integer `-1`, expected u32", "expected a whole number, found the number -1"),
            ("unknown variant `rnd`, expected `random` or `read`", {
                "\"rnd\": unknown word (did you mean \"read\"?)"
            }),
            ("the moon is full", "the moon is full"),
        ] {
            assert_eq!(meaning(serde), Meaning::Wrong(plain.into()));
        }
    }
}
