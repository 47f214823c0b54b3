//! The members of an etcd cluster, of which any one answers: JSON over HTTP, as their gateway takes it.
//!
//! ```text
//!      call ──▶ the member that has answered last ──✗──▶ the next one ──✗──▶ … ──▶ once more, with more time
//! ```
//!
//! A call may be done although it ends with an error, and may be done twice: callers ask for what bears that.

use super::stream::{Failed, Stream};
use crate::link::in_time;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, header};
use lamina_block::{Address, Env, Error, ErrorKind, Result};
use lamina_tls::ClientTls;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// What members have time for: each in turn, and then again. A cluster without trouble answers in milliseconds; one
/// that elects a leader needs a second or two.
const ROUNDS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// The longest answer, in bytes: the keys of some 50,000 volumes.
const ANSWER_MAX: usize = 16 << 20;
/// Characters of an error that are handed on.
const SAID_MAX: usize = 200;
/// Connections to a member that are kept while they are not used.
const IDLE_MAX: usize = 4;

/// A member.
pub struct Member {
    /// `HOST:PORT`.
    pub address: String,
    /// How the connection is encrypted, if it is.
    pub tls: Option<ClientTls>,
}

/// A connection to a member.
struct Sender {
    requests: SendRequest<Full<Bytes>>,
    failed: Failed,
}

/// All members.
pub struct Members {
    env: Rc<dyn Env>,
    members: Vec<(Member, RefCell<Vec<Sender>>)>,
    /// The one that has answered last.
    current: Cell<usize>,
}

/// Why there is no answer.
enum Failure {
    /// Another member may answer.
    Here(Error),
    /// Every member would say so.
    Everywhere(Error),
}

/// What etcd says of an error.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl Members {
    /// There is one at least.
    pub fn new(env: Rc<dyn Env>, members: Vec<Member>) -> Members {
        let members = members.into_iter().map(|member| (member, RefCell::default())).collect();
        Members { env, members, current: Cell::new(0) }
    }

    /// Asks the members for an answer. Fails with the words of all of them.
    pub async fn call<A: DeserializeOwned>(&self, path: &str, question: &impl Serialize) -> Result<A> {
        let body = serde_json::to_vec(question).expect("it has no map with other keys than strings");
        let (body, first, count) = (Bytes::from(body), self.current.get(), self.members.len());
        let mut failures = Vec::new();
        for time in ROUNDS {
            failures.clear();
            for at in (first..first + count).map(|at| at % count) {
                let (member, _) = &self.members[at];
                let answer = in_time(&*self.env, time, async { Ok(self.ask(at, path, &body).await) }).await;
                match answer.unwrap_or_else(|e| Err(Failure::Here(e))) {
                    Ok(bytes) => {
                        self.current.set(at);
                        return serde_json::from_slice(&bytes).map_err(|e| {
                            let message =
                                format!("etcd at {}: its answer makes no sense: {e}", member.address);
                            Error::new(ErrorKind::Corrupt, message)
                        });
                    }
                    Err(Failure::Here(e)) => failures.push(format!("{}: {}", member.address, e.message())),
                    Err(Failure::Everywhere(e)) => {
                        return Err(Error::new(
                            e.kind(),
                            format!("etcd at {}: {}", member.address, e.message()),
                        ));
                    }
                }
            }
        }
        Err(Error::offline(format!("no member of etcd answers: {}", failures.join("; "))))
    }

    async fn ask(&self, at: usize, path: &str, body: &Bytes) -> std::result::Result<Bytes, Failure> {
        let (member, idle) = &self.members[at];
        loop {
            // A connection that was not used for long may have ended: that says nothing about the member.
            let kept = idle.borrow_mut().pop().filter(|sender| !sender.requests.is_closed());
            let is_kept = kept.is_some();
            let sender = match kept {
                Some(sender) => sender,
                None => self.connect(member).await.map_err(Failure::Here)?,
            };
            match self.exchange(member, sender, path, body).await {
                Ok((sender, bytes)) => {
                    let mut idle = idle.borrow_mut();
                    if idle.len() < IDLE_MAX {
                        idle.push(sender);
                    }
                    return Ok(bytes);
                }
                Err(Failure::Here(_)) if is_kept => {}
                Err(e) => return Err(e),
            }
        }
    }

    async fn connect(&self, member: &Member) -> Result<Sender> {
        let conn = self.env.connect(Address::Tcp(member.address.clone())).await?;
        let conn = match &member.tls {
            None => conn,
            Some(tls) => lamina_tls::connect(&self.env, conn, tls).await?,
        };
        let failed = Failed::default();
        let stream = Stream::new(&self.env, conn, Rc::clone(&failed));
        let (requests, connection) = handshake(stream).await.map_err(|e| told(&failed, e))?;
        // It ends with the one that requests are given to, and what goes wrong is told to that.
        self.env.spawn(Box::pin(async move { drop(connection.await) }));
        Ok(Sender { requests, failed })
    }

    /// Sends a request, and receives the answer; the connection can be used again then.
    async fn exchange(
        &self,
        member: &Member,
        mut sender: Sender,
        path: &str,
        body: &Bytes,
    ) -> std::result::Result<(Sender, Bytes), Failure> {
        let failed = Rc::clone(&sender.failed);
        let here = |e: hyper::Error| Failure::Here(told(&failed, e));
        let request = Request::post(path)
            .header(header::HOST, &member.address)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))
            .map_err(|e| Failure::Everywhere(Error::invalid(e.to_string())))?;
        sender.requests.ready().await.map_err(here)?;
        let response = sender.requests.send_request(request).await.map_err(here)?;
        let (head, body) = Response::into_parts(response);
        let body = Limited::new(body, ANSWER_MAX).collect().await.map_err(|e| {
            Failure::Here(match e.downcast::<hyper::Error>() {
                Ok(e) => told(&failed, *e),
                Err(_) => Error::offline(format!("its answer is longer than {ANSWER_MAX} bytes")),
            })
        })?;
        let bytes = body.to_bytes();
        match head.status.is_success() {
            true => Ok((sender, bytes)),
            false => Err(refused(head.status.as_u16(), &bytes)),
        }
    }
}

/// An error of HTTP, or the one of the connection below it.
fn told(failed: &Failed, e: hyper::Error) -> Error {
    let other = || Error::offline(format!("it does not speak HTTP as etcd does: {e}"));
    failed.take().unwrap_or_else(other)
}

/// What an answer that is none means.
fn refused(status: u16, body: &[u8]) -> Failure {
    let said = match serde_json::from_slice(body) {
        Ok(Refusal { error }) => error.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect(),
        Err(_) => format!("its answer has the status {status}"),
    };
    match status {
        _ if said.contains("space exceeded") => {
            let message = format!(
                "{said}: its database is full of old revisions. Remove them with `etcdctl compact` and \
                 `etcdctl defrag`, then say `etcdctl alarm disarm`; with `--auto-compaction-retention=1h` etcd does \
                 not fill up again"
            );
            Failure::Everywhere(Error::new(ErrorKind::NoSpace, message))
        }
        401 | 403 => Failure::Everywhere(Error::new(ErrorKind::ReadOnly, format!("it refuses: {said}"))),
        // Such as a member that is no etcd.
        404 => Failure::Here(Error::unsupported(format!("it has no /v3/kv, as etcd 3.4 and later: {said}"))),
        _ => Failure::Here(Error::offline(said)),
    }
}
