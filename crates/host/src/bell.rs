//! Waking another process through an eventfd, without ever waiting for it.
//!
//! A write to a full eventfd waits, unless the description is non-blocking; and every owner of the descriptor can
//! change that at any time, also between a check and the write. So nothing is written: the kernel signals the eventfd
//! itself, as it does when a completion arrives on a ring that the eventfd is registered with, and never waits. The
//! ring here has no other purpose.

use io_uring::{IoUring, opcode};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Signals an eventfd of another process.
pub struct Bell {
    uring: RefCell<IoUring>,
}

impl Bell {
    /// A bell that signals `fd`, which may be closed. An error unless `file` is an eventfd.
    pub fn new(fd: &OwnedFd) -> io::Result<Bell> {
        let uring = IoUring::builder().dontfork().build(1)?;
        uring.submitter().register_eventfd(fd.as_raw_fd())?;
        Ok(Bell { uring: RefCell::new(uring) })
    }

    /// Adds one to the eventfd. A full eventfd stays so, and needs no other signal.
    pub fn ring(&self) {
        let mut uring = self.uring.borrow_mut();
        // Each call takes the completion of the one before, so that there is space for its own.
        uring.completion().for_each(drop);
        // SAFETY: the entry refers to no memory and no file.
        let _ = unsafe { uring.submission().push(&opcode::Nop::new().build()) };
        // The kernel takes an entry that it refuses now, for want of memory, with the next one.
        let _ = uring.submit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn each_ring_is_one_signal() {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        let bell = Bell::new(&fd).unwrap();
        for n in [1, 2, 1000] {
            (0..n).for_each(|_| bell.ring());
            assert_eq!(count(&fd), n);
        }
    }

    #[test]
    fn a_full_eventfd_that_blocks_keeps_nobody_waiting() {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let bell = Bell::new(&fd).unwrap();
        (0..10).for_each(|_| bell.ring());
        assert_eq!(count(&fd), u64::MAX);
        bell.ring();
        assert_eq!(count(&fd), 1);
    }

    #[test]
    fn other_descriptors_are_refused() {
        assert!(Bell::new(&std::fs::File::open("/dev/null").unwrap().into()).is_err());
    }
}
