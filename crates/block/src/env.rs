//! The environment of a layer: time, tasks, randomness, disks, connections, memory.
//!
//! `host` implements it on the real machine, `sim` with a seed and a virtual clock. Nothing in a layer knows which.

use crate::{Buf, Error, Folder, Layer, Pending, Pool, Result, Signal};
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A moment: nanoseconds since the environment began. Monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time that passed since `earlier`; zero if it lies ahead.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment plus `d`.
    pub const fn after(self, d: Duration) -> Time {
        Time(self.0.saturating_add(d.as_nanos() as u64))
    }
}

/// How a disk (a file or a block device) is opened.
#[derive(Clone, Debug)]
pub struct OpenDisk {
    /// Its path.
    pub path: PathBuf,
    /// Open for reading only.
    pub read_only: bool,
    /// Bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// Create a sparse file of this many bytes if there is none. An existing file is never changed in size.
    pub create: Option<u64>,
    /// Logical block in bytes to present; the device's own when `None`.
    pub block: Option<u32>,
}

/// How an image of a Ceph cluster (RADOS block device) is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRbd {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for the one without a name.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The user of the cluster, without "client.".
    pub user: String,
    /// The file that says where the cluster's monitors are.
    pub conf: PathBuf,
    /// Open for reading only.
    pub read_only: bool,
    /// Other clients may write to the image as well; otherwise the image is locked.
    pub shared: bool,
}

impl fmt::Display for OpenRbd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace[..] {
            "" => write!(f, "{}/{}", self.pool, self.image),
            namespace => write!(f, "{}/{namespace}/{}", self.pool, self.image),
        }
    }
}

/// A secret that a person is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The secret in words, which is its name as well: "passphrase of device vault (vm1.toml)".
    pub of: String,
    /// The most bytes of an answer.
    pub max: usize,
    /// The occasion.
    pub occasion: Occasion,
}

/// The occasion of a [`Question`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The secret is needed.
    Needed,
    /// The answer before opened nothing.
    Wrong,
    /// The secret is a new one: the person types it twice, because a slip would lock everybody out.
    New,
}

/// Where to connect to or listen: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix stream socket.
    Unix(PathBuf),
    /// A TCP host and port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = Error;
    fn from_str(s: &str) -> Result<Address> {
        match s.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(("tcp", host))
                if host.rsplit_once(':').is_some_and(|(h, p)| !h.is_empty() && p.parse::<u16>().is_ok()) =>
            {
                Ok(Address::Tcp(host.into()))
            }
            _ => {
                Err(Error::invalid(format!("{s:?} is no address: write \"unix:PATH\" or \"tcp:HOST:PORT\"")))
            }
        }
    }
}

impl Address {
    /// True if no other machine reaches it.
    pub fn is_local(&self) -> bool {
        let Address::Tcp(to) = self else { return true };
        let host = to.rsplit_once(':').map_or(&to[..], |(host, _)| host);
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        host == "localhost" || bare.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(host) => write!(f, "tcp:{host}"),
        }
    }
}

/// A connected byte stream. One receive and one send may be under way at the same time.
pub trait Conn {
    /// Receives at least one byte and at most `into.len()`; the number received, 0 when the peer has closed.
    /// [`ErrorKind::BadMemory`](crate::ErrorKind) if `into` cannot be written: no data is lost, which can be received
    /// into other memory.
    fn recv(&self, into: Buf) -> Pending<usize>;
    /// Sends all of `from`, segments in order. [`ErrorKind::BadMemory`](crate::ErrorKind) if a part of it cannot be
    /// read: the connection goes on after the bytes that were sent before, which the error's range counts from 0.
    fn send(&self, from: Buf) -> Pending;
    /// Sends what the peer's socket takes at once of the start of `from`; the number of bytes, 0 also where this is not
    /// possible. The rest is for [`Conn::send`], which says why a connection takes nothing. Not while a send is under
    /// way.
    fn send_at_once(&self, from: &Buf) -> usize {
        let _ = from;
        0
    }
    /// Ends both directions; a receive or send under way returns.
    fn shutdown(&self);
    /// [`Conn::shutdown`], and sent bytes that have not arrived may be dropped, where the system can do that. For a
    /// connection whose peer is not to act on it later.
    fn abort(&self) {
        self.shutdown();
    }
    /// The peer, for logs.
    fn peer(&self) -> String;
}

/// A socket that accepts connections. Dropped, it stops listening and removes its Unix socket file.
pub trait Listener {
    /// Waits for the next connection.
    fn accept(&self) -> Pending<Rc<dyn Conn>>;
    /// The address of the listener (with the port that the system chose for 0).
    fn address(&self) -> Address;
}

