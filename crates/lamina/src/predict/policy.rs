//! The policies that are compared, and how a queue is told to follow one.

use crate::exit::Failure;
use lamina_block::{ArgType, Kind};
use serde_json::{Map, Value};

/// A policy with its parameters, as the command line has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// As given.
    pub name: String,
    /// The keys of the layer that has the queue.
    pub keys: Map<String, Value>,
}

impl Policy {
    /// Reads `NAME[:KEY=VALUE]...`; a key of a table is `TABLE.KEY`.
    pub fn read(text: &str) -> Result<Policy, Failure> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let mut keys = Map::new();
        keys.insert("policy".into(), name.into());
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                let message = format!("--policy {text}: {part:?} is no parameter: write KEY=VALUE");
                return Err(Failure::usage(message));
            };
            match key.split_once('.') {
                Some((table, key)) => drop(table_of(&mut keys, table).insert(key.into(), value_of(value))),
                None => drop(keys.insert(key.into(), value_of(value))),
            }
        }
        Ok(Policy { name: text.into(), keys })
    }
}

/// The table called so, made if there is none.
fn table_of<'a>(keys: &'a mut Map<String, Value>, table: &str) -> &'a mut Map<String, Value> {
    let value = keys.entry(table).or_insert_with(|| Value::Object(Map::new()));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("an object: made one above")
}

/// A number or a truth value if it is one, otherwise text.
fn value_of(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
        Ok(_) | Err(_) => text.into(),
    }
}

/// True for a kind whose devices can be told to follow another policy.
pub fn has_policy(kind: &Kind) -> bool {
    let set = kind.traits.verbs.iter().find(|verb| verb.name == "set");
    let is_policy = |name: &str, is: ArgType| name == "policy" && is == ArgType::Text;
    set.is_some_and(|set| set.args.iter().any(|arg| is_policy(arg.name, arg.is)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parameters_are_keys() {
        let text = "deadline:deadline.read-expire=250ms:deadline.fifo-batch=8:merge=true";
        let policy = Policy::read(text).expect("a policy");
        let table = json!({"read-expire": "250ms", "fifo-batch": 8});
        let keys = json!({"policy": "deadline", "deadline": table, "merge": true});
        assert_eq!(Value::Object(policy.keys), keys);
        assert_eq!(Policy::read("noop").expect("a policy").keys.len(), 1);
        assert!(Policy::read("cats:fast").expect_err("no value").into_message().contains("KEY=VALUE"));
    }
}
