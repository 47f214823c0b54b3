//! The key `tls`: the files with which this host shows who it is, or that it deliberately does not.

use lamina_block::{Build, Error, Result};
use lamina_tls::MutualTls;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::PathBuf;

/// What the key says.
pub enum Tls {
    /// Nothing is encrypted, and every host is believed.
    Off,
    /// Everything is, and hosts show certificates.
    On(Files),
}

/// PEM files.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Files {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl<'de> Deserialize<'de> for Tls {
    /// By hand, so that messages name the fault inside, rather than that nothing fits.
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Tls, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Tls;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with ca, certificate and key, or \"off\"")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> std::result::Result<Tls, E> {
                match s {
                    "off" => Ok(Tls::Off),
                    _ => Err(E::invalid_value(de::Unexpected::Str(s), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Tls, A::Error> {
                Files::deserialize(MapAccessDeserializer::new(map)).map(Tls::On)
            }
        }
        d.deserialize_any(Visitor)
    }
}

impl Files {
    /// Reads the files. Whether other hosts take the certificate they say themselves; that it is for another name than
    /// `host` is said here, too, and ends nothing but connections.
    pub fn load(&self, with: &Build, host: &str) -> Result<MutualTls> {
        let [ca, certificate, key] = [&self.ca, &self.certificate, &self.key].map(|path| with.path(path));
        with.env.guard_key(&key);
        let told = |e: Error| Error::new(e.kind(), format!("tls: {}", e.message()));
        let tls = MutualTls::load(&ca, &certificate, &key).map_err(told)?;
        if let Err(e) = tls.own().is_for(host) {
            let file = certificate.display();
            tracing::warn!(device = %with.name, %file, error = %e, "other hosts do not take this certificate");
        }
        Ok(tls)
    }
}
