//! Reads a GUID partition table (UEFI 2.10, chapter 5). It is never written.
//!
//! ```text
//!   block 0     1        2 … 33          first usable … last usable      -33 … -2      -1
//!   ┌─────────┬────────┬──────────────┬──────────────────────────────┬──────────────┬────────┐
//!   │ MBR     │ header │ entries      │ partitions                   │ entries      │ header │
//!   └─────────┴────────┴──────────────┴──────────────────────────────┴──────────────┴────────┘
//! ```
//!
//! A copy counts if its header and its entries have the checksums that the header states. The first copy is taken if
//! it does, and else the second. Blocks have the size of the device's logical block, or 512 or 4096 bytes if the table
//! was made elsewhere.
//!
//! The bytes are hostile: memory is bounded by [`ENTRIES_BYTES_MAX`], and a table is refused as a whole if a partition
//! in it lies outside the usable blocks or over another one.

use lamina_block::{Buf, Bytes, Error, ErrorKind, Io, Node, Result};
use std::ops::Range;
use std::rc::Rc;

const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Bytes of a header that are defined.
const HEADER_LEN: usize = 92;
/// The smallest entry in bytes.
const ENTRY_MIN: usize = 128;
/// The most bytes of entries that are read: 64 times what is usual.
pub const ENTRIES_BYTES_MAX: u64 = 1 << 20;

/// A partition of a GPT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GptPartition {
    /// The number in the table, from 1.
    pub number: usize,
    /// The name; may be empty.
    pub name: String,
    /// The range on the device, in bytes.
    pub at: Range<u64>,
}

/// The copies of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// At the beginning of the device.
    Primary,
    /// At its end.
    Backup,
}

impl Copy {
    /// The name of the copy in a device's state.
    pub const fn name(self) -> &'static str {
        match self {
            Copy::Primary => "primary GPT",
            Copy::Backup => "backup GPT",
        }
    }
}

/// A table that was found, and which copy of it is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// The copy that was read.
    pub copy: Copy,
    /// In the order of their numbers.
    pub partitions: Vec<GptPartition>,
}

/// Reads the table of `device`; `None` if nothing there looks like one.
///
/// Fails with `Corrupt` if there is a table, and neither copy of it is good.
pub async fn read(device: &Rc<Node>) -> Result<Option<Gpt>> {
    let own = u64::from(device.geometry().block);
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("its GPT cannot be used: {what}"));
    let mut wrong = None;
    for block in [own, 512, 4096] {
        match read_blocks(device, block).await? {
            Found::Absent => {}
            Found::Damaged { what, .. } => wrong = wrong.or(Some(what)),
            Found::Good(gpt) => {
                let mbr = fetch(device, 0..512).await?;
                return if is_other_mbr(&mbr) {
                    Err(corrupt("the MBR has partitions of its own, so it is a remainder of an earlier time"))
                } else {
                    Ok(Some(gpt))
                };
            }
        }
    }
    wrong.map_or(Ok(None), |what| Err(corrupt(&what)))
}

/// The result of looking for a copy.
enum Found<T> {
    /// Nothing that looks like one.
    Absent,
    /// A copy that cannot be used, and where the other one is if its header can be trusted.
    Damaged {
        what: String,
        alternate: Option<u64>,
    },
    Good(T),
}

fn damaged<T>(what: impl Into<String>) -> Found<T> {
    Found::Damaged { what: what.into(), alternate: None }
}

/// Looks for a table in blocks of `block` bytes.
async fn read_blocks(device: &Rc<Node>, block: u64) -> Result<Found<Gpt>> {
    let blocks = device.geometry().size / block;
    if blocks < 4 {
        return Ok(Found::Absent);
    }
    let first = read_copy(device, block, 1).await?;
    let alternate = match first {
        Found::Good(partitions) => return Ok(Found::Good(Gpt { copy: Copy::Primary, partitions })),
        Found::Damaged { alternate, .. } => alternate,
        Found::Absent => None,
    };
    // At the end of the device, or where that was before the device grew.
    let candidates = [alternate.filter(|at| (2..blocks - 1).contains(at)), Some(blocks - 1)];
    let mut second = Found::Absent;
    for at in candidates.into_iter().flatten() {
        match read_copy(device, block, at).await? {
            Found::Good(partitions) => return Ok(Found::Good(Gpt { copy: Copy::Backup, partitions })),
            seen => second = seen,
        }
    }
    Ok(match (first, second) {
        (Found::Damaged { what, .. }, _) | (_, Found::Damaged { what, .. }) => damaged(what),
        _ => Found::Absent,
    })
}

/// Reads the copy whose header is in block `at`.
async fn read_copy(device: &Rc<Node>, block: u64, at: u64) -> Result<Found<Vec<GptPartition>>> {
    let blocks = device.geometry().size / block;
    let bytes = fetch(device, at * block..(at + 1) * block).await?;
    let header = match Header::decode(&bytes, at, blocks) {
        Found::Good(header) => header,
        Found::Damaged { what, alternate } => return Ok(Found::Damaged { what, alternate }),
        Found::Absent => return Ok(Found::Absent),
    };
    let start = header.entries_at * block;
    let entries = fetch(device, start..start + header.entries_bytes()).await?;
    let unit = u64::from(device.geometry().block);
    Ok(match header.partitions(&entries, block, unit) {
        Ok(partitions) => Found::Good(partitions),
        Err(what) => Found::Damaged { what, alternate: Some(header.alternate) },
    })
}

