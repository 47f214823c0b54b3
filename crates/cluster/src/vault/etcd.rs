//! A vault of keys in etcd 3.4 or later, whose members may die while most of them live.
//!
//! ```text
//!      PREFIX/record/6f1c…        the newest record of volume 6f1c…
//!             beat/a.6f1c…        the last beat of host a for it
//! ```
//!
//! Invariants:
//! * A record is put by a transaction, if its key was not changed since it was read (`mod_revision`): that is the
//!   comparison. etcd's transactions are linearizable, and so are its reads that do not ask for less; both are of what
//!   most of the members have durably.
//! * A transaction is repeated until it is answered: done twice, it finds its own record there.
//! * No lock and no lease of etcd is used: these "can not guarantee mutual exclusion" (Jepsen, *etcd 3.4.3*).

mod members;
mod stream;

pub use members::Member;

use super::{Beat, Outcome, RECORD_MAX, Record, Vault};
use base64::prelude::{BASE64_STANDARD, Engine};
use lamina_block::{Env, Error, ErrorKind, Pending, Result};
use members::Members;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;
use std::rc::Rc;
use uuid::Uuid;

/// A vault in etcd.
pub struct EtcdVault {
    shared: Rc<Shared>,
}

struct Shared {
    members: Members,
    /// What all keys begin with.
    prefix: String,
}

/// Bytes, as etcd's gateway has them.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Bytes, D::Error> {
        let text = String::deserialize(d)?;
        BASE64_STANDARD.decode(text).map(Bytes).map_err(D::Error::custom)
    }
}

/// The answer to a question for keys.
#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    key: Bytes,
    /// In decimal digits: JSON's numbers are too short.
    mod_revision: String,
    #[serde(default)]
    value: Bytes,
}

/// The answer to a transaction.
#[derive(Deserialize)]
struct Transaction {
    #[serde(default)]
    succeeded: bool,
}

/// The answer to a change, of which nothing is needed.
#[derive(Deserialize)]
struct Put {}

impl EtcdVault {
    /// The vault whose keys begin with `prefix`. There is a member at least.
    pub fn new(env: Rc<dyn Env>, members: Vec<Member>, prefix: String) -> EtcdVault {
        EtcdVault { shared: Rc::new(Shared { members: Members::new(env, members), prefix }) }
    }
}

impl Shared {
    fn record(&self, volume: Uuid) -> String {
        format!("{}/record/{volume}", self.prefix)
    }

    fn beat(&self, host: &str) -> String {
        format!("{}/beat/{host}", self.prefix)
    }

