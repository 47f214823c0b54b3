//! A request: an operation on a byte range.

use crate::Buf;
use std::ops::Range;

/// When a write must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// After a later flush has completed.
    #[default]
    Cached,
    /// When the write completes (forced unit access).
    Fua,
}

/// How a range is made to read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Zero {
    /// The space may be released (NBD: not NO_HOLE; virtio: UNMAP).
    pub unmap: bool,
    /// Fail with `Unsupported`, and at once, rather than take as long as writing would (NBD: FAST_ZERO).
    pub fast: bool,
    /// When the zeroes must be durable.
    pub durability: Durability,
}

/// The operations. A layer matches them without `_`: a new one must be decided everywhere.
#[derive(Clone, Debug)]
pub enum Op {
    /// Fill the buffer from the range.
    Read(Buf),
    /// Put the buffer's bytes into the range.
    Write(Buf, Durability),
    /// Make the range read as zeroes.
    Zero(Zero),
    /// The range's contents are no longer needed. Later reads return either the old data or zeroes, logical block by
    /// logical block.
    Discard,
    /// Make every write that completed before this was submitted durable. The range is empty.
    Flush,
}

/// The name of an operation without what it carries; indexes statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OpKind {
    /// [`Op::Read`]
    Read,
    /// [`Op::Write`]
    Write,
    /// [`Op::Zero`]
    Zero,
    /// [`Op::Discard`]
    Discard,
    /// [`Op::Flush`]
    Flush,
}

impl OpKind {
    /// All operations, in the order of their numbers.
    pub const ALL: [OpKind; 5] = [OpKind::Read, OpKind::Write, OpKind::Zero, OpKind::Discard, OpKind::Flush];

    /// Lower-case name, as in metrics and traces.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Zero => "zero",
            OpKind::Discard => "discard",
            OpKind::Flush => "flush",
        }
    }
}

impl Op {
    /// The name of the operation.
    pub const fn kind(&self) -> OpKind {
        match self {
            Op::Read(_) => OpKind::Read,
            Op::Write(..) => OpKind::Write,
            Op::Zero(_) => OpKind::Zero,
            Op::Discard => OpKind::Discard,
            Op::Flush => OpKind::Flush,
        }
    }
}

/// A request: an operation on a range of bytes, a multiple of the logical block.
#[derive(Clone, Debug)]
pub struct Io {
    /// The operation.
    pub op: Op,
    /// Where. Empty for a flush.
    pub at: Range<u64>,
    /// Who asks, for layers that are fair to clients: a number that is the same for all requests of a connection to an
    /// export, and differs from those of others. 0 for requests that layers make by themselves; a layer that makes
    /// other requests out of this one may lose it.
    pub client: u32,
}

impl Io {
    /// Reads `into.len()` bytes at `offset`.
    pub fn read(offset: u64, into: Buf) -> Io {
        Io { at: offset..offset.saturating_add(into.len() as u64), op: Op::Read(into), client: 0 }
    }

    /// Writes `from.len()` bytes at `offset`.
    pub fn write(offset: u64, from: Buf, durability: Durability) -> Io {
        let at = offset..offset.saturating_add(from.len() as u64);
        Io { at, op: Op::Write(from, durability), client: 0 }
    }

    /// Makes `at` read as zeroes.
    pub fn zero(at: Range<u64>, how: Zero) -> Io {
        Io { op: Op::Zero(how), at, client: 0 }
    }

    /// Discards `at`.
    pub fn discard(at: Range<u64>) -> Io {
        Io { op: Op::Discard, at, client: 0 }
    }

    /// Flushes the whole device.
    pub fn flush() -> Io {
        Io { op: Op::Flush, at: 0..0, client: 0 }
    }

    /// The same for that client.
    #[inline]
    pub fn by(mut self, client: u32) -> Io {
        self.client = client;
        self
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.at.end.saturating_sub(self.at.start)
    }

    /// True for a flush, and for requests of no length.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves the request to another place of the same length. A flush has no range, and stays as it is. A range that
    /// would not end before 2^64 becomes one that every node refuses.
    #[inline]
    pub fn move_to(&mut self, offset: u64) {
        let Range { start, end } = self.at;
        match self.op {
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard => {
                self.at = offset..offset.wrapping_add(end.wrapping_sub(start));
            }
            Op::Flush => {}
        }
    }

    /// Takes the request out, for a layer that keeps it, and leaves a flush.
    pub fn take(&mut self) -> Io {
        std::mem::replace(self, Io::flush())
    }

    /// The part of this request that covers `part` (within `self.at`), its buffer cut without copying, to be done
    /// at `to`. A flush has no parts; it is returned as it is.
    pub fn part(&self, part: Range<u64>, to: u64) -> Io {
        debug_assert!(self.at.start <= part.start && part.end <= self.at.end);
        let cut =
            |buf: &Buf| buf.slice((part.start - self.at.start) as usize..(part.end - self.at.start) as usize);
        let op = match &self.op {
            Op::Read(buf) => Op::Read(cut(buf)),
            Op::Write(buf, durability) => Op::Write(cut(buf), *durability),
            Op::Zero(how) => Op::Zero(*how),
            Op::Discard => Op::Discard,
            Op::Flush => return self.clone(),
        };
        Io { op, at: to..to + (part.end - part.start), client: self.client }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_client_when_it_is_moved_cut_and_taken() {
        let mut io = Io::write(4096, Buf::zeroed(8192), Durability::Fua).by(7);
        io.move_to(0);
        assert_eq!((io.part(0..4096, 1 << 20).client, io.clone().take().client), (7, 7));
        assert_eq!((Io::discard(0..512).client, Io::flush().by(3).part(0..0, 0).client), (0, 3));
    }
}
