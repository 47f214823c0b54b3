//! Blocks that say what they are: every written block carries the number of its write and its own place, and all of its
//! bytes follow from both. A torn, misplaced or foreign block is recognised.

const TAG: u64 = 0x4C41_4D49 << 32;
const SPREAD: u64 = 0xD6E8_FEB8_6659_FD93;
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Numbers from here on stand for data that was on a disk before.
pub(crate) const FOREIGN: u32 = 0xF000_0000;

/// The nature of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Zero,
    /// Written by `write` to block number `place`.
    Written {
        write: u32,
        place: u64,
    },
    /// Neither: a mixture, or never written by us.
    Garbage,
}

fn word(write: u32, place: u64, index: u64) -> u64 {
    match index {
        0 => TAG | u64::from(write),
        1 => place,
        _ => (u64::from(write).wrapping_mul(SPREAD) ^ place).wrapping_add(index).wrapping_mul(STEP),
    }
}

/// The bytes that `write` puts at block number `place`.
#[cfg(test)]
pub(crate) fn block(write: u32, place: u64, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    fill(write, place, size, &mut bytes);
    bytes
}

/// Appends the bytes that `write` puts at block number `place`.
pub(crate) fn fill(write: u32, place: u64, size: usize, bytes: &mut Vec<u8>) {
    let from = bytes.len();
    bytes.resize(from + size, 0);
    for (index, bytes) in (0..).zip(bytes[from..].chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word(write, place, index).to_le_bytes());
    }
}

/// Whether all bytes are zero. Tests ask this of nearly all that they read.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    const ZEROES: [u8; 512] = [0; 512];
    bytes.chunks(ZEROES.len()).all(|part| part == &ZEROES[..part.len()])
}

/// Recognises a block.
pub(crate) fn recognise(bytes: &[u8]) -> Found {
    if is_zero(bytes) {
        return Found::Zero;
    }
    let mut words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()));
    let (Some(tag), Some(place)) = (words.next(), words.next()) else { return Found::Garbage };
    let write = tag as u32;
    let follows = |(w, index)| w == word(write, place, index);
    match tag == word(write, place, 0) && words.zip(2..).all(follows) {
        true => Found::Written { write, place },
        false => Found::Garbage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_wrong_byte_is_noticed() {
        let good = block(7, 3, 512);
        assert_eq!(recognise(&good), Found::Written { write: 7, place: 3 });
        for i in 0..512 {
            let mut bad = good.clone();
            bad[i] ^= 1;
            assert_eq!(recognise(&bad), Found::Garbage, "byte {i}");
        }
        assert_eq!(recognise(&[0; 512]), Found::Zero);
    }

    #[test]
    fn mixtures_are_garbage() {
        let (a, b) = (block(1, 0, 512), block(2, 0, 512));
        for cut in 1..512 {
            let mixed: Vec<u8> = a[..cut].iter().chain(&b[cut..]).copied().collect();
            assert!(mixed == a || recognise(&mixed) == Found::Garbage, "cut at {cut}");
        }
    }
}
