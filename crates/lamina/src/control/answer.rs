//! The answers of devices for people: a line for each value, and a table for a list.
//!
//! Names of the values are those of the JSON that programs get; where a name says the unit, a size or a time is written
//! as one.

use crate::events::shown;
use crate::show::{duration, table};
use lamina_block::Bytes;
use serde_json::{Map, Value};

/// An answer as text.
pub fn text(answer: &Value) -> String {
    let mut out = String::new();
    match answer {
        Value::Object(values) => lines(&mut out, values, ""),
        Value::Array(list) => listed(&mut out, list, ""),
        value => out = written("", value) + "\n",
    }
    out
}

/// Values with their names, and what has parts of its own after them.
fn lines(out: &mut String, values: &Map<String, Value>, indent: &str) {
    let (whole, parts): (Vec<_>, Vec<_>) = values.iter().partition(|(_, value)| is_word(value));
    let width = whole.iter().map(|(name, _)| named(name).chars().count()).max().unwrap_or(0);
    for (name, value) in whole {
        let (title, value) = (named(name), written(name, value));
        out.push_str(format!("{indent}{title:<width$}  {value}").trim_end());
        out.push('\n');
    }
    let deeper = format!("{indent}  ");
    for (name, value) in parts {
        out.push_str(&format!("{indent}{}:\n", named(name)));
        match value {
            Value::Object(values) => lines(out, values, &deeper),
            Value::Array(list) => listed(out, list, &deeper),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// A list: a table with a column for each name.
fn listed(out: &mut String, list: &[Value], indent: &str) {
    let mut names: Vec<&String> = Vec::new();
    for name in list.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() || !list.iter().all(Value::is_object) {
        list.iter().for_each(|value| out.push_str(&format!("{indent}{}\n", written("", value))));
        return;
    }
    let titles: Vec<String> = names.iter().map(|name| named(name).to_uppercase()).collect();
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    let row = |value: &Value| {
        names.iter().map(|name| value.get(*name).map_or("-".into(), |cell| written(name, cell))).collect()
    };
    let rows: Vec<Vec<String>> = list.iter().map(row).collect();
    table(&titles, titles.len(), &rows).lines().for_each(|line| out.push_str(&format!("{indent}{line}\n")));
}

/// True for what stands on one line.
fn is_word(value: &Value) -> bool {
    match value {
        Value::Object(values) => values.is_empty(),
        Value::Array(list) => !list.iter().any(|value| value.is_object() || value.is_array()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// A name without the unit that its values are written with.
fn named(name: &str) -> String {
    let bare = name.strip_suffix("_bytes").or_else(|| name.strip_suffix("_seconds")).unwrap_or(name);
    shown(&bare.replace('_', " "))
}

/// A value on one line.
fn written(name: &str, value: &Value) -> String {
    let (is_size, is_time) = (name == "bytes" || name == "size", name == "seconds");
    match value {
        Value::Null => "-".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(bytes), _) if is_size || name.ends_with("_bytes") => Bytes(bytes).to_string(),
            (_, Some(seconds)) if (is_time || name.ends_with("_seconds")) && seconds >= 0.0 => {
                duration(seconds.round() as u64)
            }
            _ => number.to_string(),
        },
        Value::String(text) => shown(text),
        Value::Array(list) if list.is_empty() => "-".into(),
        Value::Array(list) => list.iter().map(|value| written(name, value)).collect::<Vec<_>>().join(", "),
        Value::Object(values) if values.is_empty() => "-".into(),
        Value::Object(values) => {
            let pair = |(name, value): (&String, &Value)| format!("{} {}", named(name), written(name, value));
            values.iter().map(pair).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn snapshots_and_legs_are_tables() {
        let info = json!({
            "size": 10u64 << 30, "damaged": false, "age_seconds": 432.4, "free_bytes": 1 << 20,
            "none": null, "list": [],
            "snapshots": [
                { "name": "monday\u{1b}[2J", "size": 4096, "view": true },
                { "name": "tuesday", "size": 8192, "hosts": ["a", "b"] },
            ],
            "alerts": { "nearly_full": true, "of": { "leg": "a" } },
            "keyslots": [0, 2],
        });
        let expected = "\
age       7m12s
damaged   no
free      1MiB
keyslots  0, 2
list      -
none      -
size      10GiB
alerts:
  nearly full  yes
  of:
    leg  a
snapshots:
  NAME             SIZE  VIEW  HOSTS
  monday\\u{1b}[2J  4KiB  yes   -
  tuesday          8KiB  -     a, b
";
        assert_eq!(text(&info), expected);
        assert_eq!(text(&json!([{ "a": { "b": 1 } }])), "A\nb 1\n");
        assert_eq!(text(&json!(["x", 7])), "x\n7\n");
        assert_eq!(text(&json!("done")), "done\n");
    }
}
