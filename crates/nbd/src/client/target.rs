//! Where an export is: an address or an NBD URI.

use lamina_block::{Address, Error, Result};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port that is meant when a URI names none.
const PORT: u16 = 10809;

/// A server, and the export on it, from a URI.
///
/// Understood are `unix:PATH`, `tcp:HOST:PORT`, and the URIs of the NBD project: `nbd://HOST[:PORT]/EXPORT`,
/// `nbd+unix:///EXPORT?socket=PATH`, and with `nbds` the same encrypted, where `tls-certificates=FOLDER` names a
/// folder with `ca-cert.pem` and, for clients that must show who they are, `client-cert.pem` and `client-key.pem`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where to connect.
    pub address: Address,
    /// The export; `None` if only an address was given. Empty means the server's default.
    pub export: Option<String>,
    /// The URI asks for encryption.
    pub tls: bool,
    /// The folder with certificates.
    pub certificates: Option<PathBuf>,
}

impl Target {
    /// The host that a certificate must be for.
    pub fn host(&self) -> &str {
        match &self.address {
            Address::Unix(_) => "localhost",
            Address::Tcp(host) => {
                let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
                host.trim_start_matches('[').trim_end_matches(']')
            }
        }
    }

    /// Relative paths begin at `base`.
    pub fn based(mut self, base: &Path) -> Target {
        if let Address::Unix(path) = &mut self.address {
            *path = base.join(&path);
        }
        self.certificates = self.certificates.map(|folder| base.join(folder));
        self
    }
}

/// How NBD tools write the place of an export (the NBD URI specification).
pub fn uri(address: &Address, export: &str, tls: bool) -> String {
    let scheme = if tls { "nbds" } else { "nbd" };
    match address {
        Address::Tcp(place) => format!("{scheme}://{place}/{}", encode(export)),
        Address::Unix(path) => {
            format!("{scheme}+unix:///{}?socket={}", encode(export), encode(&path.to_string_lossy()))
        }
    }
}

/// With a %-code for every byte that is neither unreserved (RFC 3986) nor a slash.
fn encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    let code = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(code).collect()
}

fn wrong(text: &str, why: &str) -> Error {
    Error::invalid(format!(
        "{text:?} is no place of an NBD export ({why}): write \"unix:PATH\", \"tcp:HOST:PORT\", \
         \"nbd://HOST:PORT/EXPORT\" or \"nbd+unix:///EXPORT?socket=PATH\""
    ))
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Target> {
        let Some((scheme, rest)) = text.split_once("://") else {
            let address = text.parse().map_err(|_| wrong(text, "the text is no address"))?;
            return Ok(Target { address, export: None, tls: false, certificates: None });
        };
        let (tls, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(wrong(text, "this kind of URI is not known")),
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = place.split_once('/').unwrap_or((place, ""));
        let decoded = |part: &str| decode(part).ok_or_else(|| wrong(text, "a %-code is wrong"));
        let (mut socket, mut certificates) = (None, None);
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "socket" if unix => socket = Some(PathBuf::from(decoded(value)?)),
                "tls-certificates" if tls => certificates = Some(PathBuf::from(decoded(value)?)),
                _ => return Err(wrong(text, "an unknown parameter")),
            }
        }
        let address = match (unix, socket) {
            (true, Some(path)) if host.is_empty() => Address::Unix(path),
            (true, Some(_)) => return Err(wrong(text, "a Unix socket has no host")),
            (true, None) => return Err(wrong(text, "socket=PATH is missing")),
            (false, _) => {
                tcp(host).ok_or_else(|| wrong(text, "the host is missing, or the port is wrong"))?
            }
        };
        Ok(Target { address, export: Some(decoded(export)?), tls, certificates })
    }
}

/// `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
fn tcp(authority: &str) -> Option<Address> {
    let bare = authority.ends_with(']') || !authority.contains(':');
    let full = if bare { format!("{authority}:{PORT}") } else { authority.to_owned() };
    format!("tcp:{full}").parse().ok()
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (code, tail) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let check = |text: &str, address: &str, export: Option<&str>, tls: bool| {
            let target: Target = text.parse().expect(text);
            assert_eq!(target.address.to_string(), address, "{text}");
            assert_eq!((target.export.as_deref(), target.tls), (export, tls), "{text}");
        };
        check("unix:/run/a.sock", "unix:/run/a.sock", None, false);
        check("tcp:[::1]:10809", "tcp:[::1]:10809", None, false);
        check("nbd://host", "tcp:host:10809", Some(""), false);
        check("nbd://host:1/a%20b", "tcp:host:1", Some("a b"), false);
        check("nbds://[::1]/x", "tcp:[::1]:10809", Some("x"), true);
        check("nbd+unix:///vm?socket=/tmp/a%3Fb", "unix:/tmp/a?b", Some("vm"), false);
        check("nbds+unix://?socket=s", "unix:s", Some(""), true);
    }

    #[test]
    fn a_place_is_written_as_it_is_read() {
        let unix = Address::Unix("/run/a b&c.sock".into());
        assert_eq!(uri(&unix, "vm1", false), "nbd+unix:///vm1?socket=/run/a%20b%26c.sock");
        for (text, export) in
            [("tcp:[::1]:10809", "vm 1"), ("unix:/run/a b?.sock", "disk/0"), ("tcp:host:1", "")]
        {
            let address: Address = text.parse().expect("an address");
            for tls in [false, true] {
                let there: Target = uri(&address, export, tls).parse().expect("a URI");
                let expected =
                    Target { address: address.clone(), export: Some(export.into()), tls, certificates: None };
                assert_eq!(there, expected);
            }
        }
    }

    #[test]
    fn no_places() {
        for text in [
            "",
            "/run/a.sock",
            "http://host/x",
            "nbd://",
            "nbd://host:port/",
            "nbd+unix:///x",
            "nbd+unix://host/x?socket=s",
            "nbd://host/x?socket=s",
            "nbd://host/%zz",
            "nbd://host/%e4",
            "nbd://host/%4",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_name_in_the_certificate() {
        let host = |text: &str| text.parse::<Target>().expect(text).host().to_owned();
        assert_eq!(host("nbds://[::1]:1/"), "::1");
        assert_eq!(host("nbds://disks.example/"), "disks.example");
        assert_eq!(host("unix:/s"), "localhost");
    }
}
