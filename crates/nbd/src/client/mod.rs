//! `nbd`: a sink that is an NBD client. An export of nbdkit, qemu-nbd or another Lamina as a store.
//!
//! ```text
//!                    ┌─▶ Link: connection, unanswered commands ─▶ ┐
//!      request ──▶ cut to what the server takes                    server
//!                    └─▶ Link: a second connection, if allowed ─▶ ┘
//! ```
//!
//! Keys:
//! * `address`: "unix:PATH", "tcp:HOST:PORT", or a URI ("nbd://HOST:PORT/EXPORT", "nbd+unix:///EXPORT?socket=PATH",
//!   and "nbds" for TLS).
//! * `export` (the server's default): the export's name, unless the URI has it.
//! * `connections` (1): at most 16. More than one only if the server promises that they see the same data.
//! * `reconnect` ("30s"): how long requests wait for a server that went away. They are sent again when it is back,
//!   and fail when it is not.
//! * `timeout` ("60s"): a server that says nothing for so long although requests wait has gone away. "0s": never.
//! * `unflushed` ("kept"): the fate of writes that the server has acknowledged, and not flushed, when the connection is
//!   lost. "kept" is true of a server that writes to its kernel and is only restarted. With "lost" the first flush
//!   after a reconnect fails if there were such writes, so that they are not believed durable.
//! * `tls`: a table with `ca`, and `certificate` and `key` if the server wants to know the client, PEM files all;
//!   `name`, if the server's certificate is for another name than the host in the address.
//!
//! Promises: a request is answered within `reconnect` plus `timeout` of the server's last word; within three seconds of
//! it while the daemon ends, so that a silent server does not keep it. A request that was under way when the connection
//! was lost is sent again, and may be done twice. A Lamina that serves ends the lost connection before it lets the new
//! one go on, so that no old write lands on a newer one, whatever was lost. Other servers cannot be asked to: after a
//! kill of the server that is no danger, but if only the network was lost, or the server stalled, requests that it had
//! received may still be done, on top of later writes. An export that comes back smaller, read-only or less able is
//! refused.
//!
//! Not done here: following a resize by itself. Nothing in the protocol announces one (its draft of a RESIZE extension
//! is a command to resize); `lamina ctl DEVICE refresh` asks the server, and takes the answer over for all devices
//! above. A sink that finds a larger export when it connects again reports that in the log, and shows the size as
//! `size_there`. NBD does not define the data of a discarded range; servers in use give old data or zeroes, as the
//! contract wants.

pub mod flight;
pub mod handshake;
mod ledger;
mod link;
pub mod replies;
mod shape;
mod shared;
mod target;

pub use ledger::Promise;
pub use target::{Target, uri};

use crate::wire::{cmd, cmd_flag};
use flight::{Command, Reply};
use handshake::Purpose;
use lamina_block::{
    Build, Config, Durability, Env, Error, Extent, ExtentState, FarEnd, Geometry, Growth, Interval, Io, Kind,
    Layer, Made, Manage, Op, Outside, Passthrough, Pending, Result, Step, Traits, Verb, Zero,
};
use lamina_tls::ClientTls;
use ledger::Ledger;
use link::{Common, Link, OpenChanges};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};
use shape::{Able, Shape};
use shared::Shared;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// The kind "nbd".
pub static KIND: Kind = Kind::of::<Keys>();

/// The most connections of one client.
const CONNECTIONS_MAX: u32 = 16;
/// The longest range of a command without data, in bytes: a multiple of every block, far from the protocol's 32 bits.
const RANGE_MAX: u64 = 1 << 30;

/// How a client behaves.
#[derive(Clone)]
pub struct Options {
    /// See the module; at least 1, at most 16.
    pub connections: u32,
    /// See the module.
    pub reconnect: Duration,
    /// See the module.
    pub timeout: Duration,
    /// See the module.
    pub unflushed: Promise,
    /// Encryption.
    pub tls: Option<ClientTls>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 1,
            reconnect: Duration::from_secs(30),
            timeout: Duration::from_secs(60),
            unflushed: Promise::Kept,
            tls: None,
        }
    }
}

