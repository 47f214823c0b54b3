//! The requests in flight, kept in memory that survives this process (vhost-user specification, "Inflight I/O
//! tracking", split queues).
//!
//! The front-end keeps this memory over our death and gives it to our successor, which finds in it what was taken
//! from the available ring and not yet returned in the used ring, and does that again. All requests are safe to
//! repeat, in the order in which they were taken.
//!
//! ```text
//! per queue, each part beginning at a multiple of 64 bytes:
//!  0 features u64 | 8 version u16 = 1 | 10 entries u16 | 12 last_batch_head u16 | 14 used_index u16
//! 16 + 16 n: of the chain with head n: 0 in_flight u8 | 1 padding [u8; 5] | 6 next u16 | 8 counter u64
//! ```
//!
//! A batch of chains is returned in four steps: chained by `next` from `last_batch_head`, then published in the used
//! ring, then no longer in flight, then `used_index`. A `used_index` that differs from the used ring's index shows that
//! the last batch was published, and which one it was.
//!
//! Memory that the front-end shares is checked like any other: a wrong value costs this queue a repeated or a lost
//! request, never more.

use crate::memory::Piece;
use crate::store;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

const VERSION: u16 = 1;
const HEADER_LEN: usize = 16;
const ENTRY_LEN: usize = 16;
const ALIGN: usize = 64;

/// Bytes of one queue of `size` entries.
fn stride(size: u16) -> usize {
    (HEADER_LEN + ENTRY_LEN * size as usize).next_multiple_of(ALIGN)
}

/// A new region for `queues` queues of `size` entries; its length in bytes.
pub(crate) fn create(queues: u16, size: u16) -> io::Result<(File, u64)> {
    let len = (stride(size) * queues as usize) as u64;
    let fd = memfd_create("lamina-inflight", MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, len)?;
    Ok((fd.into(), len))
}

/// The region of a device.
pub(crate) struct Region {
    piece: Rc<Piece>,
    queues: u16,
    size: u16,
}

