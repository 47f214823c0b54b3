//! State records: the state that a device keeps with its hierarchy (`docs/formats/kept.md`), each JSON with a
//! version of its own.
//!
//! Records come from disks: unknown, later or impossible ones are refused, and never guessed at.

use lamina_block::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The version of a record.
pub fn version(record: &Value) -> Option<u64> {
    record.get("version").and_then(Value::as_u64)
}

/// Reads a record of `version` about `what`. Later versions and impossible records are refused.
pub fn read<T: DeserializeOwned>(record: &Value, known: u64, what: &str) -> Result<T> {
    match version(record) {
        Some(later) if later > known => Err(Error::unsupported(format!(
            "its {what} was recorded by a later version (format {later}; known is {known})"
        ))),
        Some(version) if version == known => T::deserialize(record).map_err(|e| corrupt(what, e)),
        Some(_) | None => Err(corrupt(what, "no version that is known")),
    }
}

/// Writes a record. It has a field `version`.
pub fn write(record: &impl Serialize) -> Value {
    let value = serde_json::to_value(record).expect("numbers and names are JSON");
    debug_assert!(version(&value).is_some(), "a record without a version: {value}");
    value
}

/// The error of an impossible record about `what`.
pub fn corrupt(what: &str, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the record of its {what}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    #[serde(deny_unknown_fields)]
    struct StateRecord {
        version: u64,
        size: u64,
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = StateRecord { version: 2, size: 5 };
        assert_eq!(read::<StateRecord>(&write(&record), 2, "size").unwrap(), record);
        assert_eq!(version(&write(&record)), Some(2));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |value| {
            let e = read::<StateRecord>(&value, 2, "size").expect_err("it was taken");
            assert!(e.message().contains("its size"), "{e}");
            e.kind()
        };
        assert_eq!(refused(json!({ "version": 3, "size": 5, "more": 1 })), ErrorKind::Unsupported);
        let impossible = [
            json!(null),
            json!({ "size": 5 }),
            json!({ "version": "2", "size": 5 }),
            json!({ "version": 1, "size": 5 }),
            json!({ "version": 2, "size": -5 }),
            json!({ "version": 2, "size": 5, "more": 1 }),
        ];
        assert!(impossible.into_iter().all(|value| refused(value) == ErrorKind::Corrupt));
    }
}