/// The world as layers see it. One core, one environment.
pub trait Env {
    /// The time of this turn of the scheduler. Time stands still while tasks run and moves between turns, so that all
    /// requests taken in one turn arrived together, here as under the simulator.
    fn now(&self) -> Time;
    /// The machine's clock, in seconds since 1970 (UTC); 0 if there is none. This clock may jump: it is for people to
    /// read, and no decision depends on it.
    fn unix_time(&self) -> u64 {
        0
    }
    /// The time that this core has worked since the environment began: neither slept, nor looked for work. Zero where
    /// computing takes no time.
    fn worked(&self) -> Duration {
        Duration::ZERO
    }
    /// Completes after at least `d`.
    fn sleep(&self, d: Duration) -> Pin<Box<dyn Future<Output = ()>>>;
    /// Completes at `at`, or as soon after it as can be: within a few microseconds where the machine has time, for
    /// which the core is awake before. For emulated devices; [`Env::sleep`] costs less.
    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()>>> {
        self.sleep(at.since(self.now()))
    }
    /// Completes when this core is asked to end. A task that waits for a silent peer gives up soon from then on,
    /// because no close can happen before.
    fn ending(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::pending())
    }
    /// Runs a task on this core until it ends.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>);
    /// A random number.
    fn random(&self) -> u64;
    /// Page-aligned memory.
    fn pool(&self) -> &Pool;
    /// Opens a file or block device as a sink. A device in use by another process is refused.
    fn open_disk(&self, open: OpenDisk) -> Pending<Rc<dyn Layer>>;
    /// Opens a host-managed zoned block device as a sink, without the page cache. `Unsupported` if there is another
    /// device, or none of this kind can be opened here.
    fn open_zoned(&self, path: PathBuf) -> Pending<Rc<dyn Layer>> {
        let message = format!("{}: zoned devices cannot be opened here", path.display());
        Box::pin(async move { Err(Error::unsupported(message)) })
    }
    /// Opens an image of a Ceph cluster as a sink. `Unsupported` if there is no library for that here.
    fn open_rbd(&self, open: OpenRbd) -> Pending<Rc<dyn Layer>> {
        Box::pin(
            async move { Err(Error::unsupported(format!("{open}: images of Ceph cannot be opened here"))) },
        )
    }
    /// Connects to `to`.
    fn connect(&self, to: Address) -> Pending<Rc<dyn Conn>>;
    /// Listens at `at`. A stale Unix socket file is replaced, a live one is refused.
    fn listen(&self, at: Address) -> Result<Rc<dyn Listener>>;
    /// Sees to it that another host reaches no store any more, such as by switching that machine off; completes when
    /// that is so. `Unsupported` if nothing here can do that.
    fn fence(&self, host: &str) -> Pending {
        let message = format!("no program is there that could fence host {host}");
        Box::pin(async move { Err(Error::unsupported(message)) })
    }
    /// Does long computations without waits, off this core's tasks where possible. Completes when the work is done.
    /// [`computed`] returns the result. Begun work is done even if no task waits for it any more.
    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> Pending {
        Box::pin(async move {
            work();
            Ok(())
        })
    }
    /// All bytes of a regular file of at most `max` bytes, which are taken for a key or a passphrase
    /// ([`Env::guard_key`]). Fails with `Invalid` if the file is longer, or is no file.
    fn read_file(&self, path: PathBuf, _max: usize) -> Pending<Vec<u8>> {
        Box::pin(
            async move { Err(Error::unsupported(format!("{}: there are no files here", path.display()))) },
        )
    }
    /// Asks a person for a secret. The answer is not shown while it is typed; the core goes on meanwhile. Fails with
    /// `Unsupported` where no person can be asked, with `Cancelled` if the person does not answer, and with `Invalid`
    /// if the answer is longer than allowed, or a new secret was not typed twice alike.
    fn ask_secret(&self, question: Question) -> Pending<Vec<u8>> {
        let message = format!("there is no terminal here to ask for the {}", question.of);
        Box::pin(async move { Err(Error::unsupported(message)) })
    }
    /// The text of a regular file of at most `max` bytes that holds no secret, such as the model of a drive. Fails with
    /// `Invalid` if the file is longer, is no file, or is not UTF-8.
    fn read_text(&self, path: PathBuf, _max: usize) -> Pending<String> {
        Box::pin(
            async move { Err(Error::unsupported(format!("{}: there are no files here", path.display()))) },
        )
    }
    /// A folder of small files, which need not be there yet.
    fn folder(&self, path: PathBuf) -> Result<Rc<dyn Folder>> {
        Err(Error::unsupported(format!("{}: there are no folders here", path.display())))
    }
    /// To be called before a private key is read otherwise than by [`Env::read_file`]: warns if others can read its
    /// file, and keeps this process out of core dumps from now on.
    fn guard_key(&self, _path: &Path) {}
    /// Fills `into` with bytes that cannot be guessed, for keys and salts.
    fn secret(&self, _into: &mut [u8]) -> Result<()> {
        Err(Error::unsupported("there are no secrets here"))
    }
}

/// The request to end a core, for tasks that wait for it ([`Env::ending`]).
#[derive(Default)]
pub struct Ending {
    asked: Cell<bool>,
    told: Signal,
}

impl Ending {
    /// The core is asked to end.
    pub fn ask(&self) {
        self.asked.set(true);
        self.told.notify();
    }

    /// Whether it is.
    pub fn is_asked(&self) -> bool {
        self.asked.get()
    }

    /// Completes when it is, or was.
    pub fn wait(self: &Rc<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        let me = Rc::clone(self);
        Box::pin(async move { me.told.until(|| me.asked.get()).await })
    }
}

/// The result of `work`, done by [`Env::compute`].
pub async fn computed<T: Send + 'static>(
    env: &dyn Env,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (send, receive) = channel();
    env.compute(Box::new(move || {
        // Perhaps no task waits any more.
        let _ = send.send(work());
    }))
    .await?;
    receive.try_recv().map_err(|_| Error::offline("work on another thread ended without a result"))
}
