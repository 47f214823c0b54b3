//! Opening a volume, and making one on an empty device.

use super::cipher::{Algorithm, Cipher};
use super::luks::{Costs, DataArea, HEADER_LEN, HEADER_MIN, KDF_MEMORY_MIN, Luks, Opened};
use super::secret::{Secret, Source};
use super::{Crypt, Keys, Named};
use lamina_block::{Begin, Buf, Build, Bytes, Env, Error, ErrorKind, Io, Node, Occasion, Result, Signal};
use std::cell::Cell;
use std::rc::Rc;

/// The largest block of devices below, in bytes: headers are read and written in units of it.
const BLOCK_MAX: u32 = 4096;
/// Bytes that are read at once to see whether a device is empty.
const LOOK: u64 = 1 << 20;

impl Named {
    fn algorithm(self) -> Algorithm {
        match self {
            Named::AesXts => Algorithm::AesXts,
            Named::Blowfish => Algorithm::Blowfish,
            Named::Des => Algorithm::Des,
            Named::TripleDes => Algorithm::TripleDes,
        }
    }
}

/// The volume with these keys.
pub(super) async fn open(keys: Keys, with: Build) -> Result<Crypt> {
    let (costs, source) = check(&keys, with.keep.is_some())?;
    let source = source.at(&with.base, || question(&with));
    let header = with.metadata.clone().unwrap_or_else(|| with.child());
    for node in [&header, &with.child()] {
        if node.geometry().block > BLOCK_MAX {
            let message =
                format!("blocks of {} bytes are too large for a LUKS header", node.geometry().block);
            return Err(Error::unsupported(message).on(node.name()));
        }
    }
    let source = Supply::new(source, &*with.env).await?;
    let (luks, opened) = match with.begin {
        Begin::Adopt => {
            return Err(Error::unsupported(
                "a device in use cannot be encrypted as it is: make an encrypted device, and copy the data",
            ));
        }
        Begin::Format => make(&keys, &with, &header, costs, &source).await?,
        Begin::Open => match Luks::find(&header, &with.env, costs).await {
            Ok(Some(luks)) => {
                let opened = unlock(&luks, &source, &*with.env).await?;
                (luks, opened)
            }
            Ok(None) if keys.format => {
                let len = header_len(&keys, &header);
                refuse_what_is_there(&header, len).await?;
                refuse_what_is_there(&with.child(), len).await?;
                make(&keys, &with, &header, costs, &source).await?
            }
            Ok(None) => return Err(missing(&with, &header)),
            Err(e) => return Err(e.on(header.name())),
        },
    };
    volume(keys, with, luks, opened)
}

/// The results of the keys alone, if they fit each other.
pub(super) fn check(keys: &Keys, persistent: bool) -> Result<(Costs, Source)> {
    if keys.format && persistent {
        return Err(Error::invalid(
            "format: the key is for hierarchies without [hierarchy]: `lamina create` makes this one",
        ));
    }
    let asked = keys.ask_passphrase.then(|| Source::Asked(String::new()));
    let third = "ask-passphrase = true asks for one at the terminal";
    Ok((costs(keys)?, Source::of(keys.key_file.clone(), keys.passphrase_file.clone(), asked, third)?))
}

fn costs(keys: &Keys) -> Result<Costs> {
    let (memory, memory_max) = (keys.kdf_memory.0, keys.kdf_memory_max.0);
    if memory < KDF_MEMORY_MIN || memory > memory_max {
        let least = Bytes(KDF_MEMORY_MIN);
        return Err(Error::invalid(format!(
            "kdf-memory: is between {least} and kdf-memory-max, {}",
            keys.kdf_memory_max
        )));
    }
    Ok(Costs { memory, memory_max })
}

/// A question about a device's passphrase, in words.
fn question(with: &Build) -> String {
    match &with.file[..] {
        "" => format!("passphrase of device {}", with.name),
        file => format!("passphrase of device {} ({file})", with.name),
    }
}

/// A source: a file has been read, and a person is asked when nothing but the answer can be wrong.
struct Supply {
    source: Source,
    read: Option<Secret>,
}

impl Supply {
    async fn new(source: Source, env: &dyn Env) -> Result<Supply> {
        let read = match &source {
            Source::Asked(_) => None,
            source => Some(source.read(env, Occasion::Needed).await?),
        };
        Ok(Supply { source, read })
    }

    async fn secret(&self, env: &dyn Env, occasion: Occasion) -> Result<Secret> {
        match &self.read {
            Some(secret) => Ok(secret.copy()),
            None => self.source.read(env, occasion).await,
        }
    }
}

async fn unlock(luks: &Luks, supply: &Supply, env: &dyn Env) -> Result<Opened> {
    let source = &supply.source;
    for attempt in 0..source.attempts() {
        let occasion = if attempt == 0 { Occasion::Needed } else { Occasion::Wrong };
        if let Some(opened) = luks.unlock(&supply.secret(env, occasion).await?).await? {
            return Ok(opened);
        }
    }
    let (secret, keyslots) = (source.described(), luks.keyslots());
    let of = if keyslots == 1 { "keyslot".to_owned() } else { format!("{keyslots} keyslots") };
    let which = if keyslots == 1 { "does not open the only" } else { "opens none of the" };
    Err(Error::invalid(format!("{}: wrong key: {secret} {which} {of}", source.key())))
}

