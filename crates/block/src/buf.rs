//! Memory that requests carry: a counted list of segments, cut and joined without copying.
//!
//! A segment may be guest memory, pool pages or plain memory. Others may change its bytes at any time (a guest does,
//! the kernel does, another clone of the same buffer does), so no reference to the bytes is ever handed out: they are
//! copied in and out. A layer that needs stable bytes (checksums, encryption) copies them to private memory first.

use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

/// A run of memory with whoever keeps it alive.
#[derive(Clone)]
pub struct Segment {
    owner: Rc<dyn Any>,
    start: NonNull<u8>,
    len: usize,
}

impl Segment {
    /// First byte. Valid for reads and writes of [`Segment::len`] bytes while this segment lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes, not zero.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The owner that keeps the memory alive; a sink may recognise memory that it has registered.
    pub fn owner(&self) -> &Rc<dyn Any> {
        &self.owner
    }

    fn cut(&self, range: Range<usize>) -> Segment {
        assert!(range.start < range.end && range.end <= self.len);
        // SAFETY: `range.start` lies inside the segment, asserted above.
        let start = unsafe { self.start.add(range.start) };
        Segment { owner: Rc::clone(&self.owner), start, len: range.end - range.start }
    }

    /// True if byte `at` of `next` follows in the same memory.
    fn ends_at(&self, next: &Segment, at: usize) -> bool {
        self.start.as_ptr().wrapping_add(self.len) == next.start.as_ptr().wrapping_add(at)
            && Rc::ptr_eq(&self.owner, &next.owner)
    }

    /// Absorbs `next` if it follows in the same memory; true if it did.
    fn grow(&mut self, next: &Segment) -> bool {
        let follows = self.ends_at(next, 0);
        if follows {
            self.len += next.len;
        }
        follows
    }
}

/// A list of memory segments, read and written as one run of bytes. Cloning and cutting share the memory.
#[derive(Clone)]
pub struct Buf(List);

/// Nearly every request has one segment: it is stored inline, so that a request is small to move, and cheap to copy and
/// to drop.
#[derive(Clone)]
enum List {
    One(Segment),
    /// Several, shared between clones; `None` when there is no memory.
    Many(Option<Rc<Many>>),
}

#[derive(Clone, Default)]
struct Many {
    segments: SmallVec<[Segment; 4]>,
    len: usize,
}

impl Default for Buf {
    fn default() -> Buf {
        Buf::empty()
    }
}

impl Buf {
    /// No memory.
    pub const fn empty() -> Buf {
        Buf(List::Many(None))
    }

    /// Memory that `owner` keeps alive.
    ///
    /// # Safety
    /// `start` must be valid for reads and writes of `len` initialised bytes for as long as `owner` lives, and no
    /// reference to these bytes may exist while any clone or cut of the buffer is used.
    pub unsafe fn from_raw(owner: Rc<dyn Any>, start: NonNull<u8>, len: usize) -> Buf {
        if len == 0 { Buf::empty() } else { Buf(List::One(Segment { owner, start, len })) }
    }

    /// Takes over the bytes of a vector.
    pub fn from_vec(bytes: Vec<u8>) -> Buf {
        struct Plain {
            start: NonNull<u8>,
            len: usize,
            capacity: usize,
        }
        impl Drop for Plain {
            fn drop(&mut self) {
                // SAFETY: these are the parts of the vector taken apart below, put together once.
                drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
            }
        }
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let start = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is not null");
        let (len, capacity) = (bytes.len(), bytes.capacity());
        let owner = Rc::new(Plain { start, len, capacity });
        // SAFETY: `owner` holds the allocation of `len` initialised bytes, and nothing else refers to it.
        unsafe { Buf::from_raw(owner, start, len) }
    }

    /// Plain memory of zeroes, not aligned; [`crate::Pool`] gives aligned memory.
    pub fn zeroed(len: usize) -> Buf {
        Buf::from_vec(vec![0; len])
    }