    /// What there is at a key.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        let question = json!({"key": Bytes(key.into())});
        let found: Range = self.members.call("/v3/kv/range", &question).await?;
        Ok(found.kvs.into_iter().find(|kv| kv.key.0 == key.as_bytes()))
    }

    /// The ends of the keys that begin with `PREFIX/kind/`.
    async fn names(&self, kind: &str) -> Result<Vec<String>> {
        let begin = format!("{}/{kind}/", self.prefix);
        // The next string that does not begin so: "0" follows "/".
        let end = format!("{}/{kind}0", self.prefix);
        let question =
            json!({"key": Bytes(begin.clone().into()), "range_end": Bytes(end.into()), "keys_only": true});
        let found: Range = self.members.call("/v3/kv/range", &question).await?;
        let name = |kv: KeyValue| Some(String::from_utf8(kv.key.0).ok()?.strip_prefix(&begin)?.to_owned());
        Ok(found.kvs.into_iter().filter_map(name).collect())
    }

    /// The newest record, and the revision in which it was put.
    async fn newest(&self, volume: Uuid) -> Result<Option<(Record, String)>> {
        let key = self.record(volume);
        let told = |e: Error| {
            let message = format!(
                "vault: etcd's key {key}: {}. Which host has the volume is unknown: if a newer Lamina or a backup \
                 of etcd has the key whole, use that; never remove it while a host serves the volume",
                e.message()
            );
            Error::new(e.kind(), message)
        };
        let Some(found) = self.get(&key).await? else { return Ok(None) };
        let record = match found.value.0.len() {
            0..=RECORD_MAX => Record::decode(&found.value.0).map_err(told)?,
            _ => {
                return Err(told(Error::new(
                    ErrorKind::Corrupt,
                    format!("it is longer than {RECORD_MAX} bytes"),
                )));
            }
        };
        match record.volume == volume {
            true => Ok(Some((record, found.mod_revision))),
            false => Err(told(Error::new(ErrorKind::Corrupt, "it is the record of another volume"))),
        }
    }

    async fn append(&self, record: Record) -> Result<Outcome> {
        record.check()?;
        let revision = match self.newest(record.volume).await? {
            Some((newest, _)) if newest == record => return Ok(Outcome::Done),
            Some((newest, _)) if newest.version + 1 != record.version => {
                return Ok(Outcome::Lost(Box::new(newest)));
            }
            None if record.version != 1 => return Err(self.gone(&record)),
            Some((_, revision)) => revision,
            // A key that there is not.
            None => "0".into(),
        };
        let key = || Bytes(self.record(record.volume).into());
        let question = json!({
            "compare": [{"key": key(), "target": "MOD", "result": "EQUAL", "mod_revision": revision}],
            "success": [{"request_put": {"key": key(), "value": Bytes(record.encode())}}],
        });
        let put: Transaction = self.members.call("/v3/kv/txn", &question).await?;
        if put.succeeded {
            return Ok(Outcome::Done);
        }
        // Another record is there, or this one: the answer of an earlier attempt was lost.
        match self.newest(record.volume).await? {
            Some((newest, _)) if newest == record => Ok(Outcome::Done),
            Some((newest, _)) => Ok(Outcome::Lost(Box::new(newest))),
            None => Err(self.gone(&record)),
        }
    }

    fn gone(&self, record: &Record) -> Error {
        Error::offline(format!("vault: etcd's key {} is gone", self.record(record.volume)))
    }
}

impl Vault for EtcdVault {
    fn volumes(&self) -> Pending<Vec<Uuid>> {
        let shared = Rc::clone(&self.shared);
        Box::pin(async move {
            let names = shared.names("record").await?;
            Ok(names.iter().filter_map(|name| Uuid::parse_str(name).ok()).collect())
        })
    }

    fn read(&self, volume: Uuid) -> Pending<Option<Record>> {
        let shared = Rc::clone(&self.shared);
        Box::pin(async move { Ok(shared.newest(volume).await?.map(|(record, _)| record)) })
    }

    fn append(&self, record: &Record) -> Pending<Outcome> {
        let (shared, record) = (Rc::clone(&self.shared), record.clone());
        Box::pin(async move { shared.append(record).await })
    }

    fn heard(&self, host: &str) -> Pending<Option<Beat>> {
        let (shared, key) = (Rc::clone(&self.shared), self.shared.beat(host));
        // One that is damaged is followed by another one, or by silence.
        Box::pin(async move {
            Ok(shared.get(&key).await?.and_then(|kv| serde_json::from_slice(&kv.value.0).ok()))
        })
    }

    fn beat(&self, host: &str, beat: Beat) -> Pending {
        let (shared, key) = (Rc::clone(&self.shared), self.shared.beat(host));
        Box::pin(async move {
            let json = serde_json::to_vec(&beat).expect("it has no map with other keys than strings");
            let question = json!({"key": Bytes(key.into()), "value": Bytes(json)});
            let Put {} = shared.members.call("/v3/kv/put", &question).await?;
            Ok(())
        })
    }

    fn beating(&self) -> Pending<Vec<String>> {
        let shared = Rc::clone(&self.shared);
        Box::pin(async move { shared.names("beat").await })
    }
}