fn missing(with: &Build, header: &Rc<Node>) -> Error {
    let how = match with.keep {
        Some(_) => "`lamina create` makes it",
        None => "`cryptsetup luksFormat` makes it, or the key format = true",
    };
    Error::invalid(format!("there is no LUKS header on {:?}: {how}", header.name()))
}

/// Makes the volume. The bytes on the device are not checked here.
async fn make(
    keys: &Keys,
    with: &Build,
    header: &Rc<Node>,
    costs: Costs,
    source: &Supply,
) -> Result<(Luks, Opened)> {
    let algorithm = keys.cipher.map_or(Algorithm::AesXts, Named::algorithm);
    if algorithm.is_legacy() && !keys.allow_legacy {
        let name = algorithm.name();
        return Err(Error::invalid(format!(
            "cipher: {name} protects nobody any more: new volumes have it only with allow-legacy = true"
        )));
    }
    let sector =
        keys.sector_size.unwrap_or(if with.child().geometry().optimal < BLOCK_MAX { 512 } else { BLOCK_MAX });
    if sector != 512 && sector != BLOCK_MAX {
        return Err(Error::invalid("sector-size: is 512 or 4096"));
    }
    let len = header_len(keys, header);
    if len < HEADER_MIN || !len.is_multiple_of(u64::from(BLOCK_MAX)) {
        let least = Bytes(HEADER_MIN);
        return Err(Error::invalid(format!(
            "header-size: is at least {least}, and a multiple of 4096 bytes"
        )));
    }
    let room = header.geometry().size;
    let (offset, needed) = match with.metadata {
        Some(_) => (0, len),
        None => (len, len + u64::from(sector.max(header.geometry().block))),
    };
    if room < needed {
        let message = format!("{} are too few for a LUKS header: it takes {}", Bytes(room), Bytes(needed));
        return Err(Error::new(ErrorKind::NoSpace, message).on(header.name()));
    }
    let data_area = DataArea { offset, size: None, tweak: 0, algorithm, sector };
    let secret = source.secret(&*with.env, Occasion::New).await?;
    Luks::make(header, &with.env, costs, len, &data_area, &secret).await
}

/// The length of a new volume's header: on a device of its own no more than there is.
fn header_len(keys: &Keys, header: &Rc<Node>) -> u64 {
    let there = header.geometry().size / u64::from(BLOCK_MAX) * u64::from(BLOCK_MAX);
    keys.header_size.map_or(HEADER_LEN.min(there), |size| size.0)
}

/// Refuses a device whose first `len` bytes are not all zeroes.
async fn refuse_what_is_there(node: &Rc<Node>, len: u64) -> Result<()> {
    let end = len.min(node.geometry().size);
    for start in (0..end).step_by(LOOK as usize) {
        let bytes = Buf::zeroed(LOOK.min(end - start) as usize);
        node.submit(Io::read(start, bytes.clone())).await?;
        if bytes.to_vec().iter().any(|byte| *byte != 0) {
            return Err(Error::invalid(format!(
                "format: there is something on {:?}, and no LUKS header: it is not overwritten. If it is of no use any \
                 more, fill its first {} with zeroes",
                node.name(),
                Bytes(end)
            )));
        }
    }
    Ok(())
}

/// The device, once the volume key is known.
fn volume(keys: Keys, with: Build, luks: Luks, opened: Opened) -> Result<Crypt> {
    let (data_area, child) = (luks.data_area(), with.child());
    let asked = keys.cipher.map_or(data_area.algorithm, Named::algorithm);
    if asked != data_area.algorithm {
        let name = data_area.algorithm.name();
        return Err(Error::invalid(format!("cipher: the volume was made with {name}, and keeps that")));
    }
    if keys.sector_size.is_some_and(|sector| sector != data_area.sector) {
        let sector = data_area.sector;
        return Err(Error::invalid(format!(
            "sector-size: the volume was made with {sector}, and keeps that"
        )));
    }
    let below = child.geometry();
    let end = data_area.offset.checked_add(data_area.size.unwrap_or(1));
    let corrupt = |message: &str| Err(Error::new(ErrorKind::Corrupt, message).on(child.name()));
    if with.metadata.is_none() && data_area.offset < luks.end() {
        return corrupt("the LUKS header says that data and keyslots share space");
    }
    if end.is_none_or(|end| end > below.size) {
        return corrupt("the device is smaller than its LUKS header says: data are missing");
    }
    if !data_area.offset.is_multiple_of(u64::from(below.block)) {
        let message = format!("its data begin at byte {}, in the middle of a block", data_area.offset);
        return Err(Error::unsupported(message).on(child.name()));
    }
    tell(&with.name, &luks, &data_area);
    let cipher =
        Cipher::new(data_area.algorithm, opened.key.bytes(), data_area.sector as usize, data_area.tweak)?;
    Ok(Crypt {
        child,
        env: with.env,
        base: with.base,
        luks,
        data_area,
        cipher,
        key: opened.key,
        opened: Cell::new(opened.number),
        discard: keys.discard,
        changing: Cell::new(false),
        moved: Signal::new(),
    })
}

fn tell(device: &str, luks: &Luks, data_area: &DataArea) {
    if let Some((copy, fault)) = luks.fault() {
        let (copy, other) = (copy.name(), copy.other().name());
        tracing::warn!(device, "the {copy} copy of the LUKS header is not used ({fault}): the {other} is");
    }
    if data_area.algorithm.is_legacy() {
        let name = data_area.algorithm.name();
        tracing::warn!(device, "the volume is encrypted with {name}, which protects nobody any more");
    }
}