/// Certificates in the hierarchy file.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TlsKeys {
    ca: PathBuf,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    name: Option<String>,
}

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(deserialize_with = "target")]
    address: Target,
    export: Option<String>,
    #[serde(default = "one")]
    connections: u32,
    reconnect: Option<Interval>,
    timeout: Option<Interval>,
    #[serde(default)]
    unflushed: Promise,
    tls: Option<TlsKeys>,
}

fn one() -> u32 {
    1
}

fn target<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Target, D::Error> {
    String::deserialize(d)?.parse().map_err(|e: Error| de::Error::custom(e.message()))
}

impl Config for Keys {
    const KIND: &'static str = "nbd";
    const SUMMARY: &'static str = "an export of an NBD server";
    const CHILDREN: RangeInclusive<usize> = 0..=0;
    const TRAITS: Traits = Traits {
        outside: &[
            Outside::server("address"),
            Outside::local("tls.ca"),
            Outside::local("tls.certificate"),
            Outside::local("tls.key"),
        ],
        growth: Growth::Outside("refresh"),
        verbs: &[Verb::new("refresh", "asks the server for the size, and takes it over")],
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let mut target = self.address.based(&with.base);
            target.export = match (target.export, self.export) {
                (Some(uri), Some(_)) if !uri.is_empty() => {
                    return Err(Error::invalid(
                        "the address has the export's name already: remove the key `export`",
                    ));
                }
                (uri, key) => key.or(uri),
            };
            let defaults = Options::default();
            let options = Options {
                connections: self.connections,
                reconnect: self.reconnect.map_or(defaults.reconnect, |span| span.0),
                timeout: self.timeout.map_or(defaults.timeout, |span| span.0),
                unflushed: self.unflushed,
                tls: self.tls.map(|keys| keys.load(&*with.env, &with.base, &target)).transpose()?,
            };
            Ok(Client::connect(&with.env, target, options).await? as Made)
        })
    }
}

impl TlsKeys {
    fn load(self, env: &dyn Env, base: &Path, target: &Target) -> Result<ClientTls> {
        let own = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((base.join(certificate), base.join(key))),
            (None, None) => None,
            _ => return Err(Error::invalid("tls: `certificate` and `key` come together")),
        };
        let own = own.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        if let Some((_, key)) = own {
            env.guard_key(key);
        }
        ClientTls::load(&base.join(self.ca), own, self.name.as_deref().unwrap_or(target.host()))
    }
}

/// The certificates that a URI names.
fn tls_of(env: &dyn Env, target: &Target) -> Result<ClientTls> {
    let Some(folder) = &target.certificates else {
        return Err(Error::invalid(
            "TLS wants certificates: add ?tls-certificates=FOLDER to the URI, or the tls key",
        ));
    };
    let (certificate, key) = (folder.join("client-cert.pem"), folder.join("client-key.pem"));
    let own = certificate.exists().then_some((certificate.as_path(), key.as_path()));
    env.guard_key(&key);
    ClientTls::load(&folder.join("ca-cert.pem"), own, target.host())
}

/// The layer: an export of an NBD server.
pub struct Client {
    common: Rc<Common>,
    links: Vec<Rc<Link>>,
    far_end: Rc<FarEnd>,
    turn: Cell<usize>,
    geometry: Cell<Geometry>,
    able: Able,
}

