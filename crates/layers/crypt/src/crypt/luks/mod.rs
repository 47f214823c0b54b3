//! LUKS2: a header that describes the encryption of a volume, with its key in keyslots for passphrases.
//!
//! ```text
//!      0            length       2 × length                            offset of the data (16 MiB)
//!      ┌────────────┬────────────┬───────────┬───────────┬────────────┬──────────────────────────
//!      │ first copy │ second copy│ keyslot 0 │ keyslot 1 │ …          │ sectors of data
//!      └────────────┴────────────┴───────────┴───────────┴────────────┴──────────────────────────
//! ```
//!
//! Invariant: at every moment, also after a crash, there is a whole copy of the header that names a keyslot
//! whose content is there and whose passphrase was not removed. So a keyslot is written before a header names
//! it, and a keyslot is wiped only when both copies name another one that was seen to open.
//!
//! The modules: [`binary`] and [`meta`] read, [`copies`] selects and writes copies, [`keyslot`], [`kdf`],
//! [`af`] and [`hash`] compute. The module deliberately knows neither LUKS1 nor volumes in the middle of a
//! re-encryption.

mod af;
mod binary;
mod copies;
mod hash;
mod kdf;
mod keyslot;
mod meta;
mod text;

use super::cipher::Algorithm;
use super::secret::Secret;
use copies::Copies;
use kdf::{Argon, Kdf};
use lamina_block::{Buf, Durability, Env, Error, ErrorKind, Io, Node, Result, Zero, computed};
use meta::{AREA_UNIT, Af, Area, KEYSLOTS_SIZE_MAX, Keyslot, Luks2, Meta};
use serde_json::{Value, json};
use std::rc::Rc;
use text::{Base64, Text};

pub(super) use binary::Copy;
pub(super) use meta::DataArea;

/// Bytes of a copy of new headers; as `cryptsetup`.
const LENGTH: u64 = 16 << 10;
/// Bytes of a new header with its keyslots; as `cryptsetup`.
pub(super) const HEADER_LEN: u64 = 16 << 20;
/// Bytes of a header that are copied at once.
const COPIED: usize = 1 << 20;
/// The shortest header with one keyslot.
pub(super) const HEADER_MIN: u64 = 2 * LENGTH + (256 << 10);
/// Stripes of new keyslots, as in all programs.
const STRIPES: usize = 4000;
/// Iterations behind the digest of the volume key: the least that `cryptsetup` takes. The key is random, so that there
/// is nothing to guess, and nothing to make slow.
const DIGEST_ITERATIONS: u32 = 1000;
/// Passes of Argon2 for new keyslots: the least that `cryptsetup` takes. Higher costs are paid in memory.
const PASSES: u32 = 4;
/// Lanes of Argon2 for new keyslots, as `cryptsetup` has at the most.
const LANES: u32 = 4;
/// The least memory of Argon2, in bytes.
pub(super) const KDF_MEMORY_MIN: u64 = 32 << 10;

/// A LUKS2 header on a device.
pub(super) struct Luks {
    node: Rc<Node>,
    env: Rc<dyn Env>,
    copies: Copies,
    /// The limits of keyslot costs.
    costs: Costs,
}

/// The cost of opening a keyslot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// Bytes of memory for new keyslots.
    pub memory: u64,
    /// The most memory for existing keyslots.
    pub memory_max: u64,
}

/// A keyslot that was opened, and the volume key in it.
pub(super) struct Opened {
    pub number: u32,
    pub key: Secret,
}

impl Luks {
    /// The header on `node`, if there is one.
    pub async fn find(node: &Rc<Node>, env: &Rc<dyn Env>, costs: Costs) -> Result<Option<Luks>> {
        let copies = Copies::find(node, env).await?;
        Ok(copies.map(|copies| Luks { node: Rc::clone(node), env: Rc::clone(env), copies, costs }))
    }

