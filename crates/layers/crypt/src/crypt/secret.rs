//! Passphrases and keys: read from files or typed, cleared from memory when they are dropped, shown nowhere.

use lamina_block::{Env, Error, ErrorKind, Occasion, Question, Result};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Secret bytes. They cannot be shown by mistake: there is no `Debug` and no `Display` of them.
pub(super) struct Secret(Zeroizing<Vec<u8>>);

/// The longest key file in bytes; as `cryptsetup`.
const KEY_MAX: usize = 8 << 20;
/// The longest passphrase in bytes; as `cryptsetup`.
const PASSPHRASE_MAX: usize = 512;
/// How often a person is asked for one passphrase; as `cryptsetup`.
const ATTEMPTS: usize = 3;

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

/// The source of a key or a passphrase.
pub(super) enum Source {
    /// All bytes of a file, as `cryptsetup --key-file`.
    KeyFile(PathBuf),
    /// The first line of a file without its end, as one would type it.
    PassphraseFile(PathBuf),
    /// A person is asked for it; with the words of the question.
    Asked(String),
    /// A command has it.
    Given(Secret),
}

impl Source {
    /// The only one of these sources; errors name the key. `third` says what there is besides files.
    pub fn of(
        key_file: Option<PathBuf>,
        passphrase_file: Option<PathBuf>,
        typed: Option<Source>,
        third: &str,
    ) -> Result<Source> {
        let files = [key_file.map(Source::KeyFile), passphrase_file.map(Source::PassphraseFile)];
        let mut given = files.into_iter().chain([typed]).flatten();
        match (given.next(), given.next()) {
            (Some(source), None) => Ok(source),
            (Some(one), Some(other)) => {
                let (one, other) = (one.key(), other.key());
                Err(Error::invalid(format!("{other}: there is a {one} already: it is one or the other")))
            }
            (None, _) => Err(Error::invalid(format!(
                "key-file: is missing: the key names a file with the key, passphrase-file one with a passphrase, and \
                 {third}"
            ))),
        }
    }

    /// The same with an absolute path, or the words of the question.
    pub fn at(self, base: &Path, question: impl FnOnce() -> String) -> Source {
        match self {
            Source::KeyFile(path) => Source::KeyFile(base.join(path)),
            Source::PassphraseFile(path) => Source::PassphraseFile(base.join(path)),
            Source::Asked(_) => Source::Asked(question()),
            Source::Given(_) => self,
        }
    }

    /// The key of the source in the hierarchy file, or of a command.
    pub fn key(&self) -> &'static str {
        match self {
            Source::KeyFile(_) => "key-file",
            Source::PassphraseFile(_) => "passphrase-file",
            Source::Asked(_) => "ask-passphrase",
            Source::Given(_) => "passphrase",
        }
    }

    /// How often the source is read for a secret that opens a volume: a person may mistype.
    pub fn attempts(&self) -> usize {
        match self {
            Source::Asked(_) => ATTEMPTS,
            Source::KeyFile(_) | Source::PassphraseFile(_) | Source::Given(_) => 1,
        }
    }

    /// The secret in words, for errors.
    pub fn described(&self) -> String {
        match self {
            Source::KeyFile(path) | Source::PassphraseFile(path) => path.display().to_string(),
            Source::Asked(_) | Source::Given(_) => "the passphrase".into(),
        }
    }

    /// Reads the secret. Errors begin with the key's name.
    pub async fn read(&self, env: &dyn Env, occasion: Occasion) -> Result<Secret> {
        let named = |e: Error| Error::new(e.kind(), format!("{}: {}", self.key(), e.message()));
        let bytes = match self {
            Source::KeyFile(path) => env.read_file(path.clone(), KEY_MAX).await.map_err(named)?,
            // The end of the line is read, too.
            Source::PassphraseFile(path) => {
                let mut bytes = env.read_file(path.clone(), PASSPHRASE_MAX + 2).await.map_err(named)?;
                let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
                bytes.truncate(line);
                bytes
            }
            Source::Asked(of) => {
                let question = Question { of: of.clone(), max: PASSPHRASE_MAX, occasion };
                env.ask_secret(question).await.map_err(without_a_person).map_err(named)?
            }
            Source::Given(secret) if secret.bytes().len() > PASSPHRASE_MAX => {
                return Err(Error::invalid(format!("passphrase: is longer than {PASSPHRASE_MAX} bytes")));
            }
            Source::Given(secret) => secret.bytes().to_vec(),
        };
        let bytes = Zeroizing::new(bytes);
        // An answer that opens nothing is asked for again.
        let is_tried = matches!(self, Source::Asked(_)) && occasion != Occasion::New;
        match bytes.is_empty() && !is_tried {
            true => Err(Error::invalid(format!("{}: {} is empty", self.key(), self.described()))),
            false => Ok(Secret(bytes)),
        }
    }
}

/// The remedy if no person can be asked.
fn without_a_person(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unsupported => Error::unsupported(format!(
            "{}. A file can have the passphrase instead: write passphrase-file = \"PATH\" in the place of \
             ask-passphrase = true. A service of systemd gets such a file, encrypted on disk, by \
             LoadCredentialEncrypted=; ask-passphrase can come back for a later start at a terminal",
            e.message()
        )),
        _ => e,
    }
}
