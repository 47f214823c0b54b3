//! The anti-forensic splitter of LUKS: a key becomes thousands of stripes, all of which are needed to merge
//! it again. A disk that keeps a single remapped sector of a wiped slot does not keep the key.
//!
//! Source: the LUKS1 on-disk format specification 1.2.3, section 2.4, which LUKS2 keeps.

use super::hash::Hash;
use zeroize::Zeroizing;

/// Every bit of `block` depends on all of its bits afterwards: each piece as long as a digest becomes the digest of its
/// number and itself.
fn diffuse(hash: Hash, block: &mut [u8]) {
    for (number, piece) in (0u32..).zip(block.chunks_mut(hash.len())) {
        let digest = hash.digest(&[&number.to_be_bytes(), piece]);
        piece.copy_from_slice(&digest.as_ref()[..piece.len()]);
    }
}

fn xor(into: &mut [u8], from: &[u8]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into ^= from);
}

/// The block to combine the last stripe with: made of all stripes before it.
fn combined(hash: Hash, len: usize, stripes: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut block = Zeroizing::new(vec![0; len]);
    for stripe in stripes.chunks_exact(len) {
        xor(&mut block, stripe);
        diffuse(hash, &mut block);
    }
    block
}

/// Puts `key` into the last of `stripes`, which has whole stripes as long as the key; those before it are random.
pub(super) fn split(hash: Hash, key: &[u8], stripes: &mut [u8]) {
    let (before, last) = stripes.split_at_mut(stripes.len() - key.len());
    last.copy_from_slice(&combined(hash, key.len(), before));
    xor(last, key);
}

/// The key of `len` bytes that was split into `stripes`.
pub(super) fn merge(hash: Hash, len: usize, stripes: &[u8]) -> Zeroizing<Vec<u8>> {
    let (before, last) = stripes.split_at(stripes.len() - len);
    let mut key = combined(hash, len, before);
    xor(&mut key, last);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pattern;

    #[test]
    fn all_stripes_are_needed() {
        for (hash, len) in [(Hash::Sha256, 64), (Hash::Sha1, 32), (Hash::Sha512, 24), (Hash::Sha256, 8)] {
            let key = pattern(len);
            let mut stripes: Vec<u8> = (0..len * 50).map(|i| (i * 31 + i / 7) as u8).collect();
            split(hash, &key, &mut stripes);
            assert_eq!(*merge(hash, len, &stripes), key);
            for at in [0, len * 20, len * 50 - 1] {
                stripes[at] ^= 1;
                assert_ne!(*merge(hash, len, &stripes), key, "{at}");
                stripes[at] ^= 1;
            }
        }
    }
}
