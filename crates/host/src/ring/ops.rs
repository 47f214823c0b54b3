//! The operations, each built together with what it needs: the only place where addresses are given to the kernel.

use super::slots::{Fd, Held, Memory, Opens};
use super::{Operation, Ring};
use io_uring::{opcode, squeue, types};
use lamina_block::Buf;
use rustix::net::SocketAddrAny;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;

/// The most that the kernel moves in one operation, in bytes (MAX_RW_COUNT). More is cut to it, and the caller goes
/// on from there.
const BYTES_MAX: usize = 0x7fff_f000;
/// The most segments in one operation (UIO_MAXIOV). More are cut in the same way.
const SEGMENTS_MAX: usize = 1024;

/// When a write is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sync {
    /// When the write is visible.
    No,
    /// When the write is durable (RWF_DSYNC).
    Data,
}

impl Sync {
    fn flags(self) -> i32 {
        match self {
            Sync::No => 0,
            Sync::Data => libc::RWF_DSYNC,
        }
    }
}

/// What a call has answered: a number of bytes, which fits as it is no more than [`BYTES_MAX`].
fn counted(answer: isize) -> io::Result<u32> {
    u32::try_from(answer).map_err(|_| io::Error::last_os_error())
}

fn raw(fd: &Fd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

/// The first segment of a buffer that has no other.
fn single(buf: &Buf) -> Option<(*mut u8, u32)> {
    match buf.segments() {
        [] => Some((std::ptr::NonNull::dangling().as_ptr(), 0)),
        [one] => Some((one.as_ptr(), one.len().min(BYTES_MAX) as u32)),
        _ => None,
    }
}

fn vectors(buf: &Buf) -> Box<[libc::iovec]> {
    let vector = |s: &lamina_block::Segment| libc::iovec { iov_base: s.as_ptr().cast(), iov_len: s.len() };
    buf.segments().iter().take(SEGMENTS_MAX).map(vector).collect()
}

impl Ring {
    /// Reads from `at` into the buffer; the answer is the number of bytes, fewer than asked for where the kernel
    /// likes.
    pub fn read(self: &Rc<Self>, fd: &Fd, into: Buf, at: u64) -> Operation {
        let (entry, memory) = match single(&into) {
            Some((start, len)) => {
                (opcode::Read::new(raw(fd), start, len).offset(at).build(), Memory::Buf(into))
            }
            None => {
                let list = vectors(&into);
                let entry = opcode::Readv::new(raw(fd), list.as_ptr(), list.len() as u32).offset(at).build();
                (entry, Memory::Vectors(into, list))
            }
        };
        self.begin(entry, fd, memory)
    }

    /// Writes the buffer at `at`; the answer is the number of bytes, fewer than asked for where the kernel likes.
    pub fn write(self: &Rc<Self>, fd: &Fd, from: Buf, at: u64, sync: Sync) -> Operation {
        let flags = sync.flags();
        let (entry, memory) = match single(&from) {
            Some((start, len)) => {
                let entry = opcode::Write::new(raw(fd), start, len).offset(at).rw_flags(flags).build();
                (entry, Memory::Buf(from))
            }
            None => {
                let list = vectors(&from);
                let entry = opcode::Writev::new(raw(fd), list.as_ptr(), list.len() as u32).offset(at);
                (entry.rw_flags(flags).build(), Memory::Vectors(from, list))
            }
        };
        self.begin(entry, fd, memory)
    }

    /// Reads at once, as [`Ring::read`], and waits until that is done: for files in memory.
    pub fn read_now(fd: &Fd, into: &Buf, at: u64) -> io::Result<u32> {
        let list = vectors(into);
        // SAFETY: the list refers to memory that the buffer keeps alive until the call returns.
        counted(unsafe { libc::preadv(fd.as_raw_fd(), list.as_ptr(), list.len() as i32, at as i64) })
    }

    /// Writes at once, as [`Ring::write`], and waits until that is done: for files in memory.
    pub fn write_now(fd: &Fd, from: &Buf, at: u64, sync: Sync) -> io::Result<u32> {
        let list = vectors(from);
        let (fd, count) = (fd.as_raw_fd(), list.len() as i32);
        // SAFETY: as in `read_now`; the kernel only reads the memory.
        counted(unsafe { libc::pwritev2(fd, list.as_ptr(), count, at as i64, sync.flags()) })
    }

    /// Makes data durable, and with it what is needed to find it (fdatasync).
    pub fn datasync(self: &Rc<Self>, fd: &Fd) -> Operation {
        let entry = opcode::Fsync::new(raw(fd)).flags(types::FsyncFlags::DATASYNC).build();
        self.begin(entry, fd, Memory::None)
    }

    /// Changes the allocation of a range (fallocate).
    pub fn fallocate(self: &Rc<Self>, fd: &Fd, mode: i32, at: u64, len: u64) -> Operation {
        let entry = opcode::Fallocate::new(raw(fd), len).offset(at).mode(mode).build();
        self.begin(entry, fd, Memory::None)
    }

    /// Receives from a socket; 0 when the peer has closed.
    pub fn receive(self: &Rc<Self>, fd: &Fd, into: Buf) -> Operation {
        let (entry, memory) = match single(&into) {
            Some((start, len)) => (opcode::Recv::new(raw(fd), start, len).build(), Memory::Buf(into)),
            None => {
                let (list, mut header) = message(&into);
                let entry = opcode::RecvMsg::new(raw(fd), &raw mut *header).build();
                (entry, Memory::Message(into, list, header))
            }
        };
        self.begin(entry, fd, memory)
    }

    /// Sends on a socket, as much as the kernel takes. A peer that is gone is an error, not a signal.
    pub fn send(self: &Rc<Self>, fd: &Fd, from: Buf) -> Operation {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let (entry, memory) = match single(&from) {
            Some((start, len)) => {
                (opcode::Send::new(raw(fd), start, len).flags(flags).build(), Memory::Buf(from))
            }
            None => {
                let (list, header) = message(&from);
                let entry = opcode::SendMsg::new(raw(fd), &raw const *header).flags(flags as u32).build();
                (entry, Memory::Message(from, list, header))
            }
        };
        self.begin(entry, fd, memory)
    }

    /// Sends at once what the kernel takes without waiting: `WouldBlock` if that is nothing. The other end begins while
    /// the turn goes on here, and no answer has to be waited for.
    pub fn send_now(fd: &Fd, from: &Buf) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        let sent = match single(from) {
            // SAFETY: the buffer keeps the memory alive until the call returns; the kernel only reads it.
            Some((start, len)) => unsafe { libc::send(fd.as_raw_fd(), start.cast(), len as usize, flags) },
            None => {
                let (_list, header) = message(from);
                // SAFETY: as above; the header refers to the list, and both live until the call returns.
                unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const *header, flags) }
            }
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Waits for a connection; the answer has its descriptor.
    pub fn accept(self: &Rc<Self>, fd: &Fd) -> Operation {
        let entry = opcode::Accept::new(raw(fd), std::ptr::null_mut(), std::ptr::null_mut());
        let held = Held { fd: Rc::clone(fd), memory: Memory::None };
        // SAFETY: no memory is given; the slot keeps the file open.
        unsafe { self.start(entry.flags(libc::SOCK_CLOEXEC).build(), held, Opens::Descriptor) }
    }

    /// Connects a socket.
    pub fn connect(self: &Rc<Self>, fd: &Fd, to: SocketAddrAny) -> Operation {
        let to = Box::new(to);
        let entry = opcode::Connect::new(raw(fd), to.as_ptr().cast(), to.addr_len()).build();
        self.begin(entry, fd, Memory::Address(to))
    }

    /// Waits until there is something to read.
    pub fn readable(self: &Rc<Self>, fd: &Fd) -> Operation {
        let entry = opcode::PollAdd::new(raw(fd), libc::POLLIN as u32).build();
        self.begin(entry, fd, Memory::None)
    }

    fn begin(self: &Rc<Self>, entry: squeue::Entry, fd: &Fd, memory: Memory) -> Operation {
        let held = Held { fd: Rc::clone(fd), memory };
        // SAFETY: every caller above builds the entry from `fd` and from addresses inside `memory` only: segments,
        // which their buffer keeps alive, and boxes. All resources go into the slot.
        unsafe { self.start(entry, held, Opens::Nothing) }
    }
}

/// A socket message of a buffer's segments.
fn message(buf: &Buf) -> (Box<[libc::iovec]>, Box<libc::msghdr>) {
    let mut list = vectors(buf);
    // SAFETY: zeroes are a valid header: no name, no segments, no control data.
    let mut header: Box<libc::msghdr> = Box::new(unsafe { std::mem::zeroed() });
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = list.len();
    (list, header)
}
