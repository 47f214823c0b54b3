//! Members of an etcd that does the little that a vault asks for, and errs when it is told to.

use super::VOLUME;
use base64::prelude::{BASE64_STANDARD, Engine};
use lamina_block::{Address, Buf, Conn, Env, Result};
use lamina_cluster::vault::{EtcdVault, Member, Record, Vault};
use lamina_sim::SimEnv;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How a member answers.
#[derive(Clone)]
pub enum Way {
    /// As etcd does.
    Right,
    /// Not at all.
    Never,
    /// With a status and a body.
    Status(u16, String),
    /// With these bytes, and the end of the connection.
    Bytes(Vec<u8>),
    /// With a body that does not end.
    Endless,
}

/// An etcd.
pub struct FalseEtcd {
    env: Rc<SimEnv>,
    /// Values, and the revision in which they were put.
    keys: RefCell<BTreeMap<String, (Vec<u8>, u64)>>,
    revision: Cell<u64>,
    /// What the record of the volume has been, by version.
    records: RefCell<BTreeMap<u64, Record>>,
    ways: RefCell<Vec<Way>>,
    /// One of so many requests is lost, or its answer, or is done later; 0 for none.
    pub one_in: Cell<u32>,
    /// Transactions are compared.
    pub compares: Cell<bool>,
}

fn address(member: usize) -> String {
    format!("etcd-{member}:2379")
}

fn text(value: &Value) -> String {
    String::from_utf8(BASE64_STANDARD.decode(value.as_str().expect("a string")).expect("base64"))
        .expect("text")
}

impl FalseEtcd {
    /// With three members.
    pub fn start(env: &Rc<SimEnv>) -> Rc<FalseEtcd> {
        let etcd = Rc::new(FalseEtcd {
            env: Rc::clone(env),
            keys: RefCell::default(),
            // A cluster in use.
            revision: Cell::new(10_000_000_000_000_000),
            records: RefCell::default(),
            ways: vec![Way::Right; 3].into(),
            one_in: Cell::new(0),
            compares: Cell::new(true),
        });
        for member in 0..3 {
            let listener = env.listen(Address::Tcp(address(member))).expect("it listens");
            let (etcd, env) = (Rc::clone(&etcd), Rc::clone(env));
            env.clone().spawn(Box::pin(async move {
                while let Ok(conn) = listener.accept().await {
                    let etcd = Rc::clone(&etcd);
                    env.spawn(Box::pin(async move { drop(etcd.serve(member, &conn).await) }));
                }
            }));
        }
        etcd
    }

    /// A client of its own.
    pub fn vault(&self) -> Rc<dyn Vault> {
        let members = (0..3).map(|member| Member { address: address(member), tls: None }).collect();
        Rc::new(EtcdVault::new(Rc::clone(&self.env) as _, members, "lamina".into()))
    }

    pub fn behaves(&self, member: usize, way: Way) {
        self.ways.borrow_mut()[member] = way;
    }

    /// What the record of the volume was in a version.
    pub fn record(&self, version: u64) -> Option<Record> {
        self.records.borrow().get(&version).cloned()
    }

    pub fn put(&self, key: &str, value: &[u8]) {
        self.revision.set(self.revision.get() + 1);
        self.keys.borrow_mut().insert(key.into(), (value.into(), self.revision.get()));
        if let (true, Ok(record)) = (key.ends_with(&VOLUME.to_string()), Record::decode(value)) {
            self.records.borrow_mut().insert(record.version, record);
        }
    }

    async fn serve(self: &Rc<Self>, member: usize, conn: &Rc<dyn Conn>) -> Result<()> {
        let mut got = Vec::new();
        loop {
            let Some((path, body)) = self.receive(conn, &mut got).await? else { return Ok(()) };
            let way = self.ways.borrow()[member].clone();
            let answer = match way {
                Way::Right => match self.faulty(&path, &body).await {
                    Some(answer) => answer,
                    None => {
                        conn.abort();
                        return Ok(());
                    }
                },
                Way::Never => return std::future::pending().await,
                Way::Status(status, body) => {
                    format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                        .into_bytes()
                }
                Way::Bytes(bytes) => {
                    conn.send(Buf::from_vec(bytes)).await?;
                    conn.shutdown();
                    return Ok(());
                }
                Way::Endless => {
                    conn.send(Buf::from_vec(b"HTTP/1.1 200 OK\r\n\r\n".to_vec())).await?;
                    loop {
                        conn.send(Buf::from_vec(vec![b' '; 1 << 20])).await?;
                    }
                }
            };
            conn.send(Buf::from_vec(answer)).await?;
        }
    }

