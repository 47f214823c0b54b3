//! The calls of `linux/blkzoned.h`. All of them may block, and run on a helper thread.

use super::super::open::limit;
use lamina_block::{Error, Result, WritePointers, ZoneChange, Zones};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `_IOWR(0x12, 130, struct blk_zone_report)`, whose size is that of its fixed part.
const BLKREPORTZONE: libc::Ioctl = 0xC010_1282_u32 as libc::Ioctl;
/// `_IOW(0x12, 131, struct blk_zone_range)`.
const BLKRESETZONE: libc::Ioctl = 0x4010_1283;
/// `_IOR(0x12, 132, __u32)`: the size of a zone in sectors.
const BLKGETZONESZ: libc::Ioctl = 0x8004_1284_u32 as libc::Ioctl;
/// `_IOW(0x12, 136, struct blk_zone_range)`.
const BLKFINISHZONE: libc::Ioctl = 0x4010_1288;

/// The unit of all places in `blk_zone`, in bytes.
const SECTOR: u64 = 512;
/// Words of 8 bytes of `struct blk_zone_report` before its zones, and of `struct blk_zone`.
const REPORT_WORDS: usize = 2;
const ZONE_WORDS: usize = 8;
/// Zones that are asked for together.
const TOGETHER: u32 = 4096;

/// `BLK_ZONE_TYPE_CONVENTIONAL` and `BLK_ZONE_TYPE_SEQWRITE_REQ`.
const CONVENTIONAL: u8 = 1;
const SEQUENTIAL: u8 = 2;
/// `BLK_ZONE_COND_EMPTY`; and those in which nothing can be written: `READONLY`, `FULL`, `OFFLINE`.
const EMPTY: u8 = 1;
const UNWRITABLE: [u8; 3] = [0xD, 0xE, 0xF];
/// `BLK_ZONE_REP_CAPACITY`: the zones have their capacity.
const HAS_CAPACITY: u32 = 1;

/// `struct blk_zone`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Zone {
    start: u64,
    len: u64,
    pointer: u64,
    kind: u8,
    capacity: u64,
}

impl Zone {
    /// Reads the words of a zone.
    fn read(words: &[u64], has_capacity: bool) -> Zone {
        let bytes = words[3].to_ne_bytes();
        let (kind, condition) = (bytes[0], bytes[1]);
        let (start, len, at) = (words[0] * SECTOR, words[1] * SECTOR, words[2].saturating_mul(SECTOR));
        let capacity = if has_capacity { words[4] * SECTOR } else { len };
        let pointer = match condition {
            EMPTY => 0,
            condition if UNWRITABLE.contains(&condition) => capacity,
            _ => at.saturating_sub(start).min(capacity),
        };
        Zone { start, len, pointer, kind, capacity }
    }
}

/// The zones from that of the byte `from` on, no more than `count`.
fn report(fd: &OwnedFd, from: u64, count: u32) -> io::Result<Vec<Zone>> {
    let mut words = vec![0u64; REPORT_WORDS + count as usize * ZONE_WORDS];
    words[0] = from / SECTOR;
    words[1] = u64::from_ne_bytes(pair(count, 0));
    // SAFETY: the ioctl reads the fixed part of a report and writes no more zones behind it than that says, for which
    // there is space; `words` lives until it returns, and is aligned as the structures are.
    call(unsafe { libc::ioctl(fd.as_raw_fd(), BLKREPORTZONE, words.as_mut_ptr()) })?;
    let [a, b, c, d, flags @ ..] = words[1].to_ne_bytes();
    let found = u32::from_ne_bytes([a, b, c, d]).min(count) as usize;
    let has_capacity = u32::from_ne_bytes(flags) & HAS_CAPACITY != 0;
    let zones = words[REPORT_WORDS..].chunks_exact(ZONE_WORDS).take(found);
    Ok(zones.map(|words| Zone::read(words, has_capacity)).collect())
}

/// Two numbers side by side in memory.
fn pair(first: u32, second: u32) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    [a, b, c, d, e, f, g, h]
}

fn call(answer: i32) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The sequential zones of a device, and their write pointers.
pub(super) fn zones(fd: &OwnedFd) -> Result<WritePointers> {
    let zone_bytes = zone_bytes(fd)?;
    if zone_bytes == 0 {
        return Err(not_zoned());
    }
    let mut all: Vec<Zone> = Vec::new();
    loop {
        let from = all.last().map_or(0, |zone| zone.start + zone.len);
        let more = report(fd, from, TOGETHER).map_err(|e| failed("report its zones", &e))?;
        let is_last = more.len() < TOGETHER as usize;
        all.extend(more);
        if is_last {
            break;
        }
    }
    let meta = File::from(fd.try_clone()?).metadata()?;
    // Zones that are closed count as active, and a zone that is written in part is one or the other.
    let limits = ["max_open_zones", "max_active_zones"].map(|name| limit(&meta, name));
    let open_max = limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(0);
    arranged(&all, zone_bytes, u32::try_from(open_max).unwrap_or(u32::MAX))
}

/// The error about a file, or a block device without zones.
pub(super) fn not_zoned() -> Error {
    Error::unsupported(
        "this is no zoned block device: the type \"file\" is for files and other block devices",
    )
}

