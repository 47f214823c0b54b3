//! The key `peer-domain`: the fault domains in which peers are to be.

use lamina_block::{Error, Result};
use lamina_cluster::choice::Domains;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// What the key says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PeerDomain {
    #[default]
    Any,
    Same,
    Other,
    Counts(Counts),
}

/// So many peers in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    #[serde(default)]
    same: usize,
    #[serde(default)]
    other: usize,
}

impl<'de> Deserialize<'de> for PeerDomain {
    /// By hand, so that messages name the fault inside, rather than that nothing fits.
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<PeerDomain, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = PeerDomain;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"any\", \"same\", \"other\", or a table with the counts same and other")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> std::result::Result<PeerDomain, E> {
                match s {
                    "any" => Ok(PeerDomain::Any),
                    "same" => Ok(PeerDomain::Same),
                    "other" => Ok(PeerDomain::Other),
                    _ => Err(E::invalid_value(de::Unexpected::Str(s), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<PeerDomain, A::Error> {
                Counts::deserialize(MapAccessDeserializer::new(map)).map(PeerDomain::Counts)
            }
        }
        d.deserialize_any(Visitor)
    }
}

impl PeerDomain {
    /// Whether it fits so many peers.
    pub fn check(self, peers: usize) -> Result<()> {
        let sum = match self {
            PeerDomain::Any => return Ok(()),
            PeerDomain::Same | PeerDomain::Other => None,
            PeerDomain::Counts(Counts { same, other }) => Some(same.saturating_add(other)),
        };
        match (peers, sum) {
            (0, _) => Err(Error::invalid("peer-domain: is for `peers`, of which this device has none")),
            (_, Some(sum)) if sum != peers => {
                Err(Error::invalid(format!("peer-domain: names {sum} peers, and `peers` is {peers}")))
            }
            (_, _) => Ok(()),
        }
    }

    /// For so many peers.
    pub fn of(self, peers: usize) -> Domains {
        match self {
            PeerDomain::Any => Domains::Any,
            PeerDomain::Same => Domains::Counts { same: peers, other: 0 },
            PeerDomain::Other => Domains::Counts { same: 0, other: peers },
            PeerDomain::Counts(Counts { same, other }) => Domains::Counts { same, other },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(value: Value) -> std::result::Result<PeerDomain, String> {
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    #[test]
    fn words_and_counts() {
        let counts = |same, other| Domains::Counts { same, other };
        for (value, peers, domains) in [
            (json!("any"), 2, Ok(Domains::Any)),
            (json!("other"), 2, Ok(counts(0, 2))),
            (json!("same"), 1, Ok(counts(1, 0))),
            (json!({ "same": 1, "other": 2 }), 3, Ok(counts(1, 2))),
            (json!({ "other": 1 }), 2, Err("names 1 peers, and `peers` is 2")),
            (json!("same"), 0, Err("is for `peers`")),
        ] {
            let key = parsed(value.clone()).expect("it is understood");
            let found = key.check(peers).map(|()| key.of(peers));
            match domains {
                Ok(domains) => assert_eq!(found, Ok(domains), "{value}"),
                Err(says) => assert!(found.is_err_and(|e| e.message().contains(says)), "{value}"),
            }
        }
        for (value, says) in [
            (json!("else"), "\"any\", \"same\", \"other\""),
            (json!({ "rack": 1 }), "unknown field `rack`"),
            (json!(1), "a table with the counts"),
        ] {
            assert!(parsed(value.clone()).is_err_and(|e| e.contains(says)), "{value}");
        }
    }
}