    /// A request: its path and its body. `None` at the end.
    async fn receive(&self, conn: &Rc<dyn Conn>, got: &mut Vec<u8>) -> Result<Option<(String, Value)>> {
        loop {
            let head = got.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
            if let Some(end) = head {
                let head = String::from_utf8_lossy(&got[..end]).to_ascii_lowercase();
                let length =
                    head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
                let length: usize = length.expect("a length");
                if got.len() >= end + length {
                    let body = serde_json::from_slice(&got[end..end + length]).expect("JSON");
                    let path = head.split(' ').nth(1).expect("a path").to_owned();
                    got.drain(..end + length);
                    return Ok(Some((path, body)));
                }
            }
            let buf = Buf::zeroed(4096);
            match conn.recv(buf.clone()).await? {
                0 => return Ok(None),
                count => got.extend(buf.slice(0..count).to_vec()),
            }
        }
    }

    /// The bytes of an answer; `None` if it is lost.
    async fn faulty(self: &Rc<Self>, path: &str, body: &Value) -> Option<Vec<u8>> {
        let one_in = u64::from(self.one_in.get());
        if one_in > 0 && self.env.random().is_multiple_of(one_in) {
            match self.env.random() % 4 {
                0 => {}
                1 => drop(self.answer(path, body)),
                2 => {
                    let (me, path, body) = (Rc::clone(self), path.to_owned(), body.clone());
                    let later = self.env.sleep(Duration::from_nanos(self.env.random() % 3_000_000_000));
                    self.env.spawn(Box::pin(async move {
                        later.await;
                        drop(me.answer(&path, &body));
                    }));
                }
                _ => {
                    self.env.sleep(Duration::from_nanos(self.env.random() % 3_000_000_000)).await;
                    return Some(self.bytes(&self.answer(path, body)));
                }
            }
            return None;
        }
        Some(self.bytes(&self.answer(path, body)))
    }

    fn bytes(&self, answer: &Value) -> Vec<u8> {
        let json = answer.to_string();
        let (head, body) = match self.env.random() % 2 {
            0 => (format!("content-length: {}", json.len()), json),
            // As Go's server sends what is longer than its buffer.
            _ => {
                let (one, two) = json.split_at(json.len() / 2);
                let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
                ("transfer-encoding: chunked".into(), format!("{}{}0\r\n\r\n", chunk(one), chunk(two)))
            }
        };
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{head}\r\n\r\n{body}").into_bytes()
    }

    fn answer(&self, path: &str, body: &Value) -> Value {
        match path {
            "/v3/kv/range" => {
                let (from, to) = (text(&body["key"]), body.get("range_end").map(text));
                let is_wanted = |key: &str| match &to {
                    None => key == from,
                    Some(to) => (&from[..]..&to[..]).contains(&key),
                };
                let keys = self.keys.borrow();
                let kvs: Vec<Value> = keys
                    .iter()
                    .filter(|(key, _)| is_wanted(key))
                    .map(|(key, (value, revision))| {
                        let key = BASE64_STANDARD.encode(key);
                        match body.get("keys_only") {
                            Some(_) => json!({"key": key, "mod_revision": revision.to_string()}),
                            None => json!({
                                "key": key,
                                "mod_revision": revision.to_string(),
                                "value": BASE64_STANDARD.encode(value),
                            }),
                        }
                    })
                    .collect();
                match kvs.len() {
                    // What is empty is left out.
                    0 => json!({"header": {}}),
                    count => json!({"header": {}, "kvs": kvs, "count": count.to_string()}),
                }
            }
            "/v3/kv/put" => {
                self.put(&text(&body["key"]), text(&body["value"]).as_bytes());
                json!({"header": {}})
            }
            "/v3/kv/txn" => {
                let (compare, put) = (&body["compare"][0], &body["success"][0]["request_put"]);
                assert_eq!((&compare["target"], &compare["result"]), (&json!("MOD"), &json!("EQUAL")));
                let key = text(&compare["key"]);
                let revision = self.keys.borrow().get(&key).map_or(0, |(_, revision)| *revision);
                if self.compares.get() && compare["mod_revision"] != json!(revision.to_string()) {
                    return json!({"header": {}, "responses": []});
                }
                self.put(&text(&put["key"]), text(&put["value"]).as_bytes());
                json!({"header": {}, "succeeded": true, "responses": [{"response_put": {}}]})
            }
            path => panic!("{path} was asked for"),
        }
    }
}
