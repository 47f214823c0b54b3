//! `[export.NAME]`: a device made reachable for others.

use crate::keys::Section;
use crate::report::{Report, quoted};
use lamina_block::{Address, Budget, Bytes, KeyError};
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The longest path of a Unix socket in bytes (sockaddr_un, without the closing zero).
pub const SOCKET_PATH_MAX: usize = 107;
/// The most request queues of a vhost-user device.
pub const QUEUES_MAX: u16 = 64;
/// The longest serial number in bytes (virtio-blk's GET_ID).
pub const SERIAL_MAX: usize = 20;
/// The mode of a socket about which a file says nothing.
const OWNER_ONLY: u32 = 0o600;
/// The longest description in bytes (NBD's limit on strings).
pub const DESCRIPTION_MAX: usize = 4096;

/// The files of a TLS listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The server's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Certificates, one of which must have signed a client's own, PEM. Any client is let in when `None`.
    pub client_ca: Option<PathBuf>,
}

/// A device made reachable. Paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name that NBD clients ask for.
    pub name: String,
    /// The exported device.
    pub device: String,
    /// Where NBD clients connect. Several exports may share one address.
    pub nbd: Option<Address>,
    /// TLS of the NBD listener. The same for all exports of one address.
    pub tls: Option<Tls>,
    /// The vhost-user socket that a hypervisor connects to.
    pub vhost_user: Option<PathBuf>,
    /// Clients may not write, whatever the device allows.
    pub read_only: bool,
    /// A line for people, shown by NBD's list.
    pub description: String,
    /// Request queues offered over vhost-user, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// The serial number that a guest sees, at most [`SERIAL_MAX`] bytes; the export's name, cut, when `None`.
    pub serial: Option<String>,
    /// The most bytes of memory for its requests, all clients together.
    pub memory: usize,
    /// Any file is taken as a guest's memory over vhost-user, not only memory (memfd, tmpfs, huge pages).
    pub any_memory: bool,
    /// The permission bits of its Unix sockets, at most 0o777. The same for all exports of one NBD address.
    pub socket_mode: u32,
    /// The group of its Unix sockets, by name or number; the daemon's when `None`. The same for all exports of one NBD
    /// address.
    pub socket_group: Option<String>,
    /// The folder with the records of the hosts that share it over NBD, if it keeps these.
    pub vault: Option<PathBuf>,
    /// Where keys stand in the file.
    pub(crate) places: Places,
}

/// Where an export's keys stand in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    pub header: Range<usize>,
    pub device: Range<usize>,
    pub nbd: Range<usize>,
    pub tls: Range<usize>,
    pub vhost_user: Range<usize>,
    pub socket_mode: Range<usize>,
    pub socket_group: Range<usize>,
    pub vault: Range<usize>,
}

/// The keys as they stand in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Keys {
    device: String,
    nbd: Option<String>,
    tls: Option<TlsKeys>,
    vhost_user: Option<PathBuf>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    description: String,
    queues: Option<u64>,
    serial: Option<String>,
    memory: Option<Bytes>,
    memory_files: Option<MemoryFiles>,
    socket_mode: Option<String>,
    socket_group: Option<String>,
    vault: Option<PathBuf>,
}

/// Which files a front-end may share as its guest's memory.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum MemoryFiles {
    /// The regions that are memory.
    Memory,
    Any,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TlsKeys {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

fn parse(keys: &Value) -> Result<Keys, KeyError> {
    serde_path_to_error::deserialize(keys).map_err(|e| {
        let path = e.path().to_string();
        KeyError { path: if path == "." { String::new() } else { path }, message: e.inner().to_string() }
    })
}

/// Reads `[export.NAME]`, or reports what is wrong with it.
pub(crate) fn read(name: &str, section: &Section<'_>, base: &Path, report: &mut Report) -> Option<Export> {
    let keys = section.neutral(&[], report);
    section.check(&keys, |keys| parse(keys).map(drop), report);
    let keys = parse(&keys).ok()?;
    let at = |key: &str| section.table.get(key).map_or(section.header.clone(), |value| value.span());
    check_values(&keys, section, &at, report);
    let mut good = |key: &str, address: Result<Address, String>| {
        address.map_err(|message| section.wrong(report, key, at(key), &message)).ok()
    };
    let nbd = keys.nbd.as_deref().and_then(|text| good("nbd", nbd_address(text, base)));
    let vhost_user = keys.vhost_user.as_deref().and_then(|path| good("vhost-user", socket(path, base)));
    Some(Export {
        name: name.into(),
        device: keys.device,
        nbd,
        tls: keys.tls.map(|tls| tls.over(base)),
        vhost_user: vhost_user.and_then(|address| match address {
            Address::Unix(path) => Some(path),
            Address::Tcp(_) => None,
        }),
        read_only: keys.read_only,
        description: keys.description,
        queues: keys.queues.and_then(|n| u16::try_from(n).ok()).unwrap_or(1),
        serial: keys.serial,
        memory: keys.memory.map_or(Budget::EXPORT, |memory| memory.0 as usize),
        any_memory: keys.memory_files == Some(MemoryFiles::Any),
        socket_mode: keys.socket_mode.as_deref().and_then(mode).unwrap_or(OWNER_ONLY),
        socket_group: keys.socket_group,
        vault: keys.vault.map(|vault| base.join(vault)),
        places: Places {
            header: section.header.clone(),
            device: at("device"),
            nbd: at("nbd"),
            tls: at("tls"),
            vhost_user: at("vhost-user"),
            socket_mode: at("socket-mode"),
            socket_group: at("socket-group"),
            vault: at("vault"),
        },
    })
}

impl Export {
    /// The key in which it differs from an export with the same NBD address, though they share a listener.
    pub fn differs_as_listener(&self, other: &Export) -> Option<&'static str> {
        let socket = matches!(self.nbd, Some(Address::Unix(_)));
        if self.tls != other.tls {
            Some("tls")
        } else if socket && self.socket_mode != other.socket_mode {
            Some("socket-mode")
        } else if socket && self.socket_group != other.socket_group {
            Some("socket-group")
        } else {
            None
        }
    }
}

