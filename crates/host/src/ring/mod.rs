//! The unsafe core: one io_uring, and the operations that the kernel has.
//!
//! Invariant: an operation owns its file and memory until the kernel has answered (see `slots`). Dropping an
//! [`Operation`] asks the kernel to cancel it and leaves everything in its slot; dropping the [`Ring`] waits for the
//! kernel's answers, and rather leaks memory than frees memory that the kernel may still write to.
//!
//! Deliberately left out: linked, multishot or fixed-file operations. One entry, one answer.

mod ops;
mod slots;

pub(crate) use ops::Sync;
pub(crate) use slots::{Answer, Fd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use slots::{Held, Opens, Slots};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The name of cancellations in the kernel: their answers say nothing that the cancelled operation's answer does not.
const CANCEL: u64 = u64::MAX;
/// The name of time-outs in the kernel.
const TIMEOUT: u64 = u64::MAX - 1;
/// Entries after which the kernel is entered without waiting for the end of the turn, so that a device begins to work
/// while the rest of a batch is still being prepared. Measured with random 4 KiB reads, 64 in flight: without this 0.84
/// of the requests a second of a program that submits each alone, with 4 of them 0.97, at the same cost each.
const SUBMIT_AT: usize = 4;
/// Completions taken from the queue at once.
const BATCH: usize = 64;
/// How long a ring that is dropped waits for the kernel.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Whether to wait for the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    No,
    /// Until an operation is answered, or this time has passed.
    Until(Option<Duration>),
}

/// One io_uring with the operations on it.
pub(crate) struct Ring {
    uring: RefCell<IoUring>,
    slots: RefCell<Slots>,
    /// Entries that found the submission queue full, in order.
    backlog: RefCell<VecDeque<squeue::Entry>>,
    /// The time-outs that the kernel has, each earlier than the ones in front of it, with the memory that the kernel
    /// reads.
    timeouts: RefCell<Vec<(Instant, Box<types::Timespec>)>>,
}

impl Ring {
    /// A ring whose submission queue has `entries` places. The ring belongs to this thread.
    pub fn new(entries: u32) -> io::Result<Rc<Ring>> {
        let uring = IoUring::builder()
            .dontfork()
            .setup_clamp()
            .setup_cqsize(entries.saturating_mul(4))
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(entries)
            .map_err(explain)?;
        if !uring.params().is_feature_nodrop() || !uring.params().is_feature_ext_arg() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, TOO_OLD));
        }
        // Spares the kernel a look-up at every call; a kernel that cannot is as good without.
        let _ = uring.submitter().register_ring_fd();
        Ok(Rc::new(Ring {
            uring: RefCell::new(uring),
            slots: RefCell::default(),
            backlog: RefCell::default(),
            timeouts: RefCell::default(),
        }))
    }

    /// Begins an operation. The kernel sees it at the next [`Ring::enter`].
    ///
    /// # Safety
    /// `entry` refers to no file and no memory but what `held` keeps open and alive, is answered exactly once, and
    /// `opens` says whether a good answer is a new descriptor.
    unsafe fn start(self: &Rc<Self>, entry: squeue::Entry, held: Held, opens: Opens) -> Operation {
        let key = self.slots.borrow_mut().insert(held, opens);
        self.push(entry.user_data(key as u64));
        Operation { ring: Rc::clone(self), key: Some(key) }
    }

    /// Entries reach the kernel in the order of these calls. A cancellation relies on this: its slot is at worst reused
    /// by a later operation, which the cancellation cannot find.
    fn push(&self, entry: squeue::Entry) {
        let mut backlog = self.backlog.borrow_mut();
        let length = {
            let mut uring = self.uring.borrow_mut();
            let mut submission = uring.submission();
            // SAFETY: `start` has put what the entry refers to into a slot, `wake_after` into `timeouts`; a
            // cancellation refers to nothing.
            if !backlog.is_empty() || unsafe { submission.push(&entry) }.is_err() {
                backlog.push_back(entry);
            }
            submission.len()
        };
        if length >= SUBMIT_AT && backlog.is_empty() {
            // The next `enter` passes the entries that the kernel does not take now, and handles its errors, too.
            let _ = self.uring.borrow().submit();
        }
    }

    /// True if the kernel should be entered although there is nothing to wait for: to submit, or because it has
    /// completions that it posts only then.
    pub fn wants_enter(&self) -> bool {
        let mut uring = self.uring.borrow_mut();
        let submission = uring.submission();
        let begun = !submission.is_empty() || !self.backlog.borrow().is_empty();
        begun || submission.taskrun() || submission.cq_overflow()
    }

    /// True if [`Ring::harvest`] or [`Ring::enter`] has something to do. Asks memory only.
    pub fn is_ready(&self) -> bool {
        self.wants_enter() || !self.uring.borrow_mut().completion().is_empty()
    }

    /// Hands the kernel everything that was begun, and waits for answers if asked to.
    ///
    /// Errors mean that the ring is unusable; a kernel that is short of memory, or wants its completions taken
    /// first, is asked again at the next call.
    pub fn enter(&self, wait: Wait) -> io::Result<()> {
        if let Wait::Until(Some(time)) = wait {
            self.wake_after(time);
        }
        loop {
            let more = self.refill();
            let done = match wait {
                Wait::Until(_) if !more => self.uring.borrow().submit_and_wait(1),
                Wait::Until(_) | Wait::No => self.uring.borrow().submit(),
            };
            match done {
                Ok(_) => {}
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EBUSY | libc::EAGAIN) => return Ok(()),
                    _ => return Err(e),
                },
            }
            if !more || !self.uring.borrow_mut().submission().is_empty() {
                return Ok(());
            }
        }
    }

    /// The kernel answers after `time` at the latest. A time-out stays with the kernel until it has passed: one for
    /// each call would be set and taken back by the kernel at each, which costs a virtual machine more than the call.
    fn wake_after(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut timeouts = self.timeouts.borrow_mut();
        if timeouts.last().is_none_or(|(next, _)| end < *next) {
            timeouts.push((end, Box::new(types::Timespec::from(time))));
            let (_, time) = &timeouts[timeouts.len() - 1];
            self.push(opcode::Timeout::new(&**time).build().user_data(TIMEOUT));
        }
    }

    /// Moves the backlog to the submission queue; true if not all of it fitted.
    fn refill(&self) -> bool {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            return false;
        }
        let mut uring = self.uring.borrow_mut();
        let mut submission = uring.submission();
        while let Some(entry) = backlog.front() {
            // SAFETY: as in `push`.
            if unsafe { submission.push(entry) }.is_err() {
                return true;
            }
            backlog.pop_front();
        }
        false
    }

    /// Takes the kernel's answers and wakes whoever waits for them; how many there were.
    pub fn harvest(&self) -> usize {
        let mut total = 0;
        loop {
            let mut batch = [const { MaybeUninit::<cqueue::Entry>::uninit() }; BATCH];
            let got = {
                let mut uring = self.uring.borrow_mut();
                let mut completion = uring.completion();
                completion.fill(&mut batch).len()
            };
            for entry in &batch[..got] {
                // SAFETY: `fill` has written the first `got` entries.
                let entry = unsafe { entry.assume_init_ref() };
                match entry.user_data() {
                    CANCEL => continue,
                    // The one that was to pass first.
                    TIMEOUT => {
                        self.timeouts.borrow_mut().pop();
                        continue;
                    }
                    _ => {}
                }
                let landing = self.slots.borrow_mut().complete(entry.user_data() as usize, entry.result());
                if let Some(waker) = landing.waker {
                    waker.wake();
                }
            }
            total += got;
            if got < BATCH {
                return total;
            }
        }
    }

    /// Cancels what the kernel has and waits for its answers. False if some did not come in time.
    pub fn drain(&self) -> bool {
        let end = Instant::now() + DRAIN_MAX;
        while self.slots.borrow().flying() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.enter(Wait::Until(Some(left.min(Duration::from_millis(100))))).is_err()
            {
                return false;
            }
            self.harvest();
        }
        true
    }
}

