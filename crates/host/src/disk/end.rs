//! The end of an open disk: detects whether it has moved.
//!
//! Another program can cut a file short while it is served. The data beyond the cut is lost, and the next write there
//! makes the file longer again, with a hole before it that reads as zeroes. So a cut has to be noticed before it has
//! any effect, and then the disk fails all requests ([`ErrorKind::Truncated`]) until it is opened anew.
//!
//! A write makes the file longer only up to its own end: the file stays shorter than it was until the last byte of it
//! is written. So the size shows a cut at any time, and is asked for
//! * before a change that reaches the last byte;
//! * after every change, before the change is acknowledged, and after a read with concurrent changes;
//! * at every flush and forced write, and when a read meets the end or a device has no space.
//!
//! To ask takes less than a microsecond where the file system is one of this machine, and is done once a turn at most.
//! Elsewhere it may wait for a server, so a helper thread asks, at flushes, at forced writes and before the last byte.
//! A block device that lost its end does not get it back by a write: the size is asked for at flushes.
//!
//! A file that others cut and make as long as before, between two such moments, is not noticed.

use super::Disk;
use crate::ring::Fd;
use lamina_block::{Durability, Error, ErrorKind, Io, Op, Result, Time};
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// `_IOR(0x12, 114, size_t)` of linux/fs.h.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
/// The magic numbers of file systems that know the size of a file without asking anybody: ext4, xfs, btrfs, tmpfs,
/// f2fs, bcachefs, zfs, overlayfs.
const LOCAL: [u64; 8] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0xF2F5_2010, 0xCA45_1A4E, 0x2FC1_2FC1, 0x794C_7630];

/// The knowledge about the end of a disk.
pub(super) struct End {
    /// So many bytes have to be there.
    pub served: Cell<u64>,
    /// The reason why all requests fail.
    lost: RefCell<Option<Error>>,
    /// The turn in which it was asked last.
    asked: Cell<Option<Time>>,
    /// Changes that are under way.
    changes: Cell<usize>,
}

/// The check that the end of a request needs.
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

    /// Fails if the end is lost.
    pub fn check(&self) -> Result<()> {
        self.lost.borrow().clone().map_or(Ok(()), Err)
    }
}

/// True if the size of the open file can be asked for without waiting.
pub(super) fn is_local(fd: impl AsFd, device: bool) -> bool {
    let is_known = |found: rustix::fs::StatFs| LOCAL.contains(&(found.f_type as u64));
    device || rustix::fs::fstatfs(fd).is_ok_and(is_known)
}

/// The size in bytes, if it is available.
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

    /// True if the size was asked for after this request had ended: in this turn, which found the end.
    fn is_asked(&self, begun: &Begun) -> bool {
        let now = self.tools.clock.now();
        self.end.asked.get() == Some(now) && begun.at < now
    }

    /// Fails if the end is gone. Unless the size has to be known (`must`), it is asked for only where that does not
    /// wait, and once a turn.
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

    /// The disk was found to end at byte `found`.
    pub(super) fn lose(&self, found: u64) -> Error {
        let message = || {
            format!(
                "{} was cut short while in use: from {} bytes to {found}. The data beyond is lost, so all requests \
                 fail until the disk is opened anew. A mirror or parity above does without the disk; any other layer \
                 needs a backup",
                self.facts.path.display(),
                self.end.served.get(),
            )
        };
        let mut lost = self.end.lost.borrow_mut();
        lost.get_or_insert_with(|| Error::new(ErrorKind::Truncated, message())).clone()
    }
}
