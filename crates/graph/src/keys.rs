//! The keys of one table of the file: from TOML to the neutral form that a kind reads, and back from the key at which
//! reading failed to its place in the file.

use crate::report::{Report, Subject};
use crate::source::Source;
use crate::spelling::{Meaning, meaning};
use lamina_block::{KeyError, Kind};
use serde_json::{Map, Value};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The most levels of tables and lists inside a device's table.
const NESTING_MAX: usize = 16;

/// A table `[device.NAME]` or `[export.NAME]`.
pub(crate) struct Section<'a> {
    pub subject: Subject,
    /// Where its name stands.
    pub header: Range<usize>,
    pub table: &'a DeTable<'a>,
}

impl Section<'_> {
    /// Reports that the value of a key is wrong.
    pub fn wrong(&self, report: &mut Report, key: &str, at: Range<usize>, message: &str) {
        report.error(self.subject.clone(), Some(key), Some(at), message);
    }

    /// Says what keys are called now that stand here under the names that they had.
    pub fn warn_of_old_names(&self, names: &[(&str, &str)], report: &mut Report) {
        for (before, now) in names {
            if let Some((key, _)) = self.table.get_key_value(*before) {
                let message = format!("is called {now} now; the old name is still taken");
                report.warning(self.subject.clone(), Some(before), Some(key.span()), &message);
            }
        }
    }

    /// The keys in the neutral form, without `skip`. A value without a neutral form is reported, and left out.
    pub fn neutral(&self, skip: &[&str], report: &mut Report) -> Value {
        let keys = self.table.iter().filter(|(k, _)| !skip.contains(&k.get_ref().as_ref()));
        let mut out = Map::new();
        for (key, value) in keys {
            let key = key.get_ref().as_ref();
            match neutral(value, 0) {
                Ok(v) => drop(out.insert(key.into(), v)),
                Err((at, message)) => self.wrong(report, key, at, &message),
            }
        }
        Value::Object(out)
    }

    /// Reads `keys` with `parse` and reports everything that is wrong with them. serde stops at the first mistake:
    /// the key that is wrong is taken out, and the rest read again.
    pub fn check(&self, keys: &Value, parse: impl Fn(&Value) -> Result<(), KeyError>, report: &mut Report) {
        let mut rest = keys.clone();
        while let Err(e) = parse(&rest) {
            let meaning = meaning(&e.message);
            // A key that was taken out is not missing.
            let taken_out = |name: &str| e.path.is_empty() && self.table.contains_key(name);
            if report.is_full() || matches!(&meaning, Meaning::Missing(name) if taken_out(name)) {
                return;
            }
            self.report(&e.path, &meaning, report);
            let Some(keys) = rest.as_object_mut() else { return };
            let top = top_key(&e.path, keys.keys().map(String::as_str)).map(str::to_owned);
            if top.and_then(|key| keys.remove(&key)).is_none() {
                return;
            }
        }
    }

    fn report(&self, path: &str, meaning: &Meaning, report: &mut Report) {
        let (key, value) = find(self.table, path).unwrap_or((self.header.clone(), self.header.clone()));
        let (path, at, message) = match meaning {
            Meaning::Unknown(message) => (path.to_owned(), key, message.clone()),
            Meaning::Wrong(message) => (path.to_owned(), value, message.clone()),
            Meaning::Missing(name) if path.is_empty() => (name.clone(), key, "is missing".into()),
            Meaning::Missing(name) => (format!("{path}.{name}"), value, "is missing".into()),
        };
        let path = (!path.is_empty()).then_some(path);
        report.error(self.subject.clone(), path.as_deref(), Some(at), &message);
    }
}

/// True if `path` begins with a key of `kind`, or with `over`.
fn is_key_of(kind: &Kind, path: &str) -> bool {
    let known = known(kind);
    top_key(path, known.iter().map(String::as_str).chain(["over"])).is_some()
}

