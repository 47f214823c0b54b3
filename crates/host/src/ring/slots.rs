//! The owner of an operation's resources between submission and the kernel's answer.
//!
//! Invariant: an operation's resources are dropped only after its completion has arrived, whether a task still waits
//! for it or not. A slot's number is the operation's name in the kernel, so a slot is reused only after that, too. This
//! file knows no kernel, and runs under Miri with a false one.

use lamina_block::Buf;
use rustix::net::SocketAddrAny;
use slab::Slab;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A file that an operation keeps open.
pub(crate) type Fd = Rc<OwnedFd>;

/// Everything that the kernel may touch while an operation is under way.
#[expect(dead_code, reason = "held for the kernel, which knows it by number and address")]
pub(crate) struct Held {
    /// The file it works on.
    pub fd: Fd,
    /// The memory it reads or writes.
    pub memory: Memory,
}

/// The memory of an operation. Moving it moves no byte that the kernel knows by address: those are in boxes, or kept
/// alive by the buffer.
#[expect(dead_code, reason = "held for the kernel, which reads it by address")]
pub(crate) enum Memory {
    /// None.
    None,
    /// The only segment of a buffer.
    Buf(Buf),
    /// The segments of a buffer, as the kernel wants them listed.
    Vectors(Buf, Box<[libc::iovec]>),
    /// The same, with the header of a socket message.
    Message(Buf, Box<[libc::iovec]>, Box<libc::msghdr>),
    /// An address to connect to.
    Address(Box<SocketAddrAny>),
}

/// The kernel's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The number of bytes, or whatever the operation counts; a negative answer is the error.
    pub result: io::Result<u32>,
    /// The descriptor that an operation such as accept has opened.
    pub opened: Option<OwnedFd>,
}

/// Whether an operation opens a descriptor, which is then closed if no task takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opens {
    Nothing,
    Descriptor,
}

enum Slot<H> {
    /// The kernel has it.
    Flying { held: H, opens: Opens, waker: Option<Waker> },
    /// The kernel has it, and no task waits for it any more.
    Abandoned { held: H, opens: Opens },
    /// The kernel has answered.
    Landed(Answer),
}

/// The work after a completion, once the slots are no longer borrowed: dropping or waking may run any code.
#[must_use]
pub(crate) struct Landing<H> {
    /// Wakes whoever waits.
    pub waker: Option<Waker>,
    /// No longer needed.
    pub _held: H,
    /// An answer that no task takes.
    pub _unwanted: Option<Answer>,
}

/// The operations under way, each with its resources.
pub(crate) struct Slots<H = Held> {
    slab: Slab<Slot<H>>,
    flying: usize,
}

impl<H> Default for Slots<H> {
    fn default() -> Slots<H> {
        Slots { slab: Slab::new(), flying: 0 }
    }
}

impl<H> Slots<H> {
    /// Operations that the kernel has not answered.
    pub fn flying(&self) -> usize {
        self.flying
    }

    /// Takes over what an operation needs; the number is its name in the kernel.
    pub fn insert(&mut self, held: H, opens: Opens) -> usize {
        self.flying += 1;
        self.slab.insert(Slot::Flying { held, opens, waker: None })
    }

    /// The kernel's answer to the operation `key`, which must be under way.
    pub fn complete(&mut self, key: usize, result: i32) -> Landing<H> {
        let slot = self.slab.get_mut(key).expect("the kernel answers only submitted operations");
        self.flying -= 1;
        match std::mem::replace(slot, Slot::Landed(Answer { result: Ok(0), opened: None })) {
            Slot::Flying { held, opens, waker } => {
                *slot = Slot::Landed(answer(result, opens));
                Landing { waker, _held: held, _unwanted: None }
            }
            Slot::Abandoned { held, opens } => {
                self.slab.remove(key);
                Landing { waker: None, _held: held, _unwanted: Some(answer(result, opens)) }
            }
            Slot::Landed(_) => unreachable!("the kernel answers once"),
        }
    }

    /// The answer, or `waker` is woken when there is one. The slot is free after the answer was taken.
    pub fn poll(&mut self, key: usize, waker: &Waker) -> Poll<Answer> {
        match &mut self.slab[key] {
            Slot::Flying { waker: kept, .. } => {
                match kept {
                    Some(kept) => kept.clone_from(waker),
                    None => *kept = Some(waker.clone()),
                }
                Poll::Pending
            }
            Slot::Landed(_) => match self.slab.remove(key) {
                Slot::Landed(answer) => Poll::Ready(answer),
                Slot::Flying { .. } | Slot::Abandoned { .. } => unreachable!("matched above"),
            },
            Slot::Abandoned { .. } => unreachable!("an abandoned operation has no waiting task"),
        }
    }

