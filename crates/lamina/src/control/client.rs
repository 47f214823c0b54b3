//! Asks a daemon over its control socket.

use crate::api::{Job, Problem};
use crate::class::{self, Class};
use crate::exit::Failure;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// The longest answer that is read, in bytes.
const ANSWER_MAX: usize = 256 << 20;
/// How often a request that takes long looks at what works in the background.
const GLANCE: Duration = Duration::from_secs(1);
/// How control sockets are called.
const SUFFIX: &str = ".ctl.sock";

/// One daemon's control socket. Every request is a connection of its own.
pub struct Client {
    socket: PathBuf,
    runtime: Runtime,
}

impl Client {
    /// The daemon at `socket`, or at the only control socket in the current folder.
    pub fn find(socket: Option<&Path>) -> Result<Client, Failure> {
        let socket = match socket {
            Some(socket) => socket.to_path_buf(),
            None => only_socket(Path::new("."))?,
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
        Ok(Client { socket, runtime })
    }

    /// Gets a document.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.runtime.block_on(self.request(Method::GET, path, Bytes::new()))
    }

    /// Gets a document within a time: a daemon that hangs is a failure as well.
    pub fn get_within<T: DeserializeOwned>(&self, path: &str, limit: Duration) -> Result<T, Failure> {
        let late = |_| self.failure(format_args!("no answer within {} s", limit.as_secs()));
        self.runtime.block_on(async {
            let request = self.request(Method::GET, path, Bytes::new());
            tokio::time::timeout(limit, request).await.map_err(late)?
        })
    }

    /// Sends `body` as JSON.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(Failure::failed)?;
        self.runtime.block_on(self.request(Method::POST, path, body.into()))
    }

    /// Sends `body` as JSON, and tells `watch` each second what works in the background. `None` after Ctrl-C.
    pub fn post_watched<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        mut watch: impl FnMut(Vec<Job>),
    ) -> Result<Option<T>, Failure> {
        let body = serde_json::to_vec(body).map_err(Failure::failed)?;
        self.runtime.block_on(async {
            let mut request = std::pin::pin!(self.request(Method::POST, path, body.into()));
            // Once: a signal between two of them would be lost.
            let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
            loop {
                tokio::select! {
                    answer = &mut request => return answer.map(Some),
                    _ = &mut interrupted => return Ok(None),
                    () = tokio::time::sleep(GLANCE) => {
                        // A failure to print this is not worth a message.
                        if let Ok(jobs) = self.request(Method::GET, "/v1/jobs", Bytes::new()).await {
                            watch(jobs);
                        }
                    }
                }
            }
        })
    }

    /// Writes what comes of an answer that has no end of its own, for so long, or until Ctrl-C.
    pub fn stream(&self, path: &str, time: Option<Duration>, out: &mut impl Write) -> Result<(), Failure> {
        let end = async {
            match time {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        self.runtime.block_on(async {
            let (answer, _sender) = self.send(Method::GET, path, Bytes::new()).await?;
            if !answer.status().is_success() {
                return self.read::<serde_json::Value>(answer).await.map(drop);
            }
            let (mut body, mut end) = (answer.into_body(), std::pin::pin!(end));
            let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
            loop {
                tokio::select! {
                    frame = body.frame() => match frame {
                        Some(Ok(frame)) => out.write_all(frame.data_ref().map_or(&[][..], |data| data))?,
                        Some(Err(e)) => return Err(self.failure(e)),
                        None => return Err(self.failure("the daemon has ended the answer: its subject is gone")),
                    },
                    () = &mut end => return Ok(()),
                    _ = &mut interrupted => return Ok(()),
                }
            }
        })
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Failure> {
        let (answer, _sender) = self.send(method, path, body).await?;
        self.read(answer).await
    }

    /// Sends a request over a connection of its own, which ends when the sender and the answer are dropped.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), Failure> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| {
            self.failure(format_args!("{e}; is `lamina serve` running, and is this its control socket?"))
        })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.failure(e))?;
        // The connection makes progress only while it is polled. Its errors are those of the exchange.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "lamina")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|e| self.failure(e))?;
        let answer = sender.send_request(request).await.map_err(|e| self.failure(e))?;
        Ok((answer, sender))
    }

    async fn read<T: DeserializeOwned>(&self, answer: Response<Incoming>) -> Result<T, Failure> {
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|e| self.failure(e))?.to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|e| self.failure(e));
        }
        Err(match serde_json::from_slice::<Problem>(&body) {
            Ok(Problem { kind, message }) => match Class::named(&kind) {
                Some(&class::UNCONFIRMED) => Failure::Unconfirmed(message),
                Some(class) => Failure::Answered(class, message),
                None => Failure::failed(message),
            },
            Err(_) => self.failure(status),
        })
    }

    fn failure(&self, what: impl Display) -> Failure {
        Failure::failed(format!("{}: {what}", self.socket.display()))
    }
}

/// The only control socket in a folder that a daemon answers; or the only one, if no daemon answers any.
fn only_socket(folder: &Path) -> Result<PathBuf, Failure> {
    let entries =
        std::fs::read_dir(folder).map_err(|e| Failure::failed(format!("{}: {e}", folder.display())))?;
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.to_string_lossy().ends_with(SUFFIX)).collect();
    if found.len() > 1 {
        // A killed daemon leaves its socket.
        let live = |path: &PathBuf| std::os::unix::net::UnixStream::connect(path).is_ok();
        found.sort();
        let live: Vec<PathBuf> = found.iter().filter(|path| live(path)).cloned().collect();
        if live.is_empty() {
            return Err(Failure::failed(format!(
                "{}: no daemon answers; is `lamina serve` running?",
                listed(&found)
            )));
        }
        found = live;
    }
    match found.as_slice() {
        [socket] => Ok(socket.clone()),
        [] => Err(Failure::usage(
            "there is no *.ctl.sock in this folder: name the daemon with --control SOCKET",
        )),
        several => Err(Failure::usage(format!(
            "daemons answer at {}: choose one with --control SOCKET",
            listed(several)
        ))),
    }
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_socket_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let message = |r: Result<PathBuf, Failure>| format!("{:?}", r.expect_err("not one socket"));
        assert!(message(only_socket(folder.path())).contains("no *.ctl.sock"));
        let socket = folder.path().join("a.toml.ctl.sock");
        std::fs::write(&socket, "").expect("a file");
        assert_eq!(only_socket(folder.path()).expect("one socket"), socket);
        std::fs::write(folder.path().join("b.toml.ctl.sock"), "").expect("a file");
        let nobody = message(only_socket(folder.path()));
        assert!(nobody.contains("a.toml.ctl.sock, ") && nobody.contains("no daemon answers"), "{nobody}");
        let live =
            |name: &str| std::os::unix::net::UnixListener::bind(folder.path().join(name)).expect("a socket");
        let _one = live("c.toml.ctl.sock");
        assert_eq!(
            only_socket(folder.path()).expect("one that answers"),
            folder.path().join("c.toml.ctl.sock")
        );
        let _two = live("d.toml.ctl.sock");
        let several = message(only_socket(folder.path()));
        assert!(
            several.contains("c.toml.ctl.sock, ") && several.contains("d.toml.ctl.sock: choose one"),
            "{several}"
        );
    }
}
