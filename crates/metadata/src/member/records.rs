//! The state records that devices keep with their hierarchy, and the members that are evicted: lines behind its
//! description.
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
//! The way is what the graph keeps: how the hierarchy became what it is, and what it is about to become. `b` is evicted: 7 is
//! the last generation of the hierarchy that it was part of.
//!
//! A description has no comments, so these lines are nobody else's; whoever reads it as a file passes over them.

use serde_json::Value;
use std::collections::BTreeMap;

/// What the line of the way begins with; JSON follows. It is the first.
const WAY: &str = "# way ";
/// What the line of a state record begins with; the device's name and JSON follow.
const KEPT: &str = "# kept ";
/// What a line about a member that is evicted begins with; its name and a generation follow. These lines are the last.
const OUT: &str = "# out ";

/// State records by device.
pub type Records = BTreeMap<String, Value>;

/// The members that a hierarchy goes on without: for each, the last generation that it was part of.
pub type Evicted = BTreeMap<String, u64>;

/// What stands behind a description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// How the hierarchy became what it is, and what it is about to become.
    pub way: Option<Value>,
    /// What the devices keep.
    pub records: Records,
    /// The members that are evicted.
    pub evicted: Evicted,
}

/// A description as its file has it, and what stands behind. A line that is damaged is an error; no checksum lets one
/// through.
pub fn split(description: &str) -> Result<(&str, Kept), String> {
    let begins = [WAY, KEPT, OUT].map(|mark| match description.starts_with(mark) {
        true => 0,
        false => description.find(&format!("\n{mark}")).map_or(description.len(), |at| at + 1),
    });
    let (file, lines) = description.split_at(begins.into_iter().min().unwrap_or_default());
    let (mut kept, mut lines) = (Kept::default(), lines.lines().peekable());
    if let Some(text) = lines.peek().and_then(|line| line.strip_prefix(WAY)) {
        let way = text.parse().map_err(|_| format!("its way cannot be read: {text:?}"))?;
        kept.way = Some(way);
        lines.next();
    }
    for line in lines {
        let word = line.strip_prefix(KEPT).and_then(|line| line.split_once(' '));
        let word = word.and_then(|(device, text)| Some((device.to_owned(), text.parse().ok()?)));
        match (word, evicted(line)) {
            (Some((device, value)), _) if kept.evicted.is_empty() => drop(kept.records.insert(device, value)),
            (_, Some((member, generation))) => drop(kept.evicted.insert(member.into(), generation)),
            _ => return Err(format!("what its devices keep cannot be read: {line:?}")),
        }
    }
    Ok((file, kept))
}

/// The members that a description says are evicted. Nothing else of it is looked at.
pub fn evicted_in(description: &str) -> Evicted {
    let lines = description.lines().rev().map_while(evicted);
    lines.map(|(member, generation)| (member.to_owned(), generation)).collect()
}

fn evicted(line: &str) -> Option<(&str, u64)> {
    let (member, generation) = line.strip_prefix(OUT)?.split_once(' ')?;
    Some((member, generation.parse().ok()?))
}

/// A description with what stands behind it.
pub fn join(file: &str, kept: &Kept) -> String {
    let way = kept.way.iter().map(|way| format!("{WAY}{way}\n"));
    let records = kept.records.iter().map(|(device, value)| format!("{KEPT}{device} {value}\n"));
    let evicted = kept.evicted.iter().map(|(member, generation)| format!("{OUT}{member} {generation}\n"));
    std::iter::once(file.to_owned()).chain(way).chain(records).chain(evicted).collect()
}

/// Lets `device` not know its child called `child`: what it has from then on is new to it. Its record has another name, which
/// no device can have.
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
                let kept = Kept { records: records.clone(), evicted: evicted.clone(), ..Kept::default() };
                let text = join(file, &kept);
                assert_eq!(
                    text.lines().count(),
                    file.lines().count() + 2 + evicted.len(),
                    "one line each: {text}"
                );
                assert_eq!(split(&text), Ok((file, kept)));
                assert_eq!(evicted_in(&text), evicted);
                for way in [None, Some(json!({ "base": "/srv\n# kept b 1" }))] {
                    let alone = Kept { way, records: Records::new(), evicted: evicted.clone() };
                    assert_eq!(split(&join(file, &alone)), Ok((file, alone)));
                }
            }
            assert_eq!(split(file), Ok((file, Kept::default())));
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
