//! The access rights of a Unix socket: its mode and its group.
//!
//! A socket is made for its owner only, and listens after its rights are set: no client connects before. The file stays
//! open while it is changed, and no link is followed: a file that another process puts in its place is left alone.

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, chmod, chownat, fstat, openat};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The rights of a Unix socket that others connect to. Connecting needs the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The permission bits, at most 0o777.
    pub mode: u32,
    /// The number of its group; that of the process when `None`.
    pub group: Option<u32>,
}

impl Default for Access {
    /// Its owner only.
    fn default() -> Access {
        Access { mode: 0o600, group: None }
    }
}

impl Access {
    /// Gives a socket at `path`, which has mode 0600 and does not listen yet, these rights.
    pub fn grant(&self, path: &Path) -> io::Result<()> {
        if *self == Access::default() {
            return Ok(());
        }
        let file = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Socket {
            return Err(io::Error::other("the file is no socket any more"));
        }
        if let Some(group) = self.group {
            // The mode comes after the group: the earlier group never gets access.
            chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH).map_err(|e| {
                let need = "the daemon must be of that group, or run as root";
                io::Error::new(io::Error::from(e).kind(), format!("socket-group: {group}: {e}: {need}"))
            })?;
        }
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(self.mode))
            .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("socket-mode: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_gets_its_mode_and_its_group_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("s"), folder.path().join("l"));
        let _socket = UnixListener::bind(&path).unwrap();
        let group = std::fs::metadata(&path).unwrap().gid();
        let wide = Access { mode: 0o660, group: Some(group) };
        wide.grant(&path).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.permissions().mode() & 0o777, meta.gid()), (0o660, group));
        let file = folder.path().join("f");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        assert!(wide.grant(&link).is_err() && wide.grant(&file).is_err());
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
