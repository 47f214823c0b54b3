//! What hosts that share an export say to its server while they negotiate: names of metadata contexts, whose namespaces
//! `x-*` NBD leaves to anyone. Other servers do not know them, and say nothing of them.
//!
//! ```text
//! client  LIST_META_CONTEXT "disk"  x-lamina:records=<a question, in pieces>
//! server  META_CONTEXT 0 x-lamina:records=<the answer, in pieces>, ACK
//! client  SET_META_CONTEXT "disk"   x-lamina:key=<the volume's UUID, in 32 hexadecimal digits>.<the generation>, ...
//! server  META_CONTEXT 3 x-lamina:key=..., ACK            or ACK alone: the key is not that of the newest record
//! ```
//!
//! A connection without a key writes nothing. See `docs/decisions/0029-a-store-that-keeps-the-records.md`.

use crate::wire::STRING_MAX;
use lamina_block::ReservationKey;

/// How the names of the pieces of a question and of an answer begin.
pub const RECORDS: &str = "x-lamina:records=";
/// The most bytes of a question: all of it is in one option.
pub const QUESTION_MAX: usize = 12 << 10;
/// The most bytes of an answer.
pub const ANSWER_MAX: usize = 256 << 10;
/// How the name of a key begins.
const KEY: &str = "x-lamina:key=";

/// The names of the pieces; at least one.
pub fn pieces(bytes: &[u8]) -> Vec<Vec<u8>> {
    let piece = |part: &[u8]| [RECORDS.as_bytes(), part].concat();
    match bytes {
        [] => vec![piece(&[])],
        bytes => bytes.chunks(STRING_MAX - RECORDS.len()).map(piece).collect(),
    }
}

/// A piece with this name.
pub fn piece(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(RECORDS.as_bytes())
}

/// The name of a key.
pub fn key_name(key: ReservationKey) -> String {
    format!("{KEY}{:032x}.{}", key.volume, key.generation)
}

/// The key with this name, written exactly as [`key_name`] does.
pub fn key(name: &[u8]) -> Option<ReservationKey> {
    let text = std::str::from_utf8(name.strip_prefix(KEY.as_bytes())?).ok()?;
    let (volume, generation) = text.split_once('.')?;
    let (volume, generation) = (u128::from_str_radix(volume, 16).ok()?, generation.parse().ok()?);
    Some(ReservationKey { volume, generation }).filter(|key| key_name(*key).as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_names() {
        for (volume, generation) in [(0, 0), (u128::MAX, u64::MAX), (0x11, 7)] {
            let of = ReservationKey { volume, generation };
            assert_eq!(key(key_name(of).as_bytes()), Some(of));
        }
        let name = "x-lamina:key=00000000000000000000000000000011.7";
        assert!(key(name.as_bytes()).is_some());
        for bad in [
            "x-lamina:key=",
            "x-lamina:key=11.7",
            "x-lamina:key=00000000000000000000000000000011.",
            "x-lamina:key=00000000000000000000000000000011.+7",
            "x-lamina:key=00000000000000000000000000000011.18446744073709551616",
            "x-lamina:key=0000000000000000000000000000001A.7",
            "key=00000000000000000000000000000011.7",
        ] {
            assert_eq!(key(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn pieces_make_the_whole() {
        for len in [0, 1, STRING_MAX - RECORDS.len(), STRING_MAX, 3 * STRING_MAX] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let names = pieces(&bytes);
            assert!(!names.is_empty() && names.iter().all(|name| name.len() <= STRING_MAX));
            let whole: Vec<u8> =
                names.iter().flat_map(|name| piece(name).expect("a piece")).copied().collect();
            assert_eq!(whole, bytes);
        }
    }
}
