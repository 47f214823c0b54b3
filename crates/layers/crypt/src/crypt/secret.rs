//! Passphrases and keys: read from files, cleared from memory when they are dropped, shown nowhere.

use lamina_block::{Env, Error, Result};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Secret bytes. They cannot be shown by mistake: there is no `Debug` and no `Display` of them.
pub(super) struct Secret(Zeroizing<Vec<u8>>);

/// The longest key file in bytes; as `cryptsetup`.
const KEY_MAX: usize = 8 << 20;
/// The longest passphrase in bytes; as `cryptsetup`.
const PASSPHRASE_MAX: usize = 512;

impl Secret {
    /// Takes over bytes.
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> Secret {
        Secret(bytes)
    }

    /// The bytes, for computations.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A copy for another thread; cleared there.
    pub fn copy(&self) -> Secret {
        Secret(self.0.clone())
    }

    /// Random bytes.
    pub fn random(env: &dyn Env, len: usize) -> Result<Secret> {
        let mut bytes = Zeroizing::new(vec![0; len]);
        env.secret(&mut bytes)?;
        Ok(Secret(bytes))
    }
}

/// The source of a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// All bytes of a file, as `cryptsetup --key-file`.
    KeyFile(PathBuf),
    /// The first line of a file without its end, as one would type it.
    PassphraseFile(PathBuf),
}

impl Source {
    /// The source of one of these keys, whichever is given; errors name the key.
    pub fn of(key_file: Option<PathBuf>, passphrase_file: Option<PathBuf>) -> Result<Source> {
        match (key_file, passphrase_file) {
            (Some(path), None) => Ok(Source::KeyFile(path)),
            (None, Some(path)) => Ok(Source::PassphraseFile(path)),
            (None, None) => Err(Error::invalid(
                "key-file: is missing: the key names a file with the key, or else \
                 passphrase-file one with a passphrase",
            )),
            (Some(_), Some(_)) => {
                Err(Error::invalid("passphrase-file: there is a key-file already: it is one or the other"))
            }
        }
    }

    /// The same with an absolute path.
    pub fn based(self, base: impl FnOnce(PathBuf) -> PathBuf) -> Source {
        match self {
            Source::KeyFile(path) => Source::KeyFile(base(path)),
            Source::PassphraseFile(path) => Source::PassphraseFile(base(path)),
        }
    }

    /// The key of the source in the hierarchy file.
    pub fn key(&self) -> &'static str {
        match self {
            Source::KeyFile(_) => "key-file",
            Source::PassphraseFile(_) => "passphrase-file",
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Source::KeyFile(path) | Source::PassphraseFile(path) => path,
        }
    }

    /// Reads the secret. Errors begin with the key's name.
    pub async fn read(&self, env: &dyn Env) -> Result<Secret> {
        let (path, max) = match self {
            Source::KeyFile(path) => (path, KEY_MAX),
            // The end of the line is read, too.
            Source::PassphraseFile(path) => (path, PASSPHRASE_MAX + 2),
        };
        let named = |e: Error| Error::new(e.kind(), format!("{}: {}", self.key(), e.message()));
        let mut bytes = Zeroizing::new(env.read_file(path.clone(), max).await.map_err(named)?);
        if let Source::PassphraseFile(_) = self {
            let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
            bytes.truncate(line);
        }
        match bytes.is_empty() {
            true => Err(Error::invalid(format!("{}: {} is empty", self.key(), path.display()))),
            false => Ok(Secret(bytes)),
        }
    }
}