/// A layer that knows which key does not fit begins its message with it (`size: ...`, `rules[2].count: ...`): the key,
/// if there is one, and the rest.
pub(crate) fn of_message<'a>(kind: &Kind, message: &'a str) -> (Option<&'a str>, &'a str) {
    match message.split_once(": ") {
        Some((path, rest)) if is_key_of(kind, path) => (Some(path), rest),
        _ => (None, message),
    }
}

/// The keys of a kind, without `type` and `over`: taken from its message about an impossible key.
pub(crate) fn known(kind: &Kind) -> Vec<String> {
    let asked = Value::Object(Map::from_iter([("\0".to_owned(), Value::Null)]));
    let Err(e) = kind.parse(&asked) else { return Vec::new() };
    e.message.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

/// Where the value of a key of a device stands in a file that is known to be good.
pub(crate) fn place(source: &Source, device: &str, path: &str) -> Option<Range<usize>> {
    let document = DeTable::parse(&source.text).ok()?;
    let table = document.get_ref().get("device")?.get_ref().get(device)?.get_ref().as_table()?;
    find(table, path).map(|(_, value)| value)
}

/// A value in the neutral form, or the part that has none and the place of that part.
fn neutral(value: &Spanned<DeValue<'_>>, depth: usize) -> Result<Value, (Range<usize>, String)> {
    let wrong = |message: &str| Err((value.span(), message.to_owned()));
    if depth > NESTING_MAX {
        return wrong(&format!("is nested more than {NESTING_MAX} levels deep"));
    }
    Ok(match value.get_ref() {
        DeValue::String(s) => Value::String(s.to_string()),
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Integer(i) => match integer(i.as_str(), i.radix()) {
            Some(n) => n,
            None => return wrong("the number is too large: whole numbers have 64 bits"),
        },
        DeValue::Float(f) => match f.as_str().parse().ok().and_then(serde_json::Number::from_f64) {
            Some(n) => Value::Number(n),
            None => return wrong("expected a finite number"),
        },
        DeValue::Datetime(_) => return wrong("a date has no meaning here; a text stands in quotes"),
        DeValue::Array(list) => {
            Value::Array(list.iter().map(|v| neutral(v, depth + 1)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => {
            let mut object = Map::new();
            for (key, value) in table {
                object.insert(key.get_ref().to_string(), neutral(value, depth + 1)?);
            }
            Value::Object(object)
        }
    })
}

/// The type of a value, for messages.
pub(crate) fn called(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(true) => "true",
        DeValue::Boolean(false) => "false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn integer(digits: &str, radix: u32) -> Option<Value> {
    let unsigned = u64::from_str_radix(digits, radix).map(Value::from);
    unsigned.or_else(|_| i64::from_str_radix(digits, radix).map(Value::from)).ok()
}

/// The key of a table with which `path` begins.
fn top_key<'a>(path: &str, keys: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let begins = |key: &&str| {
        path.strip_prefix(*key).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    keys.filter(begins).max_by_key(|key| key.len())
}

/// Where the key and the value at `path` stand; of the nearest that exists, if the path leads nowhere.
fn find(table: &DeTable<'_>, path: &str) -> Option<(Range<usize>, Range<usize>)> {
    let top = top_key(path, table.keys().map(|k| k.get_ref().as_ref()))?;
    let (key, value) = table.iter().find(|(k, _)| k.get_ref().as_ref() == top)?;
    let mut found = (key.span(), value);
    let mut rest = &path[top.len()..];
    loop {
        let deeper = match found.1.get_ref() {
            DeValue::Table(table) => rest.strip_prefix('.').and_then(|path| {
                let top = top_key(path, table.keys().map(|k| k.get_ref().as_ref()))?;
                let (key, value) = table.iter().find(|(k, _)| k.get_ref().as_ref() == top)?;
                Some((key.span(), value, &path[top.len()..]))
            }),
            DeValue::Array(list) => rest.strip_prefix('[').and_then(|path| {
                let (index, path) = path.split_once(']')?;
                let value = list.get(index.parse::<usize>().ok()?)?;
                Some((value.span(), value, path))
            }),
            _ => None,
        };
        match deeper {
            Some((key, value, path)) => (found, rest) = ((key, value), path),
            None => return Some((found.0, found.1.span())),
        }
    }
}
