//! Writes to memory that outlives this process: rings and the in-flight region.
//!
//! After kill -9 the next process finds what was written, in program order. Every such write goes through here, so
//! that a test can stop the world after each of them.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// Writes `value` to shared memory.
///
/// # Safety
/// `to` must be valid for writes and aligned for `T`.
#[inline(always)]
pub(crate) unsafe fn put<T: Copy>(to: NonNull<T>, value: T) {
    // SAFETY: the caller's promise.
    unsafe { to.as_ptr().write_volatile(value) };
    #[cfg(test)]
    crate::testing::stored();
}

/// Writes `value` to shared memory after everything that was written before.
///
/// # Safety
/// `to` must be valid for writes and aligned.
#[inline(always)]
pub(crate) unsafe fn publish(to: NonNull<u16>, value: u16) {
    // SAFETY: the caller's promise; the guest's side is another process.
    unsafe { AtomicU16::from_ptr(to.as_ptr()) }.store(value, Ordering::Release);
    #[cfg(test)]
    crate::testing::stored();
}

/// Reads a number before everything that is read afterwards.
///
/// # Safety
/// `from` must be valid for reads and aligned.
#[inline(always)]
pub(crate) unsafe fn acquire(from: NonNull<u16>) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU16::from_ptr(from.as_ptr()) }.load(Ordering::Acquire)
}