    /// Length in bytes of all segments.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            List::One(segment) => segment.len,
            List::Many(many) => many.as_ref().map_or(0, |many| many.len),
        }
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The segments in order, for system calls.
    pub fn segments(&self) -> &[Segment] {
        match &self.0 {
            List::One(segment) => std::slice::from_ref(segment),
            List::Many(many) => many.as_ref().map_or(&[], |many| &many.segments),
        }
    }

    /// A part of this buffer; shares the memory. Panics if `range` is not inside.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        let mut part = Buf::empty();
        part.append_part(self, range);
        part
    }

    /// Appends the segments of `other`, without copying. Neighbours in memory become one segment.
    pub fn append(&mut self, other: Buf) {
        match other.0 {
            List::One(segment) => self.push(segment),
            List::Many(None) => {}
            List::Many(Some(many)) => many.segments.iter().for_each(|segment| self.push(segment.clone())),
        }
    }

    /// Appends a part of `other`, without copying, as [`Buf::append`] does. Panics if `range` is not inside.
    pub fn append_part(&mut self, other: &Buf, range: Range<usize>) {
        let len = other.len();
        assert!(range.start <= range.end && range.end <= len, "{range:?} of a buffer of {len}");
        match (&mut self.0, &other.0) {
            _ if range.is_empty() => {}
            (List::Many(None), List::One(segment)) => self.0 = List::One(segment.cut(range)),
            (List::One(last), List::One(segment)) if last.ends_at(segment, range.start) => {
                last.len += range.len()
            }
            _ => other.each(range, |segment, within| self.push(segment.cut(within))),
        }
    }

    fn push(&mut self, segment: Segment) {
        match &mut self.0 {
            List::Many(None) => self.0 = List::One(segment),
            List::One(last) => {
                if !last.grow(&segment) {
                    self.push_second(segment);
                }
            }
            List::Many(Some(many)) => {
                let many = Rc::make_mut(many);
                many.len += segment.len;
                if !many.segments.last_mut().is_some_and(|last| last.grow(&segment)) {
                    many.segments.push(segment);
                }
            }
        }
    }

    #[cold]
    fn push_second(&mut self, second: Segment) {
        if let List::One(first) = std::mem::replace(&mut self.0, List::Many(None)) {
            let len = first.len + second.len;
            let segments = [first, second].into_iter().collect();
            self.0 = List::Many(Some(Rc::new(Many { segments, len })));
        }
    }

    /// Calls `f` with each segment that `range` touches and the range within the segment.
    #[inline]
    fn each(&self, range: Range<usize>, mut f: impl FnMut(&Segment, Range<usize>)) {
        let mut before = 0;
        for segment in self.segments() {
            if before >= range.end {
                break;
            }
            let start = range.start.max(before) - before;
            let end = range.end.min(before + segment.len).saturating_sub(before);
            if start < end {
                f(segment, start..end);
            }
            before += segment.len;
        }
    }

    /// Copies `bytes` into the buffer at `offset`. Panics if they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset);
        let mut from = bytes.as_ptr();
        self.each(offset..offset + bytes.len(), |segment, within| {
            let n = within.len();
            // SAFETY: `within` lies in the segment, and `from` advances through `bytes` by what `each` hands out,
            // which sums to `bytes.len()`. A segment never overlaps a live `&[u8]` (contract of `from_raw`).
            unsafe {
                std::ptr::copy(from, segment.as_ptr().add(within.start), n);
                from = from.add(n);
            }
        });
    }

    /// Copies the buffer's bytes from `offset` into `bytes`. Panics if there are not as many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset);
        let (mut to, len) = (bytes.as_mut_ptr(), bytes.len());
        self.each(offset..offset + len, |segment, within| {
            let n = within.len();
            // SAFETY: as in `write`, with the direction reversed.
            unsafe {
                std::ptr::copy(segment.as_ptr().add(within.start), to, n);
                to = to.add(n);
            }
        });
    }

    /// Copies all bytes of `from` to the start of this buffer. Panics if they do not fit.
    pub fn copy_from(&self, from: &Buf) {
        assert!(from.len() <= self.len());
        let mut at = 0;
        for source in from.segments() {
            let mut start = source.as_ptr().cast_const();
            self.each(at..at + source.len, |segment, within| {
                let n = within.len();
                // SAFETY: both pointers are valid for `n` bytes; `copy` allows the overlap that clones of one buffer
                // can have.
                unsafe {
                    std::ptr::copy(start, segment.as_ptr().add(within.start), n);
                    start = start.add(n);
                }
            });
            at += source.len;
        }
    }

    /// Sets every byte to `value`.
    pub fn fill(&self, value: u8) {
        for segment in self.segments() {
            // SAFETY: a segment is valid for writes of its length.
            unsafe { segment.as_ptr().write_bytes(value, segment.len) }
        }
    }

    /// A private copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        for segment in self.segments() {
            let room = bytes.spare_capacity_mut();
            // SAFETY: the segment's bytes are valid, the room is at least as long as what is left, and belongs to
            // nobody else; all that is counted has been written.
            unsafe {
                std::ptr::copy_nonoverlapping(segment.as_ptr(), room.as_mut_ptr().cast(), segment.len);
                bytes.set_len(bytes.len() + segment.len);
            }
        }
        bytes
    }

    /// True if every segment starts at, and has a length that is, a multiple of `align`.
    pub fn is_aligned(&self, align: usize) -> bool {
        self.segments().iter().all(|s| (s.as_ptr() as usize | s.len).is_multiple_of(align))
    }
}