    /// Makes a volume: a new key, in a keyslot that `secret` opens. The header takes at most `len` bytes of
    /// `node`, which are zeroed first. It is durable when this completes.
    pub async fn make(
        node: &Rc<Node>,
        env: &Rc<dyn Env>,
        costs: Costs,
        len: u64,
        data_area: &DataArea,
        secret: &Secret,
    ) -> Result<(Luks, Opened)> {
        let key = Secret::random(&**env, data_area.algorithm.key_len())?;
        let mut salt = vec![0; 32];
        env.secret(&mut salt)?;
        let digest =
            Kdf::Pbkdf2 { hash: "sha256".into(), iterations: DIGEST_ITERATIONS, salt: Base64(salt.clone()) }
                .derive(key.bytes(), 32)?;
        let digest = [Base64(salt), Base64(digest.to_vec())];
        let room = (len - 2 * LENGTH).min(KEYSLOTS_SIZE_MAX) / AREA_UNIT * AREA_UNIT;
        let meta = Meta::new(LENGTH, room, data_area, "sha256", digest)?;
        let copies = Copies::new(node, env, &uuid(&**env)?, meta);
        let luks = Luks { node: Rc::clone(node), env: Rc::clone(env), copies, costs };
        // No part of an older header may remain where this one has none.
        let header = 0..len / AREA_UNIT * AREA_UNIT;
        node.submit(Io::zero(header, Zero { unmap: true, ..Zero::default() })).await?;
        node.submit(Io::flush()).await?;
        let number = luks.add(&key, secret).await?;
        Ok((luks, Opened { number, key }))
    }

    /// The area of the data.
    pub fn data_area(&self) -> DataArea {
        self.copies.with(|header| header.meta.data_area.clone())
    }

    /// The end of the header, in bytes.
    pub fn end(&self) -> u64 {
        self.copies.with(|header| header.meta.end())
    }

