//! The hash functions that LUKS headers name.

use aws_lc_rs::{digest, pbkdf2};
use lamina_block::{Error, Result};
use std::num::NonZeroU32;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// For old volumes.
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// The hash function with this name.
    pub fn of(name: &str) -> Result<Hash> {
        match name {
            "sha1" => Ok(Hash::Sha1),
            "sha256" => Ok(Hash::Sha256),
            "sha384" => Ok(Hash::Sha384),
            "sha512" => Ok(Hash::Sha512),
            _ => Err(Error::unsupported(format!("the hash {name:?} is not known here"))),
        }
    }

    fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            Hash::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Hash::Sha256 => &digest::SHA256,
            Hash::Sha384 => &digest::SHA384,
            Hash::Sha512 => &digest::SHA512,
        }
    }

    /// Bytes of a digest.
    pub fn len(self) -> usize {
        self.algorithm().output_len()
    }

    /// The digest of `parts` one after the other.
    pub fn digest(self, parts: &[&[u8]]) -> digest::Digest {
        let mut context = digest::Context::new(self.algorithm());
        parts.iter().for_each(|part| context.update(part));
        context.finish()
    }

    /// PBKDF2 with HMAC (RFC 8018), as many bytes as `into` has.
    pub fn pbkdf2(self, iterations: NonZeroU32, salt: &[u8], secret: &[u8], into: &mut [u8]) {
        let algorithm = match self {
            Hash::Sha1 => pbkdf2::PBKDF2_HMAC_SHA1,
            Hash::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Hash::Sha384 => pbkdf2::PBKDF2_HMAC_SHA384,
            Hash::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        pbkdf2::derive(algorithm, iterations, salt, secret, into);
    }
}
