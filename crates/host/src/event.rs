//! Eventfds: how the kernel and other processes wake a task.

use crate::ring::{Fd, Ring};
use lamina_block::Buf;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// An eventfd that tasks of one reactor wait for, one at a time.
pub struct Event {
    ring: Rc<Ring>,
    fd: Fd,
    /// Where the kernel puts the counter.
    counter: Buf,
}

impl Event {
    pub(crate) fn new(ring: &Rc<Ring>, fd: OwnedFd) -> Rc<Event> {
        Rc::new(Event { ring: Rc::clone(ring), fd: Rc::new(fd), counter: Buf::zeroed(8) })
    }

    /// Waits until the eventfd was signalled, and resets it: the sum of the signals since the last time.
    ///
    /// Works with blocking and non-blocking descriptors. A wait that is dropped may have taken signals with it: look
    /// around before waiting again. An error if the descriptor is no eventfd.
    pub async fn wait(&self) -> io::Result<u64> {
        loop {
            match self.ring.read(&self.fd, self.counter.clone(), 0).await.result {
                Ok(8) => {
                    let mut bytes = [0; 8];
                    self.counter.read(0, &mut bytes);
                    return Ok(u64::from_ne_bytes(bytes));
                }
                Ok(n) => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        format!("an eventfd gives 8 bytes, this gave {n}"),
                    ));
                }
                Err(e) => match e.raw_os_error() {
                    // Non-blocking: some kernels answer at once.
                    Some(libc::EAGAIN) => {
                        self.ring.readable(&self.fd).await.result?;
                    }
                    Some(libc::EINTR) => {}
                    _ => return Err(e),
                },
            }
        }
    }
}