impl fmt::Debug for Buf {
    /// Length and shape; never the bytes, which are the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes in {})", self.len(), self.segments().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(parts: &[&[u8]]) -> Buf {
        let mut buf = Buf::empty();
        for part in parts {
            buf.append(Buf::from_vec(part.to_vec()));
        }
        buf
    }

    #[test]
    fn slices_share_memory() {
        let buf = joined(&[b"abc", b"defg", b"h"]);
        let part = buf.slice(2..8);
        assert_eq!(part.to_vec(), b"cdefgh");
        part.write(0, b"CD");
        assert_eq!(buf.to_vec(), b"abCDefgh");
        assert_eq!(buf.slice(3..3).len(), 0);
    }

    #[test]
    fn neighbours_merge() {
        let buf = Buf::from_vec(b"abcdef".to_vec());
        let mut again = buf.slice(0..2);
        again.append(buf.slice(2..5));
        assert_eq!(again.segments().len(), 1);
        again.append(buf.slice(0..1));
        assert_eq!(again.to_vec(), b"abcdea");
        assert_eq!(again.segments().len(), 2);
    }

    #[test]
    fn every_cut_of_every_shape() {
        let bytes: Vec<u8> = (0..24).collect();
        for shape in [vec![24], vec![1, 23], vec![7, 9, 8], vec![3; 8]] {
            let mut rest = &bytes[..];
            let mut buf = Buf::empty();
            for n in shape {
                let (part, tail) = rest.split_at(n);
                buf.append(Buf::from_vec(part.to_vec()));
                rest = tail;
            }
            for start in 0..=24 {
                for end in start..=24 {
                    assert_eq!(buf.slice(start..end).to_vec(), bytes[start..end]);
                    let copy = Buf::zeroed(end - start);
                    copy.copy_from(&buf.slice(start..end));
                    assert_eq!(copy.to_vec(), bytes[start..end]);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "of a buffer of")]
    fn a_slice_outside_panics() {
        let _ = joined(&[b"abc"]).slice(2..4);
    }

    #[test]
    fn memory_outlives_the_buffer_it_was_cut_from() {
        let part = Buf::from_vec(vec![7; 4096]).slice(4000..4001);
        assert_eq!(part.to_vec(), [7]);
    }
}