impl Region {
    /// The region that is mapped here.
    pub fn new(piece: Piece, queues: u16, size: u16) -> io::Result<Region> {
        let start = piece.at(0, stride(size) * queues as usize);
        if !start.is_some_and(|start| (start.as_ptr() as usize).is_multiple_of(8)) {
            let message = format!("the region is too small for {queues} queues of {size}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Region { piece: Rc::new(piece), queues, size })
    }

    /// The part of queue `index`, if the region has one for a queue of `size` entries.
    pub fn tracker(&self, index: usize, size: u16) -> Option<Tracker> {
        if index >= self.queues as usize || size > self.size {
            return None;
        }
        let start = self.piece.at(index * stride(self.size), stride(self.size))?;
        Some(Tracker { start, size, counter: Cell::new(0), _piece: Rc::clone(&self.piece) })
    }
}

/// The part of one queue.
pub(crate) struct Tracker {
    start: NonNull<u8>,
    size: u16,
    /// Taken so far; orders what must be repeated.
    counter: Cell<u64>,
    _piece: Rc<Piece>,
}

impl Tracker {
    fn field<T>(&self, offset: usize) -> NonNull<T> {
        debug_assert!(offset + size_of::<T>() <= stride(self.size));
        // SAFETY: inside the queue's part: callers pass offsets of the header or of an entry below `size`.
        unsafe { self.start.add(offset) }.cast()
    }

    fn version(&self) -> NonNull<u16> {
        self.field(8)
    }

    fn entries(&self) -> NonNull<u16> {
        self.field(10)
    }

    fn last_batch_head(&self) -> NonNull<u16> {
        self.field(12)
    }

    fn used_index(&self) -> NonNull<u16> {
        self.field(14)
    }

    fn in_flight(&self, head: u16) -> NonNull<u8> {
        assert!(head < self.size);
        self.field(HEADER_LEN + head as usize * ENTRY_LEN)
    }

    fn next(&self, head: u16) -> NonNull<u16> {
        assert!(head < self.size);
        self.field(HEADER_LEN + head as usize * ENTRY_LEN + 6)
    }

    fn counter(&self, head: u16) -> NonNull<u64> {
        assert!(head < self.size);
        self.field(HEADER_LEN + head as usize * ENTRY_LEN + 8)
    }

    /// Remembers that the chain at `head`, which must be less than the size, was taken from the available ring.
    #[inline(always)]
    pub fn take(&self, head: u16) {
        // SAFETY: inside the queue's part, whose start and fields are aligned.
        unsafe {
            store::put(self.counter(head), self.counter.get());
            store::put(self.in_flight(head), 1);
        }
        self.counter.set(self.counter.get().wrapping_add(1));
    }

    /// Remembers that the chain at `head` is in the used ring and will be published with the next batch.
    #[inline(always)]
    pub fn put(&self, head: u16) {
        // SAFETY: as in `take`.
        unsafe {
            store::put(self.next(head), self.last_batch_head().read_volatile());
            store::put(self.last_batch_head(), head);
        }
    }

    /// Remembers that `batch` was published, and with it the used ring up to `used_index`.
    pub fn published(&self, batch: &[u16], used_index: u16) {
        // SAFETY: as in `take`.
        unsafe {
            for head in batch {
                store::put(self.in_flight(*head), 0);
            }
            store::put(self.used_index(), used_index);
        }
    }

    /// Finds what is in flight when the used ring's index is `used_index`: heads in the order in which they were
    /// taken. An error if the region was not written by this version.
    pub fn recover(&self, used_index: u16) -> Result<Vec<u16>, String> {
        // SAFETY: as in `take`.
        let (version, entries) = unsafe { (self.version().read_volatile(), self.entries().read_volatile()) };
        let unknown = match version {
            0 => None,
            VERSION if entries == self.size => {
                return Ok(self.in_order(used_index));
            }
            VERSION => Some(format!("for a queue of {entries} entries")),
            other => Some(format!("in version {other} of its format")),
        };
        match unknown {
            Some(how) if (0..self.size).any(|head| self.is_in_flight(head)) => {
                return Err(format!("the in-flight region was written {how}"));
            }
            _ => {}
        }
        // SAFETY: as in `take`. The version last: it marks the rest as complete.
        unsafe {
            store::put(self.entries(), self.size);
            store::put(self.used_index(), used_index);
            store::put(self.version(), VERSION);
        }
        Ok(Vec::new())
    }

    fn is_in_flight(&self, head: u16) -> bool {
        // SAFETY: as in `take`.
        unsafe { self.in_flight(head).read_volatile() == 1 }
    }

    /// The heads in flight, by their counters.
    fn in_order(&self, used_index: u16) -> Vec<u16> {
        self.finish_last_batch(used_index);
        let mut heads: Vec<(u64, u16)> = (0..self.size)
            .filter(|head| self.is_in_flight(*head))
            // SAFETY: as in `take`.
            .map(|head| (unsafe { self.counter(head).read_volatile() }, head))
            .collect();
        heads.sort_unstable();
        self.counter.set(heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1)));
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// The last batch was published, and we died before we had written that down.
    fn finish_last_batch(&self, used_index: u16) {
        // SAFETY: as in `take`.
        let (mut batch, mut head) = unsafe {
            let known = self.used_index().read_volatile();
            (used_index.wrapping_sub(known).min(self.size), self.last_batch_head().read_volatile())
        };
        while batch > 0 && head < self.size {
            // SAFETY: as in `take`; `head` is an entry's.
            unsafe {
                store::put(self.in_flight(head), 0);
                head = self.next(head).read_volatile();
            }
            batch -= 1;
        }
        // SAFETY: as in `take`.
        unsafe { store::put(self.used_index(), used_index) };
    }
}
