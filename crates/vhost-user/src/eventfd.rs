//! Eventfds that a front-end gave us.
//!
//! A descriptor from outside may be anything. Only eventfds are taken: to close one is short and harmless, and neither
//! a signal to one ([`lamina_host::Bell`]) nor a read of one (through the reactor's ring) blocks.

use rustix::fs::{CWD, readlinkat_raw};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

/// Takes over `file` if that is an eventfd. For the control thread: anything else is closed here, which may take long.
pub(crate) fn check(file: File) -> io::Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut buffer = [MaybeUninit::uninit(); 32];
    let (name, _) = readlinkat_raw(CWD, link, &mut buffer[..])?;
    if name != b"anon_inode:[eventfd]" {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a descriptor for events is no eventfd"));
    }
    Ok(file.into())
}
