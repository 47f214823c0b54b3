//! Types that JSON does not have, and LUKS2 writes as text: numbers of 64 bits, bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text(pub u64);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Text, D::Error> {
        let text = String::deserialize(d)?;
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse().ok()).flatten();
        number.map(Text).ok_or_else(|| D::Error::custom(format!("{text:?} is no number")))
    }
}

/// Bytes, as base64 with padding (RFC 4648, section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Base64, D::Error> {
        STANDARD.decode(String::deserialize(d)?).map(Base64).map_err(D::Error::custom)
    }
}
