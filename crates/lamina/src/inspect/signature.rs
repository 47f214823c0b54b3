//! Known signatures on disks: a table of magic numbers, each with a short description of the header.
//!
//! Everything read is checked for length and shown with control characters removed: a disk is hostile input. There are
//! no guesses beyond the table.

use crate::files;
use lamina_block::{Buf, Geometry, Io, Node, Result};
use lamina_metadata::superblock;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// A signature that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The kind of contents.
    pub name: &'static str,
    /// Where its magic number is, in bytes.
    pub offset: u64,
    /// Details from its header: label, UUID, version.
    pub details: BTreeMap<&'static str, String>,
}

impl Found {
    /// Name, place and details on one line.
    pub fn as_text(&self) -> String {
        let details: String = self.details.iter().map(|(key, value)| format!(", {key} {value}")).collect();
        format!("{} at {}{details}", self.name, self.offset)
    }
}

/// A known signature.
struct Signature {
    name: &'static str,
    /// Where the header begins.
    header: At,
    /// Where the magic is inside of the header.
    at: usize,
    magic: &'static [u8],
    /// Reads the header.
    details: fn(&Header, &mut BTreeMap<&'static str, String>),
}

/// Where on a disk of a given size.
#[derive(Clone, Copy)]
enum At {
    /// So many bytes from its beginning.
    Start(u64),
    /// So many bytes before the end of the last whole unit of so many bytes.
    End(u64, u64),
}

impl At {
    /// The place; nothing if the disk is too small to have it.
    fn on(self, size: u64) -> Option<u64> {
        match self {
            At::Start(at) => Some(at),
            At::End(before, unit) => (size - size % unit).checked_sub(before),
        }
    }
}

/// Bytes of a header that are read, from its start.
const HEADER_LEN: usize = 4096;

/// A header's bytes, as many as the disk has.
struct Header(Vec<u8>);

/// Sources: UEFI 2.10 section 5.3 (GPT); the kernel's headers of each file system; LVM2 `label.h`; `md_p.h`; the LUKS1
/// and LUKS2 on-disk formats; QEMU `docs/interop/qcow2.txt`, `qed_spec.rst`, `parallels.rst`; the VHD specification;
/// the kernel's `dm-log-writes.c`; `swap.h`.
const TABLE: &[Signature] = &[
    sign("Lamina member", START, 0, &superblock::MAGIC, nothing),
    sign("Lamina member, second superblock", At::End(64 << 10, 64 << 10), 0, &superblock::MAGIC, nothing),
    sign("GPT partition table", At::Start(512), 0, b"EFI PART", gpt),
    sign("GPT partition table", At::Start(4096), 0, b"EFI PART", gpt),
    sign("GPT partition table, the copy at the end", At::End(512, 512), 0, b"EFI PART", gpt),
    sign("GPT partition table, the copy at the end", At::End(4096, 4096), 0, b"EFI PART", gpt),
    sign("MBR partition table", START, 510, b"\x55\xaa", nothing),
    sign("ext2/3/4", At::Start(1024), 56, b"\x53\xef", ext),
    sign("XFS", START, 0, b"XFSB", xfs),
    sign("btrfs", At::Start(64 << 10), 64, b"_BHRfS_M", btrfs),
    sign("F2FS", At::Start(1024), 0, b"\x10\x20\xf5\xf2", nothing),
    sign("NTFS", START, 3, b"NTFS    ", nothing),
    sign("exFAT", START, 3, b"EXFAT   ", nothing),
    sign("FAT", START, 54, b"FAT1", nothing),
    sign("FAT", START, 82, b"FAT32   ", nothing),
    sign("HFS+", At::Start(1024), 0, b"H+\x00\x04", nothing),
    sign("APFS", START, 32, b"NXSB", nothing),
    sign("JFS", At::Start(32 << 10), 0, b"JFS1", nothing),
    sign("ReiserFS", At::Start(64 << 10), 52, b"ReIsEr", nothing),
    sign("GFS2", At::Start(64 << 10), 0, b"\x01\x16\x19\x70", nothing),
    sign("OCFS2", At::Start(8192), 0, b"OCFSV2", nothing),
    sign("squashfs", START, 0, b"hsqs", nothing),
    sign("EROFS", At::Start(1024), 0, b"\xe2\xe1\xf5\xe0", nothing),
    sign("LVM2 physical volume", START, 0, b"LABELONE", lvm),
    sign("LVM2 physical volume", At::Start(512), 0, b"LABELONE", lvm),
    sign("LVM2 physical volume", At::Start(1024), 0, b"LABELONE", lvm),
    sign("LVM2 physical volume", At::Start(1536), 0, b"LABELONE", lvm),
    sign("Linux RAID (MD) member", At::Start(4096), 0, MD_MAGIC, md),
    sign("Linux RAID (MD) member", START, 0, MD_MAGIC, md),
    sign("Linux RAID (MD) member, version 1.0", At::End(8192, 4096), 0, MD_MAGIC, md),
    sign("Linux RAID (MD) member, version 0.90", At::End(64 << 10, 64 << 10), 0, MD_MAGIC, nothing),
    sign("LUKS", START, 0, b"LUKS\xba\xbe", luks),
    sign("LUKS, second header", At::Start(16 << 10), 0, b"SKUL\xba\xbe", luks),
    sign("BitLocker", START, 3, b"-FVE-FS-", nothing),
    sign("swap", START, 4086, b"SWAPSPACE2", swap),
    sign("qcow2 image", START, 0, b"QFI\xfb", qcow2),
    sign("QED image", START, 0, b"QED\x00", nothing),
    sign("VHD image", START, 0, b"conectix", nothing),
    sign("Parallels image", START, 0, b"WithoutFreeSpace", nothing),
    sign("Parallels image", START, 0, b"WithouFreSpacExt", nothing),
    sign("VMDK image", START, 0, b"KDMV", nothing),
    sign("VHDX image", START, 0, b"vhdxfile", nothing),
    sign("VDI image", START, 64, b"\x7f\x10\xda\xbe", nothing),
    sign("write log (dm-log-writes)", START, 0, LOG_MAGIC, write_log),
    sign("ZFS member", At::Start(128 << 10), 0, &0x00ba_b10c_u64.to_le_bytes(), nothing),
    sign("bcache", At::Start(4096), 24, BCACHE_MAGIC, nothing),
    sign("bcachefs", At::Start(4096), 24, BCACHEFS_MAGIC, nothing),
    sign("Ceph BlueStore", START, 0, b"bluestore block device", nothing),
    sign("ISO 9660", At::Start(32 << 10), 1, b"CD001", nothing),
    sign("UDF", At::Start(34 << 10), 1, b"NSR0", nothing),
];

const START: At = At::Start(0);

const fn sign(
    name: &'static str,
    header: At,
    at: usize,
    magic: &'static [u8],
    details: fn(&Header, &mut BTreeMap<&'static str, String>),
) -> Signature {
    Signature { name, header, at, magic, details }
}

/// Little-endian 0xa92b4efc.
const MD_MAGIC: &[u8] = &0xa92b_4efc_u32.to_le_bytes();
/// Little-endian 0x6a736677736872.
const LOG_MAGIC: &[u8] = &0x6a_7366_7773_6872_u64.to_le_bytes();
const BCACHEFS_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const BCACHE_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";

/// Looks for every signature of the table, and for those that kinds of layers declare.
pub fn scan(file: &File, size: u64) -> std::io::Result<Vec<Found>> {
    found(size, |at| Header::read(file, at, size))
}

/// The same on a device that no file shows.
pub async fn scan_device(device: &Rc<Node>) -> Result<Vec<Found>> {
    let Geometry { size, block, .. } = device.geometry();
    let mut headers = BTreeMap::new();
    for at in TABLE.iter().filter_map(|signature| signature.header.on(size)).chain([0]) {
        let end = size.min(at + HEADER_LEN as u64);
        let whole = at - at % u64::from(block)..end.next_multiple_of(u64::from(block)).min(size);
        if whole.is_empty() || headers.contains_key(&at) {
            continue;
        }
        let bytes = Buf::zeroed((whole.end - whole.start) as usize);
        device.submit(Io::read(whole.start, bytes.clone())).await?;
        headers
            .insert(at, bytes.to_vec()[(at - whole.start) as usize..(end - whole.start) as usize].to_vec());
    }
    Ok(found(size, |at| Ok(Header(headers.get(&at).cloned().unwrap_or_default())))?)
}

/// What the headers of a disk of `size` bytes say.
fn found(size: u64, read: impl Fn(u64) -> std::io::Result<Header>) -> std::io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for signature in TABLE {
        let Some(at) = signature.header.on(size) else { continue };
        let header = read(at)?;
        let end = signature.at + signature.magic.len();
        if header.0.get(signature.at..end) == Some(signature.magic) {
            let mut details = BTreeMap::new();
            (signature.details)(&header, &mut details);
            found.push(Found { name: signature.name, offset: at + signature.at as u64, details });
        }
    }
    let declared: Vec<_> = files::kinds().iter().filter_map(|kind| kind.traits.signature).collect();
    if !declared.is_empty() {
        let header = read(0)?;
        for signature in declared.iter().filter(|signature| header.0.starts_with(signature.magic)) {
            let details = (signature.details)(&header.0).into_iter().collect();
            found.push(Found { name: signature.name, offset: 0, details });
        }
    }
    // The second of two copies is news only where the first is gone.
    let firsts: Vec<&str> = found.iter().map(|f| f.name).filter(|name| !name.contains(',')).collect();
    let alone = |f: &Found| f.name.split_once(',').is_none_or(|(name, _)| !firsts.contains(&name));
    found = found.iter().filter(|f| alone(f)).cloned().collect();
    // A GPT comes with an MBR that only protects it.
    if found.iter().any(|f| f.name.starts_with("GPT")) {
        found.retain(|f| !f.name.starts_with("MBR"));
    }
    Ok(found)
}

impl Header {
    fn read(file: &File, at: u64, size: u64) -> std::io::Result<Header> {
        let len = size.saturating_sub(at).min(HEADER_LEN as u64) as usize;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at)?;
        Ok(Header(bytes))
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let found = self.0.get(at..at + N).and_then(|b| b.try_into().ok());
        found.unwrap_or([0; N])
    }

