//! One chain of descriptors, walked and checked.
//!
//! The guest's bytes are read once, and no value of them makes this walk leave the guest's memory, run forever or grow
//! without bound. A chain has readable bytes (the request's header and the data to write), then writable bytes (the
//! data read, and the status in the last byte).

use crate::memory::{Memory, Span};
use crate::ring::{DESCRIPTOR_LEN, Descriptor, Ring};
use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use lamina_block::Buf;

const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// The most descriptors in a chain. Guests use at most two more than the data segments that they are offered.
const DESCRIPTORS_MAX: u32 = 1024;

/// The most pieces of guest memory in a chain. A descriptor of the largest length may lie in all regions there are.
const SPANS_MAX: usize = 8 * DESCRIPTORS_MAX as usize;

/// Bytes of a request's header.
pub(crate) const HEADER_LEN: usize = 16;

/// A chain that cannot be answered: the place of its status is unknown. The queue stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Head,
    Loop,
    Next,
    IndirectTwice,
    IndirectNext,
    IndirectLength,
    IndirectPlace,
    NoStatus,
}

impl Broken {
    /// The mistake, for the log.
    pub fn reason(self) -> &'static str {
        match self {
            Broken::Head => "the chain's head is not a descriptor of the queue",
            Broken::Loop => "the chain is a loop, or longer than any request",
            Broken::Next => "the chain leads to a descriptor outside its table",
            Broken::IndirectTwice => "an indirect table contains an indirect table",
            Broken::IndirectNext => "an indirect descriptor has a successor",
            Broken::IndirectLength => "an indirect table's length is no number of descriptors",
            Broken::IndirectPlace => "an indirect table is not in the guest's memory",
            Broken::NoStatus => "the chain has no writable byte for its status",
        }
    }
}

/// A walked chain. Reused from request to request, so that walking allocates nothing.
#[derive(Default)]
pub(crate) struct Chain {
    spans: Vec<Span>,
    /// How many of `spans` the device may read; the rest it may write.
    readable: usize,
    readable_len: u64,
    writable_len: u64,
    /// Some of it is not the guest's memory, or out of order: only the status can be written.
    malformed: bool,
}

/// The table that a walk is in.
enum Table<'a> {
    Queue(&'a Ring),
    /// An indirect table in one piece.
    Flat(NonNull<u8>),
    /// An indirect table in several regions, at this guest address.
    Scattered(u64),
}

impl Table<'_> {
    #[inline(always)]
    fn read(&self, index: u16, memory: &Memory) -> Option<Descriptor> {
        match self {
            Table::Queue(ring) => Some(ring.descriptor(index)),
            Table::Flat(start) => {
                // SAFETY: the whole table is mapped, and `index` is less than its length. The memory may have any
                // alignment, and the guest may change it meanwhile.
                let bytes = unsafe {
                    let at = start.add(index as usize * DESCRIPTOR_LEN);
                    at.cast::<[u8; DESCRIPTOR_LEN]>().read_volatile()
                };
                Some(Descriptor::parse(bytes))
            }
            Table::Scattered(start) => {
                let mut spans = Vec::new();
                let at = start.checked_add(index as u64 * DESCRIPTOR_LEN as u64)?;
                let mut bytes = [0; DESCRIPTOR_LEN];
                (memory.spans(at, DESCRIPTOR_LEN as u32, &mut spans) && gather(&spans, &mut bytes))
                    .then(|| Descriptor::parse(bytes))
            }
        }
    }
}

/// Copies the first bytes of `spans` into `bytes`; false if there are not enough.
fn gather(spans: &[Span], bytes: &mut [u8]) -> bool {
    let mut done = 0;
    for span in spans {
        let n = (span.len as usize).min(bytes.len() - done);
        for i in 0..n {
            // SAFETY: inside the span. Volatile, because the guest may change it meanwhile.
            bytes[done + i] = unsafe { span.start.add(i).read_volatile() };
        }
        done += n;
    }
    done == bytes.len()
}

impl Chain {
    /// Walks the chain that begins at `head`.
    pub fn walk(&mut self, ring: &Ring, memory: &Memory, head: u16) -> Result<(), Broken> {
        self.spans.clear();
        (self.readable, self.readable_len, self.writable_len, self.malformed) = (0, 0, 0, false);
        if head >= ring.size() {
            return Err(Broken::Head);
        }
        let mut table = Table::Queue(ring);
        let mut entries = ring.size() as u32;
        let mut index = head;
        let mut seen = 0;
        loop {
            seen += 1;
            if seen > entries.min(DESCRIPTORS_MAX) || self.spans.len() > SPANS_MAX {
                return Err(Broken::Loop);
            }
            let d = table.read(index, memory).ok_or(Broken::IndirectPlace)?;
            if d.flags & INDIRECT == 0 {
                self.take(&d, memory);
            } else {
                (table, entries) = self.enter(&table, &d, memory)?;
                (index, seen) = (0, 0);
                continue;
            }
            if d.flags & NEXT == 0 {
                break;
            }
            if d.next as u32 >= entries {
                return Err(Broken::Next);
            }
            index = d.next;
        }
        // A last span that is not the guest's memory was not taken, so that the guest does not look at the last one.
        if self.writable_len == 0 { Err(Broken::NoStatus) } else { Ok(()) }
    }