const TOO_OLD: &str = "this kernel's io_uring is too old: Linux 6.1 or later is needed";

/// Says what to do when the kernel gives no ring.
fn explain(e: io::Error) -> io::Error {
    let message = match e.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring: Linux 6.1 or later is needed".into(),
        Some(libc::EINVAL) => TOO_OLD.into(),
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here: allow it (sysctl kernel.io_uring_disabled=0, the container's seccomp profile)"
                .into()
        }
        Some(libc::ENOMEM) => {
            "no memory for an io_uring: raise the limit of locked memory (ulimit -l)".into()
        }
        _ => format!("io_uring cannot be set up: {e}"),
    };
    io::Error::new(e.kind(), message)
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.drain() {
            tracing::error!("the kernel does not give back all operations: their memory is leaked");
            std::mem::forget(self.slots.take());
        }
    }
}

/// An operation that was begun. The operation goes on in the kernel whether it is polled or not.
#[must_use = "an operation that is dropped is cancelled"]
pub(crate) struct Operation {
    ring: Rc<Ring>,
    /// `None` once the answer was taken.
    key: Option<usize>,
}

impl Operation {
    /// Asks the kernel to end it soon. The kernel answers all the same: with the part that is done, or with an error.
    pub fn cancel(&self) {
        if let Some(key) = self.key {
            self.ring.push(opcode::AsyncCancel::new(key as u64).build().user_data(CANCEL));
        }
    }
}

impl Future for Operation {
    type Output = Answer;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let key = self.key.expect("not polled after its answer");
        let answer = self.ring.slots.borrow_mut().poll(key, cx.waker());
        if answer.is_ready() {
            self.key = None;
        }
        answer
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let (flying, unwanted) = self.ring.slots.borrow_mut().abandon(key);
        drop(unwanted);
        if flying {
            self.ring.push(opcode::AsyncCancel::new(key as u64).build().user_data(CANCEL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_gives_no_ring_is_explained() {
        for (code, says) in [
            (libc::ENOSYS, "Linux 6.1"),
            (libc::EINVAL, "Linux 6.1"),
            (libc::EPERM, "io_uring_disabled"),
            (libc::ENOMEM, "ulimit -l"),
            (libc::EMFILE, "cannot be set up"),
        ] {
            let e = explain(io::Error::from_raw_os_error(code));
            assert!(e.to_string().contains(says), "{e}");
        }
    }
}