    /// No task waits for `key` any more. True if the kernel still has it: its slot then stays until the answer.
    pub fn abandon(&mut self, key: usize) -> (bool, Option<Answer>) {
        let slot = &mut self.slab[key];
        if let Slot::Landed(_) = slot {
            return match self.slab.remove(key) {
                Slot::Landed(answer) => (false, Some(answer)),
                Slot::Flying { .. } | Slot::Abandoned { .. } => unreachable!("matched above"),
            };
        }
        let landed = Slot::Landed(Answer { result: Ok(0), opened: None });
        if let Slot::Flying { held, opens, .. } = std::mem::replace(slot, landed) {
            *slot = Slot::Abandoned { held, opens };
        }
        (true, None)
    }
}

fn answer(result: i32, opens: Opens) -> Answer {
    if result < 0 {
        return Answer { result: Err(io::Error::from_raw_os_error(-result)), opened: None };
    }
    let opened = (opens == Opens::Descriptor).then(|| {
        // SAFETY: the kernel has just opened this descriptor for us, and says so only here.
        unsafe { OwnedFd::from_raw_fd(result) }
    });
    Answer { result: Ok(result as u32), opened }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::any::Any;
    use std::cell::Cell;
    use std::ptr::NonNull;

    /// Memory that reports when it is freed.
    fn watched(len: usize) -> (Buf, Rc<Cell<bool>>) {
        struct Watched {
            _plain: Buf,
            freed: Rc<Cell<bool>>,
        }
        impl Drop for Watched {
            fn drop(&mut self) {
                self.freed.set(true);
            }
        }
        let freed = Rc::new(Cell::new(false));
        let plain = Buf::zeroed(len);
        let start = NonNull::new(plain.segments()[0].as_ptr()).unwrap();
        let owner: Rc<dyn Any> = Rc::new(Watched { _plain: plain, freed: Rc::clone(&freed) });
        // SAFETY: the owner keeps the plain buffer, which nobody else uses.
        (unsafe { Buf::from_raw(owner, start, len) }, freed)
    }

    /// What the kernel does to memory it knows by address only.
    fn kernel_writes(start: *mut u8, len: usize) {
        // SAFETY: valid while the operation is under way; that is what is tested.
        unsafe { start.write_bytes(0xa5, len) }
    }

    #[test]
    fn a_buffer_outlives_whoever_waited_for_it() {
        let mut slots = Slots::default();
        let (buf, freed) = watched(4096);
        let start = buf.segments()[0].as_ptr();
        let key = slots.insert(buf, Opens::Nothing);
        assert!(slots.abandon(key).0);
        kernel_writes(start, 4096);
        assert!(!freed.get());
        let landing = slots.complete(key, 4096);
        assert!(landing.waker.is_none());
        drop(landing);
        assert!(freed.get());
        assert_eq!((slots.flying(), slots.slab.len()), (0, 0));
    }

    #[test]
    fn an_answer_is_handed_out_once_and_the_memory_is_free_before() {
        let mut slots = Slots::default();
        let (buf, freed) = watched(8);
        let key = slots.insert(buf, Opens::Nothing);
        assert!(slots.poll(key, Waker::noop()).is_pending());
        let landing = slots.complete(key, 7);
        assert!(landing.waker.is_some());
        drop(landing);
        assert!(freed.get());
        let Poll::Ready(answer) = slots.poll(key, Waker::noop()) else { panic!("no answer") };
        assert_eq!(answer.result.unwrap(), 7);
        assert!(slots.slab.is_empty());
    }

    #[test]
    fn an_answer_nobody_took_frees_its_slot() {
        let mut slots = Slots::default();
        let key = slots.insert(Buf::zeroed(8), Opens::Nothing);
        drop(slots.complete(key, -libc::EIO));
        let (flying, unwanted) = slots.abandon(key);
        assert!(!flying);
        assert_eq!(unwanted.unwrap().result.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(slots.slab.is_empty());
    }

    #[test]
    fn a_slot_is_not_reused_while_the_kernel_has_it() {
        let mut slots = Slots::default();
        let first = slots.insert(Buf::zeroed(8), Opens::Nothing);
        assert!(slots.abandon(first).0);
        let second = slots.insert(Buf::zeroed(8), Opens::Nothing);
        assert_ne!(first, second);
        drop(slots.complete(first, 0));
        assert_eq!(slots.insert(Buf::zeroed(8), Opens::Nothing), first);
        assert_eq!(slots.flying(), 2);
    }

    #[test]
    #[cfg_attr(miri, ignore = "descriptors are opened and asked about")]
    fn a_descriptor_nobody_takes_is_closed() {
        use std::os::fd::{AsRawFd, IntoRawFd};
        let mut slots = Slots::default();
        let opened = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let number = opened.as_raw_fd();
        let key = slots.insert((), Opens::Descriptor);
        assert!(slots.abandon(key).0);
        let landing = slots.complete(key, opened.into_raw_fd());
        assert_eq!(landing._unwanted.as_ref().unwrap().opened.as_ref().unwrap().as_raw_fd(), number);
    }
}
