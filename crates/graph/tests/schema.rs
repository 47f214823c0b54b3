//! docs/lamina.schema.json, for editors, says what the parser says: it is made by asking the parser of each key which
//! values it takes, and of each table which keys there are.
//!
//! Written anew with `LAMINA_REWRITE=1 cargo test -p lamina-graph --test schema`. The end-to-end tests hold files
//! against it.

mod common;

use common::{head, kinds, rewriting, root};
use lamina_block::Kind;
use lamina_graph::{Plan, Problem};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Tables in tables, at most.
const DEEP: usize = 4;
/// A word that is no key, and no choice.
const NONE: &str = "no-such-word-anywhere";

/// A table of the file, and what has to be in it that no question is about.
struct Table {
    header: String,
    first: String,
}

impl Table {
    /// What is wrong with the value of a key, or of a part of it.
    fn problems(&self, key: &str, value: &str) -> Vec<Problem> {
        let Table { header, first } = self;
        let device =
            if header.starts_with("device.") { "" } else { "[device.d]\ntype = \"null\"\nsize = \"1MiB\"\n" };
        let text = format!("{device}[{header}]\n{first}{key} = {value}\n");
        let report = Plan::parse(&text, "f", Path::new("/"), &kinds()).err();
        report.map_or(Vec::new(), |report| report.problems().to_vec())
    }

    /// What is wrong at a place, which is `key`, or a part of its value.
    fn said(&self, key: &str, value: &str, at: &str) -> Option<String> {
        let problems = self.problems(key, value);
        problems.into_iter().find(|problem| problem.key.as_deref() == Some(at)).map(|problem| problem.message)
    }
}

/// The words in quotes.
fn quoted(message: &str) -> Vec<String> {
    let words = message.split('"').skip(1).step_by(2).map(str::to_owned);
    words.filter(|word| word != NONE).collect()
}

/// The schema of a value: `inside` makes the value of the key from one at the place that is asked for, `at`.
fn value(of: &Table, key: &str, at: &str, inside: &dyn Fn(&str) -> String, depth: usize) -> Value {
    let takes = |value: &str| {
        let said = of.said(key, &inside(value), at);
        !said.is_some_and(|said| said.starts_with("expected ") || said.contains("did not match any variant"))
    };
    let mut schemas = Vec::new();
    let word = format!("{NONE:?}");
    let said = of.said(key, &inside(&word), at).unwrap_or_default();
    // A message lists the words that there are.
    let takes_any = takes(&word);
    let is_choice =
        |known: &String| said.contains("unknown word") || !takes_any && takes(&format!("{known:?}"));
    let words: Vec<String> = quoted(&said).into_iter().filter(is_choice).collect();
    match takes_any {
        true if words.is_empty() => schemas.push(json!({ "type": "string" })),
        false if words.is_empty() => {}
        _ => schemas.push(json!({ "enum": words })),
    }
    if takes("true") {
        schemas.push(json!({ "type": "boolean" }));
    }
    match (takes("7"), takes("7.5")) {
        (_, true) => schemas.push(json!({ "type": "number" })),
        (true, false) => schemas.push(json!({ "type": "integer" })),
        (false, false) => {}
    }
    // A table of one of several forms is named by its only key.
    let form = of.said(key, &inside(&format!("{{ {NONE} = 1 }}")), &format!("{at}.{NONE}"));
    let is_table = takes("{}") || form.is_some_and(|said| said.contains("unknown word"));
    let table = is_table.then(|| table(of, key, at, inside, depth));
    // What is read as a table is read as a list of its values, too, which nobody writes.
    let is_known = table.as_ref().is_some_and(|table| table.get("properties").is_some());
    if takes("[]") && !is_known {
        let first = format!("{at}[0]");
        let items = match depth < DEEP {
            true => value(of, key, &first, &|value| inside(&format!("[{value}]")), depth + 1),
            false => json!({}),
        };
        schemas.push(json!({ "type": "array", "items": items }));
    }
    schemas.extend(table);
    match schemas.len() {
        // One of several shapes that the parser has no word for.
        0 => json!({}),
        1 => schemas.swap_remove(0),
        _ => json!({ "anyOf": schemas }),
    }
}

