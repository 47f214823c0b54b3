//! Memory that its owner has taken away, like that of a guest whose file was made smaller: every access gets an error.

use lamina_block::{Buf, Error, ErrorKind, Result};
use std::ptr::NonNull;
use std::rc::Rc;

/// The mark of such memory, which keeps it alive all the same.
struct Gone(#[expect(dead_code, reason = "the owner only has to live")] Buf);

/// `len` bytes (more than none) that no simulated disk reads or writes, and no simulated connection: they answer with
/// [`ErrorKind::BadMemory`], as the kernel does with EFAULT. Layers that copy it see zeroes.
pub fn gone_memory(len: usize) -> Buf {
    let bytes = Buf::zeroed(len);
    let start = NonNull::new(bytes.segments()[0].as_ptr()).expect("memory is not at address zero");
    // SAFETY: the owner holds the allocation of `len` initialised bytes, and there is no reference to them.
    unsafe { Buf::from_raw(Rc::new(Gone(bytes)), start, len) }
}

/// The number of bytes at the beginning of `buf` that are there; an error if that is not all.
pub(crate) fn check(buf: &Buf) -> Result<()> {
    let mut there = 0;
    for segment in buf.segments() {
        if segment.owner().is::<Gone>() {
            let e = Error::new(ErrorKind::BadMemory, "the memory of the request cannot be accessed");
            return Err(e.at(0..there));
        }
        there += segment.len() as u64;
    }
    Ok(())
}
