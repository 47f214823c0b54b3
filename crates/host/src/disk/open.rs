//! Opening, locking and looking at a file or block device. All of this may block, and runs on a helper thread.

use crate::holders;
use lamina_block::{Buf, Error, Geometry, OpenDisk, Result, Segment};
use rustix::fs::{AtFlags, StatxFlags, ioctl_blkpbszget, ioctl_blksszget, major, minor, statx};
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for a lock, or for the claim to a device: a process that was just killed holds them until the
/// kernel has finished its I/O, and udev takes the lock of a new device for a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Assumed where the kernel does not say what O_DIRECT needs, in bytes.
const ALIGN_UNKNOWN: u32 = 4096;
/// The largest logical block, in bytes.
const BLOCK_MAX: u32 = 64 << 10;

/// The fixed properties of an open disk.
pub(super) struct Facts {
    pub path: PathBuf,
    /// A block device, not a file.
    pub device: bool,
    /// Its size can be asked for without waiting.
    pub local: bool,
    /// A file of tmpfs: a transfer is a copy in memory.
    pub in_memory: bool,
    /// The alignment of memory for O_DIRECT; none through the page cache.
    pub direct: Option<Needs>,
}

/// The alignment of memory that a device reads and writes itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Every segment starts at a multiple of this, in bytes.
    pub start: usize,
    /// Every segment's length is a multiple of this, in bytes. Kernels from 6.17 on ask this of the whole request
    /// only.
    pub length: usize,
}

impl Needs {
    /// True if `buf` can be given to the kernel unchanged.
    pub fn fit(self, buf: &Buf) -> bool {
        let fits = |s: &Segment| {
            (s.as_ptr() as usize).is_multiple_of(self.start) && s.len().is_multiple_of(self.length)
        };
        buf.segments().iter().all(fits)
    }
}

/// Opens and locks what `open` says, and finds out its shape.
pub(super) fn open(open: &OpenDisk) -> Result<(OwnedFd, Facts, Geometry)> {
    let (file, created) = open_or_create(open)?;
    let done = look(&file, open);
    if done.is_err() && created {
        // The file was made a moment ago and is empty.
        let _ = std::fs::remove_file(&open.path);
    }
    let (facts, geometry) = done?;
    Ok((file.into(), facts, geometry))
}

fn look(file: &File, open: &OpenDisk) -> Result<(Facts, Geometry)> {
    let path = &open.path;
    let failed = |what: &str, e: io::Error| failed(path, what, e);
    let meta = file.metadata().map_err(|e| failed("asked about", e))?;
    let device = meta.file_type().is_block_device();
    lock(file, open)?;
    let (least, optimal) = if device {
        let sector = ioctl_blksszget(file).map_err(|e| failed("asked for its sector size", e.into()))?;
        (sector, ioctl_blkpbszget(file).unwrap_or(sector))
    } else {
        (512, u32::try_from(meta.blksize()).unwrap_or(4096))
    };
    let (direct, least) = if open.direct {
        let (start, least) = direct_needs(file, path, least)?;
        (Some(Needs { start: start as usize, length: least as usize }), least)
    } else {
        (None, least)
    };
    let block = block(open, least)?;
    let size = size(file, block)
        .map_err(|e| Error::new(e.kind(), format!("{}: {}", path.display(), e.message())))?;
    let (discard, zero) = if open.read_only {
        (false, false)
    } else if device {
        (limit(&meta, "discard_max_bytes") > 0, limit(&meta, "write_zeroes_max_bytes") > 0)
    } else {
        let punches = punches(file, size);
        (punches, punches)
    };
    let optimal = optimal.next_power_of_two().max(block);
    let read_only = open.read_only;
    let geometry = Geometry { size, block, optimal, stripe: 0, read_only, discard, zero, fua: true };
    // The file system of a device's node says nothing of the device.
    let in_memory = !device && rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == libc::TMPFS_MAGIC);
    let local = super::end::is_local(file, device);
    Ok((Facts { path: path.clone(), device, local, in_memory, direct }, geometry))
}

/// The file, and whether it was made just now.
fn open_or_create(open: &OpenDisk) -> Result<(File, bool)> {
    let path = &open.path;
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return match open.create {
                Some(size) if !open.read_only => create(open, size).map(|file| (file, true)),
                Some(_) => Err(failed(path, "opened", e)),
                None if open.read_only => Err(failed(path, "opened", e)),
                None => Err(failed(path, "opened (the key size = \"10GiB\" makes the file)", e)),
            };
        }
        Err(e) => return Err(failed(path, "opened", e)),
    };
    let kind = meta.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::invalid(format!("{} is neither a file nor a block device", path.display())));
    }
    let claim = if kind.is_block_device() && !open.read_only { libc::O_EXCL } else { 0 };
    let end = Instant::now() + LOCK_PATIENCE;
    loop {
        match options(open, claim).open(path) {
            Ok(file) => return Ok((file, false)),
            Err(e) if e.raw_os_error() != Some(libc::EBUSY) => return Err(failed(path, "opened", e)),
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return Err(in_use(path, &meta, "the device is mounted or part of another device")),
        }
    }
}

fn options(open: &OpenDisk, flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    let direct = if open.direct { libc::O_DIRECT } else { 0 };
    options.read(true).write(!open.read_only).mode(0o600).custom_flags(flags | direct);
    options
}

