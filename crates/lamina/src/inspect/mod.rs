//! `lamina inspect`: what is on this disk, and who holds it. Only looks; opens for reading and locks nothing.

mod holders;
mod signature;

pub use signature::{Found, scan};

use crate::cli;
use crate::exit::Failure;
use lamina_block::Bytes;
use rustix::fs::{ioctl_blkpbszget, ioctl_blksszget};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What was found out about a disk.
#[derive(Debug, Serialize)]
struct Report {
    path: String,
    /// `file` or `block device`.
    kind: &'static str,
    size: u64,
    /// Bytes that the file occupies; nothing for a device.
    allocated: Option<u64>,
    /// Logical and physical sector in bytes; nothing for a file.
    logical_sector: Option<u32>,
    physical_sector: Option<u32>,
    signatures: Vec<Found>,
    /// Who uses it, in words.
    holders: Vec<String>,
}

/// Runs `lamina inspect`.
pub fn run(args: &cli::Inspect) -> Result<(), Failure> {
    let report = inspect(&args.device)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        out.write_all(text(&report).as_bytes())?;
    }
    Ok(())
}

fn inspect(path: &Path) -> Result<Report, Failure> {
    let wrong = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
    // Without O_NONBLOCK a FIFO would wait for a writer.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).map_err(wrong)?;
    let meta = file.metadata().map_err(wrong)?;
    let device = meta.file_type().is_block_device();
    if !device && !meta.is_file() {
        return Err(Failure::usage(format!("{}: neither a file nor a block device", path.display())));
    }
    let size = file.seek(SeekFrom::End(0)).map_err(wrong)?;
    let sector = |get: fn(&File) -> rustix::io::Result<u32>| if device { get(&file).ok() } else { None };
    Ok(Report {
        path: path.display().to_string(),
        kind: if device { "block device" } else { "file" },
        size,
        allocated: (!device).then(|| meta.blocks() * 512),
        logical_sector: sector(|f| ioctl_blksszget(f)),
        physical_sector: sector(|f| ioctl_blkpbszget(f)),
        signatures: scan(&file, size).map_err(wrong)?,
        holders: holders::of(&meta, device),
    })
}

fn text(report: &Report) -> String {
    let mut out = format!("{}: {}, {} ({} bytes)", report.path, report.kind, Bytes(report.size), report.size);
    if let Some(allocated) = report.allocated {
        let _ = write!(out, ", {} occupied", Bytes(allocated));
    }
    if let (Some(logical), Some(physical)) = (report.logical_sector, report.physical_sector) {
        let _ = write!(out, ", sectors of {logical} bytes ({physical} physical)");
    }
    out.push('\n');
    for found in &report.signatures {
        let _ = write!(out, "  {} at {}", found.name, found.offset);
        for (key, value) in &found.details {
            let _ = write!(out, ", {key} {value}");
        }
        out.push('\n');
    }
    if report.signatures.is_empty() {
        out.push_str("  no known signature\n");
    }
    for holder in &report.holders {
        let _ = writeln!(out, "  {holder}");
    }
    if report.holders.is_empty() {
        out.push_str("  nobody holds it\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_described_and_its_holder_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        let file = File::create(&path).expect("a file");
        file.set_len(64 << 20).expect("a size");
        std::os::unix::fs::FileExt::write_all_at(&file, b"LUKS\xba\xbe\x00\x02", 0).expect("a magic");
        let free = text(&inspect(&path).expect("a report"));
        assert!(free.contains("file, 64MiB (67108864 bytes)"), "{free}");
        assert!(free.contains("LUKS at 0, version 2"), "{free}");
        assert!(free.contains("nobody holds it"), "{free}");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        let held = text(&inspect(&path).expect("a report"));
        assert!(held.contains(&format!("process {}", std::process::id())), "{held}");
    }

    #[test]
    fn what_is_no_disk_is_refused() {
        assert!(matches!(inspect(Path::new("/dev/null")), Err(Failure::Usage(_))));
        assert!(matches!(inspect(Path::new("/nowhere/disk")), Err(Failure::Failed(_))));
    }
}
