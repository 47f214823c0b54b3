//! The commands of a volume: they change the keyslots. The key of the data never changes.

use super::Crypt;
use super::secret::{Secret, Source};
use lamina_block::{Arg, ArgType, Command, Error, Node, Occasion, OpenDisk, Result, Verb};
use lamina_kit::command::{args, unknown};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::rc::Rc;
use zeroize::Zeroizing;

const SECRETS: &[Arg] = &[
    Arg::optional("key-file", ArgType::Text, "a file all of whose bytes are the key"),
    Arg::optional("passphrase-file", ArgType::Text, "a file whose first line is the passphrase"),
    Arg::optional("passphrase", ArgType::Secret, "the passphrase"),
];

/// The commands.
pub(super) const VERBS: &[Verb] = &[
    Verb::asks("keyslots", "the keyslots, and what opening them costs"),
    Verb::new("keyslot-add", "add a keyslot for another key or passphrase").with(SECRETS),
    Verb::new(
        "keyslot-remove",
        "remove a keyslot: its key or passphrase does not open the volume any \
        more",
    )
    .with(&[Arg::required("keyslot", ArgType::Count, "its number")]),
    Verb::new("key-change", "replace the keyslot that the device was opened with; no data is written again")
        .with(SECRETS),
    Verb::new(
        "header-backup",
        "write the header with its keyslots to a new file, as `cryptsetup luksHeaderBackup`",
    )
    .with(&[Arg::required("to", ArgType::Text, "the file, which must not be there yet")]),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Secrets {
    key_file: Option<PathBuf>,
    passphrase_file: Option<PathBuf>,
    passphrase: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Number {
    keyslot: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct To {
    to: PathBuf,
}

/// The right to change keyslots, for one command at a time; dropped at its end.
struct Changing(Rc<Crypt>);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.changing.set(false);
        self.0.moved.notify();
    }
}

impl Crypt {
    pub(super) async fn carry_out(self: Rc<Self>, command: Command) -> Result<Value> {
        match command.name.as_str() {
            "keyslots" => Ok(self.list()),
            "keyslot-add" => self.add(args(command)?).await,
            "keyslot-remove" => self.remove(args::<Number>(command)?.keyslot).await,
            "key-change" => self.change(args(command)?).await,
            "header-backup" => self.backup(args::<To>(command)?.to).await,
            _ => Err(unknown(&command, VERBS)),
        }
    }

    async fn begin(self: &Rc<Self>) -> Changing {
        self.moved.until(|| !self.changing.get()).await;
        self.changing.set(true);
        Changing(Rc::clone(self))
    }

    fn list(&self) -> Value {
        let mut keyslots = self.luks.list();
        for keyslot in keyslots.as_array_mut().into_iter().flatten() {
            keyslot["opened"] = (keyslot["keyslot"] == self.opened.get()).into();
        }
        json!({ "keyslots": keyslots })
    }

    async fn secret(&self, given: Secrets) -> Result<Secret> {
        let typed =
            given.passphrase.map(|typed| Source::Given(Secret::new(Zeroizing::new(typed.into_bytes()))));
        let third = "passphrase alone asks for one";
        let source = Source::of(given.key_file, given.passphrase_file, typed, third)?;
        source.at(&self.base, String::new).read(&*self.env, Occasion::New).await
    }

    async fn add(self: Rc<Self>, given: Secrets) -> Result<Value> {
        let secret = self.secret(given).await?;
        let _changing = self.begin().await;
        Ok(json!({ "keyslot": self.luks.ensure(&self.key, &secret).await? }))
    }

    async fn remove(self: Rc<Self>, number: u32) -> Result<Value> {
        let _changing = self.begin().await;
        if number == self.opened.get() {
            return Err(Error::invalid(format!(
                "keyslot: the device was opened with {number}, and no other keyslot is known to open: `key-change` \
                 replaces it"
            )));
        }
        self.luks.remove(number).await?;
        Ok(self.list())
    }

    /// The new keyslot is written, and has been opened from the disk before the old one is touched.
    async fn change(self: Rc<Self>, given: Secrets) -> Result<Value> {
        let secret = self.secret(given).await?;
        let _changing = self.begin().await;
        let old = self.opened.get();
        let new = self.luks.ensure(&self.key, &secret).await?;
        if new == old {
            return Err(Error::invalid(
                "this is the key that the device was opened with: there is nothing to change",
            ));
        }
        self.opened.set(new);
        if self.luks.has(old) {
            self.luks.remove(old).await?;
        }
        Ok(json!({ "keyslot": new, "removed": old }))
    }

    /// What the file has is read again, and is a header, before it is called a backup.
    async fn backup(self: Rc<Self>, to: PathBuf) -> Result<Value> {
        let to = self.base.join(to);
        let _changing = self.begin().await;
        let place = to.display().to_string();
        let open = |create: Option<u64>| {
            let (path, read_only) = (to.clone(), create.is_none());
            self.env.open_disk(OpenDisk { path, read_only, direct: false, create, block: Some(512) })
        };
        if open(None).await.is_ok() {
            let message = format!("to: {place} is there already: a backup goes to a new file");
            return Err(Error::invalid(message));
        }
        let file = open(Some(self.luks.end()))
            .await
            .map_err(|e| Error::new(e.kind(), format!("to: {}", e.message())))?;
        let file = Node::new("backup", "file", Rc::clone(&self.env), file);
        let copied = self.luks.copy_to(&file).await;
        let closed = file.close().await;
        copied.and(closed).map_err(|e| {
            Error::new(e.kind(), format!("{place} is not whole, and is to be removed: {}", e.message()))
        })?;
        Ok(json!({ "backup": to, "bytes": self.luks.end() }))
    }
}
