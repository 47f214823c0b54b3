//! Sockets that accept connections.
//!
//! A Unix socket can be used by its owner only (mode 0600 from the moment it exists), and by whom its [`Access`] says
//! from the moment it listens. The socket of a killed process is replaced; a socket with a listener is not.

use super::lost;
use super::stream::{Stream, socket, unix_address};
use crate::host::Tools;
use crate::ring::Fd;
use crate::{Access, holders};
use lamina_block::{Address, Conn, Error, Listener, Pending, Result};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, shutdown};
use std::fs::Metadata;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How long to wait for descriptors when the process has none left.
const NO_DESCRIPTORS: Duration = Duration::from_millis(100);

/// A socket that listens, and where.
pub(crate) struct Bound {
    fd: OwnedFd,
    place: Place,
}

impl Bound {
    /// Listens at `at`. A taken address is an error at once: a caller that wants to wait does so. Names and folders may
    /// be slow, so on a reactor this is work for a helper thread.
    pub fn bind(at: &Address, access: &Access) -> Result<Bound> {
        let (fd, place) = match at {
            Address::Unix(path) => {
                let (fd, made) = listen_unix(path, access)?;
                (fd, Place::Unix(path.clone(), made))
            }
            Address::Tcp(host) => {
                let failed = |e| lost(&format!("cannot listen at {at}"), e);
                let listener = TcpListener::bind(host.as_str()).map_err(failed)?;
                let local = listener.local_addr().map_err(failed)?;
                (listener.into(), Place::Tcp(local.to_string()))
            }
        };
        Ok(Bound { fd, place })
    }

    /// Accepts connections for the reactor with these `tools`.
    pub fn listener(self, tools: &Tools) -> Rc<dyn Listener> {
        Rc::new(Socket { tools: tools.clone(), fd: Rc::new(self.fd), place: self.place })
    }
}

fn listen_unix(path: &Path, access: &Access) -> Result<(OwnedFd, Option<(u64, u64)>)> {
    let address = unix_address(path)?;
    let failed = |e: io::Error| lost(&format!("cannot listen at unix:{}", path.display()), e);
    let fd = socket(AddressFamily::UNIX).map_err(failed)?;
    // Taken over by the socket file when that is made.
    fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(|e| failed(e.into()))?;
    let bound = match rustix::net::bind(&fd, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path, &address)?;
            rustix::net::bind(&fd, &address)
        }
        other => other,
    };
    bound.map_err(|e| failed(e.into()))?;
    let made = std::fs::symlink_metadata(path).ok().map(|m| identity(&m));
    let open = access.grant(path).and_then(|()| Ok(rustix::net::listen(&fd, BACKLOG)?));
    open.inspect_err(|_| remove(path, made)).map_err(failed)?;
    Ok((fd, made))
}

/// Removes a socket file without a listener; an error if there is one.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let failed = |e: io::Error| lost(&format!("cannot listen at unix:{}", path.display()), e);
    let meta = std::fs::symlink_metadata(path).map_err(failed)?;
    if !meta.file_type().is_socket() {
        return Err(Error::invalid(format!("{} is there already and is no socket", path.display())));
    }
    let probe = socket(AddressFamily::UNIX).map_err(failed)?;
    rustix::io::ioctl_fionbio(&probe, true).map_err(|e| failed(e.into()))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed),
        // EAGAIN: the listener's backlog is full, so it is alive.
        answered @ (Ok(()) | Err(Errno::AGAIN)) => {
            let who = answered.map(|()| holders::other_end(&probe)).unwrap_or_default();
            let message = format!("{} is in use: another process listens there{who}", path.display());
            Err(Error::busy(message))
        }
        Err(e) => Err(failed(e.into())),
    }
}

/// Device and inode: the same file, not another of the same name.
fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Removes a socket file, unless another process has put its own there.
fn remove(path: &Path, made: Option<(u64, u64)>) {
    if made.is_some() && std::fs::symlink_metadata(path).ok().map(|m| identity(&m)) == made {
        let _ = std::fs::remove_file(path);
    }
}

enum Place {
    /// The path, and which file it was when we made it.
    Unix(PathBuf, Option<(u64, u64)>),
    Tcp(String),
}

struct Socket {
    tools: Tools,
    fd: Fd,
    place: Place,
}

impl Listener for Socket {
    fn accept(&self) -> Pending<Rc<dyn Conn>> {
        let (tools, fd) = (self.tools.clone(), Rc::clone(&self.fd));
        let path = match &self.place {
            Place::Unix(path, _) => Some(path.clone()),
            Place::Tcp(_) => None,
        };
        Box::pin(async move {
            let opened = accept_one(&tools, &fd).await?;
            Ok(match path {
                Some(path) => Rc::new(Stream::accepted_unix(&tools.ring, opened, &path)) as Rc<dyn Conn>,
                None => Rc::new(Stream::accepted_tcp(&tools.ring, opened)),
            })
        })
    }

    fn address(&self) -> Address {
        match &self.place {
            Place::Unix(path, _) => Address::Unix(path.clone()),
            Place::Tcp(host) => Address::Tcp(host.clone()),
        }
    }
}

/// The next connection. A connection that ended before it was accepted is passed over, and a lack of descriptors or
/// memory is waited out: neither is a reason to stop serving.
async fn accept_one(tools: &Tools, fd: &Fd) -> Result<OwnedFd> {
    loop {
        let answer = tools.ring.accept(fd).await;
        match (answer.result, answer.opened) {
            (Ok(_), Some(opened)) => return Ok(opened),
            (Ok(_), None) => return Err(Error::offline("a connection without a descriptor")),
            (Err(e), _) => match e.raw_os_error() {
                Some(libc::ECONNABORTED | libc::EINTR | libc::EAGAIN | libc::EPROTO) => {}
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    tracing::warn!("a connection has to wait: {e}");
                    tools.sleep(NO_DESCRIPTORS).await;
                }
                _ => return Err(lost("cannot accept connections", e)),
            },
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Ends an accept that is under way; the descriptor stays open until then.
        let _ = shutdown(&self.fd, Shutdown::Both);
        if let Place::Unix(path, made) = &self.place {
            remove(path, *made);
        }
    }
}