/// The schema of a table in a table.
fn table(of: &Table, key: &str, at: &str, inside: &dyn Fn(&str) -> String, depth: usize) -> Value {
    let unknown = of.said(key, &inside(&format!("{{ {NONE} = 1 }}")), &format!("{at}.{NONE}"));
    let Some(unknown) = unknown.filter(|_| depth < DEEP) else { return json!({ "type": "object" }) };
    let mut properties = Map::new();
    for name in quoted(&unknown) {
        let part = format!("{at}.{name}");
        let schema = value(of, key, &part, &|value| inside(&format!("{{ {name} = {value} }}")), depth + 1);
        properties.insert(name, schema);
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// The keys of a table, each with its schema and its description; and those that are missing in an empty one.
fn keys(of: &Table, describe: impl Fn(&str) -> Option<String>) -> (Map<String, Value>, Vec<String>) {
    let mut properties = Map::new();
    for name in quoted(&of.said(NONE, "1", NONE).expect("there is no such key")) {
        let mut schema = value(of, &name, &name, &str::to_owned, 0);
        if let (Some(text), Some(schema)) = (describe(&name), schema.as_object_mut()) {
            schema.insert("description".into(), text.into());
        }
        properties.insert(name, schema);
    }
    let missing =
        of.problems(NONE, "1").into_iter().filter(|problem| problem.message.starts_with("is missing"));
    (properties, missing.filter_map(|problem| problem.key).collect())
}

/// The point about a key, on one line: "* `key` (default): what it says".
fn point(text: &str, key: &str) -> Option<String> {
    let mut lines =
        text.lines().skip_while(|line| !(line.starts_with("* `") && line.contains(&format!("`{key}`"))));
    let first = lines.next()?.trim_start_matches("* ").to_owned();
    let rest =
        lines.take_while(|line| line.starts_with("  ") && !line.trim().starts_with('*')).map(str::trim);
    Some(rest.fold(first, |whole, line| whole + " " + line))
}

fn device(kind: &Kind) -> Value {
    let of = Table { header: "device.d".into(), first: format!("type = {:?}\n", kind.name) };
    let head = head(kind.name);
    let (mut properties, missing) = keys(&of, |key| point(&head, key));
    properties.insert("type".into(), json!({ "const": kind.name, "description": kind.summary }));
    let text = chapter("Devices");
    for key in ["metadata", "leaving"] {
        // Not among the keys of its kind: what the file says of the device.
        let is_known = of.said(key, "7", key).is_some_and(|said| !said.contains("unknown key"));
        let names =
            json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
        let mut schema = if key == "metadata" { json!({ "type": "string" }) } else { names };
        if is_known && let Some(known) = schema.as_object_mut() {
            known.insert("description".into(), point(&text, key).into());
            properties.insert(key.into(), schema);
        }
    }
    let mut required = vec!["type".to_owned()];
    required.extend(missing);
    let (least, most) = (*kind.children.start(), *kind.children.end());
    if most > 0 {
        let name = json!({ "type": "string" });
        let list = json!({ "type": "array", "items": name, "minItems": least.max(1) });
        let one = if least <= 1 { json!({ "anyOf": [name, list] }) } else { list };
        properties.insert("over".into(), one);
    }
    required.sort();
    required.dedup();
    json!({
        "type": "object",
        "title": format!("a device of type {}", kind.name),
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn chapter(title: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/hierarchy.md")).expect("the page");
    let (_, rest) = page.split_once(&format!("\n## {title}")).unwrap_or_else(|| panic!("no chapter {title}"));
    rest.split_once("\n## ").map_or(rest, |(chapter, _)| chapter).to_owned()
}

fn schema() -> Value {
    let of_all = |header: &str, first: &str, text: &str| {
        let of = Table { header: header.into(), first: first.into() };
        let (properties, required) = keys(&of, |key| point(text, key));
        json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    };
    let names = |of: Value| json!({ "type": "object", "additionalProperties": of });
    let devices: Vec<Value> = kinds().iter().map(device).collect();
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A hierarchy file of Lamina",
        "type": "object",
        "properties": {
            "device": names(json!({ "oneOf": devices })),
            "export": names(of_all("export.x", "", &chapter("Exports"))),
            "hierarchy": of_all("hierarchy", "", &chapter("Persistent")),
        },
        "required": ["device"],
        "additionalProperties": false,
    })
}

#[test]
fn the_schema_says_what_the_parser_says() {
    let path = root().join("docs/lamina.schema.json");
    let now = serde_json::to_string_pretty(&schema()).expect("strings and numbers") + "\n";
    if rewriting() {
        return std::fs::write(path, now).expect("written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    for (now, committed) in now.lines().zip(committed.lines()) {
        assert_eq!(now, committed, "LAMINA_REWRITE=1 writes the schema anew");
    }
    assert_eq!(now.len(), committed.len());
}

/// Of some keys it is known here what the schema is to say.
#[test]
fn keys_have_their_types() {
    let schema = schema();
    let devices = schema
        .pointer("/properties/device/additionalProperties/oneOf")
        .and_then(Value::as_array)
        .expect("devices");
    let of = |kind: &str, key: &str| {
        let device =
            devices.iter().find(|device| device.pointer("/properties/type/const") == Some(&json!(kind)));
        device.and_then(|device| device.pointer(&format!("/properties/{key}"))).cloned().unwrap_or_default()
    };
    let is = |kind: &str, key: &str, expected: Value| {
        let mut found = of(kind, key);
        let description = found.as_object_mut().and_then(|found| found.remove("description"));
        assert_eq!(found, expected, "{kind}: {key}");
        assert!(
            description.is_some_and(|text| text.as_str().is_some_and(|text| text.len() > 20)),
            "{kind}: {key}"
        );
    };
    is("accelerate", "policy", json!({ "enum": ["write-back", "write-through", "uncached"] }));
    is("accelerate", "peers", json!({ "type": "integer" }));
    is("accelerate", "peer-timeout", json!({ "type": "string" }));
    is("file", "path", json!({ "type": "string" }));
    is("file", "size", json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] }));
    assert_eq!(of("reservation", "tls").pointer("/anyOf/1/properties/ca/type"), Some(&json!("string")));
    assert_eq!(of("fault", "rules").pointer("/items/properties/error/enum/0"), Some(&json!("media")));
    assert!(of("stripe", "over").get("anyOf").is_some() && of("mirror", "over") != of("file", "over"));
}
