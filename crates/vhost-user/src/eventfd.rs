//! Eventfds that a front-end gave us.
//!
//! A descriptor from outside may be anything. Only eventfds are taken: reading and writing one is short and harmless.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::CWD;
use rustix::fs::{OFlags, fcntl_getfl, readlinkat_raw};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

/// Takes `file` over if it is an eventfd.
pub(crate) fn check(file: File) -> io::Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut buffer = [MaybeUninit::uninit(); 32];
    let (name, _) = readlinkat_raw(CWD, link, &mut buffer[..])?;
    if name != b"anon_inode:[eventfd]" {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a descriptor for events is no eventfd"));
    }
    Ok(file.into())
}

/// Notifies somebody through an eventfd, without ever waiting for him.
pub(crate) struct Notifier {
    fd: OwnedFd,
    /// A write to a full eventfd waits, unless it is told not to.
    may_block: bool,
}

impl Notifier {
    /// Notifies through `file`; an error unless it is an eventfd.
    pub fn new(file: File) -> io::Result<Notifier> {
        let fd = check(file)?;
        let may_block = !fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK);
        Ok(Notifier { fd, may_block })
    }

    /// Notifies. A full eventfd has not been looked at for 2^64 notifications and needs no other.
    pub fn notify(&self) {
        if self.may_block {
            let mut full = [PollFd::new(&self.fd, PollFlags::OUT)];
            if !matches!(poll(&mut full, Some(&Timespec::default())), Ok(1)) {
                return;
            }
        }
        // Its only error is that it is full.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
}
