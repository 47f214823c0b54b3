//! The JSON of a LUKS2 header: its keyslots, the keys they open, and the location of the data.
//!
//! The JSON is kept as it was read, so that other programs' entries (tokens, labels, flags) survive a change.
//! The entries that are used are read into the types here and checked first: every length, every address.
//!
//! Source: LUKS2 On-Disk Format Specification 1.1.3, section 3.

use super::super::cipher::{Algorithm, IV_UNIT};
use super::binary::LEN;
use super::hash::Hash;
use super::kdf::Kdf;
use super::text::{Base64, Text};
use lamina_block::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;

/// Keyslots have numbers below this.
pub(super) const KEYSLOTS_MAX: u32 = 32;
/// The most stripes of a key. All programs use 4000.
const STRIPES_MAX: usize = 4000;
/// The longest key in bytes.
const KEY_MAX: usize = 64;
/// Areas of keyslots begin and end at multiples of this, in bytes.
pub(super) const AREA_UNIT: u64 = 4096;
/// The most bytes of all keyslots together; as `cryptsetup`.
pub(super) const KEYSLOTS_SIZE_MAX: u64 = 128 << 20;

/// A copy of the volume key, encrypted with a key derived from a passphrase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Keyslot {
    #[serde(rename = "type")]
    pub kind: Luks2,
    /// Bytes of the volume key.
    pub key_size: usize,
    pub af: Af,
    pub area: Area,
    pub kdf: Kdf,
    /// 0: only used when it is asked for; 2: used first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

/// The type of keyslots that hold keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Luks2 {
    Luks2,
}

/// How the key is split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Af {
    Luks1 { stripes: usize, hash: String },
}

/// The location of the stripes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Area {
    Raw { offset: Text, size: Text, encryption: String, key_size: usize },
}

impl Keyslot {
    /// The range on the header's device.
    pub fn area_range(&self) -> Range<u64> {
        let Area::Raw { offset, size, .. } = &self.area;
        offset.0..offset.0.saturating_add(size.0)
    }

    fn check(&self) -> Result<()> {
        let Af::Luks1 { stripes, hash } = &self.af;
        let Area::Raw { size, encryption, key_size, .. } = &self.area;
        Hash::of(hash)?;
        if !(1..=KEY_MAX).contains(&self.key_size) || !(1..=KEY_MAX).contains(key_size) {
            return Err(corrupt("a keyslot's key has a length that no key has"));
        }
        if Algorithm::of(encryption).is_none() {
            return Err(Error::unsupported(format!(
                "a keyslot is encrypted with {encryption:?}, which is not known"
            )));
        }
        let len = self.key_size * stripes;
        match (1..=STRIPES_MAX).contains(stripes) && (len as u64).next_multiple_of(IV_UNIT) <= size.0 {
            true => Ok(()),
            false => {
                Err(corrupt(format!("a key in {stripes} stripes does not fit into its {} bytes", size.0)))
            }
        }
    }
}

/// The location of the data, and its encryption.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Segment {
    #[serde(rename = "type")]
    kind: String,
    offset: Text,
    size: String,
    #[serde(default)]
    iv_tweak: Option<Text>,
    #[serde(default)]
    encryption: String,
    #[serde(default)]
    sector_size: u32,
    #[serde(default)]
    integrity: Option<Value>,
}

/// The area of the data that a segment describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct DataArea {
    /// First byte on the data's device.
    pub offset: u64,
    /// Bytes; `None`: all that is there.
    pub size: Option<u64>,
    /// The first IV.
    pub tweak: u64,
    pub algorithm: Algorithm,
    /// Bytes.
    pub sector: u32,
}

impl Segment {
    fn data_area(&self) -> Result<DataArea> {
        if self.kind != "crypt" {
            return Err(Error::unsupported(format!("a segment of type {:?} is not known here", self.kind)));
        }
        if self.integrity.is_some() {
            return Err(Error::unsupported(
                "the volume has checksums beside its data, which are not known here",
            ));
        }
        let algorithm = Algorithm::of(&self.encryption).ok_or_else(|| {
            Error::unsupported(format!(
                "data is encrypted with {:?}, which is not known here",
                self.encryption
            ))
        })?;
        if !self.sector_size.is_power_of_two() || !(512..=4096).contains(&self.sector_size) {
            return Err(corrupt(format!("sectors of {} bytes cannot be", self.sector_size)));
        }
        let size = match self.size.as_str() {
            "dynamic" => None,
            text => Some(
                text.parse::<u64>().map_err(|_| corrupt(format!("a segment of size {text:?} cannot be")))?,
            ),
        };
        let unit = u64::from(self.sector_size);
        let end = self.offset.0.checked_add(size.unwrap_or(0));
        if !self.offset.0.is_multiple_of(IV_UNIT)
            || !size.unwrap_or(0).is_multiple_of(unit)
            || size == Some(0)
        {
            return Err(corrupt("the data is not in whole sectors"));
        }
        match end {
            None => Err(corrupt("the data would end beyond every device")),
            Some(_) => Ok(DataArea {
                offset: self.offset.0,
                size,
                tweak: self.iv_tweak.map_or(0, |tweak| tweak.0),
                algorithm,
                sector: self.sector_size,
            }),
        }
    }
}

