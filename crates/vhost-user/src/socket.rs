//! The listening socket of an export: reachable by its owner and by whom it was opened for, gone with us.

use lamina_host::Access;
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A listening socket. Dropped, its file is removed.
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: no other file is removed.
    identity: Option<(u64, u64)>,
}

impl Socket {
    /// Listens at `path`, with the rights `access`. A file without a listener is replaced.
    pub fn listen(path: &Path, access: &Access) -> io::Result<Socket> {
        remove_stale(path)?;
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Before the socket has a name, so that others can never reach it.
        fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        bind(&fd, &SocketAddrUnix::new(path)?)?;
        let socket = Socket { listener: fd.into(), path: path.into(), identity: identity(path) };
        access.grant(path)?;
        listen(&socket.listener, 4)?;
        Ok(socket)
    }

    /// Removes its file, if that is still there.
    pub fn remove(&self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Takes the next connection; waits unless there is one.
    pub fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept()?.0)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.remove();
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let in_use = |what: &str| io::Error::new(io::ErrorKind::AddrInUse, format!("{}: {what}", path.display()));
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(in_use("there is something that is not a socket"));
        }
        Ok(_) => {}
    }
    // A server that listens and does not accept would keep a blocking socket waiting.
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => Err(in_use("another process listens here")),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "stale");
        let socket = Socket::listen(&path, &Access::default()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Socket::listen(&path, &Access::default()).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_but_a_socket_is_replaced_and_nobody_elses_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        fs::write(&path, "precious").unwrap();
        assert!(Socket::listen(&path, &Access::default()).is_err());
        fs::remove_file(&path).unwrap();
        let socket = Socket::listen(&path, &Access::default()).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        drop(socket);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