impl Client {
    /// Connects to an export. A server that is not there now is an error; requests wait for a server that goes away
    /// later.
    pub async fn connect(env: &Rc<dyn Env>, target: Target, options: Options) -> Result<Rc<Client>> {
        if !(1..=CONNECTIONS_MAX).contains(&options.connections) {
            return Err(Error::invalid(format!("connections: from 1 to {CONNECTIONS_MAX}")));
        }
        let tls = match options.tls {
            None if target.tls => Some(tls_of(&**env, &target)?),
            tls => tls,
        };
        let common = Rc::new(Common {
            env: Rc::clone(env),
            address: target.address,
            export: target.export.unwrap_or_default(),
            tls,
            reconnect: options.reconnect,
            timeout: options.timeout,
            shape: Shape::new(),
            ledger: Ledger::new(options.unflushed),
            open_changes: OpenChanges::default(),
            ending: Cell::new(false),
            given_up: RefCell::default(),
            key: Cell::new(None),
        });
        let session = common.session();
        let first = common.go(session).await?;
        let able = Able::new(&first.facts)?;
        common.shape.set(able);
        let mut links = vec![Link::start(&common, session, first)];
        while able.multi && links.len() < options.connections as usize {
            let session = common.session();
            let next = common.go(session).await?;
            links.push(Link::start(&common, session, next));
        }
        let shared = Shared { common: Rc::clone(&common), links: links.clone() };
        let far_end = Rc::new(FarEnd(Rc::new(shared)));
        let geometry = Cell::new(able.geometry);
        Ok(Rc::new(Client { geometry, common, links, far_end, turn: Cell::new(0), able }))
    }

    /// Queues a command on the connection whose turn it is.
    fn send(&self, command: Command) -> Result<Reply> {
        let turn = self.turn.get();
        self.turn.set((turn + 1) % self.links.len());
        self.links[turn].submit(command)
    }

    fn flush(self: Rc<Self>) -> Step {
        if !self.able.flush {
            // The protocol has it that such a server has nothing to flush.
            return Step::Done(Ok(()));
        }
        let flushing = self.common.ledger.begin();
        let flush = Command { command: cmd::FLUSH, flags: 0, offset: 0, len: 0, data: Default::default() };
        // A device that is closed owes nothing to a server that was told nothing that others rely on.
        let is_needless = |common: &Common| common.ending.get() && common.ledger.owes_nothing();
        match self.send(flush) {
            Err(_) if is_needless(&self.common) => Step::Done(Ok(())),
            Err(e) => e.into(),
            Ok(reply) => Step::control(async move {
                match reply.await {
                    Err(_) if is_needless(&self.common) => Ok(()),
                    Err(e) => Err(e),
                    Ok(_) => self.common.ledger.end(flushing),
                }
            }),
        }
    }

    /// Sends a request in as many commands as the server wants, all at once.
    fn request(self: Rc<Self>, io: Io, command: u16, flags: u16) -> Step {
        let at_most = match command {
            cmd::READ | cmd::WRITE => u64::from(self.able.payload),
            _ => RANGE_MAX,
        };
        let durable = command == cmd::READ || flags & cmd_flag::FUA != 0;
        if io.len() <= at_most {
            let reply = self.send(part(&io, io.at.clone(), command, flags));
            return match reply {
                Err(e) => e.into(),
                Ok(reply) => Step::control(async move {
                    let result = reply.await;
                    self.acknowledge(durable, result.is_ok());
                    result.map(drop)
                }),
            };
        }
        Step::control(async move {
            let mut replies = Vec::new();
            for start in io.at.clone().step_by(at_most as usize) {
                let end = io.at.end.min(start + at_most);
                replies.push(self.send(part(&io, start..end, command, flags))?);
            }
            let results = futures_util::future::join_all(replies).await;
            self.acknowledge(durable, results.iter().all(Result::is_ok));
            results.into_iter().try_for_each(|result| result.map(drop))
        })
    }

    fn acknowledge(&self, durable: bool, is_certain: bool) {
        if !durable {
            self.common.ledger.acknowledge(is_certain);
        }
    }

