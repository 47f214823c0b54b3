//! The journal of a parity with absent legs: the writes to a stripe, durable before the stripe gets any of
//! them.
//!
//! While a leg is absent, its bytes are computed from the others. If the power fails between two writes of a
//! stripe, the result would be bytes that never were; the journal replays the writes (`replay.rs`). Bytes:
//! `docs/formats/parity.md`.
//!
//! Invariants:
//! * **A record is durable, and none of its writes is in place, before the write goes on.** So a write is
//!   durable with its record, and a write whose record is torn was not begun.
//! * **Records of the same bytes are carried out in order, without gaps** (`ring.rs`).
//! * **Only records of the recorded epoch count.** A new epoch begins when a leg is lost or complete, with no
//!   writes under way and all flushed. In one epoch a stripe is always changed with records, or never: that
//!   depends only on which legs are in sync. Healing and copying to other legs change no byte of a stripe.

use super::Parity;
use super::stripe::Write;
use lamina_block::{Durability, Error, Io, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"LAMPJRNL";
const VERSION: u32 = 1;
/// Bytes of the head of a record, unless a logical block is longer.
const HEAD: usize = 4096;
/// Slots are multiples of so many bytes, so that each block of a leg belongs to one slot.
const BLOCK: u64 = 4096;
/// The most writes of a record.
const WRITES_MAX: usize = (HEAD - size_of::<Head>()) / size_of::<Entry>();
/// The most bytes of writes of a record, unless its columns have larger blocks.
const LOAD: u64 = 128 << 10;
/// The most slots, and the fewest: one that is being written, one that waits for a flush, one that is free,
/// and the last.
const SLOTS: u64 = 128;
const SLOTS_MIN: u64 = 4;
/// Records are shorter where there would be fewer slots.
const SLOTS_GOOD: u64 = 16;
/// The journal takes at most one of so many bytes of a leg, unless that is too little for the fewest slots.
const SHARE: u64 = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U32,
    sum: U32,
    id: U64,
    epoch: U64,
    sequence: U64,
    first: U64,
    writes: U32,
    zero: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    start: U64,
    len: U32,
    column: U32,
}

const SUM: usize = std::mem::offset_of!(Head, sum);

/// The shape of a journal on each leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// How many slots there are.
    pub slots: u64,
    /// Bytes of the head of a record.
    pub head: u64,
    /// The most bytes of the writes of a record.
    pub load: u64,
}

impl Shape {
    /// The shape for legs of `size` bytes with logical blocks of `block`, and stripes of `columns` units of
    /// `unit`.
    pub fn of(size: u64, block: u64, columns: u64, unit: u64) -> Shape {
        let (head, least) = (block.max(HEAD as u64), columns * block);
        let room = (size / SHARE / SLOTS_GOOD).saturating_sub(head) / BLOCK * BLOCK;
        let load = (2 * unit).min(LOAD).min(room).max(least).next_multiple_of(BLOCK);
        Shape { slots: (size / SHARE / (head + load)).clamp(SLOTS_MIN, SLOTS), head, load }
    }

    /// Bytes of the journal on each leg.
    pub fn area(&self) -> u64 {
        self.slots * self.slot()
    }

    /// Bytes of a slot.
    pub fn slot(&self) -> u64 {
        self.head + self.load
    }

    /// True if a journal may have this shape.
    pub fn is_possible(&self) -> bool {
        let whole = |n: u64| n > 0 && n.is_multiple_of(512) && n <= 64 << 20;
        (2..=1024).contains(&self.slots) && whole(self.head) && whole(self.load) && self.head >= HEAD as u64
    }
}

/// A record.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// The id of the array.
    pub id: u64,
    /// The epoch, drawn when a leg was lost.
    pub epoch: u64,
    /// The number of the record; the next record has the next one. The slot is the remainder by the number of
    /// slots.
    pub sequence: u64,
    /// Older records than this do not count any more.
    pub first: u64,
    /// The column, where on it, and the bytes.
    pub writes: Vec<(usize, u64, Vec<u8>)>,
}

