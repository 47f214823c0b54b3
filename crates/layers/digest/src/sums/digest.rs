//! The digests of blocks that a table can have.

use sha2::Digest as _;

/// How a block's bytes become a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// CRC-32C (Castagnoli), 4 bytes, little-endian.
    Crc32c,
    /// XXH3 of 64 bits without a seed, 8 bytes, little-endian.
    Xxh3,
    /// RFC 1321, 16 bytes.
    Md5,
    /// FIPS 180-4, 32 bytes.
    Sha256,
    /// BLAKE3 without a key, 32 bytes.
    Blake3,
}

impl Digest {
    /// All digests; the number on disk is the index in this list.
    pub const ALL: [Digest; 5] = [Digest::Crc32c, Digest::Xxh3, Digest::Md5, Digest::Sha256, Digest::Blake3];

    /// The name in the hierarchy file.
    pub const fn name(self) -> &'static str {
        match self {
            Digest::Crc32c => "crc32c",
            Digest::Xxh3 => "xxh3",
            Digest::Md5 => "md5",
            Digest::Sha256 => "sha256",
            Digest::Blake3 => "blake3",
        }
    }

    /// The length in bytes.
    pub const fn len(self) -> usize {
        match self {
            Digest::Crc32c => 4,
            Digest::Xxh3 => 8,
            Digest::Md5 => 16,
            Digest::Sha256 | Digest::Blake3 => 32,
        }
    }

    /// The bytes to digest before other tasks get the core: some ten to a hundred microseconds.
    pub const fn at_once(self) -> usize {
        match self {
            Digest::Crc32c | Digest::Xxh3 => 1 << 20,
            Digest::Md5 => 32 << 10,
            Digest::Sha256 | Digest::Blake3 => 64 << 10,
        }
    }

    /// Appends the digest of `bytes`.
    pub fn add(self, bytes: &[u8], into: &mut Vec<u8>) {
        match self {
            Digest::Crc32c => into.extend(crc32c::crc32c(bytes).to_le_bytes()),
            Digest::Xxh3 => into.extend(xxhash_rust::xxh3::xxh3_64(bytes).to_le_bytes()),
            Digest::Md5 => into.extend(md5::Md5::digest(bytes)),
            Digest::Sha256 => into.extend(sha2::Sha256::digest(bytes)),
            Digest::Blake3 => into.extend(blake3::hash(bytes).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers: RFC 3720 B.4, the XXH3 reference, RFC 1321 A.5, FIPS 180-4, the BLAKE3 test vectors.
    #[test]
    fn they_are_what_others_call_them() {
        let hex = |digest: Digest, bytes: &[u8]| {
            let mut out = Vec::new();
            digest.add(bytes, &mut out);
            assert_eq!(out.len(), digest.len());
            out.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(hex(Digest::Crc32c, &[0; 32]), "aa36918a");
        // 0x2d06800538d394c2 as a number.
        assert_eq!(hex(Digest::Xxh3, b""), "c294d3380580062d");
        assert_eq!(hex(Digest::Md5, b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            hex(Digest::Sha256, b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(Digest::Blake3, b""),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }
}
