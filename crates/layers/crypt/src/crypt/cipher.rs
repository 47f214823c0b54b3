//! The encryption of a volume's bytes: sector by sector, each with an IV from its number.
//!
//! ```text
//!      sector 0     sector 1     sector 2          of 512 or 4096 bytes
//!      iv 0+t       iv u+t       iv 2u+t           u: sector size / 512, t: the segment's tweak
//! ```
//!
//! The IV counts units of 512 bytes for every sector size, as `plain64` of Linux' dm-crypt: 64 bits,
//! little-endian, zeroes after them. Invariant: no two sectors of a volume have the same IV.

use super::evp::Context;
use lamina_block::{Buf, Error, Result};
use lamina_kit::flaw::flawed;

/// The unit that IVs count in, in bytes.
pub(super) const IV_UNIT: u64 = 512;

/// A cipher with its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// AES with 256 bits in XTS: keys of 512 bits.
    AesXts,
    /// Blowfish in CBC. Legacy.
    Blowfish,
    /// DES in CBC. Legacy.
    Des,
    /// DES three times with three keys, in CBC. Legacy.
    TripleDes,
}

impl Algorithm {
    pub const ALL: [Algorithm; 4] =
        [Algorithm::AesXts, Algorithm::Blowfish, Algorithm::Des, Algorithm::TripleDes];

    /// The name in the hierarchy file.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::AesXts => "aes-xts",
            Algorithm::Blowfish => "blowfish",
            Algorithm::Des => "des",
            Algorithm::TripleDes => "3des",
        }
    }

    /// The name in a LUKS header: that of Linux' dm-crypt.
    pub const fn encryption(self) -> &'static str {
        match self {
            Algorithm::AesXts => "aes-xts-plain64",
            Algorithm::Blowfish => "blowfish-cbc-plain64",
            Algorithm::Des => "des-cbc-plain64",
            Algorithm::TripleDes => "des3_ede-cbc-plain64",
        }
    }

    /// The algorithm that a LUKS header names.
    pub fn of(encryption: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.encryption() == encryption)
    }

    /// The length of new keys, in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Algorithm::AesXts => 64,
            Algorithm::Blowfish => 32,
            Algorithm::Des => 8,
            Algorithm::TripleDes => 24,
        }
    }

    /// True for ciphers that only read old volumes: blocks of 64 bits leak after some GiB, keys of 56 bits
    /// are found.
    pub const fn is_legacy(self) -> bool {
        match self {
            Algorithm::AesXts => false,
            Algorithm::Blowfish | Algorithm::Des | Algorithm::TripleDes => true,
        }
    }

    /// True if the cipher has keys of this length.
    fn takes(self, len: usize) -> bool {
        match self {
            Algorithm::AesXts | Algorithm::Des | Algorithm::TripleDes => len == self.key_len(),
            Algorithm::Blowfish => (4..=56).contains(&len),
        }
    }
}

/// A cipher with its key, for sectors.
pub(super) struct Cipher {
    encrypt: Context,
    decrypt: Context,
    /// Bytes.
    sector: usize,
    tweak: u64,
}

impl Cipher {
    /// `algorithm` with `key` for sectors of `sector` bytes (512 to 4096, a power of two), whose first has the IV
    /// `tweak`.
    pub fn new(algorithm: Algorithm, key: &[u8], sector: usize, tweak: u64) -> Result<Cipher> {
        if !algorithm.takes(key.len()) {
            let (bits, encryption) = (key.len() * 8, algorithm.encryption());
            return Err(Error::unsupported(format!(
                "{encryption} with a key of {bits} bits is not known here"
            )));
        }
        let encrypt = Context::new(algorithm, key, true)?;
        Ok(Cipher { encrypt, decrypt: Context::new(algorithm, key, false)?, sector, tweak })
    }

    /// The bytes of a sector.
    pub fn sector(&self) -> usize {
        self.sector
    }

    /// The function from the number of a sector, from byte `at` on, to its IV.
    fn iv(&self, at: u64) -> impl Fn(u64) -> [u8; 16] + use<> {
        let first = self.tweak.wrapping_add(at / IV_UNIT);
        let step = if flawed("tweak reused") { 0 } else { self.sector as u64 / IV_UNIT };
        move |number| {
            let mut iv = [0; 16];
            iv[..8].copy_from_slice(&first.wrapping_add(number * step).to_le_bytes());
            iv
        }
    }

    /// Encrypts `from`, whole sectors which begin at byte `at`, into `to`, which is other memory.
    pub fn encrypt(&self, at: u64, from: &Buf, to: &Buf) -> Result<()> {
        self.encrypt.buffers(from, to, self.sector, false, self.iv(at))
    }

