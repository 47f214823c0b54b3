//! A hash of small numbers that are no secrets: one multiplication for each.
//!
//! Tables of the generators are looked up several times for each page that is read; the standard library's hash, which
//! resists keys that are chosen to collide, costs more there than the draws. Keys here come from seeds. The constant is
//! 2⁶⁴ divided by the golden ratio (Knuth, *The Art of Computer Programming*, volume 3, section 6.4).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by small numbers.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;
/// A set of small numbers.
pub type NumberSet<K> = HashSet<K, BuildHasherDefault<NumberHasher>>;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of the numbers so far.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(32) ^ number).wrapping_mul(GOLDEN);
    }

    /// Tables take the low bits for the place and the high ones for the tag: the product is well mixed at its top only.
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn neighbours_are_spread() {
        let build = BuildHasherDefault::<NumberHasher>::default();
        let mut places = HashSet::new();
        for file in 0..64u32 {
            for page in 0..64u32 {
                places.insert(build.hash_one((file, page)) % 4096);
            }
        }
        // As many as random places would be: 1 - 1/e of all.
        assert!((2400..=4096).contains(&places.len()), "{}", places.len());
    }
}