    fn le16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn le32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn le64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    /// Text up to its zero byte, without control characters; nothing if there is none.
    fn text(&self, at: usize, len: usize) -> Option<String> {
        let end = (at + len).min(self.0.len());
        let bytes = self.0.get(at..end)?;
        let text = String::from_utf8_lossy(bytes.split(|b| *b == 0).next()?);
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// A UUID in its usual form; nothing for an all-zero one.
    fn uuid(&self, at: usize) -> Option<String> {
        let bytes: [u8; 16] = self.bytes(at);
        if bytes == [0; 16] {
            return None;
        }
        let mut text = String::new();
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        Some(text)
    }
}

type Details = BTreeMap<&'static str, String>;

fn put(details: &mut Details, key: &'static str, value: Option<String>) {
    if let Some(value) = value {
        details.insert(key, value);
    }
}

fn nothing(_: &Header, _: &mut Details) {}

fn gpt(h: &Header, d: &mut Details) {
    // The first three fields of a GUID are little-endian.
    let b: [u8; 16] = h.bytes(56);
    let swapped = [b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6]];
    let mut guid = swapped.to_vec();
    guid.extend(&b[8..]);
    put(d, "uuid", Header(guid).uuid(0));
}

fn ext(h: &Header, d: &mut Details) {
    put(d, "label", h.text(120, 16));
    put(d, "uuid", h.uuid(104));
    let has_journal = h.le32(92) & 4 != 0;
    let has_extents = h.le32(96) & 0x40 != 0;
    let version = match (has_extents, has_journal) {
        (true, _) => "ext4",
        (false, true) => "ext3",
        (false, false) => "ext2",
    };
    d.insert("version", version.into());
}