/// The digest that verifies a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Digest {
    keyslots: Vec<String>,
    segments: Vec<String>,
    hash: String,
    iterations: u32,
    salt: Base64,
    digest: Base64,
}

impl Digest {
    /// True if `key` has this digest.
    pub fn is_of(&self, key: &[u8]) -> Result<bool> {
        let kdf =
            Kdf::Pbkdf2 { hash: self.hash.clone(), iterations: self.iterations, salt: self.salt.clone() };
        let found = kdf.derive(key, self.digest.0.len())?;
        Ok(aws_lc_rs::constant_time::verify_slices_are_equal(&found, &self.digest.0).is_ok())
    }
}

#[derive(Deserialize)]
struct Config {
    json_size: Text,
    keyslots_size: Text,
    #[serde(default)]
    requirements: Value,
}

/// The JSON and its decoded entries.
#[derive(Clone, Debug)]
pub(super) struct Meta {
    json: Value,
    /// The keyslots that open the volume, by number.
    pub keyslots: BTreeMap<u32, Keyslot>,
    /// Numbers and ranges of all keyslots, also of those for other purposes.
    taken: Vec<(u32, Range<u64>)>,
    pub data_area: DataArea,
    pub digest: Digest,
    /// The range for keyslots.
    room: Range<u64>,
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

fn read<T: DeserializeOwned>(value: &Value, what: &str) -> Result<T> {
    T::deserialize(value).map_err(|e| corrupt(format!("{what}: {e}")))
}

/// The entries of an object of the JSON, in the order of their numbers.
fn entries<'a>(json: &'a Value, what: &str) -> Result<BTreeMap<u32, &'a Value>> {
    let object = json[what].as_object().ok_or_else(|| corrupt(format!("there are no {what}")))?;
    let number = |(name, value): (&'a String, &'a Value)| {
        let number = name.parse().ok().filter(|number: &u32| number.to_string() == *name);
        Ok((number.ok_or_else(|| corrupt(format!("{what}: {name:?} is no number")))?, value))
    };
    object.iter().map(number).collect()
}

impl Meta {
    /// Reads the JSON of a copy of `length` bytes; zeroes follow it.
    pub fn decode(bytes: &[u8], length: u64) -> Result<Meta> {
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let json: Value =
            serde_json::from_slice(text).map_err(|e| corrupt(format!("its JSON cannot be read: {e}")))?;
        Meta::of(json, length)
    }

    /// Decodes the JSON of a copy of `length` bytes.
    fn of(json: Value, length: u64) -> Result<Meta> {
        let config: Config = read(&json["config"], "config")?;
        if config.json_size.0 != length - LEN as u64 || config.keyslots_size.0 > KEYSLOTS_SIZE_MAX {
            return Err(corrupt("the sizes in its JSON cannot be"));
        }
        refuse_requirements(&config.requirements)?;
        let room = 2 * length..2 * length + config.keyslots_size.0;
        let (data_area, digest) = data(&json)?;
        let (keyslots, taken) = keyslots(&json, &digest, &room)?;
        Ok(Meta { json, keyslots, taken, data_area, digest, room })
    }

    /// The JSON as bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.json.to_string().into_bytes()
    }

    /// The JSON of a new volume without keyslots.
    pub fn new(
        length: u64,
        keyslots_size: u64,
        data_area: &DataArea,
        hash: &str,
        digest: [Base64; 2],
    ) -> Result<Meta> {
        let [salt, digest] = digest;
        let size = data_area.size.map_or("dynamic".to_owned(), |size| size.to_string());
        let json = json!({
            "keyslots": {},
            "tokens": {},
            "segments": { "0": {
                "type": "crypt", "offset": Text(data_area.offset), "size": size, "iv_tweak": Text(data_area.tweak),
                "encryption": data_area.algorithm.encryption(), "sector_size": data_area.sector,
            }},
            "digests": { "0": {
                "type": "pbkdf2", "keyslots": [], "segments": ["0"], "hash": hash,
                "iterations": super::DIGEST_ITERATIONS, "salt": salt, "digest": digest,
            }},
            "config": { "json_size": Text(length - LEN as u64), "keyslots_size": Text(keyslots_size) },
        });
        Meta::of(json, length)
    }

    /// A number that no keyslot has, and the address of `len` free bytes for it.
    pub fn free(&self, len: u64) -> Result<(u32, u64)> {
        let used = |number: &u32| self.taken.iter().any(|(taken, _)| taken == number);
        let number = (0..KEYSLOTS_MAX).find(|number| !used(number));
        let mut at = self.room.start;
        for (_, area) in &self.taken {
            if area.start.saturating_sub(at) >= len {
                break;
            }
            at = at.max(area.end).next_multiple_of(AREA_UNIT);
        }
        match number {
            Some(number) if self.room.end.saturating_sub(at) >= len => Ok((number, at)),
            _ => {
                Err(Error::new(ErrorKind::NoSpace, "there is no room for another keyslot: remove one first"))
            }
        }
    }

    /// The same with another keyslot.
    pub fn with(&self, number: u32, keyslot: &Keyslot) -> Result<Meta> {
        let mut json = self.json.clone();
        json["keyslots"][number.to_string()] =
            serde_json::to_value(keyslot).map_err(|e| corrupt(e.to_string()))?;
        let digest = digest_of_data(&json)?;
        if let Some(list) = json["digests"][digest]["keyslots"].as_array_mut() {
            list.push(number.to_string().into());
        }
        Meta::of(json, self.length())
    }

    /// The same without a keyslot.
    pub fn without(&self, number: u32) -> Result<Meta> {
        let (mut json, number) = (self.json.clone(), number.to_string());
        if let Some(keyslots) = json["keyslots"].as_object_mut() {
            keyslots.remove(&number);
        }
        for what in ["digests", "tokens"] {
            let Some(objects) = json[what].as_object_mut() else { continue };
            for object in objects.values_mut() {
                if let Some(list) = object.get_mut("keyslots").and_then(Value::as_array_mut) {
                    list.retain(|name| *name != number);
                }
            }
        }
        Meta::of(json, self.length())
    }

    /// The length of a copy.
    pub fn length(&self) -> u64 {
        self.room.start / 2
    }

    /// The end of the header.
    pub fn end(&self) -> u64 {
        self.room.end
    }
}