impl Record {
    /// Encodes the record, with a head of `head` bytes.
    pub fn encode(&self, head: usize) -> Vec<u8> {
        let first = Head {
            magic: MAGIC,
            version: VERSION.into(),
            sum: 0.into(),
            id: self.id.into(),
            epoch: self.epoch.into(),
            sequence: self.sequence.into(),
            first: self.first.into(),
            writes: (self.writes.len() as u32).into(),
            zero: 0.into(),
        };
        let mut bytes = first.as_bytes().to_vec();
        for (column, start, load) in &self.writes {
            let entry = Entry {
                start: (*start).into(),
                len: (load.len() as u32).into(),
                column: (*column as u32).into(),
            };
            bytes.extend(entry.as_bytes());
        }
        bytes.resize(head, 0);
        self.writes.iter().for_each(|(_, _, load)| bytes.extend(load));
        let sum = checksum(&bytes);
        bytes[SUM..SUM + 4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a slot; `None` if there is no whole record in it. Fails with `Unsupported` if the record is of
    /// a later version.
    pub fn decode(shape: &Shape, slot: &[u8]) -> Result<Option<Record>> {
        let Ok((head, entries)) = Head::ref_from_prefix(slot) else { return Ok(None) };
        if head.magic != MAGIC || head.writes.get() as usize > WRITES_MAX || (slot.len() as u64) < shape.head
        {
            return Ok(None);
        }
        let Ok((entries, _)) = <[Entry]>::ref_from_prefix_with_elems(entries, head.writes.get() as usize)
        else {
            return Ok(None);
        };
        let load: u64 = entries.iter().map(|entry| u64::from(entry.len.get())).sum();
        let len = shape.head + load;
        if load > shape.load || len > slot.len() as u64 || checksum(&slot[..len as usize]) != head.sum.get() {
            return Ok(None);
        }
        if head.version.get() != VERSION {
            let message = format!("a journal has format {}; this program knows {VERSION}", head.version);
            return Err(Error::unsupported(message));
        }
        let mut at = shape.head as usize;
        let write = |entry: &Entry| {
            let len = entry.len.get() as usize;
            at += len;
            (entry.column.get() as usize, entry.start.get(), slot[at - len..at].to_vec())
        };
        Ok(Some(Record {
            id: head.id.get(),
            epoch: head.epoch.get(),
            sequence: head.sequence.get(),
            first: head.first.get(),
            writes: entries.iter().map(write).collect(),
        }))
    }
}

/// The checksum of a record as if its own four bytes were zero.
///
/// The checksum is not a CRC, because of the bytes in a record: bytes that end with their own CRC-32C, as the
/// pages of a metadata store do, leave a CRC-32C as it would be after any other such bytes. A record half of
/// which is that of the next one would be whole.
pub(super) fn checksum(record: &[u8]) -> u32 {
    let mut sum = Xxh3::new();
    [&record[..SUM], &[0; 4], &record[SUM + 4..]].iter().for_each(|part| sum.update(part));
    sum.digest() as u32
}

/// Cuts writes into groups of the same rows that fit into one record each, in order.
pub fn cut(shape: &Shape, block: u64, rows: &Range<u64>, writes: &[Write]) -> Vec<(Range<u64>, Vec<Write>)> {
    let within =
        |rows: &Range<u64>| -> Vec<Write> { writes.iter().filter_map(|write| write.part(rows)).collect() };
    let (mut groups, mut from) = (Vec::new(), rows.start);
    let mut step = rows.end - rows.start;
    while from < rows.end {
        let part = from..(from + step).min(rows.end);
        let group = within(&part);
        let load: u64 = group.iter().map(|write| write.bytes.len() as u64).sum();
        if (load > shape.load || group.len() > WRITES_MAX) && part.end - part.start > block {
            step = ((part.end - part.start) / 2).next_multiple_of(block);
            continue;
        }
        from = part.end;
        if !group.is_empty() {
            groups.push((part, group));
        }
    }
    groups
}

impl Parity {
    /// The number of legs with a copy of a record: as many as may still be lost, and one more.
    pub(super) fn copies(&self) -> usize {
        let missing = self.layout.columns - self.legs.covered(None);
        (self.layout.parity + 1).saturating_sub(missing).max(1)
    }

    /// The legs with a copy of slot `slot`. They are the same until a leg is lost.
    pub(super) fn holders(&self, slot: u64) -> Vec<usize> {
        let legs: Vec<usize> = self.legs.in_sync().collect();
        let copies = self.copies().min(legs.len());
        (0..copies).map(|copy| legs[(slot as usize + copy) % legs.len()]).collect()
    }

    /// Writes a record of `writes`, durably, to legs in sync.
    pub(super) async fn write_down(&self, sequence: u64, writes: &[Write]) -> Result<()> {
        let (shape, first) = (self.journal, self.ring.first());
        let is_sync = |column: usize| self.legs.in_sync().any(|leg| self.column(leg) == Some(column));
        let of_sync = writes.iter().filter(|write| is_sync(write.column));
        let record = Record {
            id: self.legs.intent.shape().id,
            epoch: self.epoch.get(),
            sequence,
            first,
            writes: of_sync.map(|write| (write.column, write.start, write.bytes.to_vec())).collect(),
        };
        let mut bytes = record.encode(shape.head as usize);
        // Whole blocks: a leg that finds a block corrupt takes no part of it.
        bytes.resize(bytes.len().next_multiple_of(BLOCK as usize).min(shape.slot() as usize), 0);
        let buf = self.legs.env.pool().take(bytes.len());
        buf.write(0, &bytes);
        let slot = sequence % shape.slots;
        let at = self.legs.tail() + slot * shape.slot();
        let put = |leg| (leg, self.node(leg).submit(Io::write(at, buf.clone(), Durability::Fua)));
        match self.put_all(self.holders(slot).into_iter().map(put)).await.pop() {
            Some((_, e)) => Err(e),
            None => {
                self.ring.wrote(first);
                Ok(())
            }
        }
    }
}