/// Conventional zones, if there are any, and sequential ones of one size and capacity behind them: what else there is
/// behind these is not used.
fn arranged(all: &[Zone], zone_bytes: u64, open_max: u32) -> Result<WritePointers> {
    let conventional = all.iter().take_while(|zone| zone.kind == CONVENTIONAL).count();
    let first = all.get(conventional).copied().filter(|zone| zone.kind == SEQUENTIAL);
    let first = first.ok_or_else(|| {
        let message = "the device is not host-managed: no zone behind its conventional ones has to be written in \
                       order. The type \"file\" is for such devices";
        Error::unsupported(message)
    })?;
    let is_like =
        |zone: &&Zone| zone.kind == SEQUENTIAL && zone.len == zone_bytes && zone.capacity == first.capacity;
    let zones: Vec<&Zone> = all[conventional..].iter().take_while(is_like).collect();
    let (count, size) = (zones.len() as u32, zone_bytes);
    let of = Zones { first: first.start, count, size, capacity: first.capacity, open_max };
    Ok(WritePointers::new(of, zones.iter().map(|zone| zone.pointer)))
}

/// The size of a zone; 0 of a device without zones.
fn zone_bytes(fd: &OwnedFd) -> Result<u64> {
    let mut sectors = 0u32;
    // SAFETY: the ioctl writes a 32-bit number to the address given, and `sectors` lives until it returns.
    let asked = call(unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETZONESZ, &raw mut sectors) });
    match asked {
        Ok(()) => Ok(u64::from(sectors) * SECTOR),
        // Devices and kernels that do not know zones.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::EOPNOTSUPP)) => Ok(0),
        Err(e) => Err(failed("say how large its zones are", &e)),
    }
}

/// The write pointer of a zone, in bytes from its beginning.
pub(super) fn pointer(fd: &OwnedFd, zones: &Zones, zone: u32) -> Result<u64> {
    let found = report(fd, zones.start(zone), 1).map_err(|e| failed("report a zone", &e))?;
    let found =
        found.first().ok_or_else(|| Error::media(format!("the device has no zone {zone} any more")))?;
    Ok(found.pointer)
}

/// Resets or finishes a zone.
pub(super) fn change(fd: &OwnedFd, zones: &Zones, zone: u32, change: ZoneChange) -> Result<()> {
    let (request, what) = match change {
        ZoneChange::Reset => (BLKRESETZONE, "reset"),
        ZoneChange::Finish => (BLKFINISHZONE, "finish"),
    };
    let range: [u64; 2] = [zones.start(zone) / SECTOR, zones.size / SECTOR];
    // SAFETY: the ioctl reads two 64-bit numbers at the address given, and `range` lives until it returns.
    let done = call(unsafe { libc::ioctl(fd.as_raw_fd(), request, range.as_ptr()) });
    done.map_err(|e| failed(&format!("{what} zone {zone}"), &e).at(zones.usable(zone)))
}

fn failed(what: &str, e: &io::Error) -> Error {
    let kind = Error::from(io::Error::from(e.kind())).kind();
    Error::new(kind, format!("the device does not {what}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A zone of 1 MiB, as the kernel writes it.
    fn words(number: u64, pointer: u64, kind: u8, condition: u8, capacity: u64) -> [u64; ZONE_WORDS] {
        let flags = u64::from_ne_bytes([kind, condition, 0, 0, 0, 0, 0, 0]);
        [number * MIB / SECTOR, MIB / SECTOR, pointer / SECTOR, flags, capacity / SECTOR, 0, 0, 0]
    }

    fn zone(number: u64, kind: u8, condition: u8, written: u64) -> Zone {
        Zone::read(&words(number, number * MIB + written, kind, condition, MIB - 4096), true)
    }

    #[test]
    fn a_zone_is_read() {
        let open = zone(3, SEQUENTIAL, 2, 8192);
        assert_eq!(
            open,
            Zone { start: 3 * MIB, len: MIB, pointer: 8192, kind: SEQUENTIAL, capacity: MIB - 4096 }
        );
        assert_eq!(
            [EMPTY, 0xD, 0xE, 0xF].map(|condition| zone(0, SEQUENTIAL, condition, 4096).pointer),
            [0, MIB - 4096, MIB - 4096, MIB - 4096]
        );
        // Conventional zones have no pointer, and old kernels say no capacity.
        let old = Zone::read(&words(1, u64::MAX, CONVENTIONAL, 0, 0), false);
        assert_eq!((old.capacity, old.pointer), (MIB, MIB));
        assert_eq!(pair(7, 1), [7u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat()[..]);
    }

    #[test]
    fn zones_of_one_kind_are_used() {
        let of = |number, kind| zone(number, kind, 2, 4096);
        let mut all = vec![of(0, CONVENTIONAL), of(1, CONVENTIONAL), of(2, SEQUENTIAL), of(3, SEQUENTIAL)];
        all.push(Zone { len: MIB / 2, ..of(4, SEQUENTIAL) });
        let found = arranged(&all, MIB, 12).expect("host-managed");
        let zones = Zones { first: 2 * MIB, count: 2, size: MIB, capacity: MIB - 4096, open_max: 12 };
        assert_eq!((found.zones(), found.get(1), found.open()), (zones, 4096, 2));
        for wrong in [&all[..2], &[], &[of(0, CONVENTIONAL), of(1, 3)]] {
            let refused = arranged(wrong, MIB, 0).expect_err("refused");
            assert!(refused.message().contains("not host-managed"), "{refused}");
        }
    }
}
