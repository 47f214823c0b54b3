//! Allocation: discards, zeroes, block status, and changes of the size.

use super::Disk;
use super::open;
use crate::ring::{Fd, Sync};
use lamina_block::{Bytes, Command, Durability, Effect, Error, Extent, ExtentState, Io, Result, Zero};
use rustix::fs::{SeekFrom, seek};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
/// `_IO(0x12, 119)` of linux/fs.h.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// The most zeroes in one write, in bytes.
const ZEROES_MAX: u64 = 1 << 20;
/// The most runs in one answer; the rest is called data, which is always allowed.
const EXTENTS_MAX: usize = 1 << 16;

/// The arguments of `resize`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resize {
    size: Option<Bytes>,
    #[serde(default)]
    force: bool,
}

impl Disk {
    pub(super) async fn discard(&self, fd: &Fd, at: Range<u64>) -> Result<()> {
        let done = if self.facts.device {
            let fd = fd.try_clone()?;
            let range = at.clone();
            self.tools.helpers.run(move || discard_device(&fd, range)).await?
        } else {
            match self.fallocate(fd, PUNCH, &at).await {
                Ok(true) => Ok(()),
                // The contents are not needed: keeping them is allowed.
                Ok(false) => Ok(()),
                Err(e) => Err(e),
            }
        };
        done.map_err(|e| Error::from(e).at(at))
    }

    pub(super) async fn zero(&self, fd: &Fd, at: Range<u64>, how: Zero) -> Result<()> {
        let Zero { unmap, fast, durability } = how;
        let natively = self.zero_natively(fd, &at, unmap).await.map_err(|e| Error::from(e).at(at.clone()))?;
        if !natively {
            if fast {
                return Err(Error::unsupported("zeroing is not fast here").at(at));
            }
            self.write_zeroes(fd, at).await?;
        }
        match durability {
            Durability::Cached => Ok(()),
            Durability::Fua => self.flush(fd).await,
        }
    }

    /// False if the file system or device cannot.
    async fn zero_natively(&self, fd: &Fd, at: &Range<u64>, unmap: bool) -> io::Result<bool> {
        if unmap && self.fallocate(fd, PUNCH, at).await? {
            return Ok(true);
        }
        if self.zero_range.get() {
            if self.fallocate(fd, ZERO_RANGE, at).await? {
                return Ok(true);
            }
            self.zero_range.set(false);
        }
        Ok(false)
    }