/// Reads bytes of the device, with blocks of any size.
async fn fetch(device: &Rc<Node>, at: Range<u64>) -> Result<Vec<u8>> {
    let block = u64::from(device.geometry().block);
    let (start, end) = (at.start / block * block, at.end.next_multiple_of(block));
    let buf = Buf::zeroed((end - start) as usize);
    device.submit(Io::read(start, buf.clone())).await?;
    Ok(buf.slice((at.start - start) as usize..(at.end - start) as usize).to_vec())
}

/// True for a master boot record with partitions, none of which stands for a GPT.
fn is_other_mbr(mbr: &[u8]) -> bool {
    let mut types = (0..4).map(|i| mbr[446 + i * 16 + 4]).filter(|kind| *kind != 0).peekable();
    mbr[510..512] == [0x55, 0xAA] && types.peek().is_some() && types.all(|kind| kind != 0xEE)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A header with the right checksum, whose entries lie on the device. Locations are blocks.
struct Header {
    /// Where the other copy's header is.
    alternate: u64,
    /// The blocks that partitions may use.
    usable: Range<u64>,
    entries_at: u64,
    entries: u64,
    entry_len: u64,
    entries_crc: u32,
}

impl Header {
    /// Reads the block `at`, of `blocks`.
    fn decode(bytes: &[u8], at: u64, blocks: u64) -> Found<Header> {
        if bytes[..8] != *SIGNATURE {
            return Found::Absent;
        }
        let len = u32_at(bytes, 12) as usize;
        if !(HEADER_LEN..=bytes.len()).contains(&len) {
            return damaged(format!("a header of {len} bytes"));
        }
        let mut summed = bytes[..len].to_vec();
        summed[16..20].fill(0);
        if crc32fast::hash(&summed) != u32_at(bytes, 16) {
            return damaged("the checksum of its header is wrong");
        }
        if u64_at(bytes, 24) != at {
            return damaged("its header belongs elsewhere");
        }
        let header = Header {
            alternate: u64_at(bytes, 32),
            usable: u64_at(bytes, 40)..u64_at(bytes, 48).saturating_add(1),
            entries_at: u64_at(bytes, 72),
            entries: u32_at(bytes, 80).into(),
            entry_len: u32_at(bytes, 84).into(),
            entries_crc: u32_at(bytes, 88),
        };
        match header.check(bytes.len() as u64, blocks) {
            Ok(()) => Found::Good(header),
            Err(what) => damaged(what),
        }
    }

    fn check(&self, block: u64, blocks: u64) -> std::result::Result<(), String> {
        if self.usable.start < 2 || self.usable.end > blocks {
            return Err("its partitions may lie outside of the device".into());
        }
        if self.entry_len < ENTRY_MIN as u64 || !self.entry_len.is_power_of_two() {
            return Err(format!("entries of {} bytes", self.entry_len));
        }
        if self.entries_bytes() > ENTRIES_BYTES_MAX {
            let (entries, max) = (Bytes(self.entries_bytes()), Bytes(ENTRIES_BYTES_MAX));
            return Err(format!("{entries} of entries, and {max} are the most"));
        }
        let end = self.entries_at.checked_add(self.entries_bytes().div_ceil(block));
        if self.entries_at < 2 || end.is_none_or(|end| end > blocks) {
            return Err("its entries lie outside of the device".into());
        }
        Ok(())
    }

    /// Both factors have 32 bits.
    fn entries_bytes(&self) -> u64 {
        self.entries * self.entry_len
    }

    /// The partitions among the entries, whose ranges on the device are multiples of `unit` bytes.
    fn partitions(
        &self,
        bytes: &[u8],
        block: u64,
        unit: u64,
    ) -> std::result::Result<Vec<GptPartition>, String> {
        if crc32fast::hash(bytes) != self.entries_crc {
            return Err("the checksum of its entries is wrong".into());
        }
        let mut partitions = Vec::new();
        for (i, entry) in bytes.chunks_exact(self.entry_len as usize).enumerate() {
            // A type of zeroes: not in use.
            if entry[..16] == [0; 16] {
                continue;
            }
            let (number, first, last) = (i + 1, u64_at(entry, 32), u64_at(entry, 40));
            if first > last || first < self.usable.start || last >= self.usable.end {
                return Err(format!("partition {number} lies outside of the usable blocks"));
            }
            let at = first * block..(last + 1) * block;
            if !at.start.is_multiple_of(unit) || !at.end.is_multiple_of(unit) {
                return Err(format!("partition {number} does not begin and end at blocks of {unit} bytes"));
            }
            partitions.push(GptPartition { number, name: name(&entry[56..128]), at });
        }
        let mut sorted: Vec<&GptPartition> = partitions.iter().collect();
        sorted.sort_by_key(|partition| partition.at.start);
        match sorted.windows(2).find(|pair| pair[0].at.end > pair[1].at.start) {
            Some(pair) => Err(format!("partitions {} and {} share space", pair[0].number, pair[1].number)),
            None => Ok(partitions),
        }
    }
}

/// A name: UTF-16, up to the first zero.
fn name(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    String::from_utf16_lossy(&units)
}
