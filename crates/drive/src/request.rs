//! Requests as a drive sees them.

/// Bytes of a sector, the unit of all addresses and lengths here.
pub const SECTOR: u64 = 512;

/// What a request asks of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads.
    Read,
    /// Writes; zeroing counts as writing.
    Write,
    /// Empties the write buffer.
    Flush,
    /// Releases sectors.
    Discard,
}

/// A request: an operation on `sectors` sectors from `lbn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is asked.
    pub op: Op,
    /// The first sector, in sectors of [`SECTOR`] bytes.
    pub lbn: u64,
    /// How many sectors; 0 for a flush.
    pub sectors: u32,
}

impl Request {
    /// The first sector behind the request.
    pub const fn end(&self) -> u64 {
        self.lbn.saturating_add(self.sectors as u64)
    }

    /// How many bytes are asked for.
    pub const fn bytes(&self) -> u64 {
        self.sectors as u64 * SECTOR
    }
}
