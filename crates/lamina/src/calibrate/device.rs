//! A device or file that is read past the page cache, one request at a time, in real time.
//!
//! Writes are for a device that was opened for them: nobody else has it open then, as far as the kernel says.

use lamina_calibrate::Probe;
use lamina_calibrate::ssd::{self, Cell};
use lamina_drive::{Op, Request, SECTOR};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Memory for O_DIRECT is aligned to this, which is enough for any device.
const ALIGNMENT: usize = 4096;
/// Bytes of the longest request.
const BUFFER: usize = 1 << 25;
/// Waits shorter than this are spent looking at the clock: sleeping takes longer.
const SLEEP_MIN: Duration = Duration::from_micros(200);

/// A device that is read.
pub struct Device {
    file: File,
    sectors: u64,
    buffer: Buffer,
    /// When the last answer came.
    answered: Instant,
}

/// Aligned memory.
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// Memory for `len` bytes.
    pub fn new(len: usize) -> Buffer {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Buffer { memory, start }
    }

    /// The first `len` bytes, at most as many as there are.
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        let end = (self.start + len).min(self.memory.len());
        &mut self.memory[self.start..end]
    }
}

/// Opens `path` past the page cache, and says how large it is. For `writes` it must not be in use.
fn open(path: &Path, writes: bool) -> io::Result<(File, u64)> {
    use rustix::fs::{FlockOperation, OFlags, flock};
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("neither a file nor a block device"));
    }
    // The kernel refuses a device that is mounted or part of another one.
    let claim = if writes && kind.is_block_device() { OFlags::EXCL } else { OFlags::empty() };
    let flags = OFlags::DIRECT | OFlags::NONBLOCK | claim;
    let mut file =
        OpenOptions::new().read(true).write(writes).custom_flags(flags.bits() as i32).open(path)?;
    if writes {
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| io::Error::other("in use: another process has it locked"))?;
    }
    let size = file.seek(SeekFrom::End(0))?;
    Ok((file, size))
}

impl Device {
    /// The device at `path`. `writes`: to be written as well, by nobody else.
    pub fn open(path: &Path, writes: bool) -> Result<Device, String> {
        let wrong = |e: io::Error| format!("{}: {e}", path.display());
        let (file, size) = open(path, writes).map_err(wrong)?;
        let buffer = Buffer::new(BUFFER);
        Ok(Device { file, sectors: size / SECTOR, buffer, answered: Instant::now() })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.sectors * SECTOR
    }

    fn worker(&self, bytes: u64, end: Instant, seed: u64) -> Result<Vec<f64>, String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut buffer = Buffer::new(bytes as usize);
        let places = (self.sectors * SECTOR / bytes).max(1);
        let mut us = Vec::new();
        loop {
            let start = Instant::now();
            if start >= end {
                return Ok(us);
            }
            let offset = rng.u64(..places) * bytes;
            let read = self.file.read_exact_at(buffer.bytes(bytes as usize), offset);
            read.map_err(|e| format!("{bytes} bytes at {offset} cannot be read: {e}"))?;
            us.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
}

impl ssd::Device for Device {
    fn bytes(&self) -> u64 {
        Device::bytes(self)
    }

    fn read_for(&mut self, cell: Cell, time: Duration, seed: u64) -> Result<Vec<f64>, String> {
        let (device, end) = (&*self, Instant::now() + time);
        let worker = |n: u32| device.worker(cell.length, end, seed.wrapping_add(u64::from(n)));
        let all: Vec<Result<Vec<f64>, String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..cell.depth).map(|n| scope.spawn(move || worker(n))).collect();
            let died = || Err("a reading thread has died".to_owned());
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| died())).collect()
        });
        Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
    }
}

impl Probe for Device {
    fn ask(&mut self, request: Request, think_us: f64) -> Result<f64, String> {
        let Request { op, lbn, sectors } = request;
        let len = u64::from(sectors) * SECTOR;
        if len > BUFFER as u64 {
            return Err(format!("{sectors} sectors are more than a request has"));
        }
        let due = self.answered + Duration::from_secs_f64(think_us / 1e6);
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if left > SLEEP_MIN {
                std::thread::sleep(left - SLEEP_MIN);
            }
        }
        let (bytes, at) = (self.buffer.bytes(len as usize), lbn * SECTOR);
        let (name, done) = match op {
            Op::Read => ("read", self.file.read_exact_at(bytes, at)),
            Op::Write => ("written", self.file.write_all_at(bytes, at)),
            Op::Flush => ("flushed", self.file.sync_data()),
            Op::Discard => return Err("discards are not measured".into()),
        };
        done.map_err(|e| format!("{sectors} sectors at {lbn} cannot be {name}: {e}"))?;
        self.answered = Instant::now();
        Ok((self.answered - due).as_secs_f64() * 1e6)
    }

    fn sectors(&self) -> u64 {
        self.sectors
    }
}