    /// The indirect table that `d` points to, and its number of descriptors.
    fn enter(
        &mut self,
        from: &Table,
        d: &Descriptor,
        memory: &Memory,
    ) -> Result<(Table<'static>, u32), Broken> {
        if !matches!(from, Table::Queue(_)) {
            return Err(Broken::IndirectTwice);
        }
        if d.flags & NEXT != 0 {
            return Err(Broken::IndirectNext);
        }
        if d.len == 0 || !d.len.is_multiple_of(DESCRIPTOR_LEN as u32) {
            return Err(Broken::IndirectLength);
        }
        let entries = d.len / DESCRIPTOR_LEN as u32;
        let table = match memory.guest(d.address, d.len as usize) {
            Some(start) => Table::Flat(start),
            None => Table::Scattered(d.address),
        };
        Ok((table, entries))
    }

    /// Adds what a descriptor points to.
    #[inline(always)]
    fn take(&mut self, d: &Descriptor, memory: &Memory) {
        let before = self.spans.len();
        if !memory.spans(d.address, d.len, &mut self.spans) {
            self.spans.truncate(before);
            self.malformed = true;
            if d.flags & WRITE != 0 {
                // If this is the last one there is no status; if another one follows it holds the status.
                self.writable_len = 0;
            }
        } else if d.flags & WRITE != 0 {
            self.writable_len += d.len as u64;
        } else if self.writable_len > 0 {
            self.malformed = true;
            // The device's writable part has to end with the chain; here it does not.
            self.spans.truncate(before);
        } else {
            self.readable = self.spans.len();
            self.readable_len += d.len as u64;
        }
    }

    /// The number of its pieces of guest memory.
    pub fn spans(&self) -> usize {
        self.spans.len()
    }

    /// True if the chain breaks a rule but has a status: it is answered with an error.
    pub fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Bytes of data to write: the readable part after the header. `None` if there is no whole header.
    pub fn data_out_len(&self) -> Option<u64> {
        self.readable_len.checked_sub(HEADER_LEN as u64)
    }

    /// Bytes of data to read: the writable part before the status.
    pub fn data_in_len(&self) -> u64 {
        self.writable_len.saturating_sub(1)
    }

    /// The request's header, read once; `None` if the chain has fewer readable bytes.
    #[inline(always)]
    pub fn header(&self) -> Option<[u8; HEADER_LEN]> {
        let spans = &self.spans[..self.readable];
        match spans.first() {
            Some(first) if first.len as usize >= HEADER_LEN => {
                // SAFETY: as many bytes are in the span. Volatile, because the guest may change them meanwhile.
                Some(unsafe { first.start.cast::<[u8; HEADER_LEN]>().read_volatile() })
            }
            _ => {
                let mut bytes = [0; HEADER_LEN];
                gather(spans, &mut bytes).then_some(bytes)
            }
        }
    }

    /// Where the status goes: the last writable byte. Only for a chain that was walked without an error.
    #[inline(always)]
    pub fn status(&self) -> NonNull<u8> {
        let last = self.spans.last().expect("a walked chain has a writable byte");
        // SAFETY: the last byte of the span, which is not empty.
        unsafe { last.start.add(last.len as usize - 1) }
    }

    /// The owner that keeps the status byte mapped.
    #[inline(always)]
    pub fn status_owner(&self, memory: &Memory) -> Rc<dyn Any> {
        let last = self.spans.last().expect("a walked chain has a writable byte");
        Rc::clone(memory.region(last).owner())
    }

    /// The data to write, in place.
    #[inline(always)]
    pub fn data_out(&self, memory: &Memory) -> Buf {
        buf(&self.spans[..self.readable], HEADER_LEN, self.readable_len as usize - HEADER_LEN, memory)
    }

    /// Room for the data to read, in place.
    #[inline(always)]
    pub fn data_in(&self, memory: &Memory) -> Buf {
        buf(&self.spans[self.readable..], 0, self.data_in_len() as usize, memory)
    }

    /// Where the status goes, as a guest address.
    pub fn status_address(&self) -> Option<(u64, u32)> {
        self.spans.last().map(|s| (s.guest + u64::from(s.len) - 1, 1))
    }

    /// The parts that the device may write, the status included, as guest addresses: for the log of a migration.
    pub fn writable(&self) -> impl Iterator<Item = (u64, u32)> {
        self.spans[self.readable..].iter().map(|s| (s.guest, s.len))
    }
}

/// `len` bytes of `spans` after the first `skip`, as a buffer.
#[inline(always)]
fn buf(spans: &[Span], mut skip: usize, mut len: usize, memory: &Memory) -> Buf {
    let mut whole = Buf::empty();
    for span in spans {
        let span_len = span.len as usize;
        if skip >= span_len {
            skip -= span_len;
            continue;
        }
        let n = (span_len - skip).min(len);
        // SAFETY: inside the span, whose owner keeps it mapped. There are no references to guest memory.
        let part = unsafe { Buf::from_raw(Rc::clone(memory.region(span).owner()), span.start.add(skip), n) };
        if whole.is_empty() {
            whole = part;
        } else {
            whole.append(part);
        }
        (skip, len) = (0, len - n);
        if len == 0 {
            break;
        }
    }
    whole
}