    /// False if the file system or device cannot.
    async fn fallocate(&self, fd: &Fd, mode: i32, at: &Range<u64>) -> io::Result<bool> {
        loop {
            match self.tools.ring.fallocate(fd, mode, at.start, at.end - at.start).await.result {
                Ok(_) => return Ok(true),
                Err(e) if super::is_again(&e) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
    }

    async fn write_zeroes(&self, fd: &Fd, at: Range<u64>) -> Result<()> {
        let zeroes = self.tools.pool.take((at.end - at.start).min(ZEROES_MAX) as usize);
        zeroes.fill(0);
        let whole = Io::discard(at);
        let mut start = whole.at.start;
        while start < whole.at.end {
            let len = (whole.at.end - start).min(zeroes.len() as u64);
            self.write_all(fd, zeroes.slice(0..len as usize), start, Sync::No).await?;
            start += len;
        }
        Ok(())
    }

    /// Data and holes. A range that was zeroed with its space kept is called a hole by most file systems, and so
    /// here.
    pub(super) async fn allocation(&self, at: Range<u64>) -> Result<Vec<Extent>> {
        self.end.check()?;
        if self.facts.device {
            let mut all = Vec::new();
            Extent::push(&mut all, at.end - at.start, ExtentState::Data);
            return Ok(all);
        }
        let fd = self.fd()?;
        let copy = fd.try_clone()?;
        let block = u64::from(self.geometry.get().block);
        let range = at.clone();
        let runs = self.tools.helpers.run(move || runs(&copy, range, block)).await?;
        // The range beyond the end of a file looks like a hole.
        self.ask(&fd, true).await?;
        runs.map_err(|e| Error::from(e).at(at))
    }

    /// The effect of a command on devices above, and the data that is lost with it. The present state of a file is not
    /// known before a look at it.
    pub(super) fn effect_of(&self, command: &Command) -> Effect {
        let asked = serde_json::from_value::<Resize>(command.args.clone()).ok();
        let Some(Resize { size, force }) = asked.filter(|_| command.name == "resize") else {
            return Effect::default();
        };
        let before = Bytes(self.geometry.get().size);
        match size {
            Some(after) if after.0 < before.0 => {
                Effect::replaces(format!("the data beyond {after} of the present {before}"))
            }
            None if force => Effect::replaces(format!("the missing part of the former {before}")),
            Some(_) | None => Effect::default(),
        }
    }

    pub(super) async fn resize(&self, args: Value) -> Result<Value> {
        let args = if args.is_null() { json!({}) } else { args };
        let Resize { size, force } =
            serde_json::from_value(args).map_err(|e| Error::invalid(format!("resize: {e}")))?;
        let before = self.geometry.get();
        self.end.check()?;
        if let Some(Bytes(size)) = size.filter(|_| force) {
            self.end.served.set(before.size.min(size));
        }
        let fd = self.fd()?.try_clone()?;
        let (device, block) = (self.facts.device, before.block);
        if size.is_some() && before.read_only {
            return Err(Error::invalid("resize: the disk is open for reading only"));
        }
        let now = self.tools.helpers.run(move || match size {
            Some(Bytes(size)) => open::set_size(&fd, device, before.size, size, block, force),
            None => open::size(&fd, block),
        });
        let refused = |now: u64| size.is_none() && now < before.size && !force;
        let now = now.await?.map_err(|e| Error::new(e.kind(), format!("resize: {}", e.message())));
        if let Ok(now) = now
            && refused(now)
        {
            return Err(Error::invalid(format!(
                "resize: the file has become smaller, {} instead of {}: give the file its size back, or say force=true \
                 if the data beyond is not needed",
                Bytes(now),
                Bytes(before.size)
            )));
        }
        self.end.served.set(now.as_ref().copied().unwrap_or(before.size));
        let now = now?;
        self.geometry.set(before.with_size(now));
        Ok(json!({ "size": now }))
    }
}

/// Discards on a block device. The call waits for the device, so a helper thread makes it.
fn discard_device(fd: &OwnedFd, at: Range<u64>) -> io::Result<()> {
    let range: [u64; 2] = [at.start, at.end - at.start];
    // SAFETY: the ioctl reads two 64-bit numbers at the address given, and `range` lives until it returns.
    match unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // The contents are not needed: keeping them is allowed.
            e if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP)) => Ok(()),
            e => Err(e),
        },
    }
}

/// The runs of data and holes in `at`, in whole blocks: a block with any data is data.
fn runs(fd: &OwnedFd, at: Range<u64>, block: u64) -> io::Result<Vec<Extent>> {
    let mut runs = Vec::new();
    let mut here = at.start;
    while here < at.end {
        if runs.len() >= EXTENTS_MAX {
            Extent::push(&mut runs, at.end - here, ExtentState::Data);
            break;
        }
        let data = match seek(fd, SeekFrom::Data(here)) {
            Ok(data) => (data / block * block).clamp(here, at.end),
            Err(rustix::io::Errno::NXIO) => at.end,
            // The file system does not know its holes.
            Err(rustix::io::Errno::INVAL) => here,
            Err(e) => return Err(e.into()),
        };
        Extent::push(&mut runs, data - here, ExtentState::Hole);
        if data == at.end {
            break;
        }
        let hole = match seek(fd, SeekFrom::Hole(data)) {
            Ok(hole) => hole.next_multiple_of(block).clamp(data, at.end),
            Err(rustix::io::Errno::NXIO | rustix::io::Errno::INVAL) => at.end,
            Err(e) => return Err(e.into()),
        };
        // Holes that come and go while we look must not keep us here.
        let hole = if hole == here { (here + block).min(at.end) } else { hole };
        Extent::push(&mut runs, hole - data, ExtentState::Data);
        here = hole;
    }
    Ok(runs)
}
