//! A virtio-blk request (virtio 1.2, section 5.2.6): from a walked chain to what the node is asked.

use crate::chain::Chain;
use crate::memory::Memory;
use lamina_block::{Budget, Durability, ErrorKind, Io, Zero};
use virtio_bindings::virtio_blk::*;

/// Bytes of the unit of offsets in requests, whatever the device's block.
pub(crate) const SECTOR: u64 = 512;
/// Bytes of one range of a discard or a write of zeroes.
const RANGE_LEN: usize = 16;
/// The most ranges in one discard or write of zeroes.
pub(crate) const RANGES_MAX: u32 = 32;
/// The most bytes that one request reads or writes: layers may allocate as much. Guests stay below because of
/// [`SEGMENTS_MAX`] and [`SEGMENT_LEN_MAX`].
pub(crate) const REQUEST_LEN_MAX: u64 = 64 << 20;
/// The most segments of a request that guests are offered.
pub(crate) const SEGMENTS_MAX: u32 = 126;
/// The largest segment that guests are offered, in bytes.
pub(crate) const SEGMENT_LEN_MAX: u32 = 512 << 10;
/// The largest range of a discard or write of zeroes, in sectors. Zeroes may have to be written one by one.
pub(crate) const RANGE_SECTORS_MAX: u32 = (1 << 30) / SECTOR as u32;

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Ok = VIRTIO_BLK_S_OK as u8,
    IoError = VIRTIO_BLK_S_IOERR as u8,
    Unsupported = VIRTIO_BLK_S_UNSUPP as u8,
}

impl From<&lamina_block::Result<()>> for Status {
    fn from(result: &lamina_block::Result<()>) -> Status {
        match result {
            Ok(()) => Status::Ok,
            Err(e) if e.kind() == ErrorKind::Unsupported => Status::Unsupported,
            Err(_) => Status::IoError,
        }
    }
}

/// The work for a request.
pub(crate) enum Parsed {
    /// Ask the node; on success so many bytes of data have been written to the guest.
    Io(Io, u32),
    /// Ask the node for all of these, one after the other.
    Several(Vec<Io>),
    /// Write the serial number into the data.
    Serial,
    /// Answer without asking anybody.
    Answer(Status),
}

impl Parsed {
    /// The request's share of the memory for requests, in bytes.
    #[inline]
    pub fn cost(&self) -> usize {
        match self {
            Parsed::Io(io, _) => Budget::cost(io),
            // One after the other.
            Parsed::Several(ios) => {
                ios.iter().map(Budget::cost).max().unwrap_or(0) + ios.len() * size_of::<Io>()
            }
            Parsed::Serial | Parsed::Answer(_) => 0,
        }
    }
}

/// The parameters for carrying out requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Refuse whatever changes the device.
    pub read_only: bool,
    /// The promise of a completed write.
    pub durability: Durability,
}

/// Reads the request that a chain carries.
#[inline(always)]
pub(crate) fn parse(chain: &Chain, memory: &Memory, rules: Rules) -> Parsed {
    const FAILED: Parsed = Parsed::Answer(Status::IoError);
    let (Some(header), Some(out_len), in_len) = (chain.header(), chain.data_out_len(), chain.data_in_len())
    else {
        return FAILED;
    };
    if chain.is_malformed() || out_len > REQUEST_LEN_MAX || in_len > REQUEST_LEN_MAX {
        return FAILED;
    }
    let header = u128::from_le_bytes(header);
    let (kind, sector) = (header as u32, (header >> 64) as u64);
    let Some(offset) = sector.checked_mul(SECTOR) else { return FAILED };
    match kind {
        VIRTIO_BLK_T_IN if out_len == 0 => Parsed::Io(Io::read(offset, chain.data_in(memory)), in_len as u32),
        VIRTIO_BLK_T_OUT if in_len == 0 && !rules.read_only => {
            Parsed::Io(Io::write(offset, chain.data_out(memory), rules.durability), 0)
        }
        VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT => FAILED,
        VIRTIO_BLK_T_FLUSH => Parsed::Io(Io::flush(), 0),
        VIRTIO_BLK_T_GET_ID => Parsed::Serial,
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            ranges(chain, memory, kind, rules).unwrap_or_else(Parsed::Answer)
        }
        _ => Parsed::Answer(Status::Unsupported),
    }
}

/// Reads the ranges of a discard or a write of zeroes.
fn ranges(chain: &Chain, memory: &Memory, kind: u32, rules: Rules) -> Result<Parsed, Status> {
    let len = chain.data_out_len().unwrap_or(0) as usize;
    if rules.read_only || len == 0 || !len.is_multiple_of(RANGE_LEN) || len / RANGE_LEN > RANGES_MAX as usize
    {
        return Err(Status::IoError);
    }
    let mut bytes = [0; RANGE_LEN * RANGES_MAX as usize];
    chain.data_out(memory).read(0, &mut bytes[..len]);
    let mut requests =
        bytes[..len].as_chunks::<RANGE_LEN>().0.iter().map(|range| one_range(range, kind, rules.durability));
    if len == RANGE_LEN {
        let one = requests.next().unwrap_or(Err(Status::IoError))?;
        return Ok(Parsed::Io(one, 0));
    }
    Ok(Parsed::Several(requests.collect::<Result<_, _>>()?))
}

fn one_range(range: &[u8; RANGE_LEN], kind: u32, durability: Durability) -> Result<Io, Status> {
    let range = u128::from_le_bytes(*range);
    let (sector, sectors, flags) = (range as u64, (range >> 64) as u32, (range >> 96) as u32);
    if sectors > RANGE_SECTORS_MAX {
        return Err(Status::IoError);
    }
    let start = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
    let end = start.checked_add(sectors as u64 * SECTOR).ok_or(Status::IoError)?;
    let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
    match (kind, flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP) {
        (VIRTIO_BLK_T_DISCARD, 0) if !unmap => Ok(Io::discard(start..end)),
        (VIRTIO_BLK_T_WRITE_ZEROES, 0) => Ok(Io::zero(start..end, Zero { unmap, fast: false, durability })),
        // Flags that this specification does not know.
        _ => Err(Status::Unsupported),
    }
}
