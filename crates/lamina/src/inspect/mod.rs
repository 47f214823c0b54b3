//! `lamina inspect`: the contents of a disk, and its users. Only looks; opens for reading and locks nothing.

mod all;
mod member;
mod signature;

pub use all::run as run_scan;
pub use signature::{Found, scan, scan_device};

use crate::cli;
use crate::exit::Failure;
use crate::look::Device;
use lamina_block::Bytes;
use lamina_host::holders;
use rustix::fs::{ioctl_blkpbszget, ioctl_blksszget};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The findings about a disk.
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
    /// The disk as a member of a hierarchy.
    member: Option<member::Report>,
    /// The users of the disk, as text.
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
    let nothing = || Failure::usage(format!("{}: neither a file nor a block device", path.display()));
    look(path).map_err(wrong)?.ok_or_else(nothing)
}

/// The disk at `path`; `None` if there is neither a file nor a block device.
fn look(path: &Path) -> std::io::Result<Option<Report>> {
    let Some(opened) = Device::open(path)? else { return Ok(None) };
    let superblocks = opened.superblocks();
    let device = opened.is_block_device();
    let Device { file, meta, size } = opened;
    let sector = |get: fn(&File) -> rustix::io::Result<u32>| if device { get(&file).ok() } else { None };
    Ok(Some(Report {
        path: path.display().to_string(),
        kind: if device { "block device" } else { "file" },
        size,
        allocated: (!device).then(|| meta.blocks() * 512),
        logical_sector: sector(|f| ioctl_blksszget(f)),
        physical_sector: sector(|f| ioctl_blkpbszget(f)),
        signatures: scan(&file, size)?,
        member: member::of(&superblocks),
        holders: holders::of(&meta),
    }))
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
        let _ = writeln!(out, "  {}", found.as_text());
    }
    if let Some(member) = &report.member {
        out.push_str(&member.text());
    }
    if report.signatures.is_empty() {
        out.push_str("  no known signature\n");
    }
    for holder in &report.holders {
        let _ = writeln!(out, "  {holder}");
    }
    if report.holders.is_empty() {
        out.push_str("  not in use\n");
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
        assert!(free.contains("not in use"), "{free}");
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
