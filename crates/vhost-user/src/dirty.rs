//! The log of a migration: which pages of the guest's memory we have written.
//!
//! The front-end shares a bitmap, one bit for 4 KiB of guest addresses, and copies the pages whose bits it finds set
//! once more. A page is marked after its bytes were written and before the guest hears of them; earlier, and the page
//! might be copied too soon; later, and a migrated guest might see a completion without its data.

use crate::memory::Piece;
use std::sync::atomic::{AtomicU8, Ordering};

const PAGE: u64 = 4096;

/// The bitmap.
pub(crate) struct DirtyLog {
    piece: Piece,
}

impl DirtyLog {
    /// The bitmap that is mapped here.
    pub fn new(piece: Piece) -> DirtyLog {
        DirtyLog { piece }
    }

    /// Marks the pages of the guest's `guest..guest + len`. Addresses beyond the bitmap have no bit and are left out.
    pub fn mark(&self, guest: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = guest.saturating_add(len - 1) / PAGE;
        for page in guest / PAGE..=last {
            let Some(at) = usize::try_from(page / 8).ok().and_then(|byte| self.piece.at(byte, 1)) else {
                break;
            };
            // SAFETY: inside the mapping; the front-end changes it atomically, too.
            unsafe { AtomicU8::from_ptr(at.as_ptr()) }.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapper;
    use crate::testing::memfd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn marks_every_page_that_is_touched_and_none_beyond() {
        let cases: [(u64, u64, &[usize]); 7] = [
            (0, 1, &[0]),
            (4095, 2, &[0, 1]),
            (4096, 4096, &[1]),
            (7 * 4096, 3 * 4096, &[7, 8, 9]),
            (0, 0, &[]),
            (64 * 4096 - 1, 4096, &[63]),
            (u64::MAX, 2, &[]),
        ];
        for (guest, len, pages) in cases {
            let file = memfd(64);
            DirtyLog::new(Mapper::default().map(&file, 16, 8).unwrap()).mark(guest, len);
            let mut bytes = [0; 64];
            file.read_exact_at(&mut bytes, 0).unwrap();
            let set: Vec<usize> = (0..512).filter(|bit| bytes[bit / 8] & (1 << (bit % 8)) != 0).collect();
            let expected: Vec<usize> = pages.iter().map(|p| p + 16 * 8).collect();
            assert_eq!(set, expected, "{guest} {len}");
        }
    }

    #[test]
    fn a_bitmap_larger_than_its_file_is_refused() {
        assert!(Mapper::default().map(&memfd(64), 0, 65).is_err());
        assert!(Mapper::default().map(&memfd(64), u64::MAX, 65).is_err());
    }
}
