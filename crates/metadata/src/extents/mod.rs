//! Where extents are: a table from logical to physical extents ([`Lxt`]), and which physical ones are in use ([`Pxb`]).
//!
//! Both are objects of a [`crate::Store`]: pages come into memory when they are asked for, within the store's bound. A
//! layer puts all that changes together into one [`crate::Change`], so that a crash leaves all of it or nothing.
//!
//! ```text
//!   write to a new extent:  n = pxb.alloc() ─▶ data to n ─▶ change: lxt.set(e, n) + pxb.take(n) ─▶ commit
//!   free an old one:        change: lxt.set(e, …) + pxb.free(o) ─▶ commit ─▶ pxb.release(o)
//! ```
//!
//! # What they take
//!
//! For each TiB, by the size of an extent (the paper: 1 GiB of memory at 4 KiB, 128 MiB at 32 KiB):
//!
//! | extent | LXT | PXB | memory, always | on disk, in two slots |
//! |---|---:|---:|---:|---:|
//! | 4 KiB | 1032 MiB | 32.2 MiB | 16.1 KiB | 2129 MiB |
//! | 32 KiB | 129 MiB | 4.0 MiB | 2.0 KiB | 266 MiB |
//! | 1 MiB | 4.0 MiB | 0.1 MiB | 0.1 KiB | 8.3 MiB |
//!
//! The rest of the memory is what the store was given: 16 MiB unless told otherwise, for all of its objects together. A
//! test (`tests/extents.rs`) computes the table and measures the memory. An entry has 4 bytes where there are fewer
//! than 2^29 - 1 physical extents (2 TiB of 4 KiB), 8 bytes otherwise.

mod audit;
mod draft;
mod lxt;
mod pxb;
mod tree;

pub use audit::{Bits, Count};
pub use draft::{Draft, Drawn};
pub use lxt::{Lxt, Mapping};
pub use pxb::{Policy, Pxb};
pub use tree::{EPOCH_MAX, Entry, FANOUT, Found, PLACES_MAX, Root, Tree, levels_for, pages_for};

/// Bytes of the table of `logical` extents over `physical` ones.
pub fn lxt_len(logical: u64, physical: u64) -> u64 {
    logical.saturating_mul(lxt::width(physical) as u64)
}

/// Bytes of the bitmap of `physical` extents, and of its counts.
pub fn pxb_len(physical: u64) -> (u64, u64) {
    (physical.div_ceil(8), pxb::groups(physical).saturating_mul(2))
}