fn xfs(h: &Header, d: &mut Details) {
    put(d, "label", h.text(108, 12));
    put(d, "uuid", h.uuid(32));
}

fn btrfs(h: &Header, d: &mut Details) {
    put(d, "label", h.text(299, 256));
    put(d, "uuid", h.uuid(32));
}

fn lvm(h: &Header, d: &mut Details) {
    // The header of the physical volume follows the label; its offset stands at 20.
    put(d, "uuid", h.text(h.le32(20).min(480) as usize, 32));
}

fn md(h: &Header, d: &mut Details) {
    d.insert("version", format!("1 (feature bits {:#x})", h.le32(8)));
    put(d, "array", h.text(32, 32));
    put(d, "uuid", h.uuid(16));
    d.insert("level", (h.le32(72) as i32).to_string());
}

fn luks(h: &Header, d: &mut Details) {
    let version = u16::from_be_bytes(h.bytes(6));
    d.insert("version", version.to_string());
    if version == 2 {
        put(d, "label", h.text(24, 48));
    }
    // Both versions keep the UUID as text at the same place.
    put(d, "uuid", h.text(168, 40));
}

fn swap(h: &Header, d: &mut Details) {
    put(d, "label", h.text(1024 + 28, 16));
    put(d, "uuid", h.uuid(1024 + 12));
}

