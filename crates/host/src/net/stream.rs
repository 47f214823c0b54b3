//! Connected sockets.

use super::lost;
use crate::holders;
use crate::host::Tools;
use crate::ring::{Fd, Ring};
use lamina_block::{Address, Buf, Conn, Error, Pending, Result};
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_linger, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_nodelay,
};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, shutdown, socket_with,
};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// A TCP peer that says nothing is asked after this time, then this often, and given up after so many questions:
/// within two minutes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 6;

/// A connected stream socket.
pub(super) struct Stream {
    ring: Rc<Ring>,
    fd: Fd,
    peer: String,
    /// The peer is a process of this machine.
    is_here: bool,
}

/// Connects to `to`; to a TCP host's addresses in turn.
pub(crate) async fn connect(tools: Tools, to: Address) -> Result<Rc<dyn Conn>> {
    let failed = |e| lost(&format!("cannot connect to {to}"), e);
    match &to {
        Address::Unix(path) => {
            let fd = socket(AddressFamily::UNIX).map_err(failed)?;
            let address = unix_address(path)?.into();
            let fd = connect_one(&tools.ring, fd, address).await.map_err(failed)?;
            Ok(Rc::new(Stream { ring: tools.ring, fd, peer: to.to_string(), is_here: true }))
        }
        Address::Tcp(host) => {
            let name = host.clone();
            let resolved = tools.helpers.run(move || name.to_socket_addrs().map(Vec::from_iter)).await;
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            for address in resolved.and_then(|r| r).map_err(failed)? {
                match connect_tcp(&tools.ring, address).await {
                    Ok(fd) => {
                        let peer = format!("tcp:{address}");
                        return Ok(Rc::new(Stream { ring: tools.ring, fd, peer, is_here: false }));
                    }
                    Err(e) => last = e,
                }
            }
            Err(failed(last))
        }
    }
}

async fn connect_tcp(ring: &Rc<Ring>, to: SocketAddr) -> io::Result<Fd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket(family)?;
    tune_tcp(&fd)?;
    connect_one(ring, fd, to.into()).await
}

/// Small answers do not wait for each other, and a peer that vanished without a word is noticed.
fn tune_tcp(fd: &OwnedFd) -> io::Result<()> {
    set_tcp_nodelay(fd, true)?;
    set_socket_keepalive(fd, true)?;
    set_tcp_keepidle(fd, KEEPALIVE_AFTER)?;
    set_tcp_keepintvl(fd, KEEPALIVE_EVERY)?;
    Ok(set_tcp_keepcnt(fd, KEEPALIVE_COUNT)?)
}

async fn connect_one(ring: &Rc<Ring>, fd: OwnedFd, to: SocketAddrAny) -> io::Result<Fd> {
    let fd = Rc::new(fd);
    ring.connect(&fd, to).await.result?;
    Ok(fd)
}

pub(super) fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// The address of a Unix socket. Paths may have 107 bytes.
pub(super) fn unix_address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        Error::invalid(format!(
            "{} is no path for a Unix socket: a path has at most 107 bytes, none of them zero",
            path.display()
        ))
    })
}

impl Stream {
    /// A connection that was accepted on a Unix socket.
    pub fn accepted_unix(ring: &Rc<Ring>, fd: OwnedFd, at: &Path) -> Stream {
        let peer = format!("unix:{}{}", at.display(), holders::other_end(&fd));
        Stream { ring: Rc::clone(ring), fd: Rc::new(fd), peer, is_here: true }
    }

    /// A connection that was accepted on a TCP socket.
    pub fn accepted_tcp(ring: &Rc<Ring>, fd: OwnedFd) -> Stream {
        // Fails only on a connection that has ended.
        let _ = tune_tcp(&fd);
        let peer = rustix::net::getpeername(&fd).ok().flatten().and_then(|a| SocketAddr::try_from(a).ok());
        let peer = peer.map_or_else(|| "tcp".into(), |a| format!("tcp:{a}"));
        Stream { ring: Rc::clone(ring), fd: Rc::new(fd), peer, is_here: false }
    }
}

/// The memory for the send or receive is not there; the connection is unchanged.
fn is_of_memory(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EFAULT)
}

impl Conn for Stream {
    fn recv(&self, into: Buf) -> Pending<usize> {
        if into.is_empty() {
            return Box::pin(async { Err(Error::invalid("a receive into no memory")) });
        }
        let (ring, fd) = (Rc::clone(&self.ring), Rc::clone(&self.fd));
        Box::pin(async move {
            loop {
                match ring.receive(&fd, into.clone()).await.result {
                    Ok(n) => return Ok(n as usize),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if is_of_memory(&e) => return Err(e.into()),
                    Err(e) => return Err(lost("the connection broke", e)),
                }
            }
        })
    }

    fn send(&self, from: Buf) -> Pending {
        let (ring, fd) = (Rc::clone(&self.ring), Rc::clone(&self.fd));
        let is_here = self.is_here;
        Box::pin(async move {
            let (len, mut rest) = (from.len(), from);
            // Another machine begins to work while the turn goes on here. What goes to a process of this one gathers.
            let mut sent = if is_here { 0 } else { Ring::send_now(&fd, &rest).unwrap_or(0) };
            loop {
                if sent == rest.len() {
                    return Ok(());
                }
                rest = rest.slice(sent..rest.len());
                sent = match ring.send(&fd, rest.clone()).await.result {
                    Ok(n) => n as usize,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
                    Err(e) if is_of_memory(&e) => return Err(Error::from(e).at(0..(len - rest.len()) as u64)),
                    Err(e) => return Err(lost("the connection broke", e)),
                };
            }
        })
    }

    fn send_at_once(&self, from: &Buf) -> usize {
        Ring::send_now(&self.fd, from).unwrap_or(0)
    }

    fn shutdown(&self) {
        // Fails only on a connection that has ended.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    fn abort(&self) {
        // A TCP socket that is closed with a zero linger time forgets its queue, and sends a reset. On a Unix socket,
        // whose bytes have all arrived, this changes nothing.
        let _ = set_socket_linger(&self.fd, Some(Duration::ZERO));
        self.shutdown();
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }
}
