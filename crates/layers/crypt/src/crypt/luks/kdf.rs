//! Derives keys from passphrases, slowly on purpose.
//!
//! The costs stand in the header, which may come from an attacker: they are checked against the limits of the
//! hierarchy file before any work begins.

use super::hash::Hash;
use super::text::Base64;
use argon2::{Algorithm, Argon2, Block, Params, Version};
use lamina_block::{Bytes, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use zeroize::Zeroizing;

/// The most iterations of PBKDF2: about half a minute.
const ITERATIONS_MAX: u32 = 100_000_000;
/// The most passes of Argon2 with all the allowed memory; more with less memory.
const PASSES: u64 = 32;
/// The most lanes of Argon2; as `cryptsetup`.
const LANES_MAX: u32 = 4;

/// A key derivation function with its costs, as a header states them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Kdf {
    /// RFC 8018.
    Pbkdf2 {
        /// The hash under the HMAC.
        hash: String,
        /// How often.
        iterations: u32,
        /// Mixed in.
        salt: Base64,
    },
    /// RFC 9106, the variant that older headers have.
    Argon2i(Argon),
    /// RFC 9106.
    Argon2id(Argon),
}

/// The costs of Argon2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Argon {
    /// Passes over the memory.
    pub time: u32,
    /// KiB.
    pub memory: u32,
    /// Lanes.
    pub cpus: u32,
    /// Mixed in.
    pub salt: Base64,
}

impl Kdf {
    /// The name for `show`.
    pub fn name(&self) -> &'static str {
        match self {
            Kdf::Pbkdf2 { .. } => "pbkdf2",
            Kdf::Argon2i(_) => "argon2i",
            Kdf::Argon2id(_) => "argon2id",
        }
    }

    /// Refuses costs beyond the limit: `memory_max` bytes.
    pub fn check(&self, memory_max: u64) -> Result<()> {
        let wrong = |message: String| Err(Error::new(ErrorKind::Corrupt, message));
        match self {
            Kdf::Pbkdf2 { hash, iterations, .. } => {
                Hash::of(hash)?;
                match iterations {
                    0 => wrong("PBKDF2 without iterations".into()),
                    n if *n > ITERATIONS_MAX => {
                        wrong(format!("PBKDF2 with {n} iterations would take for ever"))
                    }
                    _ => Ok(()),
                }
            }
            Kdf::Argon2i(argon) | Kdf::Argon2id(argon) => {
                let Argon { time, memory, cpus, .. } = argon;
                let bytes = u64::from(*memory) << 10;
                if *time == 0 || !(1..=LANES_MAX).contains(cpus) || *memory < 8 * cpus {
                    return wrong(format!("Argon2 in {time} passes, {memory} KiB, {cpus} lanes cannot be"));
                }
                if bytes > memory_max {
                    return Err(Error::invalid(format!(
                        "kdf-memory-max: a keyslot needs {}, and {} are allowed",
                        Bytes(bytes),
                        Bytes(memory_max)
                    )));
                }
                if bytes * u64::from(*time) > memory_max.saturating_mul(PASSES) {
                    return wrong(format!("Argon2 in {time} passes would take for ever"));
                }
                Ok(())
            }
        }
    }

    /// The key of `len` bytes derived from `secret`. This takes long: not for the core of a hierarchy.
    pub fn derive(&self, secret: &[u8], len: usize) -> Result<Zeroizing<Vec<u8>>> {
        let mut key = Zeroizing::new(vec![0; len]);
        match self {
            Kdf::Pbkdf2 { hash, iterations, salt } => {
                let none = || Error::new(ErrorKind::Corrupt, "PBKDF2 without iterations");
                let iterations = NonZeroU32::new(*iterations).ok_or_else(none)?;
                Hash::of(hash)?.pbkdf2(iterations, &salt.0, secret, &mut key);
            }
            Kdf::Argon2i(argon) => argon.derive(Algorithm::Argon2i, secret, &mut key)?,
            Kdf::Argon2id(argon) => argon.derive(Algorithm::Argon2id, secret, &mut key)?,
        }
        Ok(key)
    }
}

impl Argon {
    fn derive(&self, algorithm: Algorithm, secret: &[u8], key: &mut [u8]) -> Result<()> {
        let failed = |e: argon2::Error| Error::new(ErrorKind::Corrupt, format!("Argon2: {e}"));
        let params = Params::new(self.memory, self.time, self.cpus, Some(key.len())).map_err(failed)?;
        let mut blocks: Zeroizing<Vec<Block>> = Zeroizing::default();
        let (count, size) = (params.block_count(), Bytes(u64::from(self.memory) << 10));
        blocks
            .try_reserve_exact(count)
            .map_err(|_| Error::offline(format!("there is no memory for {size}")))?;
        blocks.resize(count, Block::new());
        let argon = Argon2::new(algorithm, Version::V0x13, params);
        argon.hash_password_into_with_memory(secret, &self.salt.0, key, &mut blocks[..]).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argon(time: u32, memory: u32, cpus: u32) -> Argon {
        Argon { time, memory, cpus, salt: Base64(vec![2; 16]) }
    }

    fn pbkdf2(hash: &str, iterations: u32) -> Kdf {
        Kdf::Pbkdf2 { hash: hash.into(), iterations, salt: Base64(b"salt".to_vec()) }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 6070, and RFC 7914 section 11. Argon2 is checked against `cryptsetup` end to end.
    #[test]
    fn are_the_standard_functions() {
        let sha1 = pbkdf2("sha1", 4096).derive(b"password", 20).unwrap();
        assert_eq!(hex(&sha1), "4b007901b765489abead49d926f721d065a429c1");
        let sha256 = pbkdf2("sha256", 1).derive(b"passwd", 64).unwrap();
        assert_eq!(hex(&sha256)[..32], *"55ac046e56e3089fec1691c22544b605");
    }

    #[test]
    fn costs_are_checked_before_they_are_paid() {
        for (kdf, says) in [
            (pbkdf2("sha256", 0), "without iterations"),
            (pbkdf2("sha256", u32::MAX), "for ever"),
            (pbkdf2("md5", 1000), "\"md5\" is not known"),
            (Kdf::Argon2id(argon(4, 2048, 4)), "kdf-memory-max: a keyslot needs 2MiB, and 1MiB are allowed"),
            (Kdf::Argon2i(argon(u32::MAX, 1024, 1)), "for ever"),
            (Kdf::Argon2id(argon(4, u32::MAX, 1)), "kdf-memory-max"),
            (Kdf::Argon2id(argon(0, 1024, 1)), "cannot be"),
            (Kdf::Argon2id(argon(4, 1024, 0)), "cannot be"),
            (Kdf::Argon2id(argon(4, 1024, 5)), "cannot be"),
            (Kdf::Argon2id(argon(4, 31, 4)), "cannot be"),
        ] {
            let error = kdf.check(1 << 20).unwrap_err();
            assert!(error.message().contains(says), "{error}: {says}");
        }
        Kdf::Argon2id(argon(4, 1024, 4)).check(1 << 20).unwrap();
    }
}