impl Places {
    /// The place of a key that exports of one listener have in common.
    pub fn of_listener(&self, key: &str) -> Range<usize> {
        match key {
            "socket-mode" => self.socket_mode.clone(),
            "socket-group" => self.socket_group.clone(),
            _ => self.tls.clone(),
        }
    }
}

/// Permission bits as `chmod` takes them: three octal digits, with or without a zero before them.
fn mode(text: &str) -> Option<u32> {
    let digits = if text.len() == 4 { text.strip_prefix('0')? } else { text };
    let octal = digits.len() == 3 && digits.bytes().all(|b| (b'0'..=b'7').contains(&b));
    octal.then(|| u32::from_str_radix(digits, 8).ok()).flatten()
}

impl TlsKeys {
    /// With paths made absolute.
    fn over(self, base: &Path) -> Tls {
        let path = |path: PathBuf| base.join(path);
        Tls { certificate: path(self.certificate), key: path(self.key), client_ca: self.client_ca.map(path) }
    }
}

/// Checks that serde cannot express: limits, and keys that have no meaning without another.
fn check_values(keys: &Keys, section: &Section<'_>, at: &dyn Fn(&str) -> Range<usize>, report: &mut Report) {
    let mut wrong = |key: &str, message: &str| section.wrong(report, key, at(key), message);
    if keys.nbd.is_none() && keys.vhost_user.is_none() {
        let message =
            "has no address: add \"nbd\" (\"unix:PATH\" or \"tcp:HOST:PORT\") or \"vhost-user\" (PATH)";
        return report.error(section.subject.clone(), None, Some(section.header.clone()), message);
    }
    if keys.nbd.is_none() && keys.tls.is_some() {
        wrong("tls", "is for \"nbd\", which this export does not have");
    }
    if keys.vault.is_some() && keys.vhost_user.is_some() {
        wrong(
            "vault",
            "is for hosts that share the export over \"nbd\" alone: a guest of \"vhost-user\" is none of them",
        );
    }
    if keys.vault.is_some() && keys.nbd.is_none() {
        wrong("vault", "is for \"nbd\", which this export does not have");
    }
    let for_guests = [
        ("queues", keys.queues.is_some()),
        ("serial", keys.serial.is_some()),
        ("memory-files", keys.memory_files.is_some()),
    ];
    for (key, given) in for_guests {
        if given && keys.vhost_user.is_none() {
            wrong(key, "is for \"vhost-user\", which this export does not have");
        }
    }
    if let Some(n) = keys.queues.filter(|n| !(1..=QUEUES_MAX as u64).contains(n)) {
        wrong("queues", &format!("expected 1 to {QUEUES_MAX}, found {n}"));
    }
    if let Some(memory) = keys.memory.filter(|memory| memory.0 < Budget::EXPORT_MIN as u64) {
        let least = Bytes(Budget::EXPORT_MIN as u64);
        wrong("memory", &format!("expected {least} or more, found {memory}"));
    }
    let has_socket =
        keys.vhost_user.is_some() || keys.nbd.as_deref().is_some_and(|nbd| nbd.starts_with("unix:"));
    for (key, given) in
        [("socket-mode", keys.socket_mode.is_some()), ("socket-group", keys.socket_group.is_some())]
    {
        if given && !has_socket {
            wrong(key, "is for Unix sockets, which this export does not have");
        }
    }
    if let Some(text) = keys.socket_mode.as_deref().filter(|text| mode(text).is_none()) {
        let message = format!("expected the mode of a socket such as \"0660\", found {}", quoted(text));
        wrong("socket-mode", &message);
    }
    if keys.socket_group.as_deref() == Some("") {
        wrong("socket-group", "is empty: expected the name or the number of a group");
    }
    if let Some(serial) = &keys.serial
        && (serial.is_empty() || serial.len() > SERIAL_MAX || !serial.bytes().all(|b| b.is_ascii_graphic()))
    {
        wrong(
            "serial",
            &format!("expected 1 to {SERIAL_MAX} visible ASCII characters, found {}", quoted(serial)),
        );
    }
    if keys.description.len() > DESCRIPTION_MAX {
        let len = keys.description.len();
        wrong("description", &format!("has {len} bytes, and at most {DESCRIPTION_MAX} can be sent"));
    }
    if keys.description.chars().any(char::is_control) {
        wrong("description", "has control characters: expected one line of text");
    }
}

fn nbd_address(text: &str, base: &Path) -> Result<Address, String> {
    match text.parse::<Address>().map_err(|e| e.message().to_owned())? {
        Address::Unix(path) => fits(Address::Unix(base.join(path))),
        tcp @ Address::Tcp(_) => Ok(tcp),
    }
}

fn socket(path: &Path, base: &Path) -> Result<Address, String> {
    if path.as_os_str().is_empty() {
        return Err("is empty: expected the path of the socket".into());
    }
    fits(Address::Unix(base.join(path)))
}

/// Refuses what cannot be the path of a Unix socket.
fn fits(address: Address) -> Result<Address, String> {
    if let Address::Unix(path) = &address {
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&0) {
            return Err("a path has no zero byte".into());
        }
        if bytes.len() > SOCKET_PATH_MAX {
            return Err(format!(
                "the path of a socket has at most {SOCKET_PATH_MAX} bytes, and this one {}: {}",
                bytes.len(),
                path.display()
            ));
        }
    }
    Ok(address)
}
