//! The answers of devices for people: a line for each value, and a table for a list.
//!
//! Names of the values are those of the JSON that programs get; where a name says the unit, a size or a time is written
//! as one: `size`, `memory`, a name with `bytes`, `..._seconds`, or `..._unix`, which is a time of day.

use crate::events::{shown, time};
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
    let is_unit = |word: &&str| ["bytes", "seconds", "unix"].contains(word) && !is_rate(name);
    let words: Vec<&str> = name.split('_').filter(|word| !is_unit(word)).collect();
    shown(&if words.is_empty() { name.into() } else { words.join(" ") })
}

/// True if a value with this name is a number of something in a time.
fn is_rate(name: &str) -> bool {
    name.contains("_per_")
}

/// True if a value with this name is a number of bytes.
fn is_size(name: &str) -> bool {
    let is_counted = name.split('_').any(|word| word == "bytes") && !is_rate(name);
    is_counted || matches!(name, "size" | "memory" | "extent" | "region" | "unit")
}

/// A value on one line.
fn written(name: &str, value: &Value) -> String {
    let is_time = name == "seconds" || name.ends_with("_seconds");
    match value {
        Value::Null => "-".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(bytes), _) if is_size(name) => Bytes(bytes).to_string(),
            (Some(seconds), _) if name.ends_with("_unix") => time(seconds.saturating_mul(1000)),
            (_, Some(seconds)) if is_time && seconds >= 0.0 => duration(seconds.round() as u64),
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
            "none": null, "list": [], "map_bytes_free": 8192, "bytes_per_second": 1.5, "taken_unix": 1_795_900_123,
            "snapshots": [
                { "name": "monday\u{1b}[2J", "size": 4096, "view": true },
                { "name": "tuesday", "size": 8192, "hosts": ["a", "b"] },
            ],
            "alerts": { "nearly_full": true, "of": { "leg": "a" } },
            "keyslots": [0, 2],
        });
        let expected = "\
age               7m12s
bytes per second  1.5
damaged           no
free              1MiB
keyslots          0, 2
list              -
map free          8KiB
none              -
size              10GiB
taken             2026-11-28T21:08:43Z
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
