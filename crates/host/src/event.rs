//! Eventfds: how the kernel and other processes wake a task.

use crate::ring::{Answer, Fd, Operation, Ring};
use lamina_block::Buf;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

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
        Ok(self.wait_unless(std::future::pending()).await?.unwrap_or(0))
    }

    /// The same, unless `ended` comes first: then `None`, and the wait has left the kernel. A later signal is for the
    /// next task that waits.
    pub async fn wait_unless(&self, ended: impl Future<Output = ()>) -> io::Result<Option<u64>> {
        let mut ended = pin!(ended);
        loop {
            let read = self.ring.read(&self.fd, self.counter.clone(), 0);
            let Some(answer) = unless(read, ended.as_mut()).await else { return Ok(None) };
            match answer.result {
                Ok(8) => {
                    let mut bytes = [0; 8];
                    self.counter.read(0, &mut bytes);
                    return Ok(Some(u64::from_ne_bytes(bytes)));
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
                        let readable = self.ring.readable(&self.fd);
                        let Some(answer) = unless(readable, ended.as_mut()).await else { return Ok(None) };
                        answer.result?;
                    }
                    Some(libc::EINTR) => {}
                    _ => return Err(e),
                },
            }
        }
    }
}

/// The answer of an operation, unless `ended` comes first: then it is cancelled, and its answer awaited and thrown
/// away.
async fn unless(mut operation: Operation, mut ended: Pin<&mut impl Future<Output = ()>>) -> Option<Answer> {
    let answer = poll_fn(|cx| {
        if let Poll::Ready(answer) = Pin::new(&mut operation).poll(cx) {
            return Poll::Ready(Some(answer));
        }
        ended.as_mut().poll(cx).map(|()| None)
    })
    .await;
    if answer.is_none() {
        operation.cancel();
        operation.await;
    }
    answer
}
