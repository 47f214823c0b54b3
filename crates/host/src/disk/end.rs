//! The end of a disk that is open: whether it is still where it was.
//!
//! Another program can cut a file short while it is served. What lay behind the cut is lost, and the next write behind it
//! makes the file longer again, with a hole before it that reads as zeroes. So a cut has to be noticed before anything
//! follows from it, and then the disk fails everything ([`ErrorKind::Truncated`]) until it is opened anew.
//!
//! A write makes the file longer only up to its own end: the file stays shorter than it was until the last byte of it is
//! written. So the size says at any time that there was a cut, if it is asked for
//! * before a change that reaches the last byte;
//! * after every change, before it is called done, and after a read that others were changing something beside;
//! * at every flush and forced write, and when a read meets the end or a device has no room.
//!
//! To ask takes less than a microsecond where the file system is one of this machine, and is done once a turn at most.
//! Elsewhere it may wait for a server, so a helper thread asks, at flushes, at forced writes and before the last byte. A block
//! device that lost its end does not get it back by being written to: it is asked at flushes.
//!
//! It does not notice a file that others cut and make as long as before, between two such moments.

use super::Disk;
use crate::ring::Fd;
use lamina_block::{Durability, Error, ErrorKind, Io, Op, Result, Time};
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// `_IOR(0x12, 114, size_t)` of linux/fs.h.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
/// The magic numbers of file systems that know the size of a file without asking anybody: ext4, xfs, btrfs, tmpfs, f2fs,
/// bcachefs, zfs, overlayfs.
const LOCAL: [u64; 8] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0xF2F5_2010, 0xCA45_1A4E, 0x2FC1_2FC1, 0x794C_7630];

/// What is known of the end of a disk.
pub(super) struct End {
    /// So many bytes have to be there.
    pub served: Cell<u64>,
    /// Why nothing is asked of it any more.
    lost: RefCell<Option<Error>>,
    /// The turn in which it was asked last.
    asked: Cell<Option<Time>>,
    /// Changes that are under way.
    changes: Cell<usize>,
}

/// What is to be known when a request has ended.
pub(super) struct Begun {
    at: Time,
    is_change: bool,
    is_durable: bool,
}

impl End {
    pub fn new(served: u64) -> End {
        End {
            served: Cell::new(served),
            lost: RefCell::default(),
            asked: Cell::default(),
            changes: Cell::default(),
        }
    }

    /// Fails if it is lost.
    pub fn check(&self) -> Result<()> {
        self.lost.borrow().clone().map_or(Ok(()), Err)
    }
}

/// True if the size of what is open can be asked for without waiting.
pub(super) fn is_local(fd: impl AsFd, device: bool) -> bool {
    let is_known = |found: rustix::fs::StatFs| LOCAL.contains(&(found.f_type as u64));
    device || rustix::fs::fstatfs(fd).is_ok_and(is_known)
}

/// The size in bytes, if it can be told.
fn size(fd: &OwnedFd, device: bool) -> Option<u64> {
    if !device {
        return rustix::fs::fstat(fd).ok().and_then(|found| u64::try_from(found.st_size).ok());
    }
    let mut size = 0u64;
    // SAFETY: the ioctl writes a 64-bit number to the address given, and `size` lives until it returns.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64, &raw mut size) };
    (done == 0).then_some(size)
}

impl Disk {
    /// A request is about to be submitted.
    pub(super) async fn begin(&self, fd: &Fd, io: &Io) -> Result<Begun> {
        let (is_change, is_durable) = match &io.op {
            Op::Write(_, durability) => (true, *durability == Durability::Fua),
            Op::Zero(how) => (true, how.durability == Durability::Fua),
            Op::Discard => (true, false),
            Op::Read(_) => (false, false),
            Op::Flush => (false, true),
        };
        if is_change && io.at.end >= self.end.served.get() && !self.facts.device {
            self.ask(fd, true).await?;
        }
        let changes = self.end.changes.get() + usize::from(is_change);
        self.end.changes.set(changes);
        Ok(Begun { at: self.tools.clock.now(), is_change, is_durable })
    }

    /// A request has ended well, or not.
    pub(super) async fn ended(&self, fd: &Fd, begun: Begun, result: Result<()>) -> Result<()> {
        let beside = self.end.changes.get() > 0;
        self.end.changes.set(self.end.changes.get() - usize::from(begun.is_change));
        let no_room = result.as_ref().is_err_and(|e| self.facts.device && e.kind() == ErrorKind::NoSpace);
        if begun.is_durable || no_room {
            self.ask(fd, true).await?;
        } else if beside && !self.facts.device && !self.is_asked(&begun) {
            self.ask(fd, false).await?;
        }
        self.end.check()?;
        result
    }

    /// True if it was asked after this had ended: in this turn, which found it ended.
    fn is_asked(&self, begun: &Begun) -> bool {
        let now = self.tools.clock.now();
        self.end.asked.get() == Some(now) && begun.at < now
    }

    /// Fails if the end is gone. Unless it has to be known (`must`), it is asked only where that does not wait, and once a
    /// turn.
    pub(super) async fn ask(&self, fd: &Fd, must: bool) -> Result<()> {
        let (device, now) = (self.facts.device, self.tools.clock.now());
        let found = if self.facts.local {
            self.end.asked.set(Some(now));
            size(fd, device)
        } else if must {
            let fd = fd.try_clone()?;
            self.tools.helpers.run(move || size(&fd, device)).await?
        } else {
            None
        };
        match found {
            Some(found) if found < self.end.served.get() => Err(self.lose(found)),
            Some(_) | None => self.end.check(),
        }
    }

    /// It was seen that nothing is behind byte `found`.
    pub(super) fn lose(&self, found: u64) -> Error {
        let message = || {
            format!(
                "{} was cut short while it was in use: it had {} bytes, and has {found}. What lay behind is lost, so nothing \
                 is asked of it until it is opened anew. A mirror or parity above does without it; anything else needs a \
                 backup",
                self.facts.path.display(),
                self.end.served.get(),
            )
        };
        let mut lost = self.end.lost.borrow_mut();
        lost.get_or_insert_with(|| Error::new(ErrorKind::Truncated, message())).clone()
    }
}
