//! The state records that devices keep with their hierarchy, and the evicted members: lines after its description, the
//! *trailer*.
//!
//! ```text
//! [hierarchy]
//! name = "vm1"
//! …
//! # way {"base":"/srv",…}
//! # kept table {"version":1,…}
//! # out b 7
//! ```
//!
//! The way is the graph's record: the changes that led to the hierarchy, and the change under way. `b` is evicted:
//! generation 7 of the hierarchy was its last.
//!
//! A description has no comments, so there are no other such lines; a reader of hierarchy files passes over them.

use serde_json::Value;
use std::collections::BTreeMap;

/// The beginning of the line of the way; JSON follows. This line is the first.
const WAY: &str = "# way ";
/// The beginning of the line of a state record; the device's name and JSON follow.
const RECORD: &str = "# kept ";
/// The beginning of a line about an evicted member; its name and a generation follow. These lines are the last.
const EVICTED: &str = "# out ";

/// State records by device.
pub type Records = BTreeMap<String, Value>;

/// The evicted members of a hierarchy, each with its last generation.
pub type Evicted = BTreeMap<String, u64>;

/// The lines after a description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trailer {
    /// The changes that led to the hierarchy, and the change under way.
    pub way: Option<Value>,
    /// The state records of devices.
    pub records: Records,
    /// The members that are evicted.
    pub evicted: Evicted,
}

/// A description as its file has it, and its trailer. A line that is damaged is an error; no checksum lets one through.
pub fn split(description: &str) -> Result<(&str, Trailer), String> {
    let begins = [WAY, RECORD, EVICTED].map(|mark| match description.starts_with(mark) {
        true => 0,
        false => description.find(&format!("\n{mark}")).map_or(description.len(), |at| at + 1),
    });
    let (file, lines) = description.split_at(begins.into_iter().min().unwrap_or_default());
    let (mut trailer, mut lines) = (Trailer::default(), lines.lines().peekable());
    if let Some(text) = lines.peek().and_then(|line| line.strip_prefix(WAY)) {
        let way = text.parse().map_err(|_| format!("its way cannot be read: {text:?}"))?;
        trailer.way = Some(way);
        lines.next();
    }
    for line in lines {
        let word = line.strip_prefix(RECORD).and_then(|line| line.split_once(' '));
        let word = word.and_then(|(device, text)| Some((device.to_owned(), text.parse().ok()?)));
        match (word, evicted(line)) {
            (Some((device, value)), _) if trailer.evicted.is_empty() => {
                drop(trailer.records.insert(device, value))
            }
            (_, Some((member, generation))) => drop(trailer.evicted.insert(member.into(), generation)),
            _ => return Err(format!("the state records of its devices cannot be read: {line:?}")),
        }
    }
    Ok((file, trailer))
}

/// The members that a description says are evicted. The rest of the description is not looked at.
pub fn evicted_in(description: &str) -> Evicted {
    let lines = description.lines().rev().map_while(evicted);
    lines.map(|(member, generation)| (member.to_owned(), generation)).collect()
}

fn evicted(line: &str) -> Option<(&str, u64)> {
    let (member, generation) = line.strip_prefix(EVICTED)?.split_once(' ')?;
    Some((member, generation.parse().ok()?))
}

/// A description with its trailer.
pub fn join(file: &str, trailer: &Trailer) -> String {
    let way = trailer.way.iter().map(|way| format!("{WAY}{way}\n"));
    let records = trailer.records.iter().map(|(device, value)| format!("{RECORD}{device} {value}\n"));
    let evicted =
        trailer.evicted.iter().map(|(member, generation)| format!("{EVICTED}{member} {generation}\n"));
    std::iter::once(file.to_owned()).chain(way).chain(records).chain(evicted).collect()
}

/// Lets `device` not know its child called `child`: the child counts as new from then on. Its record has another name,
/// which no device can have.
pub fn forget(records: &mut Records, device: &str, child: &str) {
    if let Some(value) = records.get_mut(device) {
        rename(value, &|name| (name == child).then(|| format!("{name} (cut short)")));
    }
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
    fn records_come_back_and_the_file_stays() {
        let records = Records::from([
            ("a.1".into(), json!({"version": 1, "text": "two\nlines # kept b 1"})),
            ("b".into(), json!([1, null])),
        ]);
        for file in ["[hierarchy]\nname = \"x\"\n", ""] {
            for evicted in [Evicted::new(), Evicted::from([("c".into(), 7), ("d".into(), u64::MAX)])] {
                let trailer =
                    Trailer { records: records.clone(), evicted: evicted.clone(), ..Trailer::default() };
                let text = join(file, &trailer);
                assert_eq!(
                    text.lines().count(),
                    file.lines().count() + 2 + evicted.len(),
                    "one line each: {text}"
                );
                assert_eq!(split(&text), Ok((file, trailer)));
                assert_eq!(evicted_in(&text), evicted);
                for way in [None, Some(json!({ "base": "/srv\n# kept b 1" }))] {
                    let alone = Trailer { way, records: Records::new(), evicted: evicted.clone() };
                    assert_eq!(split(&join(file, &alone)), Ok((file, alone)));
                }
            }
            assert_eq!(split(file), Ok((file, Trailer::default())));
        }
    }

    #[test]
    fn children_get_their_new_names_and_nothing_else_changes() {
        let words = |b: &str| {
            json!({"kind": "b", "devices": ["a", b], "layout": [{"on": [{"device": b, "start": 1}], "\
            name": "\
            b"}]})
        };
        let mut value = words("b");
        rename(&mut value, &|name| (name == "b").then(|| "slow".into()));
        assert_eq!(value, words("slow"));
    }

    #[test]
    fn a_line_that_is_no_word_is_refused() {
        for wrong in [
            "# kept",
            "# kept a",
            "# kept a {",
            "name = 1",
            "# kept a 1 2",
            "# out",
            "# out a",
            "# out a -1",
            "# way {}",
        ] {
            let e = split(&format!("x = 1\n# kept good 1\n{wrong}\n")).unwrap_err();
            assert!(e.contains("cannot be read"), "{wrong}: {e}");
        }
        assert!(split("x = 1\n# out a 1\n# kept late 1\n").is_err());
    }
}
