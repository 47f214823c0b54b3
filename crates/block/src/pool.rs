//! Page-aligned memory, kept for reuse within a bound.

use crate::Buf;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

/// Alignment of pool memory in bytes: enough for O_DIRECT on any block device.
const ALIGN: usize = 4096;
/// Size classes: 4 KiB to 1 MiB, powers of two. Larger buffers are not kept.
const CLASSES: usize = 9;

/// Page-aligned memory for one core. A buffer goes back when its last clone is dropped.
///
/// The bytes of a buffer are initialised but may be those of an earlier use: a caller that hands a buffer to the
/// outside fills it first.
#[derive(Clone)]
pub struct Pool(Rc<Shelf>);

struct Shelf {
    free: [RefCell<Vec<NonNull<u8>>>; CLASSES],
    kept: Cell<usize>,
    keep_max: usize,
}

/// The owner of one buffer's memory.
struct Page {
    shelf: Weak<Shelf>,
    start: NonNull<u8>,
    layout: Layout,
}

/// Memory of a [`Pool`] with one owner: it becomes a [`Buf`].
pub struct Fresh {
    page: Page,
    len: usize,
}

impl Deref for Fresh {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the page has at least `len` bytes, zeroed when it was made, and this is the only reference to them.
        unsafe { std::slice::from_raw_parts(self.page.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Fresh {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.page.start.as_ptr(), self.len) }
    }
}

impl From<Fresh> for Buf {
    fn from(fresh: Fresh) -> Buf {
        if fresh.len == 0 {
            return Buf::empty();
        }
        let start = fresh.page.start;
        // SAFETY: the owner holds an allocation of at least `len` bytes, zeroed when it was made.
        unsafe { Buf::from_raw(Rc::new(fresh.page), start, fresh.len) }
    }
}

impl Pool {
    /// A pool that keeps at most `keep_max` bytes of unused memory.
    pub fn new(keep_max: usize) -> Pool {
        Pool(Rc::new(Shelf { free: Default::default(), kept: Cell::new(0), keep_max }))
    }

    /// A buffer of `len` bytes in one segment, its start a multiple of 4096.
    pub fn take(&self, len: usize) -> Buf {
        self.fresh(len).into()
    }

    /// The same, for a caller that fills the buffer before it is shared.
    pub fn fresh(&self, len: usize) -> Fresh {
        let layout = layout(len);
        let start = class(layout)
            .and_then(|class| self.0.free[class].borrow_mut().pop())
            .inspect(|_| self.0.kept.set(self.0.kept.get() - layout.size()))
            .unwrap_or_else(|| allocate(layout));
        Fresh { page: Page { shelf: Rc::downgrade(&self.0), start, layout }, len }
    }

    /// Bytes kept for reuse.
    pub fn kept(&self) -> usize {
        self.0.kept.get()
    }
}

fn layout(len: usize) -> Layout {
    let size = if len <= ALIGN << (CLASSES - 1) {
        len.next_power_of_two().max(ALIGN)
    } else {
        len.checked_next_multiple_of(ALIGN).expect("a buffer's length fits in memory")
    };
    Layout::from_size_align(size, ALIGN).expect("a buffer's length fits in memory")
}

fn class(layout: Layout) -> Option<usize> {
    let class = (layout.size() / ALIGN).trailing_zeros() as usize;
    (layout.size().is_power_of_two() && class < CLASSES).then_some(class)
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: the layout's size is at least ALIGN.
    NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

impl Drop for Page {
    fn drop(&mut self) {
        if let (Some(shelf), Some(class)) = (self.shelf.upgrade(), class(self.layout)) {
            let kept = shelf.kept.get() + self.layout.size();
            if kept <= shelf.keep_max {
                shelf.kept.set(kept);
                shelf.free[class].borrow_mut().push(self.start);
                return;
            }
        }
        // SAFETY: allocated with this layout, and this was the last owner.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        for (class, free) in self.free.iter_mut().enumerate() {
            for start in free.get_mut().drain(..) {
                // SAFETY: all memory in class n was allocated with the layout of that class.
                unsafe { dealloc(start.as_ptr(), layout(ALIGN << class)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_reused() {
        let pool = Pool::new(1 << 20);
        let buf = pool.take(5000);
        assert!(buf.slice(0..4096).is_aligned(4096));
        let start = buf.segments()[0].as_ptr();
        drop(buf);
        assert_eq!(pool.kept(), 8192);
        assert_eq!(pool.take(8192).segments()[0].as_ptr(), start);
    }

    #[test]
    fn keeps_within_its_bound_and_may_go_first() {
        let pool = Pool::new(8192);
        let bufs: Vec<Buf> = (0..4).map(|_| pool.take(4096)).collect();
        let last = pool.take(3 << 20);
        drop(bufs);
        assert_eq!(pool.kept(), 8192);
        drop(pool);
        last.fill(1);
    }
}
