//! A keyslot's content: the volume key, split into stripes, encrypted with a key derived from a passphrase.
//!
//! ```text
//!      passphrase ──kdf──▶ slot key ─┐
//!                                    ▼
//!      volume key ──split──▶ stripes ──encrypt, sectors of 512──▶ area on the header's device
//! ```
//!
//! All functions here compute for long, and run on another thread.

use super::super::cipher::{Algorithm, Cipher, IV_UNIT};
use super::super::secret::Secret;
use super::af;
use super::hash::Hash;
use super::meta::{Af, Area, Digest, Keyslot};
use lamina_block::{Error, Result};
use zeroize::Zeroizing;

impl Keyslot {
    /// Bytes of the stripes, in whole sectors.
    pub fn stripes_len(&self) -> usize {
        let Af::Luks1 { stripes, .. } = &self.af;
        (self.key_size * stripes).next_multiple_of(IV_UNIT as usize)
    }

    /// The cipher of the area, with the key derived from `secret`.
    fn cipher(&self, secret: &Secret) -> Result<Cipher> {
        let Area::Raw { encryption, key_size, .. } = &self.area;
        let unknown = || Error::unsupported(format!("{encryption:?} is not known here"));
        let algorithm = Algorithm::of(encryption).ok_or_else(unknown)?;
        let key = self.kdf.derive(secret.bytes(), *key_size)?;
        Cipher::new(algorithm, &key, IV_UNIT as usize, 0)
    }

    /// The bytes of the area for the volume key `key`. `stripes` are random bytes, as many as [`Keyslot::stripes_len`].
    pub fn seal(&self, key: &Secret, secret: &Secret, stripes: Secret) -> Result<Vec<u8>> {
        let Af::Luks1 { stripes: count, hash } = &self.af;
        let mut area = Zeroizing::new(stripes.bytes().to_vec());
        af::split(Hash::of(hash)?, key.bytes(), &mut area[..self.key_size * count]);
        self.cipher(secret)?.encrypt_in_place(&mut area)?;
        // The area is encrypted, and not secret any more.
        Ok(std::mem::take(&mut *area))
    }

    /// The volume key, if `secret` opens this slot with the content `area`.
    pub fn open(&self, area: Vec<u8>, secret: &Secret, digest: &Digest) -> Result<Option<Secret>> {
        let Af::Luks1 { stripes, hash } = &self.af;
        let mut area = Zeroizing::new(area);
        self.cipher(secret)?.decrypt_in_place(&mut area)?;
        let key = af::merge(Hash::of(hash)?, self.key_size, &area[..self.key_size * stripes]);
        Ok(digest.is_of(&key)?.then(|| Secret::new(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::kdf::{Argon, Kdf};
    use super::super::meta::Luks2;
    use super::super::text::{Base64, Text};
    use super::*;
    use crate::testing::pattern;
    use serde_json::json;

    /// Keyslots of other programs: other functions, hashes and ciphers.
    #[test]
    fn all_kinds_of_keyslots_open() {
        let argon = || Argon { time: 4, memory: 32, cpus: 4, salt: Base64(vec![3; 32]) };
        let pbkdf2 =
            |hash: &str| Kdf::Pbkdf2 { hash: hash.into(), iterations: 1000, salt: Base64(vec![4; 32]) };
        for (kdf, hash, cipher, len) in [
            (Kdf::Argon2id(argon()), "sha256", Algorithm::AesXts, 64),
            (Kdf::Argon2i(argon()), "sha512", Algorithm::AesXts, 24),
            (pbkdf2("sha1"), "sha1", Algorithm::Blowfish, 32),
            (pbkdf2("sha512"), "sha384", Algorithm::TripleDes, 8),
        ] {
            let encryption = cipher.encryption().into();
            let keyslot = Keyslot {
                kind: Luks2::Luks2,
                key_size: len,
                af: Af::Luks1 { stripes: 100, hash: hash.into() },
                area: Area::Raw { offset: Text(0), size: Text(8192), encryption, key_size: cipher.key_len() },
                kdf,
                priority: None,
            };
            let (key, secret) = (pattern(len), |bytes: &[u8]| Secret::new(Zeroizing::new(bytes.to_vec())));
            let kdf = Kdf::Pbkdf2 { hash: "sha256".into(), iterations: 1000, salt: Base64(vec![5; 32]) };
            let digest: Digest = serde_json::from_value(json!({
                "keyslots": [], "segments": [], "hash": "sha256", "iterations": 1000, "salt": Base64(vec![5; 32]),
                "digest": Base64(kdf.derive(&key, 32).unwrap().to_vec()),
            }))
            .unwrap();
            let stripes = secret(&vec![0xA7; keyslot.stripes_len()]);
            let area = keyslot.seal(&secret(&key), &secret(b"open sesame"), stripes).unwrap();
            let opened = keyslot.open(area.clone(), &secret(b"open sesame"), &digest).unwrap();
            assert_eq!(opened.expect("it opens").bytes(), key);
            assert!(keyslot.open(area, &secret(b"open barley"), &digest).unwrap().is_none());
        }
    }
}