fn qcow2(h: &Header, d: &mut Details) {
    d.insert("version", u32::from_be_bytes(h.bytes(4)).to_string());
    d.insert("virtual size", lamina_block::Bytes(u64::from_be_bytes(h.bytes(24))).to_string());
    let (at, len) = (u64::from_be_bytes(h.bytes(8)), u32::from_be_bytes(h.bytes(16)));
    if at != 0 && len <= 1023 {
        put(d, "backing file", h.text(at.min(HEADER_LEN as u64) as usize, len as usize));
    }
}

fn write_log(h: &Header, d: &mut Details) {
    d.insert("version", h.le64(8).to_string());
    d.insert("entries", h.le64(16).to_string());
    d.insert("sector", h.le32(24).to_string());
    debug_assert_eq!(h.le16(0), 0x6872);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk image with `parts` written into it, scanned.
    fn found(size: u64, parts: &[(u64, &[u8])]) -> Vec<Found> {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(size).expect("a size");
        for (at, bytes) in parts {
            file.write_all_at(bytes, *at).expect("bytes");
        }
        scan(&file, size).expect("a scan")
    }

    #[test]
    fn every_signature_is_found_alone() {
        for signature in TABLE {
            let at = signature.header.on(1 << 20).expect("a place") + signature.at as u64;
            let got = found(1 << 20, &[(at, signature.magic)]);
            assert!(got.iter().any(|f| f.name == signature.name && f.offset == at), "{}", signature.name);
        }
        let declared: Vec<_> = files::kinds().iter().filter_map(|kind| kind.traits.signature).collect();
        assert!(!declared.is_empty());
        for signature in declared {
            // Also at the end of the device.
            for size in [signature.magic.len() as u64, 1 << 20] {
                let got = found(size, &[(0, signature.magic)]);
                assert!(got.iter().any(|f| f.name == signature.name), "{}", signature.name);
            }
        }
    }

    #[test]
    fn headers_are_read() {
        let got =
            found(1 << 20, &[(1080, b"\x53\xef"), (1024 + 120, b"root\x1b[2J\0"), (1024 + 96, &[0x40])]);
        assert_eq!(got[0].details["label"], "root[2J");
        assert_eq!(got[0].details["version"], "ext4");
        let mut qcow2 = b"QFI\xfb\0\0\0\x03".to_vec();
        qcow2.extend([0; 16]);
        qcow2.extend((5u64 << 30).to_be_bytes());
        assert_eq!(found(1 << 20, &[(0, &qcow2)])[0].details["virtual size"], "5GiB");
        let log = [LOG_MAGIC, &1u64.to_le_bytes(), &9u64.to_le_bytes(), &512u32.to_le_bytes()].concat();
        assert_eq!(found(4096, &[(0, &log)])[0].details["entries"], "9");
        let words = [1u32, 16, 20, 0].map(u32::to_le_bytes).concat();
        let flash = [&b"LAMFLASH"[..], &[0; 8], &words, &0xA1u128.to_le_bytes()].concat();
        let got = found(1 << 20, &[(0, &flash)]);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].name, "Lamina cache on flash");
        assert_eq!(got[0].details["uuid"], "000000000000000000000000000000a1");
        assert_eq!((&*got[0].details["version"], &*got[0].details["size"]), ("1", "1280KiB"));
    }

    #[test]
    fn a_protective_mbr_is_not_reported() {
        let got = found(1 << 20, &[(510, b"\x55\xaa"), (512, b"EFI PART")]);
        assert_eq!(got.iter().map(|f| f.name).collect::<Vec<_>>(), ["GPT partition table"]);
    }

    #[test]
    fn short_and_hostile_disks_are_no_trouble() {
        for size in [0, 1, 511, 513, 1081, 4097] {
            assert_eq!(found(size, &[]), [], "{size}");
        }
        let noise: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for signature in TABLE {
            let mut image = noise.clone();
            let at = signature.header.on(200_000).expect("a place") as usize + signature.at;
            image[at..at + signature.magic.len()].copy_from_slice(signature.magic);
            assert!(!found(image.len() as u64, &[(0, &image)]).is_empty(), "{}", signature.name);
            let mut ones = vec![0xff; 200_000];
            ones[at..at + signature.magic.len()].copy_from_slice(signature.magic);
            assert!(!found(ones.len() as u64, &[(0, &ones)]).is_empty(), "{}", signature.name);
        }
    }
}