/// A volume in the middle of a change that is not known here is not touched.
fn refuse_requirements(requirements: &Value) -> Result<()> {
    let mandatory = requirements["mandatory"].as_array().map_or(&[][..], Vec::as_slice);
    let named: Vec<String> = mandatory.iter().map(Value::to_string).collect();
    match named.is_empty() {
        true => Ok(()),
        false => Err(Error::unsupported(format!(
            "the volume needs features that are not known here: {}",
            named.join(", ")
        ))),
    }
}

/// The key of the digest of the data's key.
fn digest_of_data(json: &Value) -> Result<String> {
    let segment = entries(json, "segments")?.into_keys().next().map(|number| number.to_string());
    for (number, value) in entries(json, "digests")? {
        let digest: Digest = read(value, "digests")?;
        if segment.as_ref().is_some_and(|segment| digest.segments.contains(segment)) {
            return Ok(number.to_string());
        }
    }
    Err(corrupt("there is no digest of the key of the data"))
}

/// The area of the data, and the digest of its key.
fn data(json: &Value) -> Result<(DataArea, Digest)> {
    let segments = entries(json, "segments")?;
    let (Some(segment), 1) = (segments.values().next(), segments.len()) else {
        return Err(Error::unsupported(format!("{} segments of data: one is known here", segments.len())));
    };
    let data_area = read::<Segment>(segment, "segments")?.data_area()?;
    let digest: Digest = read(&json["digests"][digest_of_data(json)?], "digests")?;
    let known = Hash::of(&digest.hash)?;
    if digest.digest.0.is_empty() || digest.digest.0.len() > known.len() {
        return Err(corrupt("a digest has a length that it cannot have"));
    }
    Kdf::Pbkdf2 { hash: digest.hash.clone(), iterations: digest.iterations, salt: digest.salt.clone() }
        .check(0)?;
    Ok((data_area, digest))
}

/// The keyslots that open, and the ranges of all, in their order.
#[expect(clippy::type_complexity, reason = "two lists, named where they are kept")]
fn keyslots(
    json: &Value,
    digest: &Digest,
    room: &Range<u64>,
) -> Result<(BTreeMap<u32, Keyslot>, Vec<(u32, Range<u64>)>)> {
    #[derive(Deserialize)]
    struct Somewhere {
        offset: Text,
        size: Text,
    }
    let (mut keyslots, mut taken) = (BTreeMap::new(), Vec::new());
    for (number, value) in entries(json, "keyslots")? {
        let Somewhere { offset, size } = read(&value["area"], "keyslots")?;
        let end = offset.0.checked_add(size.0);
        let inside = end.is_some_and(|end| room.start <= offset.0 && end <= room.end && size.0 > 0);
        if number >= KEYSLOTS_MAX || !inside || !(offset.0 | size.0).is_multiple_of(AREA_UNIT) {
            return Err(corrupt(format!("keyslot {number} is where it cannot be")));
        }
        taken.push((number, offset.0..offset.0 + size.0));
        if value["type"] == "luks2" && digest.keyslots.contains(&number.to_string()) {
            let keyslot: Keyslot = read(value, "keyslots")?;
            keyslot.check()?;
            keyslots.insert(number, keyslot);
        }
    }
    taken.sort_by_key(|(_, area)| area.start);
    match taken.windows(2).any(|pair| pair[0].1.end > pair[1].1.start) {
        true => Err(corrupt("two keyslots share space")),
        false => Ok((keyslots, taken)),
    }
}
