//! The control socket's file: one daemon owns it, only that daemon's user can open it, and a dead socket is replaced.

use crate::exit::Failure;
use lamina_host::holders;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another daemon may hold the folder's lock while it makes its socket.
const PATIENCE: Duration = Duration::from_secs(2);

/// A listening control socket. Dropped, it removes its file, unless another daemon has put its own there.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of our file.
    identity: (u64, u64),
}

impl ControlSocket {
    /// Listens at `path` with mode 0600. A socket without a daemon is replaced; a live one and any other kind of file
    /// are refused.
    ///
    /// The folder is locked meanwhile, so that one of two daemons that start at once is refused. The socket gets its
    /// mode before it gets its name.
    pub fn claim(path: &Path) -> Result<ControlSocket, Failure> {
        let wrong = |e: io::Error| Failure::failed(format!("control socket {}: {e}", path.display()));
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let lock = File::open(folder).map_err(wrong)?;
        lock_patiently(&lock).map_err(wrong)?;
        refuse_live(path)?;
        let mut unnamed = path.as_os_str().to_owned();
        unnamed.push(format!(".{}", std::process::id()));
        let unnamed = PathBuf::from(unnamed);
        let listener = bind(&unnamed, path).map_err(|e| {
            let _ = fs::remove_file(&unnamed);
            wrong(e)
        })?;
        let meta = fs::symlink_metadata(path).map_err(wrong)?;
        Ok(ControlSocket { listener, path: path.to_path_buf(), identity: (meta.dev(), meta.ino()) })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket, for one asynchronous runtime. To be called inside of that runtime.
    pub fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }
}

/// Locks a folder. Every user who can read the folder can hold its lock for ever, so the wait is no longer than another
/// daemon could need.
fn lock_patiently(folder: &File) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(PATIENCE / 100),
            Err(Errno::WOULDBLOCK) => {
                tracing::warn!(
                    "another process holds the lock of the control socket's folder: going on without the \
                                lock"
                );
                return Ok(());
            }
            other => return Ok(other?),
        }
    }
}

/// Binds at `unnamed`, sets the mode, moves it to `path`.
fn bind(unnamed: &Path, path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(unnamed)?;
    fs::set_permissions(unnamed, fs::Permissions::from_mode(0o600))?;
    fs::rename(unnamed, path)?;
    Ok(listener)
}

fn refuse_live(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::FileTypeExt;
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            let message = "there is a file of another kind; choose another place with --control";
            Err(Failure::failed(format!("control socket {}: {message}", path.display())))
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(stream) => Err(Failure::failed(format!(
                "control socket {}: another daemon answers there{}; stop it, or choose another place with --control",
                path.display(),
                holders::other_end(&stream)
            ))),
            Err(_) => Ok(()),
        },
        Err(_) => Ok(()),
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_is_refused_stale_is_replaced_and_the_end_is_clean() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.ctl.sock");
        drop(UnixListener::bind(&path).expect("a stale socket"));
        let socket = ControlSocket::claim(&path).expect("a stale socket is replaced");
        assert_eq!(fs::metadata(&path).expect("the socket").permissions().mode() & 0o777, 0o600);
        let refused = ControlSocket::claim(&path).expect_err("a live socket");
        assert!(format!("{refused:?}").contains("another daemon answers"), "{refused:?}");
        drop(socket);
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
    }

    #[test]
    fn whoever_holds_the_folders_lock_keeps_nobody_from_serving() {
        let folder = tempfile::tempdir().expect("a folder");
        let held = File::open(folder.path()).expect("the folder");
        flock(&held, FlockOperation::LockExclusive).expect("the lock");
        ControlSocket::claim(&folder.path().join("x.ctl.sock")).expect("a socket");
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("precious");
        fs::write(&path, "data").expect("a file");
        assert!(ControlSocket::claim(&path).is_err());
        assert_eq!(fs::read(&path).expect("the file"), b"data");
    }

    #[test]
    fn anothers_socket_is_not_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.ctl.sock");
        let first = ControlSocket::claim(&path).expect("a socket");
        fs::remove_file(&path).expect("somebody removes it");
        let second = ControlSocket::claim(&path).expect("a second socket");
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
