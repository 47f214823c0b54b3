//! A vault that the store keeps: the server of the volume's export has the records, and lets the host alone write that
//! they name.
//!
//! ```text
//!   host ── question ──▶ server ── record compared and set (a folder there) ──▶ requests of older generations ended
//!        ◀── answer ──────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! So no late write of a host that was followed can land on the store, and a volume is taken over without a person's
//! word. An export has the records of one volume.
//!
//! Questions and answers are JSON, with a version in front; whatever a stranger sends is an answer that says what is
//! wrong with it.

use super::{Beat, NAME_MAX, Outcome, Record, Vault};
use lamina_block::{Answer, Error, ErrorKind, Pending, Records, ReservationKey, Result, SharedStore, Signal};
use serde::{Deserialize, Serialize};
use serde_json::{from_slice, to_vec};
use std::cell::Cell;
use std::rc::Rc;
use uuid::Uuid;

const VERSION: u32 = 1;
/// The longest name under which a host beats: its own, and a volume's UUID.
const BEAT_NAME_MAX: usize = NAME_MAX + 37;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    version: u32,
    question: Question,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Question {
    Volumes,
    Read(Uuid),
    Append(Box<Record>),
    Heard(String),
    Beat(String, Beat),
    Beating,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Told {
    Volumes(Vec<Uuid>),
    Record(Option<Box<Record>>),
    Done,
    Lost(Box<Record>),
    Heard(Option<Beat>),
    Names(Vec<String>),
    Failed(Failure, String),
}

/// The kinds of errors that a host acts on.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Failure {
    Corrupt,
    Full,
    Wrong,
    Other,
}

impl Told {
    fn failed(e: &Error) -> Told {
        let kind = match e.kind() {
            ErrorKind::Corrupt => Failure::Corrupt,
            ErrorKind::NoSpace => Failure::Full,
            ErrorKind::Invalid | ErrorKind::Unsupported => Failure::Wrong,
            _ => Failure::Other,
        };
        Told::Failed(kind, e.message().into())
    }
}

/// The records of an export, as its server keeps them.
pub struct StoreRecords {
    shared: Rc<Keeper>,
}

struct Keeper {
    vault: Rc<dyn Vault>,
    is_appending: Cell<bool>,
    appended: Signal,
}

impl StoreRecords {
    /// The records in a vault of the server's own.
    pub fn new(vault: Rc<dyn Vault>) -> Rc<StoreRecords> {
        let shared = Keeper { vault, is_appending: Cell::new(false), appended: Signal::new() };
        Rc::new(StoreRecords { shared: Rc::new(shared) })
    }
}

/// The oldest key that a host may still have when this is the newest record.
fn oldest_key(record: &Record) -> ReservationKey {
    // A volume that no host has is written by none, the last one included.
    let generation = record.generation + u64::from(record.holder.is_none());
    ReservationKey { volume: record.volume.as_u128(), generation }
}

/// A name of a host that a file may be called by.
fn checked(name: String) -> Result<String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=BEAT_NAME_MAX).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_valid) {
        true => Ok(name),
        false => Err(Error::invalid("a host beats under a name of letters, digits, \"-\", \"_\" and \".\"")),
    }
}

/// The right to append, which ends also when the host that asks is cut off meanwhile, and its question dropped.
struct Turn<'a>(&'a Keeper);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_appending.set(false);
        self.0.appended.notify();
    }
}

impl Keeper {
    async fn answer(&self, question: Vec<u8>) -> Answer {
        let asked = from_slice::<Asked>(&question).map_err(|e| Error::invalid(format!("no question: {e}")));
        let told = match asked {
            Ok(asked) if asked.version == VERSION => self.tell(asked.question).await,
            Ok(asked) => {
                let message =
                    format!("questions of version {} are not known here, only {VERSION}", asked.version);
                Err(Error::unsupported(message))
            }
            Err(e) => Err(e),
        };
        let (told, preempts) = told.unwrap_or_else(|e| (Told::failed(&e), None));
        Answer { bytes: to_vec(&told).expect("it has no map with other keys than strings"), preempts }
    }

    async fn tell(&self, question: Question) -> Result<(Told, Option<ReservationKey>)> {
        let told = match question {
            Question::Volumes => Told::Volumes(self.vault.volumes().await?),
            Question::Read(volume) => Told::Record(self.vault.read(volume).await?.map(Box::new)),
            Question::Append(record) => return self.append(*record).await,
            Question::Heard(name) => Told::Heard(self.vault.heard(&checked(name)?).await?),
            Question::Beat(name, beat) => {
                self.vault.beat(&checked(name)?, beat).await?;
                Told::Done
            }
            Question::Beating => Told::Names(self.vault.beating().await?),
        };
        Ok((told, None))
    }