    /// Asks the server for the export's size, and takes it over.
    async fn refresh(&self) -> Result<Value> {
        let connected = self.common.connect(Purpose::Info).await?;
        let now = Able::new(&connected.facts);
        connected.close();
        let (before, size) = (self.geometry.get(), now?.geometry.size / u64::from(self.able.geometry.block));
        let geometry = before.with_size(size * u64::from(before.block));
        self.geometry.set(geometry);
        self.common.shape.set(Able { geometry, ..self.able });
        Ok(json!({ "size": geometry.size, "before": before.size }))
    }

    async fn status(&self, at: Range<u64>) -> Result<Vec<Extent>> {
        let (mut list, mut start) = (Vec::new(), at.start);
        while start < at.end {
            let len = (at.end - start).min(RANGE_MAX);
            let command = Command {
                command: cmd::BLOCK_STATUS,
                flags: 0,
                offset: start,
                len: len as u32,
                data: Default::default(),
            };
            // The server may answer for less than was asked, but not for nothing.
            for run in self.send(command)?.await? {
                Extent::push(&mut list, run.len, run.state);
                start += run.len;
            }
        }
        Ok(list)
    }
}

impl Drop for Client {
    /// The connections work in tasks of their own, which must not outlive their only user.
    fn drop(&mut self) {
        self.links.iter().for_each(|link| link.leave());
    }
}

/// The command for a part of a request.
fn part(io: &Io, at: Range<u64>, command: u16, flags: u16) -> Command {
    let data = match &io.op {
        Op::Read(buf) | Op::Write(buf, _) => {
            buf.slice((at.start - io.at.start) as usize..(at.end - io.at.start) as usize)
        }
        Op::Zero(_) | Op::Discard | Op::Flush => Default::default(),
    };
    Command { command, flags, offset: at.start, len: (at.end - at.start) as u32, data }
}

fn fua(durability: Durability) -> u16 {
    match durability {
        Durability::Cached => 0,
        Durability::Fua => cmd_flag::FUA,
    }
}

fn zero_flags(how: &Zero) -> u16 {
    let no_hole = if how.unmap { 0 } else { cmd_flag::NO_HOLE };
    let fast = if how.fast { cmd_flag::FAST_ZERO } else { 0 };
    no_hole | fast | fua(how.durability)
}

impl Layer for Client {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let io = io.take();
        let (command, flags) = match &io.op {
            Op::Read(_) => (cmd::READ, 0),
            Op::Write(_, durability) => (cmd::WRITE, fua(*durability)),
            Op::Zero(how) if how.fast && !self.able.fast_zero => {
                return Error::unsupported("the NBD server does not know fast zeroing").into();
            }
            Op::Zero(how) => (cmd::WRITE_ZEROES, zero_flags(how)),
            Op::Discard => (cmd::TRIM, 0),
            Op::Flush => return self.flush(),
        };
        self.request(io, command, flags)
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            if !self.able.status {
                return Ok(vec![Extent { len: at.end - at.start, state: ExtentState::Data }]);
            }
            self.status(at).await
        })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            futures_util::future::join_all(self.links.iter().map(|link| link.close())).await;
            Ok(())
        })
    }
}

impl Manage for Client {
    fn control(self: Rc<Self>, command: lamina_block::Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "refresh" => self.refresh().await,
                other => Err(Error::unsupported(format!(
                    "there is no command {other:?} here: an nbd sink has \"refresh\", which asks for the size"
                ))),
            }
        })
    }

    fn shared(&self) -> Option<Rc<dyn Any>> {
        Some(Rc::clone(&self.far_end) as Rc<dyn Any>)
    }

    fn info(&self) -> Value {
        let links = self.links.iter().map(|link| {
            json!({ "connected": link.is_up(), "waiting": link.waiting(), "reconnects": link.reconnects() })
        });
        json!({
            "server": self.common.address.to_string(),
            "export": self.common.export,
            "connections": links.collect::<Vec<_>>(),
            "fenced": self.able.fence,
            "size_there": self.common.shape.there(),
        })
    }
}
