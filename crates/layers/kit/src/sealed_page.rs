//! Sealed pages: pages on disk with a magic number and a checksum.
//!
//! ```text
//!      0        8          16       24
//!      │ magic  │ checksum │ key …  │ …                     │ zeroes │
//! ```
//!
//! The checksum is XXH3 of all of the page, in which its own eight bytes count as zeroes; its seed is the
//! key. The key is drawn for each device when it is formatted: pages of another device, or of the same one
//! before, are never taken for its own, and no guest can write pages that look like them. A superblock, from
//! which the key is read, has the seed 0, and other bytes in the place of the key.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// A page of `len` bytes that begins with `head`.
pub fn page(head: &[u8], len: usize, key: u64) -> Vec<u8> {
    let mut page = head.to_vec();
    page.resize(len, 0);
    seal(&mut page, key);
    page
}

/// Writes the checksum into a page.
pub fn seal(page: &mut [u8], key: u64) {
    page[8..16].fill(0);
    let sum = xxh3_64_with_seed(page, key);
    page[8..16].copy_from_slice(&sum.to_le_bytes());
}

/// True if the checksum is right.
pub fn is_sealed(page: &[u8], key: u64) -> bool {
    if page.len() < 16 {
        return false;
    }
    let mut rest = Xxh3::with_seed(key);
    rest.update(&page[..8]);
    rest.update(&[0; 8]);
    rest.update(&page[16..]);
    page[8..16] == rest.digest().to_le_bytes()
}

/// True if the page is whole, begins with `magic`, and is of the device with this key.
pub fn is_whole(page: &[u8], magic: [u8; 8], key: u64) -> bool {
    page.starts_with(&magic) && page.get(16..24) == Some(&key.to_le_bytes()) && is_sealed(page, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"LAMTESTS";
    const KEY: u64 = 0x0123_4567_89AB_CDEF;

    fn sealed() -> Vec<u8> {
        let head = [&MAGIC[..], &[0xEE; 8], &KEY.to_le_bytes(), b"what it says"].concat();
        page(&head, 64, KEY)
    }

    #[test]
    fn every_bit_of_a_page_counts() {
        let page = sealed();
        assert!(is_whole(&page, MAGIC, KEY));
        for bit in 0..page.len() * 8 {
            let mut bad = page.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_sealed(&bad, KEY) && !is_whole(&bad, MAGIC, KEY), "bit {bit}");
        }
        for len in 0..page.len() {
            assert!(!is_whole(&page[..len], MAGIC, KEY), "{len} bytes of it");
        }
    }

    #[test]
    fn a_page_of_another_kind_or_device_is_none() {
        let page = sealed();
        assert!(!is_whole(&page, *b"LAMTESTT", KEY) && !is_whole(&page, MAGIC, KEY + 1));
        let mut other = page.clone();
        seal(&mut other, KEY + 1);
        assert!(
            is_sealed(&other, KEY + 1) && !is_whole(&other, MAGIC, KEY) && !is_whole(&other, MAGIC, KEY + 1)
        );
    }
}