    /// One at a time: of two first records one is that of the export's volume.
    async fn append(&self, record: Record) -> Result<(Told, Option<ReservationKey>)> {
        self.appended.until(|| !self.is_appending.replace(true)).await;
        let _turn = Turn(self);
        self.append_alone(record).await
    }

    async fn append_alone(&self, record: Record) -> Result<(Told, Option<ReservationKey>)> {
        record.check()?;
        if let Some(other) = self.vault.volumes().await?.into_iter().find(|volume| *volume != record.volume) {
            let name =
                self.vault.read(other).await?.map_or(other.to_string(), |other| format!("{:?}", other.name));
            let message = format!(
                "this export is that of volume {name}, and not of {:?}: name the export of that volume",
                record.name
            );
            return Err(Error::invalid(message));
        }
        Ok(match self.vault.append(&record).await? {
            Outcome::Done => (Told::Done, Some(oldest_key(&record))),
            Outcome::Lost(newest) => (Told::Lost(newest), None),
        })
    }
}

impl Records for StoreRecords {
    fn answer(&self, question: Vec<u8>) -> Pending<Answer> {
        let keeper = Rc::clone(&self.shared);
        Box::pin(async move { Ok(keeper.answer(question).await) })
    }

    fn is_newest(&self, key: ReservationKey) -> Pending<bool> {
        let read = self.shared.vault.read(Uuid::from_u128(key.volume));
        Box::pin(async move {
            let has_it = |newest: &Record| newest.holder.is_some() && oldest_key(newest) == key;
            Ok(read.await?.as_ref().is_some_and(has_it))
        })
    }
}

/// The vault that a store keeps, as a host asks it.
pub struct StoreVault(Rc<dyn SharedStore>);

impl StoreVault {
    /// The vault of this store.
    pub fn new(store: Rc<dyn SharedStore>) -> StoreVault {
        StoreVault(store)
    }

    fn ask<T: 'static>(
        &self,
        question: Question,
        read: impl FnOnce(Told) -> Option<T> + 'static,
    ) -> Pending<T> {
        let bytes = to_vec(&Asked { version: VERSION, question })
            .expect("it has no map with other keys than strings");
        let answer = self.0.ask(bytes);
        Box::pin(async move {
            let told: Told = from_slice(&answer.await?)
                .map_err(|e| Error::offline(format!("the store's answer about its hosts is none: {e}")))?;
            if let Told::Failed(kind, message) = told {
                let kind = match kind {
                    Failure::Corrupt => ErrorKind::Corrupt,
                    Failure::Full => ErrorKind::NoSpace,
                    Failure::Wrong => ErrorKind::Invalid,
                    Failure::Other => ErrorKind::Offline,
                };
                return Err(Error::new(kind, format!("the store says: {message}")));
            }
            read(told).ok_or_else(|| Error::offline("the store has answered another question"))
        })
    }
}

impl Vault for StoreVault {
    fn volumes(&self) -> Pending<Vec<Uuid>> {
        self.ask(Question::Volumes, |told| match told {
            Told::Volumes(volumes) => Some(volumes),
            _ => None,
        })
    }

    fn read(&self, volume: Uuid) -> Pending<Option<Record>> {
        self.ask(Question::Read(volume), move |told| match told {
            Told::Record(None) => Some(None),
            Told::Record(Some(record)) if record.volume == volume && record.check().is_ok() => {
                Some(Some(*record))
            }
            _ => None,
        })
    }

    fn append(&self, record: &Record) -> Pending<Outcome> {
        let volume = record.volume;
        self.ask(Question::Append(Box::new(record.clone())), move |told| match told {
            Told::Done => Some(Outcome::Done),
            Told::Lost(newest) if newest.volume == volume && newest.check().is_ok() => {
                Some(Outcome::Lost(newest))
            }
            _ => None,
        })
    }

    fn heard(&self, host: &str) -> Pending<Option<Beat>> {
        self.ask(Question::Heard(host.into()), |told| match told {
            Told::Heard(beat) => Some(beat),
            _ => None,
        })
    }

    fn beat(&self, host: &str, beat: Beat) -> Pending {
        self.ask(Question::Beat(host.into(), beat), |told| matches!(told, Told::Done).then_some(()))
    }

    fn beating(&self) -> Pending<Vec<String>> {
        self.ask(Question::Beating, |told| match told {
            Told::Names(names) => Some(names),
            _ => None,
        })
    }

    fn fences(&self) -> bool {
        true
    }
}
