//! The words that devices keep with their hierarchy: lines behind its description.
//!
//! ```text
//! [hierarchy]
//! name = "vm1"
//! …
//! # kept table {"version":1,…}
//! ```
//!
//! A description has no comments, so these lines are nobody else's; whoever reads it as a file passes over them.

use serde_json::Value;
use std::collections::BTreeMap;

/// What every such line begins with; the device's name and JSON follow.
const KEPT: &str = "# kept ";

/// Words by device.
pub type Words = BTreeMap<String, Value>;

/// A description without the words, and the words. A line that is damaged is an error; no checksum lets one through.
pub fn split(description: &str) -> Result<(&str, Words), String> {
    let begin = match description.starts_with(KEPT) {
        true => 0,
        false => description.find(&format!("\n{KEPT}")).map_or(description.len(), |at| at + 1),
    };
    let (file, lines) = description.split_at(begin);
    let mut words = Words::new();
    for line in lines.lines() {
        let parsed = line.strip_prefix(KEPT).and_then(|line| line.split_once(' '));
        let Some((device, value)) = parsed.and_then(|(device, text)| Some((device, text.parse().ok()?)))
        else {
            return Err(format!("what its devices keep cannot be read: {line:?}"));
        };
        words.insert(device.into(), value);
    }
    Ok((file, words))
}

/// A description with words.
pub fn join(file: &str, words: &Words) -> String {
    let lines = words.iter().map(|(device, value)| format!("{KEPT}{device} {value}\n"));
    std::iter::once(file.to_owned()).chain(lines).collect()
}

/// Gives children other names, wherever [`lamina_block::Keep`] says that their names stand.
pub fn rename(value: &mut Value, now: &dyn Fn(&str) -> Option<String>) {
    let replace = |name: &mut Value| {
        if let Some(new) = name.as_str().and_then(now) {
            *name = Value::String(new);
        }
    };
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("device", value) => replace(value),
                    ("devices", Value::Array(names)) => names.iter_mut().for_each(replace),
                    (_, value) => rename(value, now),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, now)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_come_back_and_the_file_stays() {
        let words = Words::from([
            ("a.1".into(), json!({"version": 1, "text": "two\nlines # kept b 1"})),
            ("b".into(), json!([1, null])),
        ]);
        for file in ["[hierarchy]\nname = \"x\"\n", ""] {
            let text = join(file, &words);
            assert_eq!(text.lines().count(), file.lines().count() + 2, "one line each: {text}");
            assert_eq!(split(&text), Ok((file, words.clone())));
            assert_eq!(split(file), Ok((file, Words::new())));
        }
    }

    #[test]
    fn children_get_their_new_names_and_nothing_else_changes() {
        let words = |b: &str| json!({"kind": "b", "devices": ["a", b], "layout": [{"on": [{"device": b, "start": 1}], "name": "b"}]});
        let mut value = words("b");
        rename(&mut value, &|name| (name == "b").then(|| "slow".into()));
        assert_eq!(value, words("slow"));
    }

    #[test]
    fn a_line_that_is_no_word_is_refused() {
        for wrong in ["# kept", "# kept a", "# kept a {", "name = 1", "# kept a 1 2"] {
            let e = split(&format!("x = 1\n# kept good 1\n{wrong}\n")).unwrap_err();
            assert!(e.contains("cannot be read"), "{wrong}: {e}");
        }
    }
}