/// A sparse file that is there after a power cut, too.
fn create(open: &OpenDisk, size: u64) -> Result<File> {
    let path = &open.path;
    let file = options(open, 0).create_new(true).open(path).map_err(|e| failed(path, "created", e))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let made =
        file.set_len(size).and_then(|()| file.sync_all()).and_then(|()| File::open(folder)?.sync_all());
    if let Err(e) = made {
        let _ = std::fs::remove_file(path);
        return Err(failed(path, &format!("given {size} bytes"), e));
    }
    Ok(file)
}

/// One writer, or any number of readers.
fn lock(file: &File, open: &OpenDisk) -> Result<()> {
    let end = Instant::now() + LOCK_PATIENCE;
    loop {
        let locked = if open.read_only { file.try_lock_shared() } else { file.try_lock() };
        match locked {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                let what = if open.read_only {
                    "another process, or another device of this hierarchy, has the file open for writing"
                } else {
                    "another process, or another device of this hierarchy, has the file open"
                };
                let meta = file.metadata().map_err(|e| failed(&open.path, "looked at", e))?;
                return Err(in_use(&open.path, &meta, what));
            }
            Err(TryLockError::Error(e)) => return Err(failed(&open.path, "locked", e)),
        }
    }
}

/// Alignment of memory and of offsets that O_DIRECT needs, in bytes.
fn direct_needs(file: &File, path: &Path, least: u32) -> Result<(u32, u32)> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match found {
        Ok(s) if s.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            if s.stx_dio_offset_align == 0 {
                return Err(no_direct(path));
            }
            Ok((s.stx_dio_mem_align.max(1), s.stx_dio_offset_align.max(least)))
        }
        Ok(_) | Err(_) => Ok((ALIGN_UNKNOWN, ALIGN_UNKNOWN.max(least))),
    }
}

fn no_direct(path: &Path) -> Error {
    let path = path.display();
    Error::unsupported(format!("{path} is on a file system without direct I/O: set direct = false"))
}

/// The logical block: the wanted one, if the disk allows it.
fn block(open: &OpenDisk, least: u32) -> Result<u32> {
    let block = open.block.unwrap_or(least);
    let path = open.path.display();
    if !block.is_power_of_two() || !(512..=BLOCK_MAX).contains(&block) {
        return Err(Error::invalid(format!(
            "{path}: a block of {block} bytes: a block must be a power of two from 512 to {BLOCK_MAX}"
        )));
    }
    if block < least {
        let hint = if open.direct { ", or set direct = false" } else { "" };
        return Err(Error::invalid(format!(
            "{path}: a block of {block} bytes is too small here: {least} is the least{hint}"
        )));
    }
    Ok(block)
}

/// The size in bytes, which must be whole blocks.
pub(super) fn size(fd: &impl AsFd, block: u32) -> Result<u64> {
    let size = File::from(fd.as_fd().try_clone_to_owned()?).seek(SeekFrom::End(0))?;
    let block = u64::from(block);
    if size.is_multiple_of(block) {
        return Ok(size);
    }
    Err(Error::invalid(format!(
        "its size of {size} bytes is no multiple of its block of {block}: if it is the raw image of a disk, make it {} \
         bytes (truncate --size)",
        size.next_multiple_of(block)
    )))
}

/// Gives a file another size.
pub(super) fn set_size(
    fd: &OwnedFd,
    device: bool,
    before: u64,
    size: u64,
    block: u32,
    force: bool,
) -> Result<u64> {
    if device {
        return Err(Error::invalid(
            "the size of a block device is fixed here: change it at its source, then resize without a size",
        ));
    }
    if !size.is_multiple_of(u64::from(block)) {
        return Err(Error::invalid(format!("{size} bytes is no multiple of the block of {block}")));
    }
    if size < before && !force {
        return Err(Error::invalid(format!(
            "{size} bytes is less than the present {before}, and the data beyond would be lost: give force to confirm"
        )));
    }
    let file = File::from(fd.try_clone()?);
    file.set_len(size)?;
    file.sync_all()?;
    Ok(size)
}

/// Whether the file system makes holes. Tried beyond the end, where there is nothing to lose.
fn punches(file: &File, size: u64) -> bool {
    use rustix::fs::{FallocateFlags, fallocate};
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, hole, size.next_multiple_of(4096), 4096).is_ok()
}

/// A limit of a block device's queue, in bytes; 0 where the device cannot.
pub(super) fn limit(meta: &Metadata, name: &str) -> u64 {
    let device = format!("/sys/dev/block/{}:{}", major(meta.rdev()), minor(meta.rdev()));
    // A partition has its disk's queue.
    let read = |path: String| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    read(format!("{device}/queue/{name}")).or_else(|| read(format!("{device}/../queue/{name}"))).unwrap_or(0)
}

/// The error about what the operating system refuses.
pub(super) fn failed(path: &Path, what: &str, e: io::Error) -> Error {
    let hint = match e.kind() {
        io::ErrorKind::ReadOnlyFilesystem => ": read-only = true opens it for reading",
        io::ErrorKind::InvalidInput if what == "opened" => return no_direct(path),
        _ => "",
    };
    let message = format!("{} cannot be {what}: {e}{hint}", path.display());
    Error::new(Error::from(e).kind(), message)
}

fn in_use(path: &Path, meta: &Metadata, why: &str) -> Error {
    let holders = match holders::of(meta).as_slice() {
        [] => String::new(),
        some => format!(" ({})", some.join("; ")),
    };
    let message = format!(
        "{} is in use: {why}{holders}. Stop that first, or open it with read-only = true in both",
        path.display()
    );
    Error::busy(message)
}