    /// Copies the header and its keyslots to `node`, durably, and makes sure that `node` has them.
    pub async fn copy_to(&self, node: &Rc<Node>) -> Result<()> {
        for at in (0..self.end()).step_by(COPIED) {
            let part = Buf::zeroed(COPIED.min((self.end() - at) as usize));
            self.node.submit(Io::read(at, part.clone())).await?;
            node.submit(Io::write(at, part.clone(), Durability::Cached)).await?;
            let written = Buf::zeroed(part.len());
            node.submit(Io::read(at, written.clone())).await?;
            if written.to_vec() != part.to_vec() {
                return Err(Error::new(ErrorKind::Corrupt, "other bytes are read than were written"));
            }
        }
        node.submit(Io::flush()).await?;
        let found = Luks::find(node, &self.env, self.costs).await?;
        match found.is_some_and(|found| found.info() == self.info()) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Corrupt, "the header changed meanwhile")),
        }
    }

    /// The copy with a fault, and the fault.
    pub fn fault(&self) -> Option<(Copy, String)> {
        self.copies.fault()
    }

    /// Makes both copies the same.
    pub async fn repair(&self) -> Result<()> {
        self.copies.repair().await
    }

    /// The keyslot that `secret` opens, if there is one. Those of higher priority are tried first, those of
    /// priority 0 not at all.
    pub async fn unlock(&self, secret: &Secret) -> Result<Option<Opened>> {
        let mut numbers: Vec<(u32, u32)> = self.copies.with(|header| {
            let keyslots = header.meta.keyslots.iter();
            keyslots.map(|(number, keyslot)| (keyslot.priority.unwrap_or(1), *number)).collect()
        });
        numbers.retain(|(priority, _)| *priority > 0);
        numbers.sort_by_key(|(priority, number)| (std::cmp::Reverse(*priority), *number));
        let mut refused = None;
        for (_, number) in numbers {
            match self.open(number, secret).await {
                Ok(Some(key)) => return Ok(Some(Opened { number, key })),
                Ok(None) => {}
                // Another keyslot may be the right one.
                Err(e) if is_of_the_keyslot(&e) => refused = Some(e),
                Err(e) => return Err(e),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// The volume key, if `secret` opens the keyslot `number`.
    async fn open(&self, number: u32, secret: &Secret) -> Result<Option<Secret>> {
        let header = self.copies.header();
        let Some(keyslot) = header.meta.keyslots.get(&number).cloned() else { return Ok(None) };
        keyslot.kdf.check(self.costs.memory_max)?;
        let area = Buf::zeroed(keyslot.stripes_len().next_multiple_of(AREA_UNIT as usize));
        let at = keyslot.area_range().start;
        if at + area.len() as u64 > self.node.geometry().size {
            let message = format!("keyslot {number} is beyond the end of the device");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        self.node.submit(Io::read(at, area.clone())).await?;
        let mut area = area.to_vec();
        area.truncate(keyslot.stripes_len());
        let (secret, digest) = (secret.copy(), header.meta.digest.clone());
        computed(&*self.env, move || keyslot.open(area, &secret, &digest)).await?
    }

    /// Adds a keyslot that `secret` opens; returns its number. Its content is durable before the header names
    /// it.
    pub async fn add(&self, key: &Secret, secret: &Secret) -> Result<u32> {
        let meta = self.copies.with(|header| header.meta.clone());
        let mut salt = vec![0; 32];
        self.env.secret(&mut salt)?;
        let size = (key.bytes().len() * STRIPES) as u64;
        let size = size.next_multiple_of(AREA_UNIT);
        let (number, at) = meta.free(size)?;
        let memory = u32::try_from(self.costs.memory >> 10).unwrap_or(u32::MAX);
        // A legacy cipher is no reason to keep the key under it, too.
        let cipher = Algorithm::AesXts;
        let keyslot = Keyslot {
            kind: Luks2::Luks2,
            key_size: key.bytes().len(),
            af: Af::Luks1 { stripes: STRIPES, hash: "sha256".into() },
            area: Area::Raw {
                offset: Text(at),
                size: Text(size),
                encryption: cipher.encryption().into(),
                key_size: cipher.key_len(),
            },
            kdf: Kdf::Argon2id(Argon { time: PASSES, memory, cpus: LANES, salt: Base64(salt) }),
            priority: None,
        };
        let with = meta.with(number, &keyslot)?;
        let stripes = Secret::random(&*self.env, keyslot.stripes_len())?;
        let (key, secret) = (key.copy(), secret.copy());
        let area = computed(&*self.env, move || keyslot.seal(&key, &secret, stripes)).await??;
        self.fill(at, area).await?;
        self.copies.write(with).await?;
        Ok(number)
    }

    /// Adds a keyslot that `secret` opens unless there is one, and makes sure that it can be opened from the device.
    pub async fn ensure(&self, key: &Secret, secret: &Secret) -> Result<u32> {
        match self.unlock(secret).await {
            Ok(Some(opened)) => return Ok(opened.number),
            Ok(None) => {}
            // A keyslot that cannot be tried is no reason not to have a good one.
            Err(e) if is_of_the_keyslot(&e) => {}
            Err(e) => return Err(e),
        }
        let number = self.add(key, secret).await?;
        match self.open(number, secret).await? {
            Some(_) => Ok(number),
            None => Err(Error::new(ErrorKind::Corrupt, "the new keyslot was written, and cannot be opened")),
        }
    }

    /// Removes the keyslot `number`: its passphrase alone cannot open the volume any more. Another keyslot
    /// has been opened, and stays.
    ///
    /// The keyslot is wiped before the header forgets it. A crash between leaves a keyslot that nothing
    /// opens.
    pub async fn remove(&self, number: u32) -> Result<()> {
        let meta = self.copies.with(|header| header.meta.clone());
        let Some(keyslot) = meta.keyslots.get(&number) else {
            return Err(Error::invalid(format!("there is no keyslot {number}; there is {}", self.numbers())));
        };
        // From here on no copy that has only this keyslot may be needed.
        self.copies.repair().await?;
        let area = keyslot.area_range();
        let len = keyslot.stripes_len().next_multiple_of(AREA_UNIT as usize);
        let mut noise = vec![0; len.min((area.end - area.start) as usize)];
        self.env.secret(&mut noise)?;
        self.fill(area.start, noise).await?;
        self.copies.write(meta.without(number)?).await
    }

    /// Writes an area durably.
    async fn fill(&self, at: u64, bytes: Vec<u8>) -> Result<()> {
        let mut bytes = bytes;
        bytes.resize(bytes.len().next_multiple_of(AREA_UNIT as usize), 0);
        self.node.submit(Io::write(at, Buf::from_vec(bytes), Durability::Cached)).await?;
        self.node.submit(Io::flush()).await
    }

    /// Takes the faulty copy for the good one: this must never happen.
    #[cfg(test)]
    pub fn take_the_other_for_good(&self) {
        self.copies.take_the_other_for_good();
    }

    fn numbers(&self) -> String {
        let numbers: Vec<String> =
            self.copies.with(|header| header.meta.keyslots.keys().map(u32::to_string).collect());
        if numbers.is_empty() { "none".into() } else { numbers.join(", ") }
    }

    /// How many keyslots there are.
    pub fn keyslots(&self) -> usize {
        self.copies.with(|header| header.meta.keyslots.len())
    }

    /// True if there is a keyslot of this number.
    pub fn has(&self, number: u32) -> bool {
        self.copies.with(|header| header.meta.keyslots.contains_key(&number))
    }

    /// The keyslots: their numbers, and the cost of opening them.
    pub fn list(&self) -> Value {
        let one = |number: u32, kdf: &Kdf| match kdf {
            Kdf::Pbkdf2 { iterations, .. } => {
                json!({ "keyslot": number, "kdf": kdf.name(), "iterations": iterations })
            }
            Kdf::Argon2i(argon) | Kdf::Argon2id(argon) => json!({
                "keyslot": number, "kdf": kdf.name(), "passes": argon.time, "memory": u64::from(argon.memory) << 10,
                "lanes": argon.cpus,
            }),
        };
        self.copies.with(|header| {
            header.meta.keyslots.iter().map(|(number, keyslot)| one(*number, &keyslot.kdf)).collect()
        })
    }

    /// The names of the volume.
    pub fn info(&self) -> Value {
        self.copies.with(|header| {
            json!({
                "uuid": header.binary.uuid_text(),
                "label": header.binary.label_text(),
                "keyslots": header.meta.keyslots.keys().collect::<Vec<_>>(),
            })
        })
    }
}

/// True for errors of a keyslot, and not of its device.
fn is_of_the_keyslot(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Corrupt | ErrorKind::Unsupported)
}

/// A new random UUID (RFC 9562, version 4).
fn uuid(env: &dyn Env) -> Result<String> {
    let mut bytes = [0; 16];
    env.secret(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::new();
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    Ok(text)
}

/// Reads both copies of `volume` and writes them again, which must change nothing.
#[cfg(test)]
pub(super) fn written_again(volume: &[u8]) {
    for copy in [Copy::First, Copy::Second] {
        let at = copy.offset(LENGTH) as usize;
        let bytes = &volume[at..at + LENGTH as usize];
        let (binary, json) = binary::Binary::decode(bytes, copy).expect("it is whole");
        let meta = Meta::decode(json, LENGTH).expect("it is understood");
        let salt = bytes[104..168].try_into().expect("64 bytes");
        assert_eq!(binary.encode(copy, salt, &meta.encode()).expect("it fits"), bytes);
    }
}

#[cfg(test)]
mod golden {
    //! Makes the golden volume: `LAMINA_BLESS=1`.

    use super::*;
    use crate::testing::pattern;
    use zeroize::Zeroizing;

    #[test]
    fn is_made_on_demand() {
        if std::env::var_os("LAMINA_BLESS").is_none() {
            return;
        }
        let secret = |bytes: &[u8]| Secret::new(Zeroizing::new(bytes.to_vec()));
        let key = pattern(64);
        let digest = Kdf::Pbkdf2 {
            hash: "sha256".into(),
            iterations: DIGEST_ITERATIONS,
            salt: Base64(vec![0x11; 32]),
        };
        let digest = [Base64(vec![0x11; 32]), Base64(digest.derive(&key, 32).unwrap().to_vec())];
        let (room, at) = (4096, 2 * LENGTH);
        let data_area =
            DataArea { offset: at + room, size: None, tweak: 0, algorithm: Algorithm::AesXts, sector: 512 };
        let keyslot = Keyslot {
            kind: Luks2::Luks2,
            key_size: 64,
            af: Af::Luks1 { stripes: 50, hash: "sha256".into() },
            area: Area::Raw {
                offset: Text(at),
                size: Text(room),
                encryption: data_area.algorithm.encryption().into(),
                key_size: 64,
            },
            kdf: Kdf::Argon2id(Argon { time: PASSES, memory: 32, cpus: LANES, salt: Base64(vec![0x22; 32]) }),
            priority: None,
        };
        let meta = Meta::new(LENGTH, room, &data_area, "sha256", digest).unwrap().with(0, &keyslot).unwrap();
        let mut binary = binary::Binary::new(LENGTH, "9b5f2c0a-4d1e-4a7b-8c3d-2e1f0a9b8c7d");
        binary.seqid = 1;
        let mut volume = Vec::new();
        for (copy, salt) in [(Copy::First, 0x33), (Copy::Second, 0x44)] {
            volume.extend(binary.encode(copy, [salt; 64], &meta.encode()).unwrap());
        }
        let stripes = secret(&pattern(keyslot.stripes_len()));
        volume.extend(keyslot.seal(&secret(&key), &secret(b"the key\nand more of it"), stripes).unwrap());
        volume.resize((at + room) as usize, 0);
        let mut data = pattern(1024);
        let cipher = super::super::cipher::Cipher::new(data_area.algorithm, &key, 512, 0).unwrap();
        cipher.encrypt_in_place(&mut data).unwrap();
        volume.extend(data);
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/luks2-1.bin"), volume).unwrap();
    }
}