    /// Decrypts `bytes`, whole sectors which begin at byte `at`, in place. With `keep_zeroes`, sectors of
    /// zeroes are sectors that were never written, and read as zeroes.
    pub fn decrypt(&self, at: u64, bytes: &Buf, keep_zeroes: bool) -> Result<()> {
        self.decrypt.buffers(bytes, bytes, self.sector, keep_zeroes, self.iv(at))
    }

    /// Encrypts `bytes`, whole sectors which begin at byte 0, in place.
    pub fn encrypt_in_place(&self, bytes: &mut [u8]) -> Result<()> {
        self.encrypt.in_place(bytes, self.sector, self.iv(0))
    }

    /// Decrypts `bytes`, whole sectors which begin at byte 0, in place.
    pub fn decrypt_in_place(&self, bytes: &mut [u8]) -> Result<()> {
        self.decrypt.in_place(bytes, self.sector, self.iv(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pattern;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
    }

    fn cipher(algorithm: Algorithm, sector: usize, tweak: u64) -> Cipher {
        Cipher::new(algorithm, &pattern(algorithm.key_len()), sector, tweak).unwrap()
    }

    /// IEEE 1619-2007, annex B, vector 10: XTS-AES-256 for a data unit of 512 bytes, number 0xff.
    #[test]
    fn is_the_xts_of_the_standard() {
        let key = hex(concat!(
            "2718281828459045235360287471352662497757247093699959574966967627",
            "3141592653589793238462643383279502884197169399375105820974944592"
        ));
        let cipher = Cipher::new(Algorithm::AesXts, &key, 512, 0xff).unwrap();
        let mut bytes: Vec<u8> = (0..512).map(|i| i as u8).collect();
        cipher.encrypt_in_place(&mut bytes).unwrap();
        assert_eq!(bytes[..32], hex("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b"));
        cipher.decrypt_in_place(&mut bytes).unwrap();
        assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }

    #[test]
    fn memory_in_any_pieces_is_the_same() {
        let plain = pattern(4 * 4096);
        for algorithm in Algorithm::ALL {
            for sector in [512, 4096] {
                let cipher = cipher(algorithm, sector, 7);
                let whole = Buf::zeroed(plain.len());
                cipher.encrypt(8 * 4096, &Buf::from_vec(plain.clone()), &whole).unwrap();
                for cuts in [&[4096, 8192, 4096][..], &[1, 511, 4000, 5000, 6872], &[513, 513, 15358]] {
                    let (pieces, other) = (cut(&plain, cuts), cut(&vec![0; plain.len()], cuts));
                    cipher.encrypt(8 * 4096, &pieces, &other).unwrap();
                    assert_eq!(other.to_vec(), whole.to_vec(), "{algorithm:?} {sector} {cuts:?}");
                    let back = cut(&other.to_vec(), &[700, plain.len() - 700]);
                    cipher.decrypt(8 * 4096, &back, false).unwrap();
                    assert_eq!(back.to_vec(), plain);
                }
            }
        }
    }

    fn cut(bytes: &[u8], lengths: &[usize]) -> Buf {
        let (mut buf, mut rest) = (Buf::empty(), bytes);
        for len in lengths {
            let (piece, tail) = rest.split_at(*len);
            buf.append(Buf::from_vec(piece.to_vec()));
            rest = tail;
        }
        assert!(rest.is_empty());
        buf
    }

    #[test]
    fn zeroes_stay_zeroes_only_where_asked_for() {
        let cipher = cipher(Algorithm::AesXts, 512, 0);
        let mut stored = vec![0; 2048];
        cipher.encrypt_in_place(&mut stored).unwrap();
        stored[512..1024].fill(0);
        for (keep, expected) in [(true, true), (false, false)] {
            let back = Buf::from_vec(stored.clone());
            cipher.decrypt(0, &back, keep).unwrap();
            assert_eq!(back.to_vec() == vec![0; 2048], expected);
        }
    }

    #[test]
    fn keys_that_fit_nothing_are_refused() {
        for (algorithm, len) in [
            (Algorithm::AesXts, 32),
            (Algorithm::Des, 16),
            (Algorithm::Blowfish, 57),
            (Algorithm::TripleDes, 8),
        ] {
            let error = Cipher::new(algorithm, &pattern(len), 512, 0).err().unwrap();
            assert!(error.message().contains("is not known here"), "{error}");
        }
        // XTS with two equal halves is no XTS.
        let error = Cipher::new(Algorithm::AesXts, &[1; 64], 512, 0).err().unwrap();
        assert!(error.message().contains("weak"), "{error}");
    }
}
